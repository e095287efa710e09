"""Payloads that a worker cannot hold: each try counts, so that they do not come back for ever (contract D4, D10)."""

import os
import signal
from functools import partial

import pytest
from tests.support import arrays, memory_tasks as hungry, process_tasks as tasks
from tests.support.arrays import array
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, pids, wait_idle

from procq import Queue, task
from procq.errors import MemoryLimitExceeded, WorkerCrashed

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

MB = 1_000_000
#: What a worker may take besides what it has once it runs.
ROOM = 100 * MB

hardy = partial(task, max_attempts=2, backoff=0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (bytes(250 * MB), "the call is 250.0 MB with its arguments, which its worker has no memory for"),
        ("x" * 250 * MB, "the call is 250.0 MB with its arguments, which its worker has no memory for"),
        ([array(30 * MB) for _ in range(9)], "the call is 27"),
        ("x" * 70 * MB, "the call of 70.0 MB could not be unpickled in the worker: no memory left"),
    ],
    ids=["bytes", "in the pickle", "buffers", "unpickled"],
)
def test_D3_a_call_that_its_worker_has_no_memory_for_fails_as_an_error_and_the_worker_stays(
    value: object, said: str
) -> None:
    with Queue(workers=1, initializer=hungry.limit_address_space, initargs=(ROOM,)) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)

        handle = queue.submit(hardy(arrays.types).spec(1, value))
        error = handle.exception(PATIENCE_S)

        assert type(error) is MemoryError
        assert said in str(error)
        found = [(record.outcome, record.error_type, record.pid) for record in handle.history]
        assert found == [("error", "MemoryError", pid)] * 2
        assert queue.submit(arrays.types, array(10 * MB)).result(PATIENCE_S) == ["Array"]
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid
        check_invariants(queue)


def test_E2_results_that_a_dependent_has_no_memory_for_fail_it_alike() -> None:
    with Queue(workers=1, initializer=hungry.limit_address_space, initargs=(ROOM,)) as queue:
        parts = [queue.submit(tasks.big, 20 * MB + number) for number in range(8)]

        error = queue.submit(tasks.join, [part.out for part in parts]).exception(PATIENCE_S)

        assert type(error) is MemoryError
        assert "the call is 160.0 MB with its arguments" in str(error)


def test_F2_items_of_a_map_that_are_too_big_have_that_error_each() -> None:
    with Queue(workers=1, initializer=hungry.limit_address_space, initargs=(ROOM,)) as queue:
        results = queue.map(len, [b"small", bytes(150 * MB), b"last"], chunksize=3, timeout=PATIENCE_S)

        assert next(results) == 5
        with pytest.raises(MemoryError):
            next(results)
        assert list(results) == [4]


def test_D4_who_dies_of_what_it_is_sent_costs_that_an_attempt() -> None:
    """As under the OOM killer: however many there are, each dies before it has read all."""
    with Queue(workers=1, initializer=hungry.die_of_big_buffers) as queue:
        handle = queue.submit(task(arrays.ends, max_attempts=3, backoff=0).spec(array(5 * MB)))
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert "was killed by SIGKILL while it was sent the 5.0 MB of this task" in str(error)
        assert [(record.outcome, record.signal) for record in handle.history] == [("crash", "SIGKILL")] * 3
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
        check_invariants(queue)


def test_D4_a_worker_that_is_killed_amid_a_payload_is_told_so() -> None:
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        wait_idle(queue, 1)
        os.kill(pid, signal.SIGSTOP)
        handle = queue.submit(tasks.length, bytes(50 * MB))
        waiting = queue.submit(hardy(tasks.echo).spec(1))
        os.kill(pid, signal.SIGKILL)

        assert isinstance(handle.exception(PATIENCE_S), WorkerCrashed)
        assert "while it was sent the 50.0 MB of this task" in str(handle.error)
        assert (waiting.result(PATIENCE_S), waiting.attempts) == (1, 1)
        assert pid not in pids(queue)


def test_D10_a_payload_over_the_limit_of_a_worker_is_charged_while_it_is_read() -> None:
    with Queue(workers=1, max_memory_per_worker="100MB", initializer=hungry.read_big_buffers_slowly) as queue:
        handle = queue.submit(hardy(arrays.ends).spec(array(150 * MB)))
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, MemoryLimitExceeded)
        assert [record.outcome for record in handle.history] == ["memory"] * 2
        assert "more than max_memory_per_worker=100 MB" in str(error)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
