"""`min_free_memory`: no attempt starts beside another while the machine is short of memory (contract D10)."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of, pids, wait_idle
from tests.support.process_tasks import Gate

from procq import Queue, Status
from procq.engine.headroom import LOOK_EVERY_S, Headroom
from procq.engine.local.machine import available_memory, quarter_of_memory
from procq.errors import TaskCancelled

P = ParamSpec("P")


def on_processes(test: Callable[P, None]) -> Callable[P, None]:
    marked: Callable[P, None] = pytest.mark.processes(pytest.mark.usefixtures("no_leaks")(test))
    return marked


# --- the figure ---

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., int]:
    """Make the files of a machine with 8 GiB available, and read them."""

    def read(lines: str, files: dict[str, str]) -> int:
        for name, text in {
            "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:   {8 * GIB // 1024} kB\nBuffers: 2 kB\n",
            "proc/self/cgroup": lines,
            **files,
        }.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return available_memory(str(tmp_path / "proc"), str(tmp_path / "cgroup"))

    return read


def v2(folder: str, limit: object, used: int, cache: int = 0) -> dict[str, str]:
    place = f"cgroup/{folder}"
    return {
        f"{place}/memory.max": f"{limit}\n",
        f"{place}/memory.current": f"{used}\n",
        f"{place}/memory.stat": f"anon 1\ninactive_anon 99\ninactive_file {cache}\n",
    }


def v1(folder: str, limit: int, used: int, cache: int = 0) -> dict[str, str]:
    place = f"cgroup/memory/{folder}"
    return {
        f"{place}/memory.limit_in_bytes": f"{limit}\n",
        f"{place}/memory.usage_in_bytes": f"{used}\n",
        f"{place}/memory.stat": f"inactive_file 7\ntotal_inactive_file {cache}\n",
    }


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/\n", {}, 8 * GIB),
        ("0::/a\n", v2("a", "max", GIB), 8 * GIB),
        ("0::/a\n", v2("a", 4 * GIB, GIB), 3 * GIB),
        ("0::/a\n", v2("a", 4 * GIB, 2 * GIB, cache=GIB), 3 * GIB),
        ("0::/a\n", v2("a", 20 * GIB, GIB), 8 * GIB),
        ("0::/a\n", v2("a", GIB, 2 * GIB), 0),
        # The tightest of those above counts, and a path that only the host has leads to the top.
        ("0::/a/b/c\n", v2("a", 5 * GIB, GIB) | v2("a/b", 3 * GIB, GIB) | v2("a/b/c", "max", GIB), 2 * GIB),
        ("0::/of/the/host\n", v2("", 2 * GIB, GIB), GIB),
        ("5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n", v1("a", 4 * GIB, 2 * GIB, cache=GIB), 3 * GIB),
        ("4:memory:/a/b\n", v1("a", 2 * GIB, GIB) | v1("a/b", 2**63 - 4096, GIB), GIB),
        ("0::/a\n", v2("a", 4 * GIB, GIB) | {"cgroup/a/memory.current": "what?\n"}, 8 * GIB),
    ],
)
def test_D10_available_is_what_the_machine_has_or_the_cgroups_leave(
    machine: Callable[[str, dict[str, str]], int], lines: str, files: dict[str, str], expected: int
) -> None:
    assert machine(lines, files) == expected


def test_C6_a_quarter_of_it_may_wait() -> None:
    assert 0 < quarter_of_memory() <= available_memory()


def test_D10_it_is_never_more_than_psutil_says(tmp_path: Path) -> None:
    import psutil  # noqa: PLC0415 - for this test alone

    # It changes all the time, but not by a gigabyte.
    assert available_memory() <= psutil.virtual_memory().available + 10**9
    without_proc = available_memory(str(tmp_path), str(tmp_path))
    assert without_proc == pytest.approx(psutil.virtual_memory().available, abs=10**9)


def test_D10_a_figure_is_relied_on_for_a_while_and_less_than_the_least_is_short() -> None:
    figures = iter([100, 99, 100])
    room = Headroom(100, lambda: next(figures))

    assert not room.is_short(10.0)
    assert not room.is_short(10.0 + LOOK_EVERY_S * 0.99)
    assert room.is_short(10.0 + LOOK_EVERY_S)
    assert room.is_short(10.0 + LOOK_EVERY_S * 1.99)
    assert not room.is_short(10.0 + LOOK_EVERY_S * 2.01)


# --- what is held back ---


class Machine:
    """Stands in for the machine's memory."""

    def __init__(self) -> None:
        self.available = 1
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return self.available

    def become_short(self) -> None:
        self.available = 1

    def recover(self) -> None:
        self.available = 10 * GIB

    def wait_looked(self) -> None:
        """Wait until it was looked at several times more, which is whenever something is held back."""
        looks = self.looks
        assert wait_until(lambda: self.looks >= looks + 3, PATIENCE_S)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make the machine's memory short, until the test says otherwise."""
    memory = Machine()
    monkeypatch.setattr("procq.vetting.available_memory", memory)
    return memory


def counts(queue: Queue) -> tuple[int, int]:
    found = queue.stats().counts
    return found[Status.RUNNING], found[Status.READY]


@on_processes
def test_D10_while_memory_is_short_nothing_starts_beside_what_runs(memory: Machine, tmp_path: Path) -> None:
    first, second = Gate(tmp_path, "first"), Gate(tmp_path, "second")
    with Queue(workers=2, min_free_memory="1GiB") as queue:
        handles = [queue.submit(tasks.pass_gate, gate.path) for gate in (first, second)]
        first.wait_begun()
        memory.wait_looked()

        assert counts(queue) == (1, 1)
        assert len(pids(queue)) == 1, "a worker with nothing to do would take memory too"
        memory.recover()
        second.wait_begun()
        assert counts(queue) == (2, 0)
        check_invariants(queue)
        first.open()
        second.open()
        for handle in handles:
            handle.result(PATIENCE_S)


@pytest.mark.usefixtures("memory")
@on_processes
def test_D10_memory_that_is_short_for_ever_holds_up_nothing_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Queue(workers=3, min_free_memory="1GiB") as queue:
        handles = [queue.submit(tasks.say_span, str(log), number, 0.002) for number in range(20)]

    assert [handle.status for handle in handles] == [Status.SUCCEEDED] * 20
    one_by_one = [f"{what} {number}" for number in range(20) for what in ("begin", "end")]
    assert log.read_text().splitlines() == one_by_one


@on_processes
def test_D10_what_is_submitted_to_idle_workers_is_held_back_and_not_forgotten(memory: Machine, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    memory.recover()
    with Queue(workers=2, min_free_memory="1GiB") as queue:
        for handle in [queue.submit(tasks.sleep, 0.01) for _ in range(8)]:
            handle.result(PATIENCE_S)
        wait_idle(queue, 2)
        runs = queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        memory.become_short()
        room = queue._supervisor.dispatcher._headroom
        assert room is not None
        assert wait_until(lambda: room.look_at < engine_of(queue).now(), PATIENCE_S)

        held = queue.submit(tasks.echo, "held")
        memory.wait_looked()
        assert counts(queue) == (1, 1)
        memory.recover()
        assert held.result(PATIENCE_S) == "held"
        gate.open()
        runs.result(PATIENCE_S)


@on_processes
def test_F3_what_is_held_back_can_be_cancelled_and_cut_off(memory: Machine, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2, min_free_memory="1GiB") as queue:
        runs = queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        cancelled, cut = queue.submit(tasks.nothing), queue.submit(tasks.nothing)
        memory.wait_looked()

        assert cancelled.cancel() == "cancelled"
        gate.open()
        runs.result(PATIENCE_S)
        cut.result(PATIENCE_S)
        last = queue.submit(tasks.sleep_forever)
        behind = queue.submit(tasks.nothing)
        report = queue.shutdown(mode="kill", timeout=0)

    assert set(report.cut_off) == {last.id, behind.id}
    for handle in (cancelled, behind):
        assert isinstance(handle.exception(PATIENCE_S), TaskCancelled)
        assert handle.attempts == 0


@pytest.mark.slow
@on_processes
def test_B3_a_queue_that_is_paused_or_idle_does_not_wake_for_memory_that_is_short(
    memory: Machine, tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2, min_free_memory="1GiB") as queue:
        runs = queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        held = queue.submit(tasks.nothing)
        memory.wait_looked()
        queue.pause()
        assert sleeps(queue)
        queue.resume()
        memory.wait_looked()
        gate.open()
        for handle in (runs, held):
            handle.result(PATIENCE_S)
        wait_idle(queue, 1)
        assert sleeps(queue)


def sleeps(queue: Queue) -> bool:
    """Whether the loop sleeps through ten times the pause between two looks."""
    engine = engine_of(queue)
    pause = threading.Event()
    pause.wait(LOOK_EVERY_S)  # what has just happened is seen to
    turns = engine.turns
    pause.wait(10 * LOOK_EVERY_S)
    return engine.turns == turns


@on_processes
def test_D10_a_queue_without_the_option_never_looks(memory: Machine) -> None:
    with Queue(workers=1) as queue:
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
    assert memory.looks == 0
