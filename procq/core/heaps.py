"""The heap of what waits for an instant (contract B3).

It deletes lazily: what leaves from the middle stays as a stale entry until it comes to the top,
or until stale entries outnumber live ones and the heap is rebuilt, so that a cancelled million
does not stay in memory.  Every operation is O(log n) amortised.  Ties are broken by a rank and
the order of setting; the items themselves are never compared.
"""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

#: Below this many stale entries a rebuild costs more than it frees.
SLACK: Final = 64

Item = TypeVar("Item")


class TimerHeap(Generic[Item]):
    """Items by the instant they are due, each under a key of its own.

    Equal instants come out in the order of `rank`.
    """

    __slots__ = ("_heap", "_pushed", "live")

    def __init__(self) -> None:
        #: (instant, rank, push number, key); stale unless `live` still names the push number
        self._heap: list[tuple[float, int, int, Hashable]] = []
        #: all and only items that are waiting, by key, with push number and instant
        self.live: dict[Hashable, tuple[int, float, Item]] = {}
        self._pushed = 0

    def __len__(self) -> int:
        return len(self.live)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.live

    def __iter__(self) -> Iterator[Item]:
        return (item for _, _, item in self.live.values())

    def set(self, key: Hashable, at: float, item: Item, rank: int = 0) -> None:
        """Have `item` come out at `at`, instead of any earlier setting under the same key."""
        self._pushed += 1
        self.live[key] = (self._pushed, at, item)
        heappush(self._heap, (at, rank, self._pushed, key))
        self._compact()

    def discard(self, key: Hashable) -> Item | None:
        """Forget what is set under the key, and return it; None if there is nothing."""
        held = self.live.pop(key, None)
        if held is None:
            return None
        self._compact()
        return held[2]

    def at(self, key: Hashable) -> float | None:
        """Return when what is set under the key comes out; None if there is nothing."""
        held = self.live.get(key)
        return None if held is None else held[1]

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
        item = self.live.pop(key)[2]
        self._compact()
        return item

    def _compact(self) -> None:
        """Rebuild the heap once stale entries outnumber live ones."""
        if len(self._heap) > 2 * len(self.live) + SLACK:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)

    def _is_live(self, entry: tuple[float, int, int, Hashable]) -> bool:
        held = self.live.get(entry[3])
        return held is not None and held[0] == entry[2]
