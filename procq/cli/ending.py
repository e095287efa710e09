"""How one task ended, in words: read from its handle once, then kept instead of it."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from procq import loader
from procq.cli import preview
from procq.core.records import AttemptRecord
from procq.core.states import Status
from procq.errors import DependencyFailed
from procq.handle import Handle, task_of
from procq.spec import TaskSpec

_FRAME: Final = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)


class EndedHandle(Protocol):
    """What is read of a handle whose task has ended."""

    @property
    def id(self) -> str:
        """The task's id."""

    @property
    def status(self) -> Status:
        """How it ended."""

    @property
    def attempts(self) -> int:
        """Attempts charged or succeeded."""

    @property
    def error(self) -> BaseException | None:
        """What `result()` would raise."""

    @property
    def history(self) -> Sequence[AttemptRecord]:
        """The attempts that ended, oldest first."""


class Ending(NamedTuple):
    """How a task ended that did not succeed at once."""

    task_id: str
    label: str  #: the task as people recognise it
    status: Status
    attempts: int  #: attempts charged or succeeded
    max_attempts: int
    error: str = ""  #: "ValueError: text", empty if it succeeded
    where: str = ""  #: "etl.py:19": the user's last line under the error
    traceback: str = ""  #: the worker's traceback, as text
    origin: str | None = None  #: the task whose failure made this one be skipped
    reason: str = ""  #: why it was cancelled, if it was not skipped


def read(handle: EndedHandle, spec: TaskSpec[Any], *, max_attempts: int) -> Ending:
    """Return how the task of `spec` ended.

    Args:
        handle: Its handle.
        spec: What the jobs file says of it.
        max_attempts: How many tries it had in all: the flags may have said more than the spec.
    """
    return _read(handle, preview.label(spec), max_attempts=max_attempts, place=preview.place(spec))


def read_spawned(handle: Handle[Any]) -> Ending:
    """Return how a task ended that another one has spawned, whose spec has stayed in the worker."""
    task = task_of(handle)
    return _read(handle, f"{task.id} {task.type}(...)", max_attempts=task.rules.max_attempts, place="")


def _read(handle: EndedHandle, label: str, *, max_attempts: int, place: str) -> Ending:
    error = handle.error
    # Of a task that was cancelled the last attempt says nothing: it was stopped, or would have been tried again.
    last = handle.history[-1] if handle.history and handle.status is Status.FAILED else None
    traceback = "" if last is None else last.traceback or ""
    return Ending(
        task_id=handle.id,
        label=label,
        status=handle.status,
        attempts=handle.attempts,
        max_attempts=max_attempts,
        error="" if error is None else _error_text(error, last),
        where=where(traceback) or place,
        traceback=traceback,
        origin=error.origin if isinstance(error, DependencyFailed) else None,
    )


def _error_text(error: BaseException, last: AttemptRecord | None) -> str:
    """Return "ValueError: text"; from the worker's words if there are any."""
    if last is None or last.error_type is None:
        return loader.describe(error)
    name = last.error_type.rpartition(".")[2]
    text = " ".join((last.message or "").split())
    # What is no `Exception`, `sys.exit(3)` say, is told with its name already.
    return text if text == name or text.startswith(f"{name}: ") else f"{name}: {text}".removesuffix(": ")


def where(traceback: str) -> str:
    """Return the user's last line in a traceback, "etl.py:19"; empty without a traceback."""
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(traceback)]
    mine = [frame for frame in frames if loader.is_user_file(frame[0])] or frames
    return f"{loader.shown_path(mine[-1][0])}:{mine[-1][1]}" if mine else ""


def trimmed(traceback: str) -> list[str]:
    """Return the lines of a traceback without the frames that are not the user's."""
    kept: list[str] = []
    in_foreign_frame = False
    for line in traceback.rstrip().splitlines():
        match = _FRAME.match(line)
        if match is not None:
            in_foreign_frame = not loader.is_user_file(match["file"])
        elif not line.startswith("    "):
            in_foreign_frame = False
        if not in_foreign_frame:
            kept.append(line)
    return kept
