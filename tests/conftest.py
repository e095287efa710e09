"""What every test gets, and the proof that a whole session leaves nothing behind (contract G3, I3).

Fixtures for one kind of test live in the conftest of its folder; fakes and clocks in `tests/support`.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import psutil
import pytest
from hypothesis import settings

#: Set in the environment for the session; whatever a test starts inherits it, so that a process is
#: found even when its parent is dead and it is no descendant of pytest any more.
MARK: Final = "PROCQ_TEST_SESSION"
SHARED_MEMORY: Final = Path("/dev/shm")
#: How long what is left may take to go: far beyond the second that the contract allows (G5), so
#: that a busy machine fails nobody.
PATIENCE_S: Final = 5.0

# How long an example takes says nothing on a busy machine.  The parent is whichever profile
# hypothesis chose for this place: on CI a derandomized one.
settings.register_profile("procq", settings(), deadline=None)
settings.load_profile("procq")


def pytest_configure() -> None:
    """Make Ctrl-C work in what tests start.

    A shell starts its background jobs with SIGINT ignored, Python leaves it so, and every child
    inherits it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """After a failure, say how to get the same order again; under -q pytest-randomly does not."""
    seed = config.getoption("randomly_seed", None)
    if exitstatus and seed is not None:
        terminalreporter.write_line(f"the same order again: --randomly-seed={seed}")


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """Fail the session if a process it started or a name in shared memory outlives its tests."""
    mark = uuid4().hex
    os.environ[MARK] = mark
    names = shared_memory_names()

    yield

    deadline = time.monotonic() + PATIENCE_S
    while (left_processes(mark) or shared_memory_names() - names) and time.monotonic() < deadline:
        threading.Event().wait(0.05)  # nobody could send us a message: only looking again tells
    processes = left_processes(mark)
    described = [describe(process) for process in processes]
    for process in processes:
        process.kill()
    assert not described, "the session left processes (now killed)"
    assert not shared_memory_names() - names, f"the session left names in {SHARED_MEMORY}"


def left_processes(mark: str) -> list[psutil.Process]:
    """Return pytest's descendants, and whatever else carries the session's mark."""
    children = psutil.Process().children(recursive=True)
    return children + [found for found in psutil.process_iter() if found not in children and is_ours(found, mark)]


def is_ours(process: psutil.Process, mark: str) -> bool:
    """Whether the process was started by this session, and is not pytest itself."""
    try:
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    except (psutil.Error, OSError):  # it ended meanwhile, or belongs to somebody else
        return False


def describe(process: psutil.Process) -> str:
    """Name a process so that one knows which test to look at."""
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}"
    except psutil.Error as error:
        return str(error)


def shared_memory_names() -> set[str]:
    """Return the names in shared memory; none where the system has no such folder.

    Not the locks of multiprocessing, which procq does not use and another program may make meanwhile.
    """
    if not SHARED_MEMORY.is_dir():
        return set()
    return {entry.name for entry in SHARED_MEMORY.iterdir() if not entry.name.startswith("sem.mp-")}
