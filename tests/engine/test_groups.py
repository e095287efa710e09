"""Groups of workers in processes: each task runs in its group, and no group knows of another (contract B7).

What one group has to be right about, deaths, limits, resizing, sending ahead, it has to be in each of several.
"""

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.support import memory_tasks as hungry, process_tasks as tasks
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of, pids, states, wait_idle
from tests.support.process_tasks import Gate

import procq
from procq import AttemptRecord, Handle, Priority, Queue, Status, task
from procq.engine.local import engine
from procq.engine.local.machine import usable_cpus
from procq.errors import MemoryLimitExceeded, WorkerCrashed, WorkerStartError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

GROUPS: Final = {"default": 1, "heavy": 2, "light": 1}


def of_group(queue: Queue, group: str) -> set[int]:
    """Return the process ids of a group's workers."""
    with queue._supervisor.lock:
        return {worker.pid for worker in engine_of(queue).places[group].workers.values()}


def working(queue: Queue, group: str) -> dict[str, int]:
    """Count a group's workers by what they do; states that none is in are left out."""
    return {state: number for state, number in queue.stats().groups[group].items() if number}


def hold(queue: Queue, gate: Gate, group: str, value: object = None) -> Handle[Any]:
    """Have a task wait at a gate, and return once it is there."""
    handle = queue.submit(task(tasks.pass_gate, group=group).spec(gate.path, value))
    gate.wait_begun()
    return handle


# --- no task runs elsewhere, and no more at once than there are workers ---


def most_at_once(records: Iterable[AttemptRecord]) -> int:
    """Return how many attempts ran at one instant, at most."""
    changes = sorted(change for record in records for change in ((record.started_at, 1), (record.ended_at, -1)))
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def work(group: str, kind: str, log: str) -> "procq.TaskSpec[Any]":
    match kind:
        case "brief":
            return task(tasks.pid, group=group).spec()
        case "slow":
            return task(tasks.sleep, group=group).spec(0.003)
        case "retried":
            return task(tasks.fail_first, group=group, max_attempts=2, backoff=0).spec(log, 1)
        case "crash":
            return task(tasks.exit_if, group=group, max_attempts=2, backoff=0).spec(condition=True, code=3)
        case "urgent":
            return task(tasks.pid, group=group, priority=Priority.HIGH).spec()
        case _:
            return task(tasks.sleep, group=group, timeout=0.01).spec(60)


@pytest.fixture
def one_queue(no_leaks: None) -> Iterator[Queue]:  # noqa: ARG001, F811 - it must look before this one starts any
    """The queue of all examples, so that what a process ran in any of them counts."""
    with Queue(GROUPS["default"], groups={"heavy": GROUPS["heavy"], "light": GROUPS["light"]}) as queue:
        yield queue


@pytest.fixture
def groups_by_pid() -> dict[int, set[str]]:
    """Whose tasks each process has run in all examples."""
    return defaultdict(set)


_KINDS: Final = ("brief", "brief", "brief", "slow", "retried", "urgent", "crash", "timeout")
_PLANS: Final = st.lists(
    st.tuples(st.sampled_from(sorted(GROUPS)), st.sampled_from(_KINDS), st.integers(1, 40)), min_size=1, max_size=8
)


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=_PLANS, cancelled=st.sets(st.integers(0, 100)))
def test_B7_no_process_runs_tasks_of_two_groups_and_no_group_runs_more_at_once_than_it_has_workers(
    one_queue: Queue,
    groups_by_pid: dict[int, set[str]],
    tmp_path_factory: pytest.TempPathFactory,
    plan: list[tuple[str, str, int]],
    cancelled: set[int],
) -> None:
    folder = tmp_path_factory.mktemp("seen")
    handles = [
        (group, one_queue.submit(work(group, kind, str(folder / f"{row}-{at}"))))
        for row, (group, kind, number) in enumerate(plan)
        for at in range(min(number, 2) if kind in {"crash", "timeout"} else number)
    ]
    for at in cancelled:
        if at < len(handles):
            handles[at][1].cancel()

    records: dict[str, list[AttemptRecord]] = defaultdict(list)
    for group, handle in handles:
        handle.wait(PATIENCE_S)
        records[group] += handle.history

    for group, number in GROUPS.items():
        assert most_at_once(records[group]) <= number
        for record in records[group]:
            if record.pid is not None:
                groups_by_pid[record.pid].add(group)
    assert all(len(groups) == 1 for groups in groups_by_pid.values())
    check_invariants(one_queue)


def test_B7_a_group_that_is_busy_holds_up_no_other(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, f"gate{number}") for number in range(2)]
    with Queue(1, groups={"heavy": 2}) as queue:
        held = [hold(queue, gate, "heavy", "through") for gate in gates]
        waiting = [queue.submit(task(tasks.pid, group="heavy", priority=Priority.CRITICAL).spec()) for _ in range(50)]

        assert [queue.submit(tasks.echo, number).result(PATIENCE_S) for number in range(100)] == list(range(100))
        assert {handle.status for handle in waiting} == {Status.READY}
        assert working(queue, "heavy") == {"busy": 2}

        heavy = of_group(queue, "heavy")
        for gate in gates:
            gate.open()
        assert {handle.result(PATIENCE_S) for handle in held} == {"through"}
        assert {handle.result(PATIENCE_S) for handle in waiting} <= heavy


def test_H1_workers_start_in_the_groups_that_have_work_alone() -> None:
    with Queue(4, groups={"heavy": 2, "light": 2}) as queue:
        queue.submit(task(tasks.pid, group="light").spec()).result(PATIENCE_S)

        assert [sum(queue.stats().groups[group].values()) for group in ("default", "heavy", "light")] == [0, 0, 1]
        assert queue.stats().workers == queue.stats().groups["light"]


def test_H4_workers_of_all_groups_together_use_the_machine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with Queue(1, groups={"heavy": 1}) as queue:
        for group in ("default", "heavy"):
            surroundings = queue.submit(task(tasks.surroundings, group=group).spec("OMP_NUM_THREADS"))
            assert surroundings.result(PATIENCE_S)["variable"] == str(max(1, usable_cpus() // 2))


def test_F2_items_of_a_map_run_in_the_group_of_their_function_together_or_alone() -> None:
    """Also those that run once more, each by itself, because the worker of their chunk died."""
    with Queue(1, groups={"heavy": 1}) as queue:
        exits = queue.map(task(tasks.exit_if, group="heavy"), [number == 150 for number in range(300)], [3] * 300)
        assert [number for number, error in enumerate(outcomes(exits)) if isinstance(error, WorkerCrashed)] == [150]
        used = set(queue.map(task(hungry.pid_after, group="heavy"), [0.0] * 2000))

        assert used == of_group(queue, "heavy")
        assert not of_group(queue, "default")


def outcomes(results: Iterator[object]) -> list[object]:
    """Take all results; an error stands for itself."""
    taken: list[object] = []
    while True:
        try:
            taken.append(next(results))
        except StopIteration:
            return taken
        except WorkerCrashed as error:
            taken.append(error)


# --- sending ahead and taking back ---


def hold_briefly(queue: Queue, gate: Gate, group: str) -> Handle[None]:
    """Have a task of a type that is known to be brief wait at a gate, so that others are sent ahead behind it."""
    wait = task(tasks.pass_gate_or_not, group=group)
    for _ in range(30):
        queue.submit(wait.spec("")).result(PATIENCE_S)
    handle = queue.submit(wait.spec(gate.path))
    gate.wait_begun()
    return handle


def test_B8_a_more_urgent_task_overtakes_what_was_sent_ahead_in_its_group_alone(tmp_path: Path) -> None:
    groups = ("default", "heavy")
    gates = {group: Gate(tmp_path, group) for group in groups}
    with Queue(1, groups={"heavy": 1}) as queue:
        for group, gate in gates.items():
            hold_briefly(queue, gate, group)
        log = {group: tmp_path / f"log-{group}" for group in groups}
        handles = [
            queue.submit(task(tasks.say, group=group).spec(str(log[group]), number))
            for number in range(5)
            for group in groups
        ]
        urgent = task(tasks.say, group="heavy", priority=Priority.HIGH).spec(str(log["heavy"]), "urgent")
        handles.append(queue.submit(urgent))
        for gate in gates.values():
            gate.open()
        for handle in handles:
            handle.wait(PATIENCE_S)

    assert log["heavy"].read_text().split() == ["urgent", *map(str, range(5))]
    assert log["default"].read_text().split() == [*map(str, range(5))]


def test_H1_a_pause_takes_back_what_was_sent_ahead_in_every_group(tmp_path: Path) -> None:
    gates = {group: Gate(tmp_path, group) for group in GROUPS}
    with Queue(1, groups={"heavy": 1, "light": 1}) as queue:
        for group, gate in gates.items():
            hold_briefly(queue, gate, group)
        behind = [queue.submit(task(tasks.echo, group=group).spec(group)) for group in gates for _ in range(3)]

        queue.pause()
        for gate in gates.values():
            gate.open()
        assert wait_until(lambda: states(queue) == {"idle": 3}, PATIENCE_S), states(queue)
        assert {handle.status for handle in behind} == {Status.READY}

        queue.resume()
        assert [handle.result(PATIENCE_S) for handle in behind] == [group for group in gates for _ in range(3)]


# --- deaths ---


def test_D4_a_worker_that_dies_is_replaced_in_its_group(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(1, groups={"heavy": 1}) as queue:
        neighbour = hold(queue, gate, "default", "unharmed")
        default = of_group(queue, "default")
        for _ in range(3):
            before = of_group(queue, "heavy")
            error = queue.submit(task(tasks.exit_at_once, group="heavy").spec(3)).exception(PATIENCE_S)
            assert isinstance(error, WorkerCrashed)
            pid = queue.submit(task(tasks.pid, group="heavy").spec()).result(PATIENCE_S)
            assert pid not in before
            assert of_group(queue, "heavy") == {pid}

        assert of_group(queue, "default") == default
        gate.open()
        assert neighbour.result(PATIENCE_S) == "unharmed"


def test_D4_a_worker_that_is_killed_idle_is_replaced_in_its_group() -> None:
    with Queue(1, groups={"heavy": 2}) as queue:
        queue.submit(tasks.nothing).wait(PATIENCE_S)
        killed = queue.submit(task(tasks.pid, group="heavy").spec()).result(PATIENCE_S)
        default = of_group(queue, "default")
        os.kill(killed, signal.SIGKILL)

        assert wait_until(lambda: working(queue, "heavy") == {"idle": 1} and killed not in pids(queue), PATIENCE_S)
        assert of_group(queue, "default") == default


# --- D11: workers that cannot start ---


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no more processes start once it is called, as where the system has none to spare."""
    return lambda: monkeypatch.setattr(sys, "executable", "/nowhere/python")


def test_D11_an_initializer_that_raises_ends_what_waits_in_all_groups() -> None:
    with Queue(1, groups={"heavy": 2, "light": 1}, initializer=tasks.fail, initargs=("no-database",)) as queue:
        handles = [queue.submit(task(tasks.nothing, group=group).spec()) for group in GROUPS for _ in range(3)]
        for handle in handles:
            assert isinstance(handle.exception(PATIENCE_S), WorkerStartError)
        with pytest.raises(WorkerStartError, match="no-database"):
            queue.submit(task(tasks.nothing, group="light").spec())
        assert wait_until(lambda: states(queue) == {}, PATIENCE_S)


def test_D11_a_group_that_cannot_start_any_does_not_wait_for_those_of_another(tmp_path: Path) -> None:
    gate, counter = Gate(tmp_path), tmp_path / "counter"
    with Queue(1, groups={"heavy": 1}, initializer=tasks.fail_after_first, initargs=(str(counter),)) as queue:
        running = hold(queue, gate, "heavy", "to its end")

        error = queue.submit(tasks.nothing).exception(PATIENCE_S)

        assert isinstance(error, WorkerStartError)
        assert "workers of group 'default' cannot start, tried 3 times" in str(error)
        gate.open()
        assert running.result(PATIENCE_S) == "to its end"
        with pytest.raises(WorkerStartError):
            queue.submit(task(tasks.nothing, group="heavy").spec())


def test_D11_then_nothing_starts_any_more_where_there_still_are_workers_and_nothing_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is behind a task that runs on may never find a worker: not it, nor its retries, nor what depends on it."""
    monkeypatch.setattr(engine, "LONG_S", 3600.0)  # what was sent ahead stays there, however long that takes
    log, counter = tmp_path / "log", tmp_path / "counter"
    gates = [Gate(tmp_path, f"gate{number}") for number in range(2)]
    with Queue(1, groups={"heavy": 2}, initializer=tasks.fail_after_first, initargs=(str(counter), 2)) as queue:
        # The second one first: it is what makes the other worker start.
        failing = task(tasks.pass_gate_and_fail, group="heavy", max_attempts=3, backoff=0)
        retried = queue.submit(failing.spec(gates[1].path))
        gates[1].wait_begun()
        running = hold_briefly(queue, gates[0], "heavy")
        ahead = [queue.submit(task(tasks.say, group="heavy").spec(str(log), number)) for number in range(3)]
        dependent = queue.submit(tasks.say, str(log), running.out)
        assert queue._supervisor.scheduler.ahead

        lost = queue.submit(tasks.nothing)

        assert isinstance(lost.exception(PATIENCE_S), WorkerStartError)
        for handle in ahead:
            assert isinstance(handle.exception(PATIENCE_S), WorkerStartError)
        for gate in gates:
            gate.open()
        assert running.exception(PATIENCE_S) is None
        for handle in (retried, dependent):
            assert isinstance(handle.exception(PATIENCE_S), WorkerStartError)
        assert [record.outcome for record in retried.history] == ["error"]
        check_invariants(queue)
    assert not log.exists()


def test_D11_nor_for_idle_ones_where_the_system_has_no_process_to_spare(no_interpreter: Callable[[], None]) -> None:
    """Nothing that they do would make room."""
    with Queue(1, groups={"heavy": 1}) as queue:
        queue.submit(task(tasks.nothing, group="heavy").spec()).wait(PATIENCE_S)
        wait_idle(queue, 1)
        no_interpreter()

        assert isinstance(queue.submit(tasks.nothing).exception(PATIENCE_S), WorkerStartError)


def test_D11_but_for_busy_ones_which_may_make_room(
    no_interpreter: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    with Queue(1, groups={"heavy": 1}) as queue:
        held = hold(queue, gate, "heavy")
        no_interpreter()
        waiting = queue.submit(tasks.echo, "in the end")
        turns = engine_of(queue).turns
        assert wait_until(lambda: engine_of(queue).turns > turns + 8, PATIENCE_S), "it tries again and again"
        assert waiting.status is Status.READY

        monkeypatch.undo()
        assert waiting.result(PATIENCE_S) == "in the end"
        gate.open()
        held.wait(PATIENCE_S)


# --- H1: resizing ---


def test_H1_resizing_a_group_leaves_the_others_alone(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, f"gate{number}") for number in range(5)]
    with Queue(2, groups={"heavy": 3}) as queue:
        held = [hold(queue, gate, group) for gate, group in zip(gates, ["default"] * 2 + ["heavy"] * 3, strict=True)]
        default, heavy = of_group(queue, "default"), of_group(queue, "heavy")
        for gate in gates:
            gate.open()
        for handle in held:
            handle.wait(PATIENCE_S)
        wait_idle(queue, 5)

        queue.resize(1, "heavy")
        wait_idle(queue, 3)

        assert of_group(queue, "default") == default
        assert len(of_group(queue, "heavy") & heavy) == 1
        assert (queue.workers, queue.groups) == (3, {"default": 2, "heavy": 1})


def test_H1_a_group_can_be_given_more_workers(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, f"gate{number}") for number in range(3)]
    with Queue(1, groups={"heavy": 1}) as queue:
        first = hold(queue, gates[0], "heavy")
        others = [queue.submit(task(tasks.pass_gate, group="heavy").spec(gate.path)) for gate in gates[1:]]
        queue.resize(3, group="heavy")
        for gate in gates[1:]:
            gate.wait_begun()

        assert working(queue, "heavy") == {"busy": 3}
        for gate in gates:
            gate.open()
        for handle in (first, *others):
            handle.wait(PATIENCE_S)


def test_H1_a_busy_group_that_has_too_many_lets_them_go_one_by_one() -> None:
    """Amid a long backlog of brief tasks, of another group too."""
    with Queue(1, groups={"heavy": 3}) as queue:
        queue.pause()
        handles = [
            queue.submit(task(tasks.echo, group=group).spec(number))
            for number in range(3000)
            for group in ("default", "heavy")
        ]
        queue.resume()
        assert wait_until(lambda: len(of_group(queue, "heavy")) == 3, PATIENCE_S)
        queue.resize(1, "heavy")

        assert [handle.result(PATIENCE_S) for handle in handles] == [n for n in range(3000) for _ in range(2)]
        assert wait_until(lambda: working(queue, "heavy") == {"idle": 1}, PATIENCE_S)


# --- limits, captured output, the end ---


def test_D10_a_worker_that_holds_too_much_is_killed_in_whichever_group() -> None:
    with Queue(1, groups={"heavy": 1}, max_memory_per_worker="100MB") as queue:
        for group in ("heavy", "default"):
            victim = queue.submit(task(hungry.hold, group=group).spec(150_000_000))
            assert isinstance(victim.exception(PATIENCE_S), MemoryLimitExceeded)
            assert queue.submit(task(tasks.echo, group=group).spec(group)).result(PATIENCE_S) == group


def test_D10_a_worker_that_an_attempt_left_too_big_is_replaced_in_its_group() -> None:
    with Queue(1, groups={"heavy": 1}, recycle_memory="100MB") as queue:
        default = queue.submit(tasks.pid).result(PATIENCE_S)
        first = queue.submit(task(hungry.leak, group="heavy").spec(150_000_000)).result(PATIENCE_S)
        second = queue.submit(task(tasks.pid, group="heavy").spec()).result(PATIENCE_S)

        assert len({first, second, default}) == 3
        assert queue.submit(tasks.pid).result(PATIENCE_S) == default


def test_D10_max_tasks_per_worker_holds_in_each_group() -> None:
    with Queue(1, groups={"heavy": 1}, max_tasks_per_worker=2) as queue:
        for group in ("default", "heavy"):
            handles = [queue.submit(task(tasks.pid, group=group).spec()) for _ in range(6)]
            used = [handle.result(PATIENCE_S) for handle in handles]
            assert {used.count(pid) for pid in used} == {2}


@pytest.mark.parametrize("mode", ["drain", "finish", "kill"])
def test_G1_a_shutdown_ends_all_groups(mode: Any, tmp_path: Path) -> None:  # noqa: ANN401 - a literal
    gates = {group: Gate(tmp_path, group) for group in GROUPS}
    queue = Queue(1, groups={"heavy": 1, "light": 1}, kill_grace=0.05).start()
    held = [hold(queue, gate, group, group) for group, gate in gates.items()]
    waiting = [queue.submit(task(tasks.echo, group=group).spec(group)) for group in GROUPS]
    queue.pause()  # until the shutdown begins
    if mode != "kill":
        for gate in gates.values():
            gate.open()
    report = queue.shutdown(mode=mode)

    ended = {"drain": (True, True), "finish": (True, False), "kill": (False, False)}[mode]
    assert ({handle.ok for handle in held}, {handle.ok for handle in waiting}) == ({ended[0]}, {ended[1]})
    assert report.drained == (mode == "drain")
    assert states(queue) == {}
