"""Proves of one test that it leaves no process, thread, descriptor or shared memory (contract G3)."""

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

#: How long what is left may take to go; far beyond what is promised, so that a busy machine fails nobody.
PATIENCE_S: Final = 5.0
SHARED_MEMORY: Final = Path("/dev/shm")


@pytest.fixture
def no_leaks() -> Iterator[None]:
    """Fail the test if anything is there that was not before; zombies count, and grandchildren."""
    gc.collect()
    # Else each collection of this test walks over pytest and what its earlier tests left: 100 ms and
    # more, a thousand times in a session, to find again that all of it is in use.
    gc.freeze()
    before = belongings()

    yield

    gc.collect()
    left = left_since(before)
    if left:
        wait_until(lambda: not left_since(before))
        left = left_since(before)
    assert not left, f"the test left something behind: {left}"


def belongings() -> dict[str, set[object]]:
    """Return what this process has that procq might leave behind, by kind."""
    return {
        "processes": set(child_pids()),
        "descriptors": set(open_descriptors()),
        "threads": {thread for thread in threading.enumerate() if thread.name.startswith("procq-")},
        "shared memory": shared_memory_names(),
    }


def left_since(before: dict[str, set[object]]) -> dict[str, set[object]]:
    """Return what there is now and was not before; empty if nothing."""
    left = {kind: now - before[kind] for kind, now in belongings().items()}
    return {kind: found for kind, found in left.items() if found}


def shared_memory_names() -> set[object]:
    """Return the names in shared memory; not the locks of multiprocessing, which any program may make meanwhile."""
    if not SHARED_MEMORY.is_dir():
        return set()
    return {entry.name for entry in SHARED_MEMORY.iterdir() if not entry.name.startswith("sem.mp-")}


def open_descriptors() -> set[tuple[str, str]]:
    """Return this process's descriptors, each with what it leads to."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add((entry.name, str(entry.readlink())))
        except FileNotFoundError:  # the one this very listing used
            continue
    return found


def child_pids() -> set[int]:
    """Return all descendants of this process, zombies included."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def gone(pids: Iterable[int]) -> bool:
    """Whether none of these processes runs; a zombie that its parent has not reaped yet does not."""
    return not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    """Wait for what sends no message, so that only looking again tells; return whether it came true."""
    deadline = time.monotonic() + patience_s
    pause_s = 0.001
    while not condition():
        if time.monotonic() > deadline:
            return False
        threading.Event().wait(pause_s)
        pause_s = min(2 * pause_s, 0.02)
    return True


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
