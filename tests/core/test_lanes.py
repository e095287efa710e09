"""The ready lanes against a list that is sorted anew, and what their lazy deletion may cost (contract B1, B2, B4)."""

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.core.hand import FixedRules

from procq.core.gates import Gate
from procq.core.lanes import ReadyLanes
from procq.core.task import Task

SLACK = 64
LIMITS = {"one": 1, "two": 2}


def gates(**limits: int) -> dict[str, Gate]:
    """Return a gate for each type with a limit."""
    return {name: Gate(limit) for name, limit in limits.items()}


TYPES = ("free", "one", "two")


def ready_task(seq: int, rank: float = 0, type_name: str = "free") -> Task:
    """Return a task that can be pushed."""
    task = Task(str(seq), type_name, b"", FixedRules())
    task.seq = seq
    task.rank = rank
    return task


class ReadyAgainstAList(RuleBasedStateMachine):
    """Ready lanes do what a list of tasks sorted by (rank, seq) does, limits included."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = gates(**LIMITS)
        self.lanes = ReadyLanes(self.gates)
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
        self.lanes.push(task)

    @rule()
    def start(self) -> None:
        task = self.lanes.peek()
        if task is not None:
            self.lanes.pop(task)
            if task.type in self.gates:
                self.gates[task.type].take(task.seq)
            self.tasks.remove(task)
            self.running.append(task)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.running:
            task = data.draw(st.sampled_from(self.running))
            self.running.remove(task)
            if task.type in self.gates:
                self.gates[task.type].release()
            if data.draw(st.booleans(), label="comes back"):
                self.tasks.append(task)
                self.lanes.push(task)

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        if self.tasks:
            task = data.draw(st.sampled_from(self.tasks))
            self.tasks.remove(task)
            self.lanes.discard(task)

    @invariant()
    def comes_in_the_same_order(self) -> None:
        assert self.lanes.peek() is self.first()
        assert len(self.lanes) == len(self.tasks)
        assert sorted(task.seq for task in self.lanes) == sorted(task.seq for task in self.tasks)


TestReadyAgainstAList = ReadyAgainstAList.TestCase
TestReadyAgainstAList.settings = settings(max_examples=50)


class ReadyWithReturns(ReadyAgainstAList):
    """The same where what was taken out of the middle comes back, few ranks have a lane, and little may be stale."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: list[Task] = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("procq.core.lanes._MOST_LANES", 2)
        self.patch.setattr("procq.core.lanes.SLACK", 2)

    @rule(data=st.data(), copies=st.integers(1, 4))
    def cancel(self, data: st.DataObject, copies: int) -> None:
        for _ in range(min(copies, len(self.tasks))):
            task = data.draw(st.sampled_from(self.tasks))
            self.tasks.remove(task)
            self.gone.append(task)
            self.lanes.discard(task)

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        if self.gone:
            task = data.draw(st.sampled_from(self.gone))
            self.gone.remove(task)
            self.tasks.append(task)
            self.lanes.push(task)

    @invariant()
    def stands_well(self) -> None:
        self.lanes.check_invariants()

    def teardown(self) -> None:
        self.patch.undo()


TestReadyWithReturns = ReadyWithReturns.TestCase
TestReadyWithReturns.settings = settings(max_examples=50, stateful_step_count=80)


@given(st.lists(st.integers(-100, 100), max_size=50))
def test_B1_ready_tasks_come_out_by_rank_and_then_by_sequence_number(ranks: list[int]) -> None:
    lanes = ReadyLanes({})
    for seq, rank in enumerate(ranks):
        lanes.push(ready_task(seq, rank))

    order = []
    while (task := lanes.peek()) is not None:
        lanes.pop(task)
        order.append((task.rank, task.seq))

    assert order == sorted((rank, seq) for seq, rank in enumerate(ranks))


def test_B4_at_most_the_limit_of_a_type_comes_out_and_the_next_one_after_a_release() -> None:
    limited = gates(video=2)
    lanes = ReadyLanes(limited)
    for seq in range(3):
        lanes.push(ready_task(seq, type_name="video"))
    for _ in range(2):
        task = lanes.peek()
        assert task is not None
        lanes.pop(task)
        limited["video"].take(task.seq)

    assert lanes.peek() is None
    assert limited["video"].taken == 2
    limited["video"].release()

    assert lanes.peek() is not None


def test_B4_a_saturated_type_that_is_more_urgent_does_not_delay_another() -> None:
    limited = gates(video=1)
    lanes = ReadyLanes(limited)
    lanes.push(ready_task(0, rank=-9, type_name="video"))
    lanes.push(ready_task(1, rank=0))
    limited["video"].take(2)

    task = lanes.peek()

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
    limited = gates(**{f"type {number}": 1 for number in range(saturated_types)})
    lanes = ReadyLanes(limited)
    for number in range(saturated_types):
        limited[f"type {number}"].take(-1)
        for copy in range(5):
            lanes.push(ready_task(5 * number + copy, Counted(-1), f"type {number}"))
    Counted.comparisons = 0
    for seq in range(100):
        lanes.push(ready_task(10**6 + seq, Counted(0)))
    for _ in range(100):
        task = lanes.peek()
        assert task is not None
        assert task.type == "free"
        lanes.pop(task)
    assert lanes.peek() is None
    return Counted.comparisons


def test_B4_saturated_types_cost_nothing_however_many_they_are() -> None:
    assert comparisons_beside(1000) == comparisons_beside(1) > 0


def test_B4_the_heap_of_heads_stays_small_while_a_type_opens_and_closes() -> None:
    limited = gates(video=1, audio=1)
    lanes = ReadyLanes(limited)
    lanes.push(ready_task(0, type_name="video"))
    for _ in range(10_000):
        limited["video"].take(0)
        limited["video"].release()

    assert len(lanes._heads) <= 4 * 2 + SLACK
    assert lanes.peek() is not None


@pytest.mark.parametrize("type_name", TYPES)
def test_B4_ten_thousand_cancelled_tasks_do_not_stay_in_memory(type_name: str) -> None:
    lanes = ReadyLanes(gates(**LIMITS))
    tasks = [ready_task(seq, type_name=type_name) for seq in range(10_000)]
    for task in tasks:
        lanes.push(task)

    for task in tasks[:-1]:
        lanes.discard(task)

    held = sum(road.live + road.stale for road in (lanes._common, *lanes._gated.values()))
    assert held <= 2 * len(lanes) + SLACK
    lanes.check_invariants()
    assert lanes.peek() is tasks[-1]


def test_a_task_that_is_not_the_most_urgent_cannot_be_popped() -> None:
    lanes = ReadyLanes({})
    first, second = ready_task(0), ready_task(1)
    lanes.push(first)
    lanes.push(second)

    with pytest.raises(AssertionError, match="not the most urgent"):
        lanes.pop(second)


def pop_all(lanes: ReadyLanes) -> list[int]:
    """Take out everything, and return the sequence numbers in the order in which it came."""
    order = []
    while (task := lanes.peek()) is not None:
        lanes.pop(task)
        order.append(task.seq)
    return order


@pytest.mark.parametrize("times", [1, 2, 1000])
def test_F7_a_task_that_leaves_the_middle_and_comes_back_stands_once_and_in_its_place(times: int) -> None:
    """A replay after a cancel: the old place is the right one, so no second one is made."""
    lanes = ReadyLanes({})
    tasks = [ready_task(seq) for seq in range(3)]
    for task in tasks:
        lanes.push(task)

    for _ in range(times):
        lanes.discard(tasks[1])
        lanes.push(tasks[1])

    lanes.check_invariants()
    assert len(lanes) == len(list(lanes)) == 3
    assert lanes._common.live + lanes._common.stale == 3
    assert pop_all(lanes) == [0, 1, 2]


def test_F7_a_task_whose_place_has_gone_meanwhile_gets_a_new_one() -> None:
    lanes = ReadyLanes({})
    tasks = [ready_task(seq) for seq in range(4)]
    for task in tasks:
        lanes.push(task)
    lanes.discard(tasks[0])
    lanes.discard(tasks[2])
    assert lanes.peek() is tasks[1], "which drops the stale one before it"

    for task in (tasks[0], tasks[2]):
        lanes.push(task)

    assert pop_all(lanes) == [0, 1, 2, 3]


def test_B2_what_comes_back_with_an_old_number_comes_out_by_it() -> None:
    """To the front of the lane, and between others beside it."""
    lanes = ReadyLanes({})
    tasks = [ready_task(seq) for seq in range(8)]
    for task in tasks:
        lanes.push(task)
    for task in tasks[:6]:
        lanes.pop(task)

    for seq in (4, 2, 3, 0, 5):
        lanes.push(tasks[seq])

    lanes.check_invariants()
    assert pop_all(lanes) == [0, 2, 3, 4, 5, 6, 7]


def test_B1_a_thousand_ranks_come_out_in_order_though_few_of_them_have_a_lane() -> None:
    lanes = ReadyLanes({})
    ranks = [seq * 7919 % 1000 for seq in range(5000)]
    for seq, rank in enumerate(ranks):
        lanes.push(ready_task(seq, rank))
    lanes.check_invariants()

    assert pop_all(lanes) == sorted(range(5000), key=lambda seq: (ranks[seq], seq))


def test_B1_lanes_of_ranks_that_are_over_do_not_pile_up() -> None:
    lanes = ReadyLanes({})
    for seq in range(1000):
        lanes.push(ready_task(seq, rank=seq % 500))
        task = lanes.peek()
        assert task is not None
        lanes.pop(task)

    lanes.check_invariants()
    assert len(lanes._common.lanes) <= 1


class Uncompared(float):
    """A rank that must not be compared for order."""

    def __lt__(self, other: float) -> bool:
        raise AssertionError("compared")

    __gt__ = __lt__


def test_B1_tasks_of_one_rank_come_and_go_without_a_comparison() -> None:
    lanes = ReadyLanes({})
    rank = Uncompared(1)
    for seq in range(1000):
        lanes.push(ready_task(seq, rank))

    assert pop_all(lanes) == list(range(1000))
