"""Why is this not running?  For every state that is not an end the answer names the concrete reason (contract F8)."""

import re

import pytest
from tests.contract import tasks
from tests.contract.drivers import PARALLEL, Driver, InlineDriver, LocalDriver
from tests.support.leaks import wait_until

import procq
from procq import Breaker, Status, errors

echo = procq.task(tasks.echo)


def open_queue(driver: Driver, **parameters: object) -> procq.Queue:
    """Return a queue that is started and paused, so that what is ready stays so."""
    queue = driver.started(**parameters)  # type: ignore[arg-type]  # of `Queue`
    queue.pause()
    return queue


def test_F8_what_is_blocked_names_what_it_waits_for_and_how_that_stands(driver: Driver) -> None:
    queue = open_queue(driver)
    ready = queue.submit(echo.using(id="ready").spec())
    late = queue.submit(echo.using(id="late", delay=100).spec())
    queue.submit(echo.using(id="blocked", depends_on=[ready, late]).spec())

    text = queue.explain("blocked")

    assert re.fullmatch(r"blocked is blocked: waits for ready \(ready\), late \(scheduled, due in 1m\d\ds\)", text)


def test_F8_of_many_dependencies_the_first_few_are_named(driver: Driver) -> None:
    queue = open_queue(driver)
    needs = [queue.submit(echo.using(id=f"need/{number}").spec()) for number in range(8)]
    queue.submit(echo.using(id="blocked", depends_on=needs).spec())

    assert queue.explain("blocked").endswith("need/4 (ready) and 3 more")


def test_F8_what_is_scheduled_says_when_it_is_due_and_when_it_expires(driver: Driver) -> None:
    queue = open_queue(driver)
    task = queue.submit(echo.using(delay=3599, expires=7190).spec())

    text = queue.explain(task)

    assert "is scheduled: not before its time, due in 59m5" in text or "due in 1h00m" in text
    assert re.search(r"it expires in (1h59m|2h00m) unless it has started$", text)


def test_F8_a_retry_says_what_went_wrong_and_when_it_comes(driver: Driver) -> None:
    queue = driver.started(backoff=1000)
    task = queue.submit(procq.task(tasks.fail, max_attempts=3).spec())
    with pytest.raises(TimeoutError):
        task.wait(0.5)

    assert re.search(
        r"is scheduled: attempt 1 of 3 ended in error, waits before the next one, due in 16m\d\ds$", queue.explain(task)
    )


def test_F8_one_that_asked_to_come_back_later_says_so(driver: Driver) -> None:
    queue = driver.started()
    task = queue.submit(tasks.later)
    with pytest.raises(TimeoutError):
        task.wait(0.5)

    assert re.search(r"attempt 1 asked to come back later, due in 16m\d\ds$", queue.explain(task))


def test_F8_a_queue_that_is_not_started_or_paused_is_the_reason(driver: Driver) -> None:
    queue = driver.queue()
    task = queue.submit(tasks.echo)

    assert queue.explain(task).endswith("is ready: the queue is not started")
    queue.start()
    queue.pause()
    later = queue.submit(tasks.echo)
    assert queue.explain(later).endswith("is ready: the queue is paused")


def test_F8_while_something_runs_a_limit_and_the_line_are_the_reasons(driver: Driver) -> None:
    queue = driver.started(limits={"meet": 1})
    texts: list[str] = []

    def ask(running: "procq.Handle[str]") -> None:
        texts.append(queue.explain(running))
        limited = queue.submit(tasks.meet, "nowhere")
        others = [queue.submit(echo.using(expires=9999).spec()) for _ in range(3)]  # never sent ahead
        texts.extend(queue.explain(task) for task in (limited, others[0], others[2]))
        limited.cancel()

    driver.during(queue, ask, timeout=500)

    running, limited, first, third = texts
    assert re.search(r" is running: attempt 1 of 1 (in|on) .*, for .* so far; its timeout ends it in 8m\d\ds$", running)
    assert limited.endswith("type limit 1/1: as many tasks of type 'meet' run as may")
    assert "no worker is free, and it is next" in first
    assert "no worker is free, 2 tasks are ahead of it" in third


def test_F8_a_running_task_tells_its_progress(driver: Driver) -> None:
    queue = driver.started()
    told: list[bool] = []

    def ask(task: "procq.Handle[str]") -> None:
        told.append(wait_until(lambda: "it has done 3 of 10" in queue.explain(task)))  # it is on its way maybe

    driver.during(queue, ask, fn=tasks.report_and_meet)

    assert told == [True]


def test_F8_an_open_breaker_says_until_when(driver: Driver) -> None:
    queue = driver.started(breaker={"fail": Breaker(failures=2, window="1m", cool_down="1h")})
    for _ in range(2):
        queue.submit(tasks.fail).wait()
    held = queue.submit(tasks.fail)

    assert re.search(
        r"is ready: the breaker of type 'fail' is open for (59m5\d|1h00m)s? more, after 2 failures within 1m00s$",
        queue.explain(held),
    )
    assert queue.stats().breakers == {"fail": "open"}
    assert held.status is Status.READY


def test_F8_slots_that_are_not_free_are_the_reason_also_for_what_comes_after(driver: Driver) -> None:
    driver.needs(PARALLEL)
    queue = driver.started(workers=2, resources={"cpu": 4, "memory": "8GB"})
    texts: list[str] = []

    def ask(_running: "procq.Handle[str]") -> None:
        big = queue.submit(echo.using(id="big", cpus=4, memory="6GB").spec())
        small = queue.submit(echo.spec())
        texts.extend(queue.explain(task) for task in (big, small))

    driver.during(queue, ask, cpus=2)

    reason = "waits for 4 cpus, 2 of 4 are free"
    assert texts[0] == f"big is ready: {reason}"
    assert texts[1].endswith(("waits for a worker to start, 1 task is ahead of it", f"comes after big, which {reason}"))


def test_F8_what_was_sent_ahead_says_where_it_waits(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(driver, InlineDriver):
        pytest.skip("nothing is sent ahead inline")
    monkeypatch.setattr("procq.engine.local.engine.LONG_S", 1000)  # else it may be taken back before it is looked at
    queue = driver.started()
    brief = procq.task(tasks.echo, type="brief")
    queue.submit(tasks.echo).wait()  # the first one imports the module, which is not brief
    for _ in range(3):
        queue.submit(brief).wait()
    texts: list[str] = []

    def ask(_running: "procq.Handle[str]") -> None:
        handles = [queue.submit(brief) for _ in range(2)]
        with queue._supervisor.lock:
            ahead = [handle for handle in handles if handle._task.seq in queue._supervisor.scheduler.ahead]
        texts.extend(queue.explain(handle) for handle in ahead)

    # Brief enough, as far as is known, for others to be sent behind it.
    driver.during(queue, ask, type="brief")

    assert texts
    for text in texts:
        assert re.search(r"is ready: sent ahead to worker \d+ \(pid \d+\), where \d are before it$", text)


def test_F8_short_memory_is_the_reason(driver: Driver) -> None:
    if not isinstance(driver, LocalDriver):
        pytest.skip("only where there are processes")
    queue = procq.Queue(workers=2, min_free_memory="900TB").start()
    try:
        texts: list[str] = []
        driver.during(queue, lambda _: texts.append(queue.explain(queue.submit(tasks.echo))))
        assert texts[0].endswith("less memory is available than min_free_memory, so nothing starts beside what runs")
    finally:
        queue.shutdown(mode="kill")


def test_F8_what_has_ended_says_how(driver: Driver) -> None:
    queue = driver.started()
    good = queue.submit(echo.using(id="good").spec())
    bad = queue.submit(procq.task(tasks.fail, id="bad").spec())
    skipped = queue.submit(echo.using(id="skipped", depends_on=[bad]).spec())
    for handle in (good, bad, skipped):
        handle.wait()
    queue.pause()
    gone = queue.submit(echo.using(id="gone").spec())
    gone.cancel()

    assert queue.explain("good") == "good is succeeded, after 1 attempt"
    assert queue.explain("bad").startswith("bad is failed after 1 attempt: ValueError: ")
    assert queue.explain("skipped").startswith("skipped is cancelled: DependencyFailed: ")
    assert queue.explain("gone") == "gone is cancelled: TaskCancelled: task 'gone' was cancelled"


def test_F8_an_unknown_task_is_refused(driver: Driver) -> None:
    with pytest.raises(errors.UnknownTaskError, match="nobody"):
        driver.queue().explain("nobody")
