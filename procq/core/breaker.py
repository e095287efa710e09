"""The circuit breaker of one type of tasks (contract D8).

    closed --so many failures within the window--> open --cool_down is over--> half-open
       ^                                            ^                             |
       |                                            +---------the probe fails-----+
       +----------------------------the probe succeeds----------------------------+

While it is open no task of the type starts; they stay READY and are charged nothing.  Half-open, one
of them is let through as a probe, and its end decides.  What started before the breaker opened runs
on, and how it ends changes nothing any more.
"""

from collections import deque
from typing import Literal, final

from procq.errors import UsageError
from procq.units import Duration, count, seconds

State = Literal["closed", "open", "half-open"]


@final
class Breaker:
    """When to hold back a type of tasks that keeps failing; for `Queue(breaker={"type": Breaker()})`.

    Every attempt that is charged as failed counts, whatever its kind and whether it is retried or not;
    those that were cancelled, interrupted or put back by `RetryLater` do not.

    Args:
        failures: So many of them within `window` open the breaker; at least 1.
        window: How long a failure counts.
        cool_down: How long nothing of the type starts then, before one attempt is let through as a
            probe: if that succeeds the breaker closes, if it fails it is open for as long again.

    Raises:
        UnitError: A value cannot be.
        UsageError: `window` is 0, so that no two failures could ever count together.
    """

    __slots__ = ("cool_down_s", "failures", "window_s")

    def __init__(self, failures: int = 5, window: Duration = 60, cool_down: Duration = 30) -> None:
        self.failures = count(failures, field="failures", least=1)
        self.window_s = seconds(window, field="window")
        self.cool_down_s = seconds(cool_down, field="cool_down")
        if not self.window_s:
            raise UsageError(f"window={window!r}: must be longer than 0")

    def __repr__(self) -> str:
        return f"Breaker(failures={self.failures}, window={self.window_s:g}, cool_down={self.cool_down_s:g})"


@final
class Circuit:
    """What a breaker has made of its type so far."""

    __slots__ = ("_failed", "breaker", "opened_until", "probe", "state")

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self.state: State = "closed"
        #: instants of the last failures, no more of them than open it
        self._failed: deque[float] = deque(maxlen=breaker.failures)
        #: when it is half-open again; only while it is open
        self.opened_until = 0.0
        #: the task whose attempt is the probe, by sequence number; None: none runs
        self.probe: int | None = None

    @property
    def admits(self) -> bool:
        """Whether an attempt may start."""
        return self.state == "closed" or (self.state == "half-open" and self.probe is None)

    def started(self, seq: int) -> None:
        """An attempt starts."""
        if self.state == "half-open":
            self.probe = seq

    def succeeded(self, seq: int) -> None:
        """An attempt has succeeded."""
        if self.probe == seq:
            self.probe = None
            self.state = "closed"
            self._failed.clear()

    def failed(self, seq: int, now: float) -> bool:
        """An attempt has failed; return whether that opened the breaker."""
        if self.probe == seq:
            self.probe = None
        elif self.state == "closed":
            failed = self._failed
            failed.append(now)
            if len(failed) < self.breaker.failures or now - failed[0] > self.breaker.window_s:
                return False
        else:
            return False
        self.state = "open"
        self.opened_until = now + self.breaker.cool_down_s
        return True

    def undone(self, seq: int) -> None:
        """An attempt ended in a way that says nothing of its type: if it was the probe, there will be another."""
        if self.probe == seq:
            self.probe = None

    def cool(self) -> None:
        """The time has come to let a probe through."""
        self.state = "half-open"
