"""A type that keeps failing is held back, and let through again by a probe (contract D8)."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings, strategies as st
from tests.core.hand import Hand

from procq import Breaker, Status, errors
from procq.core.breaker import Circuit

if TYPE_CHECKING:
    from procq.outcome import Outcome


def hand_with_breaker(*, limit: int | None = None, cool_down: float = 30) -> Hand:
    """Return a scheduler whose type "fetch" is held back after 3 failures within 60 s."""
    limits = None if limit is None else {"fetch": limit}
    return Hand(limits=limits, breakers={"fetch": Breaker(failures=3, window=60, cool_down=cool_down)})


def fail(hand: Hand, task_id: str, outcome: "Outcome" = "error") -> None:
    """Submit, start and fail a task that is not tried again."""
    hand.submit(task_id, type_name="fetch")
    hand.run(task_id, outcome)


def opened(**how: float) -> Hand:
    """Return a scheduler whose breaker has just opened, at 0 s, with two more tasks waiting."""
    hand = hand_with_breaker(**how)  # type: ignore[arg-type]  # what mypy makes of **
    for number in range(3):
        fail(hand, f"bad/{number}")
    for number in range(2):
        hand.submit(f"next/{number}", type_name="fetch")
    return hand


def circuit_of(hand: Hand) -> Circuit:
    circuit = hand.scheduler.gates["fetch"].circuit
    assert circuit is not None
    return circuit


def test_D8_after_so_many_failures_nothing_of_the_type_starts_and_all_else_does() -> None:
    hand = opened()
    hand.submit("other", priority=-5)

    assert circuit_of(hand).state == "open"
    assert hand.start_all() == ["other"]
    assert hand.statuses(["next/0", "next/1"]) == [Status.READY] * 2


def test_D8_one_failure_fewer_leaves_it_closed() -> None:
    hand = hand_with_breaker()
    fail(hand, "bad/0")
    fail(hand, "bad/1")
    hand.submit("next", type_name="fetch")

    assert hand.start() == "next"


def test_D8_failures_further_apart_than_the_window_do_not_count_together() -> None:
    hand = hand_with_breaker()
    for number in range(6):
        hand.pass_to(number * 31.0)
        fail(hand, f"bad/{number}")

    assert circuit_of(hand).state == "closed"
    hand.pass_to(hand.now + 60 - 31)
    fail(hand, "bad/last")

    assert circuit_of(hand).state == "open", "three within exactly 60 s"


@pytest.mark.parametrize("outcome", ["error", "timeout", "crash", "memory", "lost"])
def test_D8_every_charged_failure_counts_whatever_its_kind(outcome: "Outcome") -> None:
    hand = hand_with_breaker()
    for number in range(3):
        fail(hand, str(number), outcome)

    assert circuit_of(hand).state == "open"


def test_D8_failures_that_are_retried_count_as_well() -> None:
    hand = hand_with_breaker()
    hand.submit("flaky", type_name="fetch", max_attempts=9)
    for _ in range(3):
        hand.run("flaky", "error")
        hand.pass_to(hand.now + 10)

    assert circuit_of(hand).state == "open"
    assert hand.status("flaky") == Status.READY
    assert hand.tasks["flaky"].attempts == 3


def test_D8_what_is_not_charged_does_not_count() -> None:
    hand = hand_with_breaker()
    for number in range(4):
        hand.submit(f"later/{number}", type_name="fetch")
        assert hand.start() == f"later/{number}"
        hand.end(f"later/{number}", "error", retry_after_s=1000)
        hand.submit(f"gone/{number}", type_name="fetch")
        hand.run(f"gone/{number}", "cancelled")
    hand.submit("cut", type_name="fetch")
    for _ in range(4):
        hand.run("cut", "interrupted")

    assert circuit_of(hand).state == "closed"


def test_D8_when_it_has_cooled_down_one_probe_is_let_through_and_no_other() -> None:
    hand = opened()
    assert hand.scheduler.next_due() == 30
    hand.pass_to(29.5)
    assert hand.start_all() == []

    hand.pass_to(30)

    assert circuit_of(hand).state == "half-open"
    assert hand.start_all() == ["next/0"]


def test_D8_a_probe_that_succeeds_closes_it() -> None:
    hand = opened()
    hand.pass_to(30)
    hand.run("next/0")

    assert circuit_of(hand).state == "closed"
    assert hand.start_all() == ["next/1"]
    hand.end("next/1", "error")
    assert circuit_of(hand).state == "closed", "the failures before it are forgotten"


def test_D8_a_probe_that_fails_opens_it_for_as_long_again() -> None:
    hand = opened()
    hand.pass_to(31)
    assert hand.start() == "next/0"
    hand.pass_to(35)
    hand.end("next/0", "error")

    assert circuit_of(hand).state == "open"
    assert hand.scheduler.next_due() == 65
    hand.pass_to(65)
    assert hand.start_all() == ["next/1"]


@pytest.mark.parametrize("outcome", ["cancelled", "interrupted"])
def test_D8_a_probe_that_says_nothing_is_followed_by_another(outcome: "Outcome") -> None:
    hand = opened()
    hand.pass_to(30)
    assert hand.start() == "next/0"
    hand.end("next/0", outcome)

    assert circuit_of(hand).state == "half-open"
    assert len(hand.start_all()) == 1


def test_D8_a_probe_that_never_began_is_followed_by_another() -> None:
    hand = opened()
    hand.pass_to(30)
    assert hand.start() == "next/0"
    hand.scheduler.put_back(hand.tasks["next/0"], hand.now)

    assert hand.start_all() == ["next/0"]


def test_D8_what_had_started_before_it_opened_changes_nothing_any_more() -> None:
    hand = hand_with_breaker()
    for number in range(5):
        hand.submit(f"old/{number}", type_name="fetch")
    hand.start_all()
    for number in range(3):
        hand.end(f"old/{number}", "error")
    hand.submit("next", type_name="fetch")
    hand.pass_to(20)
    hand.end("old/3", "error")
    assert circuit_of(hand).opened_until == 30

    hand.pass_to(30)
    assert hand.start() == "next"
    hand.end("old/4")

    assert circuit_of(hand).state == "half-open", "only the probe decides"


def test_D8_a_limit_holds_beside_it() -> None:
    hand = opened(limit=1)
    hand.pass_to(30)
    hand.run("next/0")
    hand.submit("next/2", type_name="fetch")

    assert hand.start_all() == ["next/1"]


def test_D8_what_is_held_can_be_cancelled_and_expires_and_is_cut_off() -> None:
    hand = opened()
    hand.submit("late", type_name="fetch", expires_s=5)

    assert hand.cancel("next/0") == "cancelled"
    hand.pass_to(5)
    hand.scheduler.cut_off(hand.now)

    assert hand.causes(["next/0", "late", "next/1"]) == ["cancelled", "expired", "shutdown"]


@given(
    failures=st.integers(1, 4),
    script=st.lists(
        st.tuples(st.sampled_from(["start", "ok", "error", "cancelled", "pass"]), st.integers(0, 9)), max_size=80
    ),
)
@settings(max_examples=150)
def test_D8_nothing_starts_while_it_is_open_and_one_at_a_time_until_a_probe_has_succeeded(
    failures: int, script: list[tuple[str, int]]
) -> None:
    hand = Hand(breakers={"fetch": Breaker(failures=failures, window=10, cool_down=5)})
    number = 0
    running: list[str] = []
    failed_at: list[float] = []  #: while it is closed
    open_until: float | None = None
    probe: str | None = None
    for step, value in script:
        if step == "pass":
            hand.pass_to(hand.now + value)
        elif step == "start":
            hand.submit(str(number), type_name="fetch")
            number += 1
            started = hand.start()
            is_held = open_until is not None and (hand.now < open_until or probe is not None)
            assert (started is None) == is_held
            if started is not None:
                running.append(started)
                probe = started if open_until is not None else None
        elif running:
            ended = running.pop(value % len(running))
            hand.end(ended, step)  # type: ignore[arg-type]  # one of three outcomes
            if ended == probe:
                probe = None
                if step == "ok":
                    open_until, failed_at = None, []
                elif step == "error":
                    open_until = hand.now + 5
            elif step == "error" and open_until is None:
                failed_at.append(hand.now)
                if len(failed_at) >= failures and hand.now - failed_at[-failures] <= 10:
                    open_until, failed_at = hand.now + 5, []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"failures": 0}, r"failures=0: must be at least 1"),
        ({"failures": True}, r"failures=True: expected a whole number"),
        ({"window": 0}, r"window=0: must be longer than 0"),
        ({"cool_down": "long"}, r"cool_down='long': can't read this duration"),
    ],
)
def test_D8_a_breaker_that_cannot_be_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        Breaker(**given)


def test_D8_it_may_cool_down_at_once() -> None:
    hand = opened(cool_down=0)
    hand.pass_to(0)

    assert hand.start_all() == ["next/0"]
