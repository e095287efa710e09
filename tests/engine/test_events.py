"""What the stream of events says of workers, and a listener that cannot keep up (docs/reference/events.md)."""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.test_headroom import Machine, memory  # noqa: F401 - a fixture
from tests.engine.test_threads import Storm, all_the_while
from tests.support import log_tasks, memory_tasks, process_tasks as tasks
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, engine_of, pids, wait_idle
from tests.support.process_tasks import Gate
from tests.support.story import Story

from procq import Queue, Status, events, task

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


def reasons(story: Story) -> list[str]:
    """Return why workers ended, in order."""
    story.check()
    return [event["reason"] for event in story.of("worker.ended")]


# --- workers ---


def test_each_worker_is_told_when_its_process_starts_and_when_it_has_ended() -> None:
    story = Story()
    with Queue(workers=2, on_event=story) as queue:
        [handle.result() for handle in [queue.submit(tasks.sleep, 0.05) for _ in range(4)]]
        wait_idle(queue, 2)
        alive = pids(queue)

    assert reasons(story) == ["shutdown", "shutdown"]
    assert {event["pid"] for event in story.of("worker.started")} == alive


def test_attempts_are_told_with_their_workers_those_too_that_were_sent_ahead() -> None:
    story = Story()
    with Queue(workers=2, on_event=story) as queue:
        handles = [queue.submit(tasks.pid) for _ in range(1000)]
        ran_in = {handle.id: handle.result() for handle in handles}

    story.check()
    assert {event["id"]: event["pid"] for event in story.of("attempt.started")} == ran_in
    workers = {event["pid"]: event["worker"] for event in story.of("worker.started")}
    assert all(event["worker"] == workers[event["pid"]] for event in story.of("attempt.started"))


def test_an_attempt_that_began_and_ended_unseen_is_told_by_the_instants_at_which_it_did() -> None:
    story = Story()
    with Queue(workers=1, on_event=story) as queue:
        handles = [queue.submit(tasks.nothing) for _ in range(500)]
        [handle.result() for handle in handles]
        records = {handle.id: handle.history[0] for handle in handles}

    story.check()
    offset = story.events[0]["t"] - queue._supervisor._events._started_at  # type: ignore[union-attr]
    began = {event["id"]: event for event in story.of("attempt.started")}
    unseen = [event for event in story.of("attempt.ended") if event["seq"] == began[event["id"]]["seq"] + 1]
    assert unseen, "most are"
    for event in unseen:
        record = records[event["id"]]
        assert event["t"] == pytest.approx(record.ended_at + offset, abs=1e-5)
        assert event["run_s"] == record.run_s


@pytest.mark.parametrize(
    ("die", "argument"), [(tasks.die_by, 9), (tasks.die_by, 11), (tasks.exit_at_once, 0), (tasks.exit_at_once, 3)]
)
def test_D4_a_worker_that_dies_is_told_after_its_attempt(die: Callable[[int], None], argument: int) -> None:
    story = Story()
    with Queue(workers=1, on_event=story) as queue:
        queue.submit(die, argument).exception(PATIENCE_S)
        queue.submit(tasks.echo, 1).result(PATIENCE_S)

    assert reasons(story) == ["crash", "shutdown"]
    assert story.of("attempt.ended")[0]["seq"] < story.of("worker.ended")[0]["seq"]


def test_G5_killing_workers_leaves_no_gap() -> None:
    story = Story()
    with Queue(workers=2, on_event=story) as queue:
        victims = [queue.submit(task(tasks.die_by, max_attempts=3, backoff=0).spec(9)) for _ in range(5)]
        others = [queue.submit(tasks.echo, number) for number in range(300)]
        assert [handle.result(PATIENCE_S) for handle in others] == list(range(300))

    assert reasons(story).count("crash") == 15
    assert story.statuses == {
        **{handle.id: Status.FAILED for handle in victims}, **{handle.id: Status.SUCCEEDED for handle in others},
    }  # fmt: skip


def test_D5_a_worker_whose_attempt_was_stopped_ends_for_that() -> None:
    story = Story()
    with Queue(workers=1, on_event=story) as queue:
        queue.submit(task(tasks.sleep, timeout=0.1).spec(60)).exception(PATIENCE_S)

    assert reasons(story)[0] == "timeout"


def test_F3_a_worker_whose_attempt_was_cancelled_ends_for_that(tmp_path: Path) -> None:
    story = Story()
    gate = Gate(tmp_path)
    with Queue(workers=1, on_event=story) as queue:
        handle = queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        handle.cancel()
        handle.exception(PATIENCE_S)

    assert reasons(story)[0] == "cancelled"


def test_D10_a_worker_that_held_too_much_ends_for_that() -> None:
    story = Story()
    with Queue(workers=1, on_event=story, max_memory_per_worker="200MB") as queue:
        queue.submit(memory_tasks.hold, 400_000_000).exception(PATIENCE_S)

    assert reasons(story)[0] == "memory"
    assert [event["outcome"] for event in story.of("attempt.ended")] == ["memory"]


def test_D10_a_worker_that_is_used_up_is_recycled() -> None:
    story = Story()
    with Queue(workers=1, on_event=story, max_tasks_per_worker=2) as queue:
        [queue.submit(tasks.nothing).result(PATIENCE_S) for _ in range(4)]

    assert reasons(story)[:2] == ["recycled"] * 2
    assert set(reasons(story)[2:]) <= {"shutdown"}


def test_D10_a_worker_that_was_left_heavy_is_recycled() -> None:
    story = Story()
    with Queue(workers=1, on_event=story, recycle_memory="200MB") as queue:
        queue.submit(memory_tasks.leak, 300_000_000, 0.3).result(PATIENCE_S)
        assert wait_until(lambda: bool(story.of("worker.ended")), PATIENCE_S)

    assert reasons(story)[0] == "recycled"


def test_H1_workers_that_are_too_many_leave_for_that() -> None:
    story = Story()
    with Queue(workers=3, on_event=story) as queue:
        [handle.result() for handle in [queue.submit(tasks.sleep, 0.1) for _ in range(6)]]
        wait_idle(queue, 3)
        queue.resize(1)
        wait_idle(queue, 1)

    assert reasons(story) == ["resize", "resize", "shutdown"]


def test_D11_workers_that_cannot_start_are_told_and_warned_of() -> None:
    story = Story()
    with Queue(workers=1, on_event=story, initializer=tasks.fail, initargs=("no-database",)) as queue:
        handle = queue.submit(tasks.echo, 1)
        handle.exception(PATIENCE_S)

    assert reasons(story) == ["start", "start", "start"]
    (warning,) = story.of("warning")
    assert "workers cannot start, tried 3 times" in warning["text"]
    assert "no-database" in warning["text"]
    assert [event["status"] for event in story.of("task.ended")] == ["failed"]


@pytest.mark.slow
def test_D2_amid_a_storm_every_attempt_and_every_end_is_told(tmp_path: Path) -> None:
    """Threads submit and cancel, workers are killed, the queue is paused and resized, all at once."""
    story = Story()
    chance = random.Random(1)
    with Queue(workers=2, on_event=(story, ["task.held"])) as queue:
        storm = Storm(queue, tmp_path / "log", seconds=2, threads=6)

        def disturb() -> None:
            with queue._supervisor.lock:
                workers = list(engine_of(queue)._workers.values())
                found = [worker.pid for worker in workers if worker.state in {"idle", "busy"}]
                if found and chance.random() < 0.3:  # not buried yet, so that nobody else can have its number
                    os.kill(chance.choice(found), signal.SIGKILL)
            queue.resize(chance.randrange(1, 4))
            queue.pause()
            queue.resume()

        with all_the_while(disturb, every_s=0.03):
            storm.blow()

    story.check()
    handles = list(storm.handles.values())
    assert len(handles) > 100
    assert story.statuses == {handle.id: handle.status for handle in handles}
    told = Counter((event["id"], event["outcome"]) for event in story.of("attempt.ended"))
    assert told == Counter((handle.id, record.outcome) for handle in handles for record in handle.history)


# --- what must be asked for ---


def test_H4_what_is_logged_in_an_attempt_is_told_to_those_who_ask() -> None:
    story = Story()
    with Queue(workers=1, on_event=(story, ["log"])) as queue:
        handle = queue.submit(log_tasks.say, "look: %s", 7)
        handle.result(PATIENCE_S)

    story.check()
    (event,) = story.of("log")
    assert (event["id"], event["attempt"], event["level"]) == (handle.id, 1, "WARNING")
    assert (event["text"], event["logger"], event["stream"]) == ("look: 7", log_tasks.NAME, None)
    (began,), (ended,) = story.of("attempt.started"), story.of("attempt.ended")
    assert began["t"] - 1 <= event["t"] <= ended["t"] + 1, "by the wall's clock, which may differ a little"


def test_D10_the_first_task_that_short_memory_holds_back_is_told(memory: Machine, tmp_path: Path) -> None:  # noqa: F811
    story = Story()
    gate = Gate(tmp_path)
    with Queue(workers=2, on_event=(story, ["task.held"]), min_free_memory="1GB") as queue:
        queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        memory.become_short()
        held = [queue.submit(tasks.sleep, 0) for _ in range(3)]
        assert wait_until(lambda: bool(story.of("task.held")), PATIENCE_S)
        gate.open()

    story.check()
    assert [(event["id"], event["reason"]) for event in story.of("task.held")][:1] == [(held[0].id, "memory")]


def test_B9_the_task_that_waits_for_slots_is_told(tmp_path: Path) -> None:
    story = Story()
    gate = Gate(tmp_path)
    with Queue(workers=2, on_event=(story, ["task.held"]), resources={"cpu": 2}) as queue:
        queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        big = queue.submit(task(tasks.echo, cpus=2).spec(1))
        assert wait_until(lambda: bool(story.of("task.held")), PATIENCE_S)
        gate.open()

    story.check()
    assert [(event["id"], event["reason"]) for event in story.of("task.held")] == [(big.id, "slots")]


# --- a listener that cannot keep up ---


def test_what_comes_beyond_the_bound_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue goes on meanwhile, and what is told has no gap in its numbers."""
    monkeypatch.setattr(events, "WAITING_MAX", 100)
    told: list[dict[str, object]] = []
    began, go_on = threading.Event(), threading.Event()

    def listen(event: dict[str, object]) -> None:
        began.set()
        go_on.wait(PATIENCE_S)
        told.append(event)

    with Queue(workers=1, on_event=listen) as queue:
        assert queue.submit(tasks.echo, 0).result(PATIENCE_S) == 0
        assert began.wait(PATIENCE_S)
        handles = [queue.submit(tasks.echo, number) for number in range(200)]
        assert [handle.result(PATIENCE_S) for handle in handles] == list(range(200))
        go_on.set()
        assert wait_until(lambda: not queue._supervisor._events._batches, PATIENCE_S)  # type: ignore[union-attr]
        last = queue.submit(tasks.echo, 0)
        last.result(PATIENCE_S)

    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))
    (warning,) = [event for event in told if event["ev"] == "warning"]
    kinds = [event["ev"] for event in told]
    whole = 201 * 5 + 5  # of each task; and of the run and its worker
    missing = whole - (len(told) - 6)  # the last task's are not missing, nor is the warning
    assert warning["text"] == f"on_event is too slow: {missing} events were dropped"
    assert missing > 200 * 5 - 100
    assert kinds[-1] == "run.ended"
    assert [event["ev"] for event in told if event.get("id") == last.id] == [
        "task.submitted", "task.ready", "attempt.started", "attempt.ended", "task.ended",
    ]  # fmt: skip


def test_long_texts_count_for_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAITING_MAX", 1000)
    told: list[str] = []
    go_on = threading.Event()

    def listen(event: dict[str, object]) -> None:
        go_on.wait(PATIENCE_S)
        told.append(str(event.get("error")))

    with Queue(workers=1, on_event=listen) as queue:
        for handle in [queue.submit(tasks.fail, "x" * 40_000) for _ in range(50)]:
            handle.exception(PATIENCE_S)
        go_on.set()

    assert 10 < sum("xxx" in text for text in told) < 20, "each takes about 80 KB: its message, and its traceback"


def test_a_thread_that_the_system_cannot_spare_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []
    start = threading.Thread.start

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == "procq-events" and len(refused) < 3:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    story = Story()
    with Queue(workers=1, on_event=story) as queue:
        handles = [queue.submit(tasks.echo, number) for number in range(5)]

    story.check()
    assert len(refused) == 3
    assert "can't start new thread" in caplog.text
    assert story.statuses == {handle.id: Status.SUCCEEDED for handle in handles}


# --- nothing is left ---


def test_G3_a_queue_that_is_dropped_before_it_was_started_leaves_no_thread() -> None:
    story = Story()
    queue = Queue(workers=1, on_event=story)
    queue.submit(tasks.echo, 1)
    assert wait_until(lambda: "task.ready" in story.kinds())

    with pytest.warns(ResourceWarning, match="dropped without shutdown"):
        del queue

    assert wait_until(lambda: "procq-events" not in {thread.name for thread in threading.enumerate()})


def test_G4_a_queue_that_is_dropped_says_so() -> None:
    story = Story()
    queue = Queue(workers=1, on_event=story).start()
    queue.submit(tasks.sleep, 60)
    assert wait_until(lambda: "attempt.started" in story.kinds(), PATIENCE_S)

    with pytest.warns(ResourceWarning, match="dropped without shutdown"):
        del queue

    assert wait_until(lambda: story.kinds()[-1] == "run.ended", PATIENCE_S)
    assert reasons(story) == ["shutdown"]
    assert [(event["mode"], event["cause"]) for event in story.of("run.stopping")] == [("kill", "dropped")]
    assert [event["cause"] for event in story.of("task.ended")] == ["shutdown"]
