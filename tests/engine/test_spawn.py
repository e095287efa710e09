"""Spawning between processes: deaths and cheats amid the report, and much of it (contract E6)."""

from pathlib import Path

import pytest
from tests.support import process_tasks, spawning_tasks as tasks
from tests.support.looking import PATIENCE_S, check_invariants, engine_of
from tests.support.process_tasks import Gate

from procq import Queue, Status, task
from procq.draft import Draft, Listing
from procq.engine.local.engine import LocalEngine
from procq.errors import DuplicateTaskError, UsageError, WorkerCrashed
from procq.outcome import Ended
from procq.payload import dump_call
from procq.spec import DEFAULTS

pytestmark = pytest.mark.processes


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="ascii").splitlines() if path.exists() else []


# --- deaths ---


@pytest.mark.parametrize("size", [10, 5_000_000], ids=["small", "big"])
def test_D4_what_a_worker_has_reported_counts_though_it_dies_in_that_instant(tmp_path: Path, size: int) -> None:
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.report_and_die, size, str(log))
        assert handle.exception(PATIENCE_S) is None
        check_invariants(queue)

    assert handle.status is Status.SUCCEEDED
    assert lines(log) == [str(size)]


@pytest.mark.parametrize("size", [10, 5_000_000], ids=["small", "big"])
def test_D4_a_worker_that_dies_amid_its_report_has_spawned_nothing(tmp_path: Path, size: int) -> None:
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        handle = queue.submit(task(tasks.report_half_and_die, max_attempts=2, backoff=0).spec(size, str(log)))
        assert handle.result(PATIENCE_S) == "spawned"

    assert [record.outcome for record in handle.history] == ["crash", "ok"]
    assert lines(log) == [str(size)]


@pytest.mark.slow
def test_D4_deaths_at_random_moments_neither_lose_nor_double_what_is_spawned() -> None:
    with Queue(workers=2, retention=(1000, 3600)) as queue:
        queue.submit(tasks.hardy_tree.using(id="t").spec("t", 7))
        names = ["t"]
        for name in names:  # grows while it is walked
            depth = queue.wait(name, PATIENCE_S).value
            assert depth is not None
            names += [f"{name}{side}" for side in "lr" if depth]
        check_invariants(queue)

    assert len(names) == 255
    assert queue.stats().counts[Status.SUCCEEDED] == 255
    assert queue.stats().counts[Status.FAILED] == 0
    assert queue.stats().retries, "some have died"


# --- cheats ---


def test_H5_a_worker_that_reports_twice_spawns_once_and_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.report_twice, str(log))
        assert handle.exception(PATIENCE_S) is None
        assert queue.submit(process_tasks.echo, 1).result(PATIENCE_S) == 1
        check_invariants(queue)

    assert lines(log) == ["10"]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (b"garbage", [b"call"]),
        (b"{}", []),
        (b'{"options":[{}],"tasks":[]}', [b"call"]),
        (b'{"options":[{}],"tasks":[{"type":"t","options":0,"needs":[7]}]}', [b"call"]),
        (b'{"options":[{"timeout":"soon"}],"tasks":[{"type":"t","options":0}]}', [b"call"]),
        (b'{"options":[{}],"tasks":[{"type":"t","options":0}],"on_conflict":"merge"}', [b"call"]),
        (b"[" * 100_000, [b"call"]),
    ],
    ids=["garbage", "empty", "count", "need", "option", "conflict", "deep"],
)
def test_H5_a_worker_whose_tasks_are_no_tasks_is_ended(text: bytes, calls: list[bytes]) -> None:
    with Queue(workers=1) as queue:
        error = queue.submit(tasks.send_listing, text, calls).exception(PATIENCE_S)

        assert isinstance(error, WorkerCrashed)
        assert "it sent what is no message" in str(error)
        assert queue.submit(process_tasks.echo, 1).result(PATIENCE_S) == 1
        check_invariants(queue)
        assert queue.stats().counts[Status.SUCCEEDED] == 1


def test_H5_a_call_that_is_no_call_fails_its_task_alone() -> None:
    listing = b'{"options":[{}],"tasks":[{"type":"t","options":0,"id":"odd"}]}'
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.send_listing, listing, [b"\x80no pickle"])
        assert handle.exception(PATIENCE_S) is None

        odd = queue.wait("odd", PATIENCE_S)
        assert odd.status is Status.FAILED
        assert "could not be unpickled in the worker" in str(odd.history[0].message)


def test_D1_a_late_report_spawns_nothing() -> None:
    call, _ = dump_call(process_tasks.echo, (1,), {})
    with Queue(workers=1) as queue:
        handle = queue.submit(process_tasks.echo, 1)
        handle.result(PATIENCE_S)
        supervisor = queue._supervisor
        with supervisor.lock:
            drafts = [Draft("t", call, DEFAULTS)]
            supervisor.spawned(handle._task, 1, Ended("ok", 0.0, 1.0, value=b"N."), Listing(drafts, drafts))
            supervisor.settle()

        assert queue.stats().dropped_messages == 1
        assert queue.stats().counts[Status.READY] == 0


# --- ids that are used ---


@pytest.mark.parametrize("is_refused", [False, True])
def test_C4_a_spawn_takes_back_what_it_replaces_and_was_sent_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """If the spawn is refused after all, it goes on as it was."""
    monkeypatch.setattr(LocalEngine, "_review", lambda engine, now: setattr(engine, "_review_at", now + 3600))
    log, gate = tmp_path / "log", Gate(tmp_path)
    with Queue(workers=1, groups={"other": 1}) as queue:
        for _ in range(20):  # the worker is there, and the queue has learned that a note is brief
            queue.submit(tasks.note, str(tmp_path / "warm"), "warm").result(PATIENCE_S)
        queue.pause()
        held = queue.submit(process_tasks.pass_gate, gate.path)
        engine_of(queue)._paces.note(held.type, 0.001)  # or nothing would be sent behind it
        old = queue.submit(task(tasks.note, id="report").spec(str(log), "old"))
        queue.resume()
        assert gate.wait_begun()
        with queue._supervisor.lock:
            assert [task.id for task in queue._supervisor.scheduler.ahead.values()] == ["report"]

        spawns = task(tasks.spawn_under_used_id, group="other")
        error = queue.submit(spawns.spec("report", str(log), "new", "nowhere" if is_refused else "default")).exception(
            PATIENCE_S
        )
        gate.open()

        assert isinstance(error, UsageError) == is_refused
        queue.wait("report", PATIENCE_S)
        check_invariants(queue)

    assert old.status is (Status.SUCCEEDED if is_refused else Status.CANCELLED)
    assert lines(log) == ["old" if is_refused else "new"]


@pytest.mark.parametrize("is_mortal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_C4_spawns_that_race_for_the_same_ids_replace_what_does_not_run_and_lose_nothing(*, is_mortal: bool) -> None:
    """Each ends well or is refused for what runs, whatever was sent ahead where."""
    with Queue(workers=2, groups={"other": 1}, retention=(10_000, 3600)) as queue:
        spawns = [tasks.spawn_in_a_race.using(group="other" if number % 3 else "default") for number in range(400)]
        handles = queue.submit_many([one.spec(number, is_mortal=is_mortal) for number, one in enumerate(spawns)])
        errors = [handle.exception(PATIENCE_S) for handle in handles]
        check_invariants(queue)
        report = queue.shutdown()
        check_invariants(queue)

    refused = [error for error in errors if error is not None]
    assert all(isinstance(error, DuplicateTaskError) and "a task that runs" in str(error) for error in refused)
    assert (report.drained, report.failed) == (True, len(refused))
    assert queue.stats().counts[Status.CANCELLED], "some were replaced while they waited"
    last = [queue.wait(f"shared-{number}") for number in range(7)]
    assert {one.status for one in last} == {Status.SUCCEEDED}


# --- much of it ---


def test_E6_thousands_of_tasks_may_be_spawned_at_once() -> None:
    with Queue(workers=2) as queue:
        assert queue.submit(tasks.fan, 5000).result(PATIENCE_S) == 5000
        assert queue.wait("count", PATIENCE_S).value == 5000
        check_invariants(queue)


def test_E6_more_than_can_be_told_at_once_is_refused() -> None:
    with Queue(workers=1) as queue:
        error = queue.submit(tasks.too_many, 400).exception(PATIENCE_S)

    assert isinstance(error, UsageError)
    assert "too many to be accepted at once" in str(error)


def test_I1_a_big_array_arrives_writable_in_the_task_that_is_spawned() -> None:
    with Queue(workers=2) as queue:
        queue.submit(tasks.spawn_array, 20_000_000).result(PATIENCE_S)

        assert queue.wait("filled", PATIENCE_S).value == b"x" * 20_000_000


def test_H2_a_worker_imports_what_spawning_takes_when_something_is_spawned() -> None:
    with Queue(workers=1) as queue:
        before = queue.submit(tasks.loaded).result(PATIENCE_S)
        queue.submit(tasks.spawn_array, 10).result(PATIENCE_S)
        after = queue.submit(tasks.loaded).result(PATIENCE_S)

    spawning = {"procq.draft", "procq.engine.spawning", "procq.plain"}
    assert spawning.isdisjoint(before)
    assert spawning <= set(after)
    assert not {"procq.core.task", "procq.queue", "procq.supervisor"} & set(after)
