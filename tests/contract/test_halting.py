"""Queues that end by themselves: too many failures, or a deadline (contract G6)."""

import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract import tasks
from tests.contract.drivers import BACKGROUND, Driver
from tests.contract.log import Log

import procq
from procq import Status, errors, testing

if TYPE_CHECKING:
    from collections.abc import Callable

HALTED_BY_ONE = r"^halted: 1 task failed \(max_failures=1\)$"

# --- max_failures: a number ---


def test_G6_the_failure_that_is_too_many_lets_nothing_else_start(driver: Driver, log: Log) -> None:
    queue = driver.queue(max_failures=2)
    for text in ("first", "second"):
        queue.submit(tasks.note, log.path, text)
        queue.submit(tasks.fail)
    never = [queue.submit(tasks.note, log.path, "never") for _ in range(20)]
    queue.start()

    never[-1].wait()

    assert log.lines == ["first", "second"]
    for handle in never:
        assert handle.status is Status.CANCELLED
        with pytest.raises(errors.TaskCancelled, match="cut off, as its queue halted: too many tasks failed"):
            handle.result()
    report = queue.shutdown()
    assert report.halted == "max_failures"
    assert report.cut_off == tuple(handle.id for handle in never)
    assert (report.drained, report.succeeded, report.failed, report.cancelled) == (False, 2, 2, 20)


def test_G6_fewer_failures_change_nothing(driver: Driver) -> None:
    queue = driver.started(max_failures=3)
    handles = [queue.submit(tasks.fail), queue.submit(tasks.echo, 1), queue.submit(tasks.fail)]
    handles.append(queue.submit(tasks.echo, 2))

    report = queue.shutdown()

    assert handles[3].result() == 2
    assert report == (True, 2, 2, 0, (), None)


def test_G6_retries_are_no_failures(driver: Driver) -> None:
    queue = driver.started(max_failures=1)
    flaky = [queue.submit(procq.task(tasks.fail_before, max_attempts=3, backoff=0).spec(3)) for _ in range(3)]

    report = queue.shutdown()

    assert [handle.result() for handle in flaky] == ["done"] * 3
    assert report.halted is None


def test_G6_cancelled_tasks_are_no_failures(driver: Driver) -> None:
    queue = driver.queue(max_failures=2)
    failing = queue.submit(tasks.fail)
    dependents = [queue.submit(tasks.echo, failing) for _ in range(3)]
    queue.submit(procq.task(tasks.echo, id="unwanted").spec())
    queue.cancel("unwanted")
    late = queue.submit(procq.task(tasks.echo, expires=0).spec())
    queue.start()

    report = queue.shutdown()

    assert report.halted is None
    assert report.drained
    assert [handle.status for handle in (*dependents, late)] == [Status.CANCELLED] * 4


def test_G6_what_waits_for_a_retry_is_cut_off(driver: Driver) -> None:
    queue = driver.queue(max_failures=1)
    flaky = queue.submit(procq.task(tasks.fail, max_attempts=2, backoff=3600).spec())
    queue.submit(tasks.fail)
    queue.start()

    with pytest.raises(errors.TaskCancelled, match="max_failures"):
        flaky.result()
    assert [record.outcome for record in flaky.history] == ["error"]
    assert queue.shutdown().cut_off == (flaky.id,)


def test_G6_dependents_of_the_failure_are_cancelled_for_that_and_others_for_the_halt(driver: Driver) -> None:
    queue = driver.queue(max_failures=1)
    failing = queue.submit(tasks.fail, "no")
    dependent = queue.submit(tasks.echo, failing)
    clean_up = queue.submit(procq.task(tasks.echo, depends_on=[failing], run_if="done").spec())
    alert = queue.submit(procq.task(tasks.echo, depends_on=[failing], run_if="failure").spec())
    delayed = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    blocked = queue.submit(tasks.echo, delayed)
    queue.start()

    report = queue.shutdown()

    with pytest.raises(errors.DependencyFailed):
        dependent.result()
    for handle in (clean_up, alert, delayed, blocked):
        with pytest.raises(errors.TaskCancelled, match="max_failures"):
            handle.result()
    assert report.cut_off == tuple(handle.id for handle in (clean_up, alert, delayed, blocked))


def test_G6_after_a_halt_nothing_is_taken_and_it_is_said_why(driver: Driver) -> None:
    queue = driver.started(max_failures=1)
    failed = queue.submit(procq.task(tasks.fail, id="bad").spec())
    failed.wait()
    spec: procq.TaskSpec[object] = procq.task(tasks.echo).spec(1)

    calls: list[Callable[[], object]] = [
        lambda: queue.submit(tasks.echo, 1),
        lambda: queue.submit(spec),
        lambda: queue.submit_many([spec]),
        lambda: queue.replay("bad"),
        queue.replay,
        queue.start,
    ]
    for call in calls:
        with pytest.raises(errors.QueueClosedError, match=HALTED_BY_ONE):
            call()
    queue.shutdown()
    with pytest.raises(errors.QueueClosedError, match=HALTED_BY_ONE):
        queue.submit(tasks.echo, 1)


def test_G6_dead_letters_are_kept_and_may_be_read_and_purged(driver: Driver) -> None:
    queue = driver.started(max_failures=2)
    for name in ("one", "two"):
        queue.submit(procq.task(tasks.fail, id=name).spec(name))
    queue.wait("two")

    assert [(letter.id, letter.message) for letter in queue.dead_letters()] == [("one", "one"), ("two", "two")]
    assert queue.purge("one") == 1
    assert queue.shutdown().failed == 2
    assert [letter.id for letter in queue.dead_letters()] == ["two"]


def test_G6_a_replayed_dead_letter_is_no_failure_until_it_fails_again(driver: Driver) -> None:
    queue = driver.started(max_failures=2)
    first = queue.submit(tasks.fail)
    first.wait()
    queue.replay(first)
    first.wait()

    assert queue.submit(tasks.echo, 1).result() == 1
    assert queue.shutdown().halted is None


def test_G6_callbacks_of_what_was_cut_off_are_called(driver: Driver) -> None:
    queue = driver.queue(max_failures=1)
    bad = queue.submit(tasks.fail)
    waiting = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    told: list[tuple[str, Status]] = []
    refused: list[str] = []

    def note(handle: "procq.Handle[Any]") -> None:
        told.append((handle.id, handle.status))
        try:
            queue.submit(tasks.echo)
        except errors.QueueClosedError as error:
            refused.append(str(error))

    for handle in (bad, waiting):
        handle.add_done_callback(note)
    queue.start()
    queue.shutdown()

    assert told == [(bad.id, Status.FAILED), (waiting.id, Status.CANCELLED)]
    assert refused == ["halted: 1 task failed (max_failures=1)"] * 2


def test_G6_a_blocked_submit_is_released(driver: Driver) -> None:
    queue = driver.started(max_failures=1, max_pending=1)

    def submit_many() -> None:
        queue.submit(tasks.fail)
        for _ in range(3):  # at least one of them finds the queue full, with nothing that would make room
            queue.submit(procq.task(tasks.echo, delay=3600).spec())

    with pytest.raises(errors.QueueClosedError, match=HALTED_BY_ONE):
        submit_many()


def test_G6_as_completed_ends(driver: Driver) -> None:
    queue = driver.queue(max_failures=1)
    handles = [queue.submit(tasks.echo, 1), queue.submit(tasks.fail)]
    handles += [queue.submit(tasks.echo, 2) for _ in range(3)]
    queue.start()

    ended = [handle.status for handle in procq.as_completed(handles)]

    assert ended[:2] == [Status.SUCCEEDED, Status.FAILED]
    assert ended[2:] == [Status.CANCELLED] * 3


def test_G6_items_of_a_map_are_tasks_of_their_own(driver: Driver) -> None:
    """A chunk would hide how many have failed, and run the rest of itself after a failure."""
    queue = driver.started(max_failures=1)

    results = queue.map(tasks.fail_at_three, range(100), buffersize=100)

    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    with pytest.raises(errors.TaskCancelled, match="max_failures"):
        next(results)
    with pytest.raises(errors.UsageError, match="max_failures counts single items"):
        queue.map(tasks.echo, [1], chunksize=2)


def test_G6_leaving_with_after_a_halt_is_as_ever(driver: Driver) -> None:
    with driver.queue(max_failures=1) as queue:
        queue.submit(tasks.fail).wait()
        assert repr(queue).startswith("<Queue halted, ")

    assert queue.shutdown() == (True, 0, 1, 0, (), "max_failures")


def test_G6_a_halt_is_logged_so_that_it_is_seen_by_who_asks_for_nothing(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    with driver.queue(max_failures=1) as queue:
        assert queue.halted is None
        queue.submit(tasks.fail).wait()
        assert queue.halted == "max_failures"

    (record,) = [record for record in caplog.records if record.name.startswith("procq")]
    assert record.getMessage() == "a queue has ended by itself: halted: 1 task failed (max_failures=1)"


def test_G6_a_paused_queue_halts_too(driver: Driver) -> None:
    queue = driver.started(max_failures=1)

    def pause_and_submit(_: "procq.Handle[str]") -> None:
        queue.pause()
        waiting.append(queue.submit(tasks.echo))

    waiting: list[procq.Handle[Any]] = []
    driver.during(queue, pause_and_submit, fn=tasks.meet_and_fail)

    with pytest.raises(errors.TaskCancelled, match="max_failures"):
        waiting[0].result()
    queue.resume()
    assert queue.shutdown().halted == "max_failures"


def test_G6_a_halt_amid_a_drain_ends_it(driver: Driver) -> None:
    queue = driver.queue(max_failures=1)
    queue.submit(tasks.fail)
    delayed = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    queue.start()

    report = queue.shutdown()

    assert (report.halted, report.cut_off) == ("max_failures", (delayed.id,))


# --- while others run ---


def test_G6_finish_lets_what_runs_end(driver: Driver, log: Log) -> None:
    queue = driver.started(workers=2, max_failures=1)
    waiting: list[procq.Handle[Any]] = []

    def fail(_: "procq.Handle[str]") -> None:
        waiting.append(queue.submit(procq.task(tasks.note, delay=3600).spec(log.path)))
        queue.submit(tasks.fail).wait()
        waiting[0].wait()

    met = driver.during(queue, fail)

    assert met.result() == "met"
    assert queue.shutdown() == (False, 1, 1, 1, (waiting[0].id,), "max_failures")
    assert log.lines == []


def test_G6_finish_retries_nothing(driver: Driver) -> None:
    queue = driver.started(workers=2, max_failures=1)

    met = driver.during(
        queue, lambda _: queue.submit(tasks.fail).wait(), fn=tasks.meet_and_fail, max_attempts=5, backoff=0
    )

    with pytest.raises(errors.TaskCancelled, match="max_failures"):
        met.result()
    assert [record.outcome for record in met.history] == ["error"]


def test_G6_kill_stops_what_runs_uncharged(driver: Driver) -> None:
    queue = driver.started(workers=2, max_failures=1, on_failure="kill")

    def fail(met: "procq.Handle[str]") -> None:
        queue.submit(tasks.fail).wait()
        met.wait()  # else it might be let go before it is asked to stop, and win

    met = driver.during(queue, fail, max_attempts=5)

    with pytest.raises(errors.TaskCancelled, match="max_failures"):
        met.result()
    assert [record.outcome for record in met.history] == ["interrupted"]
    assert met.attempts == 0, "an interruption is not charged (G2)"
    assert queue.shutdown().halted == "max_failures"


def test_G6_a_shutdown_may_be_harsher_than_the_halt(driver: Driver) -> None:
    queue = driver.started(workers=2, max_failures=1)
    enders: list[threading.Thread] = []

    def fail_and_kill(met: "procq.Handle[str]") -> None:
        queue.submit(tasks.fail).wait()
        enders.append(threading.Thread(target=queue.shutdown, args=(0, "kill")))
        enders[0].start()
        met.wait()

    met = driver.during(queue, fail_and_kill)
    enders[0].join(20)

    with pytest.raises(errors.TaskCancelled, match="shutdown"):
        met.result()


def test_G4_a_halted_queue_that_is_dropped_kills_what_it_still_runs(driver: Driver) -> None:
    queue = driver.started(workers=2, max_failures=1)
    running = queue.submit(tasks.work, 60)
    queue.submit(tasks.fail).wait()
    driver.forget(queue)

    with pytest.warns(ResourceWarning, match="without shutdown"):
        del queue

    with pytest.raises(errors.TaskCancelled):
        running.result(20)


# --- max_failures: a share ---


def submit_mixed(queue: procq.Queue, pattern: str) -> "list[procq.Handle[Any]]":
    return [queue.submit(tasks.fail if letter == "x" else tasks.echo) for letter in pattern]


@pytest.mark.parametrize(
    ("pattern", "ended"),
    [
        ("." * 10 + "x" * 9 + "x" + "." * 5, 20),  # at the failure that makes it half of twenty
        ("x" * 10 + "." * 10 + "." * 5, 20),  # at the success that makes them twenty
        ("." * 20 + "x" * 30, 40),
    ],
)
def test_G6_a_share_halts_once_twenty_have_ended(driver: Driver, pattern: str, ended: int) -> None:
    queue = driver.queue(max_failures="50%")
    handles = submit_mixed(queue, pattern)
    queue.start()
    handles[-1].wait()

    report = queue.shutdown()

    assert report.halted == "max_failures"
    assert report.succeeded + report.failed == ended
    assert report.cut_off == tuple(handle.id for handle in handles[ended:])


def test_G6_a_share_that_is_not_reached_changes_nothing(driver: Driver) -> None:
    queue = driver.started(max_failures="50%")
    submit_mixed(queue, "." * 21 + "x" * 20)

    report = queue.shutdown()

    assert report == (True, 21, 20, 0, (), None)


@pytest.mark.parametrize(("pattern", "halted"), [("x.x", "max_failures"), ("x..", None)])
def test_G6_a_share_of_few_is_judged_at_the_end(driver: Driver, pattern: str, halted: str | None) -> None:
    queue = driver.started(max_failures="50%")
    submit_mixed(queue, pattern)

    report = queue.shutdown()

    assert (report.drained, report.halted) == (True, halted)


def test_G6_tasks_that_were_cancelled_do_not_thin_a_share_out(driver: Driver) -> None:
    """As an alert that was not needed, of which each success leaves one."""
    queue = driver.queue(max_failures="50%")
    for handle in submit_mixed(queue, "." * 10 + "x" * 10):
        queue.submit(procq.task(tasks.echo, depends_on=[handle], run_if="failure", priority=-1).spec())
    queue.start()

    report = queue.shutdown()

    assert report.halted == "max_failures"
    assert (report.succeeded, report.failed, report.cancelled) == (10, 10, 20)


def test_D11_workers_that_cannot_start_are_told_before_the_halt_that_follows(driver: Driver) -> None:
    queue = driver.queue(max_failures=1, initializer=tasks.fail_to_begin)
    handles = [queue.submit(tasks.echo), queue.submit(tasks.echo)]
    queue.start()

    for handle in handles:
        with pytest.raises(errors.WorkerStartError, match="no such device"):
            handle.result()
    with pytest.raises(errors.WorkerStartError, match="no such device"):
        queue.submit(tasks.echo)
    assert queue.shutdown() == (True, 0, 2, 0, (), "max_failures")


def test_E6_a_spawn_that_is_refused_is_a_failure(driver: Driver, log: Log) -> None:
    queue = driver.queue(max_failures=1)
    good, bad = queue.submit(tasks.spawn_into, "default"), queue.submit(tasks.spawn_into, "nowhere")
    never = queue.submit(tasks.note, log.path, "never")
    queue.start()

    never.wait()

    assert (good.status, bad.status, never.status) == (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
    assert log.lines == []


# --- the deadline ---


def test_G6_at_the_deadline_what_runs_is_stopped_and_the_rest_cancelled(driver: Driver, log: Log) -> None:
    queue = driver.queue(deadline="1s")
    running = queue.submit(tasks.work_and_note, log.path, 60)
    ready = queue.submit(tasks.note, log.path)
    delayed = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    blocked = queue.submit(tasks.echo, delayed)
    before = driver.now()
    queue.start()

    blocked.wait()
    running.wait()

    assert before + 1 <= driver.now() < before + 10
    for handle in (running, ready, delayed, blocked):
        with pytest.raises(errors.TaskCancelled, match="cut off: the run's deadline has passed"):
            handle.result()
    assert log.lines == ["finally"]
    assert [record.outcome for record in running.history] == ["interrupted"]
    assert running.attempts == 0, "an interruption is not charged (G2)"
    with pytest.raises(errors.QueueClosedError, match=r"^the run's deadline has passed$"):
        queue.submit(tasks.echo)
    report = queue.shutdown()
    assert (report.drained, report.halted) == (False, "deadline")
    assert report.cut_off == tuple(handle.id for handle in (running, ready, delayed, blocked))


def test_G6_what_will_not_stop_is_killed_after_the_grace(driver: Driver) -> None:
    queue = driver.started(deadline=0.2, kill_grace=0.1)
    handle = queue.submit(tasks.work_and_swallow_again, 60)
    before = driver.now()

    report = queue.shutdown()

    assert handle.status is Status.CANCELLED
    assert report.halted == "deadline"
    assert driver.now() < before + 10


def test_G6_a_deadline_may_be_an_instant_of_the_wall_clock(driver: Driver) -> None:
    queue = driver.queue(deadline=datetime.now(UTC) + timedelta(seconds=1))
    handle = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    before = driver.now()
    queue.start()

    report = queue.shutdown()

    assert report.cut_off == (handle.id,)
    assert driver.now() < before + 10


def test_G6_a_deadline_that_has_passed_at_the_start_cuts_off_everything(driver: Driver, log: Log) -> None:
    queue = driver.queue(deadline=datetime.now(UTC) - timedelta(seconds=1))
    handle = queue.submit(tasks.note, log.path)
    queue.start()

    assert queue.shutdown() == (False, 0, 0, 1, (handle.id,), "deadline")
    assert log.lines == []


def test_G6_a_deadline_that_is_not_needed_is_not_waited_for(driver: Driver) -> None:
    queue = driver.started(deadline=3600)
    handle = queue.submit(tasks.echo, 1)
    before = driver.now()

    assert queue.shutdown() == (True, 1, 0, 0, (), None)
    assert driver.now() < before + 60
    assert handle.result() == 1


def test_G6_the_deadline_of_a_shutdown_may_come_first(driver: Driver) -> None:
    queue = driver.started(deadline=3600)
    handle = queue.submit(procq.task(tasks.echo, delay=3600).spec())

    report = queue.shutdown("100ms")

    assert report == (False, 0, 0, 1, (handle.id,), None)
    with pytest.raises(errors.TaskCancelled, match="shutdown"):
        handle.result()


def test_G6_a_blocked_submit_is_released_by_the_deadline(driver: Driver) -> None:
    queue = driver.started(deadline=0.2, max_pending=1)
    queue.submit(procq.task(tasks.echo, delay=3600).spec())

    with pytest.raises(errors.QueueClosedError, match="deadline"):
        queue.submit(tasks.echo)


def test_G6_an_idle_queue_is_over_at_its_deadline(driver: Driver) -> None:
    driver.needs(BACKGROUND)
    queue = driver.started(deadline=0.5)
    queue.submit(tasks.echo).wait()

    assert queue._supervisor._all_closed.wait(20), "its workers leave though nobody shuts it down"
    assert not any(queue.stats().workers.values())
    assert queue.shutdown() == (True, 1, 0, 0, (), "deadline")


def test_G6_too_many_failures_and_then_the_deadline(driver: Driver) -> None:
    queue = driver.started(workers=2, max_failures=1, deadline=1, kill_grace=0.1)
    running = queue.submit(tasks.work, 60)
    bad = queue.submit(tasks.fail)
    delayed = queue.submit(procq.task(tasks.echo, delay=3600).spec())

    report = queue.shutdown()

    assert bad.status is Status.FAILED
    assert (report.halted, report.cut_off) == ("max_failures", (running.id, delayed.id))
    with pytest.raises(errors.TaskCancelled, match="deadline"):
        running.result()
    with pytest.raises(errors.TaskCancelled, match="max_failures"):
        delayed.result()


def test_G6_a_deadline_counts_from_the_start_on_the_queue_s_clock() -> None:
    clock = testing.FakeClock()
    queue = testing.inline(clock=clock, deadline="10s")
    early = queue.submit(procq.task(tasks.echo, delay="14s").spec("in time"))
    late = queue.submit(procq.task(tasks.echo, delay="15s").spec("too late"))
    clock.advance("5s")
    queue.start()

    assert early.result() == "in time"
    with pytest.raises(errors.TaskCancelled, match="deadline"):
        late.result()
    assert clock.now == 15
    queue.shutdown()


def test_G6_a_submit_after_the_deadline_is_refused_before_anybody_looked() -> None:
    clock = testing.FakeClock()
    queue = testing.inline(clock=clock, deadline=10).start()
    waiting = queue.submit(tasks.echo)
    clock.advance(10)

    with pytest.raises(errors.QueueClosedError, match="deadline"):
        queue.submit(tasks.echo)

    assert waiting.status is Status.CANCELLED
    assert queue.shutdown().cut_off == (waiting.id,)


# --- what cannot be ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_failures", 0),
        ("max_failures", "5"),
        ("max_failures", 1.5),
        ("on_failure", "stop"),
        ("on_failure", None),
        ("deadline", -1),
        ("deadline", "soon"),
    ],
)
def test_G6_what_cannot_be_is_refused_with_the_field(driver: Driver, field: str, value: Any) -> None:  # noqa: ANN401
    with pytest.raises(errors.UsageError, match=f"^{field}="):
        driver.queue(**{field: value})
