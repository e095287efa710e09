"""Chunks of a map in real workers: forks, stops and replacements amid them (contract F2, F3, D4, D10, H5)."""

import os
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture
from tests.support.looking import check_invariants, wait_idle
from tests.support.process_tasks import Gate

from procq import Queue, Status
from procq.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


def test_D1_a_child_that_an_item_forked_runs_no_other_item(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def fn(number: int) -> int:
        child = os.fork() if number == 1 else None
        with log.open("a") as file:
            file.write(f"{number}\n")
        if child:
            os.waitpid(child, 0)  # returns when the child has come to its end
        return number

    with Queue(workers=1) as queue:
        assert list(queue.map(fn, range(4), chunksize=4)) == [0, 1, 2, 3]

    assert log.read_text().split() == ["0", "1", "1", "2", "3"]


def test_F3_closing_a_map_stops_a_chunk_that_runs(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        results = queue.map(tasks.pass_gate, [gate.path] * 3, range(3), chunksize=3)
        gate.wait_begun()

        results.close()
        wait_idle(queue, 1)

        assert queue.stats().counts[Status.CANCELLED] == 1
        check_invariants(queue)


def test_D10_max_tasks_per_worker_counts_items() -> None:
    with Queue(workers=1, max_tasks_per_worker=2) as queue:
        pids = list(queue.map(tasks.get_pid, range(8)))
        with pytest.raises(UsageError, match="max_tasks_per_worker"):
            queue.map(tasks.get_pid, range(8), chunksize=2)

    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 2, 2]


def test_F2_chunks_go_to_all_workers() -> None:
    with Queue(workers=2) as queue:
        assert len(set(queue.map(tasks.get_pid, range(50_000)))) == 2


def test_F2_a_chunk_of_more_than_a_packet_arrives() -> None:
    items = [os.urandom(1000) for _ in range(2000)]

    with Queue(workers=1) as queue:
        assert list(queue.map(tasks.echo, items, chunksize=2000)) == items
