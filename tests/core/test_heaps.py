"""The heap of timers against a list that is sorted anew, and what its lazy deletion may cost (contract B3)."""

from collections.abc import Callable
from operator import itemgetter

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from procq.core.heaps import TimerHeap

SLACK = 64


class TimersAgainstAList(RuleBasedStateMachine):
    """A timer heap does what a list of (instant, rank, order of setting, key) does."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: TimerHeap[str] = TimerHeap()
        self.entries: list[tuple[int, int, int, int]] = []
        self.pushes = 0

    def forget(self, key: int) -> None:
        self.entries = [entry for entry in self.entries if entry[3] != key]

    @rule(key=st.integers(0, 6), at=st.integers(0, 5), rank=st.integers(0, 2))
    def set(self, key: int, at: int, rank: int) -> None:
        self.pushes += 1
        self.forget(key)
        self.entries.append((at, rank, self.pushes, key))
        self.heap.set(key, at, f"item {self.pushes}", rank)

    @rule(key=st.integers(0, 6))
    def discard(self, key: int) -> None:
        held = [f"item {entry[2]}" for entry in self.entries if entry[3] == key]
        self.forget(key)
        assert self.heap.discard(key) == (held[0] if held else None)

    @rule(now=st.integers(-1, 6))
    def pop_due(self, now: int) -> None:
        due = sorted(entry for entry in self.entries if now >= entry[0])
        popped = self.heap.pop_due(now)
        if due:
            self.forget(due[0][3])
            assert popped == f"item {due[0][2]}"
        else:
            assert popped is None

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.heap) == len(self.entries)
        assert sorted(self.heap) == sorted(f"item {entry[2]}" for entry in self.entries)
        assert all((key in self.heap) == any(entry[3] == key for entry in self.entries) for key in range(7))
        assert self.heap.next_at() == min(map(itemgetter(0), self.entries), default=None)
        assert len(self.heap._heap) <= 2 * len(self.heap) + SLACK


TestTimersAgainstAList = TimersAgainstAList.TestCase
TestTimersAgainstAList.settings = settings(max_examples=50)


def test_B3_a_timer_is_due_exactly_at_its_instant() -> None:
    timers: TimerHeap[str] = TimerHeap()
    timers.set("key", 5.0, "item")

    assert timers.pop_due(4.999999) is None
    assert timers.pop_due(5.0) == "item"


def test_B3_equal_instants_come_out_by_rank_and_then_by_order_of_setting() -> None:
    timers: TimerHeap[str] = TimerHeap()
    for key, rank in (("c", 2), ("a", 1), ("b", 1)):
        timers.set(key, 1.0, key, rank)

    assert [timers.pop_due(1.0) for _ in range(3)] == ["a", "b", "c"]


def test_B3_keys_need_not_be_comparable() -> None:
    timers: TimerHeap[int] = TimerHeap()
    keys = [object() for _ in range(20)]
    for number, key in enumerate(keys):
        timers.set(key, 1.0, number)

    assert [timers.pop_due(1.0) for _ in keys] == list(range(20))


def _by_discarding(timers: TimerHeap[int]) -> None:
    for key in range(1, 10_000):
        timers.discard(key)


def _by_setting_anew(timers: TimerHeap[int]) -> None:
    for _ in range(10_000):
        timers.set(0, 1e6, 0)


@pytest.mark.parametrize("make_stale", [_by_discarding, _by_setting_anew])
def test_B3_ten_thousand_stale_timers_do_not_stay_in_memory(make_stale: Callable[[TimerHeap[int]], None]) -> None:
    timers: TimerHeap[int] = TimerHeap()
    for key in range(10_000):
        timers.set(key, float(10_000 - key), key)

    make_stale(timers)

    assert len(timers._heap) <= 2 * len(timers) + SLACK


def test_B3_compaction_costs_a_constant_for_each_operation() -> None:
    """Counts how many entries are looked at, over a life of setting and discarding."""
    timers = CountingTimers()
    operations = 0
    for round_number in range(5):
        for key in range(2000):
            timers.set(key, float(key * (round_number + 1) % 977), key)
            operations += 1
        for key in range(0, 2000, 2):
            timers.discard(key)
            operations += 1

    assert timers.looked_at < 4 * operations


class CountingTimers(TimerHeap[int]):
    """Counts the entries whose liveness is asked for."""

    __slots__ = ("looked_at",)

    def __init__(self) -> None:
        super().__init__()
        self.looked_at = 0

    def _is_live(self, entry: tuple[float, int, int, object]) -> bool:
        self.looked_at += 1
        return super()._is_live(entry)
