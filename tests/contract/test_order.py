"""Which task runs next (contract B), exactly, with one worker and tasks submitted before start."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from tests.contract import tasks
from tests.contract.drivers import NOTHING_AHEAD, Driver, InlineDriver
from tests.contract.log import Log

import procq
from procq import Priority, Status, errors


def run(queue: procq.Queue, handles: Sequence[procq.Handle[object]]) -> None:
    """Start the queue and wait for all."""
    queue.start()
    for handle in handles:
        handle.wait()


def test_B1_equal_priorities_run_in_the_order_of_submission(driver: Driver, log: Log) -> None:
    queue = driver.queue()

    run(queue, [queue.submit(tasks.note, log.path, str(number)) for number in range(10)])

    assert log.lines == [str(number) for number in range(10)]


def test_B1_the_highest_priority_runs_first_then_the_first_submitted(driver: Driver, log: Log) -> None:
    queue = driver.queue()
    note = procq.task(tasks.note)
    priorities = [Priority.LOW, Priority.CRITICAL, 0, Priority.HIGH, 10, -3, Priority.NORMAL, 21, Priority.CRITICAL]

    run(
        queue,
        [
            queue.submit(note.using(priority=priority).spec(log.path, f"{int(priority)}/{number}"))
            for number, priority in enumerate(priorities)
        ],
    )

    assert log.lines == ["21/7", "20/1", "20/8", "10/3", "10/4", "0/2", "0/6", "-3/5", "-10/0"]


def test_B1_payloads_are_never_compared(driver: Driver) -> None:
    """A heap that compared the tasks themselves would fail on what has no order."""
    queue = driver.queue()
    handles = [queue.submit(tasks.echo, {"no": object}) for _ in range(20)]
    queue.start()

    assert all(handle.result() == {"no": object} for handle in handles)


def test_B2_a_retried_task_keeps_its_place(driver: Driver, log: Log) -> None:
    queue = driver.started()
    flaky = procq.task(tasks.note_attempt_and_fail_once, max_attempts=2, backoff=0.1)
    first = queue.submit(flaky.spec(log.path, "first"))
    queue.submit(tasks.note, log.path, "second").wait()
    queue.pause()
    third = queue.submit(tasks.note, log.path, "third")
    with pytest.raises(TimeoutError):
        third.wait(0.2)
    assert first.status is Status.READY

    queue.resume()
    first.wait()
    third.wait()

    assert log.lines == ["first/1", "second", "first/2", "third"]


def test_B2_an_unblocked_task_keeps_its_place(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.pause()
    note = procq.task(tasks.note)
    gate = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    second = queue.submit(note.using(depends_on=[gate], run_if="done").spec(log.path, "second"))
    third = queue.submit(note.spec(log.path, "third"))
    gate.cancel()

    queue.resume()
    second.wait()
    third.wait()

    assert log.lines == ["second", "third"]


def test_B2_what_an_end_makes_ready_comes_before_what_was_submitted_later(driver: Driver, log: Log) -> None:
    driver.needs(NOTHING_AHEAD)
    queue = driver.queue()
    note = procq.task(tasks.note)

    flaky = procq.task(tasks.note_attempt_and_fail_once, max_attempts=2, backoff=0)
    first = queue.submit(flaky.spec(log.path, "first"))
    second = queue.submit(note.using(depends_on=[first]).spec(log.path, "second"))
    others = [queue.submit(note.spec(log.path, name)) for name in ("third", "fourth")]
    run(queue, [first, second, *others])

    assert log.lines == ["first/1", "first/2", "second", "third", "fourth"]


def test_B2_a_replayed_task_keeps_its_place(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    queue.pause()
    first = queue.submit(note.spec(log.path, "first"))
    second = queue.submit(note.spec(log.path, "second"))
    first.cancel()

    assert queue.replay(first) == 1
    queue.resume()
    first.wait()
    second.wait()

    assert log.lines == ["first", "second"]


def test_B3_what_is_due_is_ordered_by_priority_not_by_its_instant(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    queue.pause()
    low = queue.submit(note.using(delay=0.01, priority=Priority.LOW).spec(log.path, "low"))
    high = queue.submit(note.using(delay=0.02, priority=Priority.HIGH).spec(log.path, "high"))
    with pytest.raises(TimeoutError):
        high.wait(0.1)
    assert [low.status, high.status] == [Status.READY, Status.READY]

    queue.resume()
    low.wait()
    high.wait()

    assert log.lines == ["high", "low"]


def test_B4_no_more_tasks_of_a_type_run_at_once_than_its_limit(driver: Driver) -> None:
    queue = driver.queue(workers=3, limits={"narrow": 1})
    narrow = procq.task(tasks.work, type="narrow")

    handles = [queue.submit(narrow.spec(0.02)) for _ in range(5)]
    queue.start()
    for handle in handles:
        handle.wait()

    runs = sorted((handle.history[0].started_at, handle.history[0].ended_at) for handle in handles)
    assert all(ended_at <= started_at for (_, ended_at), (started_at, _) in pairwise(runs))


def test_B4_a_saturated_type_does_not_hold_up_another(driver: Driver) -> None:
    queue = driver.started(workers=2, limits={"narrow": 1})
    narrow = procq.task(tasks.echo, type="narrow", priority=Priority.CRITICAL)
    waiting: list[procq.Handle[object]] = []

    def look(_: procq.Handle[str]) -> None:
        waiting.append(queue.submit(narrow.spec(1)))
        assert queue.submit(tasks.add, 1, 2).result() == 3
        assert waiting[0].status is Status.READY

    driver.during(queue, look, type="narrow")

    assert waiting[0].result() == 1


def test_B4_a_limited_type_runs_in_order(driver: Driver, log: Log) -> None:
    queue = driver.queue(limits={"narrow": 1})
    narrow = procq.task(tasks.note, type="narrow")

    handles = []
    for number in range(3):
        handles.append(queue.submit(narrow.spec(log.path, f"narrow {number}")))
        handles.append(queue.submit(tasks.note, log.path, f"wide {number}"))
    run(queue, handles)

    for name in ("narrow", "wide"):
        assert [line for line in log.lines if line.startswith(name)] == [f"{name} {number}" for number in range(3)]
    # A worker may begin what was sent ahead to it before anybody knows that the type is free again.
    if isinstance(driver, InlineDriver):
        assert log.lines == ["narrow 0", "wide 0", "narrow 1", "wide 1", "narrow 2", "wide 2"]


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_B4_a_limit_is_a_whole_number_of_at_least_one(driver: Driver, limit: int) -> None:
    with pytest.raises(errors.UsageError, match=r"limits\['narrow'\]"):
        driver.queue(limits={"narrow": limit})


def test_B8_a_task_that_waits_at_a_busy_worker_is_overtaken_by_a_more_urgent_one(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    handles: list[procq.Handle[str]] = []

    def submit(_: procq.Handle[str]) -> None:
        handles.append(queue.submit(note.spec(log.path, "normal")))
        handles.append(queue.submit(note.using(priority=Priority.HIGH).spec(log.path, "high")))

    driver.during(queue, submit)
    for handle in handles:
        handle.wait()

    assert log.lines == ["high", "normal"]


def test_H1_a_paused_queue_starts_nothing_and_goes_on_when_resumed(driver: Driver, log: Log) -> None:
    queue = driver.started()
    handles: list[procq.Handle[str]] = []

    def pause(_: procq.Handle[str]) -> None:
        handles.append(queue.submit(tasks.note, log.path, "ahead"))
        queue.pause()
        handles.append(queue.submit(tasks.note, log.path, "after"))

    met = driver.during(queue, pause)

    assert met.result() == "met"
    assert [handle.status for handle in handles] == [Status.READY, Status.READY]
    assert log.lines == []
    with pytest.raises(TimeoutError):
        handles[0].result(0.05)

    queue.resume()

    assert [handle.result() for handle in handles] == ["ahead", "after"]


def test_H3_a_task_knows_who_it_is(driver: Driver) -> None:
    queue = driver.started()

    task_id, attempt, remaining = queue.submit(procq.task(tasks.whoami, id="me", timeout=30).spec()).result()

    assert (task_id, attempt) == ("me", 1)
    assert remaining is not None
    assert 20 < remaining <= 30
    assert queue.submit(tasks.whoami).result()[2] is None
    assert tasks.whoami() == (None, None, None)
