"""Signals of a run: a handler only passes the number on, and the main thread decides.

A handler runs between two bytecodes of the main thread, wherever that is, so it takes no lock:
`SimpleQueue.put` is the one call it makes, and that is reentrant by its documentation.

A run that was interrupted dies by the signal after clean-up, instead of exiting with 130: in
`for x in ...; do procq run ...; done` a shell stops the loop only then.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any, Final, NamedTuple, Self, final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: What `signal.getsignal` returns and `signal.signal` takes.
_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class Signalled(NamedTuple):
    """The message that a stop signal came."""

    number: signal.Signals


@final
class StopSignals:
    """While entered, stop signals arrive as `Signalled` in `inbox`.

    A signal that is ignored stays ignored: SIGHUP under nohup, SIGINT in a shell's background
    job.  Outside the main thread Python lets nobody set handlers; then this does nothing.

    Args:
        inbox: Where the messages go.
    """

    __slots__ = ("_before", "_inbox")

    def __init__(self, inbox: SimpleQueue[Any]) -> None:
        self._inbox = inbox
        self._before: dict[signal.Signals, _Handler] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                before = signal.getsignal(number)
                if before is not signal.SIG_IGN:
                    self._before[number] = before
                    signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: the handler was not set from Python, and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal: pass it on, touch nothing else."""
        self._inbox.put(Signalled(signal.Signals(number)))


def die_by(number: signal.Signals) -> int:
    """End this process by the signal's default action, so that the parent sees what happened.

    Returns:
        128 + the number, the shell's way to say it, if the signal is blocked and does nothing.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads it any more
            continue
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
