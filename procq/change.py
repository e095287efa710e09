"""A change of state that must not be broken off half-way, nor pass unnoticed if it was.

A handler of the program's own may raise between any two instructions of the main thread (Python's
own is kept from that, see interrupts.py).  Amid a submit it would leave a task that runs nowhere,
for which a shutdown would wait without end; so whoever takes the lock next looks here, and if a
change is still open everything is killed.  A flag and no handler of exceptions, because the
interrupt may hit that too.

A supervisor's change is written under its lock, by the thread that holds it.  A map's is its own
and has no lock, since a map is for one thread at a time.
"""

from _thread import get_ident
from collections.abc import Callable
from types import TracebackType
from typing import Final, TypeVar, final

from procq.errors import EngineError, ProcqError
from procq.interrupts import WATCH, changes, raise_pending
from procq.lock import NestedCallError

T = TypeVar("T")
R = TypeVar("R")

TORN: Final = (
    "the queue was interrupted amid a change, say by a signal handler that raised within submit(), and had to be "
    "killed; make a new Queue"
)


@final
class Change:
    """Open while a thread changes the state, and for ever if it was broken off half-way.

    `with change:` where that does not matter; on the hot path `make`, for a `with` takes as long as
    all the rest of a submit.  Ctrl-C comes after the change, or before.  A method with a
    `with change:` has to be marked with `interrupts.changes`; what `make` calls need not.

    Args:
        alarm: Called when the change was broken off, which it is then for ever.  None: nothing has
            to be whole, so whatever ends the change ends it.
    """

    __slots__ = ("_alarm", "by")

    def __init__(self, alarm: Callable[[], object] | None = None) -> None:
        #: the thread whose change is open; 0: none is
        self.by = 0
        self._alarm = alarm

    @property
    def changed_by(self) -> int:
        """As interrupts.py asks for it."""
        return self.by

    @changes
    def make(self, body: Callable[[T], R], what: T) -> R:
        """Make a change: return `body(what)`.

        Raises:
            EngineError: An earlier one was broken off.
        """
        if self.by:
            self.check_whole()
        self.by = get_ident()
        try:
            made = body(what)
        except BaseException as error:
            self._end(type(error))
            raise
        self.by = 0
        if WATCH.pending:
            raise_pending()
        return made

    def __enter__(self) -> None:
        self.check_whole()
        self.by = get_ident()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error_type)

    def _end(self, error_type: type[BaseException] | None) -> None:
        # Our own errors are raised before anything is changed; but that one by a handler, at any moment.
        is_whole = error_type is None or (issubclass(error_type, ProcqError) and error_type is not NestedCallError)
        if is_whole or self._alarm is None:
            self.by = 0
            if WATCH.pending:
                raise_pending()
        else:
            self._alarm()  # the loop may be asleep, and must see that all is over

    def check_whole(self) -> None:
        """Raise if a change was broken off half-way.

        Raises:
            EngineError: One was.
        """
        if self.by and self._alarm is not None:
            raise EngineError(TORN)
