"""The supervisor is killed: everything it had started is gone within a second (contract G5; PAIN H22)."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import alive, gone, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, script_environment
from tests.support.process_tasks import Gate

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

#: The promise is one second; the machine may be busy.
PROMPTLY_S = 3.0


@contextmanager
def supervisor(program: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Run a program that opens a queue and waits to be killed."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, args)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=script_environment(),
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids that the program prints in a line."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


BUSY = """
    import sys
    from pathlib import Path
    from procq import Queue
    from tests.support import process_tasks as tasks
    from tests.support.process_tasks import Gate

    with Queue(workers=3) as queue:
        [handle.result() for handle in [queue.submit(tasks.sleep, 0.05) for _ in range(3)]]
        in_c, blocked = (Gate(Path(sys.argv[1]), name) for name in ("in-c", "blocked"))
        queue.submit(tasks.with_family, in_c.path, in_c=True)
        in_c.wait_begun()
        queue.submit(tasks.block_all_signals, blocked.path)
        blocked.wait_begun()
        print(*queue._supervisor.engine.pids(), flush=True)
        {more}
        sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_H22_when_the_supervisor_is_killed_all_are_gone_within_a_second(number: int, tmp_path: Path) -> None:
    """Workers that are idle, in C code that never returns, deaf to every signal; and grandchildren."""
    with supervisor(BUSY.format(more=""), tmp_path) as process:
        workers = told(process)
        family = tasks.family(str(tmp_path / "in-c"))
        everybody = {*workers, *family}
        assert len(everybody) == 5
        assert all(map(alive, everybody))

        process.send_signal(number)
        process.wait(PATIENCE_S)
        before = time.monotonic()

        assert wait_until(lambda: gone(everybody), PROMPTLY_S), "a zombie that nobody reaps counts as gone"
        assert time.monotonic() - before < PROMPTLY_S


@pytest.mark.parametrize("how", ["os._exit(0)", "os.execv(sys.executable, [sys.executable, '-c', ''])"])
def test_G5_also_when_it_leaves_without_a_word(how: str, tmp_path: Path) -> None:
    with supervisor(BUSY.format(more=f"import os; sys.stdin.readline(); {how}"), tmp_path) as process:
        everybody = {*told(process), *tasks.family(str(tmp_path / "in-c"))}
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        process.wait(PATIENCE_S)

        assert wait_until(lambda: gone(everybody), PROMPTLY_S)


def test_G5_also_while_a_fork_of_it_lives_on(tmp_path: Path) -> None:
    """The child has inherited every descriptor, and must not keep the workers alive by that."""
    fork = """
        import os
        child = os.fork()
        if child == 0:
            import time
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)"""
    program = BUSY.format(more=textwrap.indent(textwrap.dedent(fork), " " * 8).lstrip())
    with supervisor(program, tmp_path) as process:
        everybody = {*told(process), *tasks.family(str(tmp_path / "in-c"))}
        (child,) = told(process)
        try:
            process.kill()
            process.wait(PATIENCE_S)

            assert wait_until(lambda: gone(everybody), PROMPTLY_S)
            assert alive(child)
        finally:
            os.kill(child, signal.SIGKILL)


def test_G5_also_while_workers_are_being_born(tmp_path: Path) -> None:
    program = """
        import sys
        from procq import Queue
        from tests.support import process_tasks as tasks
        queue = Queue(workers=4, initializer=tasks.say_pid_and_sleep, initargs=(sys.argv[1],)).start()
        [queue.submit(tasks.nothing) for _ in range(8)]
        print(flush=True)
        sys.stdin.read()
    """
    log = tmp_path / "log"
    with supervisor(program, log) as process:
        told(process)
        assert wait_until(log.exists, PATIENCE_S)
        process.kill()
        process.wait(PATIENCE_S)

    assert wait_until(lambda: gone(map(int, log.read_text().split())), PROMPTLY_S)


def test_G5_of_nested_queues_the_inner_workers_go_too(tmp_path: Path) -> None:
    program = """
        import sys
        from pathlib import Path
        from procq import Queue
        from tests.support import process_tasks as tasks
        from tests.support.process_tasks import Gate
        gate = Gate(Path(sys.argv[1]))
        with Queue(workers=1) as queue:
            queue.submit(tasks.hold_inner_processes, gate.path)
            gate.wait_begun()
            print(flush=True)
            sys.stdin.read()
    """
    with supervisor(program, tmp_path) as process:
        told(process)
        family = tasks.family(str(tmp_path / "gate"))
        process.kill()
        process.wait(PATIENCE_S)

        assert wait_until(lambda: gone(family), PROMPTLY_S)


def test_H22_a_stopped_worker_goes_too(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    program = """
        import sys
        from procq import Queue
        from tests.support import process_tasks as tasks
        with Queue(workers=1) as queue:
            queue.submit(tasks.announced_sleep, sys.argv[1])
            sys.stdin.read()
    """
    with supervisor(program, gate.path) as process:
        worker = gate.wait_begun()
        os.kill(worker, signal.SIGSTOP)
        process.kill()
        process.wait(PATIENCE_S)

        assert wait_until(lambda: gone([worker]), PROMPTLY_S)
