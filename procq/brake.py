"""Whether a queue must end by itself now: what halting.py says of figures, asked of a scheduler's own (contract G6).

Looks, and says each halt once; what follows from one is the supervisor's to do, and closing.py's.

Everything here happens under the queue's lock.
"""

from collections.abc import Iterator
from math import inf
from typing import Final, final

from procq.core.scheduler import Scheduler
from procq.core.states import Status
from procq.halting import DEADLINE_TOLD, FailureLimit, Halt, OnFailure, RunDeadline

#: Read through the class, a member of an enum takes 60 ns each time.
_SUCCEEDED: Final = Status.SUCCEEDED
_FAILED: Final = Status.FAILED


@final
class Order:
    """An order to halt.  No tuple: to make a class of those is 0.1 ms for every program."""

    __slots__ = ("how", "told", "why")

    def __init__(self, why: Halt, told: str, how: OnFailure) -> None:
        self.why: Halt = why
        #: the same in a sentence
        self.told = told
        self.how: OnFailure = how


@final
class Brake:
    """What ends a queue before its work is done.

    Args:
        scheduler: Whose tasks are counted.
        limit: How many failures halt the queue; None: none do.
        on_failure: How they do.
        deadline: When it halts in any case; None: never.
    """

    __slots__ = ("_deadline", "_on_failure", "_scheduler", "ends_at", "is_due", "is_pulled", "limit")

    def __init__(
        self,
        scheduler: Scheduler,
        limit: FailureLimit | None = None,
        on_failure: OnFailure = "finish",
        deadline: RunDeadline | None = None,
    ) -> None:
        self._scheduler = scheduler
        self.limit = limit
        self._on_failure: OnFailure = on_failure
        self._deadline = deadline
        #: so many have failed: nothing starts any more
        self.is_pulled = False
        #: likewise, and nobody was told of it yet
        self.is_due = False
        #: the instant of the deadline; never before the start, nor after it has come
        self.ends_at = inf

    def set_out(self, now: float) -> None:
        """The queue starts, and with it the time that it has."""
        if self._deadline is not None:
            self.ends_at = now + self._deadline.remaining_s()

    def set_back(self) -> None:
        """The queue has not started after all."""
        self.ends_at = inf

    def judge(self) -> None:
        """Look whether too many have failed; the next `orders` says so, and nothing should start before."""
        if self.limit is not None and not self.is_pulled and self.limit.reached(*self._ended()):
            self.is_pulled = self.is_due = True

    def is_near(self) -> bool:
        """Whether the queue would halt if all failed that has been handed out: what is ahead begins unasked."""
        if self.limit is None:
            return False
        failed, succeeded = self._ended()
        out = len(self._scheduler.running) + len(self._scheduler.ahead)
        return self.limit.reached(failed + out, succeeded)

    def orders(self, now: float) -> Iterator[Order]:
        """Yield each halt whose time has come."""
        if self.is_due:
            self.is_due = False
            yield self._failed_too_often()
        if now >= self.ends_at:
            self.ends_at = inf
            yield Order("deadline", DEADLINE_TOLD, "kill")

    def order_at_end(self) -> Order | None:
        """Return the halt that is due as nothing is left that could still end, for then a share of few counts too."""
        if self.limit is None or not self.limit.reached(*self._ended(), at_end=True):
            return None
        return self._failed_too_often()

    def _failed_too_often(self) -> Order:
        assert self.limit is not None, "what was reached"
        return Order("max_failures", self.limit.told(*self._ended()), self._on_failure)

    def _ended(self) -> tuple[int, int]:
        """Return how many tasks have failed, and how many have succeeded."""
        return self._scheduler.ended_as(_FAILED), self._scheduler.ended_as(_SUCCEEDED)
