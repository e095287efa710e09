"""How workers come to life, end, and leave nothing behind (contract G5, H1, H4)."""

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support import tasks
from tests.support.driver import Driver
from tests.support.leaks import alive, gone, is_open, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import script_environment

from procq.engine.local import birth, wire
from procq.engine.local.birth import Exit, WorkerConfig
from procq.errors import WorkerStartError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

PATIENCE_S = 20.0


def first_line(path: Path) -> str:
    """Wait for a task to write a whole line to a file, and return it."""
    assert wait_until(lambda: path.exists() and "\n" in path.read_text(), PATIENCE_S)
    return path.read_text().splitlines()[0]


def test_H2_a_queue_that_a_module_starts_when_it_is_imported_is_refused_in_its_workers(tmp_path: Path) -> None:
    """Each of them would import the module too, and start more without end."""
    module = tmp_path / "starts_a_queue.py"
    module.write_text(
        "import procq\n"
        "def square(number):\n    return number * number\n"
        "with procq.Queue(workers=1) as queue:\n    print(queue.submit(square, 3).result())\n"
    )

    run, imported = (
        subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=script_environment(), capture_output=True, text=True,
            check=False, timeout=PATIENCE_S,
        )
        for arguments in ([module.name], ["-c", f"import {module.stem}"])
    )  # fmt: skip

    assert (run.returncode, run.stdout) == (0, "9\n"), run.stderr
    assert imported.returncode == 1
    assert "its workers would do the same without end" in imported.stderr.splitlines()[-1]


# --- surroundings ---


def test_H4_a_worker_has_a_session_of_its_own_and_the_supervisors_surroundings() -> None:
    with Driver() as driver:
        found = driver.result(tasks.surroundings)
        pid = driver.worker.pid

    assert isinstance(found, dict)
    assert found["pgid"] == found["sid"] == pid
    assert found["path"] == sys.path
    assert found["argv"] == sys.argv
    assert found["cwd"] == str(Path.cwd())
    assert found["sigint_ignored"]
    assert found["stdin"] == os.devnull
    # Standard streams, four of ours, and the one that the listing itself used.
    assert len(found["descriptors"]) == 3 + 4 + 1


def test_H4_descriptors_that_the_program_left_inheritable_are_not_the_workers() -> None:
    """Else a pipe of the program's would never end while a worker lives."""
    left_open = os.pipe()
    try:
        for fd in left_open:
            os.set_inheritable(fd, True)  # noqa: FBT003 - positional only
        with Driver() as driver:
            found = driver.result(tasks.surroundings)
    finally:
        for fd in left_open:
            os.close(fd)

    assert isinstance(found, dict)
    assert len(found["descriptors"]) == 3 + 4 + 1


def test_H4_signals_blocked_in_the_spawning_thread_are_not_blocked_in_the_worker() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        with Driver() as driver:
            found = driver.result(tasks.surroundings)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    assert isinstance(found, dict)
    assert found["blocked"] == []


def test_H4_numeric_libraries_share_the_cpus_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "7")
    with Driver(workers=3, cpus=8) as driver:
        found = driver.result(tasks.surroundings)

    assert isinstance(found, dict)
    assert found["environ"]["OMP_NUM_THREADS"] == "2"
    assert found["environ"]["MKL_NUM_THREADS"] == "7"
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_module_in_the_current_directory_does_not_stand_in_for_a_standard_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pickle", "struct", "resource", "_socket"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    monkeypatch.chdir(tmp_path)

    with Driver() as driver:
        assert driver.result(tasks.add, 1, 2) == 3


def test_jobs_files_are_importable_in_the_worker(tmp_path: Path) -> None:
    file = tmp_path / "work.txt"
    file.write_text("def double(number):\n    return 2 * number\n")
    with Driver(jobs={"procq_jobs_test": str(file)}) as driver:
        driver.seq = 1
        driver.send_call(
            b"(cprocq_jobs_test\ndouble\n(K\x15tt."
        )  # protocol 0: the function by name, the arguments (21,)
        ended = driver.report()

    assert ended.outcome == "ok", ended.message
    assert isinstance(ended.value, bytes)
    assert ended.value.endswith(b"K*.")  # 42


# --- when it cannot be had ---


def test_without_an_interpreter_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(WorkerStartError, match=r"cannot start a worker.*nowhere"):
        birth.spawn(WorkerConfig(worker_id=1, workers=1, cpus=1))

    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(WorkerStartError, match="does not name"):
        birth.spawn(WorkerConfig(worker_id=1, workers=1, cpus=1))


def test_a_worker_that_is_dead_before_the_first_word_tells_it_by_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    real = birth._sentinel

    def sentinel_of_a_dead_one(pid: int) -> int:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return real(pid)

    monkeypatch.setattr(birth, "_sentinel", sentinel_of_a_dead_one)
    monkeypatch.setattr(birth, "_BOOT", "raise SystemExit(7)")
    with Driver(await_ready=False) as driver:
        assert driver.death().exit_code == 7
        assert driver.channel.receive() == []
        assert driver.channel.hung_up


def test_H24_out_of_descriptors_is_a_clear_error_and_leaves_nothing() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 16, before[1]))
    occupied = []
    outcomes = []
    try:
        with contextlib.suppress(OSError):
            while True:
                occupied.append(os.open(os.devnull, os.O_RDONLY))
        # One more each time, so that every step of a birth is once the one that fails.
        for _ in range(16):
            os.close(occupied.pop())
            try:
                worker = birth.spawn(WorkerConfig(worker_id=1, workers=1, cpus=1))
            except WorkerStartError:
                outcomes.append(False)
            else:
                worker.abandon()
                outcomes.append(True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in occupied:
            os.close(fd)

    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) == 6  # a worker takes seven while it is born


# --- ends ---


@pytest.mark.parametrize("code", [0, 3, 84])
def test_an_exit_code_is_told(code: int) -> None:
    with Driver() as driver:
        driver.send(tasks.leave_at_once, code)
        leave = driver.death()

    assert (leave.exit_code, leave.signal) == (code, None)


def test_a_peak_of_memory_is_told_unless_it_may_be_the_supervisors() -> None:
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with Driver() as driver:
        assert driver.leave().max_rss_bytes == 0
    with Driver() as driver:
        driver.run(tasks.use_memory, ours + 50_000_000)
        assert ours + 50_000_000 < driver.leave().max_rss_bytes < ours + 150_000_000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGRTMIN + 1])
def test_a_signal_is_told_by_its_name(number: int) -> None:
    with Driver() as driver:
        driver.send(tasks.kill_self, int(number))
        leave = driver.death()

    name = signal.Signals(number).name if number in signal.valid_signals() and number < 32 else f"SIG{int(number)}"
    assert (leave.exit_code, leave.signal) == (None, name)


def test_reaping_tells_nothing_of_a_living_worker_and_the_same_again_of_a_dead_one() -> None:
    with Driver() as driver:
        assert driver.worker.reap() is None
        leave = driver.leave()
        assert leave == Exit(exit_code=0)
        assert driver.worker.reap() is leave


def test_a_worker_that_somebody_else_reaped_is_dead_all_the_same() -> None:
    with Driver() as driver:
        os.kill(driver.worker.pid, signal.SIGKILL)
        os.waitpid(driver.worker.pid, 0)

        assert select.select([driver.worker.pidfd], [], [], PATIENCE_S)[0], "the pidfd tells still"
        assert driver.worker.reap() == Exit()
        driver.worker.ask()
        driver.worker.kill()
        assert driver.worker.descendants() == 0


def test_a_buried_workers_number_may_be_anybodys() -> None:
    with Driver() as bystander, Driver() as driver:
        driver.leave()
        driver.worker.pid = os.getpid()  # as if we had got its number

        driver.worker.ask()
        assert driver.worker.descendants() == 0
        driver.worker.kill()

        assert bystander.result(tasks.add, 1, 2) == 3


def test_a_death_ends_the_pipes() -> None:
    with Driver() as driver:
        os.kill(driver.worker.pid, signal.SIGKILL)
        driver.death()

        assert driver.channel.receive() == []
        assert driver.channel.hung_up


def test_with_sigchld_ignored_workers_end_all_the_same() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Driver() as driver:
            assert driver.result(tasks.add, 1, 2) == 3
            assert driver.leave() == Exit()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_an_idle_worker_that_is_asked_leaves() -> None:
    with Driver() as driver:
        driver.worker.ask()

        assert driver.death().exit_code == 0


def test_a_stopped_worker_is_killed() -> None:
    with Driver() as driver:
        os.kill(driver.worker.pid, signal.SIGSTOP)
        driver.worker.kill()

        assert driver.death().signal == "SIGKILL"


def test_H16_a_kill_reaches_what_a_task_started() -> None:
    with Driver() as driver:
        grandchild = driver.result(tasks.start_sleeper)
        assert isinstance(grandchild, int)
        assert alive(grandchild)

        driver.worker.kill()
        driver.death()

        assert wait_until(lambda: gone([grandchild]))


def test_H16_a_death_takes_with_it_what_a_task_started() -> None:
    with Driver() as driver:
        grandchild = driver.result(tasks.start_sleeper)
        assert isinstance(grandchild, int)
        assert driver.leave().exit_code == 0

        assert wait_until(lambda: gone([grandchild]))


def test_H16_known_descendants_that_left_the_group_are_killed() -> None:
    with Driver() as driver:
        grandchild = driver.result(lambda: tasks.start_sleeper(own_session=True))
        assert isinstance(grandchild, int)

        assert driver.worker.descendants() == 1
        assert driver.worker.descendants() == 1, "known once, not twice"
        driver.worker.kill()
        driver.death()

        assert wait_until(lambda: gone([grandchild]))


def test_closing_a_living_worker_kills_it() -> None:
    with Driver() as driver:
        driver.send(tasks.stuck_in_c)
        pid = driver.worker.pid
        driver.worker.close()
        driver.worker.close()

        assert wait_until(lambda: gone([pid]))
        assert wait_until(lambda: driver.worker.reap() is not None)
        assert driver.worker.reap() == Exit(signal="SIGKILL")


def test_a_dropped_worker_makes_no_warning() -> None:
    """`Popen` would warn that its process still runs, and wait for its pid later (warnings are errors here)."""
    import gc  # noqa: PLC0415

    driver = Driver()
    gc.collect()
    driver.worker.kill()
    driver.death()
    driver.worker.close()
    assert subprocess._active == []  # type: ignore[attr-defined]  # where Popen keeps what it will wait for


# --- the dead man's switch ---

SUPERVISOR = """
import sys
from tests.support import tasks
from tests.support.driver import Driver
{before}
driver = Driver()
print(driver.worker.pid, flush=True)
driver.send(tasks.{task}, {path!r})
{after}
driver.death()
"""


def start_supervisor(path: Path, task: str, *, before: str = "", after: str = "") -> "subprocess.Popen[str]":
    program = SUPERVISOR.format(task=task, path=str(path), before=before, after=after)
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())


def test_G5_the_supervisors_sudden_death_kills_a_worker_in_c_code_and_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with start_supervisor(file, "stuck_with_grandchild") as supervisor:
        worker, grandchild = map(int, first_line(file).split())
        assert alive(worker)
        assert alive(grandchild)

        died_at = time.monotonic()
        supervisor.kill()
        supervisor.wait(PATIENCE_S)
        assert wait_until(lambda: gone([worker, grandchild]), PATIENCE_S)
        # Promised is a second; a busy machine gets more.
        assert time.monotonic() - died_at < 5.0


def test_G5_a_supervisor_that_dies_before_the_switch_is_armed_leaves_no_worker() -> None:
    """The write end closes while the new interpreter is starting: nobody is signalled, so the worker must look."""
    program = (
        "import os, signal, time\n"
        "from procq import payload\n"
        "from procq.engine.local.birth import spawn, WorkerConfig\n"
        "initializer, _ = payload.dump_call(time.sleep, (60,), {})\n"
        "print(spawn(WorkerConfig(worker_id=1, workers=1, cpus=1, initializer=initializer)).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
    )

    assert done.returncode == -signal.SIGKILL
    assert wait_until(lambda: gone([int(done.stdout)]), PATIENCE_S)


def test_G5_a_fork_of_the_supervisor_does_not_keep_workers_alive(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    fork = (
        "import os, signal\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert driver.worker.pidfd == -1\n"
        "    signal.pause()\n"
        "print(child, flush=True)\n"
    )
    with start_supervisor(file, "stuck_with_grandchild", after=fork) as supervisor:
        worker, grandchild = map(int, first_line(file).split())
        assert supervisor.stdout is not None
        assert int(supervisor.stdout.readline()) == worker
        forked = int(supervisor.stdout.readline())
        try:
            assert alive(forked)

            supervisor.kill()
            supervisor.wait(PATIENCE_S)

            assert wait_until(lambda: gone([worker, grandchild]), PATIENCE_S)
            assert alive(forked), "it would prove nothing if it were gone"
        finally:
            os.kill(forked, signal.SIGKILL)


def test_a_fork_leaves_the_parents_workers_alone() -> None:
    with Driver() as driver:
        child = os.fork()
        if child == 0:
            os._exit(any(map(is_open, [driver.worker.pidfd, driver.channel.stream_fd])))
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0, "the child holds nothing of the worker"
        assert driver.result(tasks.add, 1, 2) == 3


def test_forks_wait_for_births_and_births_for_forks() -> None:
    """A fork amid a birth would inherit the switch before anybody knows of it."""
    birth._close_in_forks()
    forked = threading.Event()

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        forked.set()

    with birth._BIRTH:
        thread = threading.Thread(target=fork)
        thread.start()
        assert not forked.wait(0.1)
    assert forked.wait(PATIENCE_S)
    thread.join()


def test_where_the_kernel_cannot_a_thread_watches() -> None:
    program = (
        "import os, sys, time\n"
        "from procq.engine.local import worker\n"
        "import fcntl; del fcntl.F_SETSIG\n"
        "worker.arm(int(sys.argv[1]))\n"
        "print('armed', flush=True)\n"
        "time.sleep(60)\n"
    )
    end, switch = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(end)],
        stdout=subprocess.PIPE, pass_fds=[end], start_new_session=True, text=True,
    ) as process:  # fmt: skip
        os.close(end)
        assert process.stdout is not None
        assert process.stdout.readline() == "armed\n"
        assert process.poll() is None

        os.close(switch)

        assert process.wait(PATIENCE_S) == -signal.SIGKILL


# --- closed standard streams ---


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_with_standard_streams_closed_workers_work(closed: tuple[int, ...], tmp_path: Path) -> None:
    """As under a daemon or a graphical program, where `sys.stdout` is None."""
    file = tmp_path / "result"
    program = (
        "import os, sys\n"
        "from tests.support import tasks\n"
        "from tests.support.driver import Driver\n"
        "with Driver() as driver:\n"
        "    driver.run(tasks.shout, 'into the void')\n"
        f"    tasks.say({str(file)!r}, str(driver.result(tasks.add, 1, 2)))\n"
    )
    opener = "import os, sys\n" + "".join(f"os.close({fd})\n" for fd in closed)
    opener += f"os.execv(sys.executable, [sys.executable, '-c', {program!r}])\n"

    subprocess.run([sys.executable, "-c", opener], check=False, timeout=PATIENCE_S, capture_output=True)

    assert first_line(file) == "3"


def test_hello_of_any_size_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    path = [*sys.path, *(f"/nowhere/{number}" for number in range(10_000))]
    monkeypatch.setattr(sys, "path", path)
    with Driver(await_ready=False) as driver:
        assert isinstance(driver.message(), wire.Ready)
        found = driver.result(tasks.surroundings)

    assert isinstance(found, dict)
    assert found["path"] == path
