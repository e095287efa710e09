"""Interrupts a thread at one chosen moment after the other, wherever Python would call a signal handler.

CPython calls it when a function begins, after a call and when a loop goes round, and nowhere else
(interrupts.py relies on that); so do we, by tracing.  What is called is procq's own handler, which
waits where it would wait for a real Ctrl-C.
"""

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any, Final

import pytest

import procq
from procq import interrupts

#: The supervisor and what it is made of.
SUPERVISOR: Final = (
    "procq.brake", "procq.callback", "procq.change", "procq.closing", "procq.dispatch", "procq.fork",
    "procq.lock", "procq.room", "procq.supervisor",
)  # fmt: skip

#: After these instructions CPython looks for signals.
_LOOKS_AFTER: Final = ("RESUME", "CALL", "JUMP_BACKWARD")

#: For tests in which each function of interest is called only once while it is watched.
first_calls = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="Python 3.13 tells of a function's instructions only from its second call on"
)

Handler = Callable[[int, FrameType | None], object]


class Interrupter:
    """Interrupts once, at the moment of this number among those in the frames of some modules.

    Args:
        number: Which moment.
        modules: The names of the modules.
        handler: What is called then.
        amid_finalizers: Whether the moments of a `__del__` count too: what is raised there Python tells of only.

    Attributes:
        done: Whether that moment has come.
    """

    def __init__(
        self,
        number: int,
        *modules: str,
        handler: "Handler" = interrupts._on_interrupt,
        amid_finalizers: bool = False,
    ) -> None:
        self.done = False
        self._amid_finalizers = amid_finalizers
        self._handler = handler
        self._left = number
        self._modules = modules
        #: where each frame stands, and whether a call to Python is what it does: then nobody looks after it
        self._at: dict[FrameType, tuple[int, bool]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Interrupt what is done within, unless that has been done."""
        before = sys.gettrace()
        if not self.done:
            # Python 3.12 traces instructions only if somebody wanted them before the tracing began.
            if sys.version_info[:2] == (3, 12):
                sys._getframe().f_trace_opcodes = True
            sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)
            self._at.clear()

    def _called(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - a trace function
        caller = frame.f_back
        if caller in self._at:
            self._at[caller] = (self._at[caller][0], True)
        if frame.f_globals.get("__name__") not in self._modules:
            return None
        if not self._amid_finalizers and _is_finalizing(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._at[frame] = (-1, False)
        return self._traced if event == "call" else None

    def _traced(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401
        if event == "return":
            self._at.pop(frame, None)
        if event != "opcode" or self.done:
            return self._traced
        before, called_python = self._at.get(frame, (-1, False))
        self._at[frame] = (frame.f_lasti, False)
        if called_python or not _name_at(frame.f_code, before).startswith(_LOOKS_AFTER):
            return self._traced
        self._left -= 1
        if self._left < 0:
            self.done = True
            self._handler(signal.SIGINT, frame)
        return self._traced


def _is_finalizing(frame: FrameType | None) -> bool:
    """Whether a `__del__` is among the callers: what is raised there Python tells of, and goes on.

    One of an earlier test may come at any moment, when garbage is collected.
    """
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


@cache
def _names(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


def _name_at(code: CodeType, offset: int) -> str:
    return _names(code).get(offset, "")


#: What `counted` was called with; an inline queue calls it in this process.
CALLS: Final[list[int]] = []


def counted(number: int) -> int:
    """Note a call; in an inline queue alone."""
    CALLS.append(number)
    return number


class Rebuilt:
    """A result that is rebuilt by a function, and so travels as a pickle of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Rebuilt({self.number})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rebuilt) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __reduce__(self) -> tuple[object, ...]:
        return Rebuilt, (self.number,)


def counted_or_failed(number: int) -> object:
    """Fail at each fifth number, and return something to be rebuilt for each third."""
    counted(number)
    if number % 5 == 4:
        raise procq.Permanent(LookupError(str(number)))
    return Rebuilt(number) if number % 3 == 1 else number
