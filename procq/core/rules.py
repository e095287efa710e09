"""What the core asks of a task's options; for type checkers, and not imported when procq runs."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from procq.retry import Backoff
    from procq.slots import Demand


class Rules(Protocol):
    """What the core must know of a task's options (C3); many tasks share one object."""

    @property
    def priority(self) -> int:
        """The higher, the more urgent."""

    @property
    def max_attempts(self) -> int:
        """How many tries there are in all."""

    @property
    def timeout_s(self) -> float | None:
        """How long one attempt may run; None: no limit."""

    @property
    def backoff(self) -> "Backoff | None":
        """What it waits between attempts; None: what the queue says."""

    @property
    def retry_on(self) -> frozenset[str] | None:
        """Names of the error classes that are retried; None: any `Exception`."""

    @property
    def never_retry(self) -> frozenset[str]:
        """Names of error classes and outcomes that are not retried."""

    @property
    def retry_for_s(self) -> float | None:
        """No retry is due later than this after the first start; None: no limit."""

    @property
    def run_if(self) -> str:
        """After which ends of its dependencies it runs: "success", "done" or "failure"."""

    @property
    def group(self) -> str:
        """Which set of workers runs it."""

    @property
    def demand(self) -> "Demand":
        """What one attempt takes of the queue's resources."""
