"""The helpers for users' tests: what they refuse, and that their documentation is true."""

import textwrap
from collections.abc import Callable

import pytest

import procq
from procq import errors, testing


def remind(name: str) -> str:
    if procq.current().attempt == 1:
        raise ConnectionError(name)
    return name


def test_the_example_in_the_module_s_text_works() -> None:
    text = testing.__doc__ or ""
    start = text.index("    from procq import testing")
    end = text.index("\n\nAn inline queue")
    namespace: dict[str, Callable[[], None]] = {"remind": procq.task(remind)}  # type: ignore[dict-item]

    exec(textwrap.dedent(text[start:end]), namespace)
    namespace["test_a_reminder_is_tried_again_after_an_hour"]()


@pytest.mark.parametrize("helper", [lambda: testing.spend(1), testing.crash], ids=["spend", "crash"])
def test_what_works_in_an_inline_task_works_only_there(helper: Callable[[], object]) -> None:
    with pytest.raises(errors.UsageError, match=r"works in a task of a queue that testing.inline\(\) made"):
        helper()


def crash(**how: object) -> None:
    testing.crash(**how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "exit_code", "signal"),
    [
        ({}, 1, None),
        ({"exit_code": 0}, 0, None),
        ({"signal": "SIGSEGV"}, None, "SIGSEGV"),
        ({"signal": 9}, None, "SIGKILL"),
    ],
)
def test_crash_ends_the_task_as_the_death_of_its_worker(
    how: dict[str, object], exit_code: int | None, signal: str | None
) -> None:
    with testing.inline() as queue:
        error = queue.submit(crash, **how).exception()

    assert isinstance(error, errors.WorkerCrashed)
    assert (error.exit_code, error.signal) == (exit_code, signal)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"exit_code": 1, "signal": 9}, "an exit code and a signal"),
        ({"signal": "SIGNOTHING"}, "signal='SIGNOTHING'"),
        ({"signal": 999}, "signal=999"),
        ({"exit_code": "bad"}, "exit_code='bad'"),
    ],
)
def test_a_crash_that_cannot_be_is_refused(how: dict[str, object], said: str) -> None:
    with testing.inline() as queue:
        error = queue.submit(crash, **how).exception()

    assert isinstance(error, errors.UsageError)
    assert said in str(error)


def test_run_for_lets_the_queue_work_for_so_long_and_leaves_the_clock_there() -> None:
    clock = testing.FakeClock()
    with testing.inline(clock=clock) as queue:
        every = [queue.submit(procq.task(remind, delay=minute * 60).spec("x")) for minute in (1, 2, 3)]

        testing.run_for(queue, "150s")

        assert clock.now == 150
        assert [handle.done() for handle in every] == [True, True, False]
        assert [handle.history[0].started_at for handle in every[:2]] == [60, 120]


@pytest.mark.processes
def test_run_for_is_for_inline_queues_only() -> None:
    queue = procq.Queue(workers=1)

    with pytest.raises(errors.UsageError, match="real clock"):
        testing.run_for(queue, 1)


def test_an_inline_queue_without_a_clock_has_one_of_its_own() -> None:
    with testing.inline() as queue:
        assert queue.submit(procq.task(remind, delay="1d", max_attempts=2, backoff="1d").spec("ann")).result() == "ann"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start_timeout", 3),
        ("max_tasks_per_worker", 3),
        ("max_memory_per_worker", "1GB"),
        ("recycle_memory", "1GB"),
        ("min_free_memory", "1GB"),
    ],
)
def test_parameters_of_a_queue_that_need_processes_are_refused(name: str, value: object) -> None:
    with pytest.raises(errors.UsageError, match=name):
        testing.inline(**{name: value})  # type: ignore[arg-type]
