# What the benchmark's workers run.  Every worker imports this file, so it imports nothing heavy.
import os
import signal
import time
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


def noop() -> None:
    pass


# A node of the graph, without and with what it needs.
def node(*_needs: None) -> None:
    pass


def add(number: int) -> int:
    return number + 1


def echo(data: bytes) -> bytes:
    return data


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


# Keeps its worker until a file appears.
def hold(path: str) -> None:
    while not os.path.exists(path):  # noqa: PTH110 - pathlib is an import more for each worker
        time.sleep(0.01)


# Counts in plain Python, and returns the CPU seconds that it took: they leave out what others took.
def spin(rounds: int) -> float:
    began_s = time.thread_time()
    total = 0
    for number in range(rounds):
        total += number & 3
    return time.thread_time() - began_s


# About 2 ms of work; the culprit kills its own worker instead.  Each execution leaves a line.
def work_or_die(number: int, culprit: int, log: str) -> None:
    note(log, f"{number} {os.getpid()} {time.monotonic()}")
    if number == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    ends_at = time.perf_counter() + 0.002
    while time.perf_counter() < ends_at:
        pass


def loop_forever(log: str) -> None:
    note(log, f"{time.monotonic()} {os.getpid()}")
    while True:
        pass


# One call in C that asks for no signals, so no handler of Python's runs before it ends, which it never does.
# (`re` would not do: it looks for signals while it backtracks.)
def sum_forever(log: str) -> None:
    note(log, f"{time.monotonic()} {os.getpid()}")
    sum(repeat(0))


# Has numpy imported in the worker, so that no later task pays for it.
def warm_numpy(seconds: float) -> int:
    import numpy as np  # noqa: PLC0415 - only where arrays are measured

    np.ones(1000).sum()
    return nap(seconds)


def total(array: "NDArray[float64]") -> float:
    return float(array.sum())


def make(count: int) -> "NDArray[float64]":
    import numpy as np  # noqa: PLC0415

    return np.ones(count)


# One write to a file opened for appending: lines of several workers do not mix.
def note(log: str, line: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
