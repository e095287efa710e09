"""Writes lines to a file, in big pieces and yet soon: what a run tells machines as it goes.

A line is only put in a queue.  It is written with many others, at the latest a fifth of a second later
by a thread that looks after all files of a run.  A write that fails ends that file's output and nothing
else, with one warning: a full disk or a reader that left (`| head`) does not end a run.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

Warn = Callable[[str], object]

#: So many lines are written together, some 50 KB.
_LINES: Final = 256
#: What is waiting is written at the latest after so long; the specification says a second.
_SOON_S: Final = 0.2


@final
class LineFile:
    """A file to which lines are added.

    Lines are added by one thread; others may flush.

    Args:
        descriptor: Open for writing.
        what: What it is, for the warning.
        warn: Told once if it cannot be written any more.
        is_owned: Whether to close the descriptor.
    """

    __slots__ = ("_descriptor", "_due", "_is_broken", "_is_owned", "_lock", "_waiting", "_warn", "_what")

    def __init__(self, descriptor: int, *, what: str, warn: Warn, is_owned: bool = True) -> None:
        self._descriptor = descriptor
        self._what = what
        self._warn = warn
        self._is_owned = is_owned
        self._is_broken = False
        self._waiting: deque[str] = deque()
        #: how many more lines until they are written
        self._due = _LINES
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        """Add a line, which has its end."""
        self._waiting.append(line)
        self._due -= 1
        if self._due <= 0:
            self.flush()

    def flush(self) -> None:
        """Write what is waiting."""
        self._due = _LINES
        if not self._waiting:
            return
        with self._lock:
            waiting = self._waiting
            data = "".join([waiting.popleft() for _ in range(len(waiting))]).encode()
            if self._is_broken:
                return
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                self._is_broken = True
                self._warn(f"{self._what} stopped: {error.strerror}")

    def close(self) -> None:
        """Write the rest; nothing is added after that."""
        self.flush()
        with self._lock:
            self._is_broken = True  # what comes late must not go to what has the descriptor then
            if self._is_owned:
                os.close(self._descriptor)


@final
class Flusher:
    """Flushes files soon after something was added.

    Args:
        files: Those that it looks after.
    """

    __slots__ = ("_ended", "_files", "_thread")

    def __init__(self, files: Sequence[LineFile]) -> None:
        self._files = files
        self._ended = threading.Event()
        # A daemon: it does nothing that the end of the run does not do too.
        self._thread = threading.Thread(target=self._run, name="procq-flush", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits then is not written."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_SOON_S):
            for file in self._files:
                file.flush()
