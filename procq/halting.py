"""When a queue ends before its work is done: too many failures, or its deadline (contract G6).

Decides whether it is time, and says so in words; what a halt does is closing.py's.
"""

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, final

from procq.units import UnitError, count, is_datetime, seconds

if TYPE_CHECKING:
    from datetime import datetime

    from procq.units import Duration

#: Why a queue halts by itself.
Halt = Literal["max_failures", "deadline"]
#: How a queue is halted by failures.
OnFailure = Literal["finish", "kill"]


class Halted(NamedTuple):
    """The message that a queue has halted by itself."""

    why: Halt
    how: OnFailure  #: a deadline always kills
    running: int  #: how many attempts ran at that moment


#: A share is judged from so many tasks on.  Of fewer, a single failure is more than 5 %, the share that
#: people mostly give; so one mishap among the first tasks does not end a long run.
SHARE_FROM: Final = 20

# A text: to compile it takes 1 ms, and hardly any queue has one.
_SHARE: Final = r"(\d{1,3})(?:\.(\d{1,9}))?\s*%"


@final
class FailureLimit:
    """How many tasks may end FAILED before a queue halts.

    A task that was cancelled, as a dependent of one that failed say, counts neither as a failure nor
    among those of which a share is taken: it says nothing of how the work goes.

    Args:
        value: A number of at least 1, or a share such as "5%", more than 0 and at most 100.

    Raises:
        UnitError: It is neither.
    """

    __slots__ = ("_hundreds", "_number", "_part", "text")

    def __init__(self, value: object) -> None:
        #: how people wrote it
        self.text = repr(value)
        self._number = 0
        # A share is `_part` of `_hundreds`, both whole numbers: floats would miss "0.1%" of a thousand.
        self._part = self._hundreds = 0
        if not isinstance(value, str):
            self._number = count(value, field="max_failures", least=1)
            return
        match = re.fullmatch(_SHARE, value.strip())
        if match is None:
            raise UnitError(f"max_failures={value!r}: expected a whole number or a share such as '5%'")
        decimals = match[2] or ""
        self._part = int(match[1] + decimals)
        self._hundreds = 100 * 10 ** len(decimals)
        if not 0 < self._part <= self._hundreds:
            raise UnitError(f"max_failures={value!r}: a share must be more than 0% and at most 100%")

    def reached(self, failed: int, succeeded: int, *, at_end: bool = False) -> bool:
        """Whether so many failures are too many.

        Args:
            failed: Tasks that ended FAILED.
            succeeded: Tasks that ended SUCCEEDED.
            at_end: Whether nothing is left that could still end, so that a share of few is judged too.
        """
        if self._number:
            return failed >= self._number
        ended = failed + succeeded
        return failed > 0 and (at_end or ended >= SHARE_FROM) and failed * self._hundreds >= self._part * ended

    def told(self, failed: int, succeeded: int) -> str:
        """Say what has happened once it was reached."""
        if self._number:
            return f"halted: {failed} task{'' if failed == 1 else 's'} failed (max_failures={self.text})"
        return f"halted: {failed} of {failed + succeeded} tasks failed (max_failures={self.text})"


#: What is said where the deadline has ended a queue.
DEADLINE_TOLD: Final = "the run's deadline has passed"


@final
class RunDeadline:
    """How long a queue may run, from its start.

    Args:
        value: A duration from the start, or an instant of the wall clock.

    Raises:
        UnitError: It is neither.
    """

    __slots__ = ("_at", "_duration_s")

    def __init__(self, value: "Duration | datetime") -> None:
        self._at = value if is_datetime(value) else None
        self._duration_s = 0.0 if is_datetime(value) else seconds(value, field="deadline")  # type: ignore[arg-type]

    def remaining_s(self) -> float:
        """Return how long from now, the start, in seconds; looks at the wall clock if it is an instant of that."""
        if self._at is None:
            return self._duration_s
        from datetime import datetime  # noqa: PLC0415 - imported by the user already

        return max(0.0, (self._at - datetime.now(self._at.tzinfo)).total_seconds())
