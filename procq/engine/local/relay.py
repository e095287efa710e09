"""Sends what is logged in a worker to the supervisor (contract H4).

Imported, and with it `logging`, only once a task has imported `logging` itself.  Decides what of a record
travels, and which attempt it is ascribed to; what becomes of it is the supervisor's business.

The handler hangs above the root logger, as the root's parent, and not on the root: there `basicConfig`
in a task would do nothing, since it looks whether the root has handlers, and `dictConfig` would
throw it away.  So the handlers that a task installs work as in any program, and beside them
records travel.  A task that wants none of that sets `logging.root.propagate = False`.
"""

import _thread
import logging
import threading
from typing import TYPE_CHECKING, Final, final

from procq.engine import attempt
from procq.engine.local import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from procq.engine.local.transport import WorkerEnd
    from procq.inside import Context

#: What every record has; anything else was given as `extra`, or set by a filter or a factory.
_STANDARD: Final = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
#: A whole number beyond 64 bits does not travel: some are too long to be written down.
_WHOLE_MAX: Final = 2**64
#: Texts are shortened to so many characters, one after the other, until the record fits into a piece.
_LIMITS: Final = (attempt.TEXT_MAX, 20_000, 5_000, 1_000, 200)
#: The attribute of a thread that outlived its attempt, which says whose it is.
_MARK: Final = "_procq_attempt"


@final
class Relay(logging.Handler):
    """Sends records to the supervisor, one piece each, and waits while the pipe is full.

    Any thread may be in here, and amid anything the main one may meet `Terminated`, or whatever a task's
    own signal handler raises.  A piece is then sent whole or not at all; more than one could be cut.

    Args:
        end: The sockets.
        current: Tells who the running attempt is.
    """

    def __init__(self, end: "WorkerEnd", current: "Callable[[], Context]") -> None:
        super().__init__()
        self._end = end
        self._current = current
        self._tracebacks = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            piece = self._piece(record)
        except RecursionError:
            raise  # as the handlers of `logging` do: to handle it would recur once more
        except Exception:  # noqa: BLE001 - arguments that do not fit, or a `__str__` that raises
            self.handleError(record)
            return
        # Not sent: this is a fork of the worker, the interpreter ends, the task closed descriptors that are not
        # its own, or a signal handler logs amid a big result.
        if not self._end.send_piece(piece):
            _handle_alone(record)

    def _piece(self, record: logging.LogRecord) -> bytes:
        parts = self._parts(record)
        for limit in _LIMITS:
            piece = wire.pack_record({name: _fitted(value, limit) for name, value in parts.items()})
            if len(piece) <= self._end.piece_max:
                return piece
            extra = parts["extra"]
            assert isinstance(extra, dict), "made by `_parts`"
            parts["extra"] = {name: _fitted(value, limit) for name, value in extra.items()}
        parts["extra"] = {}  # too many of them
        return wire.pack_record({name: _fitted(value, _LIMITS[-1]) for name, value in parts.items()})

    def _parts(self, record: logging.LogRecord) -> dict[str, object]:
        """Take down a record in texts and numbers."""
        whose = getattr(threading.current_thread(), _MARK, None) or self._current()
        exc_text = record.exc_text
        if record.exc_info and not exc_text:
            exc_text = self._tracebacks.formatException(record.exc_info)
        return {
            "name": record.name,
            "levelno": record.levelno,
            "levelname": record.levelname,
            "message": record.getMessage(),
            "pathname": record.pathname,
            "lineno": record.lineno,
            "funcName": record.funcName,
            "created": float(record.created),
            "process": record.process,
            "processName": record.processName,
            "thread": record.thread,
            "threadName": record.threadName,
            "taskName": getattr(record, "taskName", None),  # from Python 3.12 on
            "exc_text": exc_text,
            "stack_info": record.stack_info,
            "task_id": whose.id,
            "attempt": whose.attempt,
            "extra": {
                name: value for name, value in vars(record).items() if name not in _STANDARD and _is_plain(value)
            },
        }

    def mark_threads(self) -> None:
        """Ascribe the threads that are there now to the attempt that ends now, or to none.

        What they log later would otherwise pass for the next attempt's.
        """
        if not _thread._count():  # noqa: SLF001 - of threads but the main one; 0.05 us
            return
        whose = self._current()
        main = threading.main_thread()
        for thread in threading.enumerate():
            if thread is not main:
                vars(thread).setdefault(_MARK, whose)


def install(end: "WorkerEnd", current: "Callable[[], Context]", levels: "Mapping[str, int]", disable: int) -> Relay:
    """Set the supervisor's levels, and send it from now on what is logged here.

    With its levels what it would drop is not even made.
    """
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.disable(disable)
    relay = Relay(end, current)
    above = logging.Logger("procq.relay")  # noqa: LOG001 - none that `getLogger` knows, below the root
    above.addHandler(relay)
    logging.getLogger().parent = above
    return relay


def _handle_alone(record: logging.LogRecord) -> None:
    """Do what `logging` does with a record that no handler wants."""
    last = logging.lastResort
    if last is not None and record.levelno >= last.level:
        last.handle(record)


def _is_plain(value: object) -> bool:
    if isinstance(value, int):
        return -_WHOLE_MAX < value < _WHOLE_MAX
    return isinstance(value, wire.PLAIN)


def _fitted(value: object, limit: int) -> object:
    return attempt.clipped(value, limit) if isinstance(value, str) else value
