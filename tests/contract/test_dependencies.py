"""Dependencies: order, results as arguments, what a failure does to those that wait (contract E)."""

import gc
from collections.abc import Callable

import pytest
from tests.contract import tasks
from tests.contract.drivers import Driver
from tests.contract.log import Log

import procq
from procq import Status, errors

# --- E1: naming them ---


def test_E1_a_task_waits_until_all_it_depends_on_succeeded(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    late = queue.submit(note.using(delay=0.1).spec(log.path, "late"))
    early = queue.submit(note.spec(log.path, "early"))

    last = queue.submit(note.using(depends_on=[late, early]).spec(log.path, "last"))
    early.wait()

    assert last.status is Status.BLOCKED
    assert last.result() == "last"
    assert log.lines == ["early", "late", "last"]


@pytest.mark.parametrize(
    "name",
    [lambda spec, _: spec, lambda _, handle: handle, lambda _, handle: handle.id, lambda spec, _: spec.out],
    ids=["spec", "handle", "id", "out"],
)
def test_E1_a_dependency_is_named_by_spec_handle_or_id(
    driver: Driver, name: Callable[[object, object], object], log: Log
) -> None:
    queue = driver.queue()
    note = procq.task(tasks.note)
    spec = note.using(delay=0.05, id="first").spec(log.path, "first")
    handle = queue.submit(spec)

    last = queue.submit(note.using(depends_on=[name(spec, handle)]).spec(log.path, "last"))
    queue.start()
    last.wait()

    assert log.lines == ["first", "last"]


def test_E1_a_spec_that_is_depended_on_is_submitted_too(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    first = note.spec(log.path, "first")
    second = note.using(depends_on=[first]).spec(log.path, "second")

    queue.submit(note.using(depends_on=[second]).spec(log.path, "third")).wait()

    assert log.lines == ["first", "second", "third"]
    assert queue.handle(first).ok
    assert queue.handle(second).ok


def test_E1_an_unknown_dependency_is_refused_with_the_closest_one(driver: Driver) -> None:
    queue = driver.queue()
    known = queue.submit(procq.task(tasks.echo, id="fetch-2024").spec())

    with pytest.raises(errors.UnknownDependencyError, match=r"'fetch-2042'.*closest id is 'fetch-2024'") as caught:
        queue.submit(procq.task(tasks.echo, id="parse", depends_on=["fetch-2042"]).spec())

    assert caught.value.missing == ("fetch-2042",)
    assert "parse" in str(caught.value)
    assert queue.stats().counts[Status.BLOCKED] == 0
    assert known.status is Status.READY


def test_E1_a_task_of_another_queue_is_no_dependency(driver: Driver) -> None:
    other = driver.queue().submit(tasks.echo, 1)
    queue = driver.queue()

    with pytest.raises(errors.UnknownDependencyError, match="another queue"):
        queue.submit(tasks.echo, other)
    assert not any(queue.stats().counts.values())


def test_E1_a_list_may_name_its_tasks_in_any_order(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    specs = [
        note.using(id="c", depends_on=["b"]).spec(log.path, "c"),
        note.using(id="b", depends_on=["a"]).spec(log.path, "b"),
        note.using(id="a").spec(log.path, "a"),
    ]

    handles = queue.submit_many(specs)
    for handle in handles:
        handle.wait()

    assert [handle.id for handle in handles] == ["c", "b", "a"]
    assert log.lines == ["a", "b", "c"]


def test_E1_a_cycle_is_refused_whole_and_listed(driver: Driver) -> None:
    queue = driver.queue()
    echo = procq.task(tasks.echo)
    specs = [
        echo.using(id="free").spec(),
        echo.using(id="a", depends_on=["c"]).spec(),
        echo.using(id="b", depends_on=["a"]).spec(),
        echo.using(id="c", depends_on=["b"]).spec(),
    ]

    with pytest.raises(errors.CycleError) as caught:
        queue.submit_many(specs)

    assert sorted(caught.value.cycle) == ["a", "b", "c"]
    assert not any(queue.stats().counts.values())


def test_E1_a_task_that_depends_on_itself_is_a_cycle(driver: Driver) -> None:
    queue = driver.queue()

    with pytest.raises(errors.CycleError, match="selfish"):
        queue.submit(procq.task(tasks.echo, id="selfish", depends_on=["selfish"]).spec())
    assert not any(queue.stats().counts.values())


def test_E1_a_long_chain_needs_no_recursion(driver: Driver) -> None:
    queue = driver.started()
    spec = procq.task(tasks.add).spec(0, 0)
    for _ in range(1500):
        spec = procq.task(tasks.add).spec(spec.out, 1)

    assert queue.submit(spec).result() == 1500


# --- E2: results as arguments ---


def test_E2_a_handle_or_spec_is_replaced_by_its_result(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.add, 1, 1)
    spec = procq.task(tasks.add).spec(10, 10)

    assert queue.submit(tasks.total, handle, spec).result() == 22
    assert queue.submit(procq.task(tasks.total).spec(handle, spec)).result() == 22
    assert queue.submit(tasks.keywords, left=handle, right=spec).result() == {"left": 2, "right": 20}


def test_E2_out_is_the_same(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.add, 1, 1)
    spec = procq.task(tasks.add).spec(10, 10)

    assert queue.submit(tasks.add, handle.out, spec.out).result() == 22


def test_E2_results_may_lie_at_any_depth(driver: Driver) -> None:
    queue = driver.started()
    one, two, three = (queue.submit(tasks.echo, number) for number in (1, 2, 3))

    handle = queue.submit(tasks.echo, {"list": [one, (two, {"deep": [three.out]})], "plain": "text"})

    assert handle.result() == {"list": [1, (2, {"deep": [3]})], "plain": "text"}


def test_E2_one_result_may_be_used_twice_and_is_run_once(driver: Driver, log: Log) -> None:
    queue = driver.started()
    spec = procq.task(tasks.note).spec(log.path)

    handle = queue.submit(tasks.echo, [spec, spec.out, spec])

    assert handle.result() == ["ran", "ran", "ran"]
    assert log.lines == ["ran"]


def test_E2_two_handles_of_one_task_are_one_dependency(driver: Driver) -> None:
    queue = driver.queue()
    first = queue.submit(tasks.add, 1, 1)
    twin = queue.handle(first.id)
    assert twin is not first

    second = queue.submit(tasks.total, first, twin, first.out, 1)
    queue.start()

    assert second.result() == 7
    assert queue.stats().counts[Status.SUCCEEDED] == 2


def test_E2_a_diamond_is_run_once_each(driver: Driver) -> None:
    queue = driver.started()
    top = procq.task(tasks.add).spec(1, 1)
    left, right = procq.task(tasks.add).spec(top.out, 1), procq.task(tasks.add).spec(top.out, 2)

    assert queue.submit(tasks.add, left.out, right.out).result() == 7
    assert queue.stats().counts[Status.SUCCEEDED] == 4


def test_E2_a_result_may_have_ended_before(driver: Driver) -> None:
    queue = driver.started()
    first = queue.submit(tasks.add, 1, 1)
    first.wait()

    assert queue.submit(tasks.add, first.out, 1).result() == 3


def test_E2_lambdas_take_results_too(driver: Driver) -> None:
    """What plain pickle cannot do is pickled a second time, and the placeholders must be counted once."""
    queue = driver.started()
    one, two = queue.submit(tasks.echo, 1), queue.submit(tasks.echo, 2)

    handle: procq.Handle[object] = queue.submit(lambda left, right: (left, right), one, two)

    assert handle.result() == (1, 2)


def test_E2_a_result_is_private_to_the_task_that_gets_it(driver: Driver) -> None:
    queue = driver.started()
    values = queue.submit(tasks.echo, [3, 1, 2])

    queue.submit(tasks.sort, values).wait()

    assert values.result() == [3, 1, 2]
    assert queue.submit(tasks.echo, values).result() == [3, 1, 2]


def test_E2_a_result_that_is_used_as_a_value_is_refused_with_a_hint(driver: Driver) -> None:
    out = driver.queue().submit(tasks.add, 1, 1).out

    with pytest.raises(errors.UsageError, match=r"placeholder for the result of .*\.result\(\)"):
        out + 1
    with pytest.raises(errors.UsageError, match="placeholder"):
        bool(out)


def test_E2_a_result_outlives_the_handle_as_long_as_somebody_needs_it(driver: Driver) -> None:
    queue = driver.started()
    first = queue.submit(tasks.add, 1, 1)
    second = queue.submit(procq.task(tasks.add, delay=0.1).spec(first.out, 1))
    first.wait()
    del first
    gc.collect()

    assert second.result() == 3


# --- E4: when a dependency does not succeed ---


def test_E4_a_failure_cancels_its_dependents_transitively_without_running_them(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    origin = queue.submit(procq.task(tasks.fail, id="origin", delay=0.05).spec())
    child = queue.submit(note.using(id="child", depends_on=[origin]).spec(log.path))
    grandchild = queue.submit(note.using(id="grandchild", depends_on=[child]).spec(log.path))

    for handle in (child, grandchild):
        with pytest.raises(errors.DependencyFailed, match="'origin'") as caught:
            handle.result()
        assert caught.value.origin == "origin"
        assert (handle.status, handle.attempts) == (Status.CANCELLED, 0)
    assert log.lines == []
    assert [letter.id for letter in queue.dead_letters()] == ["origin"]


def test_E4_the_first_failure_cancels_at_once(driver: Driver) -> None:
    queue = driver.started()
    slow = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    bad = queue.submit(tasks.fail)

    both = queue.submit(procq.task(tasks.echo, depends_on=[slow, bad]).spec())

    assert isinstance(both.exception(), errors.DependencyFailed)
    assert slow.status is Status.SCHEDULED


def test_E4_a_cancel_cancels_dependents_too(driver: Driver) -> None:
    queue = driver.queue()
    first = queue.submit(procq.task(tasks.echo, id="first").spec())
    second = queue.submit(tasks.echo, first)

    assert first.cancel() == "cancelled"

    assert isinstance(second.error, errors.DependencyFailed)
    assert second.error.origin == "first"


@pytest.mark.parametrize(
    ("fn", "run_if", "runs"),
    [
        (tasks.echo, "success", True),
        (tasks.echo, "done", True),
        (tasks.echo, "failure", False),
        (tasks.fail, "success", False),
        (tasks.fail, "done", True),
        (tasks.fail, "failure", True),
    ],
)
@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended"])
def test_E4_run_if_says_after_which_ends_a_task_runs(
    driver: Driver,
    fn: Callable[[], object],
    run_if: str,
    runs: bool,  # noqa: FBT001
    ended: bool,  # noqa: FBT001
) -> None:
    queue = driver.started()
    first = queue.submit(fn)
    if ended:
        first.wait()

    second = queue.submit(procq.task(tasks.add, depends_on=[first], run_if=run_if).spec(1, 2))
    second.wait()

    assert second.ok == runs
    assert second.status is (Status.SUCCEEDED if runs else Status.CANCELLED)


@pytest.mark.parametrize("run_if", ["done", "failure"])
def test_E4_a_task_that_runs_after_a_failure_has_no_result_for_an_argument(driver: Driver, run_if: str) -> None:
    queue = driver.started()
    bad = queue.submit(tasks.fail)

    handle = queue.submit(procq.task(tasks.echo, run_if=run_if).spec([bad]))

    with pytest.raises(errors.RemoteError, match=r"did not succeed.*depends_on"):
        handle.result()


def test_E4_not_needed_is_no_failure(driver: Driver) -> None:
    queue = driver.started()
    first = queue.submit(tasks.echo, 1)
    clean_up = queue.submit(procq.task(tasks.echo, depends_on=[first], run_if="failure").spec())
    after = queue.submit(procq.task(tasks.echo, depends_on=[clean_up]).spec())
    rescue = queue.submit(procq.task(tasks.echo, depends_on=[clean_up], run_if="failure").spec())

    with pytest.raises(errors.TaskCancelled, match="not needed"):
        clean_up.result()
    with pytest.raises(errors.TaskCancelled, match="not needed"):
        after.result()
    assert isinstance(rescue.exception(), errors.TaskCancelled)
    assert queue.dead_letters() == []


def test_E4_done_waits_for_all(driver: Driver, log: Log) -> None:
    queue = driver.started()
    note = procq.task(tasks.note)
    bad = queue.submit(tasks.fail)
    late = queue.submit(note.using(delay=0.1).spec(log.path, "late"))

    queue.submit(note.using(depends_on=[bad, late], run_if="done").spec(log.path, "last")).wait()

    assert log.lines == ["late", "last"]


def test_E4_a_retry_that_succeeds_is_no_failure(driver: Driver) -> None:
    queue = driver.started()
    flaky = queue.submit(procq.task(tasks.fail_before, max_attempts=2, backoff=0.02).spec(2, 5))

    assert queue.submit(tasks.total, flaky, 1).result() == 6


@pytest.mark.parametrize("run_if", ["done", "failure"])
def test_E4_nothing_runs_when_a_shutdown_cuts_the_work_short(driver: Driver, run_if: str, log: Log) -> None:
    queue = driver.started()
    first = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    second = queue.submit(procq.task(tasks.note, depends_on=[first], run_if=run_if).spec(log.path))

    report = queue.shutdown(mode="kill")

    assert second.status is Status.CANCELLED
    assert log.lines == []
    assert report.cut_off == (first.id, second.id)


def test_E4_ten_thousand_dependents_are_cancelled_without_recursion(driver: Driver) -> None:
    queue = driver.queue()
    chain = [queue.submit(procq.task(tasks.echo, id="origin").spec())]
    for _ in range(10_000):
        chain.append(queue.submit(procq.task(tasks.echo, depends_on=[chain[-1]]).spec()))

    chain[0].cancel()

    assert all(handle.status is Status.CANCELLED for handle in chain)
    error = chain[-1].error
    assert isinstance(error, errors.DependencyFailed)
    assert error.origin == "origin"


# --- E5: dependencies that have ended ---


def test_E5_a_dependency_that_succeeded_before_counts(driver: Driver) -> None:
    queue = driver.started()
    first = queue.submit(tasks.echo, 1)
    first.wait()

    second = queue.submit(procq.task(tasks.echo, depends_on=[first]).spec(2))

    assert second.result() == 2


def test_E5_a_dependency_that_failed_before_cancels_at_once(driver: Driver) -> None:
    queue = driver.started()
    first = queue.submit(procq.task(tasks.fail, id="origin").spec())
    first.wait()

    second = queue.submit(procq.task(tasks.echo, depends_on=[first]).spec(2))
    third = queue.submit(tasks.echo, second)

    assert [second.status, third.status] == [Status.CANCELLED, Status.CANCELLED]
    assert isinstance(third.error, errors.DependencyFailed)
    assert third.error.origin == "origin"


def test_E5_a_forgotten_dependency_is_unknown_and_the_error_says_so(driver: Driver) -> None:
    queue = driver.started(retention=(1, 3600))
    for name in ("first", "second"):
        queue.submit(procq.task(tasks.echo, id=name).spec()).wait()

    with pytest.raises(errors.UnknownDependencyError, match=r"'first'.*(forgotten|retention)"):
        queue.submit(procq.task(tasks.echo, depends_on=["first"]).spec())
    assert queue.submit(procq.task(tasks.echo, depends_on=["second"]).spec(1)).result() == 1
