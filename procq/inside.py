"""What a task can say and ask while it runs (contract D3, D7, H3).

`Permanent` and `RetryLater` are raised by tasks, `Terminated` is raised in them, and
`current()` tells a task who it is.  Workers import this module at start-up, so it imports
nothing from procq and only what an interpreter has loaded anyway.
"""

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta


class Permanent(Exception):  # noqa: N818 - a directive, not a misuse
    """Raise this in a task to end it for good, whatever attempts are left (contract D3).

    Args:
        reason: The error that `result()` shall raise, or a text (then `result()` raises
            this `Permanent` itself).
    """

    def __init__(self, reason: BaseException | str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):  # noqa: N818
    """Raise this in a task to put it back without using an attempt (contract D7).

    Args:
        delay: How long to wait: seconds, a `timedelta` or a text such as "5m"; at least 0.

    Raises:
        UnitError: `delay` is no duration.
    """

    def __init__(self, delay: "float | str | timedelta") -> None:
        from procq.units import seconds  # noqa: PLC0415 - not on a worker's way until it is needed

        self.delay_s = seconds(delay, field="RetryLater")
        super().__init__(self.delay_s)


class Terminated(BaseException):
    """Raised in a task that is asked to stop: its time is up, it was cancelled, or shutdown.

    No `Exception`, so that `except Exception` in a task lets it pass and `finally` runs
    (contract D5).
    """

    #: not an item's own error, and so the end of a whole chunk; also on what inline engines raise
    ends_attempt = True


class Context:
    """Who the running attempt is; outside of one, all None (contract H3).

    Attributes:
        id: The task's id.
        attempt: The attempt's number, from 1.
        deadline: When the attempt's `timeout` ends it, on the clock of `time.monotonic()`.
    """

    __slots__ = ("_report", "attempt", "deadline", "id")

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the contract's name
        attempt: int | None = None,
        deadline: float | None = None,
        report: "Callable[[float, float], None] | None" = None,
    ) -> None:
        self.id = id
        self.attempt = attempt
        self.deadline = deadline
        self._report = report

    @property
    def remaining(self) -> float | None:
        """Seconds until `deadline`, at least 0; None without a timeout."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def progress(self, done: float, total: float) -> None:
        """Say how far the attempt is; does nothing outside of one.  Never blocks for long."""
        if self._report is not None:
            self._report(done, total)


class _Place:
    """Holds the context of the attempt that runs in this process, one at a time."""

    __slots__ = ("context",)

    def __init__(self) -> None:
        self.context = Context()


#: Written by `enter` alone.  The one mutable global: a process runs one attempt at a time.
_PLACE = _Place()


def current() -> Context:
    """Return who the running attempt is; outside of one, an empty `Context`.  Never blocks."""
    return _PLACE.context


def enter(context: Context) -> Context:
    """Make `context` what `current()` returns and return the one before; for engines."""
    before = _PLACE.context
    _PLACE.context = context
    return before
