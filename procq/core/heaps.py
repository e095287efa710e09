"""The heaps a task waits in: by urgency (ready) and by instant (timers) (contract B1, B3, B4).

Both delete lazily: what leaves from the middle stays as a stale entry until it comes to the top,
or until stale entries outnumber live ones and the heap is rebuilt, so that a cancelled million
does not stay in memory.  Every operation is O(log n) amortised.  Ties are broken by sequence
numbers; tasks themselves are never compared.
"""

from collections.abc import Hashable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from procq.core.task import Task

#: Below this many stale entries a rebuild costs more than it frees.
_SLACK: Final = 64

Item = TypeVar("Item")


class TimerHeap(Generic[Item]):
    """Items by the instant they are due, each under a key of its own.

    Equal instants come out in the order of `rank`.
    """

    __slots__ = ("_heap", "_live", "_pushed")

    def __init__(self) -> None:
        #: (instant, rank, push number, key); stale unless `_live` still names the push number
        self._heap: list[tuple[float, int, int, Hashable]] = []
        #: all and only items that are waiting, with their push number
        self._live: dict[Hashable, tuple[int, float, Item]] = {}
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._live

    def __iter__(self) -> Iterator[Item]:
        return (item for _, _, item in self._live.values())

    def set(self, key: Hashable, at: float, item: Item, rank: int = 0) -> None:
        """Have `item` come out at `at`, instead of any earlier setting under the same key."""
        self._pushed += 1
        self._live[key] = (self._pushed, at, item)
        heappush(self._heap, (at, rank, self._pushed, key))
        self._compact()

    def discard(self, key: Hashable) -> Item | None:
        """Forget what is set under the key, and return it; None if there is nothing."""
        held = self._live.pop(key, None)
        if held is None:
            return None
        self._compact()
        return held[2]

    def next_at(self) -> float | None:
        """Return the earliest instant, or None."""
        heap = self._heap
        while heap and not self._is_live(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: float) -> Item | None:
        """Remove and return the first item whose instant has come (`now >= at`), or None."""
        at = self.next_at()
        if at is None or now < at:
            return None
        key = heappop(self._heap)[3]
        item = self._live.pop(key)[2]
        self._compact()
        return item

    def _compact(self) -> None:
        """Rebuild the heap once stale entries outnumber live ones."""
        if len(self._heap) > 2 * len(self._live) + _SLACK:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def _is_live(self, entry: tuple[float, int, int, Hashable]) -> bool:
        held = self._live.get(entry[3])
        return held is not None and held[0] == entry[2]


#: An entry of a ready lane.  The rank and the sequence number decide; the task is never compared.
Entry = tuple[float, int, Task]


class _Lane:
    """The ready tasks of one limited type, or of all types without a limit."""

    __slots__ = ("heap", "limit", "posted", "stale", "taken")

    def __init__(self, limit: int | None) -> None:
        self.heap: list[Entry] = []
        #: how many entries of `heap` are stale
        self.stale = 0
        #: at most so many tasks of the type run at once; None: no limit
        self.limit = limit
        #: how many run now
        self.taken = 0
        #: the entry by which the lane stands in the heap of heads; None: it does not
        self.posted: Entry | None = None

    def head(self) -> Entry | None:
        """Return the most urgent live entry, or None."""
        heap = self.heap
        while heap:
            entry = heap[0]
            if entry[2].entry is entry:
                return entry
            heappop(heap)
            self.stale -= 1
        return None

    @property
    def open(self) -> bool:
        """Whether one more task of the type may run."""
        return self.limit is None or self.taken < self.limit


class ReadyHeap:
    """All and only the READY tasks that are not sent ahead, most urgent first (B1, B4).

    One heap for the types without a limit, one for each type with a limit, and a heap of heads
    over the limited types that are not saturated: so a saturated type costs nothing.
    """

    __slots__ = ("_common", "_heads", "_lanes", "_size")

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._common = _Lane(None)
        self._lanes = {name: _Lane(limit) for name, limit in limits.items()}
        #: (entry of a lane's head, lane); stale unless it is the lane's `posted`
        self._heads: list[tuple[float, int, _Lane]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Task]:
        for lane in (self._common, *self._lanes.values()):
            for entry in lane.heap:
                if entry[2].entry is entry:
                    yield entry[2]

    def limited(self, type_name: str) -> bool:
        """Whether the type has a limit."""
        return type_name in self._lanes

    def taken(self, type_name: str) -> int:
        """Return how many tasks of a limited type run now."""
        return self._lanes[type_name].taken

    def push(self, task: Task) -> None:
        """Take in a task under its rank and sequence number, both fixed for life."""
        entry = (task.rank, task.seq, task)
        task.entry = entry
        self._size += 1
        lane = self._lanes.get(task.type) if self._lanes else None
        if lane is None:
            heappush(self._common.heap, entry)
        else:
            heappush(lane.heap, entry)
            self._post(lane)

    def discard(self, task: Task) -> None:
        """Take a task out of the middle; its entry goes stale."""
        task.entry = None
        self._size -= 1
        lane = self._lanes.get(task.type, self._common)
        lane.stale += 1
        if lane.stale > _SLACK and lane.stale * 2 > len(lane.heap):
            lane.heap = [entry for entry in lane.heap if entry[2].entry is entry]
            heapify(lane.heap)
            lane.stale = 0
        if lane is not self._common:
            self._post(lane)

    def peek(self) -> Task | None:
        """Return the most urgent task whose type is not saturated, or None."""
        best = self._common.head()
        if self._heads:
            limited = self._best_limited()
            if limited is not None and (best is None or limited < best):
                best = limited
        return None if best is None else best[2]

    def pop(self, task: Task) -> None:
        """Take out the task that `peek` returned."""
        lane = self._lanes.get(task.type, self._common) if self._lanes else self._common
        entry = heappop(lane.heap)
        assert entry is task.entry, f"{task} is not the most urgent"
        task.entry = None
        self._size -= 1
        if lane is not self._common:
            self._post(lane)

    def take(self, type_name: str) -> None:
        """Count one more running task of the type."""
        lane = self._lanes.get(type_name) if self._lanes else None
        if lane is not None:
            lane.taken += 1
            self._post(lane)

    def release(self, type_name: str) -> None:
        """Count one running task of the type less."""
        lane = self._lanes.get(type_name) if self._lanes else None
        if lane is not None:
            lane.taken -= 1
            self._post(lane)

    def _post(self, lane: _Lane) -> None:
        """Bring the lane's place in the heap of heads up to date."""
        head = lane.head() if lane.open else None
        if head is lane.posted:
            return
        lane.posted = head
        if head is not None:
            heappush(self._heads, (head[0], head[1], lane))
            if len(self._heads) > 4 * len(self._lanes) + _SLACK:
                posted = [(at.posted[0], at.posted[1], at) for at in self._lanes.values() if at.posted is not None]
                heapify(posted)
                self._heads = posted

    def _best_limited(self) -> Entry | None:
        """Return the most urgent head of the limited, unsaturated lanes."""
        heads = self._heads
        while heads:
            rank, seq, lane = heads[0]
            posted = lane.posted
            if posted is not None and posted[1] == seq and posted[0] == rank:
                return posted
            heappop(heads)
        return None
