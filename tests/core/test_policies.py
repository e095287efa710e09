"""Ageing and weighted shares keep the bounds that they state (contract B5, B6)."""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st
from tests.core.hand import Hand

from procq import Aging, Priority, WeightedFair, errors
from procq.core.task import Task

#: Points of priority that a second of waiting is worth, as `AGING` has it: whole, so that nothing is rounded.
POINTS_PER_S = 5
AGING = Aging(seconds_per_level=2)

#: What a test does next: submit with this priority, let seconds pass, or start what comes next.
Step = tuple[str, int]
priorities = st.integers(-30, 30)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), priorities),
        st.tuples(st.just("pass"), st.integers(1, 8)),
        st.tuples(st.just("start"), st.just(0)),
    ),
    max_size=60,
)


# --- ageing ---


def each_start(steps: Sequence[Step], look: Callable[[Hand, str, list[str]], None]) -> None:
    """Go through the steps, and at each start look at the task that starts and at those that wait on."""
    hand = Hand(policy=AGING)
    waiting: list[str] = []
    for number, (step, value) in enumerate([*steps, *[("start", 0)] * len(steps)]):
        if step == "submit":
            hand.submit(str(number), priority=value)
            waiting.append(str(number))
        elif step == "pass":
            hand.pass_to(hand.now + value)
        elif waiting:
            started = hand.start()
            assert started is not None
            waiting.remove(started)
            hand.end(started)
            look(hand, started, waiting)
    assert not waiting


@given(steps)
def test_B5_at_every_start_nobody_has_more_of_priority_and_waiting_together(steps: Sequence[Step]) -> None:
    def look(hand: Hand, started: str, waiting: list[str]) -> None:
        def points(task_id: str) -> float:
            task = hand.tasks[task_id]
            return task.rules.priority + (hand.now - task.submitted_at) * POINTS_PER_S

        assert all(points(started) >= points(other) for other in waiting)

    each_start(steps, look)


@given(steps)
def test_B5_nobody_is_overtaken_by_what_came_later_than_the_bound_says(steps: Sequence[Step]) -> None:
    """`Aging`: later than `(their priority - its own) / 10 * seconds_per_level` after it."""

    def look(hand: Hand, started: str, waiting: list[str]) -> None:
        fast = hand.tasks[started]
        for other in waiting:
            slow = hand.tasks[other]
            ahead_s = (fast.rules.priority - slow.rules.priority) / 10 * AGING.seconds_per_level
            assert fast.submitted_at - slow.submitted_at <= ahead_s

    each_start(steps, look)


def test_B5_a_low_task_starts_in_the_end_though_urgent_ones_keep_coming() -> None:
    hand = Hand(policy=Aging("30s"))
    hand.submit("low", priority=Priority.LOW)
    order = []
    for second in range(120):
        hand.pass_to(float(second))
        hand.submit(f"critical {second}", priority=Priority.CRITICAL)
        started = hand.start()
        assert started is not None
        hand.end(started)
        order.append(started)

    assert order.index("low") == 3 * 30, "three levels at 30 s each; what comes in that very instant comes after it"


def test_B1_where_nobody_ages_it_never_does() -> None:
    hand = Hand()
    hand.submit("low", priority=Priority.LOW)
    for second in range(500):
        hand.pass_to(float(second))
        hand.submit(f"critical {second}", priority=Priority.CRITICAL)
        hand.run(f"critical {second}")


@pytest.mark.parametrize(("sign", "rank"), [(1, -math.inf), (-1, math.inf)])
def test_B5_a_priority_that_no_float_can_hold_is_as_good_as_infinite(sign: int, rank: float) -> None:
    assert Aging().rank(sign * 10**400, 5.0) == rank


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, r"seconds_per_level=0: must be longer than 0"),
        (-1, r"seconds_per_level=-1: a duration must be finite and at least 0"),
        ("soon", r"seconds_per_level='soon': can't read this duration"),
    ],
)
def test_B5_what_a_level_cannot_be_worth_is_refused(value: float | str, message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        Aging(value)


# --- shares ---

WEIGHTS = {20: 8, 10: 4, 0: 2, -10: 1}


def level_of(priority: int) -> int:
    """Return the level of a priority among `WEIGHTS`, by its floor."""
    return next((floor for floor in WEIGHTS if priority >= floor), -10)


@given(
    weights=st.dictionaries(st.integers(-3, 3), st.integers(1, 9), min_size=2, max_size=4),
    script=st.lists(
        st.tuples(st.sampled_from(["submit", "submit", "start", "end", "cancel"]), st.randoms()), max_size=90
    ),
)
@settings(max_examples=200)
def test_B6_two_levels_that_always_have_something_differ_by_no_more_than_the_bound(
    weights: dict[int, int], script: list[tuple[str, random.Random]]
) -> None:
    """`WeightedFair`: over any stretch `|a / v - b / w| <= 1 / v + 1 / w`; limits and cancels included."""
    hand = Hand(policy=WeightedFair(weights), limits={"limited": 1})
    levels = sorted(weights)
    ready: list[str] = []
    running: list[str] = []
    #: each start: its level, and the levels that had anything that might start
    starts: list[tuple[int, set[int]]] = []
    for number, (step, chance) in enumerate(script):
        if step == "submit":
            hand.submit(str(number), priority=chance.choice(levels), type_name=chance.choice(["t", "t", "limited"]))
            ready.append(str(number))
        elif step == "cancel" and ready:
            hand.cancel(ready.pop(chance.randrange(len(ready))))
        elif step == "end" and running:
            hand.end(running.pop(chance.randrange(len(running))))
        elif step == "start":
            is_taken = any(hand.tasks[one].type == "limited" for one in running)
            may_start = {
                hand.tasks[one].rules.priority for one in ready if not (is_taken and hand.tasks[one].type == "limited")
            }
            started = hand.start()
            assert (started is not None) == bool(may_start)
            if started is not None:
                ready.remove(started)
                running.append(started)
                starts.append((hand.tasks[started].rules.priority, may_start))
    for one, other in combinations(levels, 2):
        bound = Fraction(1, weights[one]) + Fraction(1, weights[other])
        for begin in range(len(starts)):
            counts = {one: 0, other: 0}
            for level, may_start in starts[begin:]:
                if not {one, other} <= may_start:
                    break
                if level in counts:
                    counts[level] += 1
                assert abs(Fraction(counts[one], weights[one]) - Fraction(counts[other], weights[other])) <= bound


def test_B6_of_starts_in_a_row_every_level_gets_its_share() -> None:
    """`WeightedFair`: no fewer than `n * w / sum - (levels - 1)`; here it is exact over each round of 15."""
    hand = Hand(policy=WeightedFair(WEIGHTS))
    for number in range(60):
        for priority in WEIGHTS:
            hand.submit(f"{priority}/{number}", priority=priority)

    for _ in range(4):
        counts = dict.fromkeys(WEIGHTS, 0)
        for _ in range(15):
            started = hand.start()
            assert started is not None
            counts[hand.tasks[started].rules.priority] += 1
        assert counts == WEIGHTS


def test_B6_within_a_level_the_highest_priority_comes_first_and_then_the_first_submitted() -> None:
    hand = Hand(policy=WeightedFair({0: 1}))
    for number, priority in enumerate([0, 5, -50, 5, 99, 0]):
        hand.submit(f"{priority}/{number}", priority=priority)

    assert hand.start_all() == ["99/4", "5/1", "5/3", "0/0", "0/5", "-50/2"]


@given(priorities)
def test_B6_a_priority_belongs_to_the_highest_level_that_is_not_above_it(priority: int) -> None:
    fair = WeightedFair(WEIGHTS)

    assert list(fair.weights)[fair.level(priority)] == level_of(priority)


def test_B6_a_level_that_had_nothing_to_do_is_owed_nothing() -> None:
    hand = Hand(policy=WeightedFair({10: 1, 0: 1}))
    for number in range(40):
        hand.submit(f"old/{number}", priority=0)
    for number in range(20):
        hand.run(f"old/{number}")
    for number in range(20):
        hand.submit(f"new/{number}", priority=10)

    order = [started.partition("/")[0] for started in (hand.start() for _ in range(10)) if started is not None]

    assert order == ["new", *["new", "old"] * 4, "new"], "one turn more than half, as the bound allows, not twenty"


def test_B6_what_is_taken_back_gives_its_level_the_turn_back() -> None:
    hand = Hand(policy=WeightedFair({10: 3, 0: 1}))
    for number in range(8):
        hand.submit(f"high/{number}", priority=10)
        hand.submit(f"low/{number}", priority=0)
    for _ in range(5):
        task = hand.scheduler.next_ready()
        assert task is not None
        hand.scheduler.send_ahead(task)
    for task in list(hand.scheduler.ahead.values()):
        hand.scheduler.take_back(task)

    order = [started.partition("/")[0] for started in (hand.start() for _ in range(8)) if started is not None]

    assert order == ["high", "low", "high", "high", "high", "low", "high", "high"]


def give_out(hand: Hand) -> Task:
    """Send what comes next ahead of somebody; of either level there is always more."""
    for priority in (10, 0):
        hand.submit(f"{priority}/{len(hand.tasks)}", priority=priority)
    task = hand.scheduler.next_ready()
    assert task is not None
    hand.scheduler.send_ahead(task)
    return task


@given(
    weights=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    script=st.lists(
        st.tuples(st.sampled_from(["send", "begin", "begin", "back"]), st.integers(0, 2), st.integers(1, 5)),
        max_size=150,
    ),
)
@settings(max_examples=200)
def test_B6_what_is_ahead_of_several_workers_adds_no_more_than_the_bound_says(
    weights: tuple[int, int], script: list[tuple[str, int, int]]
) -> None:
    """`WeightedFair`: over any stretch `|a / v - b / w| <= 1 / v + 1 / w + 2 * A / min(v, w)`."""
    hand = Hand(policy=WeightedFair({10: weights[0], 0: weights[1]}))
    workers: list[deque[Task]] = [deque() for _ in range(3)]
    apart = lowest = highest = Fraction(0)
    ahead = 0
    for step, number, count in script:
        worker = workers[number]
        for _ in range(count if step == "send" else min(count, len(worker))):
            if step == "send":
                worker.append(give_out(hand))
            elif step == "back":  # what would begin last
                hand.scheduler.take_back(worker.pop())
            else:
                task = worker.popleft()
                hand.scheduler.start(task, hand.now)
                apart += Fraction(1, weights[0]) if task.rules.priority == 10 else -Fraction(1, weights[1])
                lowest, highest = min(lowest, apart), max(highest, apart)
        ahead = max(ahead, sum(map(len, workers)))

    assert highest - lowest <= sum(Fraction(1, one) for one in weights) + Fraction(2 * ahead, min(weights))


def test_B6_a_level_whose_tasks_are_taken_back_again_and_again_is_still_owed_its_turns() -> None:
    """Others that were given out later have begun meanwhile; that is no reason to forget it."""
    hand = Hand(policy=WeightedFair({10: 1, 0: 1}))
    begun = 0
    for _ in range(50):
        given_out = [give_out(hand) for _ in range(4)]
        for task in given_out:
            if task.rules.priority == 0:
                hand.scheduler.start(task, hand.now)
                begun += 1
        for task in given_out:
            if task.rules.priority == 10:
                hand.scheduler.take_back(task)

    assert begun <= 1 + 1 + 2 * 4, "or the other level would have to begin"


def test_B8_a_level_that_comes_to_life_overtakes_what_was_sent_ahead() -> None:
    hand = Hand(policy=WeightedFair({10: 1, 0: 1}))
    sent = [hand.submit(f"low/{number}", priority=0) for number in range(4)]
    for _ in sent:
        task = hand.scheduler.next_ready()
        assert task is not None
        hand.scheduler.send_ahead(task)
    assert hand.scheduler.next_ready() is None
    urgent = hand.submit("high", priority=10)

    assert hand.scheduler.overtaken_by(urgent) is sent[3]
    hand.scheduler.take_back(sent[3])
    hand.scheduler.send_ahead(urgent)

    assert hand.scheduler.next_ready() is sent[3]
    assert hand.scheduler.overtaken_by(sent[3]) is None, "they do not take turns at taking each other back"
    hand.scheduler.check_invariants()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, r"WeightedFair\({}\): needs at least one level"),
        ([3, 1], r"WeightedFair\(\[3, 1\]\): expected weights by priority"),
        ({0: 0}, r"weights\[0\]=0: must be at least 1"),
        ({0: 1.5}, r"weights\[0\]=1.5: expected a whole number"),
        ({"high": 1}, r"'high' is no priority"),
        ({True: 1}, r"True is no priority"),
    ],
)
def test_B6_weights_that_cannot_be_are_refused(weights: dict[int, int], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        WeightedFair(weights)
