# What the system can do without any pool, beside the workloads that have such a limit.
#
# These are floors: no futures, no crash of anybody looked after, nothing cancelled, nothing in a queue.
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from types import MappingProxyType
from typing import Final

from bench import tasks
from bench.machine import seconds_of

TRIPS: Final = 5000
MEDIUMS: Final = 5000
MEDIUM_BYTES: Final = 100_000
MAPPED: Final = 100_000
FLOATS: Final = 12_500_000
SHARERS: Final = 20
TIMEOUT_S: Final = 1.0

Values = dict[str, float | None]


# The median over fresh interpreters, to the first line that a script prints and to its exit.
def time_script(script: str, times: int = 10) -> Values:
    first_ms, exit_ms = [], []
    for _ in range(times):
        began_at = time.perf_counter()
        # The script is in no folder, so that every worker which reads it again is spared a file of ours.
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"1\n"
            first_ms.append((time.perf_counter() - began_at) * 1e3)
            program.wait()
            exit_ms.append((time.perf_counter() - began_at) * 1e3)
    return {"first_ms": median(first_ms), "exit_ms": median(exit_ms)}


# An interpreter that does nothing else.
def start() -> Values:
    return time_script("print(abs(-1), flush=True)")


# One process, no pool: what a map is when nobody stands between.
def mapped() -> Values:
    items = list(range(MAPPED))
    return {"per_s": MAPPED / min(seconds_of(lambda: [tasks.add(item) for item in items]) for _ in range(5))}


# A pickled call to another process and a pickled answer, over a pair of sockets.
def trip() -> Values:
    def answer(line: socket.socket) -> None:
        while packet := line.recv(65_536):
            function, args = pickle.loads(packet)
            line.send(pickle.dumps(function(*args)))

    line, pid = fork_behind_socket(answer, socket.SOCK_SEQPACKET)
    took_us = []
    for _ in range(TRIPS):
        began_at = time.perf_counter()
        line.send(pickle.dumps((tasks.noop, ())))
        pickle.loads(line.recv(65_536))
        took_us.append((time.perf_counter() - began_at) * 1e6)
    line.close()
    os.waitpid(pid, 0)
    return {"median_us": median(took_us), "p99_us": quantiles(took_us, n=100)[-1]}


# The same bytes there and back, one message at a time.
def medium() -> Values:
    data = os.urandom(MEDIUM_BYTES)

    def answer(line: socket.socket) -> None:
        buffer = bytearray(MEDIUM_BYTES)
        while fill(line, buffer):
            line.sendall(buffer)

    line, pid = fork_behind_socket(answer, socket.SOCK_STREAM)
    back = bytearray(MEDIUM_BYTES)
    began_at = time.perf_counter()
    for _ in range(MEDIUMS):
        line.sendall(data)
        fill(line, back)
    wall_s = time.perf_counter() - began_at
    line.close()
    os.waitpid(pid, 0)
    assert back == data
    return {"per_s": MEDIUMS / wall_s}


# Whether there was that much to read.
def fill(line: socket.socket, buffer: bytearray) -> bool:
    view = memoryview(buffer)
    while view:
        count = line.recv_into(view)
        if not count:
            return False
        view = view[count:]
    return True


def fork_behind_socket(answer: Callable[[socket.socket], None], kind: socket.SocketKind) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)

    def body() -> None:
        ours.close()  # or the child would never read the end
        answer(theirs)

    pid = fork(body)
    theirs.close()
    return ours, pid


def fork(body: Callable[[], object]) -> int:
    pid = os.fork()
    if not pid:
        try:
            body()
        finally:
            os._exit(0)
    return pid


# The array copied into memory that has been touched before, and the sum of it.
def big() -> Values:
    import numpy as np  # noqa: PLC0415 - of the extra

    array, warm = np.ones(FLOATS), np.ones(FLOATS)

    def copied() -> None:
        np.copyto(warm, array)

    def argument() -> None:
        copied()
        tasks.total(warm)

    def result() -> None:
        tasks.make(FLOATS)
        copied()

    def shared() -> None:
        pids = [fork(lambda: [tasks.total(warm) for _ in range(SHARERS // 2)]) for _ in range(2)]
        for pid in pids:
            os.waitpid(pid, 0)

    blocks = {
        "argument_ms": argument,
        "again_ms": lambda: tasks.total(warm),
        "result_ms": result,
        "shared_ms": shared,
    }
    return {name: median(seconds_of(block) for _ in range(5)) * 1e3 for name, block in blocks.items()}


# From the death of a child to the notice of it, and to the first word of a new interpreter.
def crash() -> Values:
    pid, pidfd = spin_in_child()
    died_at = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    known_s = time.perf_counter() - died_at
    os.waitpid(pid, 0)
    os.close(pidfd)
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "print(1)"], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        new_s = time.perf_counter() - died_at
    return {"known_ms": known_s * 1e3, "new_ms": new_s * 1e3}


# A wait with an end, a signal, and the notice of the death.
def late() -> Values:
    pid, pidfd = spin_in_child()
    began_at = time.perf_counter()
    select.select([pidfd], [], [], TIMEOUT_S)
    os.kill(pid, signal.SIGKILL)
    select.select([pidfd], [], [])
    late_s = time.perf_counter() - began_at - TIMEOUT_S
    os.waitpid(pid, 0)
    os.close(pidfd)
    return {"late_ms": late_s * 1e3}


def spin_in_child() -> tuple[int, int]:
    pid = fork(lambda: tasks.loop_forever(os.devnull))
    time.sleep(0.05)
    return pid, os.pidfd_open(pid)


LIMITS: Final[Mapping[str, Callable[[], Values]]] = MappingProxyType(
    {
        "mapped": mapped,
        "trip": trip,
        "big": big,
        "medium": medium,
        "start": start,
        "crash": crash,
        "timeout": late,
        "deaf": late,
    }
)
