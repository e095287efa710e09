"""What a used id means: an error, the task that has it, or a task to be replaced (contract C4)."""

from typing import Any, get_args

import pytest
from tests.contract import tasks
from tests.contract.drivers import Driver
from tests.contract.log import Log

import procq
from procq import Status, errors
from procq.inside import ON_CONFLICT
from procq.spec import OnConflict, TaskSpec

echo = procq.task(tasks.echo)


def named(task_id: str, value: object = None, **options: Any) -> TaskSpec[object]:  # noqa: ANN401 - any option
    return echo.using(id=task_id, **options).spec(value)


def waiting(queue: procq.Queue) -> int:
    counts = queue.stats().counts
    return counts[Status.READY] + counts[Status.SCHEDULED] + counts[Status.BLOCKED]


# --- the keyword ---


def test_C4_what_may_be_said_of_a_conflict_is_what_type_checkers_know() -> None:
    assert get_args(OnConflict) == ON_CONFLICT


def test_C4_on_conflict_stands_beside_a_spec_only(driver: Driver) -> None:
    queue = driver.started()

    assert queue.submit(tasks.keywords, on_conflict="same").result() == {"on_conflict": "same"}
    with pytest.raises(errors.UsageError, match="on_conflict='ignore': must be 'raise', 'same' or 'replace'"):
        queue.submit(named("a"), on_conflict="ignore")  # type: ignore[call-overload]
    with pytest.raises(errors.UsageError, match="on_conflict=None"):
        queue.submit_many([named("a")], on_conflict=None)  # type: ignore[arg-type]
    assert waiting(queue) == 0


@pytest.mark.parametrize("on_conflict", ON_CONFLICT)
def test_C4_the_same_spec_is_the_same_task_whatever_a_conflict_means(driver: Driver, on_conflict: OnConflict) -> None:
    queue = driver.started()
    spec = named("once", 1)
    first = queue.submit(spec, on_conflict=on_conflict)

    assert queue.submit(spec, on_conflict=on_conflict) is first
    assert queue.submit(named("once", 1), on_conflict=on_conflict) is first
    assert first.result() == 1
    assert queue.submit_many([named("once", 1)], on_conflict=on_conflict) == [first]
    assert queue.submit(spec, on_conflict=on_conflict) is first


@pytest.mark.parametrize("on_conflict", ON_CONFLICT)
def test_C4_without_a_conflict_they_all_mean_the_same(driver: Driver, on_conflict: OnConflict) -> None:
    queue = driver.started()

    handles = queue.submit_many([named("a", 1), echo.spec(2), named("b", named("c", 3))], on_conflict=on_conflict)

    assert [handle.result() for handle in handles] == [1, 2, 3]
    assert queue.wait("c").value == 3


# --- same ---


def test_C4_same_returns_what_is_known_whatever_it_is(driver: Driver, log: Log) -> None:
    queue = driver.started()
    running: list[procq.Handle[Any]] = []

    def submit_again(_: "procq.Handle[str]") -> None:
        running.append(queue.submit(named("busy", "never"), on_conflict="same"))

    busy = driver.during(queue, submit_again, id="busy")
    ended = queue.submit(procq.task(tasks.fail, id="dead").spec())
    ended.wait()
    delayed = queue.submit(named("later", 1, delay=3600))

    others = [procq.task(tasks.note, id=name).spec(log.path) for name in ("dead", "later")]
    handles: list[object] = [*queue.submit_many(others, on_conflict="same")]
    assert handles == [ended, delayed]
    assert running == [busy]
    assert busy.result() == "met"
    assert queue.handle(others[0]).id == "dead", "from now on the spec is that task"
    assert log.lines == []


def test_C4_same_submits_nothing_that_only_the_ignored_spec_needs(driver: Driver, log: Log) -> None:
    queue = driver.started()
    known = queue.submit(named("known", 1))
    needed = procq.task(tasks.note).spec(log.path, "needed")
    not_needed = procq.task(tasks.note).spec(log.path, "not needed")
    ignored = named("known", [not_needed, needed])

    handles = queue.submit_many([ignored, echo.spec([ignored, needed])], on_conflict="same")

    assert handles[0] is known
    assert handles[1].result() == [1, "needed"]
    queue.shutdown()
    assert log.lines == ["needed"]


def test_C4_same_asks_nothing_of_what_an_ignored_spec_needs(driver: Driver) -> None:
    queue = driver.queue()
    known = queue.submit(named("known", 1))

    assert queue.submit(named("known", depends_on=["nobody"]), on_conflict="same") is known


def test_C4_same_takes_the_first_of_a_list_that_names_an_id_twice(driver: Driver) -> None:
    queue = driver.started()
    first, second = named("twice", 1), named("twice", 2)

    handles = queue.submit_many([first, echo.using(depends_on=["twice"]).spec(second), second], on_conflict="same")

    assert [handle.result() for handle in handles] == [1, 1, 1]
    assert handles[0] is handles[2]


# --- replace ---


@pytest.mark.parametrize("state", ["ready", "delayed", "blocked"])
def test_C4_replace_takes_the_place_of_a_task_that_waits(driver: Driver, log: Log, state: str) -> None:
    queue = driver.queue()
    note = procq.task(tasks.note, id="report")
    if state == "delayed":
        note = note.using(delay=3600)
    elif state == "blocked":
        note = note.using(depends_on=[queue.submit(echo.using(delay=3600).spec())])
    old = queue.submit(note.spec(log.path, "old"))
    ended: list[Status] = []
    old.add_done_callback(lambda handle: ended.append(handle.status))

    new = queue.submit(procq.task(tasks.note, id="report").spec(log.path, "new"), on_conflict="replace")
    queue.start()

    assert new is not old
    assert new.result() == "new"
    with pytest.raises(errors.TaskCancelled, match="'report' was replaced by another task under the same id"):
        old.result()
    assert log.lines == ["new"]
    assert queue.handle("report") is new
    queue.cancel("report")
    driver.check(queue)


def test_C4_replace_has_a_place_of_its_own_in_the_order(driver: Driver, log: Log) -> None:
    queue = driver.queue()
    note = procq.task(tasks.note)
    queue.submit(note.using(id="a").spec(log.path, "old"))
    queue.submit(note.spec(log.path, "between"))

    last = queue.submit(note.using(id="a").spec(log.path, "new"), on_conflict="replace")
    queue.start()
    last.wait()

    assert log.lines == ["between", "new"]


def test_C4_replace_takes_back_what_was_sent_ahead(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note, id="ahead")
    queue.submit(tasks.echo).wait()

    def replace(_: "procq.Handle[str]") -> None:
        handles.append(queue.submit(note.spec(log.path, "old")))
        handles.append(queue.submit(note.spec(log.path, "new"), on_conflict="replace"))

    handles: list[procq.Handle[str]] = []
    driver.during(queue, replace)

    old, new = handles
    assert new.result() == "new"
    assert old.status is Status.CANCELLED
    assert log.lines == ["new"]


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_C4_replace_forgets_a_task_that_has_ended(driver: Driver, end: str) -> None:
    queue = driver.started()
    old: procq.Handle[Any]
    if end == "failed":
        old = queue.submit(procq.task(tasks.fail, id="x").spec("old"))
    else:
        old = queue.submit(named("x", "old", delay=3600 if end == "cancelled" else 0))
    if end == "cancelled":
        old.cancel()
    old.wait()

    new = queue.submit(named("x", "new"), on_conflict="replace")

    assert new.result() == "new"
    assert old.status == end, "whoever holds it can still ask"
    assert queue.wait("x").value == "new"
    assert queue.dead_letters() == []
    if end != "succeeded":
        with pytest.raises(errors.DuplicateTaskError):
            queue.replay(old)


def test_C4_replace_may_use_the_result_of_what_it_replaces(driver: Driver) -> None:
    queue = driver.started()
    old = queue.submit(named("total", 1))
    old.wait()

    new = queue.submit(named("total", [old, 10]), on_conflict="replace")

    assert new.result() == [1, 10]


def test_C4_what_runs_is_not_replaced(driver: Driver) -> None:
    queue = driver.started()
    refusals: list[str] = []

    def replace(_: "procq.Handle[str]") -> None:
        for spec in (named("busy"), named("busy", 1, max_attempts=2)):
            with pytest.raises(errors.DuplicateTaskError) as caught:
                queue.submit(spec, on_conflict="replace")
            refusals.append(str(caught.value))

    met = driver.during(queue, replace, id="busy")

    assert (
        refusals
        == ["id 'busy' is already used by a task that runs, and so can't be replaced; cancel it, or wait for its end"]
        * 2
    )
    assert met.result() == "met"


def test_C4_what_others_wait_for_is_not_replaced(driver: Driver) -> None:
    queue = driver.queue()
    old = queue.submit(named("first", 1))
    queue.submit(named("second", old))

    with pytest.raises(errors.DuplicateTaskError, match=r"others wait for \('second' is one\).*; cancel those"):
        queue.submit(named("first", 2), on_conflict="replace")

    queue.start()
    assert queue.wait("second").value == 1
    assert queue.submit(named("first", 2), on_conflict="replace").result() == 2, "nobody waits for it any more"


def test_C4_what_the_same_submit_needs_is_not_replaced(driver: Driver) -> None:
    queue = driver.queue()
    old = queue.submit(named("x", 1))

    for other in (named("x", old), echo.spec([named("x", 2), old])):
        with pytest.raises(errors.DuplicateTaskError, match="of the same submit needs"):
            queue.submit(other, on_conflict="replace")

    assert waiting(queue) == 1
    assert old.status is Status.READY


def test_C4_by_its_id_a_list_means_the_new_task(driver: Driver) -> None:
    queue = driver.queue()
    queue.submit(named("x", "old"))

    handles = queue.submit_many(
        [procq.task(tasks.echo, depends_on=["x"]).spec("after"), named("x", "new")], on_conflict="replace"
    )
    queue.start()

    assert [handle.result() for handle in handles] == ["after", "new"]


@pytest.mark.parametrize("why", ["waited for", "twice", "group"])
def test_C4_replace_is_all_or_nothing(driver: Driver, log: Log, why: str) -> None:
    queue = driver.queue()
    note = procq.task(tasks.note)
    old = [queue.submit(note.using(id=name).spec(log.path, f"old {name}")) for name in "abc"]
    new = [note.using(id=name).spec(log.path, f"new {name}") for name in "ab"]
    if why == "waited for":
        queue.submit(echo.using(depends_on=["c"]).spec())
        new.append(note.using(id="c").spec(log.path, "new c"))
    elif why == "twice":
        new.append(note.using(id="a").spec(log.path, "new a again"))
    else:
        new.append(note.using(group="nowhere").spec(log.path, "new"))

    with pytest.raises(errors.UsageError):
        queue.submit_many(new, on_conflict="replace")
    driver.check(queue)
    queue.start()
    queue.shutdown()

    assert [handle.status for handle in old] == [Status.SUCCEEDED] * 3
    assert log.lines == ["old a", "old b", "old c"]


def test_C4_a_list_may_replace_some_know_some_and_add_some(driver: Driver) -> None:
    queue = driver.queue()
    same, old = queue.submit_many([named("same", 1), named("old", 1)])

    handles = queue.submit_many([named("same", 1), named("old", 2), named("new", 3)], on_conflict="replace")
    queue.start()

    assert handles[0] is same
    assert [handle.result() for handle in handles] == [1, 2, 3]
    assert old.status is Status.CANCELLED


def test_C4_a_spec_that_was_replaced_may_replace_again(driver: Driver) -> None:
    queue = driver.started()
    one, two = named("x", 1), named("x", 2)
    first = queue.submit(one)
    first.wait()
    second = queue.submit(two, on_conflict="replace")
    second.wait()

    assert queue.submit(one) is first, "one spec is one task (C1)"
    third = queue.submit(one, on_conflict="replace")
    assert third.result() == 1
    assert queue.submit(two, on_conflict="same") is third
    assert first not in {second, third}


def test_C6_a_replacement_needs_no_room_beside_what_it_replaces(driver: Driver) -> None:
    queue = driver.queue(max_pending=2)
    queue.submit_many([named("x", 1), named("y", 1)])

    new = queue.submit(named("x", 2), on_conflict="replace", block=False)
    with pytest.raises(errors.QueueFullError):
        queue.submit(named("z"), on_conflict="replace", block=False)
    queue.start()

    assert new.result() == 2


def test_C4_a_generator_is_submitted_one_by_one(driver: Driver) -> None:
    queue = driver.queue()

    handles = queue.submit_many((named("x", number) for number in range(3)), on_conflict="replace")
    queue.start()

    assert handles[2].result() == 2
    assert [handle.status for handle in handles[:2]] == [Status.CANCELLED] * 2
