"""A journal that is opened again has what the queue before held (contract L2), on a clock that the test moves."""

import gc
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.support import arrays, journal_tasks as known

from procq import Queue, Status, errors, task
from procq.testing import FakeClock, inline, run_for


@task
def doubled(value: int) -> int:
    return 2 * value


@task(max_attempts=3, backoff=60)
def failing(_value: int = 0) -> int:
    raise ValueError("not today")


@task
def added(one: int, other: int) -> int:
    return one + other


def reopened(path: Path) -> Queue:
    return inline(journal=path)


def test_L2_what_succeeded_is_known_and_does_not_run_again(tmp_path: Path) -> None:
    spec = known.work.using(id="a").spec(str(tmp_path / "log"), "a", fails=0)
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(spec)

    with reopened(tmp_path / "j") as queue:
        again = queue.submit(known.work.using(id="a").spec(str(tmp_path / "log"), "a", fails=0))

        assert again.result() == 7
        assert queue.wait("a").history[0].outcome == "ok"
    assert (tmp_path / "log").read_text().splitlines() == ["begin a", "end a"]


def test_L1_a_queue_that_somebody_listens_to_keeps_its_tasks_as_well(tmp_path: Path) -> None:
    kinds: list[object] = []
    with inline(journal=tmp_path / "j", on_event=lambda event: kinds.append(event["ev"])) as queue:
        queue.submit(doubled.using(id="a").spec(1))

    with reopened(tmp_path / "j") as again:
        assert again.wait("a").value == 2
    assert "task.ended" in kinds


def test_L2_another_task_under_the_id_of_one_that_succeeded_is_refused_after_reopening(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(doubled.using(id="a").spec(1))

    with reopened(tmp_path / "j") as queue, pytest.raises(errors.DuplicateTaskError, match="'a' is already used"):
        queue.submit(doubled.using(id="a").spec(2))


def test_L2_what_a_shutdown_cut_off_goes_on_in_its_order(tmp_path: Path) -> None:
    queue = inline(journal=tmp_path / "j")
    low = queue.submit(doubled.using(id="low", priority=-1).spec(1))
    first = queue.submit(doubled.using(id="first").spec(2))
    last = queue.submit(added.using(id="last").spec(low.out, first.out))
    queue.shutdown(mode="kill")

    order: list[str] = []
    again = inline(journal=tmp_path / "j", on_event=lambda event: order.append(f"{event['ev']} {event.get('id')}"))
    with again:
        total = again.wait("last").value

    assert last.status is Status.CANCELLED
    assert total == 6
    ended = [line.split()[1] for line in order if line.startswith("task.ended")]
    assert ended == ["first", "low", "last"]


def test_L2_a_backoff_goes_on_with_what_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1000.0)
    queue = inline(journal=tmp_path / "j").start()
    queue.submit(failing.using(id="f").spec())
    run_for(queue, 1)
    queue.shutdown(mode="kill")
    monkeypatch.setattr("time.time", lambda: 1041.0)  # 40 s later: 20 s are left

    with reopened(tmp_path / "j") as again:
        run_for(again, 19)
        waiting = again.wait("f", 0) if again.handle("f").done() else again.handle("f").status
        run_for(again, 2)
        attempts = [record.attempt for record in again.handle("f").history]
        again.shutdown(mode="kill")

    assert waiting is Status.SCHEDULED
    assert attempts == [1, 2]


def test_L2_a_dead_letter_is_there_again_with_its_history_and_can_be_replayed(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(failing.using(id="f").spec())
        cut = queue.submit(doubled.using(id="after", depends_on=["f"]).spec(1))
    assert isinstance(cut.error, errors.DependencyFailed)

    with reopened(tmp_path / "j") as again:
        (letter,) = again.dead_letters()
        error = again.wait("f").error
        taken = again.replay("f", with_dependents=True)
        statuses = [again.handle(name).status for name in ("f", "after")]

    assert (letter.id, letter.attempts, letter.message) == ("f", 3, "not today")
    assert [record.outcome for record in letter.history] == ["error"] * 3
    assert isinstance(error, ValueError)
    assert (taken, statuses) == (1, [Status.READY, Status.BLOCKED])


def test_L2_an_attempt_that_ran_counts_as_one_lost(tmp_path: Path) -> None:
    clock = FakeClock()
    queue = inline(journal=tmp_path / "j", clock=clock, durability="process")
    queue.submit(failing.using(id="f").spec())
    queue.submit(doubled.using(id="once").spec(1))
    # The moment at which a kill would hit: started, written, and not ended.
    scheduler = queue._supervisor.scheduler
    journal = queue._supervisor._journal
    assert journal is not None
    for name in ("f", "once"):
        scheduler.start(scheduler.tasks[name], clock.now)
    journal.flush()
    for suffix in ("", "-wal"):
        shutil.copy(f"{tmp_path}/j{suffix}", f"{tmp_path}/killed{suffix}")
    for task_ in list(scheduler.running.values()):
        scheduler.put_back(task_, clock.now)
    queue.shutdown(mode="kill")

    with reopened(tmp_path / "killed") as again:
        lost = again.wait("f").history[0]
        dead = again.wait("once")

    assert lost.outcome == "lost"
    assert dead.status is Status.FAILED
    assert isinstance(dead.error, errors.WorkerLost)


def test_L2_a_result_that_another_task_waits_for_is_kept_though_nobody_holds_its_handle(tmp_path: Path) -> None:
    queue = inline(journal=tmp_path / "j").start()
    late = queue.submit(doubled.using(delay="1h").spec(4))
    queue.submit(added.using(id="sum").spec(queue.submit(doubled, 1).out, late.out))
    del late
    run_for(queue, 1)
    gc.collect()
    queue.shutdown(mode="kill")

    with inline(journal=tmp_path / "j") as again:
        run_for(again, "2h")
        assert again.wait("sum").value == 10


def test_L1_big_buffers_are_kept_beside_and_arrive_writable(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(task(arrays.ends).using(id="ends").spec(arrays.array(300_000)))
        queue.submit(task(arrays.make).using(id="made").spec(200_000))
        queue.submit(task(arrays.overwrite).using(id="late", delay="1h").spec(arrays.array(100_000)))
        queue.shutdown(mode="finish")

    with reopened(tmp_path / "j") as again:
        assert again.wait("ends").value == arrays.ends(arrays.array(300_000))
        assert again.submit(task(arrays.ends).using(id="ends").spec(arrays.array(300_000))).done()
        made = again.wait("made").value
        assert made is not None
        assert arrays.ends(made) == arrays.ends(arrays.make(200_000))
        assert again.wait("late").status is Status.SUCCEEDED


@pytest.mark.parametrize("number", [1, 25])
def test_L2_a_journal_holds_no_more_than_what_is_known(tmp_path: Path, number: int) -> None:
    with inline(journal=tmp_path / "j", retention=(5, "1h")) as queue:
        for at in range(number):
            queue.submit(doubled, at).result()
            queue.submit(doubled.using(id=f"id{at}").spec(at)).result()

    again = reopened(tmp_path / "j")

    assert len(again._supervisor.scheduler.tasks) == min(number, 5)
    again.shutdown()


def rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    (number,) = connection.execute("SELECT count(*) FROM task").fetchone()
    connection.close()
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("fails", [False, True])
def test_L2_what_is_forgotten_at_reopening_leaves_the_file(tmp_path: Path, *, fails: bool) -> None:
    work = failing if fails else doubled
    with inline(journal=tmp_path / "j") as queue:
        queue.submit_many([work.using(id=f"id{number}", max_attempts=1).spec(1) for number in range(9)])

    inline(journal=tmp_path / "j", retention=(3, "1h"), dead_letters=(3, "1h")).shutdown()

    assert rows(tmp_path / "j") == 3


@pytest.mark.parametrize("is_stored", [True, False])
def test_L2_what_is_forgotten_with_the_write_that_brings_its_dependent_is_kept_for_it(
    tmp_path: Path, *, is_stored: bool
) -> None:
    queue = inline(journal=tmp_path / "j", durability="relaxed", retention=(0 if not is_stored else 1, "1h")).start()
    one = queue.submit(doubled.using(id="one").spec(1))
    one.result()
    if is_stored:
        write(queue)
    late = queue.submit(doubled.using(id="late", delay="1h").spec(2))
    queue.submit(added.using(id="sum").spec(one.out, late.out))
    queue.submit(doubled.using(id="other").spec(1)).result()
    write(queue)
    queue.shutdown(mode="kill")

    with inline(journal=tmp_path / "j") as again:
        known = set(again._supervisor.scheduler.tasks)
        run_for(again, "2h")
        assert again.wait("sum").value == 6

    assert "one" not in known
    assert rows(tmp_path / "j") == len(known)


def write(queue: Queue) -> None:
    journal = queue._supervisor._journal
    assert journal is not None
    with queue._supervisor.lock:
        assert journal.flush()


def test_L2_a_long_chain_of_forgotten_tasks_leaves_the_file(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j", dead_letters=(0, "1h")) as queue:
        queue.pause()
        last = queue.submit(failing.using(max_attempts=1).spec())
        chain = [last]
        for _ in range(1500):
            last = queue.submit(doubled.spec(last.out))
            chain.append(last)
        queue.resume()
        with pytest.raises(errors.DependencyFailed):
            last.result()
        del last
        while chain:
            del chain[0]
        queue.submit(doubled, 1).result()

    assert rows(tmp_path / "j") == 0


def test_L1_ids_that_procq_makes_go_on_where_they_ended(tmp_path: Path) -> None:
    queue = inline(journal=tmp_path / "j")
    first = queue.submit(doubled, 1)
    queue.shutdown(mode="kill")

    again = inline(journal=tmp_path / "j")
    second = again.submit(doubled, 2)

    assert again.handle(first.id).id != second.id
    again.shutdown(mode="kill")
