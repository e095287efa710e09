"""Limits on the memory of workers: who is killed, who is replaced, and what it costs (contract D10, D2, D3)."""

import subprocess
import threading
from pathlib import Path

import pytest
from tests.support import memory_tasks as hungry, process_tasks as tasks
from tests.support.arrays import array
from tests.support.leaks import gone, no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of, pids, states, wait_idle
from tests.support.process_tasks import Gate

from procq import Queue, Status, share, task
from procq.engine.local import memory
from procq.errors import AttemptTimeout, MemoryLimitExceeded, UsageError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

#: More than a worker with the modules of these tests takes (15 to 30 MB), and less than `MUCH`.
LIMIT = "100MB"
MUCH = 150_000_000


def look_several_times(queue: Queue) -> None:
    """Wait until the workers have been weighed; nothing else wakes the loop meanwhile."""
    turns = engine_of(queue).turns
    assert wait_until(lambda: engine_of(queue).turns >= turns + 4, PATIENCE_S)


@pytest.fixture
def weighed_in_looks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no attempt be long enough to be followed by a look of its own."""
    monkeypatch.setattr(memory, "BRIEF_S", float("inf"))


@pytest.fixture
def weighed_after_attempts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next look be far away."""
    monkeypatch.setattr(memory, "LOOK_EVERY_S", 3600.0)


# --- the hard limit ---


def test_D10_a_worker_that_holds_too_much_is_killed_and_its_attempt_charged(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2, max_memory_per_worker=LIMIT) as queue:
        neighbour = queue.submit(tasks.pass_gate, gate.path, "unharmed")
        neighbour_pid = gate.wait_begun()

        victim = queue.submit(hungry.hold, MUCH)
        error = victim.exception(PATIENCE_S)

        assert type(error) is MemoryLimitExceeded
        assert isinstance(error, MemoryError)
        (record,) = victim.history
        assert (record.outcome, record.signal, victim.status) == ("memory", "SIGKILL", Status.FAILED)
        assert record.peak_rss_bytes > 100_000_000
        words = str(error).split()
        assert words[:2] == ["task", f"{victim.id!r}:"]
        assert f"the worker (pid {record.pid}) was killed because it used" in str(error)
        assert int(words[words.index("used") + 1]) > 100
        assert str(error).endswith("MB, more than max_memory_per_worker=100 MB")
        assert gone([record.pid or 0])
        assert [letter.id for letter in queue.dead_letters()] == [victim.id]
        gate.open()
        assert neighbour.result(PATIENCE_S) == "unharmed"
        wait_idle(queue, 2)
        assert neighbour_pid in pids(queue)
        check_invariants(queue)


def test_D2_the_record_has_the_peak_also_where_the_supervisor_was_bigger() -> None:
    """A new program inherits the peak of the one that starts it, so what the system says is of no use."""
    ballast = b"x" * (3 * MUCH)
    with Queue(workers=1, max_memory_per_worker=LIMIT) as queue:
        victim = queue.submit(hungry.hold, MUCH)
        victim.wait(PATIENCE_S)

    (record,) = victim.history
    assert 100_000_000 < record.peak_rss_bytes < len(ballast)


@pytest.mark.slow
def test_D3_running_out_of_memory_is_retried_unless_told_otherwise(tmp_path: Path) -> None:
    hold = task(hungry.hold, max_attempts=2, backoff=0)
    first = task(hungry.hold_first, max_attempts=2, backoff=0)
    with Queue(workers=1, max_memory_per_worker=LIMIT) as queue:
        again = queue.submit(hold.spec(MUCH))
        never = queue.submit(hold.using(never_retry="memory").spec(MUCH))
        better = queue.submit(first.spec(str(tmp_path / "log"), MUCH))

        assert isinstance(again.exception(PATIENCE_S), MemoryLimitExceeded)
        assert isinstance(never.exception(PATIENCE_S), MemoryLimitExceeded)
        assert better.result(PATIENCE_S) == "light"

    assert [record.outcome for record in again.history] == ["memory", "memory"]
    assert [record.outcome for record in never.history] == ["memory"]
    assert [record.outcome for record in better.history] == ["memory", "ok"]


def test_D10_child_processes_count_and_die_with_the_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Queue(workers=1, max_memory_per_worker=LIMIT) as queue:
        error = queue.submit(hungry.hold_in_child, str(log), MUCH).exception(PATIENCE_S)

        assert isinstance(error, MemoryLimitExceeded)
        assert "it and 1 process below it used" in str(error)
        assert wait_until(lambda: gone([int(log.read_text())]), PATIENCE_S)


@pytest.mark.slow
def test_D10_memory_that_forked_children_share_counts_once(tmp_path: Path) -> None:
    """Four processes of 150 MB each that are one in truth would be 600 MB."""
    gate = Gate(tmp_path)
    with Queue(workers=1, max_memory_per_worker="400MB") as queue:
        handle = queue.submit(hungry.share_with_children, gate.path, MUCH, 3)
        pid = gate.wait_begun()
        plain, exact = memory.load_of(pid), memory.load_of(pid, exact_above=0)
        look_several_times(queue)
        gate.open()

        assert handle.result(PATIENCE_S) == str(MUCH)
        assert handle.attempts == 1
        assert (plain.processes, exact.processes) == (4, 4)
        assert plain.used_bytes > 600_000_000
        assert 150_000_000 < exact.used_bytes < 400_000_000


def test_D10_I2_what_is_shared_with_all_workers_counts_for_none(tmp_path: Path) -> None:
    """Else each worker that reads it would be killed, or replaced after each task, for what is there once."""
    gate = Gate(tmp_path)
    with Queue(workers=1, max_memory_per_worker=LIMIT) as queue:
        data = share(array(MUCH))
        handle = queue.submit(hungry.read_through, gate.path, data.out)
        pid = gate.wait_begun()
        look_several_times(queue)
        gate.open()

        assert handle.result(PATIENCE_S) >= MUCH
        assert handle.attempts == 1
        assert queue.submit(hungry.pid_after, 0.02).result(PATIENCE_S) == pid


def test_D10_a_task_that_was_asked_to_stop_may_not_use_its_grace_to_take_more(tmp_path: Path) -> None:
    """Its outcome stays the timeout; without the limit it would live on for an hour."""
    gate = Gate(tmp_path)
    with Queue(workers=1, max_memory_per_worker=LIMIT, kill_grace=3600) as queue:
        handle = queue.submit(task(hungry.hold_against_sigterm, timeout=0.1).spec(gate.path, MUCH))
        gate.wait_begun()

        assert isinstance(handle.exception(PATIENCE_S), AttemptTimeout)
        assert [record.outcome for record in handle.history] == ["timeout"]


def test_F2_items_that_share_a_worker_with_a_hungry_one_run_again_alone() -> None:
    with Queue(workers=1, max_memory_per_worker=LIMIT) as queue:
        results = iter(queue.map(hungry.hold_or_pid, [0, 0, MUCH, 0], chunksize=4))

        assert next(results) > 0
        assert next(results) > 0
        with pytest.raises(MemoryLimitExceeded):
            next(results)
        assert next(results) > 0
        assert len(queue.dead_letters()) == 1


def test_D10_an_attempt_does_not_pay_for_the_one_that_was_weighed_before_it(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1, max_memory_per_worker="1GB") as queue:
        handle = queue.submit(tasks.pass_gate, gate.path, "unharmed")
        pid = gate.wait_begun()
        engine = engine_of(queue)
        assert engine._weighing is not None
        with queue._supervisor.lock:
            (worker,) = engine._workers.values()
            heavy = memory.Load(used_bytes=10**12, processes=1, own_bytes=10**12)
            engine._weighing.see_to(memory.Weighed(worker, worker.running, worker.fence - 1, heavy))
            assert worker.heavy, "it is weighed again once this has ended"
        gate.open()

        assert handle.result(PATIENCE_S) == "unharmed"
        assert handle.attempts == 1
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid


# --- recycling ---


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["recycle_memory", "max_memory_per_worker"])
@pytest.mark.usefixtures("weighed_after_attempts_only")
def test_D10_a_worker_that_an_attempt_left_heavy_is_replaced_and_nobody_charged(limit: str) -> None:
    with Queue(workers=1, **{limit: "1GB"}) as queue:  # type: ignore[arg-type]
        light = [queue.submit(hungry.leak, MUCH // 10, 0.02).result(PATIENCE_S) for _ in range(3)]
        check_invariants(queue)
    assert len(set(light)) == 1, "a worker that stays below the limit is kept"

    with Queue(workers=1, **{limit: LIMIT}) as queue:  # type: ignore[arg-type]
        # What one keeps is below the limit, and what two keep is above: so each worker serves two.
        handles = [queue.submit(hungry.leak, MUCH // 3, 0.02) for _ in range(6)]
        used = [handle.result(PATIENCE_S) for handle in handles]

        assert [used.count(pid) for pid in dict.fromkeys(used)] == [2, 2, 2]
        assert {tuple(record.outcome for record in handle.history) for handle in handles} == {("ok",)}
        assert queue.stats().retries == 0
        check_invariants(queue)


@pytest.mark.usefixtures("weighed_in_looks_only")
def test_D10_a_worker_that_a_brief_attempt_left_heavy_is_replaced_while_it_idles() -> None:
    with Queue(workers=1, recycle_memory=LIMIT) as queue:
        pid = queue.submit(hungry.leak, MUCH).result(PATIENCE_S)

        assert wait_until(lambda: pid not in pids(queue), PATIENCE_S)
        wait_idle(queue, 1)
        assert queue.submit(tasks.pid).result(PATIENCE_S) != pid


@pytest.mark.usefixtures("weighed_in_looks_only")
def test_D10_a_heavy_worker_is_replaced_amid_a_long_backlog_of_brief_tasks() -> None:
    with Queue(workers=1, recycle_memory=LIMIT) as queue:
        pid = queue.submit(hungry.leak, MUCH).result(PATIENCE_S)

        assert any(runs_elsewhere(queue, pid) for _ in range(1000)), "it was never replaced"
        assert queue.stats().retries == 0
        check_invariants(queue)


@pytest.mark.parametrize("is_busy", [False, True])
def test_D10_a_worker_that_a_child_left_behind_makes_heavy_is_replaced(tmp_path: Path, *, is_busy: bool) -> None:
    log = tmp_path / "log"
    with Queue(workers=1, recycle_memory=LIMIT) as queue:
        pid = queue.submit(hungry.leave_child, str(log), MUCH).result(PATIENCE_S)
        if is_busy:
            assert any(runs_elsewhere(queue, pid) for _ in range(1000)), "it was never replaced"
        else:
            assert wait_until(lambda: pid not in pids(queue), PATIENCE_S)
        assert wait_until(lambda: gone([int(log.read_text())]), PATIENCE_S)
        assert queue.stats().retries == 0


def runs_elsewhere(queue: Queue, pid: int) -> bool:
    """Run some hundred brief tasks, and return whether all of them have left a worker alone."""
    handles = [queue.submit(tasks.pid) for _ in range(300)]
    used = {handle.result(PATIENCE_S) for handle in handles}
    assert {len(handle.history) for handle in handles} == {1}
    return pid not in used


@pytest.mark.slow
def test_D10_memory_that_an_attempt_gives_back_does_not_cost_it_its_worker(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1, recycle_memory=LIMIT) as queue:
        handle = queue.submit(hungry.borrow, gate.path, MUCH)
        pid = gate.wait_begun()
        look_several_times(queue)
        gate.open()

        assert handle.result(PATIENCE_S) == pid
        assert queue.submit(hungry.pid_after, 0.02).result(PATIENCE_S) == pid
        wait_idle(queue, 1)
        assert pids(queue) == {pid}


@pytest.mark.slow
def test_D10_a_limit_that_no_worker_can_keep_still_lets_each_run_a_task() -> None:
    with Queue(workers=2, recycle_memory="1MB") as queue:
        used = [handle.result(PATIENCE_S) for handle in [queue.submit(hungry.pid_after, 0.02) for _ in range(6)]]
    assert len(set(used)) == 6


# --- what it costs ---


@pytest.mark.slow
def test_B3_an_idle_queue_with_limits_does_not_wake(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2, max_memory_per_worker="1GB", recycle_memory="500MB", min_free_memory="1MB") as queue:
        handle = queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        look_several_times(queue)
        gate.open()
        handle.result(PATIENCE_S)
        wait_idle(queue, 1)
        weighing = engine_of(queue)._weighing
        assert weighing is not None
        assert wait_until(lambda: not weighing._memory.is_awaited, PATIENCE_S)
        turns = engine_of(queue).turns
        threading.Event().wait(0.5)  # nothing shall happen, and nothing tells so

        assert engine_of(queue).turns == turns


def test_D10_looks_are_as_far_apart_as_they_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.002, 20.0, 20.5])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    watch = memory.MemoryWatch(hard_bytes=1, recycle_bytes=None)

    assert watch.next_look(100.0) == 100.0 + memory.LOOK_EVERY_S
    watch.weigh([])
    assert watch.next_look(100.0) == pytest.approx(100.1)
    watch.weigh([])
    assert watch.next_look(100.0) == pytest.approx(125.0)


# --- weighing ---


def test_D10_a_process_that_is_gone_weighs_nothing() -> None:
    child = subprocess.Popen(["true"])
    child.wait()

    assert memory.load_of(child.pid).used_bytes == 0
    assert memory.load_of(child.pid, exact_above=0).used_bytes == 0


def test_D10_the_figure_is_the_one_of_the_system() -> None:
    import psutil  # noqa: PLC0415 - for this test alone

    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        wait_idle(queue, 1)

        info = psutil.Process(pid).memory_info()
        expected = info.rss - info.shared
        # The kernel counts by processor, and sums up roughly.
        assert memory.load_of(pid).used_bytes == pytest.approx(expected, abs=2**20)
        assert memory.load_of(pid).processes == 1
        assert states(queue) == {"idle": 1}


# --- what is refused ---


@pytest.mark.parametrize("name", ["max_memory_per_worker", "recycle_memory", "min_free_memory"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "much", True])
def test_C3_a_size_that_cannot_be_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        Queue(**{name: value})  # type: ignore[arg-type]
