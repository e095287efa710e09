"""Errors, results and arguments that will not travel, and how errors look (contract C5, D9; PAIN H06-H09, H13)."""

import traceback
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks, tasks as more_tasks
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants

from procq import Permanent, Queue, Status, task
from procq.errors import PayloadError, RemoteError, UsageError, WorkerCrashed

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


# --- errors that cannot be rebuilt ---


@pytest.mark.parametrize(
    ("fail", "name", "message"),
    [
        (more_tasks.fail_two_parts, "TwoPartError", "a-b"),
        (more_tasks.fail_with_lock, "ValueError", "lock"),
        (tasks.fail_with_attribute_error, "NeedsAnObjectError", "told by an object"),
    ],
)
def test_H06_an_error_that_cannot_be_rebuilt_is_told_and_retried(fail: object, name: str, message: str) -> None:
    patient = task(fail, max_attempts=2, backoff=0)  # type: ignore[call-overload]  # one of several functions
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        handle = queue.submit(patient.spec())
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, RemoteError | ValueError)
        assert name in type(error).__name__ or name in str(error)
        assert message in str(error)
        assert "Traceback" in str(error.__cause__)
        assert handle.attempts == 2
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid


# --- arguments that cannot be pickled ---


class Spoilt:
    def __reduce__(self) -> str:
        raise RuntimeError("no pickling today")


class Service:
    """Holds the queue that it submits to, as objects do."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.name = "service"

    def work(self) -> str:
        return self.name


def test_H07_an_argument_that_cannot_be_pickled_is_refused_at_submit() -> None:
    with Queue(workers=1) as queue:
        with pytest.raises(PayloadError, match=r"argument 'value' of echo\(...\).*Spoilt.*no pickling today"):
            queue.submit(tasks.echo, Spoilt())
        with pytest.raises(PayloadError, match=r"at value\['deep'\]\[1\]"):
            queue.submit(tasks.echo, {"deep": [1, Spoilt()]})
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1
        check_invariants(queue)
        assert queue.stats().counts[Status.SUCCEEDED] == 1


def test_H09_a_method_of_an_object_that_holds_the_queue_is_refused() -> None:
    with Queue(workers=1) as queue:
        with pytest.raises(UsageError, match="a Queue can't be sent to a worker"):
            queue.submit(Service(queue).work)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


def test_H09_lambdas_closures_and_local_classes_travel() -> None:
    factor = 3

    def closure(number: int) -> int:
        return number * factor

    class Local:
        def __init__(self, number: int) -> None:
            self.number = number

        def method(self) -> int:
            return self.number * factor

    with Queue(workers=1) as queue:
        assert queue.submit(lambda: 6).result(PATIENCE_S) == 6
        assert queue.submit(closure, 3).result(PATIENCE_S) == 9
        assert queue.submit(Local(4).method).result(PATIENCE_S) == 12


def test_C5_what_changes_after_the_submit_does_not_matter() -> None:
    data = [1, 2, 3]
    queue = Queue(workers=1)
    handle = queue.submit(tasks.echo, data)
    data.clear()
    with queue:
        assert handle.result(PATIENCE_S) == [1, 2, 3]


# --- results that cannot be sent back ---


@pytest.mark.parametrize(
    ("fn", "texts"),
    [
        (more_tasks.lock_in_dict, ("lock_in_dict returned a dict", "lock")),
        (more_tasks.generator, ("generator returned a generator", "return a list instead")),
        (more_tasks.coroutine, ("coroutine returned a coroutine", "asyncio.run()")),
        (more_tasks.exits_while_pickled, ("exits_while_pickled returned an UnpicklableOnPurpose",)),
    ],
)
def test_H08_a_result_that_cannot_be_sent_back_fails_for_good_and_the_worker_goes_on(
    fn: object, texts: tuple[str, ...]
) -> None:
    patient = task(fn, max_attempts=3, backoff=0)  # type: ignore[call-overload]  # one of several functions
    with Queue(workers=1) as queue:
        pid = queue.submit(tasks.pid).result(PATIENCE_S)
        handle = queue.submit(patient.spec())
        error = handle.exception(PATIENCE_S)

        assert isinstance(error, PayloadError)
        for text in texts:
            assert text in str(error)
        assert handle.attempts == 1
        assert queue.submit(tasks.pid).result(PATIENCE_S) == pid


def test_H08_an_async_function_is_refused_at_submit() -> None:
    async def work() -> None:
        pass

    with Queue(workers=1) as queue, pytest.raises(UsageError, match="procq runs plain functions"):
        queue.submit(work)


def test_D9_a_result_whose_unpickling_raises_does_so_for_whoever_asks() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.bad_result)
        for _ in range(2):
            with pytest.raises(LookupError, match="no rebuilding"):
                handle.result(PATIENCE_S)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


# --- how errors look ---


def test_H13_the_workers_traceback_names_the_line_and_the_whole_chain() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.fail_from_another, 3)
        with pytest.raises(ValueError, match="B") as caught:
            handle.result(PATIENCE_S)

    text = "".join(traceback.format_exception(caught.value))
    assert "KeyError: 'A'" in text
    assert "the direct cause of the following" in text
    assert "ValueError: B" in text
    assert 'raise KeyError("A")' in text
    assert "process_tasks.py" in text
    assert text.count("in fail_from_another") >= 3


def test_H13_asking_again_gives_a_fresh_error_of_the_same_length() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.fail_from_another, 3)
        texts = set()
        errors = []
        for _ in range(3):
            try:
                handle.result(PATIENCE_S)
            except ValueError as error:
                errors.append(error)
                texts.add("".join(traceback.format_exception(error)))
    assert len({id(error) for error in errors}) == 3
    assert len({len(text) for text in texts}) == 1


def test_H13_two_crashes_are_two_errors() -> None:
    with Queue(workers=1) as queue:
        first = queue.submit(tasks.exit_at_once, 3)
        second = queue.submit(tasks.exit_at_once, 4)
        errors = [first.exception(PATIENCE_S), second.exception(PATIENCE_S)]

    assert [error.exit_code for error in errors if isinstance(error, WorkerCrashed)] == [3, 4]
    assert [error.task_id for error in errors if isinstance(error, WorkerCrashed)] == [first.id, second.id]


def test_H13_an_error_in_a_script_names_the_scripts_own_line(tmp_path: Path) -> None:
    from tests.support.looking import run_file  # noqa: PLC0415 - for this alone

    done = run_file(
        tmp_path / "script.py",
        """
        from procq import Queue

        def work():
            raise ValueError("here")

        with Queue(workers=1) as queue:
            queue.submit(work).result()
        """,
    )
    assert done.returncode == 1
    assert 'script.py", line 5, in work' in done.stderr
    assert done.stderr.splitlines()[-1] == "ValueError: here"


def test_D3_permanent_ends_it_and_raises_its_reason() -> None:
    patient = task(tasks.fail_permanently, max_attempts=5, backoff=0)
    with Queue(workers=1) as queue:
        by_error = queue.submit(patient.spec(ValueError("bad input")))
        by_text = queue.submit(patient.spec("give up"))
        with pytest.raises(ValueError, match="bad input"):
            by_error.result(PATIENCE_S)
        with pytest.raises(Permanent, match="give up"):
            by_text.result(PATIENCE_S)
        assert (by_error.attempts, by_text.attempts) == (1, 1)


def test_D7_retry_later_uses_no_attempt(tmp_path: Path) -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.later_twice, str(tmp_path / "log"))
        assert handle.result(PATIENCE_S) == 3
        assert handle.attempts == 1
        assert len(handle.history) == 3
