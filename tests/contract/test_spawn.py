"""Tasks that bring more tasks with their success (contract E6)."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from tests.contract import spawning, tasks
from tests.contract.drivers import BACKGROUND, Driver
from tests.contract.log import Log
from tests.support.story import Story

import procq
from procq import Status, errors
from procq.closing import Mode, ShutdownReport


def counted(queue: procq.Queue) -> dict[Status, int]:
    """Return how many tasks are in which state, those with none left out."""
    return {status: number for status, number in queue.stats().counts.items() if number}


def drained(queue: procq.Queue) -> ShutdownReport:
    """Let everything run to its end."""
    return queue.shutdown()


def known(queue: procq.Queue) -> set[str]:
    """Return the ids of all tasks that the queue still knows."""
    with queue._supervisor.lock:
        return set(queue._supervisor.scheduler.tasks)


# --- what is spawned runs ---


def test_E6_the_value_is_the_result_and_the_tasks_run_after_it(driver: Driver, log: Log) -> None:
    queue = driver.started()

    handle = queue.submit(spawning.spawn_notes, log.path, "one", "two")

    assert handle.result() == "spawned"
    assert drained(queue) == (True, 3, 0, 0, (), None)
    assert log.lines == ["parent", "one", "two"]


def test_E6_a_spawn_of_nothing_is_a_plain_success(driver: Driver) -> None:
    queue = driver.started()

    assert queue.submit(spawning.spawn_nothing).result() == 7
    assert drained(queue) == (True, 1, 0, 0, (), None)


def test_E6_without_a_value_the_result_is_none(driver: Driver, log: Log) -> None:
    queue = driver.started()
    handle = queue.submit(procq.task(spawning.spawn_and_return_nothing).spec(log.path))

    handle.wait()

    assert handle.status is Status.SUCCEEDED
    assert queue.wait(handle).value is None
    assert [record.outcome for record in handle.history] == ["ok"]


def test_E6_a_spawn_may_fan_out_and_in_again(driver: Driver) -> None:
    queue = driver.started()

    name = queue.submit(spawning.fan_out, list(range(20))).result()

    assert queue.wait(name).value == sum(range(1, 21))


def test_E6_a_task_may_spawn_itself_again_and_again(driver: Driver, log: Log) -> None:
    queue = driver.started()

    assert queue.submit(spawning.count_down, log.path, 50).result() == 50

    assert drained(queue) == (True, 51, 0, 0, (), None)
    assert log.lines == [str(number) for number in range(50, -1, -1)]


def test_E6_a_tree_of_tasks_runs_to_its_leaves(driver: Driver, log: Log) -> None:
    queue = driver.started()

    queue.submit(spawning.tree, log.path, 5)

    assert drained(queue) == (True, 63, 0, 0, (), None)
    assert sorted(log.lines) == sorted(str(5 - level) for level in range(6) for _ in range(2**level))


def test_E6_several_workers_may_spawn_at_once(driver: Driver, log: Log) -> None:
    queue = driver.started(workers=2)

    for _ in range(4):
        queue.submit(spawning.tree, log.path, 5)

    assert drained(queue) == (True, 252, 0, 0, (), None)


def test_E6_tasks_may_depend_on_each_other_in_any_order(driver: Driver, log: Log) -> None:
    queue = driver.started()

    queue.submit(spawning.spawn_in_any_order, log.path)

    assert drained(queue).drained
    assert log.lines == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("run_if", "lines", "counts"),
    [
        ("success", ["parent", "after"], {Status.SUCCEEDED: 2}),
        ("done", ["parent", "after"], {Status.SUCCEEDED: 2}),
        ("failure", ["parent"], {Status.SUCCEEDED: 1, Status.CANCELLED: 1}),
    ],
)
def test_E6_the_task_that_spawns_counts_as_succeeded(
    driver: Driver, log: Log, run_if: str, lines: list[str], counts: dict[Status, int]
) -> None:
    queue = driver.started()

    queue.submit(spawning.spawn_after_itself, log.path, run_if)

    assert drained(queue).drained
    assert log.lines == lines
    assert counted(queue) == counts


def test_E6_what_depends_on_the_task_that_spawns_does_not_wait_for_what_it_spawns(driver: Driver, log: Log) -> None:
    queue = driver.queue()
    parent = queue.submit(procq.task(spawning.spawn_notes).spec(log.path, "child", delay=0.2))
    after = queue.submit(procq.task(tasks.note, depends_on=[parent]).spec(log.path, "dependent"))
    queue.start()

    after.wait()
    drained(queue)

    assert log.lines == ["parent", "dependent", "child"]


def test_E1_tasks_may_depend_on_others_that_the_queue_knows(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    queue.submit(note.using(id="early").spec(log.path, "early")).wait()
    queue.submit(note.using(id="late", delay=0.1).spec(log.path, "late"))

    queue.submit(spawning.spawn_after, log.path, "early", "late").wait()

    assert queue.wait("after").value == "after"
    assert log.lines == ["early", "late", "after"]


def test_E4_a_task_that_is_spawned_after_a_failure_ends_cancelled(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.submit(procq.task(tasks.fail, id="bad").spec("no luck")).wait()

    parent = queue.submit(spawning.spawn_after, log.path, "bad")
    parent.wait()

    assert parent.status is Status.SUCCEEDED
    assert queue.handle("after").status is Status.CANCELLED
    with pytest.raises(errors.DependencyFailed, match="no luck"):
        queue.handle("after").result()


# --- options ---


def test_B1_spawned_tasks_are_ordered_by_their_priorities(driver: Driver, log: Log) -> None:
    driver.needs("what runs next is decided only when an attempt has ended")
    queue = driver.started()

    queue.submit(spawning.spawn_one_of_each_priority, log.path)
    drained(queue)

    assert log.lines == ["20", "10", "0", "-10"]


def test_D3_spawned_tasks_have_their_own_retries(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(spawning.spawn_with, "fail_before", 3, id="flaky", max_attempts=3, backoff=[0, 0.01]).wait()
    queue.submit(
        spawning.spawn_with, "fail", id="stubborn", max_attempts=3, backoff=0, never_retry=ValueError
    ).wait()  # fmt: skip

    assert queue.wait("flaky").value == "done"
    assert queue.wait("flaky").attempts == 3
    assert queue.wait("stubborn").attempts == 1


def test_D5_spawned_tasks_have_their_own_timeouts(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(spawning.spawn_with, "work", 60, id="slow", timeout=0.2).wait()

    with pytest.raises(errors.AttemptTimeout, match=r"timeout of 0\.2 s"):
        queue.handle("slow").result()


def test_B3_spawned_tasks_may_wait_for_a_time_or_expire(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.submit(spawning.spawn_with, "note", log.path, id="late", delay=0.2).wait()
    queue.submit(spawning.spawn_with, "note", log.path, id="expired", expires=0).wait()

    before = driver.now()
    assert queue.wait("late").status is Status.SUCCEEDED
    assert driver.now() >= before + 0.1
    assert isinstance(queue.wait("expired").error, errors.TaskExpired)


def test_B7_spawned_tasks_run_in_the_group_that_they_name(driver: Driver) -> None:
    queue = driver.started(groups={"heavy": 1})

    queue.submit(spawning.spawn_with, "echo", 3, id="there", group="heavy").wait()

    assert queue.wait("there").value == 3
    with queue._supervisor.lock:
        assert queue._supervisor.scheduler.find("there").group == "heavy"


def test_C6_a_full_queue_holds_up_no_spawn(driver: Driver, log: Log) -> None:
    """Nobody could wait: the task that spawns has ended, and what frees room may be what it spawns."""
    queue = driver.started(max_pending=1)

    queue.submit(spawning.spawn_notes, log.path, *[str(number) for number in range(10)]).wait()

    assert drained(queue) == (True, 11, 0, 0, (), None)


def test_H1_a_paused_queue_accepts_and_starts_nothing(driver: Driver) -> None:
    queue = driver.started()
    met = driver.during(queue, lambda _: queue.pause(), fn=spawning.meet_and_spawn)

    assert met.result() == "met"
    assert counted(queue) == {Status.SUCCEEDED: 1, Status.READY: 1, Status.BLOCKED: 1}
    queue.resume()
    assert queue.wait("last").value == 1


def test_H4_what_a_task_writes_before_it_spawns_is_captured(driver: Driver, log: Log) -> None:
    queue = driver.started(capture=True)
    handle = queue.submit(spawning.print_and_spawn, log.path)

    handle.wait()

    assert [(record.stdout, record.stderr) for record in handle.history] == [("out", "err")]
    assert drained(queue) == (True, 2, 0, 0, (), None)


# --- ids, and what is kept ---


def test_F5_a_spawned_task_without_an_id_is_forgotten_when_it_has_ended(driver: Driver, log: Log) -> None:
    queue = driver.started()
    handle = queue.submit(spawning.spawn_notes, log.path, "one", "two")
    handle.wait()
    queue.submit(spawning.spawn_with, "note", log.path, delay=0.1, id="last").wait()
    queue.wait("last")

    assert log.lines.count("one") == 1
    assert known(queue) - {"last"} <= {handle.id}


def test_F5_a_spawned_task_with_an_id_is_kept_and_can_be_waited_for(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(spawning.spawn_with, "echo", 5, id="mine").wait()

    assert queue.wait("mine").value == 5
    assert queue.handle("mine").result() == 5
    assert queue.cancel("mine") == "finished"


def test_F6_a_spawned_task_that_fails_is_a_dead_letter_and_can_be_replayed(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.submit(spawning.spawn_with, "later_once", log.path, -1, type="odd").wait()  # no such delay: it raises

    queue.submit(tasks.echo).wait()
    while not queue.dead_letters():
        queue.submit(tasks.echo).wait()
    (letter,) = queue.dead_letters()
    assert letter.type == "odd"
    assert queue.replay(letter.id) == 1
    assert drained(queue).failed == 0


def test_C4_ids_that_the_queue_makes_are_nobody_elses(driver: Driver, log: Log) -> None:
    queue = driver.started()
    spawning_ones = [queue.submit(spawning.spawn_notes, log.path, "a", "b") for _ in range(5)]
    others = [queue.submit(tasks.echo, "c") for _ in range(5)]

    assert drained(queue) == (True, 20, 0, 0, (), None)
    assert len({handle.id for handle in spawning_ones} | {handle.id for handle in others}) == 10


@pytest.mark.parametrize("size", [10, 500_000], ids=["small", "big"])
def test_C4_an_equal_task_that_is_known_counts_as_the_one_that_is_spawned(driver: Driver, size: int) -> None:
    queue = driver.started()
    mine = queue.submit(procq.task(tasks.echo, id="one", priority=0).spec(bytes(size)))
    queue.submit(spawning.spawn_named, size).result()
    mine.wait()
    queue.submit(spawning.spawn_named, size).result()

    assert queue.submit(procq.task(tasks.echo, id="one", priority=0).spec(bytes(size))) is mine
    assert drained(queue) == (True, 3, 0, 0, (), None)


@pytest.mark.parametrize("size", [10, 500_000], ids=["small", "big"])
def test_C4_what_was_spawned_may_be_submitted_again(driver: Driver, size: int) -> None:
    queue = driver.started()
    queue.submit(spawning.spawn_named, size).wait()

    assert queue.submit(procq.task(tasks.echo, id="one", priority=0).spec(bytes(size))).result() == bytes(size)
    with pytest.raises(errors.DuplicateTaskError, match="'one'"):
        queue.submit(procq.task(tasks.echo, id="one", priority=0).spec(bytes(size + 1)))
    with pytest.raises(errors.DuplicateTaskError, match="'one'"):
        queue.submit(spawning.spawn_named, size, priority=1).result()
    assert drained(queue).succeeded == 2


# --- what is refused ---


@pytest.mark.parametrize(
    ("what", "error", "match"),
    [
        ("unknown id", errors.UnknownDependencyError, r"echo\(…\) needs 'finer'.*the closest id is 'fine'"),
        ("used id", errors.DuplicateTaskError, r"id 'taken' is already used by another task of type 'echo' \(\w+\)"),
        ("one id twice", errors.DuplicateTaskError, r"id 'twice' is already used"),
        ("own id", errors.DuplicateTaskError, r"id 'parent' is already used by another task .*running"),
        ("cycle", errors.CycleError, r"dependency cycle: (a -> b -> a|b -> a -> b)"),
        ("no spec", errors.UsageError, r"expected a TaskSpec, got function"),
        ("argument", errors.PayloadError, r"'value' of echo\(\.\.\.\) can't be sent to a worker: .*lock"),
        ("handle", errors.UsageError, r"echo #\d+ can't be waited for by a task that is spawned: expected an id"),
        ("backoff", errors.UsageError, r"x: a backoff that is a function can't be passed on by a task"),
        ("handler", errors.UnknownHandlerError, r"no handler for type 'resise'; known are 'double'"),
        ("handler's payload", errors.PayloadError, r"'payload' of double\(\.\.\.\) can't be sent to a worker: .*lock"),
        ("value", errors.PayloadError, r"spawn_wrongly returned a generator, .*return a list instead"),
        ("nested", errors.PayloadError, r"spawn_wrongly returned a list, .* Spawn .* return it alone"),
        ("value that is one", errors.PayloadError, r"returned a Spawn, .* return it alone"),
        ("shared", errors.UsageError, r"echo\(…\) takes an object that a task has shared"),
        ("group", errors.UsageError, r"echo needs group 'nowhere'; this queue has 'default'"),
        ("cpus", errors.UsageError, r"echo asks for .*, so it could never start"),
        ("nothing to fail", errors.UsageError, r"run_if='failure' and depends on nothing"),
    ],
)
def test_E6_what_cannot_be_spawned_fails_the_attempt_for_good_and_nothing_is_accepted(
    driver: Driver, log: Log, what: str, error: type[Exception], match: str
) -> None:
    queue = driver.started(handlers={"double": tasks.double}, resources={"cpu": 2})
    queue.submit(procq.task(tasks.echo, id="taken", delay=3600).spec("mine"))
    spawns = procq.task(spawning.spawn_wrongly, id="parent", max_attempts=3, backoff=0)

    handle = queue.submit(spawns.spec(what, log.path))

    with pytest.raises(error, match=match):
        handle.result()
    assert type(handle.error) is error
    assert handle.status is Status.FAILED
    assert log.lines == ["ran"]
    assert [record.outcome for record in handle.history] == ["error"]
    assert [letter.id for letter in queue.dead_letters()] == ["parent"]
    assert counted(queue) == {Status.FAILED: 1, Status.SCHEDULED: 1}
    assert known(queue) == {"parent", "taken"}


def test_E6_a_refusal_is_told_with_all_its_parts(driver: Driver, log: Log) -> None:
    queue = driver.started()

    error = queue.submit(spawning.spawn_wrongly, "unknown id", log.path).exception()

    assert isinstance(error, errors.UnknownDependencyError)
    assert error.missing == ("finer",)
    assert isinstance(error, KeyError)


def test_D3_an_error_of_the_tasks_own_amid_its_specs_is_retried_as_any(driver: Driver, log: Log) -> None:
    queue = driver.started()
    spawns = procq.task(spawning.spawn_wrongly, max_attempts=2, backoff=0)

    handle = queue.submit(spawns.spec("iterable", log.path))

    with pytest.raises(ValueError, match="no more of them"):
        handle.result()
    assert log.lines == ["ran", "ran"]
    assert counted(queue) == {Status.FAILED: 1}


def test_E4_a_refusal_is_a_failure_to_those_that_depend_on_the_task(driver: Driver, log: Log) -> None:
    queue = driver.queue()
    parent = queue.submit(spawning.spawn_wrongly, "cycle", log.path)
    after = queue.submit(tasks.echo, parent)
    queue.start()

    with pytest.raises(errors.DependencyFailed, match="dependency cycle"):
        after.result()


def test_F7_a_task_whose_spawn_was_refused_may_be_replayed(driver: Driver, log: Log) -> None:
    queue = driver.started()
    handle = queue.submit(spawning.spawn_after, log.path, "first")
    with pytest.raises(errors.UnknownDependencyError):
        handle.result()

    queue.submit(procq.task(tasks.note, id="first").spec(log.path, "first"))
    queue.replay(handle)

    assert drained(queue) == (True, 3, 0, 0, (), None)
    assert log.lines == ["first", "after"]


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("one spec", r"Spawn got <TaskSpec echo\(…\)>: expected a list of specs; write Spawn\(\[spec\]\) for one"),
        ("nothing", "Spawn got None: expected a list of specs"),
        ("rule", "on_conflict='ignore': must be 'raise', 'same' or 'replace'"),
    ],
)
def test_E6_a_spawn_that_cannot_be_is_refused_where_it_is_made(driver: Driver, log: Log, what: str, match: str) -> None:
    queue = driver.started()

    handle = queue.submit(spawning.spawn_wrongly, what, log.path)

    with pytest.raises(errors.UsageError, match=match):
        handle.result()
    assert "in spawn_wrongly" in (handle.history[0].traceback or ""), "it leads to the task's own line"
    assert counted(queue) == {Status.FAILED: 1}


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("specs in a list", "returned a list"),
        ("specs in a tuple", "returned a tuple"),
        ("specs deep inside", "returned a dict"),
        ("spec alone", "returned a TaskSpec"),
        ("spec's out", "returned a list"),
        ("value with a spec", "returned a list"),
        ("generator of specs", "returned a generator"),
    ],
)
def test_E6_specs_that_are_returned_without_a_spawn_are_refused_with_a_word_on_it(
    driver: Driver, log: Log, what: str, match: str
) -> None:
    queue = driver.started()
    spawns = procq.task(spawning.spawn_wrongly, max_attempts=3, backoff=0)

    handle = queue.submit(spawns.spec(what, log.path))

    with pytest.raises(errors.PayloadError, match=rf"{match}, which cannot be sent back: .*return procq\.Spawn\("):
        handle.result()
    assert log.lines == ["ran"], "another attempt would return the same"
    assert counted(queue) == {Status.FAILED: 1}


def test_E6_an_item_of_a_map_that_returns_specs_is_refused_alone(driver: Driver) -> None:
    queue = driver.started()

    results = queue.map(spawning.specs_if_odd, range(20), chunksize=10)

    for number in range(20):
        if number % 2:
            with pytest.raises(errors.PayloadError, match=r"return procq\.Spawn\("):
                next(results)
        else:
            assert next(results) == number


# --- ids that are used ---


def test_C4_a_spawn_may_ignore_what_is_known_already(driver: Driver, log: Log) -> None:
    queue = driver.started()
    ended = queue.submit(procq.task(tasks.note, id="ended").spec(log.path, "ended"))
    ended.wait()
    delayed = queue.submit(procq.task(tasks.note, id="delayed", delay=3600).spec(log.path, "delayed"))

    told = queue.submit(spawning.spawn_under_used_ids, log.path, "same", "ended", "new", "delayed").result()

    assert told == "told"
    assert queue.wait("new").value == "spawned new"
    assert log.lines == ["ended", "spawned new"]
    assert (queue.handle("ended"), queue.handle("delayed")) == (ended, delayed)


def test_C4_a_spawn_brings_nothing_that_only_an_ignored_task_needs(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.submit(procq.task(tasks.echo, id="used").spec("mine")).wait()

    queue.submit(spawning.spawn_after_used, log.path).wait()

    assert queue.wait("last").value == ["mine", "needed"]
    assert drained(queue) == (True, 4, 0, 0, (), None)
    assert log.lines == ["needed"]


def test_C4_a_spawn_may_name_an_id_twice_if_conflicts_are_ignored(driver: Driver) -> None:
    queue = driver.started()

    assert queue.submit(spawning.spawn_one_id_twice, "same").result() == "told"
    assert queue.wait("twice").value == 1
    for rule in ("raise", "replace"):
        with pytest.raises(errors.DuplicateTaskError, match="id 'twice' is already used by another task of the same"):
            queue.submit(spawning.spawn_one_id_twice, rule).result()


@pytest.mark.parametrize("state", ["ready", "delayed", "blocked"])
def test_C4_a_spawn_may_take_the_place_of_what_waits(driver: Driver, log: Log, state: str) -> None:
    story = Story()
    queue = driver.started(on_event=story)
    note = procq.task(tasks.note, id="report")
    if state == "delayed":
        note = note.using(delay=3600)
    elif state == "blocked":
        note = note.using(depends_on=[queue.submit(procq.task(tasks.echo, delay=3600).spec())])
    olds: list[procq.Handle[str]] = []

    def submit_old(_: "procq.Handle[str]") -> None:
        queue.pause()  # so that it has not begun when the other one takes its place
        olds.append(queue.submit(note.spec(log.path, "old")))

    met = driver.during(queue, submit_old, fn=partial(spawning.meet_and_replace, path=log.path, name="report"))
    assert met.result() == "met"
    queue.resume()

    assert queue.wait("report").value == "new"
    with pytest.raises(errors.TaskCancelled, match="'report' was replaced by another task under the same id"):
        olds[0].result()
    assert log.lines == ["new"]
    driver.check(queue)
    queue.shutdown(mode="finish")
    story.check()
    told = [(event["ev"], event.get("cause")) for event in story.events if event.get("id") == "report"]
    assert told[2:4] == [("task.ended", "replaced"), ("task.submitted", None)]
    assert told[-1] == ("task.ended", None)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_C4_a_spawn_may_take_the_id_of_what_has_ended(driver: Driver, log: Log, end: str) -> None:
    queue = driver.started()
    old: procq.Handle[Any]
    if end == "failed":
        old = queue.submit(procq.task(tasks.fail, id="report").spec("old"))
    else:
        old = queue.submit(procq.task(tasks.echo, id="report", delay=3600 if end == "cancelled" else 0).spec("old"))
    if end == "cancelled":
        old.cancel()
    old.wait()

    queue.submit(spawning.spawn_under_used_ids, log.path, "replace", "report").wait()

    assert queue.wait("report").value == "spawned report"
    assert old.status == end, "whoever holds it can still ask"
    assert queue.dead_letters() == []


def test_C4_a_spawn_may_take_the_id_of_a_task_that_led_to_it(driver: Driver, log: Log) -> None:
    queue = driver.started()

    queue.submit(spawning.step.using(id="step-0").spec(log.path, 0))

    assert drained(queue) == (True, 7, 0, 0, (), None)
    assert log.lines == [str(number) for number in range(7)]
    assert [queue.wait(f"step-{number}").value for number in range(2)] == [6, 5]


def test_C4_a_task_does_not_replace_itself_for_its_own_success_is_kept(driver: Driver, log: Log) -> None:
    queue = driver.started()
    spawns = procq.task(spawning.spawn_for_itself, id="me", max_attempts=3, backoff=0)

    handle = queue.submit(spawns.spec(log.path, "replace"))

    match = "id 'me' is already used by the task that spawns it, whose result .*; give the new task another id"
    with pytest.raises(errors.DuplicateTaskError, match=match):
        handle.result()
    assert log.lines == ["parent"]
    assert known(queue) == {"me"}


def test_C4_a_task_may_ignore_what_it_spawns_under_its_own_id(driver: Driver, log: Log) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(spawning.spawn_for_itself, id="me").spec(log.path, "same"))

    assert handle.result() == "told"
    assert drained(queue) == (True, 2, 0, 0, (), None)
    assert log.lines == ["parent", "after"]


def test_C4_what_runs_is_not_replaced_by_a_spawn(driver: Driver, log: Log) -> None:
    driver.needs(BACKGROUND)
    queue = driver.started(groups={"other": 1})
    spawns = procq.task(spawning.spawn_under_used_ids, max_attempts=3, backoff=0, group="other")
    parents: list[procq.Handle[str]] = []

    def replace(_: "procq.Handle[str]") -> None:
        parents.append(queue.submit(spawns.spec(log.path, "replace", "new", "busy")))
        parents[0].wait()

    busy = driver.during(queue, replace, id="busy")

    with pytest.raises(errors.DuplicateTaskError, match="id 'busy' is already used by a task that runs"):
        parents[0].result()
    assert busy.result() == "met"
    assert known(queue) == {"busy", parents[0].id}
    assert log.lines == []


def test_C4_what_others_wait_for_is_not_replaced_by_a_spawn(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.submit_many(
        [
            procq.task(tasks.echo, id="free", delay=3600).spec("old"),
            procq.task(tasks.echo, id="needed", delay=3600).spec("old"),
            procq.task(tasks.echo, depends_on=["needed"]).spec(),
        ]
    )

    handle = queue.submit(spawning.spawn_under_used_ids, log.path, "replace", "free", "needed")

    with pytest.raises(errors.DuplicateTaskError, match="others wait for"):
        handle.result()
    assert counted(queue) == {Status.FAILED: 1, Status.SCHEDULED: 2, Status.BLOCKED: 1}


def test_F2_an_item_of_a_map_says_what_a_used_id_means(driver: Driver, log: Log) -> None:
    queue = driver.started()

    told = list(queue.map(partial(spawning.spawn_under_used_ids, log.path, "same"), ["page"] * 20, chunksize=5))

    assert told == ["told"] * 20
    assert drained(queue).drained
    assert log.lines == ["spawned page"]


# --- attempts ---


@pytest.mark.parametrize("spawns", [spawning.fail_before_spawning, spawning.die_before_spawning])
def test_D1_only_the_attempt_that_succeeds_spawns(
    driver: Driver, log: Log, spawns: Callable[[int, str], object]
) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(spawns, max_attempts=3, backoff=0).spec(3, log.path))
    handle.wait()

    assert drained(queue) == (True, 2, 0, 0, (), None)
    assert handle.attempts == 3
    assert log.lines == ["child"]


def test_D5_a_task_that_exceeds_its_timeout_spawns_nothing(driver: Driver) -> None:
    queue = driver.started()
    spawns = procq.task(spawning.work_and_spawn_all_the_same, timeout=0.2)

    handle = queue.submit(spawns.spec(60))

    assert isinstance(handle.exception(), errors.AttemptTimeout)
    assert counted(queue) == {Status.FAILED: 1}


def test_F3_a_task_that_is_cancelled_spawns_nothing(driver: Driver) -> None:
    queue = driver.started()

    met = driver.during(queue, lambda handle: handle.cancel(), fn=spawning.meet_and_spawn)

    assert met.status is Status.CANCELLED
    assert counted(queue) == {Status.CANCELLED: 1}


# --- shutdown ---


@pytest.mark.parametrize("mode", ["finish", "kill"])
def test_G1_what_is_spawned_while_a_shutdown_cuts_the_work_short_is_cut_off(driver: Driver, mode: Mode) -> None:
    queue = driver.started()
    waiting = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    reports: list[ShutdownReport] = []
    enders: list[threading.Thread] = []

    def cut(_: "procq.Handle[str]") -> None:
        ended = threading.Event()
        waiting.add_done_callback(lambda _: ended.set())
        enders.append(threading.Thread(target=lambda: reports.append(queue.shutdown(mode=mode))))
        enders[0].start()
        assert ended.wait(20)

    fn = spawning.meet_and_spawn if mode == "finish" else spawning.meet_to_the_end_and_spawn
    met = driver.during(queue, cut, fn=fn)
    enders[0].join(20)

    if mode == "finish":
        assert met.result() == "met"
        assert reports[0].cut_off == (waiting.id, "first", "last")
        for name in ("first", "last"):
            assert queue.handle(name).status is Status.CANCELLED
            with pytest.raises(errors.TaskCancelled, match="cut off by the shutdown"):
                queue.handle(name).result()
    else:  # it was asked to stop, and so what it returned does not count
        assert met.status is Status.CANCELLED
        assert reports[0].cut_off == (met.id, waiting.id) or reports[0].cut_off == (waiting.id, met.id)


def test_G1_what_is_spawned_while_the_queue_drains_runs(driver: Driver, log: Log) -> None:
    queue = driver.started()
    handle = queue.submit(procq.task(spawning.count_down, delay=0.1).spec(log.path, 5))

    report = queue.shutdown(mode="drain")

    assert report == (True, 6, 0, 0, (), None)
    assert handle.result() == 5
    assert len(log.lines) == 6


def test_C7_a_shutdown_that_waits_for_a_spawn_refuses_others_and_not_that(driver: Driver) -> None:
    queue = driver.started()
    reports: list[ShutdownReport] = []
    enders: list[threading.Thread] = []

    def drain(_: "procq.Handle[str]") -> None:
        enders.append(threading.Thread(target=lambda: reports.append(queue.shutdown())))
        enders[0].start()
        while queue._supervisor.accepts:
            enders[0].join(0.01)
        with pytest.raises(errors.QueueClosedError):
            queue.submit(tasks.echo)

    met = driver.during(queue, drain, fn=spawning.meet_and_spawn)
    enders[0].join(20)

    assert met.result() == "met"
    assert reports == [(True, 3, 0, 0, (), None)]
    assert queue.handle("last").result() == 1


# --- handlers ---


@pytest.mark.parametrize(
    "handler",
    [tasks.double, procq.task(tasks.double), lambda payload: tasks.double(payload)],  # noqa: PLW0108 - by value
    ids=["function", "task function", "lambda"],
)
def test_C2_a_task_may_spawn_calls_of_handlers(driver: Driver, handler: Callable[[object], object]) -> None:
    queue = driver.started(handlers={"double": handler})

    queue.submit(spawning.spawn_handled, "double", 21).wait()

    assert queue.wait("handled").value == 42
    assert queue.submit(procq.TaskSpec(type="double", payload=21)).result() == 42


def test_E2_a_handler_may_take_the_result_of_another_that_is_spawned(driver: Driver) -> None:
    queue = driver.started(handlers={"double": tasks.double})

    queue.submit(spawning.spawn_handled_sum, 5).wait()

    assert queue.wait("handled").value == 20


@pytest.mark.parametrize("handler", [tasks.double, lambda payload: tasks.double(payload)], ids=["by name", "by value"])  # noqa: PLW0108
def test_C4_a_handlers_task_is_the_same_submitted_or_spawned(
    driver: Driver, handler: Callable[[object], object]
) -> None:
    queue = driver.started(handlers={"double": handler})
    mine: procq.Handle[object] = queue.submit(procq.TaskSpec(type="double", payload=4, id="handled"))

    assert queue.submit(spawning.spawn_handled, "double", 4).result() is None
    assert drained(queue) == (True, 2, 0, 0, (), None)
    assert mine.result() == 8


def test_I1_a_handler_may_be_spawned_with_something_big(driver: Driver) -> None:
    queue = driver.started(handlers={"length": len})

    queue.submit(spawning.spawn_handled, "length", bytes(10**6)).wait()

    assert queue.wait("handled").value == 10**6


@pytest.mark.parametrize(
    ("handler", "match"),
    [
        (tasks.Unpicklable(), "handler of type 'odd' can't be sent to a worker: never leaves home"),
        (
            lambda payload, extra=bytes(70_000): (payload, extra),
            "handler of type 'odd' is too big .*put it into a module",
        ),
    ],
    ids=["unpicklable", "big"],
)
def test_C2_a_handler_that_cannot_be_spawned_harms_nobody_else(
    driver: Driver, handler: Callable[[Any], object], match: str
) -> None:
    queue = driver.started(handlers={"odd": handler, "double": tasks.double})

    with pytest.raises(errors.PayloadError, match=match):
        queue.submit(spawning.spawn_handled, "odd", 1).result()
    queue.submit(spawning.spawn_handled, "double", 1).wait()
    assert queue.wait("handled").value == 2


# --- big data, and maps ---


def test_I1_big_arguments_and_results_travel_with_a_spawn(driver: Driver) -> None:
    queue = driver.started()
    size = 300_032

    data = queue.submit(spawning.spawn_big, size).result()

    assert len(data) == size
    assert queue.wait("bytes").value == data
    assert queue.wait("array").value == bytearray(data)
    assert queue.wait("length").value == [size, size]


@pytest.mark.parametrize("chunksize", [1, 7, "auto"])
def test_F2_an_item_of_a_map_may_spawn(driver: Driver, chunksize: Any) -> None:  # noqa: ANN401
    """One that shared a task with others runs again, as a task of its own."""
    queue = driver.started()

    results = list(queue.map(spawning.spawn_if_odd, range(30), chunksize=chunksize))

    assert results == [-number if number % 2 else number for number in range(30)]
    for number in range(1, 30, 2):
        assert queue.wait(f"child-{number}").value == number


def test_C4_a_task_of_a_script_is_the_same_submitted_or_spawned(driver: Driver, log: Log) -> None:
    """A crawl meets the same page many times, and its root too, which the program has submitted."""
    code = """
import procq
from tests.contract.tasks import note

LINKS = {"home": ["news", "shop"], "news": ["home", "shop"], "shop": ["home"]}

@procq.task
def visit(path, page):
    note(path, page)
    return procq.Spawn([visit.using(id=link).spec(path, link) for link in LINKS[page]], value=page)
"""
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(code, script)  # as a script that is run
    queue = driver.started()
    visit = script["visit"]

    home = queue.submit(visit.using(id="home").spec(log.path, "home"))

    assert drained(queue) == (True, 3, 0, 0, (), None)
    assert home.result() == "home"
    assert sorted(log.lines) == ["home", "news", "shop"]


def test_C5_a_task_function_of_a_script_can_spawn_itself(driver: Driver, log: Log) -> None:
    """It is known by no name in a worker, and yet arrives with its options."""
    code = """
import procq
from tests.contract.tasks import note

@procq.task(max_attempts=2)
def down(path, number):
    note(path, f"{number} {down.options.max_attempts}")
    return procq.Spawn([down.spec(path, number - 1)] if number else [], value=number)
"""
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(code, script)
    queue = driver.started()

    assert queue.submit(script["down"], log.path, 2).result() == 2
    drained(queue)

    assert log.lines == ["2 2", "1 2", "0 2"]
