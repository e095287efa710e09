"""How workers start and where they live, and what an idle or long-lived queue uses (D11, H, B3; PAIN H23-H36)."""

import contextlib
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import no_leaks, open_descriptors, wait_until  # noqa: F401 - a fixture
from tests.support.looking import (
    PATIENCE_S,
    check_invariants,
    engine_of,
    pids,
    run_file,
    run_script,
    script_environment,
    states,
    wait_idle,
)
from tests.support.process_tasks import Gate

from procq import Queue, Status, task
from procq.engine.local import engine
from procq.errors import InternalError, QueueFullError, WorkerStartError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


# --- an idle queue ---


def test_B3_an_idle_queue_does_not_wake_and_uses_no_cpu() -> None:
    with Queue(workers=2) as queue:
        for handle in [queue.submit(tasks.sleep, 0.01) for _ in range(4)]:
            handle.result(PATIENCE_S)
        later = queue.submit(task(tasks.nothing, delay=3600).spec())
        wait_idle(queue, 2)
        turns, cpu_s = engine_of(queue).turns, cpu_seconds(queue)
        threading.Event().wait(2)  # nothing shall happen, and nothing tells so

        assert engine_of(queue).turns == turns
        assert cpu_seconds(queue) - cpu_s < 0.05
        later.cancel()


def cpu_seconds(queue: Queue) -> float:
    """Return the CPU time that the workers and the supervisor's thread have used so far."""
    import psutil  # noqa: PLC0415 - for this test alone

    workers = sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids(queue))
    (loop_thread,) = (thread for thread in threading.enumerate() if thread.name == "procq-supervisor")
    threads = {thread.id: thread for thread in psutil.Process().threads()}
    ours = threads[loop_thread.native_id or 0]
    return float(workers + ours.user_time + ours.system_time)


def test_B3_waiting_uses_no_turns_either(tmp_path: Path) -> None:
    """While a long task runs and callers wait for it."""
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        handle = queue.submit(task(tasks.pass_gate, timeout=600).spec(gate.path))
        gate.wait_begun()
        queue.submit(tasks.nothing)
        threads = [threading.Thread(target=handle.wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        threading.Event().wait(0.1)
        turns = engine_of(queue).turns
        threading.Event().wait(0.5)
        assert engine_of(queue).turns == turns
        gate.open()
        for thread in threads:
            thread.join(PATIENCE_S)


# --- starting ---


def test_H2_workers_start_when_there_is_work_for_them_and_stay() -> None:
    with Queue(workers=3) as queue:
        assert states(queue) == {}
        queue.submit(tasks.nothing).result(PATIENCE_S)
        wait_idle(queue, 1)
        for _ in range(20):
            queue.submit(tasks.nothing).result(PATIENCE_S)
        assert len(pids(queue)) == 1
        before = pids(queue)
        for handle in [queue.submit(tasks.sleep, 0.05) for _ in range(3)]:
            handle.result(PATIENCE_S)
        assert len(pids(queue)) == 3
        assert before < pids(queue)


def test_H2_a_worker_imports_neither_cloudpickle_nor_psutil_nor_the_queue() -> None:
    with Queue(workers=1) as queue:
        found = set(queue.submit(tasks.modules).result(PATIENCE_S))

    assert not found & {"cloudpickle", "psutil", "procq.queue", "procq.supervisor", "multiprocessing", "logging"}
    assert "__main__" in found


def test_H3_the_initializer_runs_once_in_each_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Queue(workers=2, initializer=tasks.say_pid, initargs=(str(log),)) as queue:
        for handle in [queue.submit(tasks.sleep, 0.02) for _ in range(8)]:
            handle.result(PATIENCE_S)
        wait_idle(queue, 2)
        assert sorted(map(int, lines(log))) == sorted(pids(queue))


def test_H3_a_big_initializer_arrives_whole() -> None:
    with Queue(workers=2, initializer=tasks.remember, initargs=(bytes(3_000_000),)) as queue:
        assert [queue.submit(tasks.remembered).result(PATIENCE_S) for _ in range(3)] == [3_000_000] * 3


def test_D11_an_initializer_that_raises_ends_what_waits_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    with Queue(workers=2, initializer=tasks.say_and_fail, initargs=(str(log), "no-database")) as queue:
        handles = [queue.submit(tasks.nothing) for _ in range(5)]
        delayed = queue.submit(task(tasks.nothing, delay=3600).spec())
        dependent = queue.submit(tasks.echo, handles[0])
        anyway = queue.submit(task(tasks.nothing, depends_on=[handles[0]], run_if="done").spec())
        for handle in (*handles, delayed, anyway):
            error = handle.exception(PATIENCE_S)
            assert isinstance(error, WorkerStartError)
            assert "ValueError: no-database" in str(error)
            assert "in say_and_fail" in str(error), "the traceback is told"
            assert handle.status is Status.FAILED
        dependent.wait(PATIENCE_S)
        assert dependent.status is Status.CANCELLED
        with pytest.raises(WorkerStartError, match="no-database"):
            queue.submit(tasks.nothing)
        assert wait_until(lambda: states(queue) == {}, PATIENCE_S)
        assert 3 <= len(lines(log)) <= 6, "restarts are limited"
        check_invariants(queue)
    assert "workers cannot start" in caplog.text


def test_D11_an_initializer_that_takes_too_long() -> None:
    with Queue(workers=1, initializer=tasks.sleep, initargs=(60,), start_timeout=0.1) as queue:
        error = queue.submit(tasks.nothing).exception(PATIENCE_S)

        assert isinstance(error, WorkerStartError)
        assert "not ready within start_timeout=0.1 s" in str(error)


@pytest.mark.parametrize(
    ("initializer", "argument", "text"),
    [
        (tasks.exit_at_once, 4, "exited with code 4 before it was ready"),
        (tasks.die_by, int(signal.SIGSEGV), "was killed by SIGSEGV before it was ready"),
        (tasks.exit_call, "bye", "SystemExit: bye"),
    ],
)
def test_D11_an_initializer_that_takes_the_worker_down(initializer: object, argument: object, text: str) -> None:
    with Queue(workers=2, initializer=initializer, initargs=(argument,)) as queue:  # type: ignore[arg-type]
        error = queue.submit(tasks.nothing).exception(PATIENCE_S)

        assert isinstance(error, WorkerStartError)
        assert text in str(error)


def test_D11_a_start_that_fails_now_and_then_does_no_harm(tmp_path: Path) -> None:
    """Two failures, a success: that is chance, and not counted against later ones."""
    counter = tmp_path / "counter"
    with Queue(workers=1, initializer=tasks.fail_two_of_three, initargs=(str(counter),)) as queue:
        for _ in range(3):
            pid = queue.submit(tasks.pid).result(PATIENCE_S)
            os.kill(pid, signal.SIGKILL)
            assert wait_until(lambda: pid not in pids(queue), PATIENCE_S)  # noqa: B023 - used at once
        assert len(lines(counter)) >= 7


def test_D11_submits_that_wait_for_room_are_released_when_workers_cannot_start() -> None:
    with Queue(workers=1, initializer=tasks.sleep_and_fail, initargs=(0.1,), max_pending=1) as queue:
        queue.submit(tasks.nothing)
        with pytest.raises(WorkerStartError):
            queue.submit(tasks.nothing)


def test_D11_without_an_interpreter_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may wait for ever, although no worker ever was and so none dies."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.nothing)
        error = handle.exception(PATIENCE_S)

    assert isinstance(error, WorkerStartError)
    assert "/nowhere/python" in str(error)


# --- descriptors ---


@contextlib.contextmanager
def descriptors_left(number: int) -> Iterator[None]:
    """Leave this process so many descriptors to open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(number) for number, _ in open_descriptors())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + number, before[1]))
    occupied = []
    try:
        with contextlib.suppress(OSError):
            while True:
                occupied.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(number):
            os.close(occupied.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in occupied:
            os.close(fd)


def test_H24_forty_queues_in_turn_under_a_tight_limit() -> None:
    done = run_script(
        """
        import gc, os, resource
        from procq import Queue
        from tests.support import process_tasks as tasks
        gc.disable()
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
        counts = set()
        for number in range(40):
            with Queue(workers=1) as queue:
                [handle.result() for handle in [queue.submit(tasks.nothing) for _ in range(4)]]
            counts.add(len(os.listdir("/proc/self/fd")))
        print(len(counts))
        """,
        timeout_s=50,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


@pytest.mark.slow
def test_H24_fifty_killed_workers_leave_nothing_open() -> None:
    with Queue(workers=2) as queue:
        for handle in [queue.submit(tasks.sleep, 0.01) for _ in range(4)]:
            handle.result(PATIENCE_S)
        wait_idle(queue, 2)
        before = len(open_descriptors())
        victims = [queue.submit(tasks.exit_at_once, 1) for _ in range(50)]
        for victim in victims:
            victim.wait(PATIENCE_S)
        wait_idle(queue, 2)

        assert len(open_descriptors()) == before


def test_H24_with_too_few_descriptors_fewer_workers_do_the_work() -> None:
    with Queue(workers=8) as queue:
        queue.submit(tasks.nothing).result(PATIENCE_S)
        with descriptors_left(14):
            handles = [queue.submit(tasks.sleep, 0.005, number) for number in range(40)]
            assert [handle.result(PATIENCE_S) for handle in handles] == list(range(40))
            assert 1 <= len(pids(queue)) < 8


def test_H24_without_descriptors_an_attempt_is_stopped_all_the_same(tmp_path: Path) -> None:
    """What a worker started is looked up in /proc, which takes a descriptor."""
    gate = Gate(tmp_path)
    with Queue(workers=1, kill_grace=0.1) as queue:
        handle = queue.submit(tasks.ignore_sigterm, gate.path)
        gate.wait_begun()
        with descriptors_left(0):
            handle.cancel()
            handle.wait(PATIENCE_S)
        assert handle.status is Status.CANCELLED
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_H24_without_descriptors_for_any_worker_the_work_ends_with_a_clear_error() -> None:
    with Queue(workers=1) as queue:
        with descriptors_left(2):
            error = queue.submit(tasks.nothing).exception(PATIENCE_S)

        assert isinstance(error, WorkerStartError)
        assert "Too many open files" in str(error)


def test_a_queue_that_cannot_be_started_says_so_and_can_be_started_later() -> None:
    queue = Queue(workers=1)
    handle = queue.submit(tasks.echo, 1)
    for number in range(2):
        with descriptors_left(number), pytest.raises(WorkerStartError, match="Too many open files"):
            queue.start()
    with queue:
        assert handle.result(PATIENCE_S) == 1


def test_G3_a_queue_that_is_never_started_holds_no_descriptor() -> None:
    before = open_descriptors()
    queue = Queue(workers=1)
    queue.submit(tasks.nothing)
    assert open_descriptors() == before
    queue.shutdown()


def test_H31_many_open_descriptors_are_no_obstacle() -> None:
    """Numbers beyond 1,024 are too much for select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2000:
        pytest.skip("the system allows too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2000), hard))
    occupied = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with Queue(workers=2) as queue:
            assert [queue.submit(tasks.echo, number).result(PATIENCE_S) for number in range(4)] == list(range(4))
    finally:
        for fd in occupied:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- main programs ---


def test_H25_a_script_without_a_guard_works_and_starts_no_storm(tmp_path: Path) -> None:
    done = run_file(
        tmp_path / "script.py",
        """
        import sys
        from procq import Queue

        with open(sys.argv[1], "a") as file:
            print("imported", file=file)

        class Box:
            def __init__(self, value):
                self.value = value

        class OwnError(Exception):
            pass

        def work(box, factor=FACTOR if "FACTOR" in globals() else 2):
            if box.value < 0:
                raise OwnError(box.value)
            return Box(box.value * factor)

        with Queue(workers=2) as queue:
            print([queue.submit(work, Box(number)).result().value for number in range(5)])
            try:
                queue.submit(work, Box(-1)).result()
            except OwnError as error:
                print("caught", error)
        """,
        tmp_path / "log",
    )

    assert done.stdout == "[0, 2, 4, 6, 8]\ncaught -1\n"
    assert done.stderr == ""
    assert lines(tmp_path / "log") == ["imported"], "workers do not run the script again"


def test_H26_functions_of_a_command_line_program_and_their_redefinition() -> None:
    done = run_script("""
        from procq import Queue
        with Queue(workers=1) as queue:
            def work(number): return number + 1
            class Mine(Exception): pass
            print(queue.submit(work, 1).result())
            def work(number): return number + 100
            print(queue.submit(work, 1).result())
            def fail(): raise Mine("kaputt")
            try:
                queue.submit(fail).result()
            except Mine as error:
                print(repr(error))
            print(queue.submit(lambda: work(2)).result())
    """)
    assert (done.stdout, done.stderr) == ("2\n101\nMine('kaputt')\n102\n", "")


def test_H26_in_an_interactive_session() -> None:
    import subprocess  # noqa: PLC0415 - for this alone

    session = (
        "from procq import Queue\n"
        "queue = Queue(workers=1).start()\n"
        "def work(number): return number * 2\n\n"
        "print('result', queue.submit(work, 4).result())\n"
        "def work(number): return number * 3\n\n"
        "print('result', queue.submit(work, 4).result())\n"
        "queue.shutdown()\n"
    )
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        check=False, input=session, capture_output=True, text=True, timeout=PATIENCE_S, env=script_environment(),
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if "result" in line] == ["result 8", "result 12"]
    assert "Traceback" not in done.stderr


# --- surroundings ---


STREAMS = {
    "closed": "import os; os.close(1); os.close(2)",
    "closed with stdin": "import os; os.close(0); os.close(1); os.close(2)",
    "None": "import sys; sys.stdout = sys.stderr = sys.stdin = None",
    "closed objects": "import sys; sys.stdout.close(); sys.stderr.close()",
}


@pytest.mark.parametrize("streams", STREAMS)
def test_H29_without_standard_streams(streams: str, tmp_path: Path) -> None:
    run_file(
        tmp_path / "script.py",
        f"""
        import sys
        {STREAMS[streams]}
        from procq import Queue
        from tests.support import process_tasks as tasks
        with Queue(workers=2) as queue:
            handles = [queue.submit(tasks.shout, f"word {{number}}") for number in range(10)]
            tasks.say(sys.argv[1], [handle.result(10) for handle in handles])
        """,
        tmp_path / "log",
    )
    assert lines(tmp_path / "log") == [str([f"word {number}" for number in range(10)])]


def test_H29_a_task_that_reads_standard_input_sees_its_end_and_takes_nothing() -> None:
    import subprocess  # noqa: PLC0415 - for this alone

    program = (
        "import sys\n"
        "from procq import Queue\n"
        "from tests.support import process_tasks as tasks\n"
        "with Queue(workers=1) as queue:\n"
        "    print(repr(queue.submit(tasks.read_stdin).result(10)), repr(sys.stdin.read()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False, input="for the script", capture_output=True, text=True, timeout=PATIENCE_S,
        env=script_environment(),
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("'' 'for the script'\n", "")


def test_H30_what_is_printed_without_a_newline_appears() -> None:
    done = run_script("""
        from procq import Queue
        from tests.support import process_tasks as tasks
        with Queue(workers=1) as queue:
            queue.submit(tasks.print_without_newline, "no newline")
    """)
    assert done.stdout == "no newline"


def test_H4_path_directory_environment_and_signals_are_those_of_the_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "procq_test_module.py").write_text("def answer(): return 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PROCQ_TEST_VARIABLE", "mine")
    import procq_test_module  # type: ignore[import-not-found]  # noqa: PLC0415 - written just now

    with Queue(workers=1) as queue:
        assert queue.submit(procq_test_module.answer).result(PATIENCE_S) == 42
        assert queue.submit(tasks.surroundings, "PROCQ_TEST_VARIABLE").result(PATIENCE_S) == {
            "cwd": str(tmp_path),
            "variable": "mine",
            "leads its session": True,
            "ignores SIGINT": True,
        }
    sys.modules.pop("procq_test_module")


def test_H4_the_environment_may_change_while_workers_start() -> None:
    """Another thread sets and deletes variables, which may break off a copy of them all."""
    done = run_script("""
        import os, sys, threading
        from procq import Queue
        from tests.support import process_tasks as tasks

        stop = threading.Event()

        def change():
            while not stop.is_set():
                for number in range(20):
                    os.environ[f"PROCQ_TEST_{number}"] = "1"
                for number in range(20):
                    del os.environ[f"PROCQ_TEST_{number}"]

        sys.setswitchinterval(1e-6)
        changer = threading.Thread(target=change)
        changer.start()
        with Queue(workers=2, max_tasks_per_worker=1) as queue:
            for handle in [queue.submit(tasks.nothing) for _ in range(20)]:
                handle.wait(10)
        stop.set()
        changer.join()
        print("done")
    """)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_H32_random_numbers_differ_between_workers_and_after_a_respawn() -> None:
    with Queue(workers=2) as queue:
        drawn = [queue.submit(tasks.draw_slowly).result(PATIENCE_S) for _ in range(4)]
        for _ in range(2):
            queue.submit(tasks.exit_at_once, 1).wait(PATIENCE_S)
            drawn.append(queue.submit(tasks.draw_slowly).result(PATIENCE_S))
    assert len(set(drawn)) == len(drawn)


def test_H32_a_fresh_process_for_each_task_is_to_be_had() -> None:
    with Queue(workers=2, max_tasks_per_worker=1) as queue:
        used = [handle.result(PATIENCE_S) for handle in [queue.submit(tasks.pid) for _ in range(8)]]
    assert len(set(used)) == 8


def test_H05_recycled_workers_end_in_good_order() -> None:
    with Queue(workers=1, max_tasks_per_worker=2) as queue:
        handles = [queue.submit(tasks.pid) for _ in range(11)]
        used = [handle.result(PATIENCE_S) for handle in handles]
        assert len(set(used)) == 6
        assert {len(handle.history) for handle in handles} == {1}
        assert queue.stats().retries == 0


def test_H1_resize_up_and_down_under_load() -> None:
    with Queue(workers=1) as queue:
        handles = [queue.submit(tasks.sleep, 0.005, number) for number in range(200)]
        handles[10].wait(PATIENCE_S)
        queue.resize(3)
        handles[60].wait(PATIENCE_S)
        assert len(pids(queue)) == 3
        queue.resize(1)
        assert [handle.result(PATIENCE_S) for handle in handles] == list(range(200))
        assert wait_until(lambda: states(queue) == {"idle": 1}, PATIENCE_S)
        assert {len(handle.history) for handle in handles} == {1}
        queue.resize(2)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_H1_amid_a_long_backlog_of_brief_tasks_those_too_many_leave_too() -> None:
    """None of them is ever without a task ahead, unless somebody sees to that."""
    queue = Queue(workers=2).start()
    handles = [queue.submit(tasks.sleep, 0.002) for _ in range(2000)]
    handles[200].wait(PATIENCE_S)
    assert len(pids(queue)) == 2
    queue.resize(1)
    handles[300].wait(PATIENCE_S)
    workers, done = len(pids(queue)), handles[-1].done()
    queue.shutdown(mode="kill")
    assert (workers, done) == (1, False)


# --- processes within tasks ---


def test_H28_a_pool_of_the_standard_library_within_a_task() -> None:
    with Queue(workers=1) as queue:
        assert queue.submit(tasks.sum_in_pool, [1, 2, 3]).result(PATIENCE_S) == 14


def test_H28_a_queue_within_a_task() -> None:
    with Queue(workers=1) as queue:
        assert queue.submit(tasks.sum_in_queue, [1, 2, 3]).result(PATIENCE_S) == 6


def test_H28_inner_processes_die_with_the_task(tmp_path: Path) -> None:
    from tests.support.leaks import gone  # noqa: PLC0415 - for this alone

    gate = Gate(tmp_path)
    with Queue(workers=1, kill_grace=0.2) as queue:
        handle = queue.submit(tasks.hold_inner_processes, gate.path)
        gate.wait_begun()
        inner = tasks.family(gate.path)
        assert len(inner) == 3
        handle.cancel()
        handle.wait(PATIENCE_S)
        assert wait_until(lambda: gone(inner))


# --- forks of the supervisor's process ---


def test_C7_in_a_forked_child_every_call_is_refused_and_the_parent_goes_on() -> None:
    done = run_script("""
        import os, warnings
        from procq import Queue
        from procq.errors import QueueClosedError
        from tests.support import process_tasks as tasks
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on, of forks beside threads
        with Queue(workers=2) as queue:
            busy = queue.submit(tasks.sleep, 0.3, "busy")
            done = queue.submit(tasks.echo, "done")
            done.wait()
            queue._supervisor.lock.acquire()  # by a thread that is not there in the child
            child = os.fork()
            if child == 0:
                status = 0
                calls = {
                    "submit": lambda: queue.submit(tasks.nothing), "cancel": busy.cancel, "wait": busy.wait,
                    "stats": queue.stats, "pause": queue.pause, "callback": lambda: busy.add_done_callback(print),
                }
                for name, call in calls.items():
                    try:
                        call()
                    except QueueClosedError as error:
                        assert "forked child" in str(error)
                    else:
                        print(name, "was not refused", flush=True)
                        status = 1
                assert done.result() == "done", "what was there before may be read"
                queue.shutdown()
                del queue, busy, done
                os._exit(status)
            queue._supervisor.lock.release()
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(busy.result(), queue.submit(tasks.echo, "on").result())
    """)
    assert (done.stdout, done.stderr) == ("0\nbusy on\n", "")


def test_C7_a_forked_child_may_end_as_it_likes_and_have_a_queue_of_its_own() -> None:
    done = run_script("""
        import os, sys, warnings
        from procq import Queue
        from tests.support import process_tasks as tasks
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on, of forks beside threads
        queue = Queue(workers=1).start()
        pid = queue.submit(tasks.pid).result()
        child = os.fork()
        if child == 0:
            with Queue(workers=1) as own:
                print(own.submit(tasks.echo, "own").result(), flush=True)
            sys.exit(0)  # with exit hooks and all
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(queue.submit(tasks.pid).result() == pid)
        queue.shutdown()
    """)
    assert (done.stdout, done.stderr) == ("own\n0\nTrue\n", "")


# --- many tasks, much memory ---


@pytest.mark.slow
def test_H34_a_hundred_thousand_tasks() -> None:
    with Queue(workers=2) as queue:
        handles = []
        instants = []
        for _ in range(100_000):
            handles.append(queue.submit(tasks.nothing))
            instants.append(time.monotonic())
        for handle in handles:
            handle.wait(PATIENCE_S)
        assert all(handle.ok for handle in handles)
        first, last = instants[1000] - instants[0], instants[-1] - instants[-1001]
        assert last < 10 * first + 1, "submitting does not get slower with the number"
        check_invariants(queue)
        del handles
        queue.submit(tasks.nothing).result(PATIENCE_S)
        assert len(queue._supervisor.scheduler.tasks) < 10


def test_H36_memory_of_results_that_were_read_and_dropped_is_given_back() -> None:
    done = run_script(
        """
        import resource
        from procq import Queue
        from tests.support import process_tasks as tasks

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        with Queue(workers=2) as queue:
            for result in queue.map(tasks.big, [2_000_000] * 10):
                assert len(result) == 2_000_000
            del result
            before = peak()
            for result in queue.map(tasks.big, [2_000_000] * 150):
                assert len(result) == 2_000_000
            print(peak() - before)
        """,
        timeout_s=50,
    )
    assert done.stderr == ""
    assert int(done.stdout) < 60, "150 results of 2 MB"


def test_H36_a_dropped_handle_lets_go_of_its_result_without_further_events() -> None:
    with Queue(workers=1) as queue:
        handles = [queue.submit(tasks.big, 100_000) for _ in range(20)]
        for handle in handles:
            handle.wait(PATIENCE_S)
        wait_idle(queue, 1)
        del handle, handles
        assert len(queue._supervisor.scheduler.tasks) == 0


# --- bugs of our own ---


def test_a_bug_in_the_supervisor_ends_everything_loudly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    caplog.set_level(logging.CRITICAL)
    queue = Queue(workers=1, max_pending=1).start()
    handle = queue.submit(tasks.announced_sleep, gate.path)
    gate.wait_begun()
    queue.submit(tasks.nothing)
    errors: list[BaseException] = []
    threads = [
        threading.Thread(target=keep_error, args=(call, errors))
        for call in (handle.result, lambda: queue.submit(tasks.nothing))
    ]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: len(queue._supervisor.room.turns) == 1, PATIENCE_S)
    assert wait_until(lambda: bool(handle._task.listeners), PATIENCE_S)

    monkeypatch.setattr(engine.LocalEngine, "_plan", lambda *_: 1 / 0)
    engine_of(queue).alarm()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert [type(error) for error in errors] == [InternalError, InternalError]
    assert isinstance(errors[0].__cause__, ZeroDivisionError)
    assert "please report this" in caplog.text
    for call in (handle.result, handle.cancel, lambda: queue.submit(tasks.nothing), queue.pause):
        with pytest.raises(InternalError):
            call()
    queue.shutdown()
    queue.shutdown(0, mode="kill")


def keep_error(call: object, errors: list[BaseException]) -> None:
    try:
        call()  # type: ignore[operator]  # a function
    except (InternalError, QueueFullError) as error:
        errors.append(error)
