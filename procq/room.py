"""Whether there is room for more tasks, and whose turn it is when there is (contract C6).

Counts what waits and its bytes, lets callers wait in the order in which they came, and wakes the
first of them; before it only who replaces what waits.  Of tasks it knows their payloads' sizes alone.

Everything here happens under the queue's lock, which a caller that waits gives up meanwhile.
"""

import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, final

from procq.callback import CallbackThread
from procq.core.scheduler import Scheduler
from procq.engine.protocol import Engine
from procq.errors import QueueFullError
from procq.interrupts import WATCH, raise_pending, shielded, waits
from procq.lock import QueueLock, refuse_nested_call

if TYPE_CHECKING:
    from procq.core.task import Task

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
        #: callers that wait for room, longest first
        self.turns: dict[_Turn, None] = {}

    def wait(
        self,
        house: House,
        size: int,
        *,
        block: bool,
        timeout_s: float | None,
        replaced: "Callable[[], Sequence[Task]] | None" = None,
    ) -> bool:
        """Wait until a task with so many bytes may be submitted; the lock is held before and after.

        Args:
            house: What there is room in.
            size: So many bytes.
            block: Whether to wait at all.
            timeout_s: The longest wait; None: without end.
            replaced: Says which tasks that wait now make room by the submit itself; None: none ever do.

        Returns:
            Whether the lock was given up meanwhile, so that anything may have changed.

        Raises:
            QueueFullError: There is no room, and the call must not wait (any longer).
            QueueClosedError: Shutdown began meanwhile.
            UsageError: This thread waits already, and a signal handler has called again.
        """
        if self._scheduler.open_bytes + size <= self._roomy_bytes or not self._is_full(size, replaced):
            return False
        if not house.opened:
            raise QueueFullError(f"{self._bound()}, and the queue is not started, so waiting would never end")
        if not block:
            raise QueueFullError(f"{self._bound()}; submit later, or let submit() block")
        me = get_ident()
        if any(turn.thread == me for turn in self.turns):  # a signal handler: it interrupted one that cannot go on
            refuse_nested_call()
        turn = _Turn(me, size, replaced)
        try:
            self.turns[turn] = None  # it keeps this place, however often it looks in vain
            self._wait_in_turn(house, turn, timeout_s)
        except BaseException:
            self.turns.pop(turn, None)
            self.let_in()
            raise
        del self.turns[turn]  # the next one is let in once this task is accepted, or refused
        return True

    @waits
    def _wait_in_turn(self, house: House, turn: "_Turn", timeout_s: float | None) -> None:
        engine = self._engine
        ends_at = None if timeout_s is None else engine.now() + timeout_s
        bell = turn.bell
        while self._is_full(turn.size, turn.replaced):
            house.check_usable()
            if ends_at is not None and engine.now() >= ends_at:
                raise QueueFullError(f"{self._bound()}, and no room came within {timeout_s:g} s")
            bell.acquire(blocking=False)
            lock = house.lock
            lock.release()
            try:
                if not engine.manual:
                    bell.acquire(timeout=-1 if ends_at is None else max(0.0, ends_at - engine.now()))
                elif engine.step(ends_at):
                    self._callbacks.flush(lock)
                elif ends_at is None:
                    raise QueueFullError(f"{self._bound()}, and nothing that could run would make room")
            finally:
                _lock_again(lock)
            if WATCH.pending:
                raise_pending()
        house.check_usable()

    def _is_full(self, size: int, replaced: "Callable[[], Sequence[Task]] | None") -> bool:
        scheduler = self._scheduler
        freed = 0
        if replaced is not None:  # looked at anew each time: they may have begun or ended during a wait
            tasks = replaced()
            freed = len(tasks)
            size -= sum(len(task.payload) for task in tasks)
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
        """Wake the caller that waits longest for room, if there is enough for it.

        It looks again.  Whoever had its turn calls this, even if it submitted nothing after all:
        the next one may have nothing else to be woken by.  Before it comes only who takes the place of what
        waits, which may be all the room that there will be.
        """
        is_first = True
        for turn in self.turns:
            if (is_first or turn.replaces) and not self._is_full(turn.size, turn.replaced):
                turn.wake()
                return
            is_first = False

    def free_all(self) -> None:
        """Wake every caller, to find that it waits in vain."""
        for turn in self.turns:
            turn.wake()


@final
class _Turn:
    """A caller that waits for room; as `Room.wait`."""

    __slots__ = ("bell", "replaced", "size", "thread")

    def __init__(self, thread: int, size: int, replaced: "Callable[[], Sequence[Task]] | None") -> None:
        self.thread = thread
        self.size = size
        self.replaced = replaced
        #: what it sleeps on
        self.bell = threading.Lock()

    @property
    def replaces(self) -> bool:
        """Whether it takes the place of something that waits now."""
        return self.replaced is not None and bool(self.replaced())

    def wake(self) -> None:
        """Have it look again."""
        if self.bell.locked():
            self.bell.release()


@shielded
def _lock_again(lock: QueueLock) -> None:
    """Take the lock, which whoever called will give back: to raise before would give back another's."""
    lock.acquire()
