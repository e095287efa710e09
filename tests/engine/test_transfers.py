"""Big payloads and results on their way: cancels, timeouts, stops and deaths amid them (contract I1; PAIN H10-H12).

Beside test_big_payloads.py, which has the sizes.
"""

import gc
import os
import random
import select
import signal
import threading
import time
from pathlib import Path
from typing import Final

import psutil
import pytest
from tests.support import process_tasks as tasks, surrounding_tasks
from tests.support.leaks import gone, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of, pids, wait_idle
from tests.support.process_tasks import Gate

from procq import Handle, Queue, Status, task
from procq.engine.local import patience
from procq.engine.local.roster import State
from procq.engine.local.wire import PACKET_MAX
from procq.errors import AttemptTimeout, TaskCancelled

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

KiB: Final = 1024
MiB: Final = 1024 * KiB


def noise(size: int, seed: int = 1) -> bytes:
    """Return bytes in which every part differs from every other."""
    return random.Random(seed).randbytes(size)


def wait_stuck(pid: int) -> None:
    """Wait until a worker sleeps: with the queue's lock held, that is in a pipe that nobody reads."""
    process = psutil.Process(pid)
    assert wait_until(lambda: process.status() == psutil.STATUS_SLEEPING)


# --- sizes ---


def test_H10_sizes_around_what_is_sent_ahead() -> None:
    data = noise(PACKET_MAX + 8)
    queue = Queue(workers=1)
    sizes = [*range(PACKET_MAX - 1024 - 200, PACKET_MAX - 1024 + 8), *range(PACKET_MAX - 200, PACKET_MAX + 8)]
    handles = [queue.submit(tasks.echo, data[:size]) for size in sizes for _ in range(2)]
    with queue:
        for number, handle in enumerate(handles):
            assert handle.result(PATIENCE_S) == data[: sizes[number // 2]]


# --- the queue's end amid a transfer ---


def submit_big(queue: Queue, gates: list[Gate], size: int) -> list[Handle[bytes]]:
    """Have big results made, and return when all are about to be sent."""
    handles = [queue.submit(tasks.announced_big, gate.path, size) for gate in gates]
    for gate in gates:
        gate.wait_begun()
    return handles


@pytest.mark.parametrize(("mode", "timeout_s"), [("drain", 0), ("drain", 0.05), ("finish", 0.02), ("kill", 0.1)])
def test_H11_shutdown_while_big_results_are_sent(mode: str, timeout_s: float, tmp_path: Path) -> None:
    gates = [Gate(tmp_path, str(number)) for number in range(4)]
    queue = Queue(workers=4).start()
    handles = submit_big(queue, gates, 50 * MiB)
    found = pids(queue)
    began = time.monotonic()

    report = queue.shutdown(timeout_s, mode=mode)  # type: ignore[arg-type]  # a text of the list above

    assert time.monotonic() - began < timeout_s + 2 + PATIENCE_S
    assert gone(found)
    assert all(handle.done() for handle in handles)
    assert report.succeeded + report.cancelled == 4
    for handle in handles:
        assert handle.status in {Status.SUCCEEDED, Status.CANCELLED}
        if handle.ok:
            assert handle.result() == b"x" * (50 * MiB)


def test_H11_cancel_all_while_big_results_are_sent(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, str(number)) for number in range(4)]
    with Queue(workers=4) as queue:
        handles = submit_big(queue, gates, 50 * MiB)
        later = [queue.submit(tasks.big, 5 * MiB) for _ in range(4)]
        answers = [handle.cancel() for handle in (*handles, *later)]

        for handle, answer in zip((*handles, *later), answers, strict=True):
            handle.wait(PATIENCE_S)
            assert handle.status in {Status.SUCCEEDED, Status.CANCELLED}
            assert answer != "cancelled" or handle.status is Status.CANCELLED
        check_invariants(queue)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


# --- stopped amid a transfer ---


def test_F3_cancel_at_any_moment_of_a_big_payload_and_its_result() -> None:
    data = noise(20 * MiB)
    with Queue(workers=2, kill_grace=0.2) as queue:
        for moment in range(12):
            neighbour = queue.submit(tasks.echo, "unharmed")
            handle = queue.submit(tasks.echo, data)
            for _ in range(moment * 5):  # some time passes
                queue.submit(tasks.nothing).result(PATIENCE_S)
            answer = handle.cancel()
            handle.wait(PATIENCE_S)

            if answer == "cancelled":
                assert handle.status is Status.CANCELLED
            if handle.ok:
                assert handle.result() == data
            else:
                assert isinstance(handle.error, TaskCancelled)
            assert neighbour.result(PATIENCE_S) == "unharmed"
            check_invariants(queue)


def test_F3_cancel_of_a_task_whose_worker_is_stopped_amid_the_payload() -> None:
    data = bytes(50 * MiB)
    with Queue(workers=2, kill_grace=0.1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        wait_idle(queue, 1)
        os.kill(pid, signal.SIGSTOP)
        handle = queue.submit(tasks.length, data)
        others = [queue.submit(tasks.echo, number) for number in range(10)]

        assert [other.result(PATIENCE_S) for other in others] == list(range(10))
        assert not handle.done()
        handle.cancel()
        handle.wait(PATIENCE_S)
        assert handle.status is Status.CANCELLED
        assert wait_until(lambda: gone([pid]))


def test_F3_cancel_of_a_task_whose_worker_is_stopped_amid_the_result(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2, kill_grace=0.1) as queue:
        handle = queue.submit(tasks.gated_big, gate.path, 100 * MiB)
        stop_amid_result(queue, gate)
        others = [queue.submit(tasks.echo, number) for number in range(10)]

        assert [other.result(PATIENCE_S) for other in others] == list(range(10))
        assert not handle.done()
        assert handle.cancel() == "stopping"
        handle.wait(PATIENCE_S)
        assert handle.status is Status.CANCELLED
        assert {other.attempts for other in others} == {1}


def stop_amid_result(queue: Queue, gate: Gate) -> int:
    """Stop a worker that has sent a part of its result."""
    pid = gate.wait_begun()
    (channel,) = (worker.channel for worker in engine_of(queue)._workers.values() if worker.pid == pid)
    with queue._supervisor.lock:  # so that nobody reads
        gate.open()
        assert select.select([channel.stream_fd], [], [], PATIENCE_S)[0]
        wait_stuck(pid)
        os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_worker_that_is_stopped_amid_its_result_and_continued_has_lost_nothing(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.gated_big, gate.path, 50 * MiB)
        pid = stop_amid_result(queue, gate)
        turns = engine_of(queue).turns
        threading.Event().wait(0.2)  # nothing shall happen, and nothing tells so
        assert engine_of(queue).turns - turns < 50
        os.kill(pid, signal.SIGCONT)

        assert handle.result(PATIENCE_S) == b"x" * (50 * MiB)
        assert handle.attempts == 1


def test_D5_a_big_result_of_an_attempt_that_ended_in_time_may_arrive_later(tmp_path: Path) -> None:
    """The timeout bounds the running time, not how long the result travels."""
    gate = Gate(tmp_path)
    limited = task(tasks.gated_big, timeout=1)
    with Queue(workers=1) as queue:
        handle = queue.submit(limited.spec(gate.path, 50 * MiB))
        pid = stop_amid_result(queue, gate)
        threading.Event().wait(1.1)  # until it would have been overdue
        os.kill(pid, signal.SIGCONT)

        assert handle.result(PATIENCE_S) == b"x" * (50 * MiB)


def test_D5_a_worker_that_never_finishes_its_result_is_overdue_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "TRANSFER_S", 0.2)
    gate = Gate(tmp_path)
    limited = task(tasks.gated_big, timeout=1)
    with Queue(workers=1, kill_grace=0.1) as queue:
        handle = queue.submit(limited.spec(gate.path, 50 * MiB))
        stop_amid_result(queue, gate)

        assert isinstance(handle.exception(PATIENCE_S), AttemptTimeout)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_D5_a_worker_that_never_reads_its_payload_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "TRANSFER_S", 0.2)
    limited = task(tasks.length, timeout=0.3)
    data = bytes(50 * MiB)
    with Queue(workers=1, kill_grace=0.1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        handle = queue.submit(limited.spec(data))

        # It had not begun, so nothing is charged, and another worker runs it.
        assert handle.result(PATIENCE_S) == len(data)
        assert handle.attempts == 1
        assert wait_until(lambda: gone([pid]))


def test_a_worker_that_is_slow_to_read_a_big_payload_is_left_alone() -> None:
    """What was sent to it is not taken back for that: it would cost the worker its life."""
    with Queue(workers=2) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        for _ in range(20):  # so that it is known as a brief type
            queue.submit(tasks.length, b"").result(PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        handle = queue.submit(tasks.length, bytes(5 * MiB))
        for _ in range(10):  # the loop looks for long attempts meanwhile
            queue.submit(tasks.sleep, 0.005).result(PATIENCE_S)
        os.kill(pid, signal.SIGCONT)

        assert handle.result(PATIENCE_S) == 5 * MiB
        assert handle.history[0].pid == pid
        assert pid in pids(queue)


def busy_pids(queue: Queue) -> list[int]:
    with queue._supervisor.lock:
        return sorted(worker.pid for worker in engine_of(queue)._workers.values() if worker.state is State.BUSY)


@pytest.mark.slow
def test_workers_killed_at_random_amid_big_transfers_lose_nothing() -> None:
    moments = random.Random(7)
    hardy = task(surrounding_tasks.double, max_attempts=50, backoff=0)
    stop = threading.Event()
    with Queue(workers=2) as queue:

        def kill_some() -> None:
            for _ in range(12):
                if stop.wait(moments.uniform(0.02, 0.15)):
                    return
                # Not those that start: three in a row would be a queue that cannot start any (D11).
                if killable := busy_pids(queue):
                    os.kill(moments.choice(killable), signal.SIGKILL)

        killer = threading.Thread(target=kill_some)
        killer.start()
        try:
            handles = [queue.submit(hardy.spec(noise(10 * MiB, seed))) for seed in range(16)]
            for seed, handle in enumerate(handles):
                assert handle.result(PATIENCE_S) == noise(10 * MiB, seed) * 2
        finally:
            stop.set()
            killer.join()
        check_invariants(queue)


# --- memory ---


def resident() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def test_H12_a_bound_on_bytes_keeps_the_callers_memory_in_bounds() -> None:
    data = bytes(5 * MiB)
    with Queue(workers=2, max_pending_bytes="50MiB") as queue:
        before = resident()
        handles = [queue.submit(tasks.length, data) for _ in range(100)]
        growth = resident() - before

        assert growth < 200 * MiB  # of 500 MiB in all
        assert {handle.result(PATIENCE_S) for handle in handles} == {len(data)}
        assert resident() - before < 200 * MiB
