"""The stream of events, as `Queue(on_event=...)` tells it on every engine (docs/reference/events.md; contract F4)."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

import pytest
from tests.contract import tasks
from tests.contract.drivers import BACKGROUND, Driver, Parameters
from tests.contract.log import Log
from tests.support.leaks import wait_until
from tests.support.story import Story

import procq
from procq import Status, errors
from procq.closing import Mode
from procq.core.task import Cause

#: Seconds since 1970 are floats that are so far apart, and somewhat more.
ROUNDING_S: Final = 1e-5


def told(driver: Driver, story: Story, act: Callable[[procq.Queue], object]) -> None:
    """Do something with a queue, drain it, and check what was told."""
    queue = driver.started(on_event=story)
    act(queue)
    queue.shutdown()
    story.check()


# --- one task ---


def test_a_success_is_told_from_submit_to_end(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    handle = queue.submit(procq.task(tasks.echo, priority=7, max_attempts=3).spec("x" * 100))
    handle.wait()
    queue.shutdown()
    story.check()

    assert story.kinds() == [
        "run.started", "task.submitted", "task.ready", "attempt.started", "attempt.ended", "task.ended", "run.stopping",
        "run.ended",
    ]  # fmt: skip
    (submitted,) = story.of("task.submitted")
    assert submitted["id"] == handle.id
    assert submitted["type"] == "echo"
    assert (submitted["priority"], submitted["max_attempts"], submitted["group"]) == (7, 3, "default")
    assert (submitted["depends_on"], submitted["run_at"]) == ([], None)
    (ended,) = story.of("attempt.ended")
    (record,) = handle.history
    assert (ended["outcome"], ended["attempt"], ended["error"]) == ("ok", 1, None)
    assert ended["run_s"] == record.run_s
    assert ended["result_bytes"] > 100
    assert [event["pid"] for event in story.of("attempt.started")] == [record.pid]
    assert story.of("task.ended")[0].items() >= {"status": "succeeded", "attempts": 1, "cause": None}.items()


def test_the_last_event_counts_all(driver: Driver) -> None:
    story = Story()

    def act(queue: procq.Queue) -> None:
        bad = queue.submit(tasks.fail)
        queue.submit(tasks.echo, bad)
        queue.submit(tasks.work, 0.01)

    told(driver, story, act)

    last = story.events[-1]
    assert last["ev"] == "run.ended"
    assert {status: number for status, number in last["counts"].items() if number} == {
        "succeeded": 1, "failed": 1, "cancelled": 1,
    }  # fmt: skip
    assert last["cpu_s"] == pytest.approx(sum(event["cpu_s"] for event in story.of("attempt.ended")))
    assert last["elapsed"] == pytest.approx(last["t"] - story.events[0]["t"], abs=ROUNDING_S)


def test_instants_are_those_of_the_engine_as_seconds_since_1970(driver: Driver) -> None:
    story = Story()
    before, clock = datetime.now(UTC).timestamp(), driver.now()
    queue = driver.started(on_event=story)
    handle = queue.submit(procq.task(tasks.work, max_attempts=2, delay=0.2).spec(0.05))
    queue.shutdown()

    (record,) = handle.history
    (ended,) = story.of("attempt.ended")
    passed = record.ended_at - clock
    assert before + passed <= ended["t"] + ROUNDING_S
    assert ended["t"] <= datetime.now(UTC).timestamp() + passed
    # Differences are those of the engine's own clock, also where that is a fake one.
    assert ended["t"] - story.events[0]["t"] == pytest.approx(passed, abs=0.05)


# --- why a task was cancelled ---


def cancel_one(queue: procq.Queue) -> None:
    queue.submit(procq.task(tasks.echo, delay=3600).spec()).cancel()


def replace_one(queue: procq.Queue) -> None:
    queue.submit(procq.task(tasks.echo, id="x", delay=3600).spec(1))
    queue.submit(procq.task(tasks.echo, id="x").spec(2), on_conflict="replace")


def cut_off_one(queue: procq.Queue) -> None:
    queue.submit(procq.task(tasks.echo, delay=3600).spec())
    queue.shutdown(mode="finish")


def halt_by_a_failure(queue: procq.Queue) -> None:
    delayed = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    queue.submit(tasks.fail)
    delayed.wait()


#: What leads to each cause; and the parameters of the queue in which it does.
CAUSES: Final[dict[Cause, tuple[Callable[[procq.Queue], object], Parameters]]] = {
    "cancelled": (cancel_one, {}),
    "replaced": (replace_one, {}),
    "expired": (lambda queue: queue.submit(procq.task(tasks.echo, expires=0).spec()), {}),
    "dependency": (lambda queue: queue.submit(tasks.echo, queue.submit(tasks.fail)), {}),
    "not needed": (
        lambda queue: queue.submit(
            procq.task(tasks.echo, run_if="failure", depends_on=[queue.submit(tasks.echo)]).spec()
        ),
        {},
    ),
    "shutdown": (cut_off_one, {}),
    "max_failures": (halt_by_a_failure, {"max_failures": 1}),
    "deadline": (lambda queue: queue.submit(procq.task(tasks.echo, delay=3600).spec()), {"deadline": 0.2}),
}


def test_every_cause_that_the_code_knows_is_told_below() -> None:
    assert CAUSES.keys() == set(get_args(Cause))


@pytest.mark.parametrize("cause", CAUSES)
def test_a_task_that_was_cancelled_is_told_with_its_cause(driver: Driver, cause: Cause) -> None:
    act, more = CAUSES[cause]
    story = Story()
    parameters: Parameters = {**more, "on_event": story}
    queue = driver.started(**parameters)

    act(queue)
    queue.shutdown()

    story.check()
    assert [event["cause"] for event in story.of("task.ended") if event["status"] == "cancelled"] == [cause]
    assert {event["cause"] for event in story.of("task.ended") if event["status"] != "cancelled"} <= {None}


# --- waiting ---


def test_a_delay_is_told_with_its_length(driver: Driver) -> None:
    story = Story()
    told(driver, story, lambda queue: queue.submit(procq.task(tasks.echo, delay=0.05).spec(1)))

    (scheduled,) = story.of("task.scheduled")
    assert scheduled["reason"] == "delay"
    assert scheduled["in_s"] == pytest.approx(0.05, abs=0.001)
    assert story.of("task.submitted")[0]["run_at"] == pytest.approx(scheduled["t"] + scheduled["in_s"], abs=ROUNDING_S)
    assert story.of("task.ready")[0]["t"] >= scheduled["t"] + scheduled["in_s"] - ROUNDING_S


def test_an_instant_to_start_at_is_told_as_such(driver: Driver) -> None:
    story = Story()
    run_at = datetime.now(UTC) + timedelta(hours=1)
    queue = driver.started(on_event=story)
    queue.submit(procq.task(tasks.echo, run_at=run_at).spec(1)).cancel()
    queue.shutdown()
    story.check()

    assert story.kinds()[1:4] == ["task.submitted", "task.scheduled", "task.ended"]
    (scheduled,) = story.of("task.scheduled")
    assert scheduled["reason"] == "run_at"
    assert story.of("task.submitted")[0]["run_at"] == pytest.approx(run_at.timestamp(), abs=5)


def test_E1_what_waits_for_others_is_blocked_until_they_have_ended(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    first = queue.submit(tasks.work, 0.05)
    second = queue.submit(tasks.total, [first])
    queue.shutdown()
    story.check()

    assert story.of("task.submitted", second.id)[0]["depends_on"] == [first.id]
    assert story.kinds(second.id) == [
        "task.submitted", "task.blocked", "task.ready", "attempt.started", "attempt.ended", "task.ended",
    ]  # fmt: skip


def test_E6_tasks_that_a_task_brings_are_told_before_its_end(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    parent = queue.submit(tasks.spawn_two)
    queue.shutdown()
    story.check()

    brought = [event for event in story.of("task.submitted") if event["id"] != parent.id]
    assert sorted(event["type"] for event in brought) == ["echo", "total"]
    assert all(event["seq"] < story.of("attempt.ended", parent.id)[0]["seq"] for event in brought)
    assert set(story.statuses.values()) == {Status.SUCCEEDED}


# --- attempts that fail ---


def test_D3_each_retry_is_told_with_the_error_before_it(driver: Driver) -> None:
    story = Story()
    told(
        driver,
        story,
        lambda queue: queue.submit(procq.task(tasks.fail_before, max_attempts=3, backoff=[0, 0.02]).spec(3)),
    )

    ended = story.of("attempt.ended")
    assert [(event["attempt"], event["outcome"]) for event in ended] == [(1, "error"), (2, "error"), (3, "ok")]
    assert [event["error"] and event["error"]["message"] for event in ended] == [
        "attempt 1 fails", "attempt 2 fails", None,
    ]  # fmt: skip
    assert ended[0]["error"]["type"] == "ValueError"
    assert "in fail_before" in ended[0]["error"]["traceback"]
    (scheduled,) = story.of("task.scheduled")
    assert (scheduled["reason"], scheduled["in_s"]) == ("backoff", pytest.approx(0.02))
    assert len(story.of("task.ready")) == 3


def test_D7_a_task_that_asks_to_be_called_later_is_told_to_have_asked(driver: Driver, log: Log) -> None:
    story = Story()
    told(driver, story, lambda queue: queue.submit(tasks.later_once, log.path, 0.02))

    assert [event["attempt"] for event in story.of("attempt.ended")] == [1, 1], "the first was not charged"
    (scheduled,) = story.of("task.scheduled")
    assert (scheduled["reason"], scheduled["in_s"]) == ("retry_later", pytest.approx(0.02))


def test_D4_a_crash_says_how_the_worker_died(driver: Driver) -> None:
    story = Story()

    def act(queue: procq.Queue) -> None:
        queue.submit(tasks.die, exit_code=3)
        queue.submit(tasks.die, signal_name="SIGKILL")

    told(driver, story, act)

    ended = story.of("attempt.ended")
    assert [(event["outcome"], event["exit_code"], event["signal"]) for event in ended] == [
        ("crash", 3, None), ("crash", None, "SIGKILL"),
    ]  # fmt: skip
    assert "exited with code 3" in ended[0]["error"]["message"]


def test_D5_a_timeout_is_told(driver: Driver) -> None:
    story = Story()
    told(driver, story, lambda queue: queue.submit(procq.task(tasks.work, timeout=0.05).spec(60)))

    (ended,) = story.of("attempt.ended")
    assert ended["outcome"] == "timeout"
    assert ended["run_s"] >= 0.05
    assert [event["status"] for event in story.of("task.ended")] == ["failed"]


# --- ends ---


def test_E4_a_cancellation_says_where_it_began(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    bad = queue.submit(procq.task(tasks.fail, id="bad").spec())
    queue.submit(procq.task(tasks.echo, id="next").spec(bad))
    queue.submit(procq.task(tasks.echo, id="last", depends_on=["next"]).spec())
    queue.shutdown()
    story.check()

    assert [(event["id"], event["status"], event["cause"], event["origin"]) for event in story.of("task.ended")] == [
        ("bad", "failed", None, None),
        ("next", "cancelled", "dependency", "bad"),
        ("last", "cancelled", "dependency", "bad"),
    ]


def test_F3_a_running_task_that_is_cancelled_has_an_attempt_that_is(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    driver.during(queue, lambda handle: handle.cancel(), fn=tasks.meet_to_the_end)
    queue.shutdown()
    story.check()

    assert [event["outcome"] for event in story.of("attempt.ended")] == ["cancelled"]
    assert [event["cause"] for event in story.of("task.ended")] == ["cancelled"]


def test_C3_a_task_that_expired_is_told_to_have(driver: Driver) -> None:
    story = Story()
    told(driver, story, lambda queue: queue.submit(procq.task(tasks.echo, delay=60, expires=0.02).spec(1)).wait())

    assert story.kinds()[1:4] == ["task.submitted", "task.scheduled", "task.ended"]
    assert story.of("task.ended")[0]["cause"] == "expired"


def test_F7_a_replay_is_told_and_what_follows_is_told_anew(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    first = queue.submit(procq.task(tasks.fail, id="first").spec())
    second = queue.submit(procq.task(tasks.echo, id="second", depends_on=[first]).spec())
    second.exception()
    assert queue.replay("first", with_dependents=True) == 1
    second.exception()
    queue.shutdown()
    story.check()

    assert story.kinds("first") == [
        "task.submitted", "task.ready", "attempt.started", "attempt.ended", "task.ended",
        "task.replayed", "task.ready", "attempt.started", "attempt.ended", "task.ended",
    ]  # fmt: skip
    assert story.kinds("second") == [
        "task.submitted", "task.blocked", "task.ended", "task.replayed", "task.blocked", "task.ended",
    ]  # fmt: skip
    assert [event["attempt"] for event in story.of("attempt.started")] == [1, 1]


# --- shutdown ---


@pytest.mark.parametrize(
    ("mode", "status", "outcome"),
    [("drain", Status.SUCCEEDED, "ok"), ("finish", Status.SUCCEEDED, "ok"), ("kill", Status.CANCELLED, "interrupted")],
)
def test_G1_a_shutdown_says_how_hard_it_is_before_what_it_does(
    driver: Driver, mode: Mode, status: Status, outcome: str
) -> None:
    story = Story()
    stopping = threading.Event()

    def listen(event: dict[str, object]) -> None:
        story(event)
        if event["ev"] == "run.stopping":
            stopping.set()

    def stop(_: "procq.Handle[str]") -> None:
        threading.Thread(target=queue.shutdown, kwargs={"mode": mode}, daemon=True).start()
        assert stopping.wait(20)

    queue = driver.started(on_event=listen)
    handle = driver.during(queue, stop, fn=tasks.meet_to_the_end)
    queue.shutdown()
    story.check()

    assert handle.status is status
    (told_of,) = story.of("run.stopping")
    assert (told_of["mode"], told_of["cause"]) == (mode, "shutdown")
    (ended,) = story.of("attempt.ended")
    assert ended["outcome"] == outcome
    assert told_of["seq"] < ended["seq"]
    assert story.events[-1]["ev"] == "run.ended"


def test_G1_a_deadline_that_passes_is_told_as_the_cause(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    queue.submit(tasks.work, 60)
    queue.submit(procq.task(tasks.echo, delay=60).spec())

    queue.shutdown(0.05)
    # With a deadline it may return before a listener on a busy machine has heard everything.
    assert wait_until(lambda: story.events[-1]["ev"] == "run.ended", 20)
    story.check()

    assert [(event["mode"], event["cause"]) for event in story.of("run.stopping")] == [
        ("drain", "shutdown"), ("kill", "deadline"),
    ]  # fmt: skip
    assert {event["cause"] for event in story.of("task.ended")} == {"shutdown"}


def test_G4_a_queue_that_was_never_started_tells_its_whole_life(driver: Driver) -> None:
    story = Story()
    queue = driver.queue(on_event=story)
    queue.submit(tasks.echo, 1)
    queue.shutdown()
    story.check()

    assert story.kinds() == [
        "run.started", "task.submitted", "task.ready", "run.stopping", "task.ended", "run.ended",
    ]  # fmt: skip


def test_every_event_was_told_when_a_drain_returns(driver: Driver) -> None:
    """Also to a listener that takes its time."""
    story = Story()
    slow = threading.Event()

    def listen(event: dict[str, object]) -> None:
        if event["ev"] == "run.stopping":
            slow.wait(0.2)
        story(event)

    queue = driver.started(on_event=listen)
    handles = [queue.submit(tasks.echo, number) for number in range(50)]
    queue.shutdown()
    story.check()

    assert story.events[-1]["ev"] == "run.ended"
    assert story.statuses == {handle.id: Status.SUCCEEDED for handle in handles}


# --- the listener ---


def test_F4_the_listener_is_called_in_a_thread_of_its_own_and_may_use_the_queue(driver: Driver) -> None:
    story = Story()
    threads: set[str] = set()
    more: list[procq.Handle[object]] = []

    def listen(event: dict[str, object]) -> None:
        story(event)
        threads.add(threading.current_thread().name)
        queue.stats()
        if event["ev"] == "task.ended" and not more:
            more.append(queue.submit(tasks.echo, 2))

    queue = driver.started(on_event=listen)
    queue.submit(tasks.echo, 1).wait()
    assert wait_until(lambda: bool(more), 20)
    queue.shutdown()
    story.check()

    assert threads == {"procq-events"}
    assert more[0].result() == 2


def test_F4_a_listener_that_raises_is_logged_once_and_harms_nobody(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    seqs: list[object] = []

    def listen(event: dict[str, object]) -> None:
        seqs.append(event["seq"])
        raise SystemExit("not so fast")

    with caplog.at_level(logging.WARNING, logger="procq"):
        queue = driver.started(on_event=listen)
        handle = queue.submit(tasks.echo, 1)
        queue.shutdown()

    assert handle.result() == 1
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) > 6
    once, in_all = caplog.records
    assert once.exc_info is not None
    assert "not so fast" in caplog.text
    assert in_all.getMessage() == f"on_event raised {len(seqs) - 1} times in all"


async def listen_asynchronously(_event: object) -> None:
    """Never awaited."""


@pytest.mark.parametrize(
    ("on_event", "text"),
    [
        (7, "on_event=7: expected a callable, or a pair"),
        ((print, "log"), "expected a callable, or a pair"),
        ((print, 7), "expected a callable, or a pair"),
        ((print, ["log"], 3), "expected a callable, or a pair"),
        ((print, ["lgo"]), "on_event asks for 'lgo': only task.held, attempt.progress, log can be asked for"),
        ((print, ["task.ready"]), "on_event asks for 'task.ready': only"),
        ((print, [None]), "on_event asks for None: only"),
        (listen_asynchronously, "is an async function, which nobody would await"),
    ],
)
def test_C3_what_is_no_listener_is_refused(driver: Driver, on_event: Any, text: str) -> None:  # noqa: ANN401 - anything
    with pytest.raises(errors.UsageError) as caught:
        driver.queue(on_event=on_event)

    assert text in str(caught.value)


# --- what must be asked for ---


def test_nothing_opt_in_is_told_unasked(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=story, limits={"progress": 1}, capture=True)
    queue.pause()
    queue.submit(tasks.progress, 3)
    queue.submit(tasks.write, "out", "err")
    queue.resume()
    queue.shutdown()
    story.check()

    assert {event["ev"] for event in story.events} == {
        "run.started", "run.stopping", "run.ended", "task.submitted", "task.ready", "task.ended", "attempt.started",
        "attempt.ended",
    } | {event["ev"] for event in story.events if event["ev"].startswith("worker.")}  # fmt: skip


def test_H3_progress_is_told_to_those_who_ask(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=(story, ["attempt.progress"]))
    handle = queue.submit(tasks.progress, 4)
    queue.submit(tasks.progress_without_end)
    queue.shutdown()
    story.check()

    told_of = story.of("attempt.progress", handle.id)
    assert (told_of[0]["done"], told_of[0]["total"]) == (1.0, 4.0), "the first is always sent"
    assert [event["done"] for event in told_of] == sorted(event["done"] for event in told_of)
    assert {event["total"] for event in story.of("attempt.progress")} == {4.0, None}, "JSON knows no infinity"


def test_H4_what_was_captured_is_told_after_the_attempt(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=(story, ["log"]), capture=True)
    handle = queue.submit(tasks.write, "out", "err")
    queue.submit(procq.task(tasks.write_attempt, max_attempts=2, backoff=0).spec())
    queue.shutdown()
    story.check()

    assert story.kinds(handle.id)[-4:] == ["attempt.ended", "log", "log", "task.ended"]
    assert [(event["stream"], event["text"], event["attempt"]) for event in story.of("log")] == [
        ("stdout", "out", 1), ("stderr", "err", 1), ("stdout", "attempt 1", 1), ("stdout", "attempt 2", 2),
    ]  # fmt: skip


def test_B4_the_first_task_that_its_limit_holds_back_is_told(driver: Driver) -> None:
    driver.needs(BACKGROUND)
    story = Story()
    queue = driver.started(on_event=(story, ["task.held"]), limits={"meet": 1})
    held: list[procq.Handle[object]] = []

    def add(_: "procq.Handle[str]") -> None:
        held.extend(queue.submit(procq.task(tasks.echo, type="meet").spec(number)) for number in range(3))

    driver.during(queue, add, type="meet")
    queue.shutdown()
    story.check()

    told_of = story.of("task.held")
    assert [(event["id"], event["reason"]) for event in told_of][:1] == [(held[0].id, "limit")]
    assert len({event["id"] for event in told_of}) == len(told_of), "each once"


def test_D8_the_first_task_that_its_breaker_holds_back_is_told(driver: Driver) -> None:
    story = Story()
    breaker = {"flaky": procq.Breaker(failures=1, cool_down=60)}
    queue = driver.started(on_event=(story, ["task.held"]), breaker=breaker)
    queue.submit(procq.task(tasks.fail, type="flaky").spec()).wait()
    held = [queue.submit(procq.task(tasks.echo, type="flaky").spec(number)) for number in range(2)]
    queue.submit(tasks.echo, 1).wait()
    queue.shutdown(mode="kill")
    story.check()

    assert [(event["id"], event["reason"]) for event in story.of("task.held")] == [(held[0].id, "breaker")]


def test_H1_the_first_task_that_a_pause_holds_back_is_told(driver: Driver) -> None:
    story = Story()
    queue = driver.started(on_event=(story, ["task.held"]))
    queue.pause()
    queue.submit(tasks.echo, 1)
    urgent = queue.submit(procq.task(tasks.echo, priority=1).spec(2))
    queue.submit(tasks.echo, 3)
    queue.resume()
    queue.shutdown()
    story.check()

    assert [(event["id"], event["reason"]) for event in story.of("task.held")] == [
        ("#0", "paused"), (urgent.id, "paused"),
    ]  # fmt: skip
