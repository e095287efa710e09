"""Waiting for results: one, as they come, or as a map (contract F1, F2, F4)."""

import gc
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest
from tests.contract import tasks
from tests.contract.decorated import decorated
from tests.contract.drivers import BACKGROUND, Driver

import procq
from procq import Status, as_completed, errors

# --- F1: one task ---


def test_F1_wait_tells_how_a_task_ended_without_raising_its_error(driver: Driver) -> None:
    queue = driver.started()
    good = queue.submit(procq.task(tasks.add, id="good").spec(1, 2))
    bad = queue.submit(procq.task(tasks.fail, max_attempts=2, backoff=0).spec("no"))

    result = queue.wait("good")
    failure = queue.wait(bad)

    assert (result.id, result.status, result.value, result.error) == ("good", Status.SUCCEEDED, 3, None)
    assert (result.attempts, len(result.history)) == (1, 1)
    assert (failure.id, failure.status, failure.value) == (bad.id, Status.FAILED, None)
    assert (failure.attempts, len(failure.history)) == (2, 2)
    assert isinstance(failure.error, ValueError)
    assert good.ok
    assert not bad.ok


def test_F1_a_timeout_ends_only_the_wait(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(procq.task(tasks.echo, delay=0.3).spec(1))
    before = driver.now()

    for wait in (handle.result, handle.exception, handle.wait, lambda timeout: queue.wait(handle, timeout)):
        with pytest.raises(TimeoutError, match=rf"'{handle.id}' is still scheduled after 0.02 s"):
            wait(0.02)

    assert driver.now() >= before + 0.08
    assert not handle.done()
    assert handle.result() == 1


def test_F1_no_time_at_all_is_a_look(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.echo, delay=3600).spec(1))

    with pytest.raises(TimeoutError):
        handle.result(0)


def test_F1_an_error_of_the_task_that_is_a_timeout_error_is_not_taken_for_the_wait_s(driver: Driver) -> None:
    handle = driver.started().submit(tasks.raise_timeout_error)

    with pytest.raises(TimeoutError, match="the task's own"):
        handle.result(60)
    assert handle.status is Status.FAILED


@pytest.mark.parametrize("timeout", [-1, "soon", float("inf")])
def test_F1_a_wait_that_is_no_duration_is_refused(driver: Driver, timeout: float) -> None:
    handle = driver.queue().submit(tasks.echo, 1)

    with pytest.raises(errors.UsageError, match="timeout="):
        handle.result(timeout)


def test_F1_an_unknown_id_is_refused(driver: Driver) -> None:
    queue = driver.queue()
    stranger = driver.queue().submit(tasks.echo, 1)

    for task in ("nobody", decorated.spec(1), stranger):
        with pytest.raises(errors.UnknownTaskError):
            queue.wait(task)
        with pytest.raises(KeyError):
            queue.cancel(task)


def test_F1_a_cancelled_task_raises_task_cancelled(driver: Driver) -> None:
    handle = driver.queue().submit(tasks.echo, 1)
    handle.cancel()

    with pytest.raises(errors.TaskCancelled) as caught:
        handle.result()

    assert isinstance(caught.value, CancelledError)
    assert caught.value.task_id == handle.id
    assert queue_result(handle) is Status.CANCELLED


def queue_result(handle: "procq.Handle[object]") -> Status:
    assert isinstance(handle.exception(), errors.TaskCancelled)
    assert isinstance(handle.error, errors.TaskCancelled)
    assert handle.done()
    return handle.status


def test_F1_none_and_false_are_results_like_others(driver: Driver) -> None:
    queue = driver.started()

    assert queue.submit(tasks.echo, None).result() is None
    assert queue.submit(tasks.echo, False).result() is False  # noqa: FBT003 - a value like others
    assert queue.submit(tasks.echo, [None]).exception() is None


def test_F1_an_exception_may_be_a_result(driver: Driver) -> None:
    result = driver.started().submit(tasks.echo, ValueError("a value")).result()

    assert isinstance(result, ValueError)


def test_F1_several_threads_may_wait_for_one_task(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.echo, delay=0.05).spec(1))
    results: list[object] = []

    threads = [threading.Thread(target=lambda: results.append(handle.result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert results == [1] * 8


def test_F1_a_wait_that_was_given_up_leaves_nothing_behind(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.echo, delay=3600).spec(1))
    with pytest.raises(TimeoutError):
        handle.wait(0)
    with pytest.raises(TimeoutError):
        list(as_completed([handle], 0))

    assert not handle._task.listeners


def test_F1_as_completed_may_be_dropped_while_the_lock_is_held(driver: Driver) -> None:
    """As the garbage collector may do it, amid a submit."""
    queue = driver.started()
    handle = queue.submit(procq.task(tasks.echo, delay=3600).spec(1))
    queue.submit(tasks.echo).wait()
    completed = as_completed([handle, queue.submit(tasks.echo)])
    next(completed)

    with queue._supervisor.lock:
        del completed
    queue.submit(tasks.echo).wait()  # the next turn takes back what it waited for

    assert not handle._task.listeners


# --- F2: as they come ---


def test_F2_as_completed_yields_in_the_order_of_the_ends(driver: Driver) -> None:
    queue = driver.started()
    echo = procq.task(tasks.echo)
    late = queue.submit(echo.using(delay=0.2).spec("late"))
    early = queue.submit(echo.using(delay=0.02).spec("early"))
    bad = queue.submit(procq.task(tasks.fail, delay=0.1).spec())

    assert list(as_completed([late, bad, early])) == [early, bad, late]


def test_F2_as_completed_yields_what_has_ended_already(driver: Driver) -> None:
    queue = driver.started()
    ended = queue.submit(tasks.echo, 1)
    ended.wait()
    cancelled = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    cancelled.cancel()

    assert set(as_completed([ended, cancelled], 60)) == {ended, cancelled}


def test_F2_as_completed_yields_a_handle_once(driver: Driver) -> None:
    handle = driver.started().submit(tasks.echo, 1)

    assert list(as_completed([handle, handle])) == [handle]


def test_F2_as_completed_takes_two_handles_of_one_task_for_one(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)
    other = queue.handle(handle.id)

    assert list(as_completed([handle, other])) == [handle]
    assert len({handle, other}) == 1


def test_F2_as_completed_of_nothing_ends_at_once(driver: Driver) -> None:
    driver.started()

    assert list(as_completed([])) == []


def test_F2_the_timeout_of_as_completed_is_for_all_together(driver: Driver) -> None:
    queue = driver.started()
    echo = procq.task(tasks.echo)
    handles = [queue.submit(echo.using(delay=delay).spec()) for delay in (0.02, 3600, 3600)]
    before = driver.now()
    ended: list[object] = []

    with pytest.raises(TimeoutError, match=r"2 tasks had not ended after 0.2 s"):
        ended.extend(as_completed(handles, "200ms"))

    assert driver.now() >= before + 0.2
    assert handles[0].done()


def test_F2_as_completed_refuses_what_is_no_handle(driver: Driver) -> None:
    wrong: list[Any] = [driver.started().submit(tasks.echo, 1), "id"]

    with pytest.raises(errors.UsageError, match="expected handles"):
        as_completed(wrong)


def test_F2_as_completed_may_be_left_early(driver: Driver) -> None:
    queue = driver.started()
    handles = [queue.submit(tasks.echo, number) for number in range(3)]

    for handle in as_completed(handles):
        assert handle.ok
        break

    assert sorted(handle.result() for handle in handles) == [0, 1, 2]  # type: ignore[type-var]


# --- F2: map ---


def test_F2_map_yields_results_in_the_order_of_the_items(driver: Driver) -> None:
    queue = driver.started()

    assert list(queue.map(tasks.add, range(50), range(100, 200))) == [100 + 2 * number for number in range(50)]


def test_F2_map_of_nothing_is_empty(driver: Driver) -> None:
    queue = driver.started()

    assert list(queue.map(tasks.echo, [])) == []
    with pytest.raises(errors.UsageError, match="at least one iterable"):
        queue.map(tasks.echo)


def test_F2_map_takes_a_task_function_with_its_options(driver: Driver) -> None:
    flaky = procq.task(tasks.fail_before, max_attempts=2, backoff=0)

    assert list(driver.started().map(flaky, [1, 2], ["a", "b"])) == ["a", "b"]


def test_F2_map_unordered_yields_results_as_they_come(driver: Driver) -> None:
    queue = driver.started()
    fail_once = procq.task(tasks.fail_the_first, max_attempts=2, backoff=0.1)

    assert list(queue.map(fail_once, [0, 1, 2], ordered=False)) == [1, 2, 0]


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_F2_map_is_lazy_and_bounded(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    queue = driver.started()
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            yield read
            read += 1

    results = queue.map(tasks.echo, endless(), ordered=ordered, buffersize=3)
    assert read < 3

    taken = [next(results) for _ in range(10)]
    results.close()

    assert sorted(taken) == list(range(10)) if ordered else len(set(taken)) == 10  # type: ignore[type-var]
    assert read <= 10 + 3


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_F2_an_error_is_raised_in_its_place_and_the_map_goes_on(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    results = driver.started().map(tasks.invert, [1, 0, 2, 0, 4], ordered=ordered)
    seen: list[object] = []

    for _ in range(5):
        try:
            seen.append(next(results))
        except ZeroDivisionError as error:
            seen.append(type(error))

    assert seen == [1.0, ZeroDivisionError, 0.5, ZeroDivisionError, 0.25]
    with pytest.raises(StopIteration):
        next(results)


def test_F2_a_timeout_of_map_is_for_each_result(driver: Driver) -> None:
    queue = driver.started()
    results = queue.map(procq.task(tasks.echo, delay=0.1), [1, 2], timeout=0.02)

    with pytest.raises(TimeoutError):
        next(results)

    assert next(driver.started().map(tasks.echo, [1], timeout=60)) == 1


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_F2_after_a_timeout_of_map_the_result_can_still_be_had(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    queue = driver.started()
    results = queue.map(procq.task(tasks.echo, delay=0.2), [1], timeout=0.05, ordered=ordered)
    timeouts = 0

    while True:
        try:
            result = next(results)
        except TimeoutError:
            timeouts += 1
        else:
            break

    assert result == 1
    assert timeouts >= 1


@pytest.mark.parametrize("how", ["close", "let go"])
def test_F2_closing_a_map_drops_the_rest(driver: Driver, how: str) -> None:
    queue = driver.started()
    results = queue.map(tasks.only_the_first, range(100), buffersize=5)
    assert next(results) == 0

    if how == "close":
        results.close()
        assert list(results) == []
    del results
    gc.collect()
    queue.submit(tasks.echo, 1).wait()

    counts = queue.stats().counts
    assert (counts[Status.SUCCEEDED], counts[Status.CANCELLED]) == (2, 4)
    assert not counts[Status.READY] + counts[Status.SCHEDULED]


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_F2_an_error_of_the_input_comes_after_what_was_read_before_it(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("no more lines")

    results = driver.started().map(tasks.echo, broken(), ordered=ordered)

    assert next(results) == 1
    with pytest.raises(LookupError, match="no more lines"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_F2_an_item_that_cannot_be_sent_is_told_in_its_place(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    results = driver.started().map(tasks.echo, [1, threading.Lock(), 3], ordered=ordered)
    seen: list[object] = []

    for _ in range(3):
        try:
            seen.append(next(results))
        except errors.PayloadError as error:
            seen.append(type(error))

    assert seen == [1, errors.PayloadError, 3] if ordered else set(seen) == {1, errors.PayloadError, 3}
    assert list(results) == []


def test_F2_what_a_map_has_submitted_can_be_had_after_a_shutdown(driver: Driver) -> None:
    queue = driver.started()
    results = queue.map(tasks.echo, range(9), buffersize=3)
    assert next(results) == 0
    queue.shutdown()

    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(errors.QueueClosedError):
        next(results)


def test_F2_a_map_of_more_than_may_be_pending_works(driver: Driver) -> None:
    queue = driver.started(max_pending=2)

    assert list(queue.map(tasks.echo, range(30))) == list(range(30))


@pytest.mark.parametrize("buffersize", [0, -1, 1.5])
def test_F2_a_buffersize_is_a_whole_number_of_at_least_one(driver: Driver, buffersize: int) -> None:
    with pytest.raises(errors.UsageError, match="buffersize"):
        driver.queue().map(tasks.echo, [1], buffersize=buffersize)


def test_F2_the_items_of_a_map_may_be_results(driver: Driver) -> None:
    queue = driver.started()
    handles = [queue.submit(tasks.echo, number) for number in range(5)]

    assert list(queue.map(decorated, handles)) == [1, 2, 3, 4, 5]


# --- F4: callbacks ---


def collect(handle: "procq.Handle[object]", count: int = 1) -> "tuple[list[object], threading.Event]":
    """Have the handle's callback append the status to a list, which sets the event when there are so many."""
    seen: list[object] = []
    done = threading.Event()

    def callback(ended: "procq.Handle[object]") -> None:
        assert ended is handle
        seen.append(ended.status)
        if len(seen) == count:
            done.set()

    for _ in range(count):
        handle.add_done_callback(callback)
    return seen, done


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        (procq.task(tasks.echo).spec(), Status.SUCCEEDED),
        (procq.task(tasks.fail).spec(), Status.FAILED),
        (procq.task(tasks.echo, delay=1, expires=0.01).spec(), Status.CANCELLED),
    ],
    ids=["succeeded", "failed", "cancelled"],
)
def test_F4_callbacks_are_called_however_the_task_ends(
    driver: Driver, spec: procq.TaskSpec[object], status: Status
) -> None:
    handle = driver.started().submit(spec)

    seen, done = collect(handle, count=2)
    handle.wait()

    assert done.wait(20)
    assert seen == [status, status]


def test_F4_a_callback_that_comes_late_is_called_at_once(driver: Driver) -> None:
    handle = driver.started().submit(tasks.echo, 1)
    handle.wait()

    seen, done = collect(handle)

    assert done.wait(20)
    assert seen == [Status.SUCCEEDED]


def test_F4_a_callback_is_called_also_after_the_queue_has_gone(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)
    queue.shutdown()

    seen, done = collect(handle)

    assert done.wait(20)
    assert seen == [Status.SUCCEEDED]


def test_F4_callbacks_due_before_the_end_of_the_queue_have_been_called_when_it_has_gone(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)
    seen, _ = collect(handle, count=3)

    queue.shutdown()

    assert seen == [Status.SUCCEEDED] * 3


def test_F4_a_callback_runs_outside_the_lock_and_the_supervisor(driver: Driver) -> None:
    queue = driver.started()
    threads: list[str] = []
    done = threading.Event()

    def callback(handle: "procq.Handle[object]") -> None:
        queue.stats()
        handle.cancel()
        threads.append(threading.current_thread().name)
        done.set()

    handle = queue.submit(tasks.echo, 1)
    handle.add_done_callback(callback)
    handle.wait()

    assert done.wait(20)
    assert threads == ["procq-callbacks"]


def test_F4_a_callback_that_raises_is_logged_once_and_harms_nobody(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)

    def raises(_: "procq.Handle[object]") -> None:
        raise SystemExit("not so fast")

    handle.add_done_callback(raises)
    seen, done = collect(handle)
    with caplog.at_level(logging.WARNING, logger="procq"):
        handle.wait()
        assert done.wait(20)

    assert seen == [Status.SUCCEEDED]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "not so fast" in caplog.text
    assert queue.submit(tasks.echo, 2).result() == 2


def test_F4_a_callback_that_blocks_holds_up_no_task(driver: Driver) -> None:
    driver.needs(BACKGROUND)
    queue = driver.started()
    gate = threading.Event()
    handle = queue.submit(tasks.echo, 1)
    handle.add_done_callback(lambda _: gate.wait(20))
    handle.wait()

    assert [queue.submit(tasks.echo, number).result() for number in range(5)] == list(range(5))
    gate.set()


def test_F4_a_callback_added_at_the_very_end_is_called_too(driver: Driver) -> None:
    """It came behind the thread's word to end, which then waited for more for ever."""
    driver.needs(BACKGROUND)
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)
    seen: list[object] = []

    def add_another(_: "procq.Handle[object]") -> None:
        assert queue._supervisor._all_closed.wait(20)
        handle.add_done_callback(lambda ended: seen.append(ended.result()))

    handle.add_done_callback(add_another)
    queue.shutdown()

    assert seen == [1]


def test_F4_callbacks_are_called_in_the_order_of_the_ends(driver: Driver) -> None:
    queue = driver.started()
    seen: list[object] = []
    handles = [queue.submit(tasks.echo, number) for number in range(20)]
    for handle in handles:
        handle.add_done_callback(lambda ended: seen.append(ended.result()))

    queue.shutdown()

    assert seen == list(range(20))
