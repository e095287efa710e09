"""Workers die in every way: who is charged, what is told, and that all goes on (contract D4, H5; PAIN H01-H04, H14)."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.frames import in_one
from tests.support.leaks import alive, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of, pids, states, wait_idle
from tests.support.process_tasks import Gate

from procq import Queue, Status, TaskResult, task
from procq.engine.local import patience, wire
from procq.errors import AttemptTimeout, WorkerCrashed

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


def lines(path: Path) -> list[str]:
    return path.read_text().split()


@pytest.fixture
def briefly_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a worker that hung up and lives on for a cheat after a moment, not after a whole second."""
    monkeypatch.setattr(patience, "_HANG_UP_S", 0.2)


# --- the worker dies under a task ---


@pytest.mark.parametrize(
    ("die", "argument", "exit_code", "signal_name", "text"),
    [
        (tasks.die_by, signal.SIGKILL, None, "SIGKILL", "was killed by SIGKILL while it ran this task"),
        (tasks.die_by, signal.SIGSEGV, None, "SIGSEGV", "was killed by SIGSEGV while it ran this task"),
        (tasks.exit_at_once, 0, 0, None, "exited with code 0 while it ran this task"),
        (tasks.exit_at_once, 3, 3, None, "exited with code 3 while it ran this task"),
    ],
)
def test_D4_a_death_charges_the_running_task_alone(
    die: Callable[[int], None], argument: int, exit_code: int | None, signal_name: str | None, text: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2) as queue:
        neighbour = queue.submit(tasks.pass_gate, gate.path, "unharmed")
        neighbour_pid = gate.wait_begun()

        victim = queue.submit(die, int(argument))
        later = [queue.submit(tasks.echo, number) for number in range(10)]
        error = victim.exception(PATIENCE_S)

        assert type(error) is WorkerCrashed
        assert (error.exit_code, error.signal) == (exit_code, signal_name)
        assert text in str(error)
        assert f"task {victim.id!r}" in str(error)
        assert victim.status is Status.FAILED
        (record,) = victim.history
        assert (record.attempt, record.outcome) == (1, "crash")
        assert (record.exit_code, record.signal) == (exit_code, signal_name)
        assert record.pid not in {None, neighbour_pid}
        assert f"(pid {record.pid})" in str(error)
        assert [handle.result(PATIENCE_S) for handle in later] == list(range(10))
        assert {handle.attempts for handle in later} == {1}
        gate.open()
        assert neighbour.result(PATIENCE_S) == "unharmed"
        wait_idle(queue, 2)
        assert neighbour_pid in pids(queue)
        check_invariants(queue)


def test_H01_a_worker_killed_from_outside_is_told_at_once(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2) as queue:
        victim = queue.submit(tasks.announced_sleep, gate.path)
        os.kill(gate.wait_begun(), signal.SIGKILL)

        error = victim.exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert error.signal == "SIGKILL"
        assert victim.attempts == 1
        assert queue.submit(tasks.echo, "next").result(PATIENCE_S) == "next"


def test_D4_sigterm_from_outside_is_a_crash_not_a_cancellation(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    again = task(tasks.clean_up, max_attempts=2, backoff=0)
    with Queue(workers=1) as queue:
        victim = queue.submit(again.spec(gate.path, str(tmp_path / "log")))
        for _ in range(2):
            os.kill(gate.wait_begun(), signal.SIGTERM)
        error = victim.exception(PATIENCE_S)

    assert isinstance(error, WorkerCrashed)
    assert "SIGTERM" in str(error)
    assert [record.outcome for record in victim.history] == ["crash", "crash"]
    assert lines(tmp_path / "log") == ["finally", "finally"]


def test_D3_a_crash_is_retried_unless_told_otherwise(tmp_path: Path) -> None:
    log = tmp_path / "log"
    patient = task(tasks.say_and_die, max_attempts=3, backoff=0)
    with Queue(workers=1) as queue:
        retried = queue.submit(patient.spec(str(log), "retried"))
        given_up = queue.submit(patient.spec(str(log), "given-up").using(never_retry="crash"))
        assert isinstance(retried.exception(PATIENCE_S), WorkerCrashed)
        assert isinstance(given_up.exception(PATIENCE_S), WorkerCrashed)

    assert (retried.attempts, given_up.attempts) == (3, 1)
    assert sorted(lines(log)) == ["given-up", *["retried"] * 3]


def test_D4_what_was_sent_ahead_to_a_dying_worker_is_not_charged_and_runs_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    queue = Queue(workers=1)
    before = [queue.submit(tasks.say_or_die, str(log), number) for number in range(50)]
    victim = queue.submit(tasks.say_or_die, str(log), "death")
    after = [queue.submit(tasks.say_or_die, str(log), number) for number in range(50, 100)]
    with queue:
        assert isinstance(victim.exception(PATIENCE_S), WorkerCrashed)

    for handle in (*before, *after):
        assert [record.outcome for record in handle.history] == ["ok"]
    assert lines(log) == [*map(str, range(50)), "death", *map(str, range(50, 100))]


def test_H02_one_crash_leaves_the_others_and_the_queue_alone() -> None:
    with Queue(workers=4) as queue:
        handles = [queue.submit(tasks.exit_if, number == 7, 3) for number in range(20)]
        for number, handle in enumerate(handles):
            error = handle.exception(PATIENCE_S)
            assert isinstance(error, WorkerCrashed) == (number == 7)
            assert handle.attempts == 1
        assert "code 3" in str(handles[7].error)
        with queue._supervisor.lock:
            # Not those that there are: the one that died is replaced now or in a moment.
            started = engine_of(queue).places["default"].staffing.floor
        wait_idle(queue, started)
        killed = min(pids(queue))
        os.kill(killed, signal.SIGKILL)

        more = [queue.submit(tasks.echo, number) for number in range(5)]
        assert [handle.result(PATIENCE_S) for handle in more] == list(range(5))
        assert {handle.attempts for handle in more} == {1}
        assert wait_until(lambda: len(pids(queue) - {killed}) == started, PATIENCE_S)


def test_a_task_given_to_a_worker_that_has_just_been_killed_runs_elsewhere_uncharged() -> None:
    """Before its death is known its packets are taken in as if nothing were."""
    with Queue(workers=1) as queue:
        for _ in range(20):
            pid = queue.submit(tasks.pid).result(PATIENCE_S)
            os.kill(pid, signal.SIGKILL)
            handle = queue.submit(tasks.pid)
            assert handle.result(PATIENCE_S) != pid
            assert handle.attempts == 1
            assert len(handle.history) == 1
        check_invariants(queue)


def test_H03_a_poison_task_runs_as_often_as_it_may_and_no_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    poison = task(tasks.say_and_die, max_attempts=3, backoff=0.01)
    with Queue(workers=2) as queue:
        victim = queue.submit(poison.spec(str(log), "poison"))
        good = [queue.submit(tasks.sleep, 0.01) for _ in range(10)]
        for handle in good:
            handle.result(PATIENCE_S)
        victim.wait(PATIENCE_S)
        wait_idle(queue, 2)

        (letter,) = queue.dead_letters()
        assert letter.id == victim.id
        assert [record.signal for record in letter.history] == ["SIGKILL"] * 3
        assert lines(log) == ["poison"] * 3
        turns, workers = engine_of(queue).turns, pids(queue)
        threading.Event().wait(0.3)  # nothing shall happen, and nothing tells so
        assert (engine_of(queue).turns, pids(queue)) == (turns, workers)


def test_workers_killed_for_sport_are_replaced_only_so_often_before_there_is_work() -> None:
    with Queue(workers=1) as queue:
        killed: set[int] = set()
        queue.submit(tasks.nothing).result(PATIENCE_S)
        while wait_until(lambda: states(queue) == {"idle": 1}, 1.0) and len(killed) < 50:
            (pid,) = pids(queue)
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: pid not in pids(queue), PATIENCE_S)  # noqa: B023 - used at once
            killed.add(pid)
        assert 5 < len(killed) < 20

        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


@pytest.mark.slow
def test_H04_deaths_at_random_moments_under_threads_that_log_and_print(tmp_path: Path) -> None:
    stop = threading.Event()
    logger = logging.getLogger("procq.test.noise")
    handler = logging.FileHandler(tmp_path / "noise")
    logger.addHandler(handler)
    logger.propagate = False

    def make_noise() -> None:
        while not stop.wait(0.0005):
            logger.warning("noise")
            print("noise")  # noqa: T201

    threads = [threading.Thread(target=make_noise) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        with Queue(workers=2) as queue:
            hardy = task(tasks.die_soon, max_attempts=10, backoff=0)
            handles = [queue.submit(hardy.spec(number % 10 == 0, number / 50_000, number)) for number in range(100)]
            for number, handle in enumerate(handles):
                handle.wait(PATIENCE_S)
                if number % 10:
                    assert handle.result() == number
            check_invariants(queue)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        logger.removeHandler(handler)
        handler.close()


# --- big payloads and death ---


def test_a_worker_killed_while_it_sends_a_big_result(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        for _ in range(5):
            handle = queue.submit(tasks.announced_big, gate.path, 50_000_000)
            os.kill(gate.wait_begun(), signal.SIGKILL)
            error = handle.exception(PATIENCE_S)
            assert error is None or isinstance(error, WorkerCrashed)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_a_worker_killed_while_it_is_sent_a_big_payload() -> None:
    data = bytes(50_000_000)
    hardy = task(tasks.length, max_attempts=2, backoff=0)
    with Queue(workers=1) as queue:
        for _ in range(5):
            pid = queue.submit(tasks.pid).result(PATIENCE_S)
            os.kill(pid, signal.SIGSTOP)
            handle = queue.submit(hardy.spec(data))
            os.kill(pid, signal.SIGKILL)
            assert handle.result(PATIENCE_S) == len(data)


def test_H5_a_worker_that_dies_amid_a_big_result_while_a_child_of_it_holds_the_pipe(tmp_path: Path) -> None:
    """The end of the pipe never comes then; what has come must do."""
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.announce_big_and_leave_a_child, str(tmp_path / "child"))
        error = handle.exception(PATIENCE_S)
        assert isinstance(error, WorkerCrashed)
        assert error.exit_code == 3
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


@pytest.mark.usefixtures("briefly_hung_up")
def test_H5_a_worker_that_closes_its_pipes_amid_a_big_result_and_lives_on() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.announce_big_and_hang_up)
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert "closed the pipes to its supervisor" in str(error)
        assert engine_of(queue).turns < 100, "the loop must not spin meanwhile"


@pytest.mark.usefixtures("briefly_hung_up")
def test_H5_a_worker_that_closes_half_its_pipe_amid_a_big_result_and_lives_on() -> None:
    with Queue(workers=1) as queue:
        error = queue.submit(tasks.announce_big_and_hang_up, half=True).exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert "closed the pipes to its supervisor" in str(error)
        assert engine_of(queue).turns < 100, "the loop must not spin meanwhile"


# --- cheats ---


@pytest.mark.usefixtures("briefly_hung_up")
def test_H5_a_task_that_closes_all_descriptors() -> None:
    with Queue(workers=1) as queue:
        brief = queue.submit(tasks.close_descriptors, 0)
        error = brief.exception(PATIENCE_S)
        assert isinstance(error, WorkerCrashed)
        assert "closed descriptors that are not its own" in str(error)

        lasting = queue.submit(tasks.close_descriptors, 3600)
        assert "closed the pipes to its supervisor" in str(lasting.exception(PATIENCE_S))
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_H5_a_task_that_forks_and_returns_in_the_child_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        handles = [queue.submit(tasks.fork_and_return, str(log)) for _ in range(5)]
        assert {handle.result(PATIENCE_S) for handle in handles} == {pid}
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid

    assert len(lines(log)) == 10


def test_H5_a_forked_child_that_stays_does_not_hold_up_the_worker() -> None:
    with Queue(workers=1) as queue:
        child = queue.submit(tasks.leave_a_forked_child).result(PATIENCE_S)
        assert isinstance(child, int)
        assert alive(child)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1

    assert wait_until(lambda: not alive(child)), "it was in the worker's group"


def test_H5_floods_of_output_hold_nobody_up(capfd: pytest.CaptureFixture[str]) -> None:
    with Queue(workers=1) as queue:
        assert queue.submit(tasks.flood, 3_000_000).result(PATIENCE_S) is None
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
    assert len(capfd.readouterr().out) >= 3_000_000


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x0c" + bytes(7) + b"\xff" * 48, "what is no message"),
        (b"garbage", "what is no message"),
        (bytes([255]) * 1000, "what is no message"),
        (bytes([6]) * 80, "what is no message"),
    ],
)
@pytest.mark.usefixtures("briefly_hung_up")
def test_H5_a_worker_that_sends_garbage_is_ended(data: bytes, text: str) -> None:
    with Queue(workers=1) as queue:
        error = queue.submit(tasks.send_up, data).exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert text in str(error)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
        check_invariants(queue)


@pytest.mark.parametrize("size", [1, 55, 60, 100_000])
def test_H5_a_worker_that_does_not_go_on_with_its_message_is_ended(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timeout is set, so nothing else would end it."""
    monkeypatch.setattr(patience, "TRANSFER_S", 0.2)
    report = in_one(wire.pack_success(1, 1, bytes(1_000_000), 0.0, 1.0, 0.0, 0))
    with Queue(workers=1) as queue:
        error = queue.submit(tasks.send_up, report[:size]).exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert "began a message and did not go on with it" in str(error)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
        check_invariants(queue)


def test_D5_half_a_log_record_is_no_report_that_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a task that logs without a pause there nearly always is one."""
    monkeypatch.setattr(patience, "TRANSFER_S", 3600.0)
    head = wire._UP_HEAD.pack(wire._LOG, 20_000, 0)
    with Queue(workers=1) as queue:
        handle = queue.submit(task(tasks.send_up, timeout=0.3).spec(head + bytes(10_000)))
        assert isinstance(handle.exception(PATIENCE_S), AttemptTimeout)


def test_H5_a_message_may_take_its_time_as_long_as_it_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "TRANSFER_S", 0.5)
    progress = wire.pack_progress(2**40, 1, 1.0, 2.0)  # of a task that there is not: nobody minds it
    with Queue(workers=1) as queue:
        assert queue.submit(tasks.send_up_slowly, progress, 4, 0.1).result(PATIENCE_S) is None


def test_H5_a_worker_that_reports_what_it_was_not_given_is_ended() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.report_another)
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert "it reported an attempt that it was not given" in str(error)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_H5_a_worker_whose_task_pipe_is_read_by_another_is_ended_and_nothing_is_lost(tmp_path: Path) -> None:
    """Say, by a child that was forked amid the worker's own code."""
    with Queue(workers=1) as queue:
        for handle in [queue.submit(tasks.echo, 1) for _ in range(20)]:
            handle.result(PATIENCE_S)
        gate = Gate(tmp_path)
        hardy = task(tasks.swallow_tasks, max_attempts=1)
        thief = queue.submit(hardy.spec(gate.path))
        gate.wait_begun()
        handles = [queue.submit(tasks.echo, number) for number in range(5)]
        handles[3].cancel()
        gate.open()
        thief.wait(PATIENCE_S)
        for handle in handles:
            handle.wait(PATIENCE_S)
        check_invariants(queue)


# --- exit calls ---


@pytest.mark.parametrize(("code", "text"), [(0, "SystemExit: 0"), (3, "SystemExit: 3"), ("bye", "SystemExit: bye")])
def test_H14_an_exit_call_is_a_failure_and_the_worker_stays(code: object, text: str) -> None:
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        error = queue.submit(tasks.exit_call, code).exception(PATIENCE_S)

        assert text in str(error)
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid


def test_H14_a_signal_handler_of_the_tasks_own_that_exits() -> None:
    with Queue(workers=1) as queue:
        error = queue.submit(tasks.exit_in_handler).exception(PATIENCE_S)

        assert "SystemExit: 7" in str(error)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_H14_other_things_that_are_no_exceptions() -> None:
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        patient = task(tasks.interrupt, max_attempts=3, backoff=0)
        handle = queue.submit(patient.spec())
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, Exception), "it must not act here as it would have acted there"
        assert "KeyboardInterrupt" in str(error)
        assert handle.attempts == 1
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid


def test_results_of_the_history_are_those_of_the_worker_that_died() -> None:
    patient = task(tasks.exit_at_once, max_attempts=2, backoff=0)
    with Queue(workers=1) as queue:
        result: TaskResult[None] = queue.wait(queue.submit(patient.spec(5)), PATIENCE_S)

    assert result.status is Status.FAILED
    first, second = result.history
    assert first.pid != second.pid
    for record in (first, second):
        assert record.exit_code == 5
        assert record.started_at <= record.ended_at


def test_D6_a_backoff_function_that_exits_ends_its_task_and_not_the_supervisor() -> None:
    patient = task(tasks.fail, max_attempts=3, backoff=tasks.exit_call)  # type: ignore[arg-type]  # as wild as users are
    with Queue(workers=1) as queue:
        handle = queue.submit(patient.spec("why"))
        handle.wait(PATIENCE_S)
        assert handle.status is Status.FAILED
        assert "its backoff function raised SystemExit" in str(handle.history[-1].message)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
