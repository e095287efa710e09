"""Submitting: words, options, ids, pickling, back-pressure (contract C)."""

import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.contract import tasks
from tests.contract.decorated import decorated
from tests.contract.drivers import BACKGROUND, Driver
from tests.contract.log import Log
from tests.support.leaks import wait_until

import procq
from procq import Priority, Status, TaskSpec, errors

# --- C0: made stopped ---


def test_C0_nothing_runs_before_start(driver: Driver, log: Log) -> None:
    queue = driver.queue()
    handle = queue.submit(tasks.note, log.path)

    assert handle.status is Status.READY
    assert log.lines == []

    queue.start()

    assert handle.result() == "ran"


def test_C0_starting_twice_changes_nothing(driver: Driver) -> None:
    queue = driver.queue()

    assert queue.start() is queue
    assert queue.start() is queue
    assert queue.submit(tasks.add, 1, 2).result() == 3


def test_C0_with_starts_the_queue(driver: Driver) -> None:
    with driver.queue() as queue:
        assert queue.submit(tasks.add, 1, 2).result() == 3


def test_C0_a_handle_or_spec_does_where_an_id_is_taken(driver: Driver) -> None:
    queue = driver.queue()
    spec = procq.task(tasks.fail).using(id="mine").spec()
    handle = queue.submit(spec)

    assert queue.handle("mine") is queue.handle(handle) is queue.handle(spec) is handle
    assert [queue.cancel(one) for one in ("mine", handle, spec)] == ["cancelled", "finished", "finished"]
    assert [queue.wait(one).id for one in ("mine", handle, spec)] == ["mine"] * 3
    assert [queue.purge(one) for one in ("mine", handle, spec)] == [0, 0, 0]
    assert [queue.replay(one) for one in ("mine", handle, spec)] == [1, 0, 0]


# --- C1: what submit takes ---


def test_C1_every_keyword_belongs_to_the_function(driver: Driver) -> None:
    queue = driver.started()
    given = {"timeout": 1, "block": False, "id": "x", "type": "y", "priority": "z", "fn": 0, "what": 1, "self": 2}

    assert queue.submit(tasks.keywords, **given).result() == given


def test_C1_calling_a_task_function_just_calls_the_function() -> None:
    assert decorated(1) == 2
    assert decorated.__name__ == "decorated"  # set by update_wrapper


def test_C1_submit_takes_a_task_function_with_its_options(driver: Driver) -> None:
    queue = driver.started()

    handle = queue.submit(decorated, 1)

    assert handle.result() == 2
    assert handle.type == "decorated"


def test_C1_a_function_is_wrapped_without_decorating(driver: Driver) -> None:
    wrapped = procq.task(tasks.add, type="sum")

    handle = driver.started().submit(wrapped.spec(1, 2))

    assert (handle.result(), handle.type) == (3, "sum")


def test_C1_using_returns_a_copy() -> None:
    urgent = decorated.using(priority=Priority.HIGH, max_attempts=7)

    assert (decorated.options.priority, decorated.options.max_attempts) == (3, 2)
    assert (urgent.options.priority, urgent.options.max_attempts) == (10, 7)


def test_C1_one_spec_is_one_task_and_an_equal_one_another(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    spec, equal = note.spec(log.path), note.spec(log.path)

    first, again, other = queue.submit(spec), queue.submit(spec), queue.submit(equal)

    assert again is first
    assert other is not first
    assert other.id != first.id
    first.wait()
    other.wait()
    assert len(log.lines) == 2


def test_C1_a_spec_is_immutable() -> None:
    spec = decorated.spec(1)

    with pytest.raises(AttributeError, match="immutable"):
        spec.args = (2,)


def test_C1_arguments_that_do_not_fit_are_refused_where_they_are_given() -> None:
    with pytest.raises(errors.UsageError, match=r"decorated\(\) .*unexpected keyword argument 'color'"):
        decorated.spec(1, color="red")  # type: ignore[call-arg]
    with pytest.raises(errors.UsageError, match=r"decorated\(\) missing a required argument"):
        decorated.spec()  # type: ignore[call-arg]


def test_C1_arguments_beside_a_spec_are_refused(driver: Driver) -> None:
    queue = driver.queue()

    with pytest.raises(errors.UsageError, match="only block=, timeout= and on_conflict="):
        queue.submit(decorated.spec(1), 2)  # type: ignore[call-overload]
    assert queue.stats().counts[Status.READY] == 0


async def nothing() -> None:
    pass


@pytest.mark.parametrize("what", [3, "text", None, nothing], ids=["int", "str", "None", "async"])
def test_C1_what_is_no_function_is_refused(driver: Driver, what: Callable[[], object]) -> None:
    queue = driver.queue()

    with pytest.raises(errors.UsageError, match=r"function"):
        queue.submit(what)
    assert queue.stats().counts[Status.READY] == 0


def test_C1_submit_many_of_a_single_spec_is_refused_with_a_word_on_what_to_do(driver: Driver) -> None:
    queue = driver.queue()

    with pytest.raises(errors.UsageError, match=r"submit_many got <TaskSpec .*expected a list of specs; use submit"):
        queue.submit_many(decorated.spec(1))  # type: ignore[arg-type]


def test_C1_submit_many_returns_handles_in_order(driver: Driver) -> None:
    queue = driver.started()

    handles = queue.submit_many([decorated.spec(number) for number in range(5)])

    assert [handle.result() for handle in handles] == [1, 2, 3, 4, 5]


def test_C1_a_list_is_checked_whole_before_any_of_it_is_accepted(driver: Driver) -> None:
    queue = driver.queue()
    good, bad = procq.task(tasks.echo).spec(1), procq.task(tasks.echo).spec(threading.Lock())

    with pytest.raises(errors.PayloadError):
        queue.submit_many([good, bad])

    assert not any(queue.stats().counts.values())
    with pytest.raises(errors.UnknownTaskError):
        queue.handle(good)


@pytest.mark.parametrize("wrong", [3, [1], {}, tasks.add, decorated, None])
def test_C1_a_list_of_what_is_no_spec_is_refused(driver: Driver, wrong: Any) -> None:  # noqa: ANN401 - anything
    queue = driver.queue()

    with pytest.raises(errors.UsageError, match="expected a TaskSpec"):
        queue.submit_many([decorated.spec(1), wrong])
    assert not any(queue.stats().counts.values())


def test_C1_an_iterable_is_read_only_as_there_is_room(driver: Driver) -> None:
    queue = driver.started(max_pending=2)
    most_waiting = 0

    def endless() -> Iterator[TaskSpec[int]]:
        nonlocal most_waiting
        for number in range(20):
            most_waiting = max(most_waiting, waiting(queue))
            yield decorated.spec(number)

    handles = queue.submit_many(endless())

    assert [handle.result() for handle in handles] == list(range(1, 21))
    assert most_waiting <= 2


def waiting(queue: procq.Queue) -> int:
    counts = queue.stats().counts
    return counts[Status.READY] + counts[Status.SCHEDULED] + counts[Status.BLOCKED]


# --- C2: handlers ---


def test_C2_a_handler_is_given_the_payload(driver: Driver) -> None:
    queue = driver.started(handlers={"sum": tasks.total})

    spec: TaskSpec[int] = TaskSpec(type="sum", payload=[1, [2, 3]])

    handle = queue.submit(spec)

    assert (handle.result(), handle.type) == (6, "sum")


def test_C2_a_handler_may_be_a_task_function(driver: Driver) -> None:
    queue = driver.started(handlers={"next": decorated})

    assert queue.submit(TaskSpec(type="next", payload=1)).result() == 2


def test_C2_an_unknown_type_is_refused_at_submit(driver: Driver) -> None:
    queue = driver.queue(handlers={"resize": tasks.echo})

    with pytest.raises(errors.UnknownHandlerError, match=r"no handler for type 'rezise'; known are 'resize'"):
        queue.submit(TaskSpec(type="rezise", payload=1))
    assert not any(queue.stats().counts.values())


def test_C2_a_function_has_its_qualified_name_for_a_type(driver: Driver) -> None:
    queue = driver.queue()

    assert queue.submit(tasks.add, 1, 2).type == "add"
    assert queue.submit(lambda: 0).type.endswith("<lambda>")


# --- C3: options ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", 5),
        ("type", ""),
        ("priority", "high"),
        ("priority", True),
        ("priority", 1.5),
        ("max_attempts", 0),
        ("max_attempts", 1.5),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", "soon"),
        ("timeout", float("nan")),
        ("delay", -1),
        ("run_at", 5),
        ("expires", "never"),
        ("depends_on", "an id as a text"),
        ("depends_on", 5),
        ("run_if", "always"),
        ("backoff", "later"),
        ("backoff", -1),
        ("retry_on", "ValueError"),
        ("retry_on", int),
        ("never_retry", "explosion"),
        ("retry_for", -1),
    ],
)
def test_C3_an_error_names_the_field_and_the_value(field: str, value: object) -> None:
    given: dict[str, Any] = {field: value}

    with pytest.raises(errors.UsageError, match=rf"^{field}={re.escape(repr(value))}: "):
        procq.task(tasks.echo, **given)


def test_C3_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(errors.UsageError, match=r"unknown option 'retries'; known are .*max_attempts"):
        procq.task(tasks.echo, retries=3)  # type: ignore[call-overload]


def test_C3_delay_and_run_at_exclude_each_other() -> None:
    with pytest.raises(errors.UsageError, match="delay and run_at"):
        procq.task(tasks.echo, delay=1, run_at=datetime.now(UTC))


def test_C3_options_given_as_iterators_are_read_once_and_kept(driver: Driver) -> None:
    queue = driver.queue()
    first = queue.submit(tasks.echo)
    task = procq.task(tasks.echo, depends_on=iter([first]), retry_on=iter([ValueError]), never_retry=iter(["crash"]))

    changed = task.using(priority=1)

    assert changed.options.depends_on == (first,)
    assert changed.options.retry_on == frozenset({"ValueError"})
    assert changed.options.never_retry == frozenset({"crash"})
    assert queue.submit(changed.spec()).status is Status.BLOCKED


def test_C3_a_delayed_task_starts_not_before_its_instant(driver: Driver) -> None:
    queue = driver.started()
    submitted_at = driver.now()

    handle = queue.submit(procq.task(tasks.echo, delay="100ms").spec(1))

    assert handle.status is Status.SCHEDULED
    assert handle.result() == 1
    assert handle.history[0].started_at >= submitted_at + 0.1


def test_C3_a_delayed_task_lets_others_pass(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)

    late = queue.submit(note.using(delay=0.1, priority=Priority.CRITICAL).spec(log.path, "late"))
    queue.submit(note.spec(log.path, "early")).wait()
    late.wait()

    assert log.lines == ["early", "late"]


def test_C3_run_at_is_an_instant_of_the_wall_clock(driver: Driver) -> None:
    queue = driver.started()
    submitted_at = driver.now()
    instant = datetime.now(UTC) + timedelta(seconds=0.2)

    handle = queue.submit(procq.task(tasks.echo, run_at=instant).spec(1))

    assert handle.result() == 1
    # The wall clock was read a little earlier than the queue's.
    assert handle.history[0].started_at >= submitted_at + 0.1


def test_C3_run_at_in_the_past_is_now(driver: Driver) -> None:
    past = datetime.now() - timedelta(days=1)  # noqa: DTZ005 - naive is local time

    assert driver.started().submit(procq.task(tasks.echo, run_at=past).spec(1)).result() == 1


def test_C3_what_has_not_started_when_it_expires_never_does(driver: Driver, log: Log) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(tasks.note, delay=0.2, expires=0.05).spec(log.path))

    with pytest.raises(errors.TaskExpired):
        handle.result()
    assert handle.status is Status.CANCELLED
    assert log.lines == []


def test_C3_what_has_started_in_time_does_not_expire(driver: Driver) -> None:
    queue = driver.started()
    flaky = procq.task(tasks.fail_before, expires=20, max_attempts=2, backoff="21s" if is_fake(driver) else 0.05)

    assert queue.submit(flaky.spec(2)).result() == "done"


def is_fake(driver: Driver) -> bool:
    """Whether long waits take no time."""
    return driver.now() < 1


def test_C3_a_blocked_task_expires_too(driver: Driver) -> None:
    queue = driver.started()
    slow = queue.submit(procq.task(tasks.echo, delay=0.2).spec(1))

    handle = queue.submit(procq.task(tasks.echo, expires=0.05).spec(slow))

    with pytest.raises(errors.TaskExpired):
        handle.result()
    assert slow.result() == 1


def test_C3_no_retry_starts_later_than_retry_for_after_the_first_start(driver: Driver) -> None:
    queue = driver.started()
    flaky = procq.task(tasks.fail, max_attempts=100, backoff=[0, 0, 60], retry_for=30)

    handle = queue.submit(flaky.spec())

    assert isinstance(handle.exception(), ValueError)
    assert handle.attempts == 3


def test_C3_max_attempts_counts_all_tries(driver: Driver) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(tasks.fail, max_attempts=3, backoff=0).spec())

    assert isinstance(handle.exception(), ValueError)
    assert [record.attempt for record in handle.history] == [1, 2, 3]


# --- C4: ids ---


def test_C4_an_equal_spec_with_the_same_id_is_the_same_task(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note, id="once")

    first = queue.submit(note.spec(log.path))
    second = queue.submit(note.spec(log.path))
    first.wait()
    third = queue.submit(note.spec(log.path))

    assert second is first
    assert third is first
    assert log.lines == ["ran"]


@pytest.mark.parametrize(
    "other",
    [
        procq.task(tasks.echo, id="once").spec(2),
        procq.task(tasks.total, id="once").spec(1),
        procq.task(tasks.echo, id="once", priority=1).spec(1),
    ],
    ids=["other argument", "other function", "other option"],
)
def test_C4_another_spec_under_a_used_id_is_refused(driver: Driver, other: TaskSpec[object]) -> None:
    queue = driver.queue()
    queue.submit(procq.task(tasks.echo, id="once").spec(1))

    with pytest.raises(errors.DuplicateTaskError, match="'once'"):
        queue.submit(other)
    assert waiting(queue) == 1


def test_C4_a_spec_with_another_result_for_an_argument_is_another_spec(driver: Driver) -> None:
    """What is pickled is the same: a result is known in it by its number alone."""
    queue = driver.started()
    one, two = queue.submit(tasks.echo, 1), queue.submit(tasks.echo, 2)
    echo = procq.task(tasks.echo, id="once")
    first = queue.submit(echo.spec(one))
    assert first.result() == 1

    assert queue.submit(echo.spec(one)) is first
    with pytest.raises(errors.DuplicateTaskError, match="'once'"):
        queue.submit(echo.spec(two))


def test_C4_a_spec_with_another_dependency_is_another_spec(driver: Driver) -> None:
    queue = driver.started()
    one, two = queue.submit(tasks.echo, 1), queue.submit(tasks.echo, 2)
    echo = procq.task(tasks.echo, id="once")
    first = queue.submit(echo.using(depends_on=[one]).spec())
    first.wait()

    assert queue.submit(echo.using(depends_on=[one.id]).spec()) is first
    with pytest.raises(errors.DuplicateTaskError, match="'once'"):
        queue.submit(echo.using(depends_on=[two]).spec())
    with pytest.raises(errors.DuplicateTaskError, match="'once'"):
        queue.submit(echo.spec())


def test_C4_two_of_a_list_that_share_an_id_are_refused_whole(driver: Driver) -> None:
    queue = driver.queue()
    one, two = (procq.task(tasks.echo, id="once").spec(number) for number in (1, 2))

    with pytest.raises(errors.DuplicateTaskError, match="'once'"):
        queue.submit_many([one, two])
    assert waiting(queue) == 0


def test_C4_the_id_stays_taken_after_the_end(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(procq.task(tasks.echo, id="once").spec(1)).wait()

    with pytest.raises(errors.DuplicateTaskError):
        queue.submit(procq.task(tasks.echo, id="once").spec(2))


def test_C4_without_an_id_one_is_made_that_nobody_has(driver: Driver) -> None:
    queue = driver.queue()
    mine = queue.submit(procq.task(tasks.echo, id="#0").spec(1))

    others = [queue.submit(tasks.echo, 1), queue.submit(procq.task(tasks.echo).spec(1))]

    assert len({mine.id, *(handle.id for handle in others)}) == 3


# --- C5: pickling at submit ---


def test_C5_what_changes_after_submit_does_not_matter(driver: Driver) -> None:
    queue = driver.queue()
    values = [1, 2]
    handle = queue.submit(tasks.echo, values)
    values.append(3)
    queue.start()

    result = handle.result()

    assert result == [1, 2]
    assert result is not values


def test_C5_a_task_cannot_change_the_caller_s_arguments(driver: Driver) -> None:
    values = [3, 1, 2]

    driver.started().submit(list.sort, values).wait()

    assert values == [3, 1, 2]


def test_C5_a_retry_sees_the_arguments_as_submitted(driver: Driver) -> None:
    def grow(values: list[int]) -> list[int]:
        values.append(0)
        if procq.current().attempt == 1:
            raise ValueError
        return values

    handle = driver.started().submit(procq.task(grow, max_attempts=2, backoff=0).spec([1]))

    assert handle.result() == [1, 0]


def test_C5_lambdas_and_closures_work(driver: Driver) -> None:
    queue = driver.started()
    step = 10

    def advance(value: int) -> int:
        return value + step

    assert queue.submit(lambda value: value * 2, 21).result() == 42
    assert queue.submit(advance, 1).result() == 11
    assert list(queue.map(advance, [1, 2])) == [11, 12]


def test_C5_methods_builtins_and_partials_work(driver: Driver) -> None:
    from functools import partial  # noqa: PLC0415 - beside its one use

    queue = driver.started()

    assert queue.submit("a-b".split, "-").result() == ["a", "b"]
    assert queue.submit(sum, [1, 2]).result() == 3
    assert queue.submit(partial(tasks.add, 1), 2).result() == 3
    for fn in (partial(tasks.add, 1), "-".join):
        wrapped = procq.task(fn, type="wrapped")
        given: Any = 2 if isinstance(fn, partial) else ["a", "b"]
        found = fn(given)
        assert queue.submit(wrapped, given).result() == found
        assert queue.submit(wrapped.using(max_attempts=2), given).result() == found
        assert list(queue.map(wrapped, [given])) == [found]


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_C5_functions_of_main_travel_by_value(driver: Driver, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:  # noqa: FBT001
    """The worker's `__main__` is another module, whether or not ours knows the name."""
    namespace: dict[str, Callable[[int], int]] = {}
    exec("def double(value):\n    return 2 * value", {"__name__": "__main__"}, namespace)
    double = namespace["double"]
    if known:
        monkeypatch.setattr("__main__.double", double, raising=False)

    assert driver.started().submit(double, 21).result() == 42


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda lock: procq.task(tasks.add).spec(1, lock), r"argument 'right' of add\(...\)"),
        (lambda lock: procq.task(tasks.echo).spec({"deep": [0, lock]}), r"'value' of echo.*value\['deep'\]\[1\]"),
        (lambda lock: procq.task(tasks.keywords).spec(color=lock), r"color"),
        (lambda lock: procq.task(lambda: lock).spec(), r"function .*<lambda>.*lock at .*\.lock"),
    ],
    ids=["argument", "path", "keyword", "closure"],
)
def test_C5_what_cannot_be_pickled_is_named(
    driver: Driver, call: Callable[[object], TaskSpec[object]], said: str
) -> None:
    queue = driver.queue()

    with pytest.raises(errors.PayloadError, match=said) as caught:
        queue.submit(call(threading.Lock()))

    assert "lock" in str(caught.value)
    assert not any(queue.stats().counts.values())


def test_C5_a_plain_call_that_cannot_be_pickled_is_named_too(driver: Driver) -> None:
    queue = driver.queue()

    with pytest.raises(errors.PayloadError, match=r"argument 'right' of add\(...\)"):
        queue.submit(tasks.add, 1, threading.Lock())  # type: ignore[call-overload]
    assert not any(queue.stats().counts.values())


def test_C5_a_queue_cannot_be_an_argument(driver: Driver) -> None:
    queue = driver.queue()

    with pytest.raises(errors.UsageError, match="open one inside the task"):
        queue.submit(tasks.echo, queue)


# --- C6: back-pressure ---


def test_C6_a_full_queue_refuses_what_must_not_wait(driver: Driver) -> None:
    queue = driver.started(max_pending=2)
    queue.pause()
    first = [queue.submit(tasks.echo, number) for number in range(2)]

    with pytest.raises(errors.QueueFullError, match=r"max_pending=2"):
        queue.submit(decorated.spec(1), block=False)
    assert waiting(queue) == 2

    queue.resume()
    assert [handle.result() for handle in first] == [0, 1]
    assert queue.submit(decorated.spec(1), block=False).result() == 2


def test_C6_waiting_for_room_ends_with_the_timeout(driver: Driver) -> None:
    queue = driver.started(max_pending=1)
    queue.pause()
    queue.submit(tasks.echo, 1)
    before = driver.now()

    with pytest.raises(errors.QueueFullError, match=r"no room came within 0.1 s"):
        queue.submit(decorated.spec(1), timeout="100ms")

    assert driver.now() >= before + 0.1
    assert waiting(queue) == 1


def test_C6_a_blocked_submit_goes_on_when_there_is_room(driver: Driver) -> None:
    queue = driver.started(max_pending=1)

    handles = []
    for number in range(20):
        handles.append(queue.submit(tasks.echo, number))
        assert waiting(queue) <= 1

    assert [handle.result() for handle in handles] == list(range(20))


def test_C6_bytes_are_bounded_too(driver: Driver) -> None:
    queue = driver.started(max_pending_bytes="10kB")
    queue.pause()
    first = queue.submit(tasks.echo, b"x" * 8000)

    with pytest.raises(errors.QueueFullError, match=r"max_pending_bytes=10000"):
        queue.submit(procq.task(tasks.echo).spec(b"x" * 8000), block=False)
    small = queue.submit(procq.task(tasks.echo).spec(b"y"), block=False)

    queue.resume()
    first.wait()
    small.wait()
    assert queue.submit(procq.task(tasks.echo).spec(b"x" * 8000), block=False).result() == b"x" * 8000


def test_C6_a_task_that_was_replayed_counts_again(driver: Driver) -> None:
    queue = driver.started(max_pending_bytes="10kB")
    handle = queue.submit(procq.task(tasks.fail).spec("x" * 8000))
    for _ in range(3):
        handle.wait()
        queue.replay(handle)
    handle.wait()
    queue.pause()
    queue.submit(tasks.echo, b"x" * 8000)

    with pytest.raises(errors.QueueFullError):
        queue.submit(procq.task(tasks.echo).spec(b"x" * 8000), block=False)


def test_C6_a_task_larger_than_the_bound_is_taken_alone(driver: Driver) -> None:
    """Else it could never be submitted, and a blocking submit would wait for ever."""
    queue = driver.started(max_pending_bytes=100)

    assert queue.submit(tasks.echo, b"x" * 8000).result() == b"x" * 8000


def test_C6_a_queue_that_is_full_and_stopped_says_so(driver: Driver) -> None:
    queue = driver.queue(max_pending=1)
    queue.submit(tasks.echo, 1)

    with pytest.raises(errors.QueueFullError, match="not started"):
        queue.submit(tasks.echo, 2)


@pytest.mark.parametrize("block", [True, False])
def test_C6_what_is_known_or_refused_waits_for_no_room(driver: Driver, block: bool) -> None:  # noqa: FBT001
    """It needs none, and there may never be any."""
    queue = driver.queue(max_pending=1)
    handle = queue.submit(procq.task(tasks.echo, id="a").spec(1))
    other = procq.task(tasks.echo, id="a").spec(2)

    assert queue.submit(procq.task(tasks.echo, id="a").spec(1), block=block) is handle
    assert queue.submit(other, on_conflict="same", block=block) is handle
    with pytest.raises(errors.DuplicateTaskError):
        queue.submit(procq.task(tasks.echo, id="a").spec(3), block=block)
    with pytest.raises(errors.QueueFullError):
        queue.submit(procq.task(tasks.echo, id="b").spec(2), block=block)


def test_C6_a_blocked_submit_is_released_by_shutdown(driver: Driver) -> None:
    driver.needs(BACKGROUND)
    queue = driver.started(max_pending=1)
    queue.pause()
    queue.submit(tasks.echo, 1)
    caught: list[BaseException] = []

    def submit() -> None:
        try:
            queue.submit(tasks.echo, 2)
        except errors.ProcqError as error:
            caught.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    assert wait_until(lambda: bool(queue._supervisor.room.turns))
    queue.shutdown(mode="kill")
    thread.join(20)

    assert [type(error) for error in caught] == [errors.QueueClosedError]


def test_C6_block_and_timeout_stand_beside_a_spec_only(driver: Driver) -> None:
    queue = driver.started()

    assert queue.submit(tasks.keywords, block=False, timeout=3).result() == {"block": False, "timeout": 3}
    with pytest.raises(errors.UsageError, match=r"timeout=-1"):
        queue.submit(decorated.spec(1), timeout=-1)


# --- C7: closed ---


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.submit(tasks.echo, 1),
        lambda queue: queue.submit(decorated.spec(1)),
        lambda queue: queue.submit_many([decorated.spec(1)]),
        lambda queue: queue.submit_many([]),
        lambda queue: next(queue.map(tasks.echo, [1])),
        lambda queue: queue.replay(),
        lambda queue: queue.start(),
    ],
    ids=["submit", "submit a spec", "submit_many", "submit nothing", "map", "replay", "start"],
)
@pytest.mark.parametrize("started", [True, False], ids=["started", "never started"])
def test_C7_a_queue_that_was_shut_down_takes_nothing(
    driver: Driver,
    call: Callable[[procq.Queue], object],
    started: bool,  # noqa: FBT001
) -> None:
    queue = driver.started() if started else driver.queue()
    queue.shutdown()

    with pytest.raises(errors.QueueClosedError):
        call(queue)


def test_C7_what_is_known_can_still_be_asked(driver: Driver) -> None:
    queue = driver.started()
    good = queue.submit(procq.task(tasks.echo, id="good").spec(1))
    queue.submit(procq.task(tasks.fail, id="bad").spec())
    queue.shutdown()

    assert good.result() == queue.wait("good").value == 1
    assert [letter.id for letter in queue.dead_letters()] == ["bad"]
    assert queue.stats().counts[Status.SUCCEEDED] == 1
    assert queue.cancel("good") == "finished"


# --- C8: threads and callbacks ---


def test_C8_many_threads_may_submit(driver: Driver) -> None:
    queue = driver.started()
    handles: list[list[procq.Handle[object]]] = [[] for _ in range(8)]

    def submit(mine: list[procq.Handle[object]]) -> None:
        mine += [queue.submit(tasks.echo, number) for number in range(20)]

    threads = [threading.Thread(target=submit, args=(mine,)) for mine in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert [[handle.result() for handle in mine] for mine in handles] == [list(range(20))] * 8
    assert len({handle.id for mine in handles for handle in mine}) == 160


def test_C8_many_threads_may_wait(driver: Driver) -> None:
    queue = driver.started()
    results: list[int] = []

    def submit_and_wait() -> None:
        results.extend(queue.submit(tasks.add, number, 0).result() for number in range(10))

    threads = [threading.Thread(target=submit_and_wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert sorted(results) == sorted(list(range(10)) * 4)


def test_C8_a_callback_may_submit_and_wait(driver: Driver) -> None:
    queue = driver.started()
    done = threading.Event()
    results: list[int] = []

    def go_on(handle: procq.Handle[int]) -> None:
        results.append(queue.submit(tasks.add, handle.result(), 1).result())
        done.set()

    first = queue.submit(tasks.add, 1, 1)
    first.add_done_callback(go_on)
    first.wait()

    assert done.wait(20)
    assert results == [3]
