"""Shutdown in its three modes, and the other ends of a queue (contract G)."""

import gc
import threading

import pytest
from tests.contract import tasks
from tests.contract.drivers import BACKGROUND, Driver
from tests.contract.log import Log
from tests.support.leaks import wait_until

import procq
from procq import Status, errors
from procq.closing import Mode, ShutdownReport

# --- G1: drain ---


def test_G1_drain_runs_everything_accepted_retries_and_waiting_tasks_included(driver: Driver) -> None:
    queue = driver.started()
    plain = queue.submit(tasks.echo, 1)
    flaky = queue.submit(procq.task(tasks.fail_before, max_attempts=3, backoff=0.05).spec(3))
    delayed = queue.submit(procq.task(tasks.echo, delay=0.1).spec(2))
    dependent = queue.submit(tasks.total, [plain, delayed])
    bad = queue.submit(tasks.fail)
    skipped = queue.submit(tasks.echo, bad)

    report = queue.shutdown()

    assert [handle.result() for handle in (plain, flaky, delayed, dependent)] == [1, "done", 2, 3]
    assert report.drained
    assert report == (True, 4, 1, 1, (), None)
    assert skipped.status is Status.CANCELLED


def test_G1_drain_of_nothing(driver: Driver) -> None:
    assert driver.started().shutdown() == (True, 0, 0, 0, (), None)


def test_G1_drain_resumes_a_paused_queue(driver: Driver) -> None:
    """Else it would wait for ever for tasks that nothing may start."""
    queue = driver.started()
    queue.pause()
    handle = queue.submit(tasks.echo, 1)

    report = queue.shutdown()

    assert report.drained
    assert handle.result() == 1


def test_G1_a_drain_is_not_held_up_by_a_pause(driver: Driver) -> None:
    """It would wait for ever, and nobody would be told why."""
    queue = driver.started()
    waiting: list[procq.Handle[object]] = []
    reports: list[ShutdownReport] = []
    ender = threading.Thread(target=lambda: reports.append(queue.shutdown()), daemon=True)

    def pause(_: "procq.Handle[str]") -> None:
        waiting.append(queue.submit(tasks.echo, 1))
        ender.start()
        assert wait_until(lambda: queue._supervisor.closing)
        with pytest.raises(errors.QueueClosedError, match=r"can't be paused.*mode='finish'"):
            queue.pause()
        queue.resume()  # harmless

    met = driver.during(queue, pause)
    ender.join(20)

    assert met.result() == "met"
    assert [report.drained for report in reports] == [True]
    assert waiting[0].result() == 1


def test_G1_a_queue_that_is_over_is_not_paused(driver: Driver) -> None:
    queue = driver.started()
    queue.shutdown()

    with pytest.raises(errors.QueueClosedError, match="can't be paused"):
        queue.pause()


def test_G1_at_the_deadline_what_runs_is_stopped_and_the_rest_cancelled(driver: Driver, log: Log) -> None:
    queue = driver.queue()
    running = queue.submit(tasks.work_and_note, log.path, 60)
    ready = queue.submit(tasks.echo)
    delayed = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    blocked = queue.submit(tasks.echo, delayed)
    queue.start()
    before = driver.now()

    report = queue.shutdown("1s")

    assert before + 1 <= driver.now() < before + 10
    assert not report.drained
    assert report.cut_off == tuple(handle.id for handle in (running, ready, delayed, blocked))
    assert (report.succeeded, report.failed, report.cancelled) == (0, 0, 4)
    assert log.lines == ["finally"]
    assert [record.outcome for record in running.history] == ["interrupted"]
    assert running.attempts == 0, "an interruption is not charged (G2)"
    for handle in (running, ready, delayed, blocked):
        with pytest.raises(errors.TaskCancelled, match="cut off by the shutdown"):
            handle.result()


def test_G1_a_deadline_that_is_not_needed_is_not_waited_for(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(tasks.echo)
    before = driver.now()

    assert queue.shutdown(3600).drained
    assert driver.now() < before + 60


def test_G1_no_time_at_all_cuts_off_everything(driver: Driver, log: Log) -> None:
    queue = driver.started()
    queue.pause()
    handle = queue.submit(tasks.note, log.path)

    report = queue.shutdown(0)

    assert report.cut_off == (handle.id,)
    assert log.lines == []


# --- G1: finish, kill ---


def test_G1_finish_lets_what_runs_end_and_cancels_the_rest(driver: Driver) -> None:
    queue = driver.started()
    reports: list[ShutdownReport] = []
    waiting: list[procq.Handle[object]] = []
    enders: list[threading.Thread] = []

    def finish(_: "procq.Handle[str]") -> None:
        waiting.append(queue.submit(tasks.echo))
        waiting.append(queue.submit(procq.task(tasks.echo, delay=3600).spec()))
        enders.append(threading.Thread(target=lambda: reports.append(queue.shutdown(mode="finish"))))
        enders[0].start()
        for handle in waiting:
            wait_for_status(handle, Status.CANCELLED)

    met = driver.during(queue, finish)
    enders[0].join(20)

    assert met.result() == "met"
    assert [(report.drained, report.cut_off) for report in reports] == [
        (False, tuple(handle.id for handle in waiting)),
    ]


def wait_for_status(handle: "procq.Handle[object]", status: Status) -> None:
    """Wait for an end without driving the queue that is to bring it about."""
    ended = threading.Event()
    handle.add_done_callback(lambda _: ended.set())
    assert ended.wait(20)
    assert handle.status is status


def test_G1_finish_retries_nothing(driver: Driver) -> None:
    queue = driver.started()
    enders: list[threading.Thread] = []
    waiting: list[procq.Handle[object]] = []

    def finish(_: "procq.Handle[str]") -> None:
        waiting.append(queue.submit(procq.task(tasks.echo, delay=3600).spec()))
        enders.append(threading.Thread(target=queue.shutdown, kwargs={"mode": "finish"}))
        enders[0].start()
        wait_for_status(waiting[0], Status.CANCELLED)

    met = driver.during(queue, finish, fn=tasks.meet_and_fail, max_attempts=2, backoff=0)
    enders[0].join(20)

    with pytest.raises(errors.TaskCancelled, match="cut off by the shutdown"):
        met.result()
    assert [record.outcome for record in met.history] == ["error"]


def test_G1_kill_ends_what_runs_too(driver: Driver) -> None:
    queue = driver.started()
    enders: list[threading.Thread] = []
    waiting: list[procq.Handle[object]] = []

    def kill(_: "procq.Handle[str]") -> None:
        waiting.append(queue.submit(tasks.echo))
        enders.append(threading.Thread(target=queue.shutdown, kwargs={"mode": "kill"}))
        enders[0].start()
        wait_for_status(waiting[0], Status.CANCELLED)

    met = driver.during(queue, kill, max_attempts=5)
    enders[0].join(20)

    assert met.status is Status.CANCELLED
    with pytest.raises(errors.TaskCancelled, match="cut off by the shutdown"):
        met.result()
    assert met.attempts == 0


@pytest.mark.parametrize("mode", ["drain", "finish", "kill"])
def test_G1_a_queue_that_was_never_started_cancels_what_it_has(driver: Driver, mode: Mode) -> None:
    queue = driver.queue()
    first = queue.submit(tasks.echo, 1)
    second = queue.submit(tasks.echo, first)

    report = queue.shutdown(mode=mode)

    assert report == (False, 0, 0, 2, (first.id, second.id), None)
    with pytest.raises(errors.TaskCancelled, match="cut off"):
        second.result()


@pytest.mark.parametrize(
    ("timeout", "mode", "said"),
    [
        (None, "abort", "mode='abort'"),
        (None, None, "mode=None"),
        ("soon", "drain", "timeout"),
        (-1, "drain", "timeout"),
    ],
)
def test_G1_what_cannot_be_is_refused_and_changes_nothing(
    driver: Driver, timeout: float, mode: Mode, said: str
) -> None:
    queue = driver.started()

    with pytest.raises(errors.UsageError, match=said):
        queue.shutdown(timeout, mode=mode)

    assert queue.submit(tasks.add, 1, 2).result() == 3


# --- G4: the other ways to end ---


def test_G4_with_drains(driver: Driver) -> None:
    with driver.queue() as queue:
        handle = queue.submit(procq.task(tasks.echo, delay=0.1).spec(1))

    assert handle.ok


def test_G4_leaving_with_by_an_exception_kills(driver: Driver, log: Log) -> None:
    queue = driver.queue()

    def use() -> "procq.Handle[str]":
        with queue:
            leaving.append(queue.submit(procq.task(tasks.note, delay=3600).spec(log.path)))
            raise LookupError("the program's own")

    leaving: list[procq.Handle[str]] = []
    with pytest.raises(LookupError, match="the program's own"):
        use()

    assert leaving[0].status is Status.CANCELLED
    assert log.lines == []


def test_G4_shutting_down_again_returns_the_same_report(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(tasks.echo)
    queue.submit(tasks.fail)

    reports = [queue.shutdown(), queue.shutdown(5), queue.shutdown(0, mode="kill")]

    assert reports == [(True, 1, 1, 0, (), None)] * 3


def test_G4_several_threads_may_shut_down(driver: Driver) -> None:
    queue = driver.started()
    queue.submit(procq.task(tasks.echo, delay=0.1).spec())
    reports: list[object] = []

    threads = [threading.Thread(target=lambda: reports.append(queue.shutdown())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert reports == [(True, 1, 0, 0, (), None)] * 4


def test_G4_a_harsher_call_takes_over(driver: Driver) -> None:
    driver.needs(BACKGROUND)
    queue = driver.started()
    handle = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    reports: list[object] = []
    patient = threading.Thread(target=lambda: reports.append(queue.shutdown()))
    patient.start()

    report = queue.shutdown(mode="kill")
    patient.join(20)

    assert reports == [report]
    assert report.cut_off == (handle.id,)


def test_G4_a_callback_may_shut_down(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(tasks.echo, 1)
    reports: list[object] = []
    done = threading.Event()

    def end(_: "procq.Handle[object]") -> None:
        reports.append(queue.shutdown())
        done.set()

    handle.add_done_callback(end)
    handle.wait()

    assert done.wait(20)
    assert reports == [(True, 1, 0, 0, (), None)]


def test_G4_a_queue_dropped_without_shutdown_warns_and_its_handles_end_cancelled(driver: Driver) -> None:
    queue = driver.started()
    driver.forget(queue)
    handle = queue.submit(procq.task(tasks.echo, delay=3600).spec())
    dependent = queue.submit(tasks.echo, handle)

    with pytest.warns(ResourceWarning, match="without shutdown"):
        del queue  # nothing else holds it

    for waiting in (handle, dependent):
        with pytest.raises(errors.TaskCancelled):
            waiting.result(20)


def test_G4_a_queue_dropped_before_start_ends_its_tasks_too(driver: Driver) -> None:
    queue = driver.queue()
    driver.forget(queue)
    handle = queue.submit(tasks.echo, 1)

    with pytest.warns(ResourceWarning, match="without shutdown"):
        del queue

    with pytest.raises(errors.TaskCancelled):
        handle.result(20)


def test_G4_a_queue_that_was_shut_down_or_never_used_is_dropped_silently(driver: Driver) -> None:
    used, unused = driver.started(), driver.queue()
    used.submit(tasks.echo).wait()
    used.shutdown()
    for queue in (used, unused):
        driver.forget(queue)

    del queue, used, unused
    gc.collect()  # a warning would be an error here


def test_G4_handles_and_results_outlive_the_queue(driver: Driver) -> None:
    queue = driver.started()
    good, bad = queue.submit(tasks.echo, [1]), queue.submit(tasks.fail, "no")
    queue.shutdown()
    driver.forget(queue)
    del queue
    gc.collect()

    assert good.result() == [1]
    assert isinstance(bad.exception(), ValueError)
    assert good.cancel() == "finished"
