"""Dead letters: the tasks that ended FAILED, capped and aged out (contract F6).

Knows order and bounds, nothing of retries: `Scheduler` decides what dies and what is replayed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from procq.core.task import Task

if TYPE_CHECKING:
    from procq.core.records import DeadLetter

#: Letters of so many bytes in all are kept, whatever the memory, so that it need not be asked for.
SMALL_BYTES: Final = 64 * 2**20


class DeadLetters:
    """All and only the FAILED tasks that are still kept, oldest death first.

    Args:
        limit: At most so many are kept; the oldest goes first.
        keep_s: None is kept longer than this, in seconds.
        find_limit_bytes: Finds out how many bytes may be kept, called once, when it first matters; the
            newest letter is kept in any case.  None: no bound.
    """

    __slots__ = ("_bytes", "_died", "_find_limit_bytes", "_limit_bytes", "dropped", "keep_s", "limit")

    def __init__(self, limit: int, keep_s: float, find_limit_bytes: Callable[[], int] | None = None) -> None:
        self.limit = limit
        self.keep_s = keep_s
        self._find_limit_bytes = find_limit_bytes
        #: what is known of that bound
        self._limit_bytes: float = float("inf") if find_limit_bytes is None else SMALL_BYTES
        #: what all letters weigh
        self._bytes = 0
        #: how many were dropped by any bound
        self.dropped = 0
        #: (task, instant of death, weight) by sequence number, in order of death.  A plain dict would
        #: walk over the gaps at its front each time the oldest is looked up.
        self._died: OrderedDict[int, tuple[Task, float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._died)

    def __contains__(self, task: Task) -> bool:
        return task.seq in self._died

    def __iter__(self) -> Iterator[Task]:
        return (task for task, _, _ in self._died.values())

    def add(self, task: Task, now: float) -> list[Task]:
        """Take in a task that died just now; return those dropped for it."""
        weight = weight_of(task)
        self._died[task.seq] = (task, now, weight)
        self._bytes += weight
        return self.prune(now)

    def remove(self, task: Task) -> None:
        """Let go of a task (replayed or purged); not there is fine."""
        died = self._died.pop(task.seq, None)
        if died is not None:
            self._bytes -= died[2]

    def prune(self, now: float) -> list[Task]:
        """Drop what is over a limit or too old, oldest first, and return it."""
        gone: list[Task] = []
        while self._died:
            task, died_at, _ = next(iter(self._died.values()))
            if len(self._died) <= self.limit and now - died_at < self.keep_s and not self._weigh_too_much():
                break
            self.remove(task)
            gone.append(task)
        self.dropped += len(gone)
        return gone

    def _weigh_too_much(self) -> bool:
        """Whether the letters are over the bound in bytes, and not but one."""
        if self._bytes <= self._limit_bytes or len(self._died) == 1:
            return False
        if self._find_limit_bytes is not None:
            self._limit_bytes = max(SMALL_BYTES, self._find_limit_bytes())
            self._find_limit_bytes = None
        return self._bytes > self._limit_bytes

    def listed(self) -> "list[DeadLetter]":
        """Return the letters, newest last."""
        from procq.core.records import letter_of  # noqa: PLC0415 - only whoever asks for them needs it

        return [letter_of(task, died_at) for task, died_at, _ in self._died.values()]


def weight_of(task: Task) -> int:
    """Return about how many bytes are kept with a task that ended FAILED: its payload, and what its attempts said."""
    weight = len(task.payload)
    for _, ended in task.history:
        weight += len(ended.message) + len(ended.traceback) + len(ended.value or b"")
        weight += len(ended.stdout or "") + len(ended.stderr or "")
    return weight
