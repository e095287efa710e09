"""Counts how the tasks of a run ended, and keeps what the closing block says of each failure."""

from collections import Counter
from typing import Final, final

from procq.cli.ending import Ending
from procq.core.states import Status

#: Of those that were cancelled for one reason, so many are named; where there are more, none is.
NAMED_CANCELLED: Final = 3


@final
class Tally:
    """What became of the tasks that have ended so far.

    Memory grows with what went wrong, never with what went well.
    """

    __slots__ = ("cancelled", "failures", "named", "ok", "replaced", "retried", "skipped", "unneeded")

    def __init__(self) -> None:
        self.ok = 0
        #: tasks among `ok` that needed more than one attempt
        self.retried = 0
        #: all FAILED tasks, in the order of their ends
        self.failures: list[Ending] = []
        #: tasks that were cancelled because another did not succeed, by the id of that one
        self.skipped: Counter[str] = Counter()
        #: tasks that were cancelled for any other reason, by that in words
        self.cancelled: Counter[str] = Counter()
        #: what the first of them are called, `NAMED_CANCELLED` at most, by that reason
        self.named: dict[str, list[str]] = {}
        #: tasks with run_if="failure" that were not needed: no failures
        self.unneeded = 0
        #: tasks that waited when another one took their place: no failures
        self.replaced = 0

    @property
    def ended(self) -> int:
        """How many tasks have ended."""
        return self.ok + self.unneeded + self.replaced + self.went_wrong

    @property
    def went_wrong(self) -> int:
        """How many tasks make the exit code 1."""
        return len(self.failures) + self.skipped.total() + self.cancelled.total()

    def succeeded(self, attempts: int) -> None:
        """Count a task that succeeded at this attempt."""
        self.ok += 1
        self.retried += attempts > 1

    def was_unneeded(self) -> None:
        """Count a task that was cancelled because nothing failed."""
        self.unneeded += 1

    def was_replaced(self) -> None:
        """Count a task that was cancelled because another took its place."""
        self.replaced += 1

    def went_badly(self, ending: Ending) -> None:
        """Count a task that ended FAILED or CANCELLED."""
        if ending.status is Status.FAILED:
            self.failures.append(ending._replace(traceback=""))
        elif ending.origin is not None:
            self.skipped[ending.origin] += 1
        else:
            self.cancelled[ending.reason] += 1
            named = self.named.setdefault(ending.reason, [])
            if len(named) < NAMED_CANCELLED:
                named.append(ending.label)
