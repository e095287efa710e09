"""Writes `--results`: one JSON object a line and task, as the tasks end.

A value that JSON cannot hold is written as its `repr`, under another key, so that a reader
never takes the one for the other.
"""

import json
import sys
from typing import Any, Final, Protocol, Self, TextIO, final

from procq.cli.exits import CommandLineError
from procq.core.states import Status

_STDOUT: Final = "-"


class Finished(Protocol):
    """What is read of a handle whose task has ended."""

    @property
    def id(self) -> str:
        """The task's id."""

    @property
    def status(self) -> Status:
        """How it ended."""

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - the task's own value
        """Return its value."""


@final
class Results:
    """The open results file; a context manager.

    Args:
        target: A path, or "-" for standard output.

    Raises:
        CommandLineError: The file cannot be written.
    """

    __slots__ = ("_broken", "_file", "_owned", "error", "warning")

    def __init__(self, target: str) -> None:
        self._owned = target != _STDOUT
        try:
            self._file: TextIO = open(target, "w", encoding="utf-8") if self._owned else sys.stdout  # noqa: SIM115, PTH123 - closed by __exit__
        except OSError as error:
            raise CommandLineError(f"--results {target}: {error.strerror}") from None
        #: that nobody reads on, which is the reader's affair; None while somebody does
        self.warning: str | None = None
        #: why they could not be written, of which the run must tell by its exit code; None while all is well
        self.error: str | None = None
        self._broken = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write out what is buffered; closing again does nothing."""
        if not self._broken:
            self._guarded(self._file.close if self._owned else self._file.flush)

    def add(self, handle: Finished, error: str) -> None:
        """Write the line of a task that has ended.

        Args:
            handle: Its handle.
            error: "ValueError: text", empty if it succeeded.
        """
        if self._broken:
            return
        row: dict[str, object] = {"id": handle.id, "status": str(handle.status)}
        if handle.status is Status.SUCCEEDED:
            row |= value_of(handle)
        else:
            row["error"] = error
        line = json_text(row) + "\n"
        self._guarded(lambda: self._file.write(line))

    def _guarded(self, write: Any) -> None:  # noqa: ANN401 - any call without arguments
        """Write, or stop writing for good: a reader that left (`| head`) must not end the run."""
        try:
            write()
        except (OSError, ValueError) as error:
            self._broken = True
            why = f"--results stopped: {error}"
            if isinstance(error, BrokenPipeError):
                self.warning = f"warning: {why}"
            else:
                self.error = f"{why}; results are missing"


def json_text(value: object) -> str:
    """Return JSON that can be written as UTF-8: a file's name that is none holds lone surrogates."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def value_of(handle: Finished) -> dict[str, object]:
    """Return the value of a task that succeeded, as JSON has it under "value" or as text under "repr"."""
    try:
        value = handle.result(0)
    except Exception as error:  # noqa: BLE001 - the value's own class may fail to be rebuilt here
        return {"repr": f"<no value here: {error}>"}
    try:
        # allow_nan: what json writes for it is no JSON, so other readers would stumble.
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return {"repr": _repr(value)}
    return {"value": value}


def _repr(value: object) -> str:
    """Return the repr of anything."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"
