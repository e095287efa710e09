"""`Queue.resize` lets go of the workers that are too many, and of no other (contract H1)."""

from pathlib import Path

import pytest
from tests.support.looking import PATIENCE_S, pids, wait_idle
from tests.support.process_tasks import Gate, pass_gate

from procq import Queue

pytestmark = pytest.mark.processes


def gates_with_workers(queue: Queue, folder: Path, number: int) -> list[Gate]:
    """Have so many workers started; each waits at a gate of its own."""
    gates = [Gate(folder, f"gate{at}") for at in range(number)]
    for gate in gates:
        queue.submit(pass_gate, gate.path)
    for gate in gates:
        gate.wait_begun()
    return gates


def test_H1_idle_workers_that_are_too_many_leave_and_the_others_stay(tmp_path: Path) -> None:
    with Queue(workers=4) as queue:
        for gate in gates_with_workers(queue, tmp_path, 4):
            gate.open()
        wait_idle(queue, 4)
        before = pids(queue)
        queue.resize(2)
        wait_idle(queue, 2)

        assert pids(queue) < before


def test_H1_busy_workers_that_are_too_many_leave_one_by_one_as_they_end(tmp_path: Path) -> None:
    with Queue(workers=4) as queue:
        gates = gates_with_workers(queue, tmp_path, 4)
        before = pids(queue)
        queue.resize(2)
        for gate in gates:
            gate.open()
        wait_idle(queue, 2)

        assert pids(queue) < before
        assert queue.submit(len, "abc").result(PATIENCE_S) == 3
