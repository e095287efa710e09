"""Log records of workers, on the supervisor's side (contract H4).

Decides what workers need to know of the supervisor's loggers, hands what they logged to those, and holds
up workers that log faster than that is done.

Who touches what: `handle` runs user code, the handlers: it is for the host's thread in which that may be
slow, never for the supervisor's own, and without the lock.  A worker's `log_handled` is written by that
thread alone; all else that is a worker's is touched under the host's lock.
"""

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Final, final

from procq.engine.local import wire
from procq.log import loaded_logging, write

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Mapping

    from procq.engine.local.roster import Worker
    from procq.engine.protocol import Host

#: So many bytes of a worker's records, and what one read brings, may wait to be handled; then nothing more
#: is read from it until half of them are, and its task waits when it logs.  About 700 ordinary records:
#: enough that a pause of the handlers stops no task, too little to matter beside what a worker itself takes.
BACKLOG_BYTES: Final = 2**20


def levels() -> dict[str, int]:
    """Return the levels that are set now, by logger's name; none where nobody has imported `logging`."""
    if loaded_logging() is None:
        return {}
    import logging  # noqa: PLC0415 - see above

    root = logging.getLogger()
    found = {root.name: root.level}
    # A copy: another thread may be making loggers.
    for name, logger in root.manager.loggerDict.copy().items():
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            found[name] = logger.level
    return found


def disabled_up_to() -> int:
    """Return up to which level logging is disabled."""
    if loaded_logging() is None:
        return 0
    import logging  # noqa: PLC0415 - see above

    return logging.getLogger().manager.disable


@final
class Intake:
    """Takes in what workers log.

    Args:
        watch_stream: Has a worker's stream read, or not, by its `log_held`; does nothing for one that is dead.
    """

    __slots__ = ("_watch_stream",)

    def __init__(self, watch_stream: "Callable[[Worker], object]") -> None:
        self._watch_stream = watch_stream

    def take(self, host: "Host", worker: "Worker", message: wire.Record) -> None:
        """A worker has logged something; one that logs faster than that is handled must wait.

        It waits when the pipe is full, which it is when nobody reads.  Deadlines and deaths are seen all
        the same, and what is in the pipe is read then.
        """
        worker.log_read += message.size
        if not worker.log_held and worker.log_read - worker.log_handled > BACKLOG_BYTES:
            worker.log_held = True
            self._watch_stream(worker)
        host.logged(partial(self._handle, host, worker, message), message.parts)

    def _handle(self, host: "Host", worker: "Worker", message: wire.Record) -> None:
        """Have a record handled; called in the host's thread for that, without the lock."""
        handle(message)
        worker.log_handled += message.size
        # Held is set before the last of its records comes here, so one of them finds it set.
        if worker.log_held and worker.log_read - worker.log_handled < BACKLOG_BYTES // 2:
            with host.lock:
                worker.log_held = False
                self._watch_stream(worker)


def handle(message: wire.Record) -> None:
    """Give what a worker logged to the logger of that name, as if it had been logged here; never raises."""
    parts = message.parts
    name, level = str(parts["name"]), parts["levelno"]
    assert isinstance(level, int), "checked by wire.py"
    if loaded_logging() is None:
        write(level, "\n".join(str(parts[key]) for key in ("message", "exc_text", "stack_info") if parts[key]))
        return
    import logging  # noqa: PLC0415 - as above

    record = None
    try:
        logger = logging.getLogger(name)
        if logger.isEnabledFor(level):
            record = _rebuilt(parts)
            logger.handle(record)
    except BaseException:  # noqa: BLE001 - a filter, a handler or a factory of records is the user's code
        # As `logging` itself tells of errors in handlers: on stderr, since the handlers are what fails.
        with contextlib.suppress(BaseException):
            logging.Handler().handleError(logging.makeLogRecord({}) if record is None else record)


def _rebuilt(parts: "Mapping[str, object]") -> "logging.LogRecord":
    import logging  # noqa: PLC0415 - as above

    record = logging.makeLogRecord({})
    created, pathname, extra = parts["created"], str(parts["pathname"]), parts["extra"]
    assert isinstance(created, float), "checked by wire.py"
    assert isinstance(extra, dict), "checked by wire.py"
    filename = os.path.basename(pathname)  # noqa: PTH119 - it is a text and may be no path of this machine
    attributes = vars(record)
    attributes |= extra
    attributes |= {name: value for name, value in parts.items() if name not in {"message", "extra"}}
    attributes |= {
        "msg": parts["message"],
        "filename": filename,
        "module": os.path.splitext(filename)[0],  # noqa: PTH122
        "msecs": created % 1 * 1000,
        # The start from which it counts is that of this program.
        "relativeCreated": record.relativeCreated - (record.created - created) * 1000,
    }
    return record
