"""How long to wait between attempts (contract D6).

Pure: a delay is a function of the attempt's number and of one random draw handed in, so tests
seed it.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from procq.errors import UsageError
from procq.units import Duration, UnitError, seconds

Jitter = Literal["full", "equal", "none"]


class Backoff(Protocol):
    """Seconds to wait after the attempt of this number failed, given one draw from [0, 1)."""

    def delay(self, attempt: int, draw: float, /) -> float:
        """Return the wait; may raise, if it asks a function of the user's."""


class Exponential:
    """`base * factor ** (attempt - 1)`, at most `cap`, spread by jitter.

    "full" draws from the whole of [0, bound), "equal" from its upper half, "none" not at all.
    Full jitter spreads best for the least work: M. Brooker, "Exponential Backoff And Jitter",
    AWS Architecture Blog, 2015.
    """

    __slots__ = ("base_s", "cap_s", "factor", "jitter")

    def __init__(self, base_s: float, factor: float, cap_s: float, jitter: Jitter) -> None:
        self.base_s = base_s
        self.factor = factor
        self.cap_s = cap_s
        self.jitter = jitter

    def __repr__(self) -> str:
        return f"exponential({self.base_s}, factor={self.factor}, cap={self.cap_s}, jitter={self.jitter!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exponential) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def bound(self, attempt: int) -> float:
        """Return the longest wait after this attempt, in seconds."""
        try:
            return min(self.cap_s, self.base_s * self.factor ** (attempt - 1))
        except OverflowError:  # a factor above 1 to a power of about a thousand
            return self.cap_s if self.base_s else 0.0

    def delay(self, attempt: int, draw: float, /) -> float:
        """Return the wait after this attempt, in seconds; `draw` is from [0, 1)."""
        bound = self.bound(attempt)
        if self.jitter == "full":
            return bound * draw
        if self.jitter == "equal":
            return bound * (1 + draw) / 2
        return bound


class Listed:
    """The n-th wait after the n-th attempt; the last one goes on for ever."""

    __slots__ = ("delays_s",)

    def __init__(self, delays_s: tuple[float, ...]) -> None:
        self.delays_s = delays_s

    def __repr__(self) -> str:
        return f"constant({self.delays_s[0]})" if len(self.delays_s) == 1 else f"{list(self.delays_s)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listed) and self.delays_s == other.delays_s

    def __hash__(self) -> int:
        return hash(self.delays_s)

    def delay(self, attempt: int, _draw: float, /) -> float:
        """Return the wait after this attempt, in seconds."""
        return self.delays_s[min(attempt, len(self.delays_s)) - 1]


class Called:
    """A user's own function of the attempt's number.

    It runs under the queue's lock, mostly in the supervisor's thread, so it must be quick and must not
    block.
    """

    __slots__ = ("fn",)

    def __init__(self, fn: Callable[[int], float]) -> None:
        self.fn = fn

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Called) and self.fn == other.fn

    def __hash__(self) -> int:
        return hash(self.fn)

    def delay(self, attempt: int, _draw: float, /) -> float:
        """Return the wait after this attempt, in seconds.

        Raises:
            Exception: Whatever the function raises, and `UnitError` for what is no duration.
        """
        return seconds(self.fn(attempt), field="backoff")


#: What the option `backoff` accepts.
BackoffLike = Exponential | Listed | Called | Callable[[int], float] | Sequence[Duration] | Duration


def exponential(base: Duration = 0.1, *, factor: float = 2, cap: Duration = 60, jitter: Jitter = "full") -> Exponential:
    """Wait longer after each failure: at most `min(cap, base * factor**(attempt - 1))`.

    Args:
        base: The bound after the first failure.
        factor: By how much it grows with each further one; at least 1.
        cap: The longest bound.
        jitter: "full" draws from [0, bound), "equal" from [bound/2, bound), "none" waits
            exactly the bound.

    Raises:
        UnitError: A duration that cannot be read, or a factor below 1.
        UsageError: An unknown jitter.
    """
    if jitter not in ("full", "equal", "none"):
        raise UsageError(f"jitter={jitter!r}: must be 'full', 'equal' or 'none'")
    return Exponential(seconds(base, field="base"), _factor(factor), seconds(cap, field="cap"), jitter)


def _factor(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= sys.float_info.max:
        raise UnitError(f"factor={value!r}: must be a number of at least 1")
    return float(value)


def constant(delay: Duration) -> Listed:
    """Wait the same time after each failure.

    Raises:
        UnitError: `delay` is no duration.
    """
    return Listed((seconds(delay, field="constant"),))


def as_backoff(value: BackoffLike) -> Backoff:
    """Make a backoff of what the `backoff` option accepts.

    Args:
        value: What `exponential` or `constant` returned, a list of durations, one duration,
            or a function of the attempt's number (from 1) that returns seconds.

    Raises:
        UnitError: A duration that cannot be read.
        UsageError: An empty list, or something else altogether.
    """
    if isinstance(value, Exponential | Listed | Called):
        return value
    if isinstance(value, list | tuple):
        if not value:
            raise UsageError("backoff=[]: an empty list says nothing; give at least one duration")
        return Listed(tuple(seconds(item, field="backoff") for item in value))
    if callable(value):
        return Called(value)
    return Listed((seconds(value, field="backoff"),))  # type: ignore[arg-type]  # seconds() refuses the rest
