"""What workers log reaches the loggers of the supervisor, and a flood of it harms nobody (contract H4, H5)."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.support import log_tasks
from tests.support.driver import Driver
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, engine_of, states, wait_idle
from tests.support.process_tasks import Gate, echo

from procq import Queue, Status, task
from procq.engine import attempt
from procq.engine.local import record as records, transport, wire
from procq.errors import AttemptTimeout, TaskCancelled

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

LOGGER: Final = logging.getLogger(log_tasks.NAME)


class Listener(logging.Handler):
    """Keeps what it is given; waits before each record while `go_on` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.threads: set[str] = set()
        self.go_on = threading.Event()
        self.go_on.set()

    def emit(self, record: logging.LogRecord) -> None:
        self.go_on.wait(PATIENCE_S)
        self.records.append(record)
        self.threads.add(threading.current_thread().name)

    @property
    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    LOGGER.addHandler(made)

    yield made

    made.go_on.set()
    LOGGER.removeHandler(made)
    LOGGER.setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)


def ids(record: logging.LogRecord) -> tuple[object, object]:
    return getattr(record, "task_id", "?"), getattr(record, "attempt", "?")


# --- what arrives ---


def test_H4_a_record_arrives_with_id_and_attempt(listener: Listener) -> None:
    with Queue(workers=1) as queue:
        queue.submit(task(log_tasks.say_twice, id="job", max_attempts=2, backoff=0).spec("tried")).result(PATIENCE_S)

    assert [(record.getMessage(), *ids(record)) for record in listener.records] == [
        ("tried", "job", 1),
        ("tried", "job", 2),
    ]
    assert listener.threads == {"procq-logs"}


def test_H4_a_record_is_rebuilt_from_texts_and_numbers(listener: Listener) -> None:
    before = time.time()
    with Queue(workers=1) as queue:
        handle = queue.submit(log_tasks.say_all)
        handle.result(PATIENCE_S)
        pid = handle.history[0].pid
    after = time.time()

    (record,) = listener.records
    assert (record.name, record.levelname, record.levelno) == ("procq-test.child", "ERROR", logging.ERROR)
    assert (record.getMessage(), record.args) == ("one of 7", ())
    assert (record.module, record.filename, record.funcName) == ("log_tasks", "log_tasks.py", "say_all")
    assert record.pathname.endswith("tests/support/log_tasks.py")
    assert record.process == pid
    assert before <= record.created <= after
    assert record.msecs == pytest.approx(record.created % 1 * 1000)
    assert record.threadName == "MainThread"
    assert record.exc_info is None
    assert record.exc_text is not None
    assert record.exc_text.endswith("KeyError: 'missing'")
    assert record.stack_info is not None
    assert record.stack_info.startswith("Stack (most recent call last):")
    extra = {
        name: vars(record).get(name, "absent") for name in ("words", "count", "part", "flag", "none", "made", "long")
    }
    assert extra == {
        "words": "two", "count": 3, "part": 0.5, "flag": True, "none": None, "made": "absent", "long": "absent",
    }  # fmt: skip
    assert logging.Formatter("%(message)s").format(record).count("KeyError: 'missing'") == 1


def test_H4_a_record_too_big_for_a_packet_loses_the_middle_of_its_texts(listener: Listener) -> None:
    with Queue(workers=1) as queue:
        queue.submit(log_tasks.say, "\x00" + "é" * 10**6 + "end", extra={"other": "x" * 10**6}).result(PATIENCE_S)
        queue.submit(log_tasks.say, "many", extra={f"extra{number}": "x" for number in range(10_000)}).result(
            PATIENCE_S
        )

    big, many = listener.records
    assert big.getMessage().startswith("\x00éé")
    assert big.getMessage().endswith("éend")
    assert "characters left out" in big.getMessage()
    assert len(big.getMessage()) <= attempt.TEXT_MAX + 100
    assert (many.getMessage(), hasattr(many, "extra1")) == ("many", False)


def test_H4_what_the_initializer_logs_is_no_attempts(listener: Listener) -> None:
    with Queue(workers=1, initializer=log_tasks.say, initargs=("begin",)) as queue:
        assert queue.submit(log_tasks.say, "go").result(PATIENCE_S) is True

    assert [record.getMessage() for record in listener.records] == ["begin", "go"]
    assert ids(listener.records[0]) == (None, None)


def test_H4_a_worker_whose_tasks_log_nothing_does_not_import_logging(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)  # measuring a worker imports half the standard library
    with Queue(workers=1) as queue:
        assert queue.submit(log_tasks.say, "first").result(PATIENCE_S) is False

    assert listener.texts == ["first"]


def test_H4_looking_for_logging_spoils_nothing_and_its_loader_is_left_as_it_was(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)
    with Queue(workers=1) as queue:
        assert queue.submit(log_tasks.look_and_import).result(PATIENCE_S) == ("SourceFileLoader", True)

    assert listener.texts == ["after a look"]


# --- levels ---


def test_H4_a_worker_makes_no_record_that_the_supervisor_would_drop(listener: Listener) -> None:
    LOGGER.setLevel(logging.ERROR)
    logging.getLogger("procq-test.child").setLevel(logging.DEBUG)
    root_level = logging.getLogger().level
    try:
        with Queue(workers=1) as queue:
            enabled = queue.submit(log_tasks.enabled, "procq-test", "procq-test.child", "procq-test.other").result()
            queue.submit(log_tasks.say, "dropped").result()
    finally:
        logging.getLogger("procq-test.child").setLevel(logging.NOTSET)

    assert enabled == [False, True, False]
    assert listener.texts == []
    assert logging.getLogger().level == root_level


def test_H4_what_is_disabled_here_is_disabled_there(listener: Listener) -> None:
    LOGGER.setLevel(logging.DEBUG)
    logging.disable(logging.INFO)
    with Queue(workers=1) as queue:
        assert queue.submit(log_tasks.enabled, log_tasks.NAME).result(PATIENCE_S) == [False]
        queue.submit(log_tasks.say, "seen").result(PATIENCE_S)

    assert listener.texts == ["seen"]


def test_H4_a_level_raised_later_counts_here_for_workers_that_do_not_know_it(listener: Listener) -> None:
    LOGGER.setLevel(logging.INFO)
    with Queue(workers=1) as queue:
        assert queue.submit(log_tasks.enabled, log_tasks.NAME).result(PATIENCE_S) == [True]
        LOGGER.setLevel(logging.ERROR)
        queue.submit(log_tasks.say, "made, and dropped here").result(PATIENCE_S)

    assert listener.texts == []


# --- logging as usual ---


def test_H4_a_task_can_set_up_logging_of_its_own_beside(listener: Listener, tmp_path: Path) -> None:
    file = tmp_path / "log"
    with Queue(workers=1) as queue:
        queue.submit(log_tasks.configure_and_say, str(file)).result(PATIENCE_S)

    assert file.read_text() == "here: both ways\n"
    assert listener.texts == ["both ways"]


def test_H4_a_task_that_sets_up_logging_whole_does_not_cut_the_way_of_records(listener: Listener) -> None:
    with Queue(workers=1) as queue:
        queue.submit(log_tasks.configure_by_dictionary_and_say).result(PATIENCE_S)

    assert listener.texts == ["after all was set up"]


def test_H4_a_record_that_cannot_be_formatted_does_not_disturb_the_task(
    listener: Listener, capfd: pytest.CaptureFixture[str]
) -> None:
    with Queue(workers=1) as queue:
        assert queue.submit(log_tasks.say_badly).result(PATIENCE_S) == "went on"

    assert listener.records == []
    assert "--- Logging error ---" in capfd.readouterr().err


def test_H4_a_forked_child_keeps_off_the_pipe_of_the_worker(listener: Listener) -> None:
    with Queue(workers=1) as queue:
        assert queue.submit(log_tasks.fork_and_say).result(PATIENCE_S) == 0
        assert queue.submit(echo, "in step").result(PATIENCE_S) == "in step"

    assert listener.texts == ["parent"]


def test_H4_a_thread_that_outlives_its_attempt_logs_in_its_name(listener: Listener, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        queue.submit(task(log_tasks.leave_a_thread, id="first").spec(gate.path)).result(PATIENCE_S)
        gate.wait_begun()
        queue.submit(task(log_tasks.open_and_wait, id="second").spec(gate.path)).result(PATIENCE_S)

    assert [(record.getMessage(), *ids(record)) for record in listener.records] == [
        ("in time", "first", 1),
        ("own", "second", 1),
        ("late", "first", 1),
    ]


def test_H4_a_worker_that_lost_its_pipes_logs_to_its_standard_error(
    listener: Listener, capfd: pytest.CaptureFixture[str]
) -> None:
    with Driver() as driver:
        driver.send(log_tasks.close_everything_and_say)
        assert driver.death().exit_code == wire.EXIT_PIPES_LOST

    assert capfd.readouterr().err == "nowhere to go\n"
    assert listener.records == []


# --- handlers are user code ---


class Asking(Listener):
    """Asks the queue something, which takes its lock."""

    queue: Queue

    def emit(self, record: logging.LogRecord) -> None:
        self.queue.stats()
        super().emit(record)


def test_H4_handlers_run_without_the_lock_and_before_a_shutdown_returns() -> None:
    asking = Asking()
    LOGGER.addHandler(asking)
    try:
        with Queue(workers=2) as queue:
            asking.queue = queue
            for start in (0, 100):
                queue.submit(log_tasks.count_from, start, 100)
    finally:
        LOGGER.removeHandler(asking)

    values = [int(text) for text in asking.texts]
    assert sorted(values) == list(range(200))
    assert [value for value in values if value < 100] == list(range(100)), "each worker's stay in order"
    assert [value for value in values if value >= 100] == list(range(100, 200))


class Raising(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(f"cannot handle {record.getMessage()}")


def test_H4_a_handler_that_raises_harms_nobody(listener: Listener, capfd: pytest.CaptureFixture[str]) -> None:
    raising = Raising()
    LOGGER.addHandler(raising)
    try:
        with Queue(workers=1) as queue:
            queue.submit(log_tasks.say, "one").result(PATIENCE_S)
            queue.submit(log_tasks.say, "two").result(PATIENCE_S)
    finally:
        LOGGER.removeHandler(raising)

    assert listener.texts == ["one", "two"]
    told = capfd.readouterr().err
    assert "RuntimeError: cannot handle one" in told
    assert "RuntimeError: cannot handle two" in told


def test_F4_a_callback_and_a_handler_that_raise_do_not_end_the_callbacks() -> None:
    """The message about the callback is what the handler gets, in the same thread."""
    heard = threading.Event()
    logger, raising = logging.getLogger("procq.callback"), Raising()
    logger.addHandler(raising)
    try:
        with Queue(workers=1) as queue:
            first = queue.submit(echo, 1)
            first.add_done_callback(lambda _: 1 / 0)
            first.wait(PATIENCE_S)
            queue.submit(echo, 1).add_done_callback(lambda _: heard.set())
            assert heard.wait(PATIENCE_S)
    finally:
        logger.removeHandler(raising)


# --- floods (H5) ---


def backlog(queue: Queue) -> int:
    """Return how many bytes of records wait to be handled."""
    with queue._supervisor.lock:
        return max((worker.log_read - worker.log_handled for worker in engine_of(queue)._workers.values()), default=0)


def is_held(queue: Queue) -> bool:
    with queue._supervisor.lock:
        return any(worker.log_held for worker in engine_of(queue)._workers.values())


def test_H5_a_flood_waits_for_the_handlers_and_loses_nothing(listener: Listener) -> None:
    listener.go_on.clear()
    with Queue(workers=2) as queue:
        handle = queue.submit(log_tasks.count_from, 0, 5_000)
        assert wait_until(lambda: is_held(queue), PATIENCE_S)
        held = backlog(queue)
        assert queue.submit(echo, "another").result(PATIENCE_S) == "another"
        assert handle.status is Status.RUNNING
        assert held <= records.BACKLOG_BYTES + 5 * transport._READ_MAX, "no more than the last read brought"
        listener.go_on.set()
        handle.result(PATIENCE_S)

    assert listener.texts == [str(number) for number in range(5_000)]


def test_H5_a_flood_of_records_does_not_delay_the_end_of_its_attempt(listener: Listener) -> None:
    listener.go_on.clear()
    with Queue(workers=1, kill_grace=0.2) as queue:
        late = queue.submit(task(log_tasks.flood, timeout=0.5).spec())
        assert isinstance(late.exception(PATIENCE_S), AttemptTimeout)
        cancelled = queue.submit(log_tasks.flood)
        assert wait_until(lambda: is_held(queue), PATIENCE_S)
        cancelled.cancel()
        assert isinstance(cancelled.exception(PATIENCE_S), TaskCancelled)
        assert queue.submit(echo, "next").result(PATIENCE_S) == "next"
        listener.go_on.set()


@pytest.mark.parametrize("at_once", [True, False])
def test_G2_a_flood_does_not_delay_a_shutdown(listener: Listener, *, at_once: bool) -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(log_tasks.flood)
        assert wait_until(lambda: len(listener.records) > 1000, PATIENCE_S)
        began = time.monotonic()
        report = queue.shutdown(0 if at_once else 0.1, mode="kill")
        took_s = time.monotonic() - began

    assert took_s < 0.1 + 1 + 1, "deadline, kill_grace and a second"
    assert report.cut_off == (handle.id,)


def test_H5_what_a_flooding_task_says_when_it_is_asked_to_stop_arrives(listener: Listener) -> None:
    with Queue(workers=1, kill_grace=PATIENCE_S) as queue:
        handle = queue.submit(task(log_tasks.flood_until_told, timeout=0.3).spec())
        assert isinstance(handle.exception(PATIENCE_S), AttemptTimeout)

    assert listener.texts[-1] == "tidied up"
    assert handle.history[0].exit_code is None


def test_H5_an_idle_worker_with_a_thread_that_floods_can_still_be_used(listener: Listener) -> None:
    with Queue(workers=1) as queue:
        assert queue.submit(log_tasks.flood_in_a_thread).result(PATIENCE_S) == "left"
        assert wait_until(lambda: len(listener.records) > 1000, PATIENCE_S)
        assert queue.submit(echo, "next").result(PATIENCE_S) == "next"
        queue.shutdown(PATIENCE_S, mode="drain")


def test_H5_attempts_sent_ahead_of_one_that_floods_are_taken_back(listener: Listener, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        wait_idle_after(queue)
        flooding = queue.submit(log_tasks.announce_and_flood, gate.path)
        ahead = [queue.submit(echo, number) for number in range(20)]
        gate.wait_begun()
        assert wait_until(lambda: len(listener.records) > 1000, PATIENCE_S)
        assert ahead[0].cancel() == "cancelled"
        flooding.cancel()
        assert [handle.result(PATIENCE_S) for handle in ahead[1:]] == list(range(1, 20))


def wait_idle_after(queue: Queue) -> None:
    queue.submit(echo, 1).result(PATIENCE_S)
    wait_idle(queue, 1)
    assert states(queue) == {"idle": 1}


def test_F4_a_callback_may_wait_for_a_task_that_logs_much(listener: Listener) -> None:
    """Done-callbacks and handlers share no thread: else the task would wait for the callback that waits for it."""
    found: list[object] = []
    done = threading.Event()
    with Queue(workers=1) as queue:

        def wait_for_the_other(_: object) -> None:
            found.append(queue.submit(log_tasks.count_from, 0, 5_000).result(PATIENCE_S))
            done.set()

        queue.submit(echo, 1).add_done_callback(wait_for_the_other)
        assert done.wait(PATIENCE_S)

    assert found == [None]
    assert len(listener.records) == 5_000
