"""In which order ready tasks start (contract B1, B5, B6).

A policy sees priorities and instants, never a task or a payload, and no clock is read in a
comparison.  It gives each task a number, its rank, when the task is accepted, for life; the lanes
order by rank and then by sequence number.  `WeightedFair` says besides which level a task belongs to,
and shares.py serves the levels by turns.
"""

import math
from collections.abc import Mapping
from typing import Final, Protocol, final

from procq.errors import UsageError
from procq.units import Duration, count, seconds

#: From one named priority to the next, in points (B5).
_LEVEL: Final = 10


class Policy(Protocol):
    """Gives each task the number it is ordered by; the smallest runs first."""

    def rank(self, priority: int, submitted_at: float) -> float:
        """Return the number of a task with this priority, accepted at this instant."""


@final
class Strict:
    """Highest priority first, then order of submission (B1)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'strict'"

    def rank(self, priority: int, _submitted_at: float) -> float:
        """Return the rank of a priority."""
        return -priority


@final
class Aging:
    """Priorities by which nobody starves: to wait is worth points; for `Queue(policy=Aging())` (contract B5).

    To wait `seconds_per_level` is worth one named level, which is 10 points.  The order of two tasks by
    "priority and what the wait is worth" is the same at every instant, because both wait equally fast;
    so it is fixed when they are submitted and costs nothing later.

    The bound: a task is overtaken only by tasks that were submitted no later than
    `(their priority - its own) / 10 * seconds_per_level` after it.  What comes later than that starts later,
    however urgent; so a LOW task never waits for a CRITICAL one that came more than three times
    `seconds_per_level` after it.

    Args:
        seconds_per_level: What one level is worth; longer than 0.

    Raises:
        UnitError: It is no duration.
        UsageError: It is 0.
    """

    __slots__ = ("seconds_per_level",)

    def __init__(self, seconds_per_level: Duration = 30) -> None:
        self.seconds_per_level = seconds(seconds_per_level, field="seconds_per_level")
        if not self.seconds_per_level:
            raise UsageError(f"seconds_per_level={seconds_per_level!r}: must be longer than 0, or use 'strict'")

    def __repr__(self) -> str:
        return f"Aging(seconds_per_level={self.seconds_per_level:g})"

    def rank(self, priority: int, submitted_at: float) -> float:
        """Return the instant at which a task of priority 0 would have had to come to be equal to this one."""
        try:
            return submitted_at - priority * self.seconds_per_level / _LEVEL
        except OverflowError:  # a priority of more than 300 digits
            return -math.inf if priority > 0 else math.inf


@final
class WeightedFair:
    """Every level with ready tasks gets its share of the starts; for `Queue(policy=WeightedFair({...}))` (contract B6).

    A level is a priority that is named here; a task belongs to the highest level that is not above its
    own priority, or to the lowest one.  Within a level the highest priority comes first, then the order of
    submission.  What is shared out is starts, not time, in each group of workers for itself.

    The bound: over any stretch in which two levels of weights v and w always have something that may start,
    the numbers a and b of attempts started of them differ by no more than
    `|a / v - b / w| <= 1 / v + 1 / w`.  So of n starts in a row, while all L levels have something, the level of
    weight w gets no fewer than `n * w / (sum of all weights) - (L - 1)`.  A level that had nothing to start gets no
    more afterwards for that.

    So it is for one worker, and wherever nothing is sent ahead.  Several workers begin what was sent ahead of them
    each at its own pace.  With at most A attempts ahead at once the bound is then
    `|a / v - b / w| <= 1 / v + 1 / w + 2 * A / min(v, w)`, however long the stretch.  A is up to 64 for each worker
    while the tasks take less than 10 ms, one for each up to 50 ms, and none beyond; a limit on their type keeps
    them from being sent ahead at all.  To send nothing ahead would cost tasks of 1 ms two fifths of what gets done
    in a second, and no-ops more than two thirds (measured 2026-11, two workers).

    This is start-time fair queueing with one unit of work for each attempt: P. Goyal, H. M. Vin, H. Cheng,
    "Start-time Fair Queuing", SIGCOMM 1996.

    Args:
        weights: Weight by priority, each a whole number of at least 1.

    Raises:
        UsageError: There is no level, or a priority or a weight is no such number.
    """

    __slots__ = ("_floors", "strides", "weights")

    def __init__(self, weights: Mapping[int, int]) -> None:
        if not isinstance(weights, Mapping):
            raise UsageError(f"WeightedFair({weights!r}): expected weights by priority, such as {{Priority.HIGH: 3}}")
        for priority in weights:
            if isinstance(priority, bool) or not isinstance(priority, int):
                raise UsageError(f"WeightedFair: {priority!r} is no priority; expected whole numbers or procq.Priority")
        if not weights:
            raise UsageError("WeightedFair({}): needs at least one level, such as {Priority.NORMAL: 1}")
        #: by priority, the highest level first
        self.weights: dict[int, int] = {
            int(priority): count(weights[priority], field=f"weights[{priority!r}]", least=1)
            for priority in sorted(weights, reverse=True)
        }
        self._floors = list(self.weights)
        whole = math.lcm(*self.weights.values())
        #: how far a level's clock goes with each start; whole numbers, so that nothing is ever rounded
        self.strides = [whole // weight for weight in self.weights.values()]

    def __repr__(self) -> str:
        return f"WeightedFair({self.weights})"

    def rank(self, priority: int, submitted_at: float) -> float:  # noqa: ARG002 - as every policy's
        """Return the rank of a priority within its level."""
        return -priority

    def level(self, priority: int) -> int:
        """Return the number of a priority's level, from 0 for the highest."""
        for number, floor in enumerate(self._floors):
            if priority >= floor:
                return number
        return len(self._floors) - 1
