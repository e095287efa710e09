"""Where READY tasks wait, the most urgent first (contract B1, B2, B4, B5).

Most tasks share their rank with many others (`Strict` has as many ranks as there are priorities in
use) and come in the order of their sequence numbers.  So the tasks of one rank stand in a lane, a
plain deque: there is no search, and no entry is made for a task.  A task that comes back with an
old number mostly belongs to the front of its lane.  What fits neither end, and all that has a rank
without a lane because there are too many ranks, as with ageing, stands in one heap beside the lanes.

Deletion is lazy: what leaves from the middle is stale until it comes to the front, or until the
stale outnumber the others and all is built anew.  A task that comes back meanwhile takes up its old
place, which is the right one, for rank and sequence number are for life: so no task stands twice.
Every operation is O(log n) amortised, and O(1) as long as there are few ranks.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from procq.core.heaps import SLACK
from procq.core.task import Task
from procq.slots import DEFAULT_GROUP

if TYPE_CHECKING:
    from procq.core.gates import Gate

#: What ready tasks are ordered by.
Key = tuple[float, int]

#: At most so many lanes: people use a handful of priorities, and a lane of one task takes 760 bytes.
_MOST_LANES: Final = 64


@final
class _Road:
    """The ready tasks of one type with a gate, or of all types without one."""

    __slots__ = ("beside", "first", "gate", "lanes", "live", "posted", "ranks", "stale")

    def __init__(self, gate: "Gate | None") -> None:
        #: tasks by rank, each lane in order of sequence numbers, stale ones included; one at most is empty
        self.lanes: dict[float, deque[Task]] = {}
        #: the ranks of the lanes that are not empty, in order
        self.ranks: list[float] = []
        #: the lane of the first of these ranks, or an empty one
        self.first: deque[Task] = deque()
        #: (rank, seq, task), a heap of those that are in no lane, stale ones included
        self.beside: list[tuple[float, int, Task]] = []
        #: how many tasks of both are not stale, and how many are
        self.live = 0
        self.stale = 0
        #: whether more of the type may start; None: always
        self.gate = gate
        #: the task by which the road stands in the heap of heads; None: it does not
        self.posted: Task | None = None

    def __iter__(self) -> Iterator[Task]:
        for lane in self.lanes.values():
            yield from (task for task in lane if task.standing)
        yield from (task for _, _, task in self.beside if task.standing)

    @property
    def open(self) -> bool:
        """Whether one more task of the type may run."""
        return self.gate is None or self.gate.open

    def push(self, task: Task) -> None:
        """Take in a task."""
        self.live += 1
        if task.standing is not None:  # its old place is still there
            task.standing = True
            self.stale -= 1
            return
        task.standing = True
        lane = self.lanes.get(task.rank)
        if lane:
            if lane[-1].seq < task.seq:
                lane.append(task)
                return
            if task.seq < lane[0].seq:
                lane.appendleft(task)
                return
        elif len(self.ranks) < _MOST_LANES:
            self._open_lane(task, lane)
            return
        heappush(self.beside, (task.rank, task.seq, task))

    def head(self) -> Task | None:
        """Return the most urgent task, or None; what is stale before it goes."""
        while (first := self.first) and not first[0].standing:
            self._drop(first.popleft())
            if not first:
                self._close_lane()
        beside = self.beside
        while beside and not beside[0][2].standing:
            self._drop(heappop(beside)[2])
        if not beside:
            return first[0] if first else None
        if first:
            task = first[0]
            if (task.rank, task.seq) < beside[0]:
                return task
        return beside[0][2]

    def pop(self, task: Task) -> None:
        """Take out the task that `head` returned."""
        first = self.first
        if first and first[0] is task:
            first.popleft()
            if not first:
                self._close_lane()
        else:
            assert self.beside and self.beside[0][2] is task, f"{task} is not the most urgent"  # noqa: PT018
            heappop(self.beside)
        task.standing = None
        self.live -= 1

    def discard(self, task: Task) -> None:
        """Take a task out of the middle."""
        task.standing = False
        self.live -= 1
        self.stale += 1
        # The last to leave clears up: nobody may come for long, and what is stale may be big.
        if not self.live or (self.stale > SLACK and self.stale > self.live):
            self._rebuild()

    def _open_lane(self, task: Task, lane: deque[Task] | None) -> None:
        """Begin the lane of a rank with its first task."""
        if lane is None:
            lane = self.lanes[task.rank] = deque()
        lane.append(task)
        insort(self.ranks, task.rank)
        self.first = self.lanes[self.ranks[0]]

    def _close_lane(self) -> None:
        """Go on to the next lane, the first one being empty.

        The last lane stays: where every task is started as soon as it comes, each would make one.
        """
        rank = self.ranks.pop(0)
        if self.ranks:
            del self.lanes[rank]
            self.first = self.lanes[self.ranks[0]]
        elif len(self.lanes) > 1:  # one that was the last before
            self.lanes = {rank: self.first}

    def _drop(self, task: Task) -> None:
        """Note that a stale task has lost its place."""
        task.standing = None
        self.stale -= 1

    def _rebuild(self) -> None:
        """Build everything anew without what is stale."""
        tasks = [task for lane in self.lanes.values() for task in lane]
        tasks += [task for _, _, task in self.beside]
        tasks.sort(key=urgency)
        self.lanes, self.ranks, self.first, self.beside = {}, [], deque(), []
        self.live = self.stale = 0
        for task in tasks:
            is_live, task.standing = task.standing, None
            if is_live:
                self.push(task)

    def check_invariants(self) -> None:
        """Assert that everything stands where it should; O(n), for tests."""
        standing = [task for lane in self.lanes.values() for task in lane]
        standing += [task for _, _, task in self.beside]
        assert len(standing) == len({task.seq for task in standing}), "a task stands twice"
        assert all(task.standing is not None for task in standing), "a task stands somewhere and does not know"
        assert self.live == sum(task.standing is True for task in standing), "ready tasks miscounted"
        assert self.live + self.stale == len(standing), "stale tasks miscounted"
        filled = {rank: lane for rank, lane in self.lanes.items() if lane}
        assert sorted(filled) == self.ranks, f"lanes of {sorted(filled)}, said to be of {self.ranks}"
        assert len(self.ranks) <= _MOST_LANES, "too many lanes"
        assert len(self.lanes) <= len(self.ranks) + 1, "empty lanes pile up"
        assert self.first is self.lanes[self.ranks[0]] if self.ranks else not self.first, "not the first lane"
        for rank, lane in filled.items():
            assert all(task.rank == rank for task in lane), f"a task of another rank than {rank}"
            assert [task.seq for task in lane] == sorted(task.seq for task in lane), "a lane out of order"


@final
class ReadyLanes:
    """READY tasks that are not sent ahead, most urgent first (B1, B4): those of one group, and of one level.

    One road for the types without a gate, one for each type with a gate, and a heap of heads over those
    whose gate is open: so a type that is saturated, or held back by its breaker, costs nothing.

    Args:
        gates: What stands before the start of tasks, by type; shared with the lanes of other groups.
    """

    __slots__ = ("_common", "_gated", "_gated_live", "_gates", "_heads")

    def __init__(self, gates: "Mapping[str, Gate]") -> None:
        self._gates = gates
        self._common = _Road(None)
        #: by type; made when the first of its tasks comes
        self._gated: dict[str, _Road] = {}
        #: how many tasks of those types wait
        self._gated_live = 0
        #: (rank and number of a road's head, road); stale unless that is the road's `posted`
        self._heads: list[tuple[float, int, _Road]] = []

    def __len__(self) -> int:
        return self._common.live + self._gated_live

    def __iter__(self) -> Iterator[Task]:
        for road in (self._common, *self._gated.values()):
            yield from road

    def count(self, _group: str = DEFAULT_GROUP) -> int:
        """Return how many tasks wait."""
        return self._common.live + self._gated_live

    def push(self, task: Task) -> None:
        """Take in a task under its rank and sequence number, both fixed for life."""
        if self._gates and task.type in self._gates:
            road = self._gated.get(task.type) or self._build(task.type)
            self._gated_live += 1
            road.push(task)
            self._post(road)
        else:
            self._common.push(task)

    def discard(self, task: Task) -> None:
        """Take a task out of the middle."""
        road = self._gated.get(task.type)
        if road is None:
            self._common.discard(task)
        else:
            self._gated_live -= 1
            road.discard(task)
            self._post(road)

    def peek(self, _group: str = DEFAULT_GROUP) -> Task | None:
        """Return the most urgent task whose type may start, or None."""
        best = self._common.head()
        if self._heads:
            gated = self._best_gated()
            if gated is not None and (best is None or urgency(gated) < urgency(best)):
                return gated
        return best

    def pop(self, task: Task) -> None:
        """Take out the task that `peek` returned."""
        if self._gated and (road := self._gated.get(task.type)) is not None:
            road.pop(task)
            self._gated_live -= 1
            self._post(road)
        else:
            self._common.pop(task)

    def before(self, task: Task) -> int:
        """Return how many tasks that may start come before one that waits here; O(n)."""
        key = urgency(task)
        roads = [self._common, *(road for road in self._gated.values() if road.open)]
        return sum(urgency(other) < key for road in roads for other in road)

    def key(self, task: Task) -> Key:
        """Sort key among the tasks that `peek` returned: the most urgent first."""
        return task.rank, task.seq  # `urgency`, without another call

    def began(self, task: Task) -> None:
        """A task that was popped has begun: nothing follows from that here."""

    def returned(self, task: Task) -> None:
        """A task that was popped has not begun after all."""

    def _build(self, type_name: str) -> _Road:
        """Build the road of a type with a gate."""
        gate = self._gates[type_name]
        road = self._gated[type_name] = _Road(gate)
        gate.watchers.append(partial(self._post, road))
        return road

    def shut(self) -> Iterator[Task]:
        """Yield the most urgent task of each type whose gate is shut."""
        for road in self._gated.values():
            if not road.open and (head := road.head()) is not None:
                yield head

    def _post(self, road: _Road) -> None:
        """Bring the road's place in the heap of heads up to date."""
        head = road.head() if road.open else None
        if head is road.posted:
            return
        road.posted = head
        if head is not None:
            heappush(self._heads, (head.rank, head.seq, road))
            if len(self._heads) > 4 * len(self._gated) + SLACK:
                posted = [(at.posted.rank, at.posted.seq, at) for at in self._gated.values() if at.posted is not None]
                heapify(posted)
                self._heads = posted

    def _best_gated(self) -> Task | None:
        """Return the most urgent head of the types whose gate is open."""
        heads = self._heads
        while heads:
            _, seq, road = heads[0]
            if road.posted is not None and road.posted.seq == seq:
                return road.posted
            heappop(heads)
        return None

    def check_invariants(self) -> None:
        """Assert that everything stands where it should; O(n), for tests."""
        for road in (self._common, *self._gated.values()):
            road.check_invariants()
        assert self._gated_live == sum(road.live for road in self._gated.values()), "gated tasks miscounted"
        for name, road in self._gated.items():
            head = min(road, key=urgency, default=None) if road.open else None
            assert road.posted is head, f"{road.posted} is posted for {name}, not {head}"


def urgency(task: Task) -> Key:
    """Sort key: the most urgent first (B1)."""
    return task.rank, task.seq
