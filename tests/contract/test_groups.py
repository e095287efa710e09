"""Groups of workers, as every engine has them (contract B7)."""

from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from tests.contract import tasks
from tests.contract.drivers import Driver
from tests.contract.log import Log

import procq
from procq import Priority, Status, errors

GROUPS = {"heavy": 2, "light": 3}


# --- which there are ---


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({"heavy": 0}, r"groups\['heavy'\]=0: must be at least 1"),
        ({"heavy": 1.5}, r"groups\['heavy'\]=1.5: "),
        ({"heavy": True}, r"groups\['heavy'\]=True: "),
        ({"heavy": "2"}, r"groups\['heavy'\]='2': "),
        ({"": 1}, "groups: '' is no name; expected how many workers by name"),
        ({3: 1}, "groups: 3 is no name; expected"),
        (["heavy"], r"groups=\['heavy'\]: expected how many workers by name"),
        ("heavy", "groups='heavy': expected how many workers by name"),
    ],
)
def test_C3_groups_that_cannot_be_are_refused(driver: Driver, groups: Any, told: str) -> None:  # noqa: ANN401 - wrong
    with pytest.raises(errors.UsageError, match=f"^{told}"):
        driver.queue(groups=groups)


@pytest.mark.parametrize("groups", [None, {}])
def test_B7_the_default_group_is_there_without_any_other(driver: Driver, groups: Mapping[str, int] | None) -> None:
    queue = driver.started(groups=groups)

    assert queue.groups == {"default": 1}
    assert queue.submit(procq.task(tasks.echo, group="default").spec(1)).result() == 1
    assert repr(queue) == "<Queue 1 workers, 0 waiting>"


def test_B7_a_queue_tells_its_groups_and_how_many_workers_there_are_in_all(driver: Driver) -> None:
    queue = driver.started(groups=GROUPS)

    assert queue.groups == {"default": 1, **GROUPS}
    assert queue.workers == 6
    assert repr(queue) == "<Queue 6 workers (1 default, 2 heavy, 3 light), 0 waiting>"
    assert list(queue.stats().groups) == ["default", "heavy", "light"]
    assert all(states.keys() == queue.stats().workers.keys() for states in queue.stats().groups.values())


def test_B7_what_a_queue_tells_of_its_groups_is_a_copy(driver: Driver) -> None:
    groups = dict(GROUPS)
    queue = driver.queue(groups=groups)
    groups["more"] = queue.groups["more"] = 1

    assert queue.groups == {"default": 1, **GROUPS}


# --- an unknown group ---


def refused(driver: Driver, submit: Any) -> None:  # noqa: ANN401 - called with a queue and a task function
    """Check that what names an unknown group is refused, and that the queue is none the worse for it."""
    queue = driver.started(groups=GROUPS)
    lost = procq.task(tasks.echo, group="gpu")
    with pytest.raises(errors.UsageError) as caught:
        submit(queue, lost)

    assert str(caught.value) == "echo needs group 'gpu'; this queue has 'default', 'heavy', 'light'"
    assert not any(queue.stats().counts.values())
    assert queue.submit(tasks.echo, 1).result() == 1


def test_B7_an_unknown_group_is_refused_at_submit(driver: Driver) -> None:
    refused(driver, lambda queue, lost: queue.submit(lost.spec(1)))


def test_B7_an_unknown_group_is_refused_at_submit_of_a_task_function(driver: Driver) -> None:
    refused(driver, lambda queue, lost: queue.submit(lost, 1))


def test_B7_an_unknown_group_in_a_list_refuses_all_of_it(driver: Driver) -> None:
    known = procq.task(tasks.echo, group="heavy")
    refused(driver, lambda queue, lost: queue.submit_many([known.spec(1), lost.spec(2), known.spec(3)]))


def test_B7_an_unknown_group_of_a_dependency_refuses_what_depends_on_it(driver: Driver) -> None:
    refused(driver, lambda queue, lost: queue.submit(tasks.echo, lost.spec(1)))


def test_B7_an_unknown_group_is_refused_by_a_map_before_it_reads_anything(driver: Driver) -> None:
    items = count()
    refused(driver, lambda queue, lost: queue.map(lost, items))
    assert next(items) == 0


def test_B7_an_unknown_group_is_refused_by_a_queue_without_groups(driver: Driver) -> None:
    queue = driver.queue()

    with pytest.raises(errors.UsageError, match=r"^echo needs group 'gpu'; this queue has 'default'$"):
        queue.submit(procq.task(tasks.echo, group="gpu").spec())


def test_H1_an_unknown_group_cannot_be_resized(driver: Driver) -> None:
    queue = driver.queue(groups=GROUPS)

    with pytest.raises(errors.UsageError, match="needs group 'gpu'; this queue has 'default', 'heavy', 'light'"):
        queue.resize(2, "gpu")
    with pytest.raises(errors.UsageError, match="workers=0"):
        queue.resize(0, "heavy")

    assert queue.groups == {"default": 1, **GROUPS}
    queue.resize(4, group="heavy")
    queue.resize(2)
    assert queue.groups == {"default": 2, "heavy": 4, "light": 3}


# --- what runs in them ---


def test_B7_tasks_of_every_group_run(driver: Driver) -> None:
    queue = driver.queue(groups=GROUPS)
    handles = [
        queue.submit(procq.task(tasks.echo, group=group).spec(number))
        for number in range(20)
        for group in ("default", "heavy", "light")
    ]
    queue.start()

    assert [handle.result() for handle in handles] == [number for number in range(20) for _ in range(3)]


def test_E2_results_go_from_group_to_group(driver: Driver) -> None:
    queue = driver.started(groups=GROUPS)
    add = procq.task(tasks.add)
    first = add.using(group="heavy").spec(1, 2)
    second = add.using(group="light").spec(first.out, 3)

    assert queue.submit(tasks.add, queue.submit(second).out, first.out).result() == 9


def test_B1_within_a_group_the_most_urgent_runs_first(driver: Driver, log: Log) -> None:
    queue = driver.queue(groups={"heavy": 1})
    note = procq.task(tasks.note, group="heavy")
    handles = [
        queue.submit(note.using(priority=priority).spec(log.path, f"{int(priority)}/{number}"))
        for number, priority in enumerate((Priority.LOW, Priority.HIGH, 0, Priority.HIGH))
    ]
    queue.start()
    for handle in handles:
        handle.wait()

    assert log.lines == ["10/1", "10/3", "0/2", "-10/0"]


def test_B4_a_limit_holds_in_all_groups_together(driver: Driver, log: Log) -> None:
    queue = driver.started(groups=GROUPS, limits={"meet": 1})
    statuses: list[Status] = []

    def submit(_: "procq.Handle[str]") -> None:
        same = queue.submit(procq.task(tasks.note, type="meet", group="light").spec(log.path))
        statuses.append(same.status)

    driver.during(queue, submit, type="meet", group="heavy")
    queue.shutdown()

    assert statuses == [Status.READY]
    assert log.lines == ["ran"]


def test_F3_what_waits_in_a_group_can_be_cancelled_and_replayed(driver: Driver, log: Log) -> None:
    queue = driver.started(groups=GROUPS)
    queue.pause()
    handle = queue.submit(procq.task(tasks.note, group="heavy").spec(log.path))
    assert handle.cancel() == "cancelled"

    assert queue.replay(handle) == 1
    assert handle.status is Status.READY
    queue.resume()

    assert handle.result() == "ran"
    assert log.lines == ["ran"]


def test_C4_the_same_id_in_another_group_is_another_task(driver: Driver) -> None:
    queue = driver.started(groups=GROUPS)
    one = procq.task(tasks.echo, id="one", group="heavy")
    first = queue.submit(one.spec(1))

    assert queue.submit(one.spec(1)) is first
    with pytest.raises(errors.DuplicateTaskError):
        queue.submit(one.using(group="light").spec(1))


def test_G1_a_drain_ends_what_waits_in_every_group(driver: Driver) -> None:
    queue = driver.started(groups=GROUPS)
    queue.pause()
    handles = [
        queue.submit(procq.task(tasks.echo, group=group, delay=delay).spec(group))
        for group in ("default", *GROUPS)
        for delay in (0, 0.02)
    ]

    report = queue.shutdown()

    assert report.drained
    assert all(handle.ok for handle in handles)


# --- map ---


def test_F2_items_of_a_map_run_in_the_group_of_their_function(driver: Driver) -> None:
    queue = driver.started(groups=GROUPS)
    add = procq.task(tasks.add, group="light")

    assert list(queue.map(add, range(5000), range(5000))) == [2 * number for number in range(5000)]
    assert sum(queue.stats().counts.values()) < 2500, "they shared tasks"


def test_F2_a_map_reads_ahead_for_the_workers_of_its_group(driver: Driver) -> None:
    queue = driver.queue(groups=GROUPS)
    items = count()

    results = queue.map(procq.task(tasks.echo, group="light"), items, chunksize=1)

    assert next(items) == 12, "4 for each of 3 workers"
    results.close()


def test_H4_what_tasks_of_any_group_write_is_theirs(driver: Driver) -> None:
    queue = driver.started(groups=GROUPS, capture=True)
    handles = [
        queue.submit(procq.task(tasks.write, group=group).spec(f"{group} {number}", ""))
        for number in range(5)
        for group in GROUPS
    ]
    for handle in handles:
        handle.wait()

    assert [handle.history[0].stdout for handle in handles] == [
        f"{group} {number}" for number in range(5) for group in GROUPS
    ]


# --- the default group's number ---


@pytest.mark.parametrize(
    ("workers", "groups", "expected"),
    [
        (None, None, {"default": 8}),
        (None, {"heavy": 2, "light": 5}, {"default": 1, "heavy": 2, "light": 5}),
        (None, {"heavy": 2}, {"default": 6, "heavy": 2}),
        (None, {"heavy": 20}, {"default": 1, "heavy": 20}),
        (3, {"heavy": 20}, {"default": 3, "heavy": 20}),
        (None, {"heavy": 2, "default": 3}, {"default": 3, "heavy": 2}),
    ],
)
def test_B7_the_default_group_has_what_workers_says_else_what_is_left_of_the_cpus(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, groups: Mapping[str, int] | None, expected: dict[str, int]
) -> None:
    monkeypatch.setattr("procq.vetting.usable_cpus", lambda: 8)

    assert procq.Queue(workers, groups=groups).groups == expected


def test_B7_the_number_of_the_default_group_is_not_said_twice() -> None:
    with pytest.raises(errors.UsageError, match=r"^workers=3 and groups\['default'\]=2 both say how many workers"):
        procq.Queue(3, groups={"default": 2})
