"""What becomes of the workers when the supervisor dies: whatever they are at, and however it ends (G4, G5; PAIN H23).

Beside test_orphans.py, which has the plain kill.
"""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.leaks import alive, gone, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, script_environment
from tests.support.process_tasks import Gate, family

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

#: How soon the orphans are gone (contract G5).
PROMISED_S: Final = 1.0

HEAD: Final = """
import os, signal, sys, threading
from multiprocessing import get_context
from procq import Queue
from tests.support import process_tasks as tasks, surrounding_tasks
from tests.support.looking import engine_of, pids, wait_idle

def tell(*numbers):
    print(*numbers, flush=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a script that a test kills; it is killed with the test anyway."""
    started: list[subprocess.Popen[str]] = []

    def start(text: str, *args: object) -> "subprocess.Popen[str]":
        script = subprocess.Popen(
            [sys.executable, "-c", HEAD + textwrap.dedent(text), *map(str, args)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=script_environment(),
        )  # fmt: skip
        started.append(script)
        return script

    yield start

    for script in started:
        script.kill()
        script.communicate(timeout=PATIENCE_S)


def told(script: "subprocess.Popen[str]") -> list[int]:
    """Return the numbers that a script tells."""
    assert script.stdout is not None
    line = script.stdout.readline()
    if not line:
        pytest.fail(f"the script told nothing: {script.communicate(timeout=PATIENCE_S)}")
    return [int(number) for number in line.split()]


def kill(script: "subprocess.Popen[str]", signal_number: int = signal.SIGKILL) -> None:
    script.send_signal(signal_number)
    assert script.wait(PATIENCE_S) == -signal_number


BUSY: Final = """
    with Queue(workers=2) as queue:
        for path in sys.argv[1:]:
            queue.submit(tasks.with_family, path, in_c=True)
        threading.Event().wait()
"""


def busy_family(gates: list[Gate]) -> list[int]:
    """Wait until each worker is busy in C code, and return all pids."""
    for gate in gates:
        gate.wait_begun()
    found = [pid for gate in gates for pid in family(gate.path)]
    assert len(found) == 3 * len(gates)
    assert all(map(alive, found))
    return found


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_G5_H22_workers_in_c_code_and_their_children_die_with_the_supervisor(
    start: Start, signal_number: int, tmp_path: Path
) -> None:
    gates = [Gate(tmp_path, name) for name in "ab"]
    script = start(BUSY, *(gate.path for gate in gates))
    found = busy_family(gates)

    kill(script, signal_number)

    assert wait_until(lambda: gone(found), PROMISED_S)


@pytest.mark.parametrize(
    "fork",
    [
        "child = os.fork() or signal.pause()",
        "p = get_context('fork').Process(target=signal.pause); p.start(); child = p.pid",
    ],
    ids=["os.fork", "multiprocessing"],
)
def test_G5_a_living_fork_of_the_supervisor_keeps_no_worker_alive(start: Start, fork: str, tmp_path: Path) -> None:
    gates = [Gate(tmp_path, name) for name in "ab"]
    # Workers from before the fork and from after it.
    script = start(
        f"""
        with Queue(workers=2) as queue:
            queue.submit(tasks.with_family, sys.argv[1], in_c=True)
            queue.submit(tasks.nothing).result(10)
            {fork}
            tell(child)
            queue.submit(tasks.with_family, sys.argv[2], in_c=True)
            threading.Event().wait()
        """,
        *(gate.path for gate in gates),
    )
    (child,) = told(script)
    try:
        found = busy_family(gates)

        kill(script)

        assert wait_until(lambda: gone(found), PROMISED_S)
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_G5_workers_in_their_initializer(start: Start, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    script = start(
        """
        queue = Queue(workers=1, initializer=surrounding_tasks.wait_in_initializer, initargs=(sys.argv[1],)).start()
        queue.submit(tasks.nothing)
        threading.Event().wait()
        """,
        gate.path,
    )
    found = [gate.wait_begun()]

    kill(script)

    assert wait_until(lambda: gone(found), PROMISED_S)


def test_G5_idle_workers(start: Start) -> None:
    script = start(
        """
        queue = Queue(workers=2).start()
        for handle in [queue.submit(tasks.sleep, 0.01) for _ in range(8)]:
            handle.result(10)
        wait_idle(queue, 2)
        tell(*pids(queue))
        threading.Event().wait()
        """
    )
    found = told(script)
    assert len(found) == 2

    kill(script)

    assert wait_until(lambda: gone(found), PROMISED_S)


def test_G5_a_worker_amid_sending_a_big_result(start: Start, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    script = start(
        """
        queue = Queue(workers=1).start()
        queue.submit(tasks.announced_big, sys.argv[1], 100_000_000)
        threading.Event().wait()
        """,
        gate.path,
    )
    found = [gate.wait_begun()]
    script.send_signal(signal.SIGSTOP)  # nobody reads any more: the worker is stuck in its pipe

    kill(script)

    assert wait_until(lambda: gone(found), PROMISED_S)


def test_G5_a_stopped_worker_amid_a_big_payload(start: Start) -> None:
    script = start(
        """
        queue = Queue(workers=1).start()
        pid = queue.submit(tasks.pid).result(10)
        os.kill(pid, signal.SIGSTOP)
        queue.submit(tasks.length, bytes(100_000_000))
        tell(pid)
        threading.Event().wait()
        """
    )
    found = told(script)

    kill(script)

    assert wait_until(lambda: gone(found), PROMISED_S)


# --- ends that the program sees ---


FALL: Final = """
def work(queue):
    for path in sys.argv[1:3]:
        queue.submit(tasks.with_family, path)
    tasks.pass_gate(sys.argv[3])
"""


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        ("with Queue(workers=2) as queue: work(queue); raise LookupError('mine')", 1, "LookupError: mine"),
        ("queue = Queue(workers=2).start(); work(queue); raise LookupError('mine')", 1, "LookupError: mine"),
        ("queue = Queue(workers=2).start(); work(queue); sys.exit(7)", 7, ""),
        ("queue = Queue(workers=2).start(); work(queue)", 0, ""),
        ("queue = Queue(workers=2).start(); work(queue); os._exit(5)", 5, ""),
    ],
    ids=["raise in with", "raise", "exit", "end", "_exit"],
)
def test_G4_H23_a_program_that_ends_takes_its_workers_along(
    start: Start, text: str, status: int, error: str, tmp_path: Path
) -> None:
    gates = [Gate(tmp_path, name) for name in "abc"]
    script = start(FALL + text, *(gate.path for gate in gates))
    found = busy_family(gates[:2])
    gates[2].wait_begun()
    gates[2].open()

    out, err = script.communicate(timeout=PATIENCE_S)

    assert (script.returncode, out) == (status, "")
    told = [line for line in err.splitlines() if "the program ended with" in line]
    assert len(told) == ("start" in text and "_exit" not in text), "what was lost is told, if there is time to"
    others = [line for line in err.splitlines() if line not in told]
    assert err.count("Traceback") == bool(error)
    assert (others[-1] if others else "") == error
    assert wait_until(lambda: gone(found), PROMISED_S)
