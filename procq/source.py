"""The input of a map, and how many of its items make a task (contract F2).

Reads no further than it is asked to, and learns from what reading and running have taken.  Knows
nothing of tasks or of the queue.

For one thread at a time, as the map is; nothing here is under a lock.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, final

#: So long should a chunk take (seconds): a task costs some 0.1 ms on both sides together, so less
#: would pay too much of that; more would make whoever waits for a result, a cancel or the end wait longer.
TARGET_S: Final = 0.002
#: A chunk has at most so many times the items of one that is known to be brief: what comes may be slower.
GROWTH: Final = 8
#: Items of a chunk at most, and bytes of their arguments or results, about: what is in flight is in memory.
ITEMS_MAX: Final = 16_384
BYTES_MAX: Final = 64 * 1024


@final
class Size:
    """How many items a task shall have, learnt from those that ended.

    Begins with one: the first results are wanted soon, and slow items must never wait for each other.

    Args:
        fixed: What the user wants; None: as many as fit into `TARGET_S`.
        most: Never more.
    """

    __slots__ = ("_fixed", "_most", "_read_s", "items")

    def __init__(self, fixed: int | None, most: int) -> None:
        self._fixed = fixed
        self._most = most
        #: what reading an item from the input takes, in seconds
        self._read_s = 0.0
        #: the present answer
        self.items = 1 if fixed is None else fixed

    def near_end(self, left: int | None, workers: int) -> int:
        """Return the answer, given how many items are left in all; None: nobody knows.

        A fair share of these, so that the workers end together; a quarter of a chunk is little enough for that.
        """
        if left is None or self._fixed is not None:
            return self.items
        return min(self.items, max(self.items // 4, left // (2 * workers), 1))

    def note_read(self, items: int, took_s: float) -> None:
        """Learn what it took to read items; a slow input is read one by one, or nothing would come of it for long."""
        self._read_s = took_s / items
        if self._fixed is None and self._read_s * self.items > TARGET_S:
            self.items = max(1, int(TARGET_S / self._read_s))

    def note(self, items: int, took_s: float, size_bytes: int) -> None:
        """Learn from a task: how many items it had, what they took, and the bytes of their results."""
        if self._fixed is not None:
            return
        item_s = max(took_s / items, self._read_s)
        wanted = self._most if item_s * self._most <= TARGET_S else int(TARGET_S / item_s)
        if size_bytes * wanted > BYTES_MAX * items:
            wanted = BYTES_MAX * items // size_bytes
        # A small task, sent before it was known how brief they are, holds nothing back.
        self.items = max(1, min(wanted, max(GROWTH * items, self.items), self._most))


@final
class Source:
    """The input of a map.

    Attributes:
        is_bare: Whether an item is the only argument, rather than a tuple of them.
        left: How many items there may be left; None if nobody knows.
    """

    __slots__ = ("_clock", "_items", "is_bare", "left")

    def __init__(self, iterables: Sequence[Iterable[Any]], clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_bare = len(iterables) == 1
        self._items: Iterator[Any] = iter(iterables[0]) if self.is_bare else zip(*iterables, strict=False)
        #: only a container is believed; an iterator may have a length and yet be slow, or wrong
        self.left = min(map(len, iterables)) if all(hasattr(one, "__len__") for one in iterables) else None  # type: ignore[arg-type]

    def read(self, items: list[Any], most: int) -> bool:
        """Add up to so many items to a list; return whether there may be more.

        Whatever was read is in the list, also when the input raises.
        """
        if self.left is None:
            return self._read_patiently(items, most)
        before = len(items)
        items.extend(islice(self._items, most))
        count = len(items) - before
        self.left = max(0, self.left - count)
        return count == most

    def _read_patiently(self, items: list[Any], most: int) -> bool:
        """Read from an input that may make one wait: what was read is sent when that has taken long enough."""
        clock = self._clock
        ends_at = clock() + TARGET_S
        more = False
        for item in islice(self._items, most):
            items.append(item)
            more = True
            if clock() >= ends_at:
                break
        return more

    def close(self) -> None:
        """Give nothing more."""
        self._items = iter(())
        self.left = 0
