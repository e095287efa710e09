"""Captures what an attempt writes to standard output and standard error (contract H4).

For each stream and worker a pipe, which the supervisor empties and of which it keeps the last part.
The worker leads its descriptors 1 and 2 into them while an attempt runs, so that what C code and other
programs write is captured too; what a dying worker wrote last is still in the pipe after its death.

Rejected: a memory file that the worker writes and the supervisor reads afterwards.  It needs no
reader, but nothing bounds it: a limit makes writes fail, and whoever cuts it from time to time
comes too late for a program that writes gigabytes a second.  Rejected too: a thread of the worker that
empties the pipe.  It stands still while C code holds the interpreter lock, and dies with the worker.

Bytes in a pipe do not say whose they are.  So nothing is sent ahead to a worker that captures: it begins
an attempt only after the supervisor has taken all that the one before had written.

Both sides import this module, the worker only if it captures.
"""

import os
import sys
from functools import partial

from procq.engine.local.transport import above_standard_streams
from procq.engine.tail import Tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, TextIO

    from procq.outcome import Ended

#: Bytes read at a time: what a pipe of default size holds.
_READ_BYTES: "Final" = 64 * 1024
#: Reads after which a pipe has been emptied once, whatever comes meanwhile: one may hold a MiB.
_READS_MAX: "Final" = 16
#: A read that gives so many bytes is part of a flood.
FLOOD_BYTES: "Final" = 32 * 1024
#: Then nothing is read for so long (seconds), which slows the flood down to about 30 MB/s and leaves the
#: supervisor to others: a turn of its loop for 64 KiB takes some 40 us.
FLOOD_PAUSE_S: "Final" = 0.002


class Output:
    """The supervisor's side: the reading ends of a worker's pipes.  Never blocks; not thread-safe."""

    __slots__ = ("_tails", "_worker_fds", "fds")

    def __init__(self) -> None:
        #: to be watched for reading: standard output's, standard error's
        self.fds: tuple[int, ...] = ()
        self._worker_fds: tuple[int, ...] = ()
        self._tails = (Tail(), Tail())
        try:
            for _ in self._tails:
                fd, worker_fd = map(above_standard_streams, os.pipe())
                self.fds += (fd,)
                self._worker_fds += (worker_fd,)
                os.set_blocking(fd, False)
        except BaseException:
            self.close()
            raise

    @property
    def worker_fds(self) -> tuple[int, ...]:
        """The descriptors to hand to the child."""
        return self._worker_fds

    def close_worker_ends(self) -> None:
        """Close what only the worker needs, once it has it."""
        fds, self._worker_fds = self._worker_fds, ()
        for fd in fds:
            os.close(fd)

    def read(self, number: int) -> int | None:
        """Read what a stream holds, up to 64 KiB of it.

        Args:
            number: 0 for standard output, 1 for standard error.

        Returns:
            How many bytes there were; None: the worker and all that it has started have closed it.
        """
        try:
            data = os.read(self.fds[number], _READ_BYTES)
        except BlockingIOError:
            return 0
        self._tails[number].append(data)
        return len(data) or None

    def begin(self) -> None:
        """Forget what was written until now: an attempt begins."""
        self.drain()
        for tail in self._tails:
            tail.clear()

    def add_to(self, ended: "Ended") -> None:
        """Add what was written to the report on the attempt that wrote it."""
        self.drain()
        ended.stdout, ended.stderr = (tail.text() for tail in self._tails)

    def drain(self) -> None:
        """Read what has been written until now."""
        for number in range(len(self.fds)):
            for _ in range(_READS_MAX):
                if not self.read(number):
                    break

    def close(self) -> None:
        """Close every descriptor; may be called twice."""
        self.close_worker_ends()
        fds, self.fds = self.fds, ()
        for fd in fds:
            os.close(fd)


class Redirection:
    """The worker's side.  Raises `OSError` if a task has closed its descriptors."""

    __slots__ = ("_flush_c", "_pipes", "_saved", "_streams")

    def __init__(self, stdout_fd: int, stderr_fd: int) -> None:
        self._pipes = (stdout_fd, stderr_fd)
        for fd in self._pipes:
            os.set_inheritable(fd, False)  # noqa: FBT003 - positional only
        #: where the standard streams lead outside of attempts; None: nowhere
        self._saved = (_duplicate(1), _duplicate(2))
        self._streams: tuple[TextIO, TextIO] = (sys.stdout, sys.stderr)
        self._flush_c = _c_flusher()

    def begin(self) -> None:
        """Lead the standard streams into the pipes."""
        self._streams = (sys.stdout, sys.stderr)
        for fd, pipe in zip((1, 2), self._pipes, strict=True):
            os.dup2(pipe, fd)

    def end(self, flush_streams: "Callable[[], None]") -> None:
        """Send what is still in buffers, and lead the streams back, whatever the task did to them.

        What the task has put in the place of `sys.stdout` and `sys.stderr` was flushed before.
        """
        sys.stdout, sys.stderr = self._streams
        flush_streams()
        if self._flush_c is not None:
            self._flush_c()
        for fd, saved in zip((1, 2), self._saved, strict=True):
            if saved is not None:
                os.dup2(saved, fd)
            else:
                os.close(fd)


def _duplicate(fd: int) -> int | None:
    try:
        return above_standard_streams(os.dup(fd))
    except OSError:  # the supervisor has closed it
        return None


def _c_flusher() -> "Callable[[], object] | None":
    """Return what flushes standard output as C code sees it, which is a buffer of its own.

    In a pipe it would stay there until the worker ends.  None where this cannot be done.
    """
    try:
        import ctypes  # noqa: PLC0415 - 4 ms, for workers that capture only

        library = ctypes.CDLL(None)
        stdout = ctypes.c_void_p.in_dll(library, "stdout")
        return partial(library.fflush, stdout)
    except (AttributeError, ImportError, OSError, ValueError):
        return None
