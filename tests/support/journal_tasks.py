"""Tasks that leave a trace of their beginning and their end outside of procq."""

import os
import time

from procq import current, task

ID = "t{:03}"


def _note(log: str, text: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def _spin(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


@task(max_attempts=1000, backoff=0.01)
def work(log: str, name: str, *, fails: int) -> int:
    """Fail `fails` times, then succeed."""
    _note(log, f"begin {name}")
    _spin(0.004)
    if (current().attempt or 0) <= fails:
        _note(log, f"fail {name}")
        raise ValueError(name)
    _note(log, f"end {name}")
    return 7


@task(max_attempts=1000, backoff=0.01)
def passed(log: str, name: str, value: int) -> int:
    """Pass on the result of another task."""
    _note(log, f"begin {name}")
    assert value == 7
    _note(log, f"end {name}")
    return value
