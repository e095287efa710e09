"""The supervisor's thread: how it is started, what it does, and what follows when it fails (contract G4, H1).

Decides nothing about workers: `turn` is the engine's, and is taken again and again until it says that
all is over.

Who touches what: `start` runs in the thread that opens the queue, `_run` is the outermost frame of the
supervisor's own.  Which of both closes the loop when Ctrl-C comes amid `start` is settled under the host's
lock, by `_runs` and `_is_given_up`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import final

from procq.engine.local.crew import Crew
from procq.engine.local.loop import Loop
from procq.engine.protocol import Host
from procq.errors import EngineError
from procq.log import CRITICAL, Logger

logger = Logger(__name__)


@final
class Drive:
    """Drives a loop in a thread of its own.

    Args:
        loop: The loop.
        crew: The workers, which are not to outlive it.
        turn: Waits, then handles what happened, for this host; returns whether there is more to come.
    """

    __slots__ = ("_crew", "_is_given_up", "_loop", "_runs", "_turn")

    def __init__(self, loop: Loop, crew: Crew, turn: Callable[[Host], bool]) -> None:
        self._loop = loop
        self._crew = crew
        self._turn = turn
        #: whether the thread has begun, and whether it must not
        self._runs = self._is_given_up = False

    def start(self, host: Host) -> None:
        """Start the thread; interrupted, it starts nothing, and no worker will ever be started.

        Raises:
            OSError: The system has no descriptor to spare.
            RuntimeError: It has no thread to spare.
        """
        # A daemon, so that a forgotten queue cannot keep the interpreter from ending; the exit
        # hook of `Queue` kills its workers before daemons are frozen (contract G4).
        thread = threading.Thread(target=self._run, args=(host,), name="procq-supervisor", daemon=True)
        self._loop.open()
        try:
            thread.start()
        except BaseException:
            # Ctrl-C may have come once the thread was running: then the loop is its to close.
            with host.lock:
                self._crew.end_births()
                if not self._runs:
                    self._is_given_up = True
                    self._loop.close()
            self._loop.alarm()
            raise

    def _run(self, host: Host) -> None:
        """Turn until everything is closed."""
        with host.lock:
            if self._is_given_up:
                return
            self._runs = True
        try:
            while self._turn(host):
                pass
        except BaseException as error:
            # Not even a bug of procq may leave callers waiting for ever: end everything, and loudly.
            if not isinstance(error, EngineError):
                with suppress(Exception):  # a filter of the program's own may raise; callers would wait all the same
                    logger.log(CRITICAL, "procq's supervisor thread failed; please report this", exc_info=True)
            host.failed(error)
            self._crew.abandon(host)
        finally:
            with host.lock:
                self._loop.close()
            host.closed()
