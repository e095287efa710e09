"""Odd programs around a queue, and what its workers find around them (contract C5, H; PAIN H27, H28, H31, H32)."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from tests.support import process_tasks as tasks, surrounding_tasks
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, pids, run_file, script_environment
from tests.support.process_tasks import Gate

from procq import Queue, task
from procq.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

HEAD: Final = """
import os, signal, sys, threading
from procq import Queue, task
from procq.errors import AttemptTimeout, WorkerCrashed
from tests.support import process_tasks as tasks, surrounding_tasks
"""


def run(
    text: str, *flags: str, arguments: tuple[str | bytes, ...] = (), environment: Mapping[str, str] | None = None
) -> str:
    """Run a program that must end well and say nothing on stderr; return what it printed."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", HEAD + textwrap.dedent(text), *arguments],
        check=False, capture_output=True, text=True, timeout=PATIENCE_S,
        env=script_environment() | dict(environment or {}),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


# --- start-up (H27) ---


def test_H27_workers_start_side_by_side_and_no_start_is_charged(tmp_path: Path) -> None:
    """Each start takes longer than the timeout of a task; all of them together take about as long as one."""
    gates = [Gate(tmp_path, str(number)) for number in range(4)]
    brief = task(tasks.pass_gate, timeout=10)
    with Queue(workers=4, initializer=tasks.sleep, initargs=(0.7,)) as queue:
        began = time.monotonic()
        slow = queue.submit(task(tasks.echo, timeout=0.3).spec("in time"))
        handles = [queue.submit(brief.spec(gate.path)) for gate in gates]
        found = {gate.wait_begun() for gate in gates}
        took_s = time.monotonic() - began
        for gate in gates:
            gate.open()
        for handle in handles:
            handle.result(PATIENCE_S)
        assert slow.result(PATIENCE_S) == "in time"

    assert len(found) == 4, "they could not all wait at once otherwise"
    assert took_s < 4 * 0.7


def test_H27_a_heavy_main_program_is_not_imported_by_the_workers(tmp_path: Path) -> None:
    out = run(
        """
        with open(sys.argv[1], "a") as log:
            log.write("main ")
        with Queue(workers=2) as queue:
            print([handle.result() for handle in [queue.submit(tasks.echo, number) for number in range(4)]])
        """,
        arguments=(str(tmp_path / "log"),),
    )
    assert out == "[0, 1, 2, 3]"
    assert (tmp_path / "log").read_text() == "main "


# --- how many (H31) ---


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors to leave one")
def test_H31_the_default_is_the_processors_this_process_may_use() -> None:
    out = run(
        """
        before = len(os.sched_getaffinity(0))
        assert Queue().workers <= before
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(Queue().workers)
        """
    )
    assert out == "1"


def test_H31_forty_workers_at_once(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, str(number)) for number in range(40)]
    with Queue(workers=40) as queue:
        handles = [queue.submit(tasks.pass_gate, gate.path, number) for number, gate in enumerate(gates)]
        assert {gate.wait_begun() for gate in gates} == pids(queue)
        for gate in gates:
            gate.open()
        assert [handle.result(PATIENCE_S) for handle in handles] == list(range(40))


@pytest.mark.parametrize("workers", [0, -1, "4", 2.0, True])
def test_H31_bad_counts_are_refused_at_once(workers: int) -> None:
    with pytest.raises(UsageError, match="workers"):
        Queue(workers=workers)


def test_H31_libraries_in_all_workers_together_use_the_machine_once() -> None:
    text = """
        with Queue(workers=int(sys.argv[1])) as queue:
            print(queue.submit(surrounding_tasks.variables, "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS").result())
    """
    environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "")
    many = str(2 * (os.cpu_count() or 1))

    assert run(
        f"del os.environ['OMP_NUM_THREADS']\n{textwrap.dedent(text)}", arguments=(many,), environment=environment
    ) == ("['1', '']"), "what the user has set stays, be it empty"
    environment = {"OMP_NUM_THREADS": "7", "OPENBLAS_NUM_THREADS": "3"}
    assert run(text, arguments=(many,), environment=environment) == "['7', '3']"


# --- what persists (H32) ---


def test_H32_a_worker_keeps_what_a_task_changed_and_no_other_process_does(tmp_path: Path) -> None:
    here = Path.cwd()
    with Queue(workers=1) as queue:
        changed = queue.submit(surrounding_tasks.change_state, str(tmp_path)).result(PATIENCE_S)
        assert queue.submit(surrounding_tasks.see_state).result(PATIENCE_S) == (changed, str(tmp_path), "changed")
        os.kill(changed, signal.SIGKILL)
        fresh, cwd, variable = queue.submit(surrounding_tasks.see_state).result(PATIENCE_S)

    assert fresh != changed
    assert (cwd, variable) == (str(here), None)
    assert Path.cwd() == here


# --- pools within tasks (H28) ---


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_H28_every_kind_of_process_pool_works_within_a_task(method: str) -> None:
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        assert queue.submit(surrounding_tasks.sum_with_pool, method).result(PATIENCE_S) == 285
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid


# --- odd programs ---

DEATHS: Final = """
def check(is_right, what):
    if not is_right:
        sys.exit(f"wrong: {what}")

with Queue(workers=2, kill_grace=0.1) as queue:
    crashed = queue.submit(tasks.exit_at_once, 3)
    late = queue.submit(task(tasks.sleep_forever, timeout=0.2).spec())
    fine = [queue.submit(tasks.echo, number) for number in range(20)]
    check([handle.result(10) for handle in fine] == list(range(20)), fine)
    check(type(crashed.exception(10)) is WorkerCrashed, crashed.error)
    check(type(late.exception(10)) is AttemptTimeout, late.error)
print("fine")
"""


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        # A program that buries every child it hears of.
        """
def bury(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, bury)
        """,
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
        "os.umask(0o777)",
        "sys.path[:0] = [object(), None, b'bytes']",
        "import gc; gc.disable()",
        "os.closerange(0, 3)",
    ],
    ids=["SIGCHLD ignored", "everything buried", "blocked", "SIGPIPE", "umask", "sys.path", "no gc", "no streams"],
)
def test_deaths_are_noticed_in_odd_programs(before: str, tmp_path: Path) -> None:
    done = tmp_path / "done"  # not all of them can print
    run(before.strip() + DEATHS.replace('print("fine")', f"os.mkdir({str(done)!r})"))
    assert done.exists()


FLAGS: Final = [
    ("-X", "dev", "-W", "error", "-bb"), ("-O",), ("-OO",), ("-u",), ("-s", "-B"), ("-X", "utf8=0"), ("-P",),
]  # fmt: skip


@pytest.mark.parametrize("flags", [(), *FLAGS], ids=" ".join)
def test_H4_a_worker_has_the_interpreters_flags(flags: tuple[str, ...]) -> None:
    assert run(
        """
        with Queue(workers=1) as queue:
            theirs = queue.submit(surrounding_tasks.interpreter).result()
        print("fine" if theirs == surrounding_tasks.interpreter() else theirs)
        """,
        *flags,
    ) == "fine"  # fmt: skip


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_with_the_interpreters_flags_nothing_is_told(flags: tuple[str, ...]) -> None:
    assert run(DEATHS, *flags) == "fine"


def test_arguments_and_places_that_are_no_text(tmp_path: Path) -> None:
    """File names are bytes to the system, and may be nothing in any encoding."""
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)  # noqa: PTH102 - of bytes
    with open(folder + b"/odd_module.py", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write("def answer():\n    import sys\n    return sys.argv[1]\n")
    out = run(
        """
        sys.path.append(sys.argv[1])
        from odd_module import answer
        with Queue(workers=1) as queue:
            print(queue.submit(answer).result(10) == sys.argv[1])
        """,
        arguments=(folder,),
    )
    assert out == "True"


def test_modules_of_the_current_folder_stand_in_for_none_of_the_workers_own(tmp_path: Path) -> None:
    for name in ("socket", "struct", "logging", "signal", "pickle", "attempt", "wire"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')\n")
    out = run(
        """
        sys.path.remove("")  # a script has its own folder there
        os.chdir(sys.argv[1])
        with Queue(workers=1) as queue:
            print(queue.submit(tasks.echo, "fine").result(10))
        """,
        arguments=(str(tmp_path),),
    )
    assert out == "fine"


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    # From a file: Python 3.13.0 itself stumbles over `-c`, whose place on sys.path is the current folder.
    done = run_file(
        tmp_path / "script.py",
        """
        import os, sys
        from procq import Queue
        from tests.support import process_tasks as tasks
        os.mkdir(sys.argv[1])
        os.chdir(sys.argv[1])
        os.rmdir(sys.argv[1])
        with Queue(workers=1) as queue:
            print(queue.submit(tasks.echo, "fine").result(10))
        """,
        tmp_path / "gone",
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_a_program_that_comes_through_standard_input() -> None:
    program = HEAD + textwrap.dedent(
        """
        def double(number):
            return 2 * number

        with Queue(workers=1) as queue:
            print(queue.submit(double, 21).result(10))
        """
    )
    done = subprocess.run(
        [sys.executable, "-"], check=False, input=program, capture_output=True, text=True, timeout=PATIENCE_S,
        env=script_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_a_module_that_is_run_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "__init__.py").touch()
    (tmp_path / "work" / "double.py").write_text(
        textwrap.dedent(
            """
            from procq import Queue

            class Doubled:
                def __init__(self, number):
                    self.value = 2 * number

            with Queue(workers=1) as queue:
                doubled = queue.submit(Doubled, 21).result(10)
                print(doubled.value, isinstance(doubled, Doubled))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "work.double"],
        check=False, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, env=script_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("42")


def test_a_queue_in_a_child_that_multiprocessing_has_forked() -> None:
    out = run(
        """
        import multiprocessing

        def work(pipe):
            with Queue(workers=1) as queue:
                pipe.send(queue.submit(tasks.echo, "fine").result(10))

        context = multiprocessing.get_context("fork")
        with Queue(workers=1) as outer:
            outer.submit(tasks.nothing).result(10)
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs,), daemon=True)
            process.start()
            print(ours.recv(), outer.submit(tasks.echo, "as before").result(10))
            process.join(10)
        """
    )
    assert out == "fine as before"
