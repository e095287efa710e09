"""What only the inline engine does: the clock, and who runs what when (DESIGN 6)."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Final

import pytest

import procq
from procq import Status, errors, testing
from procq.engine.inline import InlineEngine

#: What a task calls in the test's own process, by name; its name alone is pickled.
CALLS: Final[dict[str, Callable[[], object]]] = {}


@pytest.fixture(autouse=True)
def _no_calls() -> Iterator[None]:
    yield
    CALLS.clear()


@pytest.fixture
def clock() -> testing.FakeClock:
    return testing.FakeClock()


def call(name: str) -> object:
    return CALLS[name]()


def echo(value: object = None) -> object:
    return value


def fail() -> None:
    raise ValueError("no")


def spend(duration: float) -> str:
    testing.spend(duration)
    return "spent"


# --- groups ---


def test_B7_groups_share_the_one_worker_and_the_most_urgent_of_all_comes_first() -> None:
    ran: list[str] = []
    with testing.inline(groups={"heavy": 2, "light": 1}) as queue:
        queue.pause()
        for number, (group, priority) in enumerate(
            [("heavy", 0), ("default", 0), ("light", 10), ("default", 10), ("heavy", 0), ("light", -10), ("default", 0)]
        ):
            CALLS[str(number)] = partial(ran.append, f"{group} {priority}")
            queue.submit(procq.task(call, group=group, priority=priority).spec(str(number)))
        queue.resume()

    assert ran == ["light 10", "default 10", "heavy 0", "default 0", "heavy 0", "default 0", "light -10"]


def test_B7_the_default_group_may_be_named_too() -> None:
    with testing.inline(groups={"default": 3, "heavy": 2}) as queue:
        assert queue.groups == {"default": 3, "heavy": 2}
        assert queue.submit(procq.task(echo, group="heavy").spec(1)).result() == 1


def test_B7_an_engine_has_the_groups_of_its_queue() -> None:
    engine = InlineEngine(clock=testing.FakeClock(), groups=["default", "heavy"])

    with pytest.raises(
        errors.UsageError, match=r"^groups: the queue has 'default'; the engine was made for 'default', 'heavy'$"
    ):
        procq.Queue(engine=engine)
    with pytest.raises(errors.UsageError, match="the engine was made for"):
        procq.Queue(groups={"light": 1}, engine=engine)


# --- who drives ---


def test_nothing_runs_before_somebody_waits() -> None:
    ran: list[int] = []
    CALLS["ran"] = lambda: ran.append(1)
    with testing.inline() as queue:
        handle = queue.submit(call, "ran")

        assert (handle.status, ran) == (Status.READY, [])

        handle.wait()

        assert (handle.status, ran) == (Status.SUCCEEDED, [1])


def test_a_wait_runs_no_more_than_it_needs() -> None:
    with testing.inline() as queue:
        first, second = queue.submit(echo, 1), queue.submit(echo, 2)

        first.wait()

        assert second.status is Status.READY


def test_tasks_run_in_the_thread_that_waits_and_no_thread_is_started() -> None:
    CALLS["thread"] = threading.get_ident
    threads = threading.active_count()
    with testing.inline() as queue:
        assert queue.submit(call, "thread").result() == threading.get_ident()
        assert threading.active_count() == threads


def test_a_look_with_no_time_runs_what_can_run_now(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        queue.submit(echo, 1)
        handle = queue.submit(echo, 2)

        assert handle.result(0) == 2
        assert clock.now == 0


def test_a_second_thread_that_waits_runs_no_second_attempt_beside_the_first() -> None:
    running = 0
    most = 0
    lock = threading.Lock()

    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1

    CALLS["count"] = count
    with testing.inline() as queue:
        handles = [queue.submit(call, "count") for _ in range(20)]
        threads = [threading.Thread(target=handle.wait) for handle in reversed(handles)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

    assert all(handle.ok for handle in handles)
    assert most == 1


def test_a_task_that_waits_for_its_own_queue_is_told_so() -> None:
    with testing.inline() as queue:
        CALLS["wait"] = lambda: queue.submit(echo, 1).result()

        handle = queue.submit(call, "wait")

        with pytest.raises(errors.UsageError, match="waits for the inline queue that runs it"):
            handle.result()


def test_a_task_may_use_another_inline_queue() -> None:
    def nested() -> object:
        with testing.inline() as inner:
            return inner.submit(echo, 1).result(), procq.current().id

    CALLS["nested"] = nested
    with testing.inline() as queue:
        assert queue.submit(procq.task(call, id="outer").spec("nested")).result() == (1, "outer")


def test_a_task_may_submit_to_its_own_queue() -> None:
    with testing.inline() as queue:
        later: list[procq.Handle[object]] = []
        CALLS["submit"] = lambda: later.append(queue.submit(echo, 1))

        queue.submit(call, "submit").wait()

        assert later[0].result() == 1


def test_arguments_and_results_are_copies() -> None:
    values = [1]
    with testing.inline() as queue:
        result = queue.submit(echo, values).result()

    assert result == values
    assert result is not values


# --- the clock ---


def test_a_wait_moves_the_clock_to_what_is_due_and_no_further(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        queue.submit(procq.task(echo, delay="2h").spec())
        handle = queue.submit(procq.task(echo, delay="1h").spec())

        handle.wait()

        assert clock.now == 3600
        assert handle.history[0].started_at == 3600
    assert clock.now == 7200


def test_a_wait_with_a_timeout_ends_on_the_clock(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        handle = queue.submit(procq.task(echo, delay="1h").spec())

        with pytest.raises(TimeoutError):
            handle.wait("59m")
        assert clock.now == 59 * 60

        handle.wait("1m")
        assert clock.now == 3600


def test_what_ends_after_the_timeout_came_too_late(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        handle = queue.submit(spend, 10)

        with pytest.raises(TimeoutError):
            handle.result(5)

        assert handle.result() == "spent"
        assert clock.now == 10


def test_as_completed_counts_the_time_that_tasks_take(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        handles = [queue.submit(spend, 10) for _ in range(3)]
        ended: list[object] = []

        with pytest.raises(TimeoutError, match="1 tasks had not ended after 25 s"):
            ended.extend(procq.as_completed(handles, 25))

        assert clock.now == 30


def test_attempts_take_what_they_spend_and_nothing_else(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        busy, free = queue.submit(spend, 1.5), queue.submit(echo)
        free.wait()

        assert (busy.history[0].started_at, busy.history[0].run_s) == (0, 1.5)
        assert (free.history[0].started_at, free.history[0].run_s) == (1.5, 0)


def test_retries_wait_exactly_as_long_as_the_backoff_says(clock: testing.FakeClock) -> None:
    task = procq.task(fail, max_attempts=4, backoff=procq.exponential(1, factor=10, cap="1m", jitter="none"))
    with testing.inline(clock=clock) as queue:
        handle = queue.submit(task.spec())
        handle.wait()

    assert [record.started_at for record in handle.history] == [0, 1, 11, 71]


def test_jitter_is_drawn_from_the_seed() -> None:
    def waits(seed: int) -> list[float]:
        with testing.inline(seed=seed) as queue:
            handle = queue.submit(procq.task(fail, max_attempts=5, backoff=procq.exponential(1)).spec())
            handle.wait()
        return [after.started_at - before.ended_at for before, after in pairwise(handle.history)]

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)
    assert all(0 <= wait < 2**number for number, wait in enumerate(waits(1)))


def test_what_became_due_while_the_test_moved_the_clock_is_late(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        late = queue.submit(procq.task(echo, delay=10).spec())
        expired = queue.submit(procq.task(echo, expires=10).spec())
        clock.advance("1m")

        assert late.status is Status.SCHEDULED
        testing.run_for(queue, 0)

        assert (late.status, expired.status) == (Status.SUCCEEDED, Status.CANCELLED)
        assert late.history[0].started_at == 60


@pytest.mark.parametrize("value", [-1, "soon", float("inf")])
def test_the_clock_does_not_go_backwards(clock: testing.FakeClock, value: float) -> None:
    with pytest.raises(errors.UsageError):
        clock.advance(value)
    assert clock.now == 0


# --- time spent in a task ---


def test_a_timeout_ends_the_attempt_at_its_very_instant(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        handle = queue.submit(procq.task(spend, timeout=5).spec(60))

        assert isinstance(handle.exception(), errors.AttemptTimeout)
        assert handle.history[0].run_s == 5
        assert clock.now == 5


def test_an_attempt_may_use_its_whole_timeout() -> None:
    with testing.inline() as queue:
        assert queue.submit(procq.task(spend, timeout=5).spec(5)).result() == "spent"


def test_a_timeout_counts_however_the_clock_was_moved(clock: testing.FakeClock) -> None:
    CALLS["advance"] = lambda: clock.advance(6)
    with testing.inline(clock=clock) as queue:
        handle = queue.submit(procq.task(call, timeout=5).spec("advance"))

        assert isinstance(handle.exception(), errors.AttemptTimeout)


def clean_up(duration: float) -> None:
    try:
        testing.spend(60)
    finally:
        testing.spend(duration)
        CALLS["cleaned"]()


@pytest.mark.parametrize(("duration", "cleaned", "ends_at"), [(1, True, 6), (3, False, 7)])
def test_clean_up_may_take_the_grace_and_no_longer(
    clock: testing.FakeClock,
    duration: float,
    cleaned: bool,  # noqa: FBT001
    ends_at: float,
) -> None:
    seen: list[float] = []
    CALLS["cleaned"] = lambda: seen.append(clock.now)
    with testing.inline(clock=clock, kill_grace=2) as queue:
        handle = queue.submit(procq.task(clean_up, timeout=5).spec(duration))

        assert isinstance(handle.exception(), errors.AttemptTimeout)
        assert bool(seen) == cleaned
        assert clock.now == handle.history[0].ended_at == ends_at


def test_a_task_that_catches_everything_is_killed_when_its_grace_is_over(clock: testing.FakeClock) -> None:
    def stubborn() -> str:
        for _ in range(100):
            try:
                testing.spend(1)
            except BaseException:  # noqa: BLE001 - as bad as tasks can be
                continue
        return "survived"

    CALLS["stubborn"] = stubborn
    with testing.inline(clock=clock) as queue:
        handle = queue.submit(procq.task(call, timeout=5).spec("stubborn"))

        assert isinstance(handle.exception(), errors.AttemptTimeout)
        assert handle.history[0].ended_at == 6


def test_other_things_happen_while_a_task_spends_time(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        busy = queue.submit(spend, 60)
        expiring = queue.submit(procq.task(echo, expires=10).spec())
        seen: list[float] = []
        expiring.add_done_callback(lambda _: seen.append(1))

        busy.wait()

        assert isinstance(expiring.exception(), errors.TaskExpired)
        assert clock.now == 60


def test_the_deadline_of_a_shutdown_comes_while_a_task_spends_time(clock: testing.FakeClock) -> None:
    queue = testing.inline(clock=clock).start()
    busy, waiting = queue.submit(spend, 60), queue.submit(echo)

    report = queue.shutdown(10)

    assert report.cut_off == (busy.id, waiting.id)
    assert [record.outcome for record in busy.history] == ["interrupted"]
    assert clock.now == 10


def test_a_shutdown_returns_by_its_deadline_and_the_grace_whatever_tasks_do(clock: testing.FakeClock) -> None:
    CALLS["cleaned"] = lambda: None
    queue = testing.inline(clock=clock, kill_grace=3).start()
    queue.submit(clean_up, 60)

    queue.shutdown(10)

    assert clock.now == 13


def test_a_task_knows_how_much_time_it_has(clock: testing.FakeClock) -> None:
    def look() -> list[float | None]:
        current = procq.current()
        before = current.remaining
        testing.spend(2)
        return [before, current.remaining, current.deadline]

    CALLS["look"] = look
    clock.advance(100)
    with testing.inline(clock=clock) as queue:
        assert queue.submit(procq.task(call, timeout=5).spec("look")).result() == [5, 3, 105]
        assert queue.submit(call, "look").result() == [None, None, None]


def test_progress_reaches_the_queue() -> None:
    seen: list[dict[int, tuple[float, float]]] = []
    with testing.inline() as queue:

        def tell() -> None:
            procq.current().progress(3, 10)
            seen.append(dict(queue._supervisor.progress))

        CALLS["tell"] = tell
        queue.submit(call, "tell").wait()

    assert [list(progress.values()) for progress in seen] == [[(3, 10)]]


# --- stopping and dying ---


def test_a_task_that_was_cancelled_and_finished_first_has_won() -> None:
    """Nothing can be raised in code that spends no time: as with a worker, its result counts."""
    with testing.inline() as queue:
        handles: list[procq.Handle[object]] = []

        def cancel() -> str:
            return handles[0].cancel()

        CALLS["cancel"] = cancel
        handles.append(queue.submit(call, "cancel"))

        assert handles[0].result() == "stopping"


def test_a_task_that_was_cancelled_and_failed_is_cancelled() -> None:
    with testing.inline() as queue:
        handles: list[procq.Handle[object]] = []

        def cancel_and_fail() -> None:
            handles[0].cancel()
            raise ValueError

        CALLS["cancel"] = cancel_and_fail
        handles.append(queue.submit(procq.task(call, max_attempts=5).spec("cancel")))

        assert isinstance(handles[0].exception(), errors.TaskCancelled)


def test_terminated_from_nowhere_is_taken_for_a_signal_from_outside() -> None:
    def terminate() -> None:
        raise procq.inside.Terminated

    CALLS["terminate"] = terminate
    with testing.inline() as queue:
        error = queue.submit(call, "terminate").exception()

    assert isinstance(error, errors.WorkerCrashed)
    assert error.signal == "SIGTERM"


def test_a_crash_counts_even_when_it_is_caught(clock: testing.FakeClock) -> None:
    def survive() -> str:
        try:
            testing.crash(exit_code=3)
        except BaseException:  # noqa: BLE001 - as bad as tasks can be
            testing.spend(0)
        return "survived"

    CALLS["survive"] = survive
    with testing.inline(clock=clock) as queue:
        error = queue.submit(call, "survive").exception()

    assert isinstance(error, errors.WorkerCrashed)
    assert error.exit_code == 3


def test_an_initializer_runs_when_the_first_task_does_and_again_after_a_death() -> None:
    seen: list[str] = []

    def die_once() -> None:
        seen.append("task")
        if procq.current().attempt == 1:
            testing.crash()

    CALLS["die once"] = die_once
    CALLS["initialize"] = lambda: seen.append("initialized")
    with testing.inline(initializer=call, initargs=("initialize",)) as queue:
        assert seen == []
        queue.submit(procq.task(call, max_attempts=2, backoff=0).spec("die once")).wait()

    assert seen == ["initialized", "task", "initialized", "task"]


# --- standstill ---


def test_a_wait_that_would_never_end_raises() -> None:
    queue = testing.inline()
    handle = queue.submit(echo, 1)
    with pytest.raises(errors.UsageError, match="never end: the queue is not started"):
        handle.wait()

    queue.start()
    queue.pause()
    with pytest.raises(errors.UsageError, match="never end: the queue is paused"):
        handle.wait()
    with pytest.raises(errors.UsageError, match="never end: the queue is paused"):
        list(procq.as_completed([handle]))
    with pytest.raises(errors.UsageError, match="never end: the queue is paused"):
        list(queue.map(echo, [1]))

    queue.resume()
    assert handle.result() == 1
    queue.shutdown()


def test_a_submit_that_would_never_find_room_raises() -> None:
    queue = testing.inline(max_pending=1).start()
    queue.pause()
    queue.submit(echo, 1)

    with pytest.raises(errors.QueueFullError, match="nothing that could run would make room"):
        queue.submit(echo, 2)

    queue.shutdown()


def test_a_wait_with_a_timeout_on_a_paused_queue_just_takes_its_time(clock: testing.FakeClock) -> None:
    with testing.inline(clock=clock) as queue:
        queue.pause()
        handle = queue.submit(echo, 1)

        with pytest.raises(TimeoutError):
            handle.wait(5)

        assert clock.now == 5


# --- callbacks ---


def test_callbacks_that_are_due_have_been_called_when_the_wait_returns() -> None:
    seen: list[object] = []
    with testing.inline() as queue:
        for number in range(50):
            handle = queue.submit(echo, number)
            handle.add_done_callback(lambda ended: seen.append(ended.result()))
            handle.wait()
            assert seen == list(range(number + 1))


# --- the engine as such ---


def test_resize_leaves_one() -> None:
    with testing.inline() as queue:
        queue.resize(5)

        assert queue.stats().workers == {"idle": 1, "busy": 0}
        assert queue.submit(echo, 1).result() == 1
