"""Tasks of whose ends the supervisor reads more than a plain result; this module itself imports little."""

import os
from pathlib import Path

from procq import Spawn, task


def warn(text: str) -> None:
    """Log a warning."""
    import logging  # noqa: PLC0415 - in the worker alone

    logging.getLogger("a.task").warning(text)


def spawn_one() -> None:
    """Spawn a task."""
    return Spawn([task(len).spec("abc")])


def fail_first(folder: str) -> None:
    """Fail at the first attempt."""
    (Path(folder) / f"attempt-{len(list(Path(folder).glob('attempt-*')))}").touch()
    if len(list(Path(folder).glob("attempt-*"))) == 1:
        raise LookupError("the first attempt")


def die() -> None:
    """Let the worker die."""
    os._exit(3)
