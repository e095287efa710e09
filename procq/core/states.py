"""Where a task can be, and the only moves between those places (contract A2, A3).

Rule: no other module decides whether a move is legal.  `Scheduler._move` consults `MOVES` every
time; `Scheduler.start` and `Scheduler.succeed` write one move each that is in the table, after a
look at the state before it; `Scheduler.accept` gives the first status, and `Scheduler.replay` gives
BLOCKED back to what is `UNSUCCESSFUL`, from where `REVIVALS` follows.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Final


class Status(StrEnum):
    """The state of one task; exactly one container of the scheduler holds it."""

    BLOCKED = "blocked"  #: waits for dependencies; held by their lists of dependents
    SCHEDULED = "scheduled"  #: waits for an instant; in the delayed heap
    READY = "ready"  #: may start now; in a ready lane, or sent ahead to a busy worker
    RUNNING = "running"  #: the current attempt is on a worker
    SUCCEEDED = "succeeded"  #: terminal: an attempt returned
    FAILED = "failed"  #: terminal: out of attempts, or permanent; kept as a dead letter
    CANCELLED = "cancelled"  #: terminal: cancelled, expired, cut off, or a dependency did not succeed

    @property
    def terminal(self) -> bool:
        """Whether only `replay` can move the task again."""
        return self in TERMINAL


class Priority(IntEnum):
    """Named levels; any `int` is a priority, higher runs first (contract B1)."""

    LOW = -10
    NORMAL = 0
    HIGH = 10
    CRITICAL = 20


_S = Status

MOVES: Final[Mapping[Status, frozenset[Status]]] = MappingProxyType({
    _S.BLOCKED: frozenset({_S.SCHEDULED, _S.READY, _S.CANCELLED}),
    # FAILED from a waiting state: workers cannot start (D11), and for nothing else.
    _S.SCHEDULED: frozenset({_S.READY, _S.CANCELLED, _S.FAILED}),
    _S.READY: frozenset({_S.RUNNING, _S.CANCELLED, _S.FAILED}),
    # READY: a retry without a pause, or an attempt that its worker never began, which is not charged (B8, D4).
    _S.RUNNING: frozenset({_S.SUCCEEDED, _S.SCHEDULED, _S.READY, _S.FAILED, _S.CANCELLED}),
    _S.SUCCEEDED: frozenset(),
    _S.FAILED: frozenset(),
    _S.CANCELLED: frozenset(),
})  # fmt: skip

#: What `replay` may do (contract F7), and nothing else.
REVIVALS: Final[Mapping[Status, frozenset[Status]]] = MappingProxyType({
    _S.FAILED: frozenset({_S.BLOCKED, _S.READY}),
    _S.CANCELLED: frozenset({_S.BLOCKED, _S.READY}),
})  # fmt: skip

#: Ended, and not as wished: what depends on it is cut, and a replay may bring it back.
UNSUCCESSFUL: Final = frozenset(REVIVALS)
TERMINAL: Final = frozenset(status for status, onward in MOVES.items() if not onward)
WAITING: Final = frozenset({_S.BLOCKED, _S.SCHEDULED, _S.READY})
