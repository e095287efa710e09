"""Dead letters: the tasks that ended FAILED, capped and aged out (contract F6).

Knows order and bounds, nothing of retries: `Scheduler` decides what dies and what is replayed.
"""

from collections import OrderedDict
from collections.abc import Iterator

from procq.core.task import DeadLetter, Task


class DeadLetters:
    """All and only the FAILED tasks that are still kept, oldest death first."""

    __slots__ = ("_died", "dropped", "keep_s", "limit")

    def __init__(self, limit: int, keep_s: float) -> None:
        #: at most so many are kept; the oldest goes first
        self.limit = limit
        #: none is kept longer than this, in seconds
        self.keep_s = keep_s
        #: how many were dropped by either bound
        self.dropped = 0
        #: (task, instant of death) by sequence number, in order of death.  A plain dict would
        #: walk over the gaps at its front each time the oldest is looked up.
        self._died: OrderedDict[int, tuple[Task, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._died)

    def __contains__(self, task: Task) -> bool:
        return task.seq in self._died

    def __iter__(self) -> Iterator[Task]:
        return (task for task, _ in self._died.values())

    def add(self, task: Task, now: float) -> list[Task]:
        """Take in a task that died just now; return those dropped for it."""
        self._died[task.seq] = (task, now)
        return self.prune(now)

    def remove(self, task: Task) -> None:
        """Let go of a task (replayed or purged); not there is fine."""
        self._died.pop(task.seq, None)

    def prune(self, now: float) -> list[Task]:
        """Drop what is over the limit or too old, oldest first, and return it."""
        gone: list[Task] = []
        while self._died:
            task, died_at = next(iter(self._died.values()))
            if len(self._died) <= self.limit and now - died_at < self.keep_s:
                break
            del self._died[task.seq]
            gone.append(task)
        self.dropped += len(gone)
        return gone

    def listed(self) -> list[DeadLetter]:
        """Return the letters, newest last."""
        return [letter_of(task, died_at) for task, died_at in self._died.values()]


def letter_of(task: Task, died_at: float) -> DeadLetter:
    """Write the letter of a task that ended FAILED."""
    last = task.ended
    return DeadLetter(
        id=task.id,
        type=task.type,
        attempts=task.failures,
        died_at=died_at,
        error_type=last.error_types[0] if last is not None and last.error_types else None,
        message="" if last is None else last.message,
        history=task.records(),
    )
