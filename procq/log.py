"""Loggers that import `logging` only when there is something to say: it is 5 ms for every program.

A logger of the usual name does the rest, so programs see no difference.
"""

import sys
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
        try:
            import logging  # noqa: PLC0415 - see above
        except (ImportError, OSError):
            # No descriptor is left to read the module by, of which the message may tell, or the interpreter ends.
            if sys.stderr is not None:
                sys.stderr.write(f"{message % args if args else message}\n")
            return
        logging.getLogger(self._name).log(level, message, *args, exc_info=True if exc_info else None, stacklevel=2)
