"""Cancelling, forgetting, dead letters, replay, a look at the queue (contract F3, F5 to F8)."""

import gc
import threading
from typing import Any

import pytest
from tests.contract import tasks
from tests.contract.drivers import BACKGROUND, Driver
from tests.contract.log import Log

import procq
from procq import Priority, Status, errors

# --- F3: cancel ---


def test_F3_what_waits_ends_cancelled_at_once_and_never_runs(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.pause()
    note = procq.task(tasks.note)
    scheduled = queue.submit(note.using(delay=0.05).spec(log.path))
    blocked = queue.submit(note.using(depends_on=[scheduled]).spec(log.path))
    ready = queue.submit(note.spec(log.path))
    assert [handle.status for handle in (scheduled, blocked, ready)] == [
        Status.SCHEDULED,
        Status.BLOCKED,
        Status.READY,
    ]

    answers = [handle.cancel() for handle in (blocked, scheduled, ready)]

    assert answers == ["cancelled", "cancelled", "cancelled"]
    for handle in (scheduled, blocked, ready):
        assert handle.status is Status.CANCELLED
        with pytest.raises(errors.TaskCancelled, match="was cancelled"):
            handle.result(0)
    queue.resume()
    queue.submit(procq.task(tasks.echo, delay=0.1).spec()).wait()
    assert log.lines == []


def test_F3_what_was_sent_ahead_never_runs_either(driver: Driver, log: Log) -> None:
    queue = driver.started()
    answers: list[str] = []

    def cancel(_: "procq.Handle[str]") -> None:
        answers.extend(queue.submit(tasks.note, log.path, str(number)).cancel() for number in range(3))

    driver.during(queue, cancel)
    queue.submit(tasks.echo).wait()

    assert answers == ["cancelled"] * 3
    assert log.lines == []


def test_F3_a_finished_task_stays_as_it_is(driver: Driver) -> None:
    queue = driver.started()
    good, bad = queue.submit(tasks.echo, 1), queue.submit(tasks.fail)
    good.wait()
    bad.wait()

    assert [good.cancel(), bad.cancel()] == ["finished", "finished"]
    assert [good.status, bad.status] == [Status.SUCCEEDED, Status.FAILED]


def test_F3_a_running_task_is_asked_to_stop_and_is_not_retried(driver: Driver) -> None:
    queue = driver.started()
    answers: list[str] = []

    handle = driver.during(queue, lambda running: answers.append(running.cancel()), max_attempts=5, backoff=0)

    assert answers == ["stopping"]
    with pytest.raises(errors.TaskCancelled):
        handle.result()
    assert [record.outcome for record in handle.history] == ["cancelled"]
    assert queue.submit(tasks.add, 1, 2).result() == 3


def test_F3_dependents_of_a_running_task_end_with_it(driver: Driver, log: Log) -> None:
    queue = driver.started()
    dependents: list[procq.Handle[str]] = []

    def cancel(running: "procq.Handle[str]") -> None:
        note = procq.task(tasks.note)
        dependents.append(queue.submit(note.using(depends_on=[running]).spec(log.path, "success")))
        dependents.append(queue.submit(note.using(depends_on=[running], run_if="failure").spec(log.path, "failure")))
        running.cancel()

    handle = driver.during(queue, cancel, id="victim")

    error = dependents[0].exception()
    assert isinstance(error, errors.DependencyFailed)
    assert error.origin == handle.id == "victim"
    assert dependents[1].result() == "failure"
    assert log.lines == ["failure"]


def test_F3_cancelling_twice_says_stopping_twice(driver: Driver) -> None:
    queue = driver.started(kill_grace=60)
    answers: list[str] = []

    def cancel(running: "procq.Handle[str]") -> None:
        answers.extend([running.cancel(), running.cancel()])

    handle = driver.during(queue, cancel, fn=tasks.meet_to_the_end)

    assert answers == ["stopping", "stopping"]
    assert handle.status is Status.CANCELLED
    assert handle.cancel() == "finished"


def test_F3_cancel_by_an_unknown_id_is_refused(driver: Driver) -> None:
    with pytest.raises(errors.UnknownTaskError, match="'nobody'"):
        driver.queue().cancel("nobody")


# --- F5: what is kept ---


def known(queue: procq.Queue, task_id: str) -> bool:
    try:
        queue.handle(task_id)
    except errors.UnknownTaskError:
        return False
    return True


def test_F5_a_task_without_an_id_is_forgotten_with_its_handle(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)
    handle.wait()
    task_id = handle.id
    assert known(queue, task_id)

    del handle
    gc.collect()
    queue.submit(tasks.echo, 2).wait()  # handles that have gone are noticed at the next occasion

    assert not known(queue, task_id)
    assert queue.stats().counts[Status.SUCCEEDED] == 2


def test_F5_a_task_whose_handle_goes_first_runs_and_is_forgotten_then(driver: Driver, log: Log) -> None:
    queue = driver.started()
    task_id = queue.submit(tasks.note, log.path).id
    gc.collect()

    queue.submit(tasks.echo, 2).wait()

    assert log.lines == ["ran"]
    assert not known(queue, task_id)


def test_F5_asking_by_its_id_does_not_shorten_the_life_of_a_task(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)
    assert queue.wait(handle.id).value == 1
    gc.collect()
    queue.submit(tasks.echo, 2).wait()

    assert queue.wait(handle.id).value == 1
    assert queue.handle(handle.id) == handle


def test_F5_a_handle_that_was_asked_for_is_one_as_good_as_the_first(driver: Driver) -> None:
    queue = driver.started()
    first = queue.submit(tasks.echo, 1)
    second = queue.handle(first.id)
    del first
    gc.collect()
    queue.submit(tasks.echo, 2).wait()

    assert queue.wait(second.id).value == 1


def test_F5_there_is_one_handle_for_an_id_as_long_as_it_is_held(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(procq.task(tasks.echo, id="kept").spec(1)).wait()
    handle = queue.handle("kept")
    gc.collect()
    queue.submit(tasks.echo, 2).wait()

    assert queue.handle("kept") is handle


def test_F5_a_million_results_do_not_pile_up(driver: Driver) -> None:
    """Not a million here: no more than are in flight are known at any time."""
    queue = driver.started()
    most = 0

    for _ in queue.map(tasks.echo, range(200), buffersize=4):
        most = max(most, len(queue._supervisor.scheduler.tasks))

    assert most <= 10


def test_F5_a_chain_does_not_keep_what_nobody_needs_any_more(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo)
    for _ in range(50):
        handle = queue.submit(procq.task(tasks.echo, depends_on=[handle]).spec())
        handle.wait()
    gc.collect()
    queue.submit(tasks.echo).wait()

    assert len(queue._supervisor.scheduler.tasks) <= 3


def test_F5_a_task_with_an_id_is_kept_without_its_handle(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(procq.task(tasks.echo, id="kept").spec(1)).wait()
    gc.collect()
    queue.submit(tasks.echo, 2).wait()

    assert queue.wait("kept").value == 1


def test_F5_so_many_are_kept_as_retention_says(driver: Driver) -> None:
    queue = driver.started(retention=(2, "1h"))
    for number in range(4):
        queue.submit(procq.task(tasks.echo, id=f"task-{number}").spec()).wait()

    assert [known(queue, f"task-{number}") for number in range(4)] == [False, False, True, True]


def test_F5_so_long_are_they_kept_as_retention_says(driver: Driver) -> None:
    queue = driver.started(retention=(100, 0.05))
    queue.submit(procq.task(tasks.echo, id="old").spec()).wait()
    assert known(queue, "old")

    queue.submit(procq.task(tasks.echo, id="new", delay=0.1).spec()).wait()

    assert not known(queue, "old")


def test_F5_a_forgotten_id_is_free_again(driver: Driver) -> None:
    queue = driver.started(retention=(0, "1h"))
    first = queue.submit(procq.task(tasks.echo, id="again").spec(1))
    first.wait()

    second = queue.submit(procq.task(tasks.echo, id="again").spec(2))

    assert (first.result(), second.result()) == (1, 2)


def test_F5_a_handle_keeps_its_result_even_when_the_task_is_forgotten(driver: Driver) -> None:
    queue = driver.started(retention=(0, 0))

    handle = queue.submit(procq.task(tasks.echo, id="gone").spec(1))
    handle.wait()

    assert not known(queue, "gone")
    assert handle.result() == 1
    assert queue.submit(tasks.total, handle.out, 1).result() == 2


# --- F6: dead letters ---


def kill(queue: procq.Queue, *names: str) -> None:
    """Let tasks die one after the other."""
    for name in names:
        queue.submit(procq.task(tasks.fail, id=name).spec(name)).wait()


def dead(queue: procq.Queue) -> list[str]:
    return [letter.id for letter in queue.dead_letters()]


def test_F6_dead_letters_are_listed_in_the_order_of_death(driver: Driver) -> None:
    queue = driver.started()

    kill(queue, "b", "c", "a")

    assert dead(queue) == ["b", "c", "a"]


def test_F6_the_oldest_are_dropped_first_and_counted(driver: Driver) -> None:
    queue = driver.started(dead_letters=(2, "7d"))

    kill(queue, "a", "b", "c")

    assert dead(queue) == ["b", "c"]
    stats = queue.stats()
    assert (stats.dead_letters, stats.dead_letters_dropped) == (2, 1)
    assert stats.counts[Status.FAILED] == 3
    assert not known(queue, "a")


def test_F6_they_age_out(driver: Driver) -> None:
    queue = driver.started(dead_letters=(100, 0.05))
    kill(queue, "old")

    queue.submit(procq.task(tasks.echo, delay=0.1).spec()).wait()

    assert dead(queue) == []
    assert queue.stats().dead_letters_dropped == 1


def test_F6_a_dead_letter_without_an_id_is_kept_without_its_handle(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(tasks.fail, "no").wait()
    gc.collect()
    queue.submit(tasks.echo).wait()

    (letter,) = queue.dead_letters()
    assert letter.message == "no"
    assert queue.replay(letter.id) == 1


@pytest.mark.parametrize("bounds", [5, (1,), (-1, 5), (1.5, 5), (1, "soon"), (1, -5)])
@pytest.mark.parametrize("field", ["retention", "dead_letters"])
def test_F6_bounds_that_cannot_be_are_refused(driver: Driver, field: str, bounds: object) -> None:
    given: dict[str, Any] = {field: bounds}

    with pytest.raises(errors.UsageError, match=field):
        driver.queue(**given)


# --- F7: replay, purge ---


def test_F7_replay_runs_a_dead_task_again_with_all_its_attempts(driver: Driver, log: Log) -> None:
    queue = driver.started()
    fail_twice = procq.task(tasks.fail_times, max_attempts=2, backoff=0)
    handle = queue.submit(fail_twice.spec(log.path, 3))
    assert isinstance(handle.exception(), ValueError)

    assert queue.replay(handle) == 1

    assert handle.result() == "done"
    assert queue.dead_letters() == []
    assert [record.outcome for record in handle.history] == ["error", "error", "error", "ok"]
    assert handle.attempts == 2


def test_F7_replay_may_leave_the_attempts_as_they_are(driver: Driver, log: Log) -> None:
    queue = driver.started()
    handle = queue.submit(
        procq.task(tasks.fail_times, max_attempts=3, backoff=0, never_retry=ValueError).spec(log.path, 9)
    )
    handle.wait()
    assert handle.attempts == 1

    queue.replay(handle, reset_attempts=False)
    handle.wait()

    assert handle.attempts == 2


def test_F7_replay_of_all_or_of_those_for_which_a_function_is_true(driver: Driver) -> None:
    queue = driver.started()
    kill(queue, "a", "b", "c")

    assert queue.replay(lambda letter: letter.id in "ac") == 2
    for name in "ac":
        queue.wait(name)
    assert dead(queue) == ["b", "a", "c"]

    assert queue.replay() == 3
    for name in "abc":
        queue.wait(name)
    assert dead(queue) == ["a", "b", "c"], "they died in the order of their submission"


def test_F7_a_cancelled_task_may_be_replayed(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(procq.task(tasks.echo, delay=3600).spec(1))
    handle.cancel()

    assert queue.replay(handle) == 1

    assert handle.result() == 1


def test_F7_what_did_not_fail_is_not_replayed(driver: Driver) -> None:
    queue = driver.started()
    good = queue.submit(tasks.echo, 1)
    good.wait()
    waiting = queue.submit(procq.task(tasks.echo, delay=3600).spec())

    assert [queue.replay(good), queue.replay(waiting), queue.replay()] == [0, 0, 0]
    assert good.result() == 1
    assert waiting.status is Status.SCHEDULED


@pytest.mark.parametrize("command", ["cancel", "purge", "replay", "wait"])
def test_C0_a_task_of_another_queue_is_refused(driver: Driver, command: str) -> None:
    """`replay` took it in and miscounted both queues; `purge` dropped the letter with the same sequence number."""
    queue, other = driver.started(), driver.started()
    mine, theirs = queue.submit(tasks.fail), other.submit(tasks.fail)
    mine.wait()
    theirs.wait()

    with pytest.raises(errors.UnknownTaskError, match="another queue") as caught:
        getattr(queue, command)(theirs)

    assert caught.value.task_id == theirs.id
    assert [len(queue.dead_letters()), len(other.dead_letters())] == [1, 1]


def test_F7_replay_with_dependents_revives_what_it_had_cancelled(driver: Driver, log: Log) -> None:
    queue = driver.started()
    first = queue.submit(procq.task(tasks.fail_times).spec(log.path, 1))
    second = queue.submit(tasks.echo, first)
    third = queue.submit(tasks.echo, [second])
    cancelled = queue.submit(tasks.echo, [first])
    cancelled_before = queue.submit(procq.task(tasks.echo, delay=3600, depends_on=[first]).spec())
    third.wait()

    assert queue.replay(first, with_dependents=True) == 1

    assert third.result() == ["done"]
    assert cancelled.result() == ["done"]
    assert cancelled_before.result(0 if cancelled_before.done() else None) is None


def test_F7_replay_without_dependents_leaves_them_cancelled(driver: Driver, log: Log) -> None:
    queue = driver.started()
    first = queue.submit(procq.task(tasks.fail_times).spec(log.path, 1))
    second = queue.submit(tasks.echo, first)
    second.wait()

    queue.replay(first)

    assert first.result() == "done"
    assert second.status is Status.CANCELLED


def test_F7_a_dependent_cancelled_by_somebody_is_not_revived(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.pause()
    first = queue.submit(procq.task(tasks.fail_times).spec(log.path, 1))
    mine = queue.submit(tasks.echo, first)
    mine.cancel()
    queue.resume()
    first.wait()

    queue.replay(first, with_dependents=True)
    first.wait()

    assert mine.status is Status.CANCELLED
    assert isinstance(mine.error, errors.TaskCancelled)


def test_F7_a_dependent_replayed_alone_ends_as_its_dependency_did(driver: Driver) -> None:
    queue = driver.started()
    first = queue.submit(procq.task(tasks.fail, id="origin").spec())
    second = queue.submit(tasks.echo, first)
    second.wait()

    queue.replay(second)

    assert isinstance(second.exception(), errors.DependencyFailed)


def test_F7_who_waited_once_may_wait_again_after_a_replay(driver: Driver, log: Log) -> None:
    queue = driver.started()
    handle = queue.submit(procq.task(tasks.fail_times).spec(log.path, 1))
    statuses: list[Status] = []
    handle.wait()
    queue.replay(handle)
    handle.add_done_callback(lambda ended: statuses.append(ended.status))
    handle.wait()
    queue.shutdown()

    assert statuses == [Status.SUCCEEDED]


def test_F7_who_waits_is_told_an_end_however_soon_the_task_is_replayed(driver: Driver) -> None:
    driver.needs(BACKGROUND)
    queue = driver.started()
    handle = queue.submit(tasks.fail)
    done = threading.Event()
    replays = 0

    def replay(ended: "procq.Handle[None]") -> None:
        nonlocal replays
        replays += queue.replay(ended)
        if replays < 500:
            ended.add_done_callback(replay)
        else:
            done.set()

    handle.add_done_callback(replay)
    while not done.is_set():
        with pytest.raises(ValueError, match="bad input"):
            handle.result()
        assert isinstance(handle.exception(20), ValueError)
        queue.wait(handle)


def test_F7_replay_keeps_the_priority(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.pause()
    note = procq.task(tasks.note)
    urgent = queue.submit(note.using(priority=Priority.HIGH).spec(log.path, "urgent"))
    normal = queue.submit(note.spec(log.path, "normal"))
    urgent.cancel()
    queue.replay(urgent)

    queue.resume()
    normal.wait()
    urgent.wait()

    assert log.lines == ["urgent", "normal"]


def test_F7_purge_drops_dead_letters_for_good(driver: Driver) -> None:
    queue = driver.started()
    kill(queue, "a", "b", "c")

    assert queue.purge("b") == 1
    assert dead(queue) == ["a", "c"]
    assert not known(queue, "b")
    assert queue.purge(lambda letter: letter.id == "a") == 1
    assert queue.purge() == 1
    assert queue.purge() == 0
    assert dead(queue) == []


@pytest.mark.parametrize("which", [3, None, ["a"]])
def test_F7_what_names_no_dead_letters_is_refused(driver: Driver, which: str) -> None:
    queue = driver.started()
    kill(queue, "a")

    with pytest.raises(errors.UsageError, match="expected an id"):
        queue.replay(which)
    with pytest.raises(errors.UsageError, match="expected an id"):
        queue.purge(which)
    with pytest.raises(errors.UnknownTaskError):
        queue.replay("nobody")
    assert dead(queue) == ["a"]


def test_F7_a_function_that_raises_changes_nothing(driver: Driver) -> None:
    queue = driver.started()
    kill(queue, "a")

    with pytest.raises(ZeroDivisionError):
        queue.replay(lambda _: bool(1 / 0))

    assert dead(queue) == ["a"]
    assert queue.submit(tasks.add, 1, 2).result() == 3


# --- F8: stats ---


def test_F8_stats_count_by_status(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(tasks.echo, 1).wait()
    queue.submit(procq.task(tasks.fail_before, max_attempts=3, backoff=0).spec(3)).wait()
    kill(queue, "dead")
    queue.pause()
    scheduled = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    blocked = queue.submit(tasks.echo, scheduled)
    ready = queue.submit(tasks.echo)
    queue.submit(tasks.echo).cancel()

    stats = queue.stats()

    assert {str(status): number for status, number in stats.counts.items()} == {
        "blocked": 1, "scheduled": 1, "ready": 1, "running": 0, "succeeded": 2, "failed": 1, "cancelled": 1,
    }  # fmt: skip
    assert (stats.retries, stats.dead_letters, stats.dead_letters_dropped, stats.dropped_messages) == (2, 1, 0, 0)
    assert stats.oldest_ready_s is not None
    assert stats.oldest_ready_s >= 0
    assert "1 ready" in repr(stats)
    assert [scheduled.status, blocked.status, ready.status] == [Status.SCHEDULED, Status.BLOCKED, Status.READY]


def test_F8_stats_of_a_queue_that_was_never_started(driver: Driver) -> None:
    stats = driver.queue().stats()

    assert not any(stats.counts.values())
    assert (stats.throughput, stats.oldest_ready_s) == (0, None)


def test_F8_stats_say_what_the_workers_do(driver: Driver) -> None:
    queue = driver.started()
    seen: list[procq.Stats] = []

    handle = driver.during(queue, lambda _: seen.append(queue.stats()))

    assert handle.ok
    (stats,) = seen
    assert stats.workers["busy"] == 1
    assert stats.counts[Status.RUNNING] == 1


def test_F8_throughput_is_tasks_ended_a_second(driver: Driver) -> None:
    queue = driver.started()
    for _ in range(4):
        queue.submit(tasks.work, 0.05).wait()

    assert 0 < queue.stats().throughput <= 20
