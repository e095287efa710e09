"""Writes what the function of `procq map` returned to standard output: a line an item, in the order of the items.

What people pipe on is the value, so a text stands as it is, anything else as JSON, and what JSON
cannot hold as its `repr`; a text with a line break in it is JSON too, since a line is an item.
Nothing stands there for None, which is what a function returns that was called for what it does,
nor for an item that failed, which is told on standard error.  Who needs to tell all of these
apart asks for `--results`.

To keep the order means to keep what came too early.  That is bounded: when `WINDOW` items have
been given out beyond the one that is awaited, no further item is given out until it has ended.
"""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from procq.cli import results
from procq.core.states import Status

#: Enough that one slow item among quick ones holds nobody up for long, few enough to be held: 10,000
#: lines of 100 bytes are 1 MB.  More than the items that are read ahead, which wait in any case.
WINDOW: Final = 10_000


class Ended(Protocol):
    """What is read of a handle whose task has ended."""

    @property
    def id(self) -> str:
        """The task's id."""

    @property
    def status(self) -> Status:
        """How it ended."""

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - the task's own value
        """Return its value."""


def to_stdout(data: bytes) -> None:
    """Write to standard output at once, past the buffer that Python would try to write out at its end."""
    sys.stdout.flush()
    number = sys.stdout.fileno()
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]


@final
class Printing:
    """Prints values; `made` is called in the producer's thread, all else in the main one.

    Args:
        write: Where the bytes go.
        ordered: Whether in the order of the items, or as they end.
    """

    __slots__ = ("_awaited", "_changed", "_early", "_given", "_numbers", "_ordered", "_write", "warning")

    def __init__(self, write: Callable[[bytes], None] = to_stdout, *, ordered: bool = True) -> None:
        self._write: Callable[[bytes], None] | None = write  # None: nobody reads, or the run is over
        self._ordered = ordered
        self._changed = threading.Condition(threading.Lock())
        #: the number of each task that has not ended, from 0 as they were given out
        self._numbers: dict[object, int] = {}
        #: lines of tasks that ended before one that was given out earlier, by number; empty: nothing to print
        self._early: dict[int, bytes] = {}
        #: how many tasks were given out, and how many of them have been printed
        self._given = self._awaited = 0
        #: why printing stopped, once; None while all is well
        self.warning: str | None = None

    def made(self, spec: object) -> None:
        """Note a task; waits while too many are held for one that has not ended."""
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._numbers[spec] = self._given
            self._given += 1

    def _has_room(self) -> bool:
        """Return whether another task may be given out."""
        return self._write is None or self._given - self._awaited < WINDOW

    def add(self, handle: Ended, spec: object) -> None:
        """Print the value of a task that has ended, or keep it until its turn comes.

        Args:
            handle: Its handle.
            spec: What it was made of; that of a task which no item stands for is passed over.
        """
        with self._changed:
            number = self._numbers.pop(spec, None)
            if number is None or self._write is None:
                return
            line = _line(handle)
            if self._ordered:
                self._early[number] = line
                line = self._due()
            else:
                self._awaited += 1
            self._send(line)
            self._changed.notify()

    def end(self) -> None:
        """Print what was kept for tasks that never ended, and hold nothing back any more."""
        with self._changed:
            self._send(b"".join(self._early[number] for number in sorted(self._early)))
            self._stop()

    def _due(self) -> bytes:
        """Return the lines whose turn has come."""
        due: list[bytes] = []
        while self._awaited in self._early:
            due.append(self._early.pop(self._awaited))
            self._awaited += 1
        return b"".join(due)

    def _send(self, data: bytes) -> None:
        """Write, or stop for good: a reader that left (`| head`) must not end the run."""
        if not data or self._write is None:
            return
        try:
            self._write(data)
        except (OSError, ValueError) as error:
            self.warning = f"warning: no results are printed any more: {error}"
            self._stop()

    def _stop(self) -> None:
        """Print nothing any more, and hold nobody back."""
        self._write = None
        self._early.clear()
        self._changed.notify()


def _line(handle: Ended) -> bytes:
    """Return what is printed for a task, empty for nothing."""
    if handle.status is not Status.SUCCEEDED:
        return b""
    shown = results.value_of(handle)
    value = shown["repr"] if "repr" in shown else shown["value"]
    if value is None:
        return b""
    if not isinstance(value, str) or "\n" in value:
        return results.json_text(value).encode() + b"\n"
    try:
        return value.encode("utf-8", "surrogateescape") + b"\n"  # a file's name that is no UTF-8 as it came
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        return value.encode("utf-8", "backslashreplace") + b"\n"
