"""Every way to end a queue, and that nothing is left behind (contract G; PAIN H05, H11, H21, H23)."""

import gc
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import pytest
from tests.support import log_tasks, process_tasks as tasks
from tests.support.leaks import gone, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, pids, run_file, run_script, states
from tests.support.process_tasks import Gate

from procq import Handle, Queue, Status, task
from procq.closing import Mode, ShutdownReport
from procq.errors import QueueClosedError, QueueFullError, TaskCancelled

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

#: What a bounded wait may exceed its bound by: far beyond what is promised.
LATE_S = 4.0


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def assert_gone(queue: Queue) -> None:
    """No worker and no thread of the queue is left: not soon, but now."""
    assert pids(queue) == set()
    assert [thread for thread in threading.enumerate() if thread.name.startswith("procq-")] == []


# --- drain ---


def test_G1_a_drain_runs_everything_to_its_end(tmp_path: Path) -> None:
    """Retries that wait, delayed tasks and dependents included."""
    log = tmp_path / "log"
    queue = Queue(workers=2).start()
    retried = queue.submit(task(tasks.fail_first, max_attempts=2, backoff=0.3).spec(str(tmp_path / "first"), "a"))
    delayed = queue.submit(task(tasks.say, delay=0.3).spec(str(log), "delayed", "b"))
    dependent = queue.submit(tasks.echo, [retried, delayed])
    failed = queue.submit(tasks.fail, "on purpose")
    assert wait_until(lambda: retried.status is Status.SCHEDULED, PATIENCE_S)

    report = queue.shutdown()

    assert_gone(queue)
    assert (report.drained, report.succeeded, report.failed, report.cancelled) == (True, 3, 1, 0)
    assert report.cut_off == ()
    assert dependent.result() == ["a", "b"]
    assert failed.status is Status.FAILED
    with pytest.raises(QueueClosedError):
        queue.submit(tasks.nothing)


def test_G1_a_drain_within_its_deadline_cuts_nothing() -> None:
    queue = Queue(workers=1).start()
    handles = [queue.submit(tasks.sleep, 0.01) for _ in range(10)]
    report = queue.shutdown(60)

    assert report.drained
    assert all(handle.ok for handle in handles)


def test_H21_at_the_deadline_what_runs_is_stopped_and_the_rest_cancelled(tmp_path: Path) -> None:
    gate, log = Gate(tmp_path), tmp_path / "log"
    queue = Queue(workers=2, kill_grace=0.3).start()
    short = queue.submit(tasks.sleep, 0.1, "kept")
    stubborn = queue.submit(tasks.ignore_sigterm, gate.path)
    gate.wait_begun()
    polite = queue.submit(tasks.clean_up, str(tmp_path / "other"), str(log))
    queued = [queue.submit(tasks.sleep, 60) for _ in range(10)]
    blocked = queue.submit(tasks.echo, stubborn)
    other = Gate(tmp_path, "other")
    other.wait_begun()
    before = time.monotonic()

    report = queue.shutdown(0.2)

    assert 0.2 <= time.monotonic() - before < 0.2 + 0.3 + LATE_S
    assert_gone(queue)
    assert short.result() == "kept"
    assert not report.drained
    cut = [stubborn, polite, *queued, blocked]
    assert report.cut_off == tuple(handle.id for handle in cut)
    assert report.cancelled == len(cut)
    for handle in cut:
        assert handle.status is Status.CANCELLED
        assert isinstance(handle.error, TaskCancelled)
        assert handle.attempts == 0, "interrupted attempts are not charged"
    assert [record.outcome for record in stubborn.history] == ["interrupted"]
    assert lines(log) == ["finally"]


def test_G2_a_deadline_of_nothing_asks_and_kills_at_once(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=1, kill_grace=0.2).start()
    handle = queue.submit(tasks.block_all_signals, gate.path)
    gate.wait_begun()
    before = time.monotonic()

    report = queue.shutdown(0)

    assert time.monotonic() - before < 0.2 + LATE_S
    assert_gone(queue)
    assert report.cut_off == (handle.id,)


def test_H21_off_the_main_thread_it_is_the_same(tmp_path: Path) -> None:
    reports = []

    def whole_life() -> None:
        with Queue(workers=1, kill_grace=0.2) as queue:
            queue.submit(tasks.sleep, 0.05)
            queue.submit(tasks.ignore_sigterm, str(tmp_path / "gate"))
            Gate(tmp_path).wait_begun()
            reports.append(queue.shutdown(0.1, mode="finish"))

    thread = threading.Thread(target=whole_life)
    thread.start()
    thread.join(PATIENCE_S)

    assert not reports[0].drained
    assert reports[0].succeeded == 1


# --- finish ---


def test_G1_finish_ends_what_runs_and_starts_nothing(tmp_path: Path) -> None:
    gate, log = Gate(tmp_path), tmp_path / "log"
    queue = Queue(workers=1).start()
    for handle in [queue.submit(tasks.say, str(tmp_path / "warm"), 1) for _ in range(20)]:
        handle.result(PATIENCE_S)
    running = queue.submit(tasks.pass_gate, gate.path, "ended")
    queued = [queue.submit(tasks.say, str(log), number) for number in range(10)]
    delayed = queue.submit(task(tasks.say, delay=3600).spec(str(log), "delayed"))
    gate.wait_begun()
    finishing = threading.Thread(target=queue.shutdown, kwargs={"mode": "finish"})
    finishing.start()
    assert wait_until(lambda: queued[0].status is Status.CANCELLED, PATIENCE_S)
    gate.open()
    finishing.join(PATIENCE_S)
    report = queue.shutdown()

    assert running.result() == "ended"
    assert lines(log) == []
    assert report.cut_off == tuple(handle.id for handle in (*queued, delayed))
    assert not report.drained
    assert_gone(queue)


def test_G1_finish_grants_no_retry_and_reports_what_it_cut(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=1).start()
    handle = queue.submit(task(tasks.pass_gate_and_fail, max_attempts=5, backoff=0).spec(gate.path))
    gate.wait_begun()
    finishing = threading.Thread(target=queue.shutdown, kwargs={"mode": "finish"})
    finishing.start()
    assert wait_until(lambda: queue._supervisor.closing, PATIENCE_S)
    gate.open()
    finishing.join(PATIENCE_S)

    report = queue.shutdown()
    assert handle.status is Status.CANCELLED
    assert report.cut_off == (handle.id,)
    assert not report.drained


# --- kill ---


@pytest.mark.parametrize("timeout", [None, 0])
def test_G1_kill_stops_everything(timeout: float | None, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=2, kill_grace=0.2).start()
    handles: list[Handle[Any]] = [queue.submit(tasks.with_family, gate.path, in_c=True)]
    pid = gate.wait_begun()
    family = tasks.family(gate.path)
    handles += [queue.submit(tasks.sleep, 60) for _ in range(20)]
    before = time.monotonic()

    report = queue.shutdown(timeout, mode="kill")

    assert time.monotonic() - before < 0.2 + LATE_S
    assert_gone(queue)
    assert {handle.status for handle in handles} == {Status.CANCELLED}
    assert report.cut_off == tuple(handle.id for handle in handles)
    assert family[0] == pid
    assert wait_until(lambda: gone(family))


def test_G1_kill_without_asking_runs_no_clean_up(tmp_path: Path) -> None:
    gate, log = Gate(tmp_path), tmp_path / "log"
    queue = Queue(workers=1).start()
    queue.submit(tasks.clean_up, gate.path, str(log))
    gate.wait_begun()
    queue.shutdown(0, mode="kill")

    assert lines(log) == []


def test_kill_during_a_drain_takes_over(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=1, kill_grace=0.2).start()
    handle = queue.submit(tasks.ignore_sigterm, gate.path)
    gate.wait_begun()
    draining = threading.Thread(target=queue.shutdown)
    draining.start()
    assert wait_until(lambda: queue._supervisor.closing, PATIENCE_S)

    report = queue.shutdown(mode="kill")

    draining.join(PATIENCE_S)
    assert not draining.is_alive()
    assert report.cut_off == (handle.id,)


def test_a_nearer_deadline_takes_over_and_a_later_one_does_not(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=1, kill_grace=0.1).start()
    queue.submit(tasks.announced_sleep, gate.path)
    gate.wait_begun()
    threads = [threading.Thread(target=queue.shutdown, args=(timeout,)) for timeout in (60, 0.3, 90)]
    before = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert 0.3 <= time.monotonic() - before < 0.3 + 0.1 + LATE_S


def test_a_second_shutdown_reports_the_same() -> None:
    queue = Queue(workers=1).start()
    queue.submit(tasks.nothing)
    reports = [queue.shutdown(), queue.shutdown(5), queue.shutdown(mode="finish"), queue.shutdown(0, mode="kill")]

    assert len(set(reports)) == 1
    assert reports[0].drained


# --- at awkward moments ---


def test_shutdown_of_a_queue_that_was_never_started() -> None:
    queue = Queue(workers=1)
    called = threading.Event()
    handle = queue.submit(tasks.nothing)
    handle.add_done_callback(lambda _: called.set())

    report = queue.shutdown()

    assert report.cut_off == (handle.id,)
    assert handle.status is Status.CANCELLED
    assert called.wait(PATIENCE_S)
    assert_gone(queue)


def test_shutdown_right_after_the_start() -> None:
    """Workers are being born, or have not been thought of."""
    for _ in range(10):
        queue = Queue(workers=2).start()
        queue.shutdown()
        assert_gone(queue)


@pytest.mark.parametrize("mode", ["drain", "finish", "kill"])
def test_shutdown_while_workers_start(mode: Mode) -> None:
    for _ in range(5):
        queue = Queue(workers=2).start()
        handles = [queue.submit(tasks.sleep, 0.001) for _ in range(4)]
        queue.shutdown(mode=mode)
        assert_gone(queue)
        assert all(handle.done() for handle in handles)


def test_shutdown_while_workers_initialize_for_long() -> None:
    queue = Queue(workers=2, initializer=tasks.sleep, initargs=(60,)).start()
    handles = [queue.submit(tasks.nothing) for _ in range(4)]
    assert wait_until(lambda: states(queue) == {"starting": 2}, PATIENCE_S)
    before = time.monotonic()

    queue.shutdown(0.2)

    assert time.monotonic() - before < 0.2 + 1 + LATE_S
    assert {handle.status for handle in handles} == {Status.CANCELLED}
    assert_gone(queue)


def test_G4_shutdown_from_a_done_callback() -> None:
    queue = Queue(workers=2).start()
    reports: list[ShutdownReport] = []
    first = queue.submit(tasks.nothing)
    rest = [queue.submit(tasks.sleep, 0.01) for _ in range(5)]
    first.add_done_callback(lambda _: reports.append(queue.shutdown()))
    assert wait_until(lambda: bool(reports), PATIENCE_S)

    assert reports[0].drained
    assert all(handle.ok for handle in rest)
    assert queue.shutdown() == reports[0]


@contextmanager
def log_handler(handle: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Have what the tasks of log_tasks.py log handled by a function."""
    logger, handler = logging.getLogger(log_tasks.NAME), logging.Handler()
    handler.emit = handle  # type: ignore[method-assign, assignment]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def test_G4_shutdown_from_all_threads_of_callbacks_at_once() -> None:
    """None of them waits for one that waits for it."""
    together = threading.Barrier(3, timeout=PATIENCE_S)
    reports: SimpleQueue[ShutdownReport] = SimpleQueue()

    def shut_down(queue: Queue) -> None:
        together.wait()
        reports.put(queue.shutdown())

    def hear(event: dict[str, object]) -> None:
        if event["ev"] == "task.ended":
            shut_down(queue)

    queue = Queue(workers=1, on_event=hear)
    with log_handler(lambda _: shut_down(queue)):
        queue.submit(log_tasks.say, "go").add_done_callback(lambda _: shut_down(queue))
        queue.start()
        assert [reports.get(timeout=PATIENCE_S).succeeded for _ in range(3)] == [1, 1, 1]
        queue.shutdown()
    assert_gone(queue)


def test_G4_callbacks_of_two_queues_each_shut_the_other_down() -> None:
    together = threading.Barrier(2, timeout=PATIENCE_S)
    reports: SimpleQueue[ShutdownReport] = SimpleQueue()

    def shut_down(queue: Queue) -> None:
        together.wait()
        reports.put(queue.shutdown())

    one, other = Queue(workers=1), Queue(workers=1)
    one.submit(tasks.nothing).add_done_callback(lambda _: shut_down(other))
    other.submit(tasks.nothing).add_done_callback(lambda _: shut_down(one))
    one.start()
    other.start()
    assert [reports.get(timeout=PATIENCE_S).succeeded for _ in range(2)] == [1, 1]
    one.shutdown()
    other.shutdown()
    assert_gone(one)


def test_F4_callbacks_run_before_shutdown_returns() -> None:
    called: list[str] = []
    with Queue(workers=1) as queue:
        for _ in range(50):
            queue.submit(tasks.nothing).add_done_callback(lambda handle: called.append(handle.id))

    assert len(called) == 50


def test_F4_callbacks_added_after_the_end_run_and_leave_no_thread() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.nothing)
    called: list[int] = []
    for number in range(20):
        handle.add_done_callback(partial(_note, called, number))

    assert wait_until(lambda: len(called) == 20, PATIENCE_S)
    assert called == list(range(20))


def _note(called: list[int], number: int, _: object) -> None:
    called.append(number)


def test_G2_a_callback_that_never_ends_does_not_hold_up_a_deadline() -> None:
    release = threading.Event()
    queue = Queue(workers=1).start()
    queue.submit(tasks.nothing).add_done_callback(lambda _: release.wait())
    before = time.monotonic()
    queue.shutdown(0.2)

    assert time.monotonic() - before < 0.2 + 1 + LATE_S
    release.set()


def test_C8_submits_from_callbacks_until_the_door_closes() -> None:
    refused = threading.Event()
    queue = Queue(workers=2).start()

    def again(_: Handle[None]) -> None:
        try:
            queue.submit(tasks.nothing).add_done_callback(again)
        except QueueClosedError:
            refused.set()

    for _ in range(4):
        queue.submit(tasks.nothing).add_done_callback(again)
    report = queue.shutdown()

    assert refused.wait(PATIENCE_S)
    assert report.drained
    assert report.cancelled == 0


def test_C7_submits_race_with_a_shutdown_and_none_is_lost() -> None:
    """Each is either refused or runs to its end."""
    for _ in range(3):
        queue = Queue(workers=2).start()
        accepted: list[Handle[None]] = []
        barrier = threading.Barrier(5)

        def submit(queue: Queue = queue, accepted: list[Handle[None]] = accepted) -> None:
            barrier.wait()  # noqa: B023 - used at once
            try:
                while True:
                    accepted.append(queue.submit(tasks.nothing))
            except QueueClosedError:
                pass

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        barrier.wait()
        assert wait_until(lambda: len(accepted) > 50, PATIENCE_S)  # noqa: B023
        report = queue.shutdown()
        for thread in threads:
            thread.join(PATIENCE_S)

        assert report.drained
        assert all(handle.ok for handle in accepted)


def test_C7_a_submit_that_waits_for_room_is_released(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=1, max_pending=1).start()
    queue.submit(tasks.announced_sleep, gate.path)
    gate.wait_begun()
    queue.submit(tasks.nothing)
    errors: list[BaseException] = []

    def submit() -> None:
        try:
            queue.submit(tasks.nothing)
        except (QueueClosedError, QueueFullError) as error:
            errors.append(error)

    waiting = threading.Thread(target=submit)
    waiting.start()
    assert wait_until(lambda: len(queue._supervisor.room.turns) == 1, PATIENCE_S)
    queue.shutdown(mode="kill")
    waiting.join(PATIENCE_S)

    assert isinstance(errors[0], QueueClosedError)


def test_a_paused_queue_drains() -> None:
    queue = Queue(workers=1).start()
    queue.pause()
    handle = queue.submit(tasks.echo, 1)

    assert queue.shutdown().drained
    assert handle.result() == 1


def test_G2_a_stopped_worker_does_not_hold_up_a_shutdown() -> None:
    """Idle ones are told to leave, and this one does not hear it."""
    import os  # noqa: PLC0415

    queue = Queue(workers=1, kill_grace=0.3).start()
    os.kill(queue.submit(tasks.pid).result(PATIENCE_S), signal.SIGSTOP)
    before = time.monotonic()
    queue.shutdown(0)

    assert time.monotonic() - before < 0.3 + LATE_S
    assert_gone(queue)


def test_G2_a_worker_that_will_not_leave_is_killed() -> None:
    queue = Queue(workers=1, kill_grace=0.3).start()
    queue.submit(tasks.leave_a_thread).result(PATIENCE_S)
    before = time.monotonic()
    report = queue.shutdown()

    assert time.monotonic() - before < 0.3 + LATE_S
    assert report.drained
    assert_gone(queue)


def test_a_worker_that_leaves_flushes_and_runs_its_exit_hooks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        queue.submit(tasks.register_exit_hook, str(log)).result(PATIENCE_S)

    assert lines(log) == ["left"]


# --- big payloads in flight ---


@pytest.mark.parametrize("way", ["deadline", "cancel", "kill", "finish"])
def test_H11_big_results_on_their_way_do_not_hold_up_a_shutdown(
    way: Literal["deadline", "cancel", "kill", "finish"], tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=3).start()
    handles = [queue.submit(tasks.announced_big, gate.path, 30_000_000) for _ in range(3)]
    gate.wait_begun()
    before = time.monotonic()
    if way == "cancel":
        for handle in handles:
            handle.cancel()
    if way == "kill" or way == "finish":  # noqa: PLR1714 - mypy understands this
        queue.shutdown(0.3, mode=way)
    else:
        queue.shutdown(0.05 if way == "deadline" else 1)

    assert time.monotonic() - before < 1 + 1 + LATE_S
    assert_gone(queue)
    for handle in handles:
        assert handle.status in {Status.SUCCEEDED, Status.CANCELLED}
        if handle.ok:
            assert len(handle.result()) == 30_000_000


@pytest.mark.parametrize("mode", ["drain", "kill"])
def test_H11_nor_do_big_payloads(mode: Mode) -> None:
    queue = Queue(workers=2).start()
    for handle in [queue.submit(tasks.sleep, 0.01) for _ in range(8)]:
        handle.result(PATIENCE_S)
    handles = [queue.submit(tasks.length, bytes(20_000_000)) for _ in range(4)]
    before = time.monotonic()
    queue.shutdown(20, mode=mode)

    assert time.monotonic() - before < 20 + 1 + LATE_S
    assert_gone(queue)
    if mode == "drain":
        assert [handle.result() for handle in handles] == [20_000_000] * 4


def test_H07_after_arguments_that_cannot_be_pickled_shutdown_is_ordinary() -> None:
    from procq.errors import PayloadError  # noqa: PLC0415

    queue = Queue(workers=1).start()
    for _ in range(10):
        with pytest.raises(PayloadError):
            queue.submit(tasks.echo, threading.Lock())
    assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
    assert queue.shutdown(5, mode="finish").drained


# --- with, exceptions, and being forgotten ---


def test_G4_leaving_by_an_exception_kills(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=1)
    handle = queue.submit(tasks.announced_sleep, gate.path)
    with pytest.raises(KeyError), queue:
        raise KeyError(gate.wait_begun())
    assert handle.status is Status.CANCELLED
    assert_gone(queue)


def drop(started: bool, tmp_path: Path) -> list[Handle[Any]]:  # noqa: FBT001
    """Make a queue, give it work and forget it."""
    gate = Gate(tmp_path)
    queue = Queue(workers=1)
    if started:
        queue.start()
    handles: list[Handle[Any]] = [queue.submit(tasks.announced_sleep, gate.path)]
    handles += [queue.submit(tasks.nothing) for _ in range(3)]
    if started:
        gate.wait_begun()
    return handles


@pytest.mark.parametrize("started", [True, False])
def test_H05_a_queue_that_is_dropped_ends_its_handles_and_warns(started: bool, tmp_path: Path) -> None:  # noqa: FBT001
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handles = drop(started, tmp_path)
        gc.collect()
    for handle in handles:
        assert isinstance(handle.exception(PATIENCE_S), TaskCancelled)
    messages = [str(warning.message) for warning in caught if warning.category is ResourceWarning]
    assert any("dropped without shutdown" in message for message in messages)


def test_H05_a_queue_that_was_shut_down_or_never_used_is_dropped_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Queue(workers=1)
        Queue(workers=1).start().shutdown()
        gc.collect()


def test_H05_a_dropped_queue_whose_handles_are_waited_for() -> None:
    """By a thread that has only the handle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        queue = Queue(workers=1).start()
        handle = queue.submit(tasks.sleep_forever)
        outcome: list[BaseException | None] = []
        waiting = threading.Thread(target=lambda: outcome.append(handle.exception(PATIENCE_S)))
        waiting.start()
        del queue
        gc.collect()
        waiting.join(PATIENCE_S)
    assert isinstance(outcome[0], TaskCancelled)


# --- the end of the interpreter ---


EXITS: dict[str, tuple[str, int]] = {
    "falls off the end": ("", 0),
    "with a status": ("sys.exit(5)", 5),
    "by an error": ("raise KeyError('mine')", 1),
    "shut down first": ("queue.shutdown(mode='kill')", 0),
    "amid a wait": ("threading.Thread(target=handle.wait, daemon=True).start()", 0),
    "with callbacks": ("handle.add_done_callback(print)", 0),
    "while workers start": ("[queue.submit(tasks.nothing) for _ in range(20)]", 0),
}


@pytest.mark.parametrize("ending", EXITS)
def test_H23_the_interpreter_ends_with_work_pending(ending: str, tmp_path: Path) -> None:
    code, status = EXITS[ending]
    done = run_file(
        tmp_path / "script.py",
        f"""
        import sys, threading
        from pathlib import Path
        from procq import Queue
        from tests.support import log_tasks, process_tasks as tasks
        from tests.support.process_tasks import Gate

        gate = Gate(Path(sys.argv[1]))
        queue = Queue(workers=2, kill_grace=0.2).start()
        handle = queue.submit(tasks.ignore_sigterm, gate.path)
        [queue.submit(tasks.sleep, 60) for _ in range(5)]
        print(gate.wait_begun(), flush=True)
        {code}
        """,
        tmp_path,
    )

    assert done.returncode == status
    assert wait_until(lambda: gone([int(done.stdout.split()[0])]), 1.0 + LATE_S)
    lines = [line for line in done.stderr.splitlines() if line]
    own = lines.index("KeyError: 'mine'") + 1 if status == 1 else 0
    said = "\n".join(lines[own:])
    assert "Traceback" not in said
    assert len(lines[own:]) <= 1, "one short message at most"
    if ending == "shut down first":
        assert said == ""
    else:
        assert "the program ended with" in said


def test_H23_a_submit_after_shutdown_is_refused_at_once() -> None:
    done = run_script("""
        from procq import Queue
        from tests.support import log_tasks, process_tasks as tasks
        with Queue(workers=1) as queue:
            print(queue.submit(tasks.echo, 1).result())
        queue.submit(tasks.echo, 2)
    """)
    assert done.stdout == "1\n"
    assert done.returncode == 1
    assert "QueueClosedError: the queue is shutting down and takes no more work" in done.stderr


def test_G4_at_the_exit_of_a_thread_that_is_not_the_main_one() -> None:
    """A thread that still waits for a result when the program ends gets it, as in any program."""
    done = run_script("""
        import threading
        from procq import Queue
        from tests.support import log_tasks, process_tasks as tasks
        def work():
            with Queue(workers=1) as queue:
                started.set()
                print(queue.submit(tasks.sleep, 0.3, "result").result())
        started = threading.Event()
        threading.Thread(target=work).start()
        started.wait()  # Python 3.12 starts no threads once the main one has ended
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("result\n", "", 0)


def use_in_turn(make: Callable[[], Queue], times: int) -> None:
    for _ in range(times):
        with make() as queue:
            queue.submit(tasks.nothing).result(PATIENCE_S)


def test_many_queues_side_by_side_and_in_turn() -> None:
    threads = [threading.Thread(target=use_in_turn, args=(lambda: Queue(workers=1), 4)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.slow
def test_H20_ctrl_c_at_any_moment_of_a_program_that_submits_ends_it() -> None:
    """It may hit amid a change of the queue's state: then all is killed, and nobody waits for what cannot come."""
    done = run_script(
        """
        import random, signal, threading, time
        from procq import Queue
        from procq.errors import EngineError
        from tests.support import log_tasks, process_tasks as tasks

        def interrupt(*_):
            raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        chance = random.Random(7)
        for _ in range(25):
            queue = Queue(workers=2).start()
            queue.submit(tasks.nothing).wait()
            handles = []
            try:
                with queue:
                    # Again and again, since an interrupt that hits a destructor is lost.
                    signal.setitimer(signal.ITIMER_REAL, 0.001 + chance.random() / 100, 1)
                    while True:
                        handles.append(queue.submit(tasks.nothing))
                        if chance.random() < 0.3:
                            handles[-1].cancel()
            except (KeyboardInterrupt, EngineError):
                signal.setitimer(signal.ITIMER_REAL, 0)
            queue.shutdown(0, mode="kill")
            for handle in handles[-20:]:
                try:
                    handle.wait(10)
                except EngineError as error:
                    assert "interrupted amid a change" in str(error)
            assert not [thread for thread in threading.enumerate() if thread.name == "procq-supervisor"]
        print("all ended")
        """,
        timeout_s=45,
    )
    assert done.stdout == "all ended\n", done.stderr
    assert "please report" not in done.stderr


def test_a_change_that_was_broken_off_ends_everything_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from procq.errors import EngineError  # noqa: PLC0415 - for this alone

    gate = Gate(tmp_path)
    queue = Queue(workers=1).start()
    handle = queue.submit(tasks.announced_sleep, gate.path)
    pid = gate.wait_begun()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(queue._supervisor.scheduler, "accept", interrupt)
        with pytest.raises(KeyboardInterrupt):
            queue.submit(tasks.nothing)
    with pytest.raises(EngineError, match="interrupted amid a change"):
        queue.submit(tasks.nothing)
    queue.shutdown()

    for call in (handle.result, handle.cancel, lambda: queue.submit(tasks.nothing)):
        with pytest.raises(EngineError, match="interrupted amid a change"):
            call()
    assert wait_until(lambda: gone([pid]))
    assert_gone(queue)
