"""The one lock of a queue, and what stands in its place in a forked child (contract C7).

A signal handler or a `__del__` interrupts whatever its thread does, perhaps a call that holds the
lock; a call of the same queue from there would wait for itself for ever.  The lock knows its
owner, so whoever is called by the program asks `is_mine` first and refuses.

Rule: nobody takes it twice.  It is a lock that a thread may take again only because that is the one
of C that knows its owner; the methods of the supervisor rely on being the only one inside.
"""

from _queue import Empty, SimpleQueue
from _thread import RLock
from contextlib import suppress
from typing import Final, Literal, NoReturn, final

from procq.errors import QueueClosedError, UsageError

FORKED: Final = (
    "this queue belongs to the process that made it, and this is a forked child of that; make a Queue of its own here"
)


@final
class QueueLock(RLock):  # type: ignore[misc]  # final only in the stubs
    """A lock that knows who holds it; taking it costs what a plain one does."""

    __slots__ = ()

    #: Whether this thread holds it; 20 ns.  What `threading.Condition` asks of a lock, under a name of ours.
    is_mine = RLock._is_owned  # type: ignore[attr-defined]  # noqa: SLF001 - missing in the stubs; nothing else knows


@final
class Milestone:
    """Something that happens once.

    As `threading.Event`, but without a lock, so a signal handler may wait for it while it interrupts
    such a wait.
    """

    __slots__ = ("_bells", "_is_set")

    def __init__(self) -> None:
        #: one for each wait there was
        self._bells: list[SimpleQueue[None]] = []
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._is_set

    def set(self) -> None:
        """It happens now."""
        self._is_set = True
        for bell in self._bells:
            bell.put(None)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it has happened, for so many seconds at most; return whether it has."""
        bell: SimpleQueue[None] = SimpleQueue()
        self._bells.append(bell)
        # Looked at after that: whoever sets it looks the other way round, so one of the two sees the other.
        if not self._is_set:
            with suppress(Empty):
                bell.get(timeout=timeout_s)
        return self._is_set


@final
class LostLock:
    """Stands in for the lock in a forked child: whoever wants it is refused."""

    __slots__ = ()

    def __enter__(self) -> NoReturn:
        raise QueueClosedError(FORKED)

    def __exit__(self, *_: object) -> None:
        """Never reached."""

    def is_mine(self) -> Literal[False]:
        """Return False: nobody holds it."""
        return False

    def acquire(self, *, blocking: bool) -> Literal[False]:
        """Return False: a try without a wait fails in peace."""
        assert not blocking
        return False


@final
class NestedCallError(UsageError):
    """A call of a queue came amid another one of the same queue, in the same thread.

    A class of its own, because a signal handler that lets it out raises it in that other call,
    which has then been broken off, and not refused as by our other errors.
    """


def refuse_nested_call() -> NoReturn:
    """Refuse a call amid another one.

    Raises:
        NestedCallError: Always.
    """
    raise NestedCallError(
        "this call came amid another call of the same queue in the same thread, from a signal handler or a __del__, "
        "and did nothing; set a flag there and call the queue later, or call it from another thread"
    )
