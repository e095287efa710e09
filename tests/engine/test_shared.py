"""Shared memory and the processes that read it: it goes when its users go, whatever ends them (contract I2, I3)."""

import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.support import arrays, process_tasks as tasks, sharing_tasks
from tests.support.arrays import Array, array
from tests.support.interrupting import Interrupter, first_calls
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of, pids, run_script
from tests.support.process_tasks import Gate
from tests.support.sharing_tasks import FEW

import procq
from procq import Queue
from procq.engine.local import lending
from procq.errors import WorkerCrashed

#: Packets of the smallest size: a pipe of default size holds some 270.
MORE_THAN_A_PIPE_HOLDS = 300

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


def mappings(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("procq-shared")


def maps_shared(pid: int) -> bool:
    return mappings(pid) > 0


def test_I2_workers_keep_it_while_it_is_referred_to_and_let_go_then() -> None:
    before = mappings(os.getpid())
    with Queue(workers=2) as queue:
        shared = procq.share(array(300_000))
        for _ in range(20):
            queue.submit(arrays.ends, shared.out).result(PATIENCE_S)
        assert any(map(maps_shared, pids(queue)))
        assert mappings(os.getpid()) == before, "nobody asked for its value here"

        del shared
        gc.collect()
        assert wait_until(lambda: not any(map(maps_shared, pids(queue))), PATIENCE_S)
        check_invariants(queue)


def test_I2_a_busy_worker_lets_go_when_it_can(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        shared = procq.share(array(300_000))
        queue.submit(arrays.ends, shared.out).result(PATIENCE_S)
        held = queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        del shared
        gc.collect()
        (pid,) = pids(queue)
        assert maps_shared(pid)
        gate.open()
        held.result(PATIENCE_S)
        assert wait_until(lambda: not maps_shared(pid), PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("one_by_one", [False, True])
def test_I2_a_worker_that_does_not_read_meanwhile_is_told_of_all_and_lives(
    *, one_by_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many go, together or one after the other, its pipe has room for its next task."""
    monkeypatch.setattr(lending, "KEYS_MAX", MORE_THAN_A_PIPE_HOLDS // 3)  # what is left is told when it answers
    many = [procq.share(number) for number in range(MORE_THAN_A_PIPE_HOLDS)]
    with Queue(workers=1) as queue:
        for start in range(0, len(many), 50):
            assert queue.submit(sharing_tasks.count, *many[start : start + 50]).result(PATIENCE_S) == min(
                50, len(many) - start
            )
        (pid,) = pids(queue)
        assert mappings(pid) == len(many)
        (worker,) = engine_of(queue)._workers.values()
        os.kill(pid, signal.SIGSTOP)
        assert wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, PATIENCE_S)
        while many:
            del many[-1 if one_by_one else 0 :]
            assert wait_until(lambda: len(worker.shares) == len(many), PATIENCE_S)
        handle = queue.submit(tasks.pid)
        os.kill(pid, signal.SIGCONT)

        assert handle.result(PATIENCE_S) == pid
        assert wait_until(lambda: not maps_shared(pid), PATIENCE_S)
        with queue._supervisor.lock:  # the worker may have let go before whoever told it has taken note
            assert not worker.outdated
        check_invariants(queue)


def test_I2_a_worker_with_few_descriptors_reads_more_objects_than_those() -> None:
    """Each mapping took one, for as long as its object was referred to; the tasks' own files had none left."""
    many = [procq.share(Array(bytes([number]) * 100_000)) for number in range(2 * FEW)]
    with Queue(workers=1, initializer=sharing_tasks.allow_few_descriptors) as queue:
        for _ in range(2):
            ends = [queue.submit(sharing_tasks.ends_and_descriptors, shared.out).result(PATIENCE_S) for shared in many]
            assert [first for (_, first, _), _ in ends] == list(range(2 * FEW))
            assert max(descriptors for _, descriptors in ends) <= FEW // 2 + 10
        assert len(pids(queue)) == 1


def test_I2_a_task_that_reads_more_than_there_are_descriptors_fails_alone_and_says_so() -> None:
    many = [procq.share(Array(bytes([number]) * 100_000)) for number in range(2 * FEW)]
    with Queue(workers=1, initializer=sharing_tasks.allow_few_descriptors) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        handle = queue.submit(sharing_tasks.count, *many)
        if sys.version_info >= (3, 13):
            assert handle.result(PATIENCE_S) == len(many)
        else:
            error = handle.exception(PATIENCE_S)
            assert isinstance(error, procq.errors.RemoteError)
            assert "takes a descriptor: raise their limit (ulimit -n)" in str(error)
        assert queue.submit(sharing_tasks.count, *many[: FEW // 4]).result(PATIENCE_S) == FEW // 4
        assert pids(queue) == {pid}


def test_I2_a_new_worker_gets_it_too() -> None:
    shared = procq.share(array(300_000))
    with Queue(workers=1) as queue:
        for _ in range(3):
            assert queue.submit(arrays.ends, shared.out).result(PATIENCE_S)[0] == len(shared.value.view)
            (pid,) = pids(queue)
            os.kill(pid, signal.SIGKILL)


def test_I2_many_at_once_on_busy_workers() -> None:
    """Sent ahead like others, and each is asked for when its turn comes."""
    many = [procq.share(number) for number in range(50)]
    with Queue(workers=2) as queue:
        handles = [queue.submit(arrays.echo, shared) for _ in range(20) for shared in many]
        assert [handle.result(PATIENCE_S) for handle in handles] == list(range(50)) * 20
        del many
        gc.collect()
        check_invariants(queue)


def test_I2_shares_that_the_garbage_collector_finds_are_closed_without_a_warning() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for first in (True, False):
        for _ in range(10):
            shared = procq.share(b"abc")
            cycle: list[object] = [shared._block._file, shared] if first else [shared, shared._block._file]
            cycle.append(cycle)
        del shared, cycle
        gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@first_calls
def test_I2_ctrl_c_amid_share_leaves_nothing() -> None:
    """At any moment, and without a queue that would have it wait."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    number, done = 0, False
    while not done:
        interrupter = Interrupter(number, "procq.shared", handler=signal.default_int_handler)
        with suppress(KeyboardInterrupt), interrupter.watching():
            procq.share(array(70_000))
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) == before, f"at moment {number}"
        number, done = number + 1, not interrupter.done
    assert number > 20


def test_I2_a_nested_queue_shares_what_its_worker_was_given() -> None:
    shared = procq.share(array(300_000))
    with Queue(workers=1) as queue:
        assert queue.submit(sharing_tasks.share_again, shared.out).result(PATIENCE_S) == arrays.ends(array(300_000))


def test_H5_a_worker_that_asks_for_what_its_task_was_not_given_is_ended() -> None:
    shared = procq.share(array(300_000))
    with Queue(workers=1) as queue:
        queue.submit(arrays.ends, shared.out).result(PATIENCE_S)
        error = queue.submit(sharing_tasks.fetch, shared._block.key).exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert "shared memory that its task was not given" in str(error)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_I1_more_than_two_gib_go_there_and_come_back() -> None:
    """More than a signed number of 32 bits can say, which is what sockets and pickles of old trip over.

    One way after the other: that takes two thirds of the memory, and memory that is new costs seconds
    where the kernel has to get it from elsewhere.  In a program of its own, or so high a peak would be
    this process's for the rest of the session.
    """
    size = 2**31 + 12_345
    if (free := psutil.virtual_memory().available) < 3 * size:
        pytest.skip(f"needs 7 GB of memory, and {free} bytes are free")
    done = run_script(
        """
        import sys
        from procq import Queue
        from tests.support import arrays

        size = int(sys.argv[1])
        with Queue(workers=1, max_pending_bytes=None) as queue:
            print(*queue.submit(arrays.ends, arrays.huge(size)).result())
            print(*arrays.ends(queue.submit(arrays.huge, size).result()))
        """,
        size,
        timeout_s=150,
    )
    assert (done.stdout, done.stderr) == (f"{size} 7 9\n" * 2, "")
