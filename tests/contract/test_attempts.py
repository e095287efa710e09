"""Attempts, failures, retries (contract D)."""

from itertools import pairwise

import pytest
from tests.contract import tasks
from tests.contract.drivers import Driver
from tests.contract.log import Log

import procq
from procq import Status, errors


def assert_waited(handle: "procq.Handle[object]", *least: float) -> None:
    """Each attempt but the first must have started so long after the end of the one before, or later."""
    pairs = pairwise(handle.history)
    for (before, after), wait in zip(pairs, least, strict=True):
        assert after.started_at >= before.ended_at + wait


# --- D2: the history ---


def test_D2_a_success_is_recorded(driver: Driver) -> None:
    queue = driver.started()
    submitted_at = driver.now()

    handle = queue.submit(tasks.work, 0.05)
    handle.wait()

    (record,) = handle.history
    assert (record.attempt, record.outcome) == (1, "ok")
    assert (record.error_type, record.message, record.traceback) == (None, None, None)
    assert submitted_at <= record.started_at
    assert record.run_s >= 0.049
    assert record.ended_at <= driver.now()


def test_D2_an_error_is_recorded_with_its_type_its_text_and_its_traceback(driver: Driver) -> None:
    handle = driver.started().submit(tasks.fail_own, "too big", 7)
    handle.wait()

    (record,) = handle.history
    assert (record.attempt, record.outcome) == (1, "error")
    assert record.error_type == "tests.contract.tasks.OwnError"
    assert record.message == "('too big', 7)"
    assert record.traceback is not None
    assert "in fail_own" in record.traceback
    assert "procq/" not in record.traceback, "the library's own frames say nothing to the user"


def test_D2_every_attempt_is_kept_in_order(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.fail_before, max_attempts=5, backoff=0).spec(3))

    assert handle.result() == "done"
    assert [(record.attempt, record.outcome, record.message) for record in handle.history] == [
        (1, "error", "attempt 1 fails"),
        (2, "error", "attempt 2 fails"),
        (3, "ok", None),
    ]
    assert_waited(handle, 0, 0)
    assert handle.attempts == 3


# --- D3: what is retried ---


def test_D3_a_failed_attempt_is_followed_by_another_while_any_are_left(driver: Driver) -> None:
    queue = driver.started()

    enough = queue.submit(procq.task(tasks.fail_before, max_attempts=3, backoff=0).spec(3))
    too_few = queue.submit(procq.task(tasks.fail_before, max_attempts=2, backoff=0).spec(3))

    assert enough.result() == "done"
    with pytest.raises(ValueError, match="attempt 2 fails"):
        too_few.result()
    assert (too_few.status, too_few.attempts) == (Status.FAILED, 2)


def test_D3_without_max_attempts_there_is_one(driver: Driver) -> None:
    handle = driver.started().submit(tasks.fail)

    assert isinstance(handle.exception(), ValueError)
    assert handle.attempts == 1


@pytest.mark.parametrize(
    ("retry_on", "attempts"),
    [
        (tasks.OwnError, 3),
        (ValueError, 3),
        (Exception, 3),
        ((KeyError, ValueError), 3),
        (KeyError, 1),
        ((), 1),
    ],
    ids=["itself", "its base", "Exception", "one of two", "another", "nothing"],
)
def test_D3_retry_on_names_what_is_retried(
    driver: Driver, retry_on: "type[Exception] | tuple[type[Exception], ...]", attempts: int
) -> None:
    task = procq.task(tasks.fail_own, max_attempts=3, backoff=0, retry_on=retry_on)

    handle = driver.started().submit(task.spec("text", 1))

    assert isinstance(handle.exception(), tasks.OwnError)
    assert handle.attempts == attempts


@pytest.mark.parametrize(
    ("never_retry", "attempts"),
    [(tasks.OwnError, 1), (ValueError, 1), ("error", 1), (("crash", KeyError), 3)],
    ids=["itself", "its base", "outcome", "others"],
)
def test_D3_never_retry_names_what_is_not(driver: Driver, never_retry: type[Exception] | str, attempts: int) -> None:
    task = procq.task(tasks.fail_own, max_attempts=3, backoff=0, never_retry=never_retry)

    handle = driver.started().submit(task.spec("text", 1))

    assert isinstance(handle.exception(), tasks.OwnError)
    assert handle.attempts == attempts


def test_D3_never_retry_outranks_retry_on(driver: Driver) -> None:
    task = procq.task(tasks.fail, max_attempts=3, backoff=0, retry_on=Exception, never_retry=ValueError)

    handle = driver.started().submit(task.spec())

    handle.wait()
    assert handle.attempts == 1


def test_D3_retry_on_does_not_speak_of_crashes(driver: Driver) -> None:
    task = procq.task(tasks.die_before, max_attempts=2, backoff=0, retry_on=KeyError)

    assert driver.started().submit(task.spec(2)).result() == "alive"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (procq.task(tasks.leave, max_attempts=3, backoff=0).spec(3), "SystemExit: 3"),
        (procq.task(tasks.interrupt, max_attempts=3, backoff=0).spec(), "KeyboardInterrupt"),
    ],
    ids=["SystemExit", "KeyboardInterrupt"],
)
def test_D3_what_is_no_exception_is_not_retried_and_takes_nobody_down(
    driver: Driver, spec: procq.TaskSpec[None], said: str
) -> None:
    queue = driver.started()

    handle = queue.submit(spec)

    with pytest.raises(errors.RemoteError, match=said):
        handle.result()
    assert (handle.attempts, handle.history[0].outcome) == (1, "error")
    assert queue.submit(tasks.add, 1, 2).result() == 3


# --- D4: crashes ---


@pytest.mark.parametrize(
    ("code", "name"), [(0, None), (3, None), (None, "SIGKILL"), (None, "SIGSEGV"), (None, "SIGTERM")]
)
def test_D4_a_death_is_charged_to_the_task_that_ran(driver: Driver, code: int | None, name: str | None) -> None:
    queue = driver.queue()
    before = queue.submit(tasks.add, 1, 1)
    victim = queue.submit(tasks.die, code, name)
    after = [queue.submit(tasks.add, number, 0) for number in range(3)]
    queue.start()

    with pytest.raises(errors.WorkerCrashed) as caught:
        victim.result()

    assert (caught.value.exit_code, caught.value.signal) == (code, name)
    assert (caught.value.task_id, caught.value.attempt) == (victim.id, 1)
    assert (name or f"code {code}") in str(caught.value)
    (record,) = victim.history
    assert (record.outcome, record.exit_code, record.signal) == ("crash", code, name)
    assert before.result() == 2
    assert [handle.result() for handle in after] == [0, 1, 2]
    assert all(handle.attempts == 1 for handle in (before, *after))


def test_D4_a_crash_is_retried(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.die_before, max_attempts=3, backoff=0).spec(3))

    assert handle.result() == "alive"
    assert [record.outcome for record in handle.history] == ["crash", "crash", "ok"]


def test_D4_a_crash_is_not_retried_where_never_retry_names_it(driver: Driver) -> None:
    task = procq.task(tasks.die_before, max_attempts=3, backoff=0, never_retry="crash")

    handle = driver.started().submit(task.spec(3))

    assert isinstance(handle.exception(), errors.WorkerCrashed)
    assert handle.attempts == 1


# --- D5: timeouts ---


def test_D5_an_attempt_that_takes_longer_than_its_timeout_is_ended(driver: Driver, log: Log) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(tasks.work_and_note, timeout="1000ms").spec(log.path, 60))

    with pytest.raises(errors.AttemptTimeout, match=r"longer than its timeout of 1 s") as caught:
        handle.result()
    assert isinstance(caught.value, TimeoutError)
    (record,) = handle.history
    assert record.outcome == "timeout"
    assert 1 <= record.run_s + 0.001 < 10
    assert log.lines == ["finally"]


def test_D5_a_task_cannot_catch_its_way_out(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.work_and_swallow, timeout=0.1).spec(60))

    assert isinstance(handle.exception(), errors.AttemptTimeout)
    assert handle.status is Status.FAILED


def test_D5_a_timeout_is_a_failed_attempt(driver: Driver) -> None:
    task = procq.task(tasks.work_before, timeout=1, max_attempts=2, backoff=0)

    handle = driver.started().submit(task.spec(2, 60))

    assert handle.result() == "quick"
    assert [record.outcome for record in handle.history] == ["timeout", "ok"]


def test_D5_a_timeout_is_not_retried_where_never_retry_names_it(driver: Driver) -> None:
    task = procq.task(tasks.work_before, timeout=1, max_attempts=2, backoff=0, never_retry="timeout")

    handle = driver.started().submit(task.spec(2, 60))

    assert isinstance(handle.exception(), errors.AttemptTimeout)
    assert handle.attempts == 1


def test_D5_time_in_the_queue_does_not_count(driver: Driver) -> None:
    queue = driver.queue()
    queue.submit(tasks.work, 0.6)
    handle = queue.submit(procq.task(tasks.add, timeout=0.5).spec(1, 2))
    queue.start()

    assert handle.result() == 3


def test_D5_backoff_does_not_count(driver: Driver) -> None:
    task = procq.task(tasks.fail_before, timeout=0.5, max_attempts=2, backoff=0.6)

    assert driver.started().submit(task.spec(2)).result() == "done"


def test_D5_the_next_task_is_not_touched_by_a_timeout(driver: Driver) -> None:
    queue = driver.queue()
    slow = queue.submit(procq.task(tasks.work, timeout=0.1).spec(60))
    others = [queue.submit(tasks.add, number, 0) for number in range(3)]
    queue.start()

    assert [handle.result() for handle in others] == [0, 1, 2]
    assert isinstance(slow.exception(), errors.AttemptTimeout)
    assert all(handle.attempts == 1 for handle in others)


# --- D6: backoff ---


@pytest.mark.parametrize(
    ("backoff", "least"),
    [
        ("20ms", [0.02, 0.02, 0.02]),
        (procq.constant(0.02), [0.02, 0.02, 0.02]),
        ([0, "20ms"], [0, 0.02, 0.02]),
        (lambda attempt: attempt / 100, [0.01, 0.02, 0.03]),
        (procq.exponential(0.01, factor=3, cap=0.05, jitter="none"), [0.01, 0.03, 0.05]),
        (procq.exponential(0.02, factor=2, jitter="equal"), [0.01, 0.02, 0.04]),
    ],
    ids=["duration", "constant", "list", "function", "exponential", "equal jitter"],
)
def test_D6_an_attempt_starts_not_before_the_backoff_is_over(
    driver: Driver, backoff: procq.retry.BackoffLike, least: list[float]
) -> None:
    handle = driver.started().submit(procq.task(tasks.fail_before, max_attempts=4, backoff=backoff).spec(4))

    assert handle.result() == "done"
    assert_waited(handle, *least)


def test_D6_the_queue_s_backoff_is_what_a_task_without_one_gets(driver: Driver) -> None:
    queue = driver.started(backoff=0.05)

    handle = queue.submit(procq.task(tasks.fail_before, max_attempts=2).spec(2))

    assert handle.result() == "done"
    assert_waited(handle, 0.05)


def test_D6_a_waiting_task_holds_no_worker_and_can_be_seen_and_cancelled(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(procq.task(tasks.fail, max_attempts=2, backoff=3600).spec())

    assert queue.submit(tasks.add, 1, 2).result() == 3

    assert handle.status is Status.SCHEDULED
    assert handle.cancel() == "cancelled"
    with pytest.raises(errors.TaskCancelled):
        handle.result()
    assert handle.attempts == 1


@pytest.mark.parametrize("wrong", [-1, "soon", None], ids=["negative", "text", "None"])
def test_D6_a_backoff_function_that_returns_nonsense_fails_the_task_alone(driver: Driver, wrong: object) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(tasks.fail, max_attempts=2, backoff=lambda _: wrong).spec())  # type: ignore[arg-type,return-value]

    assert isinstance(handle.exception(), ValueError)
    assert "its backoff function raised" in (handle.history[0].message or "")
    assert queue.submit(tasks.add, 1, 2).result() == 3


def test_D6_a_backoff_function_that_raises_fails_the_task_alone(driver: Driver) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(tasks.fail, max_attempts=2, backoff=lambda attempt: 1 / (attempt - 1)).spec())

    assert isinstance(handle.exception(), ValueError)
    assert "ZeroDivisionError" in (handle.history[0].message or "")
    assert queue.submit(tasks.add, 1, 2).result() == 3


# --- D7: permanent, and later ---


def test_D7_permanent_with_a_text_is_what_result_raises(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.fail_for_good, max_attempts=5).spec("no such customer"))

    with pytest.raises(procq.Permanent, match="no such customer"):
        handle.result()
    assert (handle.status, handle.attempts) == (Status.FAILED, 1)


def test_D7_permanent_with_an_error_raises_that_error(driver: Driver) -> None:
    reason = tasks.OwnError("too big", 7)

    handle = driver.started().submit(procq.task(tasks.fail_for_good, max_attempts=5).spec(reason))

    with pytest.raises(tasks.OwnError, match="too big") as caught:
        handle.result()
    assert caught.value.code == 7
    assert handle.attempts == 1
    assert handle.history[0].error_type == "tests.contract.tasks.OwnError"


def test_D7_retry_later_uses_no_attempt(driver: Driver, log: Log) -> None:
    handle = driver.started().submit(procq.task(tasks.later_once, max_attempts=1).spec(log.path, 0.05))

    assert handle.result() == 1
    assert handle.attempts == 1
    assert [record.attempt for record in handle.history] == [1, 1]
    assert_waited(handle, 0.05)


def test_D7_out_of_attempts_means_a_dead_letter(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(procq.task(tasks.fail, id="dead", max_attempts=2, backoff=0).spec("no")).wait()

    (letter,) = queue.dead_letters()

    assert (letter.id, letter.type, letter.attempts) == ("dead", "fail", 2)
    assert (letter.error_type, letter.message) == ("ValueError", "no")
    assert len(letter.history) == 2
    assert letter.died_at <= driver.now()


# --- D9: what does not travel ---


def test_D9_a_result_that_cannot_be_pickled_fails_the_attempt_for_good(driver: Driver) -> None:
    queue = driver.started()

    handle = queue.submit(procq.task(tasks.generator, max_attempts=3, backoff=0).spec())

    with pytest.raises(errors.PayloadError, match=r"generator returned a generator.*return a list"):
        handle.result()
    assert handle.attempts == 1
    assert queue.submit(tasks.add, 1, 2).result() == 3


def test_D9_an_error_that_cannot_be_rebuilt_arrives_as_remote_error(driver: Driver) -> None:
    handle = driver.started().submit(tasks.fail_stubbornly)

    with pytest.raises(errors.RemoteError) as caught:
        handle.result()

    assert caught.value.type_name == "tests.contract.tasks.StubbornError"
    assert caught.value.message == "a-b"
    assert "in fail_stubbornly" in caught.value.traceback
    assert (caught.value.task_id, caught.value.attempt) == (handle.id, 1)


def test_D9_an_error_that_cannot_be_rebuilt_is_retried_all_the_same(driver: Driver) -> None:
    handle = driver.started().submit(procq.task(tasks.fail_stubbornly, max_attempts=2, backoff=0).spec())

    handle.wait()
    assert handle.attempts == 2


def test_D9_result_raises_the_original_error_anew_with_the_worker_s_traceback_as_its_cause(driver: Driver) -> None:
    handle = driver.started().submit(tasks.fail_own, "too big", 7)
    caught: list[tasks.OwnError] = []

    for _ in range(2):
        with pytest.raises(tasks.OwnError) as info:
            handle.result()
        caught.append(info.value)

    assert caught[0] is not caught[1]
    for error in caught:
        assert (error.text, error.code) == ("too big", 7)
        assert isinstance(error.__cause__, errors.RemoteTraceback)
        assert "in fail_own" in str(error.__cause__)
    assert queue_error(handle) is not queue_error(handle)


def queue_error(handle: "procq.Handle[None]") -> BaseException:
    error = handle.error
    assert isinstance(error, tasks.OwnError)
    return error


def test_D9_a_result_is_a_new_object_each_time(driver: Driver) -> None:
    handle = driver.started().submit(tasks.echo, [1, 2])

    assert handle.result() == handle.result() == [1, 2]
    assert handle.result() is not handle.result()


# --- D11: workers that cannot start ---


def test_D11_when_workers_cannot_start_what_waits_fails_with_the_start_up_error(driver: Driver) -> None:
    queue = driver.queue(initializer=tasks.fail, initargs=("no database",))
    first = queue.submit(tasks.add, 1, 2)
    dependent = queue.submit(tasks.add, first.out, 1)
    queue.start()

    with pytest.raises(errors.WorkerStartError, match="no database"):
        first.result()
    with pytest.raises(errors.DependencyFailed):
        dependent.result()
    with pytest.raises(errors.WorkerStartError, match="no database"):
        queue.submit(tasks.add, 1, 2)
    report = queue.shutdown()
    assert (report.failed, report.cancelled) == (1, 1)


def test_H3_the_initializer_is_called_once_before_the_first_task_of_a_worker(driver: Driver, log: Log) -> None:
    queue = driver.queue(initializer=tasks.note, initargs=(log.path, "initialized"))
    handles = [queue.submit(tasks.note, log.path, str(number)) for number in range(2)]
    queue.start()
    for handle in handles:
        handle.wait()

    assert log.lines == ["initialized", "0", "1"]

    queue.submit(tasks.die, 3).wait()
    queue.submit(tasks.note, log.path, "2").wait()

    assert log.lines == ["initialized", "0", "1", "initialized", "2"]


# --- H4: output ---


def outputs(handle: "procq.Handle[None]") -> list[tuple[str | None, str | None]]:
    handle.wait()
    return [(record.stdout, record.stderr) for record in handle.history]


def test_H4_what_an_attempt_writes_is_kept_with_it(driver: Driver, capfd: pytest.CaptureFixture[str]) -> None:
    queue = driver.started(capture=True)

    first = queue.submit(tasks.write, "out", "err")
    second = queue.submit(tasks.write, "more", "worse")

    assert outputs(first) == [("out", "err")]
    assert outputs(second) == [("more", "worse")]
    assert capfd.readouterr() == ("", "")


def test_H4_each_attempt_of_a_task_keeps_its_own(driver: Driver) -> None:
    queue = driver.started(capture=True)

    handle = queue.submit(procq.task(tasks.write_attempt, max_attempts=2, backoff=0).spec())

    assert outputs(handle) == [("attempt 1", ""), ("attempt 2", "")]


def test_H4_the_last_64_KiB_are_kept_whatever_the_bytes(driver: Driver) -> None:
    queue = driver.started(capture=True)

    handle = queue.submit(tasks.write_much, 100_000)

    left_out = 100_001 - 65_536
    assert outputs(handle) == [(f"[... {left_out} bytes left out ...]\n{'x' * 65_535}\\xff", "")]


def test_H4_nothing_is_kept_unless_asked_for(driver: Driver) -> None:
    queue = driver.started()

    assert outputs(queue.submit(tasks.write, "", "")) == [(None, None)]
