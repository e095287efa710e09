"""An attempt that runs too long is ended, whatever it does, and nothing else is charged (D5; PAIN H15-H17, H41)."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import gone, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, pids, run_file, run_script, wait_idle
from tests.support.process_tasks import Gate

from procq import Queue, Status, task
from procq.engine.local import patience
from procq.errors import AttemptTimeout

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

#: Long enough for an attempt to come to the point on a busy machine.
BRIEF_S = 0.5
#: How long after its timeout an attempt may be seen to end, without the grace: a safety bound.
LATE_S = 2.0


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    "stuck",
    [
        tasks.announced_loop,  # in Python, which ends by the error raised in it
        tasks.stuck_in_c,  # in C code that never looks for signals
        tasks.block_all_signals,  # asleep, with every signal blocked that can be
        tasks.ignore_sigterm,
        tasks.swallow_terminated_and_go_on,
    ],
)
def test_H15_whatever_an_attempt_does_its_timeout_ends_it(stuck: Callable[[str], None], tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    limited = task(stuck, timeout=BRIEF_S)
    with Queue(workers=1, kill_grace=0.2) as queue:
        handle = queue.submit(limited.spec(gate.path))
        pid = gate.wait_begun()
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, AttemptTimeout)
        assert isinstance(error, TimeoutError)
        assert f"ran longer than its timeout of {BRIEF_S:g} s" in str(error)
        (record,) = handle.history
        assert (record.outcome, record.pid) == ("timeout", pid)
        # On a busy machine the worker may read the task some milliseconds after it was sent.
        assert 0.9 * BRIEF_S <= record.ended_at - record.started_at < BRIEF_S + 0.2 + LATE_S
        assert handle.attempts == 1
        assert wait_until(lambda: gone([pid]))
        assert queue.submit(tasks.pid).result(PATIENCE_S) != pid


def test_D5_finally_runs_when_the_time_is_up(tmp_path: Path) -> None:
    gate, log = Gate(tmp_path), tmp_path / "log"
    with Queue(workers=1) as queue:
        handle = queue.submit(task(tasks.clean_up, timeout=BRIEF_S).spec(gate.path, str(log)))
        gate.wait_begun()
        assert isinstance(handle.exception(PATIENCE_S), AttemptTimeout)

    assert lines(log) == ["finally"]


def test_D5_a_task_cannot_catch_its_way_out(tmp_path: Path) -> None:
    gate, log = Gate(tmp_path), tmp_path / "log"
    with Queue(workers=1) as queue:
        handle = queue.submit(task(tasks.swallow, timeout=BRIEF_S).spec(gate.path, str(log)))
        gate.wait_begun()
        error = handle.exception(PATIENCE_S)

    assert isinstance(error, AttemptTimeout)
    assert handle.status is Status.FAILED
    assert lines(log) == ["caught Terminated"]


@pytest.mark.parametrize(("in_c", "own_session"), [(True, False), (False, True)])
def test_H16_what_the_task_started_dies_with_it(in_c: bool, own_session: bool, tmp_path: Path) -> None:  # noqa: FBT001
    gate = Gate(tmp_path)
    limited = task(tasks.with_family, timeout=2 * BRIEF_S)  # long enough to start the family
    with Queue(workers=1, kill_grace=0.2) as queue:
        handle = queue.submit(limited.spec(gate.path, in_c=in_c, own_session=own_session))
        gate.wait_begun()
        family = tasks.family(gate.path)
        assert len(family) == 3
        assert isinstance(handle.exception(PATIENCE_S), AttemptTimeout)

        assert wait_until(lambda: gone(family))


def test_D5_a_timeout_counts_as_an_attempt_and_is_retried(tmp_path: Path) -> None:
    log = tmp_path / "log"
    limited = task(tasks.say_and_sleep, timeout=0.1, max_attempts=2, backoff=0)
    with Queue(workers=1) as queue:
        retried = queue.submit(limited.spec(str(log), "retried", 60))
        given_up = queue.submit(limited.spec(str(log), "given-up", 60).using(never_retry="timeout"))
        assert isinstance(retried.exception(PATIENCE_S), AttemptTimeout)
        assert isinstance(given_up.exception(PATIENCE_S), AttemptTimeout)

    assert lines(log) == ["retried", "retried", "given-up"]
    assert (retried.attempts, given_up.attempts) == (2, 1)
    assert len({record.pid for record in retried.history}) == 2


def test_H17_waiting_in_line_is_not_charged() -> None:
    limited = task(tasks.sleep, timeout=0.5)
    with Queue(workers=1) as queue:
        handles = [queue.submit(limited.spec(0.25, number)) for number in range(3)]
        assert [handle.result(PATIENCE_S) for handle in handles] == list(range(3))


def test_H17_nor_is_waiting_between_attempts(tmp_path: Path) -> None:
    limited = task(tasks.fail_first, timeout=0.4, max_attempts=2, backoff=0.6)
    with Queue(workers=1) as queue:
        assert queue.submit(limited.spec(str(tmp_path / "log"), "done")).result(PATIENCE_S) == "done"


def test_H27_nor_is_the_start_of_a_worker_nor_a_heavy_main_program(tmp_path: Path) -> None:
    """Workers do not import the main program, and start side by side."""
    done = run_file(
        tmp_path / "script.py",
        """
        import time
        from procq import Queue, task
        from tests.support import process_tasks

        time.sleep(0.5)  # a heavy import

        limited = task(process_tasks.echo, timeout=0.4)
        if True:  # no guard
            with Queue(workers=4, initializer=process_tasks.sleep, initargs=(0.6,)) as queue:
                before = time.monotonic()
                handles = [queue.submit(limited.spec(number)) for number in range(8)]
                print([handle.result() for handle in handles])
                print(time.monotonic() - before < 2.2)
        """,
    )

    assert (done.stdout.splitlines(), done.stderr, done.returncode) == ([str(list(range(8))), "True"], "", 0)


def test_an_attempt_may_be_timed_to_the_millisecond_among_others_on_the_same_worker(tmp_path: Path) -> None:
    """Brief attempts sent ahead in numbers, each with a timeout of its own."""
    limited = task(tasks.pass_gate_or_not, timeout=0.2)
    gate = Gate(tmp_path)
    queue = Queue(workers=1)
    before = [queue.submit(limited.spec("")) for _ in range(100)]
    stuck = queue.submit(limited.spec(gate.path))
    after = [queue.submit(limited.spec("")) for _ in range(100)]
    with queue:
        gate.wait_begun()
        assert isinstance(stuck.exception(PATIENCE_S), AttemptTimeout)
        for handle in (*before, *after):
            handle.result(PATIENCE_S)
            assert len(handle.history) == 1
    assert 0.1 <= stuck.history[0].ended_at - stuck.history[0].started_at < 0.2 + LATE_S


def test_a_big_payload_on_its_way_does_not_use_up_the_time() -> None:
    limited = task(tasks.length, timeout=BRIEF_S)
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        handle = queue.submit(limited.spec(bytes(3_000_000)))
        with pytest.raises(TimeoutError, match="still running"):
            handle.wait(1.2 * BRIEF_S)
        os.kill(pid, signal.SIGCONT)

        assert handle.result(PATIENCE_S) == 3_000_000
        assert handle.history[0].pid == pid


# --- stopped workers ---


def test_H5_a_worker_that_was_stopped_amid_an_attempt_is_killed_at_its_timeout() -> None:
    limited = task(tasks.stop_self, timeout=BRIEF_S)
    with Queue(workers=1, kill_grace=0.1) as queue:
        assert isinstance(queue.submit(limited.spec()).exception(PATIENCE_S), AttemptTimeout)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


@pytest.mark.parametrize("size", [10, 300_000, 5_000_000])
def test_H5_a_worker_that_was_stopped_while_it_was_idle_is_replaced_and_nobody_charged(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads no task; so the attempt has not begun, and does elsewhere."""
    monkeypatch.setattr(patience, "TRANSFER_S", 0.2)
    limited = task(tasks.length, timeout=0.2)
    with Queue(workers=1, kill_grace=0.1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        handle = queue.submit(limited.spec(bytes(size)))

        assert handle.result(PATIENCE_S) == size
        assert [record.outcome for record in handle.history] == ["ok"]
        assert handle.attempts == 1
        assert pid not in pids(queue)
        check_invariants(queue)


def test_H15_timeouts_one_after_the_other_leave_the_full_number_of_workers() -> None:
    limited = task(tasks.sleep, timeout=0.05)
    with Queue(workers=2) as queue:
        handles = [queue.submit(limited.spec(60)) for _ in range(8)]
        for handle in handles:
            assert isinstance(handle.exception(PATIENCE_S), AttemptTimeout)
        wait_idle(queue, 2)


# --- the clock ---


def test_H41_a_wall_clock_that_jumps_moves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    log = tmp_path / "log"
    real = time.time
    with Queue(workers=2) as queue:
        queue.submit(tasks.nothing).result(PATIENCE_S)
        before = time.monotonic()
        stuck = queue.submit(task(tasks.announced_sleep, timeout=0.3).spec(gate.path))
        delayed = queue.submit(task(tasks.echo, delay=0.3).spec("delayed"))
        retried = queue.submit(task(tasks.fail_first, max_attempts=2, backoff=0.3).spec(str(log), "retried"))
        gate.wait_begun()
        for jump in (3600, -3600):
            monkeypatch.setattr(time, "time", lambda jump=jump: real() + jump)
            queue.submit(tasks.nothing).result(PATIENCE_S)
        assert delayed.result(PATIENCE_S) == "delayed"
        assert retried.result(PATIENCE_S) == "retried"
        assert isinstance(stuck.exception(PATIENCE_S), AttemptTimeout)
        assert 0.3 <= time.monotonic() - before < 0.3 + 1 + LATE_S


def test_D5_an_attempt_that_ended_in_time_has_succeeded_though_its_result_takes_longer() -> None:
    """Say, because it is big, or slow to pickle; while that lasts it is under way, and not to be killed."""
    limited = task(tasks.slow_to_pickle, timeout=BRIEF_S)
    with Queue(workers=1, kill_grace=20) as queue:
        handle = queue.submit(limited.spec(1.2 * BRIEF_S))
        assert handle.result(PATIENCE_S) == "done"
        assert [record.outcome for record in handle.history] == ["ok"]
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_H5_a_stopped_worker_whose_task_was_taken_back_does_not_hold_up_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It never says that it has forgotten the task."""
    monkeypatch.setattr(patience, "TRANSFER_S", 0.2)
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        assert queue.submit(tasks.nothing).cancel() == "cancelled"
        handle = queue.submit(tasks.pid)

        assert handle.result(PATIENCE_S) != pid
        assert handle.attempts == 1


def test_D5_to_stop_an_attempt_imports_nothing(tmp_path: Path) -> None:
    """The first stop of a program was 10 to 20 ms late: psutil was imported in the supervisor's thread."""
    script = f"""
import sys
from tests.support.process_tasks import announced_loop
from procq import Queue, task
if __name__ == "__main__":
    with Queue(workers=1, kill_grace=0.2) as queue:
        queue.submit(abs, -1).result()
        before = set(sys.modules)
        handle = queue.submit(task(announced_loop, timeout=0.2).spec({str(tmp_path / "gate")!r}))
        handle.wait()
        imported = sorted(set(sys.modules) - before)
        print(handle.history[0].outcome, *imported)
"""
    assert run_script(script).stdout.split() == ["timeout"]
