"""Keeps Ctrl-C from breaking off a change of a queue's state half-way.

Python calls the handler of SIGINT between any two steps of the main thread, and its own raises
`KeyboardInterrupt` there.  Amid a submit that would leave a task that runs nowhere.  So while
queues are open a handler of ours stands in the place of Python's own: it raises at once, unless
the main thread is amid a change, and then as soon as that is over.  A handler that the program has
set itself is left alone.

CPython looks for signals when a function begins, after a call, and when a loop goes round.  So
stores and deletions in a row are never parted, with a last call into C behind them if need be.
Where no change is marked, what must not happen without the other is written as such a row.

CPython's own import system is not written so: an interrupt just after it has taken one of its locks
leaves that taken, and whatever thread imports something then waits for ever, ours too.  And what is
raised in a `__del__`, or as a weak reference tells that its object has gone, is lost: Python writes of it
and goes on.  So an interrupt that comes there is put off until the thread is elsewhere.
"""

import contextlib
import sys
import time
from _thread import get_ident, start_new_thread
from collections.abc import Callable
from threading import main_thread
from types import CodeType
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

if TYPE_CHECKING:
    import signal as _signal  # the C module has no stubs
    from types import FrameType
else:
    import _signal  # without the enums of `signal`, 3 ms to import

P = ParamSpec("P")
R = TypeVar("R")

#: Functions in which a change of their `self` is made.
_CHANGING: "Final[set[CodeType]]" = set()
#: Functions that wait within a change that has yet to begin in earnest.
_WAITING: "Final[set[CodeType]]" = set()
#: Functions that an interrupt must never hit.
_SHIELDED: "Final[set[CodeType]]" = set()

#: Functions that Python calls as an object goes, all of them brief; first those of weak dictionaries and sets,
#: which stand within the function that makes one.
_FINALIZING: Final = {
    inner
    for kind in (WeakKeyDictionary, WeakValueDictionary, WeakSet)
    for inner in kind.__init__.__code__.co_consts
    if isinstance(inner, CodeType)
}

#: The files of what takes the locks of imports, as frames name them.
_IMPORTING: Final = frozenset({"<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"})
#: For so long an interrupt is put off each time; the import system mostly is elsewhere by then.
_PUT_OFF_S: Final = 0.001
#: So often in a row at most: it may be waiting there for what another thread imports, and without end.
_PUT_OFFS: Final = 100


class Changed(Protocol):
    """Whose change must not be broken off."""

    @property
    def changed_by(self) -> int:
        """The thread whose change is under way; 0: none is."""


class _Watch:
    """Who needs our handler, and what it did."""

    __slots__ = ("owners", "pending", "put_off", "raised")

    def __init__(self) -> None:
        #: the queues that are open; adding and removing take no lock, so that a `__del__` may
        self.owners: set[object] = set()
        #: an interrupt came amid a change
        self.pending = False
        #: how often in a row one was put off, as it came amid an import
        self.put_off = 0
        #: how many interrupts were raised: tells them from an error that only looks like one
        self.raised = 0


WATCH: Final = _Watch()


def changes(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a method in which a change of its `self` is made, a `Changed`."""
    _CHANGING.add(method.__code__)
    return method


def waits(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a function that may wait for long: an interrupt ends it, whatever change it is part of."""
    _WAITING.add(method.__code__)
    return method


def shielded(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a brief function during which an interrupt waits; whoever calls it raises what is pending."""
    _SHIELDED.add(method.__code__)
    return method


def finalizes(method: Callable[P, R]) -> Callable[P, R]:
    """Mark a brief function that Python calls as an object goes, a `__del__` say: an interrupt comes after it."""
    _FINALIZING.add(method.__code__)
    return method


def watch(owner: object) -> None:
    """A queue is opened: put our handler in the place of Python's own.

    Thread-safe.  Off the main thread, the only one that may, the handler stays as it is.
    """
    WATCH.owners.add(owner)
    WATCH.put_off = 0
    _replace(_signal.default_int_handler, _on_interrupt)


def unwatch(owner: object) -> None:
    """A queue is over: with the last one Python's own handler comes back.

    May be called again, in any thread, and from a `__del__`.  Off the main thread ours stays, does
    what Python's own does, and goes with the next interrupt or call of this in the main thread.
    """
    WATCH.owners.discard(owner)
    if not WATCH.owners:
        _replace(_on_interrupt, _signal.default_int_handler)


def raise_pending() -> None:
    """Raise the interrupt that came amid the change that is over now, if that was this thread's outermost.

    Raises:
        KeyboardInterrupt: It was; amid a finalizer it comes later.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - as `inspect` does
    if get_ident() == main_thread().ident and not _is_amid_change(frame):
        WATCH.pending = False
        if _is_finalizing(frame) and _come_again():
            return
        WATCH.raised += 1
        raise KeyboardInterrupt


def _replace(old: object, new: "Callable[[int, FrameType | None], object]") -> None:
    if _signal.getsignal(_signal.SIGINT) is old:
        with contextlib.suppress(ValueError):  # not the main thread, the only one that may
            _signal.signal(_signal.SIGINT, new)


def _is_amid_change(frame: "FrameType | None") -> bool:
    """Whether a change of this thread would be broken off if something were raised in a frame of it."""
    me = get_ident()
    while frame is not None:
        if frame.f_code in _WAITING:
            return False
        if frame.f_code in _SHIELDED:
            return True
        if frame.f_code in _CHANGING:
            changed: Changed = frame.f_locals["self"]
            if changed.changed_by == me:
                return True
        frame = frame.f_back
    return False


def _on_interrupt(number: int, frame: "FrameType | None") -> None:
    """Raise `KeyboardInterrupt`, unless that would hit a change: then let its end do so."""
    if not WATCH.owners:
        _replace(_on_interrupt, _signal.default_int_handler)
    if _is_amid_change(frame):
        WATCH.put_off = 0
        WATCH.pending = True
        return
    if _is_finalizing(frame) and _come_again():
        return
    if frame is not None and frame.f_code.co_filename in _IMPORTING and _put_off():
        return
    WATCH.put_off = 0
    WATCH.raised += 1
    _signal.default_int_handler(number, frame)


def _is_finalizing(frame: "FrameType | None") -> bool:
    """Whether what is raised in a frame of this thread would be lost in a finalizer of ours."""
    while frame is not None:
        if frame.f_code in _FINALIZING:
            return True
        frame = frame.f_back
    return False


def _put_off() -> bool:
    """Have the interrupt come again a moment later, unless it was put off too often; return whether it will."""
    if WATCH.put_off >= _PUT_OFFS:
        return False
    WATCH.put_off += 1
    return _come_again()


def _come_again() -> bool:
    """Have the interrupt come again a moment later; return False if it cannot.

    By a true signal and no mere note for the interpreter: that would not end a wait in C.
    """
    try:
        # Not of `threading`, which takes locks and may be what is being imported.
        start_new_thread(_interrupt_later, (get_ident(),))
    except RuntimeError:  # the system has none to spare, or the interpreter ends
        return False
    return True


def _interrupt_later(ident: int) -> None:
    time.sleep(_PUT_OFF_S)
    _signal.pthread_kill(ident, _signal.SIGINT)
