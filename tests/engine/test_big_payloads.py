"""Payloads of every size, both ways, and what else goes on meanwhile (contract I1, C6; PAIN H10-H12)."""

import threading
import time
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, run_script, wait_idle
from tests.support.process_tasks import Gate

from procq import Handle, Queue, task
from procq.engine.local import wire
from procq.errors import QueueFullError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

KIB = 1024
MIB = 1024 * 1024


def pattern(size: int) -> bytes:
    """Return bytes that look different everywhere."""
    return (b"%08x" * 4096 % tuple(range(4096)) * (size // (8 * 4096) + 1))[:size]


@pytest.mark.parametrize(
    "size", [0, 1, 64 * KIB - 200, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, MIB - 1, MIB, 5 * MIB + 17]
)
def test_H10_a_payload_comes_back_byte_by_byte(size: int) -> None:
    data = pattern(size)
    with Queue(workers=1) as queue:
        handles = [queue.submit(tasks.echo, data), queue.submit(tasks.reverse, data)]
        assert handles[0].result(PATIENCE_S) == data
        assert handles[1].result(PATIENCE_S) == data[::-1]


def test_H10_every_size_around_the_limit_of_a_packet() -> None:
    """Where the frame begins to travel in another way, each size once."""
    with Queue(workers=1) as queue:
        sizes = range(wire.PACKET_MAX - 160, wire.PACKET_MAX + 20)
        handles = [(size, queue.submit(tasks.echo, pattern(size))) for size in sizes]
        for size, handle in handles:
            assert handle.result(PATIENCE_S) == pattern(size)


@pytest.mark.slow
def test_H10_a_hundred_mebibytes_hold_up_no_tiny_task_on_another_worker() -> None:
    data = pattern(100 * MIB)
    with Queue(workers=2) as queue:
        for handle in [queue.submit(tasks.sleep, 0.01) for _ in range(4)]:
            handle.result(PATIENCE_S)
        wait_idle(queue, 2)
        big = queue.submit(tasks.echo, data)
        longest, tiny = 0.0, 0
        while not big.done():
            before = time.monotonic()
            assert queue.submit(tasks.echo, tiny).result(PATIENCE_S) == tiny
            longest = max(longest, time.monotonic() - before)
            tiny += 1
        assert tiny > 5
        assert longest < 1, "a safety bound; on a quiet machine it is some milliseconds"
        assert big.result(PATIENCE_S) == data


def test_big_and_tiny_ones_in_a_row_on_one_worker() -> None:
    sizes = [10, 100_000, 20, 3_000_000, 70_000, 5, 65_000, 1_000_000] * 5
    with Queue(workers=1) as queue:
        handles = [queue.submit(tasks.echo, pattern(size)) for size in sizes]
        for size, handle in zip(sizes, handles, strict=True):
            assert handle.result(PATIENCE_S) == pattern(size)
        check_invariants(queue)


def test_E2_big_results_are_handed_on_as_arguments() -> None:
    with Queue(workers=2) as queue:
        first = queue.submit(tasks.big, 2_000_000)
        second = queue.submit(tasks.big, 30)
        joined = queue.submit(tasks.join, [first.out, second.out, first.out])
        assert len(joined.result(PATIENCE_S)) == 4_000_030
        deep = first
        for _ in range(10):
            deep = queue.submit(tasks.reverse, deep.out)
        assert deep.result(PATIENCE_S) == b"x" * 2_000_000


def test_a_big_error_comes_back_too() -> None:
    with Queue(workers=1) as queue:
        error = queue.submit(tasks.fail_with, bytes(3_000_000)).exception(PATIENCE_S)

    assert isinstance(error, ValueError)
    assert error.args == (bytes(3_000_000),)


def test_many_workers_send_big_results_at_once() -> None:
    with Queue(workers=4) as queue:
        handles = [queue.submit(tasks.big, 4_000_000 + number) for number in range(16)]
        for number, handle in enumerate(handles):
            assert len(handle.result(PATIENCE_S)) == 4_000_000 + number
        check_invariants(queue)


def test_H12_what_waits_is_bounded_by_its_bytes(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    data = bytes(MIB)
    with Queue(workers=1, max_pending_bytes=10 * MIB + 100_000) as queue:
        queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        handles = [queue.submit(tasks.length, data) for _ in range(10)]
        length = task(tasks.length)
        with pytest.raises(QueueFullError, match="max_pending_bytes"):
            queue.submit(length.spec(data), block=False)
        with pytest.raises(QueueFullError, match=r"no room came within 0\.05 s"):
            queue.submit(length.spec(data), timeout=0.05)
        more: list[Handle[int]] = []
        blocked = threading.Thread(target=lambda: more.extend(queue.submit(tasks.length, data) for _ in range(20)))
        blocked.start()
        gate.open()
        blocked.join(PATIENCE_S)
        assert not blocked.is_alive()
        assert [handle.result(PATIENCE_S) for handle in (*handles, *more)] == [MIB] * 30


def test_what_the_task_was_given_may_be_changed_by_it_and_is_the_same_again_in_a_retry(tmp_path: Path) -> None:
    changing = task(tasks.change_and_fail_first, max_attempts=2, backoff=0)
    with Queue(workers=1) as queue:
        handle = queue.submit(changing.spec(str(tmp_path / "log"), bytearray(200_000)))
        assert handle.result(PATIENCE_S) == (200_000, 0)
        assert handle.attempts == 2


@pytest.mark.slow
def test_a_result_that_does_not_fit_into_memory_fails_its_attempt_alone() -> None:
    done = run_script("""
        import resource
        from procq import Queue
        from tests.support import process_tasks as tasks

        with Queue(workers=1) as queue:
            queue.submit(tasks.nothing).result()
            with open("/proc/self/statm") as file:
                used = int(file.read().split()[0]) * resource.getpagesize()
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, hard))  # ours: the worker has none
            print(queue.submit(tasks.big, 250_000_000).exception(30))
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            print(queue.submit(tasks.echo, "next").result(30))
    """)
    error, following = done.stdout.splitlines()
    assert "does not fit into the memory that is left" in error
    assert following == "next"
