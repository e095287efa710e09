"""Keeps Ctrl-C from breaking off a change of a queue's state half-way.

Python calls the handler of SIGINT between any two instructions of the main thread, and its own
raises `KeyboardInterrupt` there.  Amid a submit that would leave a task that runs nowhere.  So
while queues are open a handler of ours stands in the place of Python's own: it raises at once,
unless the main thread is amid a change, and then as soon as that is over.  A handler that the
program has set itself is left alone.
"""

import contextlib
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from threading import main_thread
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    import signal as _signal  # the C module has no stubs
    from types import CodeType, FrameType
else:
    import _signal  # without the enums of `signal`, 3 ms to import

P = ParamSpec("P")
R = TypeVar("R")

#: Functions in which a change of their `self` is made.
_CHANGING: "Final[set[CodeType]]" = set()


class Changed(Protocol):
    """Whose change must not be broken off."""

    @property
    def changed_by(self) -> int:
        """The thread whose change is under way; 0: none is."""


class _Watch:
    """Whether our handler is in place, for how many queues, and whether an interrupt waits."""

    __slots__ = ("opened", "pending")

    def __init__(self) -> None:
        self.opened = 0
        #: an interrupt came amid a change
        self.pending = False


WATCH: Final = _Watch()
_LOCK: Final = allocate_lock()


def changes(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a method in which a change of its `self` is made, a `Changed`."""
    _CHANGING.add(method.__code__)
    return method


def watch() -> None:
    """A queue was opened: put our handler in the place of Python's own.

    Thread-safe.  Off the main thread, the only one that may, the handler stays as it is.
    """
    with _LOCK:
        WATCH.opened += 1
        _replace(_signal.default_int_handler, _on_interrupt)


def unwatch() -> None:
    """A queue is over: with the last one Python's own handler comes back.

    Thread-safe.  Off the main thread ours stays, and does what Python's own does, since no change is open.
    """
    with _LOCK:
        WATCH.opened -= 1
        if not WATCH.opened:
            _replace(_on_interrupt, _signal.default_int_handler)


def raise_pending() -> None:
    """Raise the interrupt that came amid the change that is over now, if that was this thread's.

    Raises:
        KeyboardInterrupt: It was.
    """
    if get_ident() == main_thread().ident:
        WATCH.pending = False
        raise KeyboardInterrupt


def _replace(old: object, new: "Callable[[int, FrameType | None], object]") -> None:
    if _signal.getsignal(_signal.SIGINT) is old:
        with contextlib.suppress(ValueError):  # not the main thread, the only one that may
            _signal.signal(_signal.SIGINT, new)


def _on_interrupt(number: int, frame: "FrameType | None") -> None:
    """Raise `KeyboardInterrupt`, unless that would hit a change: then let its end do so."""
    at = frame
    while at is not None:
        if at.f_code in _CHANGING:
            changed: Changed = at.f_locals["self"]
            if changed.changed_by == get_ident():
                WATCH.pending = True
                return
        at = at.f_back
    _signal.default_int_handler(number, frame)
