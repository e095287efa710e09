"""Ctrl-C and its relatives, on a real terminal: what runs, what is said, and how the process dies.

The keys are pressed on a pseudo-terminal, so the signal takes the way it takes for people: to the
foreground process group, which workers are not in.
"""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import psutil
import pytest
from tests.support.command import Terminal

from procq.cli.signals import STOP_SIGNALS, Signalled, StopSignals

pytestmark = pytest.mark.processes

Write = Callable[..., Path]

#: What one interrupted run may say on a terminal, at most.
MOST_LINES = 12

JOBS = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
from procq import task

HERE = Path(__file__).parent

def say(text):
    os.write(1, f"<{text}>\\n".encode())

@task
def wait_for_go(number):
    say(f"started {number}")
    with open(HERE / "go", "rb", buffering=0) as pipe:
        pipe.read(1)

@task
def sleep(number):
    say(f"started {number}")
    time.sleep(1000)

@task
def stubborn(number):
    while True:
        try:
            say(f"started {number}")  # in here, because it may be asked at once
            time.sleep(1000)
        except BaseException:
            say("asked to stop")

@task
def parent(number):
    child = subprocess.Popen(["sleep", "1000"])
    say(f"child {child.pid}")
    child.wait()

@task
def later(): ...

def busy(): return [wait_for_go.spec(number) for number in range(6)]
def last(): return [wait_for_go.spec(number) for number in range(2)]
def sleepy(): return [sleep.spec(number) for number in range(6)]
def deaf(): return [stubborn.spec(1), later.spec()]
def parents(): return [parent.spec(1), later.spec()]
def idle(): return [later.using(delay="1h").spec()]

def blocked():
    try:
        yield later.spec()
        say("producer blocks")
        threading.Event().wait()
    finally:
        say("never")
"""


class Start(Protocol):
    def __call__(self, entry: str, *flags: str, before: Callable[[], object] | None = None) -> Terminal: ...


@pytest.fixture
def start(write: Write, tmp_path: Path) -> Iterator[Start]:
    """Run an entry of the jobs file above on a terminal, with 2 workers."""
    write(JOBS)
    os.mkfifo(tmp_path / "go")
    opened: list[Terminal] = []

    def start_entry(entry: str, *flags: str, before: Callable[[], object] | None = None) -> Terminal:
        terminal = Terminal(
            tmp_path, "-m", "procq", "run", f"jobs.py:{entry}", "-j2", "--color=never", *flags, before=before
        )
        opened.append(terminal)
        return terminal

    yield start_entry

    for terminal in opened:
        terminal.close()


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Let two tasks that wait for it end."""
    # Open for reading too, which makes Linux open it at once; until the end, or a task that comes
    # late would find nobody.
    pipe: list[int] = []

    def release() -> None:
        pipe.append(os.open(tmp_path / "go", os.O_RDWR))
        os.write(pipe[0], b"go")

    yield release

    for descriptor in pipe:
        os.close(descriptor)


def is_dead(pid: int) -> bool:
    """Whether a process runs no more; a container's first process may leave it a zombie."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_quiet(terminal: Terminal) -> None:
    """Check that an interrupted run was short about it and showed no traceback."""
    assert len(terminal.said) <= MOST_LINES, terminal.text
    assert "Traceback" not in terminal.text


def test_one_press_lets_what_runs_finish_and_starts_nothing(start: Start, go: Callable[[], None]) -> None:
    run = start("busy")
    run.wait_for("<started", times=2)

    run.press_ctrl_c()
    run.wait_for("finishing 2 running tasks; Ctrl-C again kills them")
    go()

    assert run.end() == -signal.SIGINT
    assert run.text.count("<started") == 2
    assert run.said[-2].startswith("interrupted after ")
    assert run.said[-2].endswith(": 2 ok, 0 failed, 0 skipped, 4 cancelled")
    assert run.said[-1] == "cancelled  4 tasks: interrupted by Ctrl-C"
    assert_quiet(run)


def test_two_presses_stop_what_runs(start: Start) -> None:
    run = start("sleepy")
    run.wait_for("<started", times=2)

    run.press_ctrl_c()
    run.wait_for("finishing 2 running tasks")
    run.press_ctrl_c()

    assert run.end() == -signal.SIGINT
    assert any(line.startswith("stopping 2 running tasks, killing what does not") for line in run.said)
    assert run.said[-2].endswith(": 0 ok, 0 failed, 0 skipped, 6 cancelled")
    assert run.said[-1] == "cancelled  6 tasks: interrupted by Ctrl-C"
    assert_quiet(run)


def test_three_presses_kill_what_will_not_stop(start: Start) -> None:
    run = start("deaf", "--kill-grace=1h")
    run.wait_for("started 1")

    run.press_ctrl_c()
    run.wait_for("Ctrl-C again kills them")
    run.press_ctrl_c()
    run.wait_for("asked to stop")
    run.press_ctrl_c()

    assert run.end() == -signal.SIGINT
    assert "killing at once" in run.said
    assert_quiet(run)


def test_the_grace_ends_what_will_not_stop(start: Start) -> None:
    run = start("deaf", "--kill-grace=100ms")
    run.wait_for("started 1")

    run.press_ctrl_c()
    run.wait_for("Ctrl-C again kills them")
    run.press_ctrl_c()

    assert run.end() == -signal.SIGINT
    assert "killing at once" not in run.said
    assert_quiet(run)


def test_what_a_task_started_dies_with_it(start: Start) -> None:
    run = start("parents", "--kill-grace=100ms")
    run.wait_for("<child ")
    run.wait_for(">")
    child = int(run.text.split("<child ")[1].split(">")[0])

    run.press_ctrl_c()
    run.wait_for("finishing")
    run.press_ctrl_c()

    assert run.end() == -signal.SIGINT
    assert is_dead(child)
    assert_quiet(run)


def test_one_press_ends_an_idle_run(start: Start) -> None:
    run = start("idle", "--progress=plain", "--interval=10ms")
    run.wait_for("0/1 done  0 running  1 scheduled")

    run.press_ctrl_c()

    assert run.end() == -signal.SIGINT
    assert any(line == "stopping; nothing is running" for line in run.said)
    assert "Traceback" not in run.text


def test_one_press_ends_a_run_whose_producer_blocks(start: Start) -> None:
    run = start("blocked")
    run.wait_for("producer blocks")

    run.press_ctrl_c()

    assert run.end() == -signal.SIGINT
    assert any(line.startswith("interrupted after ") for line in run.said)
    assert_quiet(run)


def below(process: int) -> list[psutil.Process]:
    """Return a process and all that it started."""
    first = psutil.Process(process)
    return [first, *first.children(recursive=True)]


#: How each entry shows that it is where it can be interrupted, and what it says to each press but the last.
MATRIX = {
    "idle": ("0/1 done", []),
    "sleepy": ("<started", ["finishing", "killing what does not"]),
    "deaf": ("<started 1>", ["finishing", "killing what does not"]),
    "parents": ("<child ", ["finishing", "killing what does not"]),
    "blocked": ("producer blocks", []),
}


@pytest.mark.parametrize("presses", [1, 2, 3])
@pytest.mark.parametrize("entry", MATRIX)
def test_G5_however_often_it_is_pressed_nothing_is_left(start: Start, entry: str, presses: int) -> None:
    ready, answers = MATRIX[entry]
    # One press waits for what runs: here only so long.
    bounds = {
        1: ["--stop-timeout=200ms", "--kill-grace=200ms"],
        2: ["--kill-grace=200ms"],
        3: ["--kill-grace=1h"],
    }[presses]
    run = start(entry, *bounds)
    run.wait_for(ready, times=2 if entry == "sleepy" else 1)
    processes = below(run.process.pid)

    began = time.monotonic()
    for number in range(presses):
        run.press_ctrl_c()
        if number < presses - 1 and answers:
            run.wait_for(answers[number])

    assert run.end() == -signal.SIGINT
    assert time.monotonic() - began < 4
    assert_quiet(run)
    psutil.wait_procs(processes, timeout=2)
    assert [one for one in processes if not is_dead(one.pid)] == []


def test_a_run_says_where_it_stands_when_it_is_asked(start: Start, go: Callable[[], None]) -> None:
    run = start("last", "--progress=off")
    run.wait_for("<started", times=2)

    run.process.send_signal(signal.SIGUSR1)
    run.wait_for("  running  wait_for_go(", times=2)
    go()

    assert run.end() == 0
    assert run.said[1].startswith("0/2 done  2 running  ")
    assert run.said[2:4] == ["running  wait_for_go(number=0)", "running  wait_for_go(number=1)"]


def test_a_run_whose_tasks_had_all_ended_is_not_interrupted(start: Start, go: Callable[[], None]) -> None:
    run = start("last")
    run.wait_for("<started", times=2)

    run.press_ctrl_c()
    run.wait_for("finishing 2 running tasks")
    go()

    assert run.end() == 0
    assert run.said[-1].startswith("ok in ")


def test_ctrl_c_before_anything_started_says_one_word(write: Write, tmp_path: Path) -> None:
    write("import os, time\nos.write(1, b'<loading>\\n')\nwhile True: time.sleep(0.01)\n", "slow.py")
    run = Terminal(tmp_path, "-m", "procq", "run", "slow.py")
    try:
        run.wait_for("<loading>")

        run.press_ctrl_c()

        assert run.end() == -signal.SIGINT
        assert run.said == ["interrupted"]
        assert "Traceback" not in run.text
    finally:
        run.close()


def test_sigterm_lets_what_runs_finish(start: Start, go: Callable[[], None]) -> None:
    run = start("busy")
    run.wait_for("<started", times=2)

    run.process.terminate()
    run.wait_for("SIGTERM: finishing 2 running tasks")
    go()

    assert run.end() == -signal.SIGTERM
    assert run.text.count("<started") == 2
    assert_quiet(run)


def test_the_stop_timeout_bounds_sigterm(start: Start) -> None:
    run = start("sleepy", "--stop-timeout=100ms")
    run.wait_for("<started", times=2)

    run.process.terminate()

    assert run.end() == -signal.SIGTERM
    assert_quiet(run)


def test_a_terminal_that_closes_ends_the_run(start: Start) -> None:
    run = start("sleepy", "--stop-timeout=100ms")
    run.wait_for("<started", times=2)

    run.process.send_signal(signal.SIGHUP)

    assert run.end() == -signal.SIGHUP


def test_nohup_is_respected(start: Start, go: Callable[[], None]) -> None:
    run = start("last", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    run.wait_for("<started", times=2)

    run.process.send_signal(signal.SIGHUP)
    go()

    assert run.end() == 0
    assert "SIGHUP" not in run.text


def test_a_script_is_interrupted_the_same_way(write: Write, tmp_path: Path) -> None:
    write(JOBS + "\nif __name__ == '__main__':\n    import procq\n    procq.main(sleepy)\n")
    run = Terminal(tmp_path, "jobs.py", "-j2", "--color=never")
    try:
        run.wait_for("<started", times=2)

        run.press_ctrl_c()
        run.wait_for("finishing 2 running tasks")
        run.press_ctrl_c()

        assert run.end() == -signal.SIGINT
        assert_quiet(run)
    finally:
        run.close()


# --- the way of a signal, in this process -------------------------------------------------------


def test_a_signal_is_a_message_though_the_main_thread_runs_no_bytecode() -> None:
    """A Python handler would wait until the main thread comes back from C code, or for ever."""
    inbox: SimpleQueue[Signalled] = SimpleQueue()
    came: list[tuple[Signalled, bool]] = []
    is_back = threading.Event()

    def send_and_wait() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        came.append((inbox.get(timeout=20), is_back.is_set()))

    with StopSignals(inbox):
        sender = threading.Thread(target=send_and_wait)
        sender.start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 3_000_000)  # a second or two, without the interpreter lock
        is_back.set()
        sender.join()

    assert came == [(Signalled(signal.SIGTERM), False)]


def test_signals_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]

    with StopSignals(SimpleQueue()):
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before

    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    inside: list[object] = []

    def enter() -> None:
        with StopSignals(SimpleQueue()):
            inside.extend(signal.getsignal(number) for number in STOP_SIGNALS)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()

    assert inside == before
