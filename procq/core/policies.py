"""In which order ready tasks start (contract B1): one number a task, fixed when it is accepted.

A policy sees a priority and an instant, never a task or a payload, and no clock is read in a
comparison.  Equal numbers are ordered by the sequence number, which the lanes add.
"""

from typing import Protocol


class Policy(Protocol):
    """Gives each task the number it is ordered by; the smallest runs first."""

    def rank(self, priority: int, submitted_at: float) -> float:
        """Return the number of a task with this priority, accepted at this instant."""


class Strict:
    """Highest priority first, then order of submission (B1)."""

    __slots__ = ()

    def rank(self, priority: int, _submitted_at: float) -> float:
        """Return the rank of a priority."""
        return -priority
