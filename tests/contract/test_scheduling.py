"""Policies, breakers and slots, as a program uses them (contract B5, B6, B9, C3, D8)."""

from collections.abc import Sequence
from itertools import combinations

import pytest
from tests.contract import tasks
from tests.contract.drivers import NOTHING_AHEAD, PARALLEL, Driver
from tests.contract.log import Log

import procq
from procq import Aging, Breaker, Priority, Status, WeightedFair, errors

note = procq.task(tasks.note)


def run(queue: procq.Queue, handles: Sequence["procq.Handle[object]"]) -> None:
    """Start the queue and wait for all."""
    queue.start()
    for handle in handles:
        handle.wait()


# --- B5, B6: policies ---


def test_B5_a_task_that_has_waited_for_a_level_comes_before_one_of_that_level(driver: Driver, log: Log) -> None:
    """A level is worth a microsecond here, so what is submitted later comes later, and all levels are worth 3 us."""
    queue = driver.queue(policy=Aging(seconds_per_level=1e-6))
    low = queue.submit(note.using(priority=Priority.LOW).spec(log.path, "low"))
    driver.pass_a_millisecond()
    critical = queue.submit(note.using(priority=Priority.CRITICAL).spec(log.path, "critical"))

    run(queue, [low, critical])

    assert log.lines == ["low", "critical"]


def test_B5_as_long_as_it_has_not_waited_priority_decides(driver: Driver, log: Log) -> None:
    queue = driver.queue(policy=Aging(seconds_per_level="1h"))
    run(
        queue,
        [
            queue.submit(note.using(priority=priority).spec(log.path, priority.name))
            for priority in (Priority.LOW, Priority.NORMAL, Priority.CRITICAL, Priority.HIGH)
        ],
    )

    assert log.lines == ["CRITICAL", "HIGH", "NORMAL", "LOW"]


def test_B6_every_level_gets_its_share_of_the_starts(driver: Driver, log: Log) -> None:
    queue = driver.queue(policy=WeightedFair({Priority.HIGH: 3, Priority.LOW: 1}))

    run(
        queue,
        [
            queue.submit(note.using(priority=priority).spec(log.path, priority.name))
            for _ in range(8)
            for priority in (Priority.LOW, Priority.HIGH)
        ],
    )

    assert [log.lines[:8].count(name) for name in ("HIGH", "LOW")] == [6, 2]
    assert sorted(log.lines) == ["HIGH"] * 8 + ["LOW"] * 8


def test_B6_many_brief_tasks_of_every_level_all_run(driver: Driver) -> None:
    """With workers they are sent ahead in packets, taken back, and overtaken."""
    queue = driver.started(policy=WeightedFair({10: 5, 0: 2, -10: 1}))
    echo = [procq.task(tasks.echo, priority=priority) for priority in (-10, 0, 10)]

    handles = [queue.submit(echo[number % 3].spec(number)) for number in range(600)]

    assert [handle.result() for handle in handles] == list(range(600))
    with queue._supervisor.lock:
        queue._supervisor.scheduler.check_invariants()


# --- D8: breakers ---


def test_D8_a_type_that_keeps_failing_is_held_back_and_one_probe_heals_it(driver: Driver, log: Log) -> None:
    queue = driver.started(breaker={"sick": Breaker(failures=2, window="1m", cool_down=0.3)})
    sick = procq.task(tasks.fail, type="sick")
    for _ in range(2):
        queue.submit(sick.spec()).wait()
    assert queue.stats().breakers == {"sick": "open"}
    held = [queue.submit(note.using(type="sick").spec(log.path, str(number))) for number in range(3)]
    queue.submit(note.spec(log.path, "other")).wait()
    assert [handle.status for handle in held] == [Status.READY] * 3

    for handle in held:
        assert handle.result() == handle.result(0)

    assert log.lines == ["other", "0", "1", "2"]
    assert queue.stats().breakers == {"sick": "closed"}


def test_D8_a_drain_waits_for_what_a_breaker_holds(driver: Driver) -> None:
    queue = driver.started(breaker={"sick": Breaker(failures=1, cool_down=0.2)})
    driver.forget(queue)
    queue.submit(procq.task(tasks.fail, type="sick").spec()).wait()
    held = queue.submit(procq.task(tasks.echo, type="sick").spec("well"))

    report = queue.shutdown()

    assert report.drained
    assert held.result() == "well"


def test_D8_what_a_breaker_holds_is_cancelled_by_a_kill(driver: Driver) -> None:
    queue = driver.started(breaker={"sick": Breaker(failures=1, cool_down="1h")})
    driver.forget(queue)
    queue.submit(procq.task(tasks.fail, type="sick").spec()).wait()
    held = queue.submit(procq.task(tasks.echo, type="sick", id="held").spec())

    assert queue.shutdown(mode="kill").cut_off == ("held",)
    assert held.status is Status.CANCELLED


# --- B9: slots ---


def overlaps(handles: "Sequence[procq.Handle[object]]") -> list[tuple[int, int]]:
    """Return which of the tasks ran at the same time, by number."""
    spans = [(handle.history[0].started_at, handle.history[0].ended_at) for handle in handles]
    return [
        (one, other)
        for one, other in combinations(range(len(spans)), 2)
        if spans[one][0] < spans[other][1] and spans[other][0] < spans[one][1]
    ]


def test_B9_tasks_run_beside_each_other_only_as_far_as_the_slots_go(driver: Driver) -> None:
    driver.needs(PARALLEL)
    queue = driver.started(workers=3, resources={"cpu": 3, "memory": "3GB"})
    pause = procq.task(tasks.work)

    small = [queue.submit(pause.spec(0.02)) for _ in range(6)]
    pairs = [queue.submit(pause.using(cpus=2).spec(0.02)) for _ in range(4)]
    fat = [queue.submit(pause.using(memory="2GB").spec(0.02)) for _ in range(3)]
    for handle in (*small, *pairs, *fat):
        handle.wait()

    assert not overlaps(pairs), "two of them need 4 cpus"
    assert not overlaps(fat), "two of them need 4 GB"


def test_B9_one_that_can_never_fit_is_refused_at_submit(driver: Driver) -> None:
    queue = driver.queue(resources={"cpu": 2, "memory": "1GiB"})
    echo = procq.task(tasks.echo)

    with pytest.raises(errors.UsageError, match="echo asks for 3 cpus, of which this queue has 2, so it could never"):
        queue.submit(echo.using(cpus=3).spec())
    with pytest.raises(errors.UsageError, match=r"echo asks for 2\.1GB of memory, of which this queue has 1\.1GB, so"):
        queue.submit_many([echo.spec(), echo.using(memory="2GiB").spec()])

    assert sum(queue.stats().counts.values()) == 0


def test_B9_a_map_takes_the_slots_of_its_function(driver: Driver) -> None:
    driver.needs(PARALLEL)
    queue = driver.started(workers=2, resources={"cpu": 2})

    assert list(queue.map(procq.task(tasks.echo, cpus=2), range(50))) == list(range(50))


def test_B9_where_slots_count_order_is_exact(driver: Driver, log: Log) -> None:
    driver.needs(NOTHING_AHEAD)
    queue = driver.queue(resources={"cpu": 2})

    run(
        queue,
        [
            queue.submit(note.using(cpus=1 + number % 2, priority=number % 3).spec(log.path, str(number)))
            for number in range(9)
        ],
    )

    assert log.lines == ["2", "5", "8", "1", "4", "7", "0", "3", "6"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": "fair"}, r"policy='fair': must be 'strict', Aging\(\) or WeightedFair\(\{...\}\)"),
        ({"policy": Aging}, r"policy=<class .*Aging'>: must be"),
        ({"resources": {"gpu": 1}}, r"resources={'gpu': 1}: knows no 'gpu'; only 'cpu' and 'memory'"),
        ({"resources": {"cpu": 0}}, r"resources\['cpu'\]=0: must be at least 1"),
        ({"resources": {"memory": "much"}}, r"resources\['memory'\]='much': can't read this size"),
        ({"breaker": {"x": 3}}, r"breaker\['x'\]=3: expected a Breaker"),
        ({"breaker": Breaker()}, r"breaker=Breaker\(.*\): expected breakers by type, such as {\"fetch\": Breaker\(\)}"),
        ({"breaker": {5: Breaker()}}, r"breaker: 5 is no name; expected breakers by type"),
        ({"limits": "fetch=2"}, r"limits='fetch=2': expected numbers by type, such as {\"fetch\": 4}"),
        ({"limits": {abs: 2}}, r"limits: <built-in function abs> is no name; expected numbers by type"),
        ({"resources": 4}, r"resources=4: expected sizes by name, such as"),
        ({"handlers": [abs]}, r"handlers=\[.*\]: expected functions by type"),
    ],
)
def test_M_what_a_queue_cannot_be_is_refused(driver: Driver, given: dict[str, object], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        driver.queue(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cpus": 0}, "cpus=0: must be at least 1"),
        ({"cpus": 1.5}, "cpus=1.5: expected a whole number"),
        ({"memory": 0}, "memory=0: a size must be at least 1 byte"),
        ({"group": ""}, "group='': expected a text"),
        ({"group": 3}, "group=3: expected a text"),
    ],
)
def test_C3_what_a_task_cannot_take_is_refused_at_the_call(options: dict[str, int], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        procq.task(tasks.echo, **options)  # type: ignore[call-overload]
