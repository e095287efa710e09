"""Items of a map that share a task: nobody need notice (contract F2)."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import tasks
from tests.contract.drivers import Driver
from tests.contract.log import Log

import procq
from procq import Status, errors
from procq.source import BYTES_MAX


def outcomes(results: Iterator[object]) -> list[object]:
    """Take all results; an error stands for itself."""
    return list(each_outcome(results))


def each_outcome(results: Iterator[object]) -> Iterator[object]:
    """Take results one by one; an error stands for itself."""
    while True:
        try:
            yield next(results)
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - each test says which are expected
            yield error


def ended(queue: procq.Queue) -> int:
    """Count the tasks that have ended."""
    counts = queue.stats().counts
    return sum(counts[status] for status in Status if status.terminal)


# --- chunks ---


def test_F2_chunks_are_made_of_items_that_turn_out_brief(driver: Driver) -> None:
    queue = driver.started()

    assert list(queue.map(tasks.echo, range(20_000))) == list(range(20_000))

    assert ended(queue) < 2000


def test_F2_slow_items_are_never_put_together(driver: Driver) -> None:
    queue = driver.started()

    assert list(queue.map(tasks.work, [0.004] * 20)) == [0.004] * 20

    assert ended(queue) == 20


def test_F2_a_chunksize_is_obeyed(driver: Driver) -> None:
    queue = driver.started()

    assert list(queue.map(tasks.add, range(95), range(95), chunksize=10)) == [2 * number for number in range(95)]

    assert ended(queue) == 10


def test_F2_with_a_chunksize_of_one_each_item_is_a_task(driver: Driver) -> None:
    queue = driver.started()

    assert list(queue.map(tasks.echo, range(50), chunksize=1)) == list(range(50))

    assert ended(queue) == 50


@pytest.mark.parametrize("chunksize", [0, -1, 1.5, "big"])
def test_F2_a_chunksize_is_auto_or_a_whole_number_of_at_least_one(driver: Driver, chunksize: Any) -> None:  # noqa: ANN401
    with pytest.raises(errors.UsageError, match="chunksize"):
        driver.queue().map(tasks.echo, [1], chunksize=chunksize)


def test_F2_a_chunk_that_is_more_than_may_be_in_flight_is_refused(driver: Driver) -> None:
    with pytest.raises(errors.UsageError, match="at least chunksize=10"):
        driver.queue().map(tasks.echo, [1], chunksize=10, buffersize=9)


@pytest.mark.parametrize(
    "options", [{"timeout": 60}, {"delay": 0}, {"expires": 3600}, {"run_if": "done"}], ids=lambda options: str(*options)
)
def test_F2_an_option_for_one_item_makes_each_a_task(driver: Driver, options: dict[str, Any]) -> None:
    queue = driver.started()
    fn = procq.task(tasks.echo, **options)

    assert list(queue.map(fn, range(100))) == list(range(100))

    assert ended(queue) == 100
    with pytest.raises(errors.UsageError, match=f"chunksize=2: the option {min(options)}= of echo is for one item"):
        queue.map(fn, range(100), chunksize=2)


def test_B4_a_limit_of_the_type_makes_each_item_a_task(driver: Driver) -> None:
    queue = driver.started(limits={"echo": 1})

    assert list(queue.map(tasks.echo, range(100))) == list(range(100))

    assert ended(queue) == 100
    with pytest.raises(errors.UsageError, match="the type 'echo' has a limit"):
        queue.map(tasks.echo, range(100), chunksize=2)


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_F2_chunks_are_lazy_and_bounded(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            yield read
            read += 1

    results = driver.started().map(tasks.echo, endless(), ordered=ordered, buffersize=300)
    for taken in range(5000):
        next(results)
        assert read <= taken + 1 + 300
    results.close()


# --- each item for itself ---


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_F2_an_item_of_a_chunk_that_fails_disturbs_no_other(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    queue = driver.started()
    taken = outcomes(queue.map(tasks.invert, [1, 0, 2, 0, 4, 0], chunksize=6, ordered=ordered))

    values = [value for value in taken if isinstance(value, float)]
    failures = [error for error in taken if isinstance(error, ZeroDivisionError)]
    assert values == [1.0, 0.5, 0.25]
    assert len(failures) == 3
    if ordered:
        assert taken[1::2] == failures
    assert all(str(error.__cause__).count("in invert") == 1 for error in failures)
    assert "chunk.py" not in str(failures[0].__cause__)
    assert [letter.error_type for letter in queue.dead_letters()] == ["ZeroDivisionError"] * 3


def test_D2_the_history_of_an_item_begins_with_its_attempt_in_the_chunk(driver: Driver) -> None:
    queue = driver.started()
    fn = procq.task(tasks.invert, max_attempts=3, backoff=0)

    outcomes(queue.map(fn, [1, 0, 2], chunksize=3))

    (letter,) = queue.dead_letters()
    assert letter.attempts == 3
    assert [(record.attempt, record.outcome) for record in letter.history] == [(n, "error") for n in (1, 2, 3)]
    first = letter.history[0]
    assert first.error_type == "ZeroDivisionError"
    assert first.traceback is not None
    assert first.started_at <= first.ended_at <= letter.history[1].started_at
    assert first.pid == letter.history[1].pid


def test_F7_an_item_that_failed_in_a_chunk_can_be_replayed(driver: Driver, tmp_path: Path) -> None:
    queue = driver.started()
    outcomes(queue.map(tasks.need_file, [str(tmp_path / "there"), str(tmp_path)], chunksize=2))
    (tmp_path / "there").touch()

    assert queue.replay() == 1
    queue.shutdown()

    assert queue.stats().dead_letters == 0


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_D3_items_of_a_chunk_are_tried_again_each_for_itself(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    queue = driver.started()
    fn = procq.task(tasks.fail_before, max_attempts=3, backoff=0)

    results = list(queue.map(fn, [1, 2, 1, 3], range(4), chunksize=4, ordered=ordered))

    assert results == [0, 1, 2, 3] if ordered else results[:2] == [0, 2]
    assert sorted(results) == [0, 1, 2, 3]  # type: ignore[type-var]
    assert queue.stats().retries == 3


def test_D6_the_backoff_of_an_item_follows_its_attempt_in_the_chunk(driver: Driver) -> None:
    queue = driver.started()
    fn = procq.task(tasks.fail_before, max_attempts=2, backoff=0.2)
    before = driver.now()

    assert list(queue.map(fn, [1, 2, 2], chunksize=3)) == ["done"] * 3

    assert driver.now() >= before + 0.2


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        (lambda: procq.Permanent(LookupError("for good")), LookupError),
        (lambda: SystemExit(3), errors.RemoteError),
        (KeyboardInterrupt, errors.RemoteError),
        (GeneratorExit, errors.RemoteError),
        (StopIteration, RuntimeError),  # else it would read as the end of all
    ],
    ids=["Permanent", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration"],
)
def test_D3_what_an_item_raises_is_judged_as_ever(
    driver: Driver, fail: Callable[[], BaseException], kind: type[Exception]
) -> None:
    queue = driver.started()

    def fn(number: int) -> int:
        if number == 1:
            raise fail()
        return number

    results = queue.map(procq.task(fn, max_attempts=2, backoff=0), [0, 1, 2], chunksize=3)

    assert next(results) == 0
    with pytest.raises(kind):
        next(results)
    assert list(results) == [2]
    (letter,) = queue.dead_letters()
    assert letter.attempts == (2 if kind is RuntimeError else 1)


def test_D7_an_item_may_ask_to_be_called_later(driver: Driver, log: Log) -> None:
    queue = driver.started()

    assert list(queue.map(tasks.later_once, [log.path] * 3, [0.05] * 3, chunksize=3)) == [1, 1, 1]
    assert log.lines == ["ran"]


def test_D9_a_result_that_cannot_be_sent_fails_its_item_alone(driver: Driver) -> None:
    def fn(number: int) -> object:
        return (item for item in [number]) if number == 1 else [number]

    taken = outcomes(driver.started().map(fn, range(3), chunksize=3))

    assert [taken[0], taken[2]] == [[0], [2]]
    assert isinstance(taken[1], errors.PayloadError)
    assert "returned a generator" in str(taken[1])


def test_C5_an_item_that_cannot_be_pickled_is_told_in_its_place(driver: Driver) -> None:
    taken = outcomes(driver.started().map(tasks.echo, [[1], threading.Lock(), [3]], chunksize=3))

    assert [taken[0], taken[2]] == [[1], [3]]
    assert isinstance(taken[1], errors.PayloadError)


def test_C5_an_item_that_cannot_be_unpickled_fails_alone(driver: Driver) -> None:
    taken = outcomes(driver.started().map(tasks.echo, [1, tasks.Unloadable(), [3]], chunksize=3))

    assert [taken[0], taken[2]] == [1, [3]]
    assert isinstance(taken[1], Exception)


def test_D9_a_result_that_cannot_be_unpickled_is_told_in_its_place(driver: Driver) -> None:
    def fn(number: int) -> object:
        return tasks.Unloadable() if number == 1 else number

    taken = outcomes(driver.started().map(fn, range(3), chunksize=3))

    assert [taken[0], taken[2]] == [0, 2]
    assert isinstance(taken[1], RuntimeError)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("chunksize", [1, 3])
def test_F2_a_result_whose_rebuilding_raises_no_exception_is_told_once_and_in_its_place(
    driver: Driver,
    kind: type[BaseException],
    ordered: bool,  # noqa: FBT001
    chunksize: int,
) -> None:
    def fn(number: int) -> object:
        return tasks.Ending(kind) if number == 1 else number

    results = driver.started().map(fn, range(3), chunksize=chunksize, ordered=ordered)

    assert next(results) == 0
    with pytest.raises(kind):
        next(results)
    assert list(results) == [2]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("chunksize", [1, 4, "auto"])
def test_F2_what_was_read_before_an_input_raised_no_exception_is_not_lost(
    driver: Driver,
    kind: type[BaseException],
    chunksize: Any,  # noqa: ANN401
) -> None:
    """It comes out at once, for it may be Ctrl-C; and the map goes on."""

    class Input:
        def __init__(self) -> None:
            self.next = 0

        def __iter__(self) -> "Input":
            return self

        def __next__(self) -> int:
            self.next += 1
            if self.next == 11:
                raise kind
            if self.next > 20:
                raise StopIteration
            return self.next

    results = driver.started().map(tasks.echo, Input(), chunksize=chunksize, buffersize=8)
    taken: list[object] = []
    raised = 0
    while True:
        try:
            taken.append(next(results))
        except kind:
            raised += 1
        except StopIteration:
            break

    assert taken == [*range(1, 11), *range(12, 21)]
    assert raised == 1


def test_F2_no_item_sees_an_object_of_another(driver: Driver) -> None:
    shared: list[int] = []

    def fn(given: list[int], number: int) -> list[int]:
        given.append(number)
        return given

    assert list(driver.started().map(fn, [shared] * 4, range(4), chunksize=4)) == [[0], [1], [2], [3]]


def test_F2_a_result_is_as_it_was_when_its_item_ended(driver: Driver) -> None:
    def fn(number: int, seen: list[int] = []) -> list[int]:  # noqa: B006 - lives as long as the function
        seen.append(number)
        return seen

    assert list(driver.started().map(fn, range(3), chunksize=3)) == [[0], [0, 1], [0, 1, 2]]


def test_C5_what_changes_later_does_not_matter_to_an_item_that_is_tried_again(driver: Driver) -> None:
    item = [1]
    fn = procq.task(tasks.fail_first, max_attempts=2, backoff=0)
    results = driver.started().map(fn, [[0], item], chunksize=2)
    item.append(2)

    assert list(results) == [[0], [1]]


def test_E2_an_item_that_stands_for_a_result_has_a_task_of_its_own(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 10)

    assert list(queue.map(tasks.total, [1, handle, [handle, 3], 4], chunksize=4)) == [1, 10, 13, 4]


def test_F2_texts_bytes_and_nothing_are_items_like_others(driver: Driver) -> None:
    items: list[object] = [None, "__main__", b"\x80", 1.5, True, 1j, 10**100, "\ud800", (), {1: 2}] * 60

    assert list(driver.started().map(tasks.echo, items)) == items


def test_F2_big_items_are_not_put_together(driver: Driver) -> None:
    queue = driver.started()
    items = [[bytes(20_000)] for _ in range(30)]

    assert list(queue.map(tasks.echo, items, chunksize=10)) == items

    assert ended(queue) == 30


@pytest.mark.parametrize(("size", "items_in_one"), [(20_000, 1), (4_000, 2 * BYTES_MAX // 4_000)])
def test_F2_nor_are_too_many_that_are_big_together(driver: Driver, size: int, items_in_one: int) -> None:
    """Also those of a type whose values could share a pickle."""
    queue = driver.started()

    items = [bytes([number % 250]) * size for number in range(300)]  # each an object of its own

    assert list(queue.map(len, items, chunksize=300)) == [size] * 300

    assert ended(queue) >= 300 // items_in_one


# --- a chunk that ends badly ---


@pytest.mark.parametrize("chunksize", [1, 4])
def test_F2_an_item_that_raises_stop_iteration_does_not_end_the_map(driver: Driver, chunksize: int) -> None:
    results = driver.started().map(tasks.raise_stop_iteration_if_odd, [0, 1, 2, 4], chunksize=chunksize)

    assert next(results) == 0
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert list(results) == [2, 4]


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
def test_D4_a_death_amid_a_chunk_charges_the_culprit_alone(driver: Driver, ordered: bool) -> None:  # noqa: FBT001
    queue = driver.started()
    results = queue.map(procq.task(tasks.die_at, max_attempts=2, backoff=0), range(5), chunksize=5, ordered=ordered)

    taken = outcomes(results)

    assert [value for value in taken if isinstance(value, tuple)] == [(n, 1) for n in (0, 1, 2, 4)]
    (error,) = (value for value in taken if isinstance(value, Exception))
    assert isinstance(error, errors.WorkerCrashed)
    if ordered:
        assert taken[3] is error
    (letter,) = queue.dead_letters()
    assert letter.attempts == 2


def test_F2_a_shutdown_that_cuts_a_chunk_off_is_told_for_each_item(driver: Driver) -> None:
    queue = driver.queue()
    results = queue.map(tasks.echo, range(10), chunksize=5)
    queue.shutdown()

    taken = outcomes(results)

    assert len(taken) == 10
    assert all(isinstance(error, errors.TaskCancelled) for error in taken)


def endless(closed: list[str]) -> Iterator[int]:
    try:
        yield from itertools.count()
    finally:
        closed.append("closed")


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("chunksize", [1, 3])
def test_F2_a_map_over_an_endless_input_ends_with_its_queue(driver: Driver, chunksize: int, ordered: bool) -> None:  # noqa: FBT001
    """What was accepted is told, then once that no more is; and the input is let go of."""
    closed: list[str] = []
    queue = driver.queue()
    results = queue.map(tasks.echo, endless(closed), chunksize=chunksize, ordered=ordered, buffersize=6)
    queue.shutdown()

    taken = list(itertools.islice(each_outcome(results), 100))

    assert [type(error) for error in taken] == [errors.TaskCancelled] * 6 + [errors.QueueClosedError]
    assert closed == ["closed"]
    assert next(results, "over") == "over"


def test_G6_a_map_over_an_endless_input_ends_with_the_halt_of_its_queue(driver: Driver) -> None:
    queue = driver.started(max_failures=1)
    results = queue.map(tasks.invert, itertools.repeat(0))

    *taken, last = itertools.islice(each_outcome(results), 1000)

    assert isinstance(taken[0], ZeroDivisionError)
    assert {type(error) for error in taken[1:]} <= {errors.TaskCancelled}
    assert isinstance(last, errors.QueueClosedError)
    assert "max_failures=1" in str(last)


def test_F2_a_map_that_a_closed_queue_refuses_at_once_says_so_once(driver: Driver) -> None:
    queue = driver.started()
    queue.shutdown()

    taken = outcomes(queue.map(tasks.echo, range(10)))

    assert [type(error) for error in taken] == [errors.QueueClosedError]


def test_F2_an_input_that_closes_the_queue_and_raises_loses_neither_error(driver: Driver) -> None:
    queue = driver.started()

    def items() -> Iterator[int]:
        yield 1
        queue.shutdown()
        raise LookupError("the input")

    taken = outcomes(queue.map(tasks.echo, items(), chunksize=2))

    assert [type(error) for error in taken] == [errors.QueueClosedError]
    assert isinstance(taken[0], errors.QueueClosedError)
    assert isinstance(taken[0].__context__, LookupError)


def test_F2_after_a_shutdown_an_item_that_failed_tells_its_error(driver: Driver) -> None:
    queue = driver.started()
    results = queue.map(procq.task(tasks.invert, max_attempts=5, backoff=0), [1, 0, 2], chunksize=3)
    queue.shutdown()

    taken = outcomes(results)

    assert [taken[0], taken[2]] == [1.0, 0.5]
    assert isinstance(taken[1], ZeroDivisionError)


def test_F2_closing_a_map_cancels_chunks_that_wait(driver: Driver) -> None:
    queue = driver.queue()
    results = queue.map(tasks.echo, range(100), chunksize=10)
    results.close()

    assert list(results) == []
    assert queue.stats().counts[Status.CANCELLED] == 4
    assert not queue.stats().counts[Status.READY]
