"""Whether one more task of a type may start: its limit (contract B4) and its breaker (D8)."""

from typing import TYPE_CHECKING, final

from procq.core.breaker import Breaker, Circuit

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal


@final
class Gate:
    """What stands before the start of every task of one type.

    Args:
        limit: At most so many run at once; None: no limit.
        breaker: When to hold them back; None: never.
    """

    __slots__ = ("circuit", "limit", "taken", "watchers")

    def __init__(self, limit: int | None = None, breaker: Breaker | None = None) -> None:
        self.limit = limit
        self.circuit = None if breaker is None else Circuit(breaker)
        #: how many run now
        self.taken = 0
        #: called when it may have opened or closed
        self.watchers: list[Callable[[], object]] = []

    @property
    def open(self) -> bool:
        """Whether one more may start."""
        return (self.limit is None or self.taken < self.limit) and (self.circuit is None or self.circuit.admits)

    @property
    def why_shut(self) -> "Literal['limit', 'breaker']":
        """Why no more may start, if that is so."""
        return "limit" if self.limit is not None and self.taken >= self.limit else "breaker"

    def take(self, seq: int) -> None:
        """One more runs: the task of this sequence number."""
        self.taken += 1
        if self.circuit is not None:
            self.circuit.started(seq)
        self.tell()

    def release(self) -> None:
        """One that ran does not any more."""
        self.taken -= 1
        self.tell()

    def tell(self) -> None:
        """Tell whoever watches it to look again."""
        for look in self.watchers:
            look()
