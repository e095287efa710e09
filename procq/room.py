"""Whether there is room for more tasks, and whose turn it is when there is (contract C6).

Counts what waits and its bytes, lets callers wait in the order in which they came, and wakes the
first of them.  Knows nothing of what the tasks are.

Everything here happens under the queue's lock, which a caller that waits gives up meanwhile.
"""

import threading
from _thread import get_ident
from collections.abc import Callable
from typing import Final, Protocol, final

from procq.callback import CallbackThread
from procq.core.scheduler import Scheduler
from procq.engine.protocol import Engine
from procq.errors import QueueFullError
from procq.interrupts import WATCH, raise_pending, shielded, waits
from procq.lock import QueueLock, refuse_nested_call

#: Payloads of so many bytes in all never wait for room, so the memory need not be asked for.
SMALL_BYTES: Final = 64 * 2**20


class House(Protocol):
    """What there is room in."""

    @property
    def lock(self) -> QueueLock:
        """The queue's lock."""

    @property
    def opened(self) -> bool:
        """Whether anything runs, so that there may be room again."""

    def check_usable(self) -> None:
        """Raise if no more work is taken."""


@final
class Room:
    """The bounds of what waits, and the callers that wait for room.

    Args:
        scheduler: Knows what waits.
        engine: Its clock tells when a wait is over; if it has no thread, whoever waits runs it.
        callbacks: Called between its steps then.
        max_pending: As `Supervisor`.
        max_pending_bytes: As `Supervisor`.
    """

    __slots__ = ("_callbacks", "_engine", "_max_pending", "_max_pending_bytes", "_roomy_bytes", "_scheduler", "turns")

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        callbacks: CallbackThread,
        *,
        max_pending: int | None,
        max_pending_bytes: int | Callable[[], int] | None,
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._callbacks = callbacks
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        #: as long as so many bytes of payload are open there is room for more, whatever the bounds
        self._roomy_bytes: float
        if max_pending is not None:
            self._roomy_bytes = -1
        elif max_pending_bytes is None:
            self._roomy_bytes = float("inf")
        else:
            self._roomy_bytes = max_pending_bytes if isinstance(max_pending_bytes, int) else SMALL_BYTES
        #: callers that wait for room, longest first: what wakes one, and its thread
        self.turns: dict[threading.Lock, int] = {}

    def wait(self, house: House, size: int, *, block: bool, timeout_s: float | None, freed: int = 0) -> None:
        """Wait until a task with so many bytes may be submitted; the lock is held before and after.

        Args:
            house: What there is room in.
            size: So many bytes, those left out that the submit makes free.
            block: Whether to wait at all.
            timeout_s: The longest wait; None: without end.
            freed: How many tasks that wait now make room by the submit itself.

        Raises:
            QueueFullError: There is no room, and the call must not wait (any longer).
            QueueClosedError: Shutdown began meanwhile.
            UsageError: This thread waits already, and a signal handler has called again.
        """
        if self._scheduler.open_bytes + size <= self._roomy_bytes or not self._is_full(size, freed):
            return
        if not house.opened:
            raise QueueFullError(f"{self._bound()}, and the queue is not started, so waiting would never end")
        if not block:
            raise QueueFullError(f"{self._bound()}; submit later, or let submit() block")
        me = get_ident()
        if me in self.turns.values():  # a signal handler: what it interrupted is before it and cannot go on
            refuse_nested_call()
        turn = threading.Lock()
        try:
            self.turns[turn] = me  # it keeps this place, however often it looks in vain
            self._wait_in_turn(house, turn, size, timeout_s, freed)
        except BaseException:
            self.turns.pop(turn, None)
            self.let_in()
            raise
        del self.turns[turn]  # the next one is let in once this task is accepted, or refused

    @waits
    def _wait_in_turn(self, house: House, turn: threading.Lock, size: int, timeout_s: float | None, freed: int) -> None:
        engine = self._engine
        ends_at = None if timeout_s is None else engine.now() + timeout_s
        while self._is_full(size, freed):
            house.check_usable()
            if ends_at is not None and engine.now() >= ends_at:
                raise QueueFullError(f"{self._bound()}, and no room came within {timeout_s:g} s")
            turn.acquire(blocking=False)
            lock = house.lock
            lock.release()
            try:
                if not engine.manual:
                    turn.acquire(timeout=-1 if ends_at is None else max(0.0, ends_at - engine.now()))
                elif engine.step(ends_at):
                    self._callbacks.flush(lock)
                elif ends_at is None:
                    raise QueueFullError(f"{self._bound()}, and nothing that could run would make room")
            finally:
                _lock_again(lock)
            if WATCH.pending:
                raise_pending()
        house.check_usable()

    def _is_full(self, size: int, freed: int = 0) -> bool:
        scheduler = self._scheduler
        if self._max_pending is not None and scheduler.waiting - freed >= self._max_pending:
            return True
        if self._max_pending_bytes is None or not scheduler.open:
            return False
        if not isinstance(self._max_pending_bytes, int):
            if scheduler.open_bytes + size <= SMALL_BYTES:
                return False
            self._max_pending_bytes = self._max_pending_bytes()
        return scheduler.open_bytes + size > self._max_pending_bytes

    def _bound(self) -> str:
        """Say which bound is reached."""
        scheduler = self._scheduler
        waiting = scheduler.waiting
        if self._max_pending is not None and waiting >= self._max_pending:
            return f"{waiting} tasks wait already (max_pending={self._max_pending})"
        return f"{scheduler.open_bytes} bytes of payload wait already (max_pending_bytes={self._max_pending_bytes})"

    def let_in(self) -> None:
        """Wake the caller that waits longest for room, if there is any.

        It looks again.  Whoever had its turn calls this, even if it submitted nothing after all:
        the next one may have nothing else to be woken by.
        """
        if self.turns and not self._is_full(0):
            _wake(next(iter(self.turns)))

    def free_all(self) -> None:
        """Wake every caller, to find that it waits in vain."""
        for turn in self.turns:
            _wake(turn)


@shielded
def _lock_again(lock: QueueLock) -> None:
    """Take the lock, which whoever called will give back: to raise before would give back another's."""
    lock.acquire()


def _wake(turn: threading.Lock) -> None:
    if turn.locked():
        turn.release()
