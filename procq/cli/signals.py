"""Signals of a run: each becomes a message, and the main thread decides.

The number of a signal is written to a pipe by the interpreter's own C handler, at once and in
whatever thread; a thread that reads the pipe passes it on.  A Python handler that put the message
itself would run only when the main thread is next between two bytecodes: a signal that comes just
before that thread begins to wait for a lock would wait with it.  So nothing is done in a handler,
and no lock is taken in one.

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
#: Ask how far the run is; the second is Ctrl-T where there is such a key.
ASKING_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGINFO") if hasattr(signal, name))

#: What `signal.getsignal` returns and `signal.signal` takes.
_Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class Signalled(NamedTuple):
    """The message that a stop signal came."""

    number: signal.Signals


class Asked(NamedTuple):
    """The message that somebody wants to know how far the run is."""


@final
class StopSignals:
    """While entered, stop signals arrive as `Signalled` in `inbox`, and those that ask as `Asked`.

    A signal that is ignored stays ignored: SIGHUP under nohup, SIGINT in a shell's background
    job.  Outside the main thread Python lets nobody set handlers; then this does nothing.

    Args:
        inbox: Where the messages go.
    """

    __slots__ = ("_before", "_inbox", "_pipe", "_reader", "_wakeup_before")

    def __init__(self, inbox: SimpleQueue[Any]) -> None:
        self._inbox = inbox
        self._before: dict[signal.Signals, _Handler] = {}
        #: ends for reading and writing; empty while not entered
        self._pipe: tuple[int, int] | tuple[()] = ()
        self._reader: threading.Thread | None = None
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        reading, writing = os.pipe()
        os.set_blocking(writing, False)  # as set_wakeup_fd demands
        self._pipe = reading, writing
        self._reader = threading.Thread(target=self._pass_on, args=(reading,), name="procq-signals", daemon=True)
        self._reader.start()
        self._wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in STOP_SIGNALS + ASKING_SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, _leave_it_to_the_pipe)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._pipe:
            return
        for number, handler in self._before.items():
            # None: the handler was not set from Python, and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
        signal.set_wakeup_fd(self._wakeup_before)
        reading, writing = self._pipe
        self._pipe = ()
        os.close(writing)  # the reader sees the end
        assert self._reader is not None, "made with the pipe"
        self._reader.join()
        os.close(reading)

    def _pass_on(self, reading: int) -> None:
        """Turn what the pipe says into messages, until it is closed."""
        while numbers := os.read(reading, 64):
            for number in numbers:
                if number in STOP_SIGNALS:
                    self._inbox.put(Signalled(signal.Signals(number)))
                elif number in ASKING_SIGNALS:
                    self._inbox.put(Asked())


def _leave_it_to_the_pipe(_number: int, _frame: FrameType | None) -> None:
    """Handle a signal: the pipe has it already."""


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
