"""Tasks are cancelled before they run, while they run, and just as they end (contract F3; PAIN H18, H19)."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import gone, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, pids, wait_idle
from tests.support.process_tasks import Gate

from procq import Queue, Status, task
from procq.errors import DependencyFailed, TaskCancelled

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# --- before it runs ---


@pytest.mark.parametrize("brief", [False, True])
def test_H18_what_is_cancelled_in_the_queue_never_runs(brief: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Also what was sent ahead already, in numbers if it is brief."""
    gate, log = Gate(tmp_path), tmp_path / "log"
    with Queue(workers=1) as queue:
        if brief:
            for handle in [queue.submit(tasks.say, str(tmp_path / "warm"), 1) for _ in range(30)]:
                handle.result(PATIENCE_S)
        first = queue.submit(tasks.pass_gate, gate.path, "first")
        handles = [queue.submit(tasks.say, str(log), number) for number in range(50)]
        pid = gate.wait_begun()
        answers = [handle.cancel() for handle in handles]

        assert answers == ["cancelled"] * 50
        assert {handle.status for handle in handles} == {Status.CANCELLED}
        assert [handle.cancel() for handle in handles] == ["finished"] * 50
        gate.open()
        assert first.result(PATIENCE_S) == "first"
        assert first.cancel() == "finished"
        wait_idle(queue, 1)
        assert pids(queue) == {pid}
        assert lines(log) == []
        with pytest.raises(TaskCancelled):
            handles[0].result()


def test_H18_what_is_cancelled_amid_a_stream_of_brief_tasks_runs_once_or_never(tmp_path: Path) -> None:
    """Each is in the heap, ahead, running or done when it is cancelled; the answer must be the truth."""
    log = tmp_path / "log"
    with Queue(workers=2) as queue:
        for handle in [queue.submit(tasks.say, str(tmp_path / "warm"), 1) for _ in range(30)]:
            handle.result(PATIENCE_S)
        answers = {}
        handles = []
        for number in range(400):
            handles.append(queue.submit(tasks.say, str(log), number, number))
            if number % 3 == 0:
                answers[number] = handles[-1].cancel()
            elif number % 7 == 0:
                answers[number - 5] = handles[number - 5].cancel()
        for number, handle in enumerate(handles):
            handle.wait(PATIENCE_S)
            assert len(handle.history) <= 1
            if answers.get(number) in {None, "finished"}:
                assert handle.status is not Status.FAILED
            if handle.status is Status.CANCELLED:
                assert number in answers
        check_invariants(queue)
        ran = lines(log)
        assert len(ran) == len(set(ran)), "nothing ran twice"
        for number, handle in enumerate(handles):
            if handle.ok:
                assert str(number) in ran
            elif answers.get(number) == "cancelled":
                assert str(number) not in ran


def test_F3_a_task_is_cancelled_right_after_its_submission(tmp_path: Path) -> None:
    """Its packet is often still unread then: the worker goes on as if nothing had been."""
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        queue.submit(tasks.nothing).result(PATIENCE_S)
        for number in range(100):
            handle = queue.submit(tasks.say, str(log), number)
            answer = handle.cancel()
            handle.wait(PATIENCE_S)
            if answer == "cancelled":
                assert handle.status is Status.CANCELLED
                assert handle.history == ()
            elif answer == "finished":
                assert handle.ok
            else:
                assert handle.status in {Status.CANCELLED, Status.SUCCEEDED}
        said = lines(log)
        assert len(said) == len(set(said))
        check_invariants(queue)


@pytest.mark.parametrize("size", [100_000, 400_000, 10_000_000])
def test_F3_a_task_with_a_big_payload_is_cancelled_while_it_is_sent(size: int) -> None:
    """What is left of it in the stream must not reach the next one."""
    with Queue(workers=1) as queue:
        queue.submit(tasks.nothing).result(PATIENCE_S)
        for number in range(10):
            handle = queue.submit(tasks.length, bytes(size))
            handle.cancel()
            following = queue.submit(tasks.length, bytes(size + number + 1))
            assert following.result(PATIENCE_S) == size + number + 1
            handle.wait(PATIENCE_S)
            assert handle.ok or handle.status is Status.CANCELLED
        check_invariants(queue)


def test_F3_a_blocked_a_delayed_and_an_unstarted_task_end_at_once(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    log = str(tmp_path / "log")
    say = task(tasks.say)
    with Queue(workers=1) as queue:
        first = queue.submit(tasks.pass_gate, gate.path)
        blocked = queue.submit(say.spec(log, "blocked").using(depends_on=[first]))
        after = queue.submit(say.spec(log, "after").using(depends_on=[blocked]))
        anyway = queue.submit(say.spec(log, "anyway").using(depends_on=[blocked], run_if="done"))
        delayed = queue.submit(say.spec(log, "delayed").using(delay=3600))
        gate.wait_begun()

        assert blocked.cancel() == "cancelled"
        assert delayed.cancel() == "cancelled"
        for handle in (blocked, delayed, after):
            assert handle.status is Status.CANCELLED
        error = after.error
        assert isinstance(error, DependencyFailed)
        assert error.origin == blocked.id
        gate.open()
        anyway.result(PATIENCE_S)

    assert lines(tmp_path / "log") == ["anyway"]


def test_F3_a_task_that_waits_for_its_retry_is_cancelled() -> None:
    patient = task(tasks.fail, max_attempts=5, backoff=3600)
    with Queue(workers=1) as queue:
        handle = queue.submit(patient.spec("once"))
        assert wait_until(lambda: handle.status is Status.SCHEDULED, PATIENCE_S)
        assert handle.cancel() == "cancelled"
        assert [record.outcome for record in handle.history] == ["error"]


# --- while it runs ---


@pytest.mark.parametrize(
    "stuck",
    [
        tasks.announced_loop,
        tasks.announced_sleep,
        tasks.stuck_in_c,
        tasks.block_all_signals,
        tasks.ignore_sigterm,
        tasks.swallow_terminated_and_go_on,
    ],
)
def test_H19_a_running_task_is_stopped_whatever_it_does(stuck: Callable[[str], None], tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    patient = task(stuck, max_attempts=3, backoff=0)
    with Queue(workers=1, kill_grace=0.2) as queue:
        handle = queue.submit(patient.spec(gate.path))
        pid = gate.wait_begun()
        # Once: where this thread has to wait for a processor, a second call may find that it has ended.
        answer = handle.cancel()
        handle.wait(PATIENCE_S)

        assert answer == "stopping"
        assert handle.status is Status.CANCELLED
        assert [record.outcome for record in handle.history] == ["cancelled"]
        assert isinstance(handle.error, TaskCancelled)
        assert handle.cancel() == "finished"
        assert wait_until(lambda: gone([pid]))
        assert queue.submit(tasks.pid).result(PATIENCE_S) != pid


def test_F3_what_a_cancelled_task_catches_and_returns_does_not_help(tmp_path: Path) -> None:
    gate, log = Gate(tmp_path), tmp_path / "log"
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.swallow, gate.path, str(log))
        gate.wait_begun()
        handle.cancel()
        handle.wait(PATIENCE_S)

    assert handle.status is Status.CANCELLED
    assert lines(log) == ["caught Terminated"]


def test_H16_what_a_cancelled_task_started_dies_with_it(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1, kill_grace=0.2) as queue:
        handle = queue.submit(tasks.with_family, gate.path, in_c=True)
        gate.wait_begun()
        family = tasks.family(gate.path)
        handle.cancel()
        handle.wait(PATIENCE_S)

        assert handle.status is Status.CANCELLED
        assert wait_until(lambda: gone(family))


def test_F3_a_cancel_takes_the_dependents_with_it(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.announced_sleep, gate.path)
        dependent = queue.submit(tasks.echo, handle)
        gate.wait_begun()
        handle.cancel()
        error = dependent.exception(PATIENCE_S)

        assert isinstance(error, DependencyFailed)
        assert error.origin == handle.id


def test_F3_a_cancel_after_a_timeout_still_means_no_retry(tmp_path: Path) -> None:
    """The attempt is being stopped for its timeout already, and would be retried."""
    gate = Gate(tmp_path)
    limited = task(tasks.ignore_sigterm, timeout=0.1, max_attempts=3, backoff=0)
    with Queue(workers=1, kill_grace=30) as queue:
        handle = queue.submit(limited.spec(gate.path))
        gate.wait_begun()
        from tests.support.looking import states  # noqa: PLC0415

        assert wait_until(lambda: states(queue) == {"stopping": 1}, PATIENCE_S)
        assert handle.cancel() == "stopping"
        queue.shutdown(0, mode="kill")

    assert handle.status is Status.CANCELLED
    assert [record.outcome for record in handle.history] == ["cancelled"]


# --- just as it ends ---


def test_F3_whoever_finishes_first_wins(tmp_path: Path) -> None:
    """The task ends at about the moment of the cancel; both outcomes are right, a mixture is not."""
    log = tmp_path / "log"
    outcomes = set()
    with Queue(workers=1) as queue:
        queue.submit(tasks.nothing).result(PATIENCE_S)
        for number in range(60):
            handle = queue.submit(tasks.say_and_sleep, str(log), number, 0.002)
            timer = threading.Timer(number / 15_000, handle.cancel)
            timer.start()
            handle.wait(PATIENCE_S)
            timer.join()
            outcomes.add(handle.status)
            assert [record.outcome for record in handle.history] in (["ok"], ["cancelled"], [])
            if handle.ok:
                assert handle.result() is None
                assert lines(log)[-1] == str(number)
            else:
                assert handle.status is Status.CANCELLED
        check_invariants(queue)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
    assert len(lines(log)) <= 60
    assert outcomes <= {Status.SUCCEEDED, Status.CANCELLED}


def test_F3_a_task_that_has_ended_is_not_stopped_and_its_worker_stays(tmp_path: Path) -> None:
    """Its report may be unread when it is cancelled: that is "finished", and no reason to end a worker."""
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        for number in range(30):
            handle = queue.submit(tasks.say, str(log), number)
            with queue._supervisor.lock:  # so the loop cannot read the report
                assert wait_until(lambda: len(lines(log)) > number, PATIENCE_S)  # noqa: B023 - used at once
                # From the task's last word to the report on its way it is a matter of microseconds.
                threading.Event().wait(0.005)
                answer = queue._supervisor.cancel(handle._task)
            assert answer == "finished"
            assert handle.ok
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid


def test_F3_cancel_while_a_big_result_is_on_its_way(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        for _ in range(5):
            handle = queue.submit(tasks.announced_big, gate.path, 20_000_000)
            gate.wait_begun()
            handle.cancel()
            handle.wait(PATIENCE_S)
            if handle.ok:
                assert len(handle.result()) == 20_000_000
            else:
                assert handle.status is Status.CANCELLED
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_F3_cancel_from_a_done_callback(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2) as queue:
        running = queue.submit(tasks.announced_sleep, gate.path)
        gate.wait_begun()
        first = queue.submit(tasks.nothing)
        first.add_done_callback(lambda _: running.cancel())
        running.wait(PATIENCE_S)
        assert running.status is Status.CANCELLED


def test_closing_a_map_cancels_what_was_not_taken() -> None:
    with Queue(workers=1) as queue:
        results = queue.map(tasks.sleep, [0, 3600, 3600, 3600])
        next(results)
        results.close()
        wait_idle(queue, 1)
        check_invariants(queue)
        assert queue.stats().counts[Status.CANCELLED] == 3
