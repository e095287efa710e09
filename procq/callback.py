"""The threads in which user code is called that must not run in the supervisor's (contract F4).

One runs done-callbacks, another the handlers of what workers log: a callback may wait for a task
that cannot go on until what it logs is handled.  A third tells of events.  Knows nothing of tasks.

`put` and `close` are called under the queue's lock, and take this module's own inside it for a
moment: a signal handler that interrupts them and calls the queue is refused there, where it would
else wait for itself here.  The calls themselves are made under no lock.

A call may shut its queue down, or another one, and so wait for the other threads of this kind: nobody
waits for one that waits for it.
"""

import contextlib
import threading
from _queue import SimpleQueue
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, final

from procq.log import DEBUG, ERROR, Logger

logger = Logger(__name__)

#: Which of these threads each thread waits for.  No lock: whoever waits writes first and looks then, so of
#: those that wait for each other at least one sees it.
_WAITS: "Final[dict[threading.Thread, threading.Thread]]" = {}


@final
class CallbackThread:
    """Runs calls of user code one after the other, outside every lock; started when first needed (F4).

    Args:
        name: The thread's.
        what: What is called, for messages.
    """

    __slots__ = ("_calls", "_closed", "_lock", "_name", "_thread", "_what")

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self._what = what
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def put(self, call: Callable[[], object]) -> bool:
        """Have a call made soon; never blocks for long.  The queue's lock is held.

        Returns:
            Whether there is a thread; else the next `put` tries again to start one.
        """
        with self._lock:
            self._calls.put(call)
            if self._thread is None:
                self._start_thread()
            if self._closed:  # a callback that was added after the end of the queue
                self._calls.put(None)
            return self._thread is not None

    def close(self) -> None:
        """Let the thread end after the calls that are due; the queue's lock is held."""
        with self._lock:
            self._closed = True
            if self._thread is not None:
                self._calls.put(None)

    def abandon(self) -> None:
        """Let the thread end after the calls that are due; takes no lock, so that `__del__` may call it anywhere."""
        if self._thread is not None:
            self._calls.put(None)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has none to spare: the next callback tries again
            # From 3.12 on none can be started while the interpreter ends, which is nobody's fault.
            level = DEBUG if "interpreter shutdown" in str(error) else ERROR
            logger.log(level, "%s cannot be called: %s", self._what, error)
        else:
            self._thread = thread

    def flush(self, lock: AbstractContextManager[object]) -> None:
        """Wait until the calls that are due have been made, unless this is one of them or they wait for it.

        Args:
            lock: The queue's, which this thread does not hold.
        """
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        flushed = threading.Event()
        with lock:
            self.put(flushed.set)
        _wait(thread, flushed.wait)

    def join(self, timeout_s: float | None) -> None:
        """Wait for the thread's end, unless this is it, or it waits for this one."""
        thread = self._thread
        if thread is not None:
            _wait(thread, partial(thread.join, None if timeout_s is None else max(0.0, timeout_s)))

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                with self._lock:
                    if self._calls.empty():
                        self._thread = None
                        return
                continue
            try:
                call()
            except BaseException:
                # A user's callback: whatever it raises is told once and harms nobody (F4).
                with contextlib.suppress(BaseException):  # a handler of the program's may raise too
                    logger.log(ERROR, "%s raised", self._what, exc_info=True)
            del call  # or it would keep a handle alive until the next one comes


def _wait(thread: threading.Thread, wait: Callable[[], object]) -> None:
    """Wait for a thread, unless that waits for this one, perhaps by way of others."""
    me = threading.current_thread()
    _WAITS[me] = thread
    try:
        at: threading.Thread | None = thread
        seen: set[threading.Thread] = set()
        while at is not None and at is not me and at not in seen:
            seen.add(at)
            at = _WAITS.get(at)
        if at is not me:
            wait()
    finally:
        _WAITS.pop(me, None)
