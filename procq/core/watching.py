"""Who is told what the scheduler does, as it does it: the events, the journal, or both.

A watcher is called amid a change and must not call back; what it says to do is nothing.  Where nobody
watches, all this costs a look.
"""

from typing import TYPE_CHECKING, Protocol, final

from procq.core.task import CapturedRun, Run, Task
from procq.parcel import Payload

if TYPE_CHECKING:
    from procq.outcome import Ended


class Watcher(Protocol):
    """Is told what happens to tasks; `now` and all other instants are of the engine's clock."""

    def submitted(self, task: Task, now: float) -> None:
        """A task was accepted; without conditions it is READY with that."""

    def blocked(self, task: Task, now: float) -> None:
        """A task waits for others."""

    def scheduled(self, task: Task, due: float, now: float) -> None:
        """A task waits for an instant: its own, or that of its next attempt."""

    def ready(self, task: Task, now: float) -> None:
        """A task may start now."""

    def returned(self, task: Task, now: float) -> None:
        """An attempt that was started has not begun, and never will; the task may start again."""

    def begun(self, task: Task, started_at: float) -> None:
        """An attempt has begun."""

    def succeeded(self, task: Task, value: Payload | None, run: Run | CapturedRun) -> None:
        """An attempt has returned."""

    def failed(self, task: Task, ended: "Ended") -> None:
        """An attempt has ended without success."""

    def ended(self, task: Task, now: float) -> None:
        """A task has reached a terminal state."""

    def replayed(self, task: Task, now: float) -> None:
        """A task that had ended comes back; what it waits for follows."""

    def forgotten(self, task: Task) -> None:
        """A task is known no more; dependents that are open may still need it."""


@final
class Both:
    """Tells two watchers, in order."""

    __slots__ = ("_first", "_second")

    def __init__(self, first: Watcher, second: Watcher) -> None:
        self._first = first
        self._second = second

    def submitted(self, task: Task, now: float) -> None:
        """As `Watcher` says, like all the others."""
        self._first.submitted(task, now)
        self._second.submitted(task, now)

    def blocked(self, task: Task, now: float) -> None:
        """Tell both."""
        self._first.blocked(task, now)
        self._second.blocked(task, now)

    def scheduled(self, task: Task, due: float, now: float) -> None:
        """Tell both."""
        self._first.scheduled(task, due, now)
        self._second.scheduled(task, due, now)

    def ready(self, task: Task, now: float) -> None:
        """Tell both."""
        self._first.ready(task, now)
        self._second.ready(task, now)

    def returned(self, task: Task, now: float) -> None:
        """Tell both."""
        self._first.returned(task, now)
        self._second.returned(task, now)

    def begun(self, task: Task, started_at: float) -> None:
        """Tell both."""
        self._first.begun(task, started_at)
        self._second.begun(task, started_at)

    def succeeded(self, task: Task, value: Payload | None, run: Run | CapturedRun) -> None:
        """Tell both."""
        self._first.succeeded(task, value, run)
        self._second.succeeded(task, value, run)

    def failed(self, task: Task, ended: "Ended") -> None:
        """Tell both."""
        self._first.failed(task, ended)
        self._second.failed(task, ended)

    def ended(self, task: Task, now: float) -> None:
        """Tell both."""
        self._first.ended(task, now)
        self._second.ended(task, now)

    def replayed(self, task: Task, now: float) -> None:
        """Tell both."""
        self._first.replayed(task, now)
        self._second.replayed(task, now)

    def forgotten(self, task: Task) -> None:
        """Tell both."""
        self._first.forgotten(task)
        self._second.forgotten(task)
