"""The scheduler: which calls lead to what has to be done, clause by clause (contract B, D, E, F, G)."""

from typing import TYPE_CHECKING

import pytest
from tests.core.hand import PAUSE_S, FixedRules, Hand, RuleArguments

from procq.core.records import AttemptRecord
from procq.core.states import Status
from procq.core.task import Task
from procq.errors import DuplicateTaskError, UnknownTaskError
from procq.outcome import OUTCOMES, Ended
from procq.retry import Backoff, as_backoff

if TYPE_CHECKING:
    from procq.outcome import Outcome

BLOCKED, SCHEDULED, READY, RUNNING = Status.BLOCKED, Status.SCHEDULED, Status.READY, Status.RUNNING
SUCCEEDED, FAILED, CANCELLED = Status.SUCCEEDED, Status.FAILED, Status.CANCELLED

ERROR = ("ValueError", "Exception", "BaseException")


# --- A4: the end of a task ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        ("ok", SUCCEEDED),
        ("error", FAILED),
        ("timeout", FAILED),
        ("crash", FAILED),
        ("memory", FAILED),
        ("lost", FAILED),
        ("cancelled", CANCELLED),
        ("interrupted", READY),
    ],
)
def test_D2_each_outcome_of_the_only_attempt_ends_the_task_as_it_says(outcome: "Outcome", status: Status) -> None:
    hand = Hand()
    hand.submit("a")
    hand.start()

    assert hand.end("a", outcome) is status
    assert hand.settled() == (["a"] if status.terminal else [])


def test_A4_each_end_is_told_once() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a")
    hand.submit("c", "a", "b")

    hand.run("a", "error")

    assert hand.settled() == ["a", "b", "c"]
    assert hand.settled() == []


def test_D1_a_late_report_is_dropped_and_counted() -> None:
    hand = Hand()
    task = hand.submit("a", max_attempts=2)
    hand.start()
    first = task.fence
    hand.end("a", "crash")
    hand.pass_to(PAUSE_S)
    hand.start()

    accepted = hand.scheduler.end(task, first, Ended("ok", 0, 0), hand.now)

    assert not accepted
    assert task.status is RUNNING
    assert hand.scheduler.dropped_late == 1
    assert hand.end("a", "ok") is SUCCEEDED
    assert not hand.scheduler.end(task, task.fence, Ended("error", 0, 0), hand.now)
    assert task.status is SUCCEEDED


def test_D2_the_history_keeps_each_attempt_with_its_number() -> None:
    hand = Hand()
    task = hand.submit("a", max_attempts=3, backoff=as_backoff(0))
    outcomes: list[Outcome] = ["interrupted", "crash", "error", "ok"]
    for outcome in outcomes:
        hand.run("a", outcome)

    records = task.records()

    assert [(record.attempt, record.outcome) for record in records] == [
        (1, "interrupted"),  # not charged, so the next one has its number
        (1, "crash"),
        (2, "error"),
        (3, "ok"),
    ]
    assert task.attempts == 3


# --- D2: an attempt that returned ---------------------------------------------------------------------

RUN = (1.0, 3.0, 4711, 0.5, 1 << 20)


def an_end(hand: Hand, how: str) -> Task:
    """Submit a task, have it succeed in the way that is named, and return it."""
    task = hand.submit("a", explicit=False)
    task.owner = True
    if how == "sent ahead":
        hand.scheduler.send_ahead(task)
        assert hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)
        return hand.checked(task)
    hand.scheduler.start(task, 1.0)
    if how == "running":
        assert hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)
    else:
        started_at, ended_at, pid, cpu_s, peak_rss_bytes = RUN
        ended = Ended("ok", started_at, ended_at, value=b"result", pid=pid, cpu_s=cpu_s, peak_rss_bytes=peak_rss_bytes)
        assert hand.scheduler.end(task, 1, ended, 3.0)
    return hand.checked(task)


@pytest.mark.parametrize("how", ["running", "sent ahead", "told by end"])
def test_D2_a_success_is_recorded_alike_however_it_is_told(how: str) -> None:
    hand = Hand()

    task = an_end(hand, how)

    assert (task.status, task.value, task.payload) == (SUCCEEDED, b"result", b"")
    assert (task.fence, task.attempts, task.started_at, task.first_started_at) == (1, 1, 1.0, 1.0)
    assert task.records() == (AttemptRecord(1, "ok", 1.0, 3.0, 4711, None, None, 0.5, 1 << 20, None, None, None),)
    assert hand.settled() == ["a"]
    assert (hand.scheduler.open, hand.scheduler.open_bytes, hand.scheduler.counts[SUCCEEDED]) == (0, 0, 1)


def test_D2_a_success_after_failures_stands_last_in_the_history_with_its_number() -> None:
    hand = Hand()
    task = hand.submit("a", max_attempts=3, backoff=as_backoff(0))
    hand.run("a", "crash")
    hand.run("a", "interrupted")
    hand.start()

    assert hand.scheduler.succeed(task, 3, b"result", RUN, 3.0)

    assert [(record.attempt, record.outcome) for record in task.records()] == [
        (1, "crash"),
        (2, "interrupted"),
        (2, "ok"),
    ]


@pytest.mark.parametrize("fence", [0, 1, 3])
def test_D1_a_task_sent_ahead_succeeds_only_by_its_next_attempt(fence: int) -> None:
    hand = Hand()
    task = hand.submit("a")
    hand.run("a", "interrupted")
    hand.scheduler.send_ahead(task)

    accepted = hand.scheduler.succeed(task, fence, b"result", RUN, 3.0)

    assert not accepted
    assert (task.status, task.fence, task.value, task.ran) == (READY, 1, None, None)
    assert hand.scheduler.dropped_late == 1
    hand.scheduler.check_invariants()
    assert hand.scheduler.succeed(task, 2, b"result", RUN, 3.0)


def test_D1_a_task_that_was_taken_back_does_not_succeed() -> None:
    hand = Hand()
    task = hand.submit("a")
    hand.scheduler.send_ahead(task)
    hand.scheduler.take_back(task)

    assert not hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)

    assert hand.checked(task).status is READY
    assert hand.start() == "a"


def test_D1_an_end_is_not_taken_for_that_of_a_task_sent_ahead() -> None:
    """`end` is for attempts that the driver saw begin."""
    hand = Hand()
    task = hand.submit("a")
    hand.scheduler.send_ahead(task)

    assert not hand.scheduler.end(task, 1, Ended("ok", 0, 0), 0)

    assert hand.checked(task).status is READY


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("explicit", [False, True])
def test_E3_a_success_unblocks_dependents_also_from_ahead(*, explicit: bool, is_ahead: bool) -> None:
    hand = Hand()
    task = hand.submit("a", explicit=explicit)
    task.owner = True
    hand.submit("b", "a")
    if is_ahead:
        hand.scheduler.send_ahead(task)
    else:
        hand.start()

    hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)

    hand.scheduler.check_invariants()
    assert hand.statuses("ab") == [SUCCEEDED, READY]


def test_B4_a_success_gives_back_the_place_of_its_type() -> None:
    hand = Hand(limits={"video": 1})
    first = hand.submit("v0", type_name="video")
    hand.submit("v1", type_name="video")
    hand.start()
    assert hand.start() is None

    hand.scheduler.succeed(first, 1, b"result", RUN, 3.0)

    assert hand.start() == "v1"


def test_B4_a_success_from_ahead_leaves_the_places_of_its_type_as_they_were() -> None:
    hand = Hand(limits={"video": 1})
    first = hand.submit("v0", type_name="video")
    hand.submit("v1", type_name="video")
    hand.scheduler.send_ahead(first)

    hand.scheduler.succeed(first, 1, b"result", RUN, 3.0)

    assert hand.scheduler.gates["video"].taken == 0
    assert hand.start() == "v1"


def test_C3_a_success_from_ahead_was_a_start_in_time() -> None:
    hand = Hand()
    task = hand.submit("a", expires_s=2)
    hand.scheduler.send_ahead(task)

    hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)
    hand.pass_to(5)

    assert task.status is SUCCEEDED
    assert hand.scheduler.next_due() is None


def test_F5_a_success_that_nobody_holds_is_forgotten_and_one_with_an_id_is_kept() -> None:
    hand = Hand()
    for task_id, explicit in (("#0", False), ("own", True)):
        task = hand.submit(task_id, explicit=explicit)
        hand.start()
        hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)

    assert list(hand.scheduler.tasks) == ["own"]
    assert hand.settled() == ["#0", "own"]


def test_F5_a_held_success_with_an_id_is_kept_for_the_retention_and_can_be_compared_until_then() -> None:
    hand = Hand(retention=(10, 100))
    task = hand.make("own")
    task.owner = True
    task.payload = b"call"
    hand.scheduler.accept((task,), 0)
    hand.start()

    hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)

    assert hand.checked(task).payload == b"call"
    hand.scheduler.prune(102.9)
    assert "own" in hand.scheduler.tasks
    hand.scheduler.prune(103.0)
    assert "own" not in hand.scheduler.tasks


def test_F5_a_held_success_lets_go_of_what_it_needed() -> None:
    hand = Hand()
    hand.submit("need")
    task = hand.submit("a", "need", explicit=False)
    task.owner = True
    hand.run("need")
    hand.start()

    hand.scheduler.succeed(task, 1, b"result", RUN, 3.0)

    assert (task.depends_on, task.inputs) == ((), ())


# --- B1, B2: order --------------------------------------------------------------------------------


def test_B1_the_highest_priority_first_then_the_order_of_submission() -> None:
    hand = Hand()
    for task_id, priority in (("a", 0), ("b", 10), ("c", -10), ("d", 0), ("e", 20), ("f", 10)):
        hand.submit(task_id, priority=priority)

    assert hand.start_all() == ["e", "b", "f", "a", "d", "c"]


def test_B1_any_int_is_a_priority() -> None:
    hand = Hand()
    for task_id, priority in (("a", 10**30), ("b", -(10**30)), ("c", 10**30 + 1)):
        hand.submit(task_id, priority=priority)

    assert hand.start_all() == ["c", "a", "b"]


def test_B2_a_retry_is_ordered_by_its_original_submission() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=2)
    hand.submit("b")
    hand.run("a", "error")
    hand.submit("c")
    hand.pass_to(PAUSE_S)

    assert hand.start_all() == ["a", "b", "c"]


def test_B2_so_is_an_unblocked_and_a_replayed_task() -> None:
    hand = Hand()
    hand.submit("dead")
    hand.submit("need")
    hand.submit("late", "need")
    hand.submit("free")
    hand.run("dead", "error")
    hand.run("need")
    hand.replay("dead")

    assert hand.start_all() == ["dead", "late", "free"]


def test_next_ready_only_looks() -> None:
    hand = Hand()
    task = hand.submit("a")

    assert hand.scheduler.next_ready() is task
    assert hand.scheduler.next_ready() is task
    assert task.status is READY


# --- B3: waiting for an instant -----------------------------------------------------------------------


def test_B3_a_delayed_task_is_due_exactly_at_its_instant() -> None:
    hand = Hand()
    hand.submit("a", delay_s=5)
    assert hand.scheduler.next_due() == 5

    hand.pass_to(4.999999)
    assert hand.start() is None
    hand.pass_to(5)

    assert hand.start() == "a"
    assert hand.scheduler.next_due() is None


def test_B3_a_delay_of_nothing_is_none() -> None:
    hand = Hand()

    assert hand.submit("a", delay_s=0).status is READY


def test_B3_what_becomes_due_together_is_started_by_urgency() -> None:
    hand = Hand()
    hand.submit("late", delay_s=3)
    hand.submit("early", delay_s=1)
    hand.submit("urgent", delay_s=2, priority=10)

    hand.pass_to(3)

    assert hand.start_all() == ["urgent", "late", "early"]


def test_B3_the_delay_of_a_blocked_task_runs_from_its_submission() -> None:
    hand = Hand()
    hand.submit("need")
    hand.submit("soon", "need", delay_s=5)
    hand.submit("later", "need", delay_s=50)
    hand.start()
    hand.pass_to(10)

    hand.end("need")

    assert hand.statuses(["soon", "later"]) == [READY, SCHEDULED]
    assert hand.scheduler.next_due() == 50


def test_B3_next_due_is_the_earlier_of_delay_and_expiry() -> None:
    hand = Hand()
    hand.submit("a", delay_s=7)
    assert hand.scheduler.next_due() == 7
    hand.submit("b", expires_s=3)
    assert hand.scheduler.next_due() == 3

    hand.cancel("b")

    assert hand.scheduler.next_due() == 7


# --- B4: limits -----------------------------------------------------------------------------------


def test_B4_a_type_runs_no_more_than_its_limit_and_holds_up_no_other() -> None:
    hand = Hand(limits={"video": 2})
    for number in range(4):
        hand.submit(f"v{number}", type_name="video", priority=10)
    hand.submit("other")

    assert hand.start_all() == ["v0", "v1", "other"]

    hand.end("v0")
    assert hand.start_all() == ["v2"]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_B4_every_end_of_an_attempt_gives_its_place_free(outcome: "Outcome") -> None:
    hand = Hand(limits={"video": 1})
    hand.submit("v0", type_name="video")
    hand.submit("v1", type_name="video", priority=-1)
    hand.start()

    hand.end("v0", outcome)

    assert hand.start() == ("v0" if outcome == "interrupted" else "v1")


def test_B4_a_cancelled_waiting_task_of_a_limited_type_takes_no_place() -> None:
    hand = Hand(limits={"video": 1})
    for number in range(3):
        hand.submit(f"v{number}", type_name="video")
    hand.start()
    hand.cancel("v1")

    hand.end("v0")

    assert hand.start() == "v2"


# --- B8: sending ahead ------------------------------------------------------------------------------


def test_B8_a_task_sent_ahead_is_ready_and_does_not_come_again() -> None:
    hand = Hand()
    first = hand.submit("a")
    hand.submit("b")
    hand.scheduler.send_ahead(first)
    hand.scheduler.check_invariants()

    assert first.status is READY
    assert hand.start() == "b"
    hand.scheduler.start(first, hand.now)  # its worker has come to it
    hand.scheduler.check_invariants()

    assert hand.status("a") is RUNNING


def test_B8_a_task_taken_back_has_its_old_place() -> None:
    hand = Hand()
    first = hand.submit("a")
    hand.submit("b")
    hand.scheduler.send_ahead(first)

    hand.scheduler.take_back(first)

    assert hand.start_all() == ["a", "b"]


def test_B8_the_least_urgent_task_sent_ahead_is_overtaken_by_a_more_urgent_one() -> None:
    hand = Hand()
    for task_id, priority in (("a", 5), ("b", 3), ("c", 3)):
        task = hand.submit(task_id, priority=priority)
        hand.scheduler.send_ahead(task)
    urgent, equal, between = (
        hand.make("urgent", priority=9),
        hand.make("equal", priority=3),
        hand.make("between", priority=4),
    )
    hand.scheduler.accept((urgent, equal, between), hand.now)

    assert hand.scheduler.overtaken_by(urgent) is hand.tasks["c"]
    assert hand.scheduler.overtaken_by(equal) is None, "it came later"
    hand.scheduler.take_back(hand.tasks["c"])
    assert hand.scheduler.overtaken_by(between) is hand.tasks["b"]
    hand.scheduler.take_back(hand.tasks["b"])
    assert hand.scheduler.overtaken_by(between) is None
    assert hand.scheduler.overtaken_by(urgent) is hand.tasks["a"]
    assert hand.scheduler.first_ahead() is hand.tasks["a"]


def test_B8_nothing_sent_ahead_is_overtaken_by_nobody() -> None:
    hand = Hand()
    task = hand.submit("a")
    assert hand.scheduler.overtaken_by(task) is None
    hand.scheduler.send_ahead(task)
    hand.scheduler.start(task, 0)

    assert hand.scheduler.overtaken_by(hand.submit("b", priority=99)) is None


# --- D4: what was never begun -------------------------------------------------------------------------


def test_D4_a_start_that_never_began_is_undone_and_not_charged() -> None:
    hand = Hand(limits={"video": 1})
    task = hand.submit("a", type_name="video", max_attempts=1, retry_for_s=5)
    hand.submit("b", type_name="video")
    hand.start()

    hand.scheduler.put_back(task, hand.now)

    hand.scheduler.check_invariants()
    assert (task.status, task.attempts, task.records()) == (READY, 0, ())
    assert hand.scheduler.retries == 0
    hand.now = 100
    assert hand.start() == "a"
    assert hand.end("a", "error", retry_after_s=5) is SCHEDULED, "retry_for runs from the start that was one"


def test_D4_a_task_that_never_began_can_still_expire() -> None:
    hand = Hand()
    task = hand.submit("a", expires_s=5)
    hand.start()
    hand.scheduler.put_back(task, hand.now)

    hand.pass_to(5)

    assert hand.causes(["a"]) == ["expired"]


def test_D4_a_task_that_began_before_does_not_expire_by_a_later_start_undone() -> None:
    hand = Hand()
    task = hand.submit("a", expires_s=5)
    hand.run("a", "interrupted")
    hand.start()
    hand.scheduler.put_back(task, hand.now)

    hand.pass_to(5)

    assert hand.start() == "a"


def test_G1_a_start_undone_while_a_shutdown_cuts_the_work_short_is_cancelled() -> None:
    hand = Hand()
    task = hand.submit("a")
    hand.start()
    hand.scheduler.cut_off(1)

    hand.scheduler.put_back(task, 1)

    assert hand.causes(["a"]) == ["shutdown"]
    assert hand.scheduler.open == 0


# --- C3: expires ------------------------------------------------------------------------------------


def test_C3_a_task_not_started_before_it_expires_is_cancelled_at_that_instant() -> None:
    hand = Hand()
    hand.submit("a", expires_s=5)
    hand.submit("dependent", "a")

    hand.pass_to(4.999)
    assert hand.status("a") is READY
    hand.pass_to(5)

    assert hand.statuses(["a", "dependent"]) == [CANCELLED, CANCELLED]
    assert hand.causes(["a", "dependent"]) == ["expired", "dependency"]
    assert hand.tasks["dependent"].origin == "a"


def test_C3_a_task_that_has_started_does_not_expire_nor_do_its_retries() -> None:
    hand = Hand()
    hand.submit("a", expires_s=5, max_attempts=2)
    hand.start()
    hand.pass_to(6)
    assert hand.end("a", "error") is SCHEDULED

    hand.pass_to(100)

    assert hand.start() == "a"


def test_C3_an_interrupted_task_has_started_and_does_not_expire() -> None:
    hand = Hand()
    hand.submit("a", expires_s=5)
    hand.run("a", "interrupted")

    hand.pass_to(6)

    assert hand.start() == "a"


@pytest.mark.parametrize("delay_s", [4, 5, 6])
def test_C3_with_a_delay_the_earlier_instant_decides_and_a_tie_expires(delay_s: float) -> None:
    hand = Hand()
    hand.submit("a", delay_s=delay_s, expires_s=5)

    for now in (4, 5, 6):
        hand.pass_to(now)

    assert hand.causes(["a"]) == ["expired"]
    assert hand.scheduler.next_due() is None


def test_C3_a_task_due_before_it_expires_may_start_in_between() -> None:
    hand = Hand()
    hand.submit("a", delay_s=4, expires_s=5)

    hand.pass_to(4.5)

    assert hand.start() == "a"


def test_C3_a_blocked_task_expires_too() -> None:
    hand = Hand()
    hand.submit("need")
    hand.submit("a", "need", expires_s=5)
    hand.start()
    hand.pass_to(5)
    assert hand.causes(["a"]) == ["expired"]

    assert hand.end("need") is SUCCEEDED
    assert hand.status("a") is CANCELLED


def test_C3_a_task_that_has_expired_already_never_becomes_ready() -> None:
    hand = Hand()

    task = hand.submit("a", expires_s=0)

    assert task.status is CANCELLED
    assert task.cause == "expired"
    assert hand.settled() == ["a"]


def test_C3_a_replayed_task_does_not_expire_again() -> None:
    hand = Hand()
    hand.submit("a", expires_s=5)
    hand.pass_to(5)

    assert hand.replay("a")

    hand.pass_to(1000)
    assert hand.start() == "a"


# --- C4: ids ----------------------------------------------------------------------------------------


def test_C4_a_used_id_is_refused_and_nothing_of_the_batch_is_accepted() -> None:
    hand = Hand()
    hand.submit("a")
    batch = (hand.make("b"), hand.make("a"), hand.make("c"))

    with pytest.raises(DuplicateTaskError, match="'a'"):
        hand.scheduler.accept(batch, 0)

    assert list(hand.scheduler.tasks) == ["a"]
    assert hand.start_all() == ["a"]
    hand.scheduler.check_invariants()


def test_C4_a_used_id_is_refused_with_the_type_of_the_task_that_has_it() -> None:
    hand = Hand()
    hand.submit("a")
    hand.run("a", "error")

    with pytest.raises(DuplicateTaskError, match="id 'a' is already used by a task of type 't'"):
        hand.submit("a")

    assert hand.status("a") is FAILED


def test_C4_an_id_twice_in_one_batch_is_refused() -> None:
    hand = Hand()

    with pytest.raises(DuplicateTaskError):
        hand.scheduler.accept((hand.make("a"), hand.make("b"), hand.make("b")), 0)

    assert hand.scheduler.tasks == {}


# --- D3: what is retried ------------------------------------------------------------------------------

DERIVED = ("shop.OutOfStock", "LookupError", "Exception", "BaseException")


@pytest.mark.parametrize(
    ("rules", "outcome", "error_types", "retried"),
    [
        ({}, "error", ERROR, True),
        ({}, "crash", (), True),
        ({}, "timeout", (), True),
        ({}, "memory", (), True),
        ({}, "lost", (), True),
        ({"retry_on": frozenset({"LookupError"})}, "error", DERIVED, True),
        ({"retry_on": frozenset({"LookupError"})}, "error", ERROR, False),
        ({"retry_on": frozenset()}, "error", ERROR, False),
        ({"retry_on": frozenset({"LookupError"})}, "crash", (), True),  # classes say nothing of outcomes
        ({"never_retry": frozenset({"LookupError"})}, "error", DERIVED, False),
        ({"never_retry": frozenset({"LookupError"})}, "error", ERROR, True),
        (
            {"retry_on": frozenset({"Exception"}), "never_retry": frozenset({"LookupError"})},
            "error",
            DERIVED,
            False,
        ),
        ({"never_retry": frozenset({"crash"})}, "crash", (), False),
        ({"never_retry": frozenset({"crash"})}, "timeout", (), True),
        ({"never_retry": frozenset({"timeout"})}, "timeout", (), False),
        ({"never_retry": frozenset({"memory"})}, "memory", (), False),
        ({"never_retry": frozenset({"lost"})}, "lost", (), False),
        ({"never_retry": frozenset({"error"})}, "error", ERROR, False),
    ],
)
def test_D3_what_is_retried_while_attempts_are_left(
    rules: RuleArguments, outcome: "Outcome", error_types: tuple[str, ...], *, retried: bool
) -> None:
    hand = Hand()
    two_attempts: RuleArguments = {"max_attempts": 2, **rules}
    hand.submit("a", **two_attempts)
    hand.start()

    status = hand.end("a", outcome, error_types=error_types)

    assert status is (SCHEDULED if retried else FAILED)


def test_D3_max_attempts_counts_all_tries() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=3, backoff=as_backoff(0))

    hand.run("a", "error")
    hand.run("a", "crash")
    assert hand.status("a") is READY
    hand.run("a", "timeout")

    assert hand.status("a") is FAILED
    assert hand.tasks["a"].attempts == 3
    assert hand.scheduler.retries == 2


def test_D3_a_permanent_error_is_not_retried() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=5)
    hand.start()

    assert hand.end("a", "error", error_types=ERROR, permanent=True) is FAILED


def test_D3_an_interruption_uses_no_attempt_and_waits_for_nothing() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=1)

    for _ in range(3):
        hand.run("a", "interrupted")

    assert hand.status("a") is READY
    assert hand.tasks["a"].attempts == 0


# --- D6: backoff ------------------------------------------------------------------------------------


def test_D6_a_retry_waits_what_the_queue_says_unless_the_task_says_otherwise() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=2)
    hand.submit("b", max_attempts=2, backoff=as_backoff(3))
    hand.start_all()
    hand.now = 100

    hand.end("a", "error")
    hand.end("b", "error")

    assert hand.scheduler.next_due() == 103
    hand.pass_to(103)
    assert hand.statuses("ab") == [SCHEDULED, READY]
    assert hand.scheduler.next_due() == 100 + PAUSE_S


def test_D6_the_backoff_is_asked_with_the_number_of_the_attempt_that_failed() -> None:
    asked: list[int] = []

    def noted(attempt: int) -> float:
        asked.append(attempt)
        return 0

    hand = Hand()
    hand.submit("a", max_attempts=3, backoff=as_backoff(noted))
    hand.start()
    hand.end("a", "error", retry_after_s=0)  # RetryLater: not charged, not asked
    outcomes: list[Outcome] = ["error", "interrupted", "crash", "error"]
    for outcome in outcomes:
        hand.run("a", outcome)

    assert asked == [1, 2]


@pytest.mark.parametrize("returned", [None, -1, "soon", float("nan")])
def test_D6_a_backoff_function_that_returns_no_duration_ends_the_task_and_says_so(returned: float) -> None:
    hand = Hand()
    hand.submit("a", max_attempts=2, backoff=as_backoff(lambda _: returned))
    hand.start()

    assert hand.end("a", "error", message="no luck") is FAILED
    assert (
        "no luck (not retried: its backoff function raised UnitError: backoff="
        in hand.scheduler.letters.listed()[0].message
    )


def test_D6_waiting_tasks_stay_visible_to_cancel() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=2)
    hand.run("a", "error")

    assert hand.cancel("a") == "cancelled"
    assert hand.scheduler.next_due() is None


# --- C3: retry_for ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("now", "status"), [(89.9, SCHEDULED), (90, SCHEDULED), (90.1, FAILED)])
def test_C3_no_retry_is_due_later_than_retry_for_after_the_first_start(now: float, status: Status) -> None:
    hand = Hand()
    hand.submit("a", max_attempts=9, retry_for_s=100)
    hand.start()
    hand.now = now

    assert hand.end("a", "error") is status


def test_C3_retry_for_runs_from_the_first_start_over_all_attempts() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=9, retry_for_s=25, delay_s=1000)
    hand.pass_to(1000)
    for now in (1000, 1010):
        hand.pass_to(now)
        hand.run("a", "error")
    hand.pass_to(1020)

    hand.run("a", "error")

    assert hand.status("a") is FAILED
    assert hand.tasks["a"].attempts == 3


def test_C3_retry_for_bounds_retry_later_too() -> None:
    hand = Hand()
    hand.submit("a", retry_for_s=100)
    hand.start()
    assert hand.end("a", "error", retry_after_s=100) is SCHEDULED
    hand.pass_to(100)
    hand.start()

    assert hand.end("a", "error", retry_after_s=1) is FAILED


def test_C3_retry_for_does_not_bound_an_interruption() -> None:
    hand = Hand()
    hand.submit("a", retry_for_s=0)
    hand.start()
    hand.now = 50

    assert hand.end("a", "interrupted") is READY


# --- D7: giving up, RetryLater -----------------------------------------------------------------------


def test_D7_out_of_attempts_leaves_a_dead_letter() -> None:
    hand = Hand()
    hand.submit("a")
    hand.start()
    hand.now = 7

    hand.end("a", "error", error_types=ERROR, message="no")

    (letter,) = hand.scheduler.letters.listed()
    assert letter[:6] == ("a", "t", 1, 7, "ValueError", "no")


def test_D7_retry_later_puts_a_task_back_without_using_an_attempt() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=1)
    hand.start()

    assert hand.end("a", "error", retry_after_s=30) is SCHEDULED
    assert hand.scheduler.next_due() == 30
    assert hand.tasks["a"].attempts == 0
    hand.pass_to(30)
    hand.run("a", "ok")
    assert hand.tasks["a"].attempts == 1


def test_D7_retry_later_with_nothing_to_wait_for_is_ready_at_once() -> None:
    hand = Hand()
    hand.submit("a")
    hand.start()

    assert hand.end("a", "error", retry_after_s=0) is READY


# --- D11: workers cannot start -----------------------------------------------------------------------

NO_WORKERS = Ended("error", 0, 0, error_types=("procq.errors.WorkerStartError",), message="no module", permanent=True)


def test_D11_all_that_waits_ends_failed_with_the_start_up_error() -> None:
    hand = Hand()
    hand.submit("runs")
    hand.start()
    hand.submit("ready", max_attempts=5)
    hand.submit("delayed", delay_s=5)
    hand.submit("dependent", "ready")
    hand.submit("waits for what runs", "runs")

    hand.scheduler.fail_waiting(NO_WORKERS, 1)

    hand.scheduler.check_invariants()
    assert hand.statuses(["ready", "delayed", "dependent"]) == [FAILED, FAILED, CANCELLED]
    assert hand.statuses(["runs", "waits for what runs"]) == [RUNNING, BLOCKED]
    assert hand.letters() == ["ready", "delayed"]
    assert hand.scheduler.letters.listed()[0].message == "no module"


def test_D11_what_gets_ready_by_the_failures_fails_too() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a", run_if="failure")
    hand.submit("c", "b", run_if="done", delay_s=5)

    hand.scheduler.fail_waiting(NO_WORKERS, 1)

    hand.scheduler.check_invariants()
    assert hand.statuses("abc") == [FAILED, FAILED, FAILED]
    assert hand.scheduler.open == 0


# --- E: dependencies ----------------------------------------------------------------------------------


def test_E1_a_task_waits_until_all_of_its_dependencies_have_succeeded() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b")
    hand.submit("c", "a", "b")
    hand.start_all()
    hand.end("b")
    assert hand.status("c") is BLOCKED

    hand.end("a")

    assert hand.status("c") is READY


def test_E1_a_batch_may_depend_on_what_stands_before_it_in_the_batch() -> None:
    hand = Hand()
    first = hand.tasks["a"] = hand.make("a")
    second = hand.make("b", "a")

    hand.scheduler.accept((first, second), 0)

    assert (first.status, second.status) == (READY, BLOCKED)


@pytest.mark.parametrize("fan", [1, 10, 1000])
def test_E3_a_completion_unblocks_its_dependents_in_order_of_submission(fan: int) -> None:
    hand = Hand()
    hand.submit("root")
    names = [f"leaf {number}" for number in range(fan)]
    batch = [hand.make(name, "root") for name in names]
    hand.scheduler.accept(batch, 0)

    hand.run("root")

    assert hand.start_all() == names


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_E4_dependents_are_cancelled_transitively_and_name_the_origin(ending: str, when: str) -> None:
    hand = Hand()
    hand.submit("a")

    def end_a() -> None:
        if ending == "failed":
            hand.run("a", "error")
        else:
            hand.cancel("a")

    if when == "before":
        end_a()
    hand.submit("b", "a")
    hand.submit("c", "b")
    hand.submit("unrelated")
    if when == "after":
        end_a()

    assert hand.statuses(["b", "c", "unrelated"]) == [CANCELLED, CANCELLED, READY]
    assert hand.causes("bc") == ["dependency", "dependency"]
    assert [hand.tasks[task_id].origin for task_id in "bc"] == ["a", "a"]
    assert hand.letters() == (["a"] if ending == "failed" else [])


def test_E4_a_retry_that_is_still_to_come_keeps_dependents_waiting() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=2)
    hand.submit("b", "a")

    hand.run("a", "error")

    assert hand.status("b") is BLOCKED


@pytest.mark.parametrize("when", ["submitted before the end", "submitted after the end"])
@pytest.mark.parametrize(
    ("run_if", "outcome", "status", "cause"),
    [
        ("success", "ok", READY, None),
        ("success", "error", CANCELLED, "dependency"),
        ("success", "cancelled", CANCELLED, "dependency"),
        ("done", "ok", READY, None),
        ("done", "error", READY, None),
        ("done", "cancelled", READY, None),
        ("failure", "ok", CANCELLED, "not needed"),
        ("failure", "error", READY, None),
        ("failure", "cancelled", READY, None),
    ],
)
def test_E4_run_if_says_after_which_end_a_task_runs(
    when: str, run_if: str, outcome: "Outcome", status: Status, cause: str | None
) -> None:
    hand = Hand()
    hand.submit("a")
    if when == "submitted before the end":
        hand.submit("b", "a", run_if=run_if)
        hand.run("a", outcome)
    else:
        hand.run("a", outcome)
        hand.submit("b", "a", run_if=run_if)

    assert hand.status("b") is status
    assert hand.tasks["b"].cause == cause


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_E4_run_if_failure_runs_if_any_dependency_failed_but_waits_for_all(order: str) -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b")
    hand.submit("c", "a", "b", run_if="failure")
    hand.start_all()
    outcomes: dict[str, Outcome] = {"a": "error", "b": "ok"}

    hand.end(order[0], outcomes[order[0]])
    assert hand.status("c") is BLOCKED
    hand.end(order[1], outcomes[order[1]])

    assert hand.status("c") is READY


def test_E4_a_task_that_was_not_needed_is_no_failure_for_its_dependents() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("repair", "a", run_if="failure")
    hand.submit("after repair", "repair")
    hand.submit("if repair fails", "repair", run_if="failure")
    hand.submit("anyway", "repair", run_if="done")

    hand.run("a")

    assert hand.statuses(["repair", "after repair", "if repair fails", "anyway"]) == [*[CANCELLED] * 3, READY]
    assert hand.causes(["repair", "after repair", "if repair fails"]) == ["not needed"] * 3


@pytest.mark.parametrize("run_if", ["success", "done", "failure"])
def test_E4_a_cancelled_dependency_that_was_asked_for_is_a_failure(run_if: str) -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a", run_if=run_if)

    hand.cancel("a")

    assert hand.status("b") is (CANCELLED if run_if == "success" else READY)


def test_E4_a_cascade_stops_at_what_runs_anyway() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a")
    hand.submit("clean up", "b", run_if="done")
    hand.submit("report", "clean up")

    hand.run("a", "error")

    assert hand.statuses(["b", "clean up", "report"]) == [CANCELLED, READY, BLOCKED]


def test_E4_a_chain_of_ten_thousand_is_cancelled_without_recursion() -> None:
    hand = Hand(retention=(20_000, 1e9))
    tasks = [hand.make("0")]
    for number in range(1, 10_000):
        hand.tasks[tasks[-1].id] = tasks[-1]
        tasks.append(hand.make(str(number), tasks[-1].id))
    hand.scheduler.accept(tasks, 0)

    hand.scheduler.cancel(tasks[0], 0)

    assert hand.scheduler.open == 0
    assert hand.settled() == [task.id for task in tasks]


def test_E5_a_dependency_already_finished_counts_as_it_ended() -> None:
    hand = Hand()
    hand.submit("good")
    hand.submit("bad")
    hand.run("good")
    hand.run("bad", "error")

    assert hand.submit("a", "good").status is READY
    assert hand.submit("b", "good", "bad").status is CANCELLED


# --- F3: cancel -------------------------------------------------------------------------------------


def test_F3_cancel_says_what_happened() -> None:
    hand = Hand()
    hand.submit("running")
    hand.start()
    hand.submit("ready")
    hand.submit("delayed", delay_s=5)
    hand.submit("blocked", "running")

    assert [hand.cancel(task_id) for task_id in ("ready", "delayed", "blocked")] == ["cancelled"] * 3
    assert hand.cancel("running") == "stopping"
    assert hand.status("running") is RUNNING
    assert hand.cancel("ready") == "finished"
    assert hand.causes(["ready", "delayed", "blocked"]) == ["cancelled"] * 3
    assert hand.settled() == ["ready", "delayed", "blocked"]


def test_F3_a_cancelled_task_never_runs() -> None:
    hand = Hand()
    for task_id in "abc":
        hand.submit(task_id)
    hand.cancel("b")

    assert hand.start_all() == ["a", "c"]


def test_F3_a_task_asked_to_stop_that_finishes_first_has_succeeded() -> None:
    hand = Hand()
    hand.submit("a")
    hand.start()
    hand.cancel("a")

    assert hand.end("a", "ok") is SUCCEEDED


def test_F3_a_cancelled_attempt_is_never_retried() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=5)
    hand.start()
    hand.cancel("a")

    assert hand.end("a", "cancelled") is CANCELLED
    assert hand.causes(["a"]) == ["cancelled"]


def test_F3_a_task_cancelled_while_blocked_is_not_touched_by_the_end_of_its_dependency() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a")
    hand.submit("c", "b", run_if="done")
    hand.cancel("b")
    assert hand.status("c") is READY

    hand.run("a", "error")

    assert hand.causes(["b"]) == ["cancelled"]
    assert hand.settled() == ["b", "a"]


# --- F5: forgetting ---------------------------------------------------------------------------------


def test_F5_a_task_without_an_id_of_its_own_is_forgotten_when_it_has_ended_and_its_handle_is_gone() -> None:
    hand = Hand()
    kept = hand.submit("#0", explicit=False)
    kept.owner = True
    hand.submit("#1", explicit=False).owner = True
    hand.run("#0")
    assert hand.scheduler.find("#0") is kept

    hand.scheduler.disown(kept)  # after its end
    hand.scheduler.disown(hand.tasks["#1"])  # before its end
    assert hand.scheduler.find("#1").status is READY
    hand.run("#1")

    for task_id in ("#0", "#1"):
        with pytest.raises(UnknownTaskError):
            hand.scheduler.find(task_id)


def test_F5_a_forgotten_dependency_still_serves_its_dependents() -> None:
    hand = Hand()
    hand.submit("#0", explicit=False)
    hand.submit("a", "#0")

    hand.run("#0")

    assert "#0" not in hand.scheduler.tasks
    assert hand.tasks["a"].depends_on[0].value == b"result"
    assert hand.start() == "a"


def test_F5_a_task_that_succeeded_lets_go_of_its_dependencies() -> None:
    hand = Hand()
    hand.submit("a")
    task = hand.submit("b", "a")
    hand.run("a")

    hand.run("b")

    assert (*task.depends_on, *task.inputs) == ()


def test_F5_finished_tasks_are_kept_up_to_the_number_of_retention_oldest_first() -> None:
    hand = Hand(retention=(2, 1e9))
    for task_id in "abcd":
        hand.submit(task_id)
    hand.start_all()
    for task_id in "bdac":
        hand.end(task_id)

    assert sorted(hand.scheduler.tasks) == ["a", "c"]


def test_F5_finished_tasks_are_kept_up_to_the_time_of_retention() -> None:
    hand = Hand(retention=(100, 60))
    hand.submit("a")
    hand.run("a")
    hand.pass_to(59.9)
    hand.scheduler.prune(59.9)
    assert "a" in hand.scheduler.tasks

    hand.scheduler.prune(60)

    assert hand.scheduler.tasks == {}
    assert hand.scheduler.counts[SUCCEEDED] == 1, "it is counted even so"


def test_F5_open_tasks_are_never_forgotten() -> None:
    hand = Hand(retention=(0, 0), dead_letters=(0, 0))
    hand.submit("delayed", delay_s=100)
    hand.submit("blocked", "delayed")
    hand.submit("running")
    hand.start()
    hand.submit("done")
    hand.run("done")

    hand.scheduler.prune(1e9)

    assert set(hand.scheduler.tasks) == {"delayed", "blocked", "running"}


def test_F5_an_id_may_be_used_again_once_it_is_forgotten() -> None:
    hand = Hand(retention=(0, 0))
    hand.submit("a")
    hand.run("a")

    hand.submit("a")

    assert hand.start() == "a"


def test_F5_a_dead_letter_keeps_a_task_known_although_its_handle_is_gone() -> None:
    hand = Hand(dead_letters=(1, 1e9))
    task = hand.submit("#0", explicit=False)
    hand.run("#0", "error")
    hand.scheduler.disown(task)
    assert "#0" in hand.scheduler.tasks

    hand.submit("other")
    hand.run("other", "error")  # its letter takes the place

    assert "#0" not in hand.scheduler.tasks


# --- F6, F7: dead letters, replay, purge --------------------------------------------------------------


def test_F6_letters_over_the_cap_are_dropped_and_forgotten() -> None:
    hand = Hand(dead_letters=(2, 1e9))
    for task_id in "abc":
        hand.submit(task_id)
        hand.run(task_id, "error")

    assert hand.letters() == ["b", "c"]
    assert hand.scheduler.letters.dropped == 1
    assert "a" not in hand.scheduler.tasks


def test_F6_letters_age_out() -> None:
    hand = Hand(dead_letters=(100, 60))
    hand.submit("a")
    hand.run("a", "error")
    hand.pass_to(30)
    hand.submit("b")
    hand.run("b", "error")

    hand.scheduler.prune(60)

    assert hand.letters() == ["b"]
    assert "a" not in hand.scheduler.tasks


@pytest.mark.parametrize("how", ["failed", "cancelled", "expired", "shut down"])
def test_F7_every_unsuccessful_end_can_be_taken_back(how: str) -> None:
    hand = Hand()
    hand.submit("a", expires_s=5)
    match how:
        case "failed":
            hand.run("a", "error")
        case "cancelled":
            hand.cancel("a")
        case "expired":
            hand.pass_to(5)
        case _:
            hand.scheduler.cut_off(1)

    assert hand.replay("a")

    assert hand.status("a") is READY
    assert hand.causes(["a"]) == [None]
    assert hand.letters() == []


def test_F7_whatever_has_not_ended_or_has_succeeded_is_not_taken_back() -> None:
    hand = Hand()
    hand.submit("done")
    hand.run("done")
    hand.submit("running")
    hand.start()
    hand.submit("ready")
    hand.submit("blocked", "running")
    hand.submit("delayed", delay_s=5)

    assert not any(hand.replay(task_id) for task_id in hand.tasks)
    assert hand.statuses(hand.tasks) == [SUCCEEDED, RUNNING, READY, BLOCKED, SCHEDULED]


def test_F7_a_replay_grants_all_attempts_again_and_keeps_the_history() -> None:
    hand = Hand()
    task = hand.submit("a", max_attempts=2, backoff=as_backoff(0), retry_for_s=5)
    hand.run("a", "error")
    hand.run("a", "crash")
    hand.pass_to(100)

    hand.replay("a")

    hand.run("a", "error")
    assert task.status is READY, "retry_for runs from the first start since the replay"
    hand.run("a", "ok")
    assert [(record.attempt, record.outcome) for record in task.records()] == [
        (1, "error"),
        (2, "crash"),
        (1, "error"),
        (2, "ok"),
    ]


def test_F7_without_resetting_the_attempts_there_is_one_more() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=2, backoff=as_backoff(0))
    hand.run("a", "error")
    hand.run("a", "error")

    hand.replay("a", reset_attempts=False)
    hand.run("a", "error")

    assert hand.status("a") is FAILED
    assert hand.tasks["a"].attempts == 3


def test_F7_a_replayed_task_does_not_wait_for_its_old_delay() -> None:
    hand = Hand()
    hand.submit("a", delay_s=1000)
    hand.cancel("a")

    hand.replay("a")

    assert hand.start() == "a"


def test_F7_with_dependents_a_diamond_comes_back_whole_and_runs_once() -> None:
    hand = Hand()
    hand.submit("a")
    for task_id, needs in (("b", "a"), ("c", "a"), ("d", "bc"), ("e", "ad")):
        hand.submit(task_id, *needs)
    hand.run("a", "error")
    hand.settled()

    hand.replay("a", with_dependents=True)

    assert hand.statuses("abcde") == [READY, *[BLOCKED] * 4]
    assert hand.settled() == [], "nothing ended by being taken back"
    for task_id in "abcde":
        hand.run(task_id)
    assert hand.settled() == list("abcde")


def test_F7_without_dependents_they_stay_and_are_found_by_the_next_replay() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a")
    hand.run("a", "error")
    hand.replay("a")
    assert hand.status("b") is CANCELLED
    hand.run("a", "error")

    hand.replay("a", with_dependents=True)

    assert hand.statuses("ab") == [READY, BLOCKED]


def test_F7_a_dependent_cancelled_by_the_user_does_not_come_back_with_its_dependency() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a")
    hand.submit("c", "b")
    hand.cancel("b")
    hand.run("a", "error")

    hand.replay("a", with_dependents=True)

    assert hand.statuses("abc") == [READY, CANCELLED, CANCELLED]


def test_F7_a_task_cancelled_while_blocked_waits_again_when_it_is_replayed() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a")
    for _ in range(3):
        hand.cancel("b")
        assert hand.replay("b")
    assert hand.status("b") is BLOCKED

    hand.run("a")

    assert hand.start() == "b"
    assert hand.start() is None


def test_F7_a_dependent_accepted_after_the_death_comes_back_too() -> None:
    hand = Hand()
    hand.submit("a")
    hand.run("a", "error")
    hand.submit("b", "a")
    hand.submit("c", "b")

    hand.replay("a", with_dependents=True)

    assert hand.statuses("abc") == [READY, BLOCKED, BLOCKED]


def test_F7_a_dependent_is_the_business_of_the_dependency_that_cancelled_it() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b")
    hand.submit("c", "a", "b")
    hand.start_all()
    hand.end("a", "error")
    hand.end("b", "error")

    hand.replay("b", with_dependents=True)
    assert hand.statuses("abc") == [FAILED, READY, CANCELLED]
    hand.replay("a", with_dependents=True)

    assert hand.statuses("abc") == [READY, READY, BLOCKED]
    hand.run("a")
    hand.run("b")
    assert hand.start() == "c"


def test_F7_a_dependent_that_another_dead_dependency_holds_back_is_cancelled_again() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b")
    hand.submit("c", "a", "b")
    hand.start_all()
    hand.end("a", "error")
    hand.end("b", "error")

    hand.replay("a", with_dependents=True)

    assert hand.statuses("abc") == [READY, FAILED, CANCELLED]
    assert hand.tasks["c"].origin == "b", "which now is what holds it back"
    hand.replay("b", with_dependents=True)
    assert hand.status("c") is BLOCKED


def test_F7_a_dependent_alone_comes_back_only_if_nothing_holds_it_back() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("b", "a")
    hand.run("a", "error")

    assert not hand.replay("b")
    assert hand.status("b") is CANCELLED
    hand.replay("a")
    assert hand.replay("b")

    assert hand.status("b") is BLOCKED


def test_F7_what_runs_anyway_and_still_waits_waits_again_for_a_task_that_came_back() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("slow")
    hand.submit("cleanup", "a", "slow", run_if="done")
    hand.submit("repair", "a", "slow", run_if="failure")
    hand.start_all()
    hand.end("a", "error")
    hand.submit("second cleanup", "a", "slow", run_if="done")

    hand.replay("a")
    hand.end("slow")

    assert hand.statuses(["cleanup", "repair", "second cleanup"]) == [BLOCKED] * 3
    hand.run("a")
    assert hand.statuses(["cleanup", "repair", "second cleanup"]) == [READY, CANCELLED, READY]
    assert hand.causes(["repair"]) == ["not needed"]


def test_F7_what_ran_anyway_is_not_run_again() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("cleanup", "a", run_if="done")
    hand.submit("repair", "a", run_if="failure")
    hand.run("a", "error")
    hand.run("cleanup")

    hand.replay("a", with_dependents=True)
    hand.run("a")

    assert hand.statuses(["cleanup", "repair"]) == [SUCCEEDED, READY]


def test_F7_a_task_that_was_not_needed_is_not_needed_again() -> None:
    hand = Hand()
    hand.submit("a")
    hand.submit("repair", "a", run_if="failure")
    hand.submit("after", "repair")
    hand.run("a")

    assert not hand.replay("repair", with_dependents=True)
    assert hand.causes(["repair", "after"]) == ["not needed"] * 2


def test_F7_a_forgotten_task_can_be_taken_back_by_its_handle() -> None:
    hand = Hand(dead_letters=(0, 0))
    hand.submit("a")
    hand.run("a", "error")
    assert "a" not in hand.scheduler.tasks

    assert hand.replay("a")

    assert hand.scheduler.find("a") is hand.tasks["a"]
    assert hand.start() == "a"


def test_F7_a_forgotten_task_whose_id_was_given_away_is_refused_and_nothing_changes() -> None:
    hand = Hand(dead_letters=(0, 0))
    old = hand.submit("a")
    hand.run("a", "error")
    new = hand.submit("a")

    with pytest.raises(DuplicateTaskError, match="'a'"):
        hand.scheduler.replay(old, 0)

    hand.scheduler.check_invariants()
    assert old.status is FAILED
    assert hand.scheduler.find("a") is new
    assert hand.start() == "a"


def test_F7_a_forgotten_dependent_whose_id_was_given_away_is_left_as_it_is() -> None:
    hand = Hand(retention=(0, 0))
    hand.submit("a")
    old = hand.submit("b", "a")
    hand.run("a", "error")
    new = hand.submit("b")

    hand.replay("a", with_dependents=True)

    hand.scheduler.check_invariants()
    assert (old.status, new.status) == (CANCELLED, READY)


def test_F7_two_forgotten_dependents_with_one_id_do_not_both_come_back() -> None:
    hand = Hand(retention=(0, 0))
    hand.submit("a")
    hand.run("a", "error")
    first = hand.submit("b", "a")
    second = hand.submit("b", "a")

    hand.replay("a", with_dependents=True)

    hand.scheduler.check_invariants()
    assert (first.status, second.status) == (BLOCKED, CANCELLED)


def test_F7_counts_and_letters_are_right_after_deaths_and_replays() -> None:
    hand = Hand(dead_letters=(1, 1e9))
    hand.submit("a")
    hand.submit("b", "a")
    for _ in range(3):
        hand.run("a", "error")
        assert (hand.scheduler.open, hand.letters()) == (0, ["a"])
        hand.replay("a", with_dependents=True)

    counts = {status: number for status, number in hand.scheduler.counts.items() if number}

    assert counts == {READY: 1, BLOCKED: 1}
    assert hand.scheduler.letters.dropped == 0


class CountingTask(Task):
    """A task that counts how often it is compared or looked up."""

    __slots__ = ()
    looks = 0

    def __eq__(self, other: object) -> bool:
        CountingTask.looks += 1
        return self is other

    def __hash__(self) -> int:
        CountingTask.looks += 1
        return id(self)


def test_F7_dying_and_replaying_takes_a_few_steps_for_each_dependent() -> None:
    """Counts looks at dependents, since seconds would say little: no list of them is searched."""
    hand = Hand(retention=(10_000, 1e9))
    root = hand.submit("a")
    fan = 1000
    leaves = [CountingTask(f"{number}", "t", b"", FixedRules(), depends_on=(root,)) for number in range(fan)]
    CountingTask.looks = 0

    hand.scheduler.accept(leaves[:500], 0)
    for _ in range(3):
        hand.scheduler.start(root, 0)
        hand.scheduler.end(root, root.fence, Ended("error", 0, 0), 0)
        hand.scheduler.accept(leaves[500:], 0)
        leaves[500:] = []
        hand.scheduler.replay(root, 0, with_dependents=True)

    assert hand.scheduler.counts[BLOCKED] == fan
    assert CountingTask.looks < 3 * 10 * fan


def test_F7_purge_removes_dead_letters_for_good_and_says_how_many() -> None:
    hand = Hand()
    for task_id in "ab":
        hand.submit(task_id)
        hand.run(task_id, "error")
    hand.submit("open")

    gone = hand.scheduler.purge([hand.tasks["a"], hand.tasks["open"]])

    assert gone == 1
    assert hand.letters() == ["b"]
    assert set(hand.scheduler.tasks) == {"b", "open"}
    assert hand.scheduler.letters.dropped == 0


# --- G1: a shutdown cuts the work short ---------------------------------------------------------------


def test_G1_cut_off_cancels_all_that_waits_and_tells_it_in_order_of_submission() -> None:
    hand = Hand()
    hand.submit("running")
    hand.start()
    hand.submit("blocked", "running")
    hand.submit("ready")
    hand.submit("after ready", "ready")
    hand.submit("delayed", delay_s=5)

    cut = hand.scheduler.cut_off(1)

    hand.scheduler.check_invariants()
    assert [task.id for task in cut] == ["blocked", "ready", "after ready", "delayed"]
    assert hand.causes(task.id for task in cut) == ["shutdown"] * 4, "each for the shutdown, none for another"
    assert hand.status("running") is RUNNING
    assert hand.scheduler.open == 1


@pytest.mark.parametrize("run_if", ["done", "failure"])
def test_G1_neither_run_if_done_nor_failure_runs_when_a_shutdown_cuts_the_work_short(run_if: str) -> None:
    hand = Hand()
    hand.submit("running")
    hand.start()
    hand.submit("ready")
    hand.submit("a", "ready", run_if=run_if)
    hand.submit("b", "running", run_if=run_if)

    hand.scheduler.cut_off(1)
    hand.end("running", "error")

    assert hand.causes("ab") == ["shutdown", "shutdown"]
    assert hand.start() is None


@pytest.mark.parametrize(
    ("outcome", "retry_after_s", "status"),
    [
        ("ok", None, SUCCEEDED),
        ("error", None, CANCELLED),  # it would have been retried
        ("error", 5.0, CANCELLED),
        ("interrupted", None, CANCELLED),
        ("cancelled", None, CANCELLED),
    ],
)
def test_G1_what_still_runs_ends_without_a_retry(
    outcome: "Outcome", retry_after_s: float | None, status: Status
) -> None:
    hand = Hand()
    hand.submit("a", max_attempts=2)
    hand.start()
    hand.scheduler.cut_off(1)

    assert hand.end("a", outcome, retry_after_s=retry_after_s) is status
    assert hand.scheduler.open == 0


def test_G1_the_last_failure_is_a_failure_even_then() -> None:
    hand = Hand()
    hand.submit("a", max_attempts=1)
    hand.start()
    hand.scheduler.cut_off(1)

    assert hand.end("a", "error") is FAILED
    assert hand.letters() == ["a"]


def test_G2_interrupted_attempts_are_not_charged() -> None:
    hand = Hand()
    hand.submit("a")
    hand.start()
    hand.scheduler.cut_off(1)

    hand.end("a", "interrupted")

    assert hand.causes(["a"]) == ["shutdown"]
    assert hand.tasks["a"].attempts == 0


def test_G1_a_task_that_was_forgotten_and_came_back_is_cut_off_in_its_place() -> None:
    hand = Hand(retention=(0, 0))
    hand.submit("a")
    hand.cancel("a")  # and forgotten
    hand.submit("b")
    hand.replay("a")
    hand.submit("c", "a")

    cut = hand.scheduler.cut_off(1)

    assert [task.id for task in cut] == ["a", "b", "c"]
    assert hand.causes("abc") == ["shutdown"] * 3


def test_the_backoff_protocol_is_met_by_what_users_give() -> None:
    given: list[Backoff] = [as_backoff(1), as_backoff([1, 2]), as_backoff(lambda attempt: attempt)]

    assert [backoff.delay(1, 0.0) for backoff in given] == [1, 1, 1]


# --- F2: an attempt that was made within another task ---------------------------------------------


@pytest.mark.parametrize(("max_attempts", "status"), [(1, FAILED), (2, SCHEDULED)])
def test_F2_a_first_attempt_made_within_another_task_is_charged_and_judged(max_attempts: int, status: Status) -> None:
    hand = Hand()
    urgent = hand.submit("urgent", priority=20)
    task = hand.make("a", max_attempts=max_attempts)

    hand.now = 5.0
    hand.scheduler.accept_begun(task, Ended("error", 1.0, 2.0, error_types=ERROR), hand.now)

    assert hand.checked(task).status is status
    assert (task.failures, task.first_started_at, urgent.status) == (1, 1.0, READY)
    assert [record.attempt for record in task.records()] == [1]
    assert hand.scheduler.next_due() == (None if status is FAILED else 5.0 + PAUSE_S)
    assert (task in hand.scheduler.letters) == (status is FAILED)


def test_F2_a_task_begun_elsewhere_is_refused_under_a_used_id() -> None:
    hand = Hand()
    hand.submit("a")

    with pytest.raises(DuplicateTaskError):
        hand.scheduler.accept_begun(hand.make("a"), Ended("error", 0.0, 0.0), hand.now)

    assert hand.start() == "a"
