"""Reads what runs have left in the state directory, whether they live, have ended or were killed.

Events are read as they are in the file, of which the last line may be cut off: a run writes in pieces,
and may die between two of them.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, final

from procq.cli.state import RunDirectory, StateDirectory, chosen
from procq.core.states import TERMINAL, Status
from procq.eventfile import event_in

Event = Mapping[str, Any]

#: What a run is now; "died": it was killed, or its machine was, and nobody wrote down its end.
Condition = Literal["running", "ended", "died"]

_PLACES: Final[Mapping[str, str]] = {
    "task.blocked": Status.BLOCKED.value,
    "task.scheduled": Status.SCHEDULED.value,
    "task.ready": Status.READY.value,
    "attempt.started": Status.RUNNING.value,
}
_ENDED: Final = frozenset(status.value for status in TERMINAL)


@final
class Tail:
    """Reads a file of events that may still grow.

    Args:
        path: The file; it need not be there yet.
    """

    __slots__ = ("_offset", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        #: up to where whole lines were read
        self._offset = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the events that have come, those before a line that is not whole."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                event = event_in(line)
                if event is not None and "ev" in event:
                    yield event


def events_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in a file, but for a line that is not whole; none if there is no file."""
    return Tail(path).read()


class Running(NamedTuple):
    """An attempt that runs."""

    id: str
    type: str | None
    args: str | None
    attempt: int
    worker: int | None
    pid: int | None
    started_at: float


class Failure(NamedTuple):
    """A task that ended FAILED."""

    id: str
    type: str | None
    args: str | None
    attempts: int
    error: str | None  #: "ValueError: text"
    outcome: str | None  #: of its last attempt


@final
class Picture:
    """Where the tasks of a run are, as far as its events tell.

    Attributes:
        statuses: Where each task is, by its id.
        started: What `run.started` says.
        ended: What `run.ended` says; empty if it was not told.
        warnings: Texts of all warnings.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.statuses: dict[str, str] = {}
        self.started: Event = {}
        self.ended: Event = {}
        self.warnings: list[str] = []
        #: of tasks that have not SUCCEEDED
        self._submitted: dict[str, Event] = {}
        self._running: dict[str, Event] = {}
        #: the last attempt of each task that did not succeed at that
        self._failed: dict[str, Event] = {}
        #: all and only tasks that are FAILED: how many attempts that took
        self._failures: dict[str, int] = {}
        for event in events:
            self.take(event)

    def take(self, event: Event) -> None:
        """Take the next event."""
        kind = event["ev"]
        if kind.startswith(("task.", "attempt.")):
            self._take_task(kind, event["id"], event)
        elif kind == "run.started":
            self.started = event
        elif kind == "run.ended":
            self.ended = event
        elif kind == "warning":
            self.warnings.append(event["text"])

    def _take_task(self, kind: str, task_id: str, event: Event) -> None:
        place = _PLACES.get(kind)
        if place is not None:
            self.statuses[task_id] = place
        if kind == "task.submitted":
            self._submitted[task_id] = event
        elif kind == "attempt.started":
            self._running[task_id] = event
        elif kind == "task.ready":  # perhaps because the attempt that was started has not begun
            self._running.pop(task_id, None)
        elif kind == "attempt.ended":
            self._running.pop(task_id, None)
            if event["outcome"] != "ok":
                self._failed[task_id] = event
        elif kind == "task.replayed":
            self._failures.pop(task_id, None)
        elif kind == "task.ended":
            self._end(task_id, event)

    def _end(self, task_id: str, event: Event) -> None:
        self.statuses[task_id] = event["status"]
        self._running.pop(task_id, None)
        if event["status"] == Status.FAILED.value:
            self._failures[task_id] = event["attempts"]
        else:
            self._failed.pop(task_id, None)
            self._submitted.pop(task_id, None)

    def counts(self) -> dict[str, int]:
        """Return how many tasks have each status."""
        counts = dict.fromkeys((status.value for status in Status), 0)
        for status in self.statuses.values():
            counts[status] += 1
        return counts

    def has_ended(self, task_id: str) -> bool:
        """Return whether a task is over."""
        return self.statuses.get(task_id) in _ENDED

    def running(self) -> list[Running]:
        """Return what runs, or ran when the last event was told, longest first."""
        found = [
            Running(
                task_id,
                self._about(task_id, "type"),
                self._about(task_id, "args"),
                event["attempt"],
                event["worker"],
                event["pid"],
                event["t"],
            )
            for task_id, event in self._running.items()
        ]
        return sorted(found, key=lambda one: one.started_at)

    def failures(self) -> list[Failure]:
        """Return the tasks that are FAILED, in the order of their ends."""
        return [self._failure(task_id, attempts) for task_id, attempts in self._failures.items()]

    def _failure(self, task_id: str, attempts: int) -> Failure:
        last = self._failed.get(task_id, {})
        error = last.get("error")
        text = None if error is None else ": ".join(part for part in (error["type"], error["message"]) if part)
        return Failure(
            task_id, self._about(task_id, "type"), self._about(task_id, "args"), attempts, text, last.get("outcome")
        )

    def _about(self, task_id: str, field: str) -> str | None:
        found: str | None = self._submitted.get(task_id, {}).get(field)
        return found


def condition_of(run: RunDirectory) -> Condition:
    """Return what a run is now."""
    if run.is_alive():
        return "running"
    return "ended" if "ended_at" in run.about() else "died"


def ended_at(run: RunDirectory, condition: Condition) -> float:
    """Return when a run ended, or has shown a sign of life last."""
    if condition == "running":
        return time.time()
    at = run.about().get("ended_at")
    if isinstance(at, int | float):
        return at
    try:
        return run.events_path.stat().st_mtime
    except OSError:
        return run.started_at()


def task_named(prefix: str, ids: Iterable[str]) -> str:
    """Return the id of the task that is meant by the beginning of it.

    Raises:
        CommandLineError: No task is, or more than one.
    """
    return chosen(prefix, {one: one for one in ids}, what="task")


def find_run(state: str, prefix: str | None) -> RunDirectory:
    """Return the run that is meant; the newest if none is said.

    Raises:
        CommandLineError: There is none, or more than one.
    """
    return StateDirectory(Path(state)).find(prefix)
