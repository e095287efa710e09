"""Loggers that do not import `logging`, which is 5 ms for every program.

Where the program has imported it, a logger of the usual name does the rest.  Where it has not, nobody can
have set up anything, and what `logging` does then is done here: what is a warning or more goes to standard error
as it is.  So none of our threads ever waits for an import of the main thread's to tell of something.
"""

import contextlib
import sys
from types import ModuleType
from typing import Final, final

#: The levels, as `logging` numbers them.
DEBUG: Final = 10
WARNING: Final = 30
ERROR: Final = 40
CRITICAL: Final = 50


@final
class Logger:
    """Stands for the logger of a name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def log(self, level: int, message: str, *args: object, exc_info: bool = False) -> None:
        """Log a message as `logging.Logger.log` does; it seems to come from the caller."""
        logging = loaded_logging()
        if logging is None:
            write(level, message % args if args else message, exc_info=exc_info)
            return
        logging.getLogger(self._name).log(level, message, *args, exc_info=True if exc_info else None, stacklevel=2)


def loaded_logging() -> ModuleType | None:
    """Return `logging`; None if nobody has imported it, or it is being imported now."""
    module = sys.modules.get("logging")
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def write(level: int, text: str, *, exc_info: bool = False) -> None:
    """Do what `logging` does where nobody has set it up (its `lastResort`); a stream that is no good harms nobody."""
    if level < WARNING or sys.stderr is None:
        return
    error = sys.exc_info()[1]
    with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
        sys.stderr.write(f"{text}\n")
        if exc_info and error is not None:
            sys.__excepthook__(type(error), error, error.__traceback__)
