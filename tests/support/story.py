"""Reads a stream of events as a program would, and refuses whatever cannot be so (docs/reference/events.md)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, final, get_args

from jsonschema import Draft202012Validator

import procq
from procq import Status
from procq.core.states import MOVES, REVIVALS, TERMINAL
from procq.core.task import CutCause
from procq.events import OPT_IN, Event, Events, as_listener

if TYPE_CHECKING:
    from procq.callback import CallbackThread

SCHEMA: Final = json.loads((Path(procq.__file__).parent / "events.schema.json").read_text(encoding="utf-8"))
VALIDATORS: Final = {
    kind: Draft202012Validator({**SCHEMA["$defs"][kind], "$defs": SCHEMA["$defs"]})
    for kind in SCHEMA["properties"]["ev"]["enum"]
}
ENVELOPE: Final = Draft202012Validator({name: part for name, part in SCHEMA.items() if name != "oneOf"})


@final
class Story:
    """Listens, validates each event, and follows every task by the moves that are legal (contract A2, A3).

    Args:
        of_a_command: Whether it is `procq run` that tells, which knows more than a queue.

    Attributes:
        events: All that was told.
        statuses: Where each task is by now, by its id; None: it was submitted, or replayed, and nothing else.
        ends: How often each task has ended, by its id.
        errors: What could not be so; `check` raises the first.
    """

    def __init__(self, *, of_a_command: bool = False) -> None:
        self._of_a_command = of_a_command
        self.events: list[dict[str, Any]] = []
        self.statuses: dict[str, Status | None] = {}
        self.ends: dict[str, int] = {}
        self.errors: list[AssertionError] = []
        #: which attempt runs, by the task's id
        self._running: dict[str, int] = {}
        #: how the last attempt ended, by the task's id
        self._outcomes: dict[str, str] = {}
        #: process ids of the workers that there are, by number
        self.workers: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        """Take in an event; never raises, for the queue would swallow that."""
        self.events.append(event)
        try:
            self._take(cast("dict[str, Any]", event))
        except AssertionError as error:
            self.errors.append(error)

    def check(self) -> None:
        """Raise if anything was told that cannot be so."""
        if self.errors:
            raise self.errors[0]

    def kinds(self, task_id: str | None = None) -> list[str]:
        """Return the kinds of what was told, of one task or of all but the workers, in order."""
        return [
            event["ev"]
            for event in self.events
            if (not event["ev"].startswith("worker.") if task_id is None else event.get("id") == task_id)
        ]

    def of(self, kind: str, task_id: str | None = None) -> list[dict[str, Any]]:
        """Return the events of one kind."""
        return [event for event in self.events if event["ev"] == kind and task_id in {None, event.get("id")}]

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["ev"]
        problems = [*ENVELOPE.iter_errors(event), *VALIDATORS[kind].iter_errors(event)]
        assert not problems, f"{event}: {problems}"
        known = {*SCHEMA["properties"], *SCHEMA["$defs"][kind]["properties" if self._of_a_command else "required"]}
        assert event.keys() == known, f"{event} has other fields than are told of"
        assert json.loads(json.dumps(event, allow_nan=False)) == event
        assert event["seq"] == len(self.events), "gap-free"
        assert event["run"] == self.events[0]["run"]
        assert (kind == "run.started") == (event["seq"] == 1)
        assert len(self.events) == 1 or self.events[-2]["ev"] != "run.ended", "the last one"
        if kind.startswith(("task.", "attempt.")):
            self._follow(kind, event)
        elif kind == "worker.started":
            assert event["worker"] not in self.workers
            self.workers[event["worker"]] = event["pid"]
        elif kind == "worker.ended":
            assert self.workers.pop(event["worker"]) == event["pid"]
        elif kind == "run.ended":
            assert not self.workers, "every worker has ended"

    def _follow(self, kind: str, event: dict[str, Any]) -> None:
        """Follow a task."""
        task_id = event["id"]
        if kind == "task.submitted":
            assert self.statuses.get(task_id, Status.FAILED) in TERMINAL, "its id was free"
            self.statuses[task_id] = None
            self.ends[task_id] = 0
            self._outcomes.pop(task_id, None)
            return
        was = self.statuses[task_id]
        match kind:
            case "task.blocked":
                assert was is None, event
                self.statuses[task_id] = Status.BLOCKED
            case "task.scheduled":
                self._move(task_id, Status.SCHEDULED)
            case "task.ready":
                if event["reason"] == "not_begun":
                    del self._running[task_id]
                self._move(task_id, Status.READY)
            case "task.held":
                assert was is Status.READY, event
            case "task.replayed":
                assert was in REVIVALS, event
                self.statuses[task_id] = None
                self.ends[task_id] -= 1
            case "task.ended":
                self._end(task_id, event)
            case _:
                self._attempt(kind, task_id, event)

    def _attempt(self, kind: str, task_id: str, event: dict[str, Any]) -> None:
        match kind:
            case "attempt.started":
                self._move(task_id, Status.RUNNING)
                assert task_id not in self._running, f"{event} while another runs"
                self._running[task_id] = event["attempt"]
                if event["worker"] is not None:
                    assert self.workers[event["worker"]] == event["pid"]
            case "attempt.progress":
                assert self._running[task_id] == event["attempt"]
            case "attempt.ended":
                assert self._running.pop(task_id) == event["attempt"]
                self._outcomes[task_id] = event["outcome"]
            case _:
                raise AssertionError(f"{event} is told of nowhere")

    def _end(self, task_id: str, event: dict[str, Any]) -> None:
        # An attempt that is cut off before it has begun is not told of any further.
        never_began = self._running.pop(task_id, None) is not None
        assert not never_began or event["cause"] in get_args(CutCause), f"{event} while an attempt runs"
        status = Status(event["status"])
        if status is Status.SUCCEEDED:
            assert self._outcomes[task_id] == "ok"
        assert (event["cause"] is not None) == (status is Status.CANCELLED)
        assert event["origin"] is None or event["cause"] in {"dependency", "not needed"}
        self._move(task_id, status)
        self.ends[task_id] += 1
        assert self.ends[task_id] == 1, f"{event} a second time"

    def _move(self, task_id: str, status: Status) -> None:
        was = self.statuses[task_id] or Status.BLOCKED
        assert status in MOVES[was], f"{task_id} from {was} to {status}"
        assert was is not Status.RUNNING or task_id not in self._running, f"{task_id} leaves an attempt behind"
        self.statuses[task_id] = status


@final
class _AtOnce:
    """Stands in for the events' thread: calls at once."""

    def put(self, call: Callable[[], object]) -> bool:
        call()
        return True

    def close(self) -> None:
        """Nothing is left."""


def told_at_once(listener: Callable[[Event], object], now: Callable[[], float]) -> Events:
    """Make events of which all that is taken is told at once, in the thread that takes it."""
    events = Events(as_listener((listener, OPT_IN)), now=now, workers=1)
    events.thread = cast("CallbackThread", _AtOnce())
    return events
