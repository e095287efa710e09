"""`FaultTolerantQueue`, clause by clause (contract J), and against a list that knows no heaps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from operator import methodcaller

import pytest
from hypothesis import given, settings, strategies as st

from procq import FaultTolerantQueue, Status
from procq.errors import (
    DuplicateTaskError,
    NotReservedError,
    ProcqError,
    UnknownDependencyError,
    UnknownTaskError,
    UsageError,
)
from procq.fault_tolerant import Cooldown


def made(*ids: str, max_attempts: int = 3, cooldown: Cooldown = 10, lease: float | None = None) -> FaultTolerantQueue:
    """Return a queue with tasks that came in at 0."""
    queue = FaultTolerantQueue(max_attempts, lease=lease)
    for task_id in ids:
        queue.enqueue(task_id, cooldown, 0)
    return queue


def killed(queue: FaultTolerantQueue, task_id: str, now: float) -> None:
    """Let a task of a queue with max_attempts=1 die; it must be the next to be reserved."""
    assert queue.reserve(now) == task_id
    queue.fail(task_id, now)


def drained(queue: FaultTolerantQueue, now: float) -> list[str]:
    """Reserve whatever is eligible at an instant."""
    return list(iter(lambda: queue.reserve(now), None))


def observed(queue: FaultTolerantQueue, ids: list[str]) -> dict[str, object]:
    """Return everything that a caller can see without passing a `now`."""
    return {"dead": queue.dead_letter_queue(), **{task_id: queue.status(task_id) for task_id in ids}}


# --- J1: who is next ------------------------------------------------------------------------------


def test_J1_the_task_enqueued_earliest_is_reserved_first() -> None:
    queue = FaultTolerantQueue(3)
    for at, task_id in enumerate("cab"):
        queue.enqueue(task_id, 10, at)

    assert drained(queue, 5) == ["c", "a", "b"]


def test_J1_ties_are_broken_by_the_order_of_enqueue() -> None:
    queue = FaultTolerantQueue(3)
    for task_id in ("z", "m", "a", "q"):
        queue.enqueue(task_id, 1, now=7)

    assert drained(queue, 7) == ["z", "m", "a", "q"]


def test_J1_an_empty_queue_hands_out_nothing() -> None:
    queue = FaultTolerantQueue(1)

    assert queue.reserve(0) is None


def test_J1_a_reserved_task_is_not_handed_out_again() -> None:
    queue = made("a")

    assert queue.reserve(1) == "a"
    assert queue.reserve(1) is None
    assert queue.status("a") is Status.RUNNING


@pytest.mark.parametrize(
    ("failed_at", "cooldown", "too_early", "due"),
    [
        (5, 10, 14.999999, 15),
        (0.1, 0.2, 0.3, 0.1 + 0.2),  # 0.1 + 0.2 > 0.3 in binary
        (-20, 5, -15.5, -15),
        (1e9, 0.5, 1e9 + 0.4, 1e9 + 0.5),
        (1_700_000_000_000_000_001, 1, 1_700_000_000_000_000_001, 1_700_000_000_000_000_002),  # nanoseconds
        (3, "1m30s", 92.9, 93),
        (3, timedelta(minutes=1), 62.9, 63),
    ],
)
def test_J1_eligible_again_exactly_at_failure_time_plus_cooldown(
    failed_at: float, cooldown: Cooldown, too_early: float, due: float
) -> None:
    queue = FaultTolerantQueue(3)
    queue.enqueue("a", cooldown, failed_at)
    queue.reserve(failed_at)

    queue.fail("a", failed_at)

    assert queue.reserve(too_early) is None
    assert queue.reserve(due) == "a"


def test_J1_without_a_cooldown_the_task_is_eligible_at_the_instant_of_its_failure() -> None:
    queue = made("a", cooldown=0)
    queue.reserve(1)

    queue.fail("a", 1)

    assert queue.reserve(1) == "a"


def test_J1_the_cooldown_runs_from_the_failure_and_not_from_the_reservation() -> None:
    queue = made("a", cooldown=10)
    queue.reserve(1)

    queue.fail("a", 100)

    assert queue.reserve(109) is None
    assert queue.reserve(110) == "a"


# --- J2: coming back, and giving up -----------------------------------------------------------------


def test_J2_re_entry_trace_A_fails_C_arrives_later_A_comes_back_first() -> None:
    queue = FaultTolerantQueue(max_attempts=3)
    queue.enqueue("A", 5, now=0)
    queue.enqueue("B", 5, now=1)
    assert queue.reserve(2) == "A"
    queue.fail("A", 2)  # cools down until 7
    assert queue.reserve(3) == "B"
    queue.enqueue("C", 5, now=4)

    assert queue.status("A") is Status.SCHEDULED
    assert drained(queue, 7) == ["A", "C"]


def test_J2_while_it_cools_down_a_later_task_goes_first() -> None:
    queue = made("a", "b", cooldown=5)
    queue.reserve(1)
    queue.fail("a", 2)

    assert queue.reserve(6) == "b"
    assert queue.reserve(7) == "a"


def test_J2_tasks_that_re_enter_are_ordered_among_themselves_by_original_enqueue_time() -> None:
    queue = made("a", "b", "c", cooldown=10)
    drained(queue, 3)
    for at, task_id in enumerate(("c", "b", "a"), start=4):  # fails and cools down in the reverse order
        queue.fail(task_id, at)

    assert drained(queue, 16) == ["a", "b", "c"]


def test_J2_the_failure_with_the_number_max_attempts_is_the_last() -> None:
    queue = made("a", max_attempts=3, cooldown=1)
    for at in (0, 10):
        queue.reserve(at)
        queue.fail("a", at)
        assert queue.dead_letter_queue() == []

    queue.reserve(20)
    queue.fail("a", 20)

    assert queue.dead_letter_queue() == ["a"]
    assert queue.status("a") is Status.FAILED
    assert queue.reserve(1000) is None


def test_J2_with_one_attempt_the_first_failure_is_the_last() -> None:
    queue = made("a", max_attempts=1)

    killed(queue, "a", 0)

    assert queue.dead_letter_queue() == ["a"]


def test_J2_dead_letters_are_listed_in_order_of_death() -> None:
    queue = made("a", "b", "c", max_attempts=1)
    drained(queue, 5)
    for at, task_id in enumerate(("b", "c", "a"), start=6):
        queue.fail(task_id, at)

    assert queue.dead_letter_queue() == ["b", "c", "a"]


def test_J2_a_preemption_counts_as_a_failure() -> None:
    queue = made("a", max_attempts=2, cooldown=0)
    queue.reserve(0)
    queue.fail("a", 1)  # the caller's worker was preempted: there is no other call for it
    queue.reserve(1)

    queue.fail("a", 2)

    assert queue.dead_letter_queue() == ["a"]


def test_J2_a_completed_task_never_comes_back() -> None:
    queue = made("a")
    queue.reserve(0)

    queue.complete("a", 1)

    assert queue.status("a") is Status.SUCCEEDED
    assert queue.reserve(1e12) is None
    assert queue.dead_letter_queue() == []


# --- J3: refused calls ------------------------------------------------------------------------------

#: Every status a task can have here, by the id of a task that has it in `variety`.
STATUSES = {
    "done": Status.SUCCEEDED,
    "dead": Status.FAILED,
    "cut": Status.CANCELLED,
    "cooling": Status.SCHEDULED,
    "held": Status.RUNNING,
    "ready": Status.READY,
    "waiting": Status.BLOCKED,
}


def variety() -> FaultTolerantQueue:
    """Return a queue with a task in each status, as of now=10."""
    queue = FaultTolerantQueue(max_attempts=2)
    queue.enqueue("done", 0, 0)
    queue.enqueue("dead", 0, 0)
    queue.enqueue("cooling", 100, 0)
    queue.enqueue("held", 0, 0)
    queue.enqueue("cut", 0, 0, depends_on=["dead"])
    queue.enqueue("waiting", 0, 0, depends_on=["held"])
    drained(queue, 1)
    queue.complete("done", 2)
    queue.fail("dead", 3)
    queue.reserve(3)
    queue.fail("dead", 4)
    queue.fail("cooling", 5)
    queue.enqueue("ready", 0, 10)
    assert {task_id: queue.status(task_id) for task_id in STATUSES} == STATUSES
    return queue


#: Calls that are refused in `variety`, with the error that says so.
REFUSED: dict[str, tuple[Callable[[FaultTolerantQueue], object], type[ProcqError]]] = {
    **{
        f"{verb} of a task that is {STATUSES[task_id]}": (methodcaller(verb, task_id, 20), NotReservedError)
        for verb in ("complete", "fail", "renew")
        for task_id in STATUSES
        if task_id != "held"
    },
    **{
        f"{verb} of an unknown task": (methodcaller(verb, "nobody", 20), UnknownTaskError)
        for verb in ("complete", "fail", "renew", "replay")
    },
    **{
        f"enqueue under the id of a task that is {status}": (
            methodcaller("enqueue", task_id, 1, 20),
            DuplicateTaskError,
        )
        for task_id, status in STATUSES.items()
    },
    **{
        f"{verb} with a now that goes back": (methodcaller(verb, *arguments, 9.999), UsageError)
        for verb, arguments in {
            "enqueue": ("new", 1),
            "reserve": (),
            "complete": ("held",),
            "fail": ("held",),
            "renew": ("held",),
            "replay": ("dead",),
        }.items()
    },
    **{
        f"reserve with now={now!r:.20}": (methodcaller("reserve", now), UsageError)
        for now in (float("nan"), float("inf"), float("-inf"), None, "20", True, 10**400)
    },
    **{
        f"replay of a task that is {STATUSES[task_id]}": (methodcaller("replay", task_id, 20), UsageError)
        for task_id in STATUSES
        if task_id != "dead"
    },
    **{
        f"enqueue with cooldown={cooldown!r:.20}": (methodcaller("enqueue", "new", cooldown, 20), UsageError)
        for cooldown in (-1, float("nan"), float("inf"), None, "soon", True, [1], 10**400)
    },
    **{
        f"enqueue with task_id={task_id!r}": (methodcaller("enqueue", task_id, 1, 20), UsageError)
        for task_id in ("", None, 3)
    },
    **{
        f"enqueue with depends_on={names!r}": (methodcaller("enqueue", "new", 1, 20, depends_on=names), error)
        for names, error in (
            (("ready", "nobody"), UnknownDependencyError),
            (("new",), UnknownDependencyError),  # itself
            ("ready", UsageError),  # a text is a list of letters
            (None, UsageError),
            ((3,), UsageError),
            (([],), UsageError),
        )
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_J3_a_refused_call_changes_nothing(name: str) -> None:
    call, error = REFUSED[name]
    queue, twin = variety(), variety()
    before = observed(queue, list(STATUSES))

    with pytest.raises(error):
        call(queue)

    assert observed(queue, list(STATUSES)) == before
    for task_id in ("new", "nobody"):
        with pytest.raises(UnknownTaskError):
            queue.status(task_id)
    # Not even the latest `now` has changed, and whatever comes next comes as it would have come.
    for probed in (queue, twin):
        probed.complete("held", 10)
        probed.enqueue("late", 1, 10)
        probed.replay("dead", 10, with_dependents=True)
    assert [drained(queue, now) for now in (10, 104, 105)] == [drained(twin, now) for now in (10, 104, 105)]
    assert observed(queue, [*STATUSES, "late"]) == observed(twin, [*STATUSES, "late"])


def _raises(_failures: int) -> float:
    raise ZeroDivisionError


@pytest.mark.parametrize(("cooldown", "error"), [(_raises, ZeroDivisionError), (lambda _: -1, ValueError)])
def test_J3_a_failure_whose_cooldown_cannot_be_had_is_refused(cooldown: Cooldown, error: type[Exception]) -> None:
    queue = made("odd", cooldown=cooldown)
    queue.reserve(0)

    with pytest.raises(error):
        queue.fail("odd", 20)

    assert queue.status("odd") is Status.RUNNING, "it is still reserved"
    queue.complete("odd", 10)  # and the refused call's `now` of 20 was not the latest


@pytest.mark.parametrize("verb", ["complete", "fail", "renew"])
@pytest.mark.parametrize(
    ("task_id", "word"), [("ready", "ready"), ("done", "completed"), ("dead", "dead"), ("cut", "cancelled")]
)
def test_J3_the_refusal_names_the_task_and_how_it_stands(verb: str, task_id: str, word: str) -> None:
    queue = variety()

    with pytest.raises(NotReservedError, match=f"'{task_id}' is not reserved but {word}"):
        getattr(queue, verb)(task_id, 10)


def test_J3_now_going_backwards_is_a_ValueError_that_names_both_instants() -> None:
    queue = made("a")
    queue.reserve(5)

    with pytest.raises(ValueError, match=r"now=4.*5 already"):
        queue.complete("a", 4)


def test_J3_now_may_stand_still() -> None:
    queue = made("a")

    assert queue.reserve(0) == "a"
    queue.complete("a", 0)

    assert queue.status("a") is Status.SUCCEEDED


@pytest.mark.parametrize("max_attempts", [0, -1, 1.5, None, True, "3"])
def test_J3_max_attempts_must_be_a_whole_number_of_at_least_1(max_attempts: int) -> None:
    with pytest.raises(UsageError, match=r"max_attempts="):
        FaultTolerantQueue(max_attempts)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), float("inf"), "soon", True])
def test_J3_a_lease_must_be_a_duration_above_0(lease: float) -> None:
    with pytest.raises(UsageError, match=r"lease="):
        FaultTolerantQueue(3, lease=lease)


# --- J4: dependencies -------------------------------------------------------------------------------


def test_J4_a_task_waits_until_all_its_dependencies_are_completed() -> None:
    queue = made("a", "b")
    queue.enqueue("c", 0, 2, depends_on=["a", "b"])
    drained(queue, 3)
    queue.complete("a", 4)
    assert queue.status("c") is Status.BLOCKED
    assert queue.reserve(4) is None

    queue.complete("b", 5)

    assert queue.reserve(5) == "c"


def test_J4_a_failure_that_is_not_the_last_keeps_dependents_waiting() -> None:
    queue = made("a", cooldown=10, max_attempts=2)
    queue.enqueue("b", 0, 1, depends_on=["a"])
    queue.reserve(2)

    queue.fail("a", 2)

    assert queue.status("b") is Status.BLOCKED


def test_J4_unblocked_tasks_keep_their_original_order() -> None:
    queue = FaultTolerantQueue(3)
    queue.enqueue("root", 0, 0)
    queue.enqueue("early", 0, 1, depends_on=["root"])
    queue.enqueue("free", 0, 2)
    assert queue.reserve(3) == "root"
    queue.complete("root", 4)

    assert drained(queue, 4) == ["early", "free"]


def test_J4_a_dependency_that_is_completed_already_holds_up_nothing() -> None:
    queue = made("a")
    queue.reserve(0)
    queue.complete("a", 1)

    queue.enqueue("b", 0, 2, depends_on=["a"])

    assert queue.reserve(2) == "b"


def test_J4_a_dependency_named_twice_counts_once() -> None:
    queue = made("a")
    queue.enqueue("b", 0, 1, depends_on=["a", "a"])
    queue.reserve(1)

    queue.complete("a", 1)

    assert queue.reserve(1) == "b"


def test_J4_an_unknown_dependency_is_named() -> None:
    queue = made("a")

    with pytest.raises(UnknownDependencyError, match=r"'ghost'") as caught:
        queue.enqueue("b", 0, 1, depends_on=["a", "ghost"])

    assert caught.value.missing == ("ghost",)


def test_J4_a_death_cancels_a_chain_of_dependents_which_are_no_dead_letters() -> None:
    queue = made("a", max_attempts=1)
    queue.enqueue("b", 0, 1, depends_on=["a"])
    queue.enqueue("c", 0, 2, depends_on=["b"])

    killed(queue, "a", 3)

    assert [queue.status(task_id) for task_id in "abc"] == [Status.FAILED, Status.CANCELLED, Status.CANCELLED]
    assert queue.dead_letter_queue() == ["a"]
    assert queue.reserve(1e9) is None


def test_J4_a_death_cascades_through_a_diamond_and_spares_the_rest() -> None:
    queue = made("a", "x", max_attempts=1)
    queue.enqueue("b", 0, 2, depends_on=["a"])
    queue.enqueue("c", 0, 2, depends_on=["a", "x"])
    queue.enqueue("d", 0, 2, depends_on=["b", "c"])
    queue.enqueue("y", 0, 2, depends_on=["x"])

    killed(queue, "a", 3)

    assert {queue.status(task_id) for task_id in "bcd"} == {Status.CANCELLED}
    assert queue.reserve(3) == "x"
    queue.complete("x", 4)
    assert queue.reserve(4) == "y"


def test_J4_a_long_chain_is_cancelled_without_recursion() -> None:
    queue = FaultTolerantQueue(1)
    queue.enqueue("0", 0, 0)
    for number in range(1, 5000):
        queue.enqueue(str(number), 0, 0, depends_on=[str(number - 1)])

    killed(queue, "0", 1)

    assert queue.status("4999") is Status.CANCELLED


@pytest.mark.parametrize("dependency", ["dead", "cut"])
def test_J4_a_new_task_that_depends_on_a_dead_or_cancelled_one_is_cancelled_at_once(dependency: str) -> None:
    queue = variety()

    queue.enqueue("new", 0, 20, depends_on=["ready", dependency])

    assert queue.status("new") is Status.CANCELLED
    assert queue.dead_letter_queue() == ["dead"]


# --- J5: leases -------------------------------------------------------------------------------------


def test_J5_without_a_lease_a_reservation_lasts_for_ever() -> None:
    queue = made("a")
    queue.reserve(0)

    assert queue.reserve(1e15) is None
    queue.complete("a", 1e15)

    assert queue.status("a") is Status.SUCCEEDED


def test_J5_a_reservation_not_renewed_has_failed_at_its_expiry_so_the_cooldown_runs_from_there() -> None:
    queue = made("a", lease=10, cooldown=5)
    queue.reserve(0)  # expires at 10, eligible again at 15

    assert queue.reserve(14.9) is None
    assert queue.status("a") is Status.SCHEDULED
    assert queue.reserve(15) == "a"


def test_J5_an_expiry_whose_cooldown_is_over_too_is_seen_in_one_call() -> None:
    queue = made("a", lease=10, cooldown=5)
    queue.reserve(0)

    assert queue.reserve(1000) == "a"


@pytest.mark.parametrize("verb", ["complete", "fail", "renew"])
@pytest.mark.parametrize("now", [10, 10.5, 1e6])
def test_J5_a_late_call_is_refused_from_the_expiry_instant_on(verb: str, now: float) -> None:
    queue = made("a", lease=10, cooldown=1e9)
    queue.reserve(0)

    with pytest.raises(NotReservedError, match=r"lease ran out at 10"):
        getattr(queue, verb)("a", now)

    assert queue.status("a") is Status.SCHEDULED, "the expiry itself is a fact, and counts"


def test_J5_a_task_that_was_completed_after_a_lease_ran_out_is_just_completed() -> None:
    queue = made("a", lease=10, cooldown=0)
    queue.reserve(0)
    queue.reserve(10)
    queue.complete("a", 11)

    with pytest.raises(NotReservedError, match="completed") as caught:
        queue.complete("a", 12)

    assert "lease" not in str(caught.value)


def test_J5_just_before_the_expiry_instant_the_call_is_in_time() -> None:
    queue = made("a", lease=10)
    queue.reserve(0)

    queue.complete("a", 9.999)

    assert queue.status("a") is Status.SUCCEEDED


def test_J5_an_expiry_counts_as_one_of_max_attempts_failures() -> None:
    queue = made("a", lease=10, cooldown=0, max_attempts=2)
    queue.enqueue("b", 0, 0, depends_on=["a"])
    queue.reserve(0)
    assert queue.reserve(10) == "a"

    queue.reserve(20)

    assert queue.dead_letter_queue() == ["a"]
    assert queue.status("b") is Status.CANCELLED


def test_J5_renewing_moves_the_expiry_to_now_plus_lease() -> None:
    queue = made("a", lease=10, cooldown=0)
    queue.reserve(0)
    queue.renew("a", 4)
    queue.renew("a", 9)

    assert queue.reserve(18.9) is None
    assert queue.reserve(19) == "a"


def test_J5_several_expiries_are_processed_in_the_order_of_their_instants() -> None:
    queue = made("a", "b", "c", lease=10, max_attempts=1)
    assert [queue.reserve(now) for now in (3, 4, 5)] == ["a", "b", "c"]
    queue.renew("a", 6)  # 16; b expires at 14, c at 15

    assert queue.reserve(100) is None

    assert queue.dead_letter_queue() == ["b", "c", "a"]


def test_J5_expiries_at_one_instant_are_processed_in_the_order_of_enqueue() -> None:
    queue = made("a", "b", "c", lease=10, max_attempts=1)
    drained(queue, 3)
    for task_id in "cab":
        queue.renew(task_id, 4)

    queue.reserve(14)

    assert queue.dead_letter_queue() == ["a", "b", "c"]


def test_J5_a_completed_or_failed_reservation_has_no_lease_any_more() -> None:
    queue = made("a", "b", lease=10, cooldown=2, max_attempts=2)
    drained(queue, 2)
    queue.complete("a", 3)
    queue.fail("b", 3)
    assert queue.reserve(5) == "b"  # a lease of its own, until 15

    assert queue.reserve(14.9) is None
    queue.complete("b", 14.9)

    assert queue.dead_letter_queue() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.enqueue("new", 1, 11),
        lambda queue: queue.reserve(11),
        lambda queue: queue.complete("other", 11),
        lambda queue: queue.fail("other", 11),
        lambda queue: queue.renew("other", 11),
        lambda queue: queue.replay("dead", 11),
    ],
    ids=["enqueue", "reserve", "complete", "fail", "renew", "replay"],
)
def test_J5_every_call_with_a_now_sees_an_expiry(call: Callable[[FaultTolerantQueue], object]) -> None:
    queue = made("dead", lease=10, max_attempts=1)
    killed(queue, "dead", 0)
    queue.enqueue("held", 0, 0)
    queue.reserve(0)
    queue.enqueue("other", 0, 5)
    queue.reserve(5)

    call(queue)

    assert queue.status("held") is Status.FAILED


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.enqueue("held", 1, 11),
        lambda queue: queue.enqueue("new", 1, 11, depends_on=["ghost"]),
        lambda queue: queue.complete("ghost", 11),
        lambda queue: queue.fail("ready", 11),
        lambda queue: queue.renew("ready", 11),
        lambda queue: queue.replay("ready", 11),
    ],
    ids=["enqueue, id in use", "enqueue, unknown dependency", "complete", "fail", "renew", "replay"],
)
def test_J5_a_refused_call_notes_an_expiry_at_its_own_instant_and_moves_time_no_further(
    call: Callable[[FaultTolerantQueue], object],
) -> None:
    queue = made("held", "ready", lease=10, cooldown=3)
    queue.reserve(0)

    with pytest.raises(UsageError):
        call(queue)

    assert queue.status("held") is Status.SCHEDULED
    assert queue.reserve(10) == "ready", "the latest now is the expiry at 10, not the refused call's 11"
    with pytest.raises(UsageError, match="10 already"):
        queue.reserve(9)
    assert queue.reserve(13) == "held"


def test_J5_a_call_refused_for_its_now_notes_no_expiry() -> None:
    queue = made("a", lease=10)
    queue.reserve(0)

    with pytest.raises(UsageError):
        queue.reserve(float("inf"))

    assert queue.status("a") is Status.RUNNING


def test_J5_a_cooldown_function_that_raises_at_an_expiry_ends_the_task() -> None:
    queue = FaultTolerantQueue(5, lease=10)
    queue.enqueue("a", _raises, 0)
    queue.enqueue("b", 0, 0)
    queue.reserve(0)

    assert queue.reserve(10) == "b"
    assert queue.dead_letter_queue() == ["a"]


# --- J6: replay -------------------------------------------------------------------------------------


def test_J6_a_replayed_task_has_its_original_place() -> None:
    queue = made("a", "b", max_attempts=1)
    killed(queue, "a", 1)

    queue.replay("a", 5)

    assert queue.dead_letter_queue() == []
    assert drained(queue, 5) == ["a", "b"]


def test_J6_a_replayed_task_has_all_its_attempts_again() -> None:
    queue = made("a", max_attempts=2, cooldown=0)
    for _ in range(2):
        killed(queue, "a", 1)
    queue.replay("a", 2)

    killed(queue, "a", 3)
    assert queue.dead_letter_queue() == []
    killed(queue, "a", 4)

    assert queue.dead_letter_queue() == ["a"]


def test_J6_without_dependents_those_it_cancelled_stay_cancelled() -> None:
    queue = made("a", max_attempts=1)
    queue.enqueue("b", 0, 1, depends_on=["a"])
    killed(queue, "a", 2)

    queue.replay("a", 3)

    assert queue.status("b") is Status.CANCELLED
    assert drained(queue, 3) == ["a"]


def test_J6_with_dependents_a_whole_diamond_comes_back_and_runs_in_order() -> None:
    queue = made("a", max_attempts=1)
    queue.enqueue("b", 0, 1, depends_on=["a"])
    queue.enqueue("c", 0, 1, depends_on=["a"])
    queue.enqueue("d", 0, 1, depends_on=["b", "c"])
    killed(queue, "a", 2)
    queue.enqueue("e", 0, 3, depends_on=["d"])  # cancelled at once, because of a all the same

    queue.replay("a", 4, with_dependents=True)

    assert [queue.status(task_id) for task_id in "abcde"] == [Status.READY, *[Status.BLOCKED] * 4]
    for task_id in "abcde":
        assert queue.reserve(5) == task_id
        queue.complete(task_id, 5)
    assert queue.reserve(5) is None


def test_J6_those_it_cancelled_are_remembered_over_a_replay_without_them() -> None:
    queue = made("a", max_attempts=1)
    queue.enqueue("b", 0, 1, depends_on=["a"])
    killed(queue, "a", 2)
    queue.replay("a", 3)
    killed(queue, "a", 4)

    queue.replay("a", 5, with_dependents=True)

    assert queue.status("b") is Status.BLOCKED


def test_J6_a_dependent_of_two_dead_tasks_comes_back_when_both_do() -> None:
    queue = made("a", "b", max_attempts=1)
    queue.enqueue("c", 0, 2, depends_on=["a", "b"])
    drained(queue, 3)
    queue.fail("a", 3)
    queue.fail("b", 3)

    queue.replay("a", 4, with_dependents=True)
    assert queue.status("c") is Status.CANCELLED, "b is still dead"
    queue.replay("b", 5, with_dependents=True)

    assert queue.status("c") is Status.BLOCKED
    for task_id in "abc":
        assert queue.reserve(6) == task_id
        queue.complete(task_id, 6)


def test_J6_a_cancelled_task_can_be_replayed_once_its_dependency_is_alive_again() -> None:
    queue = made("a", max_attempts=1)
    queue.enqueue("b", 0, 1, depends_on=["a"])
    killed(queue, "a", 2)
    with pytest.raises(UsageError, match=r"'b' depends on 'a', which is dead; replay 'a'"):
        queue.replay("b", 3)
    queue.replay("a", 3)

    queue.replay("b", 3)

    assert queue.status("b") is Status.BLOCKED
    queue.reserve(4)
    queue.complete("a", 4)
    assert queue.reserve(4) == "b"


def test_J6_a_second_death_is_a_letter_again_at_the_end() -> None:
    queue = made("a", "b", max_attempts=1)
    drained(queue, 2)
    queue.fail("a", 2)
    queue.fail("b", 2)

    queue.replay("a", 3)
    killed(queue, "a", 4)

    assert queue.dead_letter_queue() == ["b", "a"]


# --- J7: growing cooldowns ----------------------------------------------------------------------------


def test_J7_the_cooldown_may_grow_with_the_failures() -> None:
    asked: list[int] = []

    def growing(failures: int) -> float:
        asked.append(failures)
        return 10.0 * failures

    queue = made("a", cooldown=growing, max_attempts=4)
    now = 0.0
    for failures in (1, 2, 3):
        queue.reserve(now)
        queue.fail("a", now)
        assert queue.reserve(now + 10 * failures - 0.001) is None
        now += 10 * failures
    assert queue.reserve(now) == "a"
    queue.fail("a", now)

    assert queue.dead_letter_queue() == ["a"]
    assert asked == [1, 2, 3], "asked once a failure, and not for the last, after which nothing is waited for"


def test_J7_the_ordering_rule_stays_with_growing_cooldowns() -> None:
    queue = made("a", "b", cooldown=lambda failures: 2**failures, max_attempts=9)
    for now in (2, 4):  # a: until 4, then until 8
        queue.reserve(now)
        queue.fail("a", now)
    queue.enqueue("c", 0, 5)

    assert drained(queue, 8) == ["a", "b", "c"]


def test_J7_a_replayed_task_grows_from_the_beginning() -> None:
    asked: list[int] = []

    def noted(failures: int) -> float:
        asked.append(failures)
        return 0

    queue = made("a", cooldown=noted, max_attempts=3)
    for _ in range(3):
        killed(queue, "a", 0)
    queue.replay("a", 0)

    killed(queue, "a", 0)

    assert asked == [1, 2, 1]


@pytest.mark.parametrize("verb", ["reserve", "fail", "complete"])
def test_J7_the_docstring_says_what_a_call_costs(verb: str) -> None:
    assert "O(log n) amortised" in (getattr(FaultTolerantQueue, verb).__doc__ or "")


def test_J7_a_task_costs_a_few_comparisons_whatever_waits_beside_it() -> None:
    """Counts the instants and places that are compared, since seconds would say little."""
    tasks = 4096
    queue = FaultTolerantQueue(2, lease=Counted(1e6))
    for number in range(tasks):
        queue.enqueue(str(number), Counted(1), Counted(0))
    Counted.comparisons = 0

    for number in range(tasks):
        queue.reserve(Counted(1))
        queue.fail(str(number), Counted(1))
    for number in range(tasks):
        queue.reserve(Counted(2))
        queue.complete(str(number), Counted(2))

    # 3 heaps, of depth 12 at most, and some checks of `now`: no call looks at all that waits.
    assert Counted.comparisons / (4 * tasks) < 3 * 2 * 12


class Counted(float):
    """A number that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return float.__lt__(self, other)

    def __le__(self, other: float) -> bool:
        Counted.comparisons += 1
        return float.__le__(self, other)

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return float.__eq__(self, other)

    __hash__ = float.__hash__

    def __add__(self, other: float) -> "Counted":
        return Counted(float.__add__(self, other))


# --- against a list -----------------------------------------------------------------------------------


@dataclass
class Known:
    """One task of the model."""

    id: str
    cooldowns: tuple[int, ...]
    needs: list["Known"]
    status: Status = Status.READY
    failures: int = 0
    eligible_at: float = 0
    expires_at: float = 0
    cut_by: "Known | None" = None


@dataclass
class Naive:
    """Contract J with lists and loops alone."""

    max_attempts: int
    lease: int | None
    tasks: list[Known] = field(default_factory=list)
    dead: list[Known] = field(default_factory=list)
    now: float = 0

    def pass_to(self, now: float) -> None:
        while self.lease is not None:
            late = [task for task in self.tasks if task.status is Status.RUNNING and task.expires_at <= now]
            if not late:
                break
            first = min(late, key=lambda task: task.expires_at)  # the earliest enqueued among equals
            self.failed(first, first.expires_at)
        self.now = now
        for task in self.tasks:
            if task.status is Status.SCHEDULED and now >= task.eligible_at:
                task.status = Status.READY

    def failed(self, task: Known, at: float) -> None:
        task.failures += 1
        if task.failures < self.max_attempts:
            task.eligible_at = at + task.cooldowns[task.failures - 1]
            # Without a cooldown it does not rest at all.
            task.status = Status.SCHEDULED if task.eligible_at > at else Status.READY
            return
        task.status = Status.FAILED
        self.dead.append(task)
        self.cut([task])

    def cut(self, because: list[Known]) -> None:
        for dependency in because:
            for task in self.tasks:
                if task.status is Status.BLOCKED and dependency in task.needs:
                    task.status = Status.CANCELLED
                    task.cut_by = dependency
                    because.append(task)

    def settle_new(self, task: Known) -> None:
        bad = [need for need in task.needs if need.status in {Status.FAILED, Status.CANCELLED}]
        if bad:
            task.status = Status.CANCELLED
            task.cut_by = bad[0]
        elif all(need.status is Status.SUCCEEDED for need in task.needs):
            task.status = Status.READY
        else:
            task.status = Status.BLOCKED

    def reserve(self) -> str | None:
        for task in self.tasks:
            if task.status is Status.READY:
                task.status = Status.RUNNING
                task.expires_at = self.now + (self.lease or 0)
                return task.id
        return None

    def complete(self, task: Known) -> None:
        task.status = Status.SUCCEEDED
        for other in self.tasks:
            if other.status is Status.BLOCKED:
                self.settle_new(other)

    def replay(self, task: Known, *, with_dependents: bool) -> None:
        back = [task]
        for dead in back:
            if with_dependents:
                back += [other for other in self.tasks if other.cut_by is dead]
        for one in sorted(back, key=self.tasks.index):
            if one in self.dead:
                self.dead.remove(one)
            one.failures = 0
            one.cut_by = None
            self.settle_new(one)


@settings(max_examples=80)
@given(st.data())
def test_J_the_queue_does_what_a_list_would_do(data: st.DataObject) -> None:
    lease = data.draw(st.sampled_from([None, 1, 4]), label="lease")
    model = Naive(data.draw(st.integers(1, 3), label="max_attempts"), lease)
    queue = FaultTolerantQueue(model.max_attempts, lease=lease)
    for _ in range(data.draw(st.integers(1, 40), label="steps")):
        step_both(data, queue, model)
        assert [queue.status(task.id) for task in model.tasks] == [task.status for task in model.tasks]
        assert queue.dead_letter_queue() == [task.id for task in model.dead]
        queue._scheduler.check_invariants()


def step_both(data: st.DataObject, queue: FaultTolerantQueue, model: Naive) -> None:
    """Let time pass and make one call of both."""
    now = model.now + data.draw(st.integers(0, 3), label="passed")
    verb = data.draw(st.sampled_from(["enqueue", "reserve", "reserve", "complete", "fail", "renew", "replay"]))
    if verb == "enqueue" or not model.tasks:
        cooldowns = tuple(data.draw(st.lists(st.integers(0, 3), min_size=2, max_size=2), label="cooldowns"))
        needs = data.draw(st.lists(st.sampled_from(model.tasks), max_size=3, unique_by=id)) if model.tasks else []
        task = Known(str(len(model.tasks)), cooldowns, needs)
        queue.enqueue(task.id, lambda failures: cooldowns[failures - 1], now, [need.id for need in needs])
        model.pass_to(now)
        model.settle_new(task)
        model.tasks.append(task)
        return
    if verb == "reserve":
        reserved = queue.reserve(now)
        model.pass_to(now)
        assert reserved == model.reserve()
        return
    with_dependents = data.draw(st.booleans(), label="with dependents")
    task = data.draw(st.sampled_from(model.tasks), label="task")
    # An accepted call is what both are compared by: what time brings is the model's to say first.
    queue.enqueue(f"at {now}, {len(model.tasks)}", 0, now)
    filler = Known(f"at {now}, {len(model.tasks)}", (0, 0), [])
    model.pass_to(now)
    model.tasks.append(filler)
    if verb == "replay":
        hindered = any(need.status in {Status.FAILED, Status.CANCELLED} for need in task.needs)
        if task.status not in {Status.FAILED, Status.CANCELLED} or hindered:
            with pytest.raises(UsageError):
                queue.replay(task.id, now, with_dependents=with_dependents)
        else:
            queue.replay(task.id, now, with_dependents=with_dependents)
            model.replay(task, with_dependents=with_dependents)
    elif task.status is not Status.RUNNING:
        with pytest.raises(NotReservedError):
            getattr(queue, verb)(task.id, now)
    else:
        getattr(queue, verb)(task.id, now)
        if verb == "complete":
            model.complete(task)
        elif verb == "fail":
            model.failed(task, now)
        else:
            task.expires_at = now + (lease_of(model))


def lease_of(model: Naive) -> int:
    """Return the model's lease; without one it does not matter."""
    return model.lease or 0
