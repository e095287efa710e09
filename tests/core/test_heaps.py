"""The heaps against lists that are sorted anew, and what their lazy deletion may cost (contract B1, B3, B4)."""

from collections.abc import Callable
from operator import itemgetter

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.hand import FixedRules

from procq.core.heaps import ReadyHeap, TimerHeap
from procq.core.task import Task

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


# --- the ready heap -----------------------------------------------------------------------------------

LIMITS = {"one": 1, "two": 2}
TYPES = ("free", "one", "two")


def ready_task(seq: int, rank: float = 0, type_name: str = "free") -> Task:
    """Return a task that can be pushed."""
    task = Task(str(seq), type_name, b"", FixedRules())
    task.seq = seq
    task.rank = rank
    return task


class ReadyAgainstAList(RuleBasedStateMachine):
    """A ready heap does what a list of tasks sorted by (rank, seq) does, limits included."""

    def __init__(self) -> None:
        super().__init__()
        self.heap = ReadyHeap(LIMITS)
        self.tasks: list[Task] = []
        self.running: list[Task] = []
        self.seq = 0

    def first(self) -> Task | None:
        """Return what should come next."""
        taken = [task.type for task in self.running]
        may_start = [task for task in self.tasks if taken.count(task.type) < LIMITS.get(task.type, 1000)]
        return min(may_start, key=lambda task: (task.rank, task.seq), default=None)

    @rule(rank=st.integers(-2, 2), type_name=st.sampled_from(TYPES))
    def push(self, rank: int, type_name: str) -> None:
        task = ready_task(self.seq, rank, type_name)
        self.seq += 1
        self.tasks.append(task)
        self.heap.push(task)

    @rule()
    def start(self) -> None:
        task = self.heap.peek()
        if task is not None:
            self.heap.pop(task)
            self.heap.take(task.type)
            self.tasks.remove(task)
            self.running.append(task)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.running:
            task = data.draw(st.sampled_from(self.running))
            self.running.remove(task)
            self.heap.release(task.type)
            if data.draw(st.booleans(), label="comes back"):
                self.tasks.append(task)
                self.heap.push(task)

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        if self.tasks:
            task = data.draw(st.sampled_from(self.tasks))
            self.tasks.remove(task)
            self.heap.discard(task)

    @invariant()
    def comes_in_the_same_order(self) -> None:
        assert self.heap.peek() is self.first()
        assert len(self.heap) == len(self.tasks)
        assert sorted(task.seq for task in self.heap) == sorted(task.seq for task in self.tasks)


TestReadyAgainstAList = ReadyAgainstAList.TestCase
TestReadyAgainstAList.settings = settings(max_examples=50)


@given(st.lists(st.integers(-100, 100), max_size=50))
def test_B1_ready_tasks_come_out_by_rank_and_then_by_sequence_number(ranks: list[int]) -> None:
    heap = ReadyHeap({})
    for seq, rank in enumerate(ranks):
        heap.push(ready_task(seq, rank))

    order = []
    while (task := heap.peek()) is not None:
        heap.pop(task)
        order.append((task.rank, task.seq))

    assert order == sorted((rank, seq) for seq, rank in enumerate(ranks))


def test_B4_at_most_the_limit_of_a_type_comes_out_and_the_next_one_after_a_release() -> None:
    heap = ReadyHeap({"video": 2})
    for seq in range(3):
        heap.push(ready_task(seq, type_name="video"))
    for _ in range(2):
        task = heap.peek()
        assert task is not None
        heap.pop(task)
        heap.take("video")

    assert heap.peek() is None
    assert heap.taken("video") == 2
    heap.release("video")

    assert heap.peek() is not None


def test_B4_a_saturated_type_that_is_more_urgent_does_not_delay_another() -> None:
    heap = ReadyHeap({"video": 1})
    heap.push(ready_task(0, rank=-9, type_name="video"))
    heap.push(ready_task(1, rank=0))
    heap.take("video")

    task = heap.peek()

    assert task is not None
    assert task.type == "free"


class Counted(float):
    """A rank that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return float.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return float.__eq__(self, other)

    __hash__ = float.__hash__


def comparisons_beside(saturated_types: int) -> int:
    """Return what 100 tasks of a free type cost while other types wait, saturated."""
    heap = ReadyHeap({f"type {number}": 1 for number in range(saturated_types)})
    for number in range(saturated_types):
        heap.take(f"type {number}")
        for copy in range(5):
            heap.push(ready_task(5 * number + copy, Counted(-1), f"type {number}"))
    Counted.comparisons = 0
    for seq in range(100):
        heap.push(ready_task(10**6 + seq, Counted(0)))
    for _ in range(100):
        task = heap.peek()
        assert task is not None
        assert task.type == "free"
        heap.pop(task)
    assert heap.peek() is None
    return Counted.comparisons


def test_B4_saturated_types_cost_nothing_however_many_they_are() -> None:
    assert comparisons_beside(1000) == comparisons_beside(1) > 0


def test_B4_the_heap_of_heads_stays_small_while_a_type_opens_and_closes() -> None:
    heap = ReadyHeap({"video": 1, "audio": 1})
    heap.push(ready_task(0, type_name="video"))
    for _ in range(10_000):
        heap.take("video")
        heap.release("video")

    assert len(heap._heads) <= 4 * 2 + SLACK
    assert heap.peek() is not None


@pytest.mark.parametrize("type_name", TYPES)
def test_B4_ten_thousand_cancelled_tasks_do_not_stay_in_memory(type_name: str) -> None:
    heap = ReadyHeap(LIMITS)
    tasks = [ready_task(seq, type_name=type_name) for seq in range(10_000)]
    for task in tasks:
        heap.push(task)

    for task in tasks[:-1]:
        heap.discard(task)

    held = [len(lane.heap) for lane in (heap._common, *heap._lanes.values())]
    assert sum(held) <= 2 * len(heap) + SLACK
    assert heap.peek() is tasks[-1]


def test_a_task_that_is_not_the_most_urgent_cannot_be_popped() -> None:
    heap = ReadyHeap({})
    first, second = ready_task(0), ready_task(1)
    heap.push(first)
    heap.push(second)

    with pytest.raises(AssertionError, match="not the most urgent"):
        heap.pop(second)
