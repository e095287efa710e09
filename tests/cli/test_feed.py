"""The events of a run: enriched, told to several at once, written as lines that say the same (UX 3.5)."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from procq import Queue, task
from procq.cli import jsonline
from procq.cli.feed import Feed, Previews
from procq.cli.jsonline import line_of
from procq.cli.lines import Flusher, LineFile
from procq.cli.outputs import Slowest
from procq.errors import UsageError


def event(kind: str, seq: int = 1, /, **fields: object) -> dict[str, object]:
    return {"v": 1, "seq": seq, "t": 1.5, "run": "r", "ev": kind, **fields}


def submitted(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": "a", "type": "f", "priority": 0, "group": "default", "depends_on": [], "run_at": None,
        "max_attempts": 1, "args": "x=1",
    }  # fmt: skip
    return event("task.submitted", **(fields | changes))


def attempt_ended(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": "a", "attempt": 1, "outcome": "ok", "run_s": 0.25, "cpu_s": 1e-7, "peak_rss": 4096, "exit_code": None,
        "signal": None, "error": None, "result_bytes": 5,
    }  # fmt: skip
    return event("attempt.ended", **(fields | changes))


def task_ended(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {"id": "a", "status": "succeeded", "attempts": 1, "cause": None, "origin": None}
    return event("task.ended", **(fields | changes))


ODD_ID = 'a"\\\n\t\x00\u2028größe\udce9'


@pytest.mark.parametrize(
    "told",
    [
        submitted(), submitted(id=ODD_ID, args=ODD_ID), submitted(args=None), submitted(depends_on=["b"]),
        submitted(run_at=3.5), submitted(priority=True), submitted(more=1),
        event("task.ready", id=ODD_ID, reason=None), event("task.ready", id="a", reason="not_begun"),
        event("attempt.started", id="a", attempt=1, worker=2, pid=3),
        event("attempt.started", id="a", attempt=1, worker=None, pid=None),
        attempt_ended(), attempt_ended(peak_rss=None), attempt_ended(outcome="crash", signal="SIGKILL"),
        attempt_ended(outcome="error", error={"type": "E", "message": "m", "traceback": None}),
        task_ended(), task_ended(status="cancelled", cause="dependency", origin="b"), task_ended(more=1),
        event("run.started", workers=2), event("warning", text="größe"),
    ],
)  # fmt: skip
def test_a_line_says_what_the_event_says(told: dict[str, object]) -> None:
    line = line_of(told)

    assert json.loads(line) == told
    assert line.endswith("}\n")
    assert line.isascii()
    assert line.count("\n") == 1


def test_several_takers_are_told_and_one_that_raises_harms_none(caplog: pytest.LogCaptureFixture) -> None:
    feed = Feed()
    first: list[object] = []
    last: list[object] = []

    def fail(_: object) -> None:
        raise ValueError("no")

    feed.add(first.append, what="first")
    feed.add(fail, what="the second")
    feed.add(last.append, what="last")

    for seq in (1, 2):
        feed.take(event("task.ready", seq, id="a", reason=None))

    assert first == last
    assert len(first) == 2
    assert [record.getMessage() for record in caplog.records] == ["the second raised; from now on that is passed over"]


def test_a_taker_may_ask_for_some_kinds_only() -> None:
    feed = Feed()
    ends: list[dict[str, Any]] = []
    feed.add(ends.append, what="ends", kinds=["attempt.ended"])

    feed.take(submitted())
    feed.take(attempt_ended())

    assert [one["ev"] for one in ends] == ["attempt.ended"]


def test_where_nobody_listens_the_queue_is_told_so() -> None:
    assert Feed().listener(None) is None


def test_what_a_jobs_file_s_on_event_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="expected a callable"):
        Feed().listener(3)  # type: ignore[arg-type]  # what is tested


def test_the_jobs_file_s_own_listener_gets_what_it_asked_for_numbered_without_gaps() -> None:
    feed = Feed()
    mine: list[dict[str, Any]] = []
    all_of_it: list[dict[str, Any]] = []
    feed.add(all_of_it.append, what="all", opt_in=["log"])
    listener = feed.listener((mine.append, ["task.held"]))

    assert isinstance(listener, tuple)
    assert set(listener[1]) == {"log", "task.held"}
    for seq, kind in enumerate(["task.ready", "log", "task.held", "warning"], 1):
        feed.take(event(kind, seq))

    assert [(one["ev"], one["seq"]) for one in mine] == [("task.ready", 1), ("task.held", 2), ("warning", 3)]
    assert [one["seq"] for one in all_of_it] == [1, 2, 3, 4]


def test_a_listener_that_changes_its_event_changes_nobody_else_s() -> None:
    feed = Feed()
    others: list[dict[str, Any]] = []
    feed.add(others.append, what="others")
    feed.listener(dict.clear)

    feed.take(event("task.ready"))

    assert others == [event("task.ready")]


def test_the_last_event_waits_for_the_exit_code() -> None:
    feed = Feed()
    told: list[dict[str, Any]] = []
    feed.add(told.append, what="told")
    feed.run = "k7f3"

    feed.take(event("run.ended", counts={}))
    assert told == []
    feed.end(4)

    assert told == [event("run.ended", counts={}, exit_code=4) | {"run": "k7f3"}]


def test_what_comes_after_the_end_is_not_told() -> None:
    feed = Feed()
    told: list[object] = []
    feed.add(told.append, what="told")
    feed.take(event("run.ended"))
    feed.end(0)

    feed.take(event("task.ready"))

    assert len(told) == 1


@task
def twice(value: object) -> object:
    return value


def test_a_task_without_an_id_is_told_of_with_its_arguments_whoever_is_first() -> None:
    previews = Previews()
    previews.open()
    looking = threading.Event()
    found: list[str | None] = []

    def look() -> None:
        looking.set()
        found.append(previews.take("#3"))

    previews_wait = threading.Thread(target=look)
    previews_wait.start()
    looking.wait(5)
    previews.enter("#3", twice.spec(7))
    previews.close()
    previews_wait.join(5)

    assert found == ["value=7"]


def test_a_task_that_nobody_entered_holds_up_no_more_than_one_submit() -> None:
    previews = Previews()
    previews.open()

    assert previews.take("#1") is None
    assert not previews._is_open, "the next one does not wait again"


def test_lines_are_written_in_order_and_soon(tmp_path: Path) -> None:
    path = tmp_path / "out"
    file = LineFile(os.open(path, os.O_WRONLY | os.O_CREAT), what="out", warn=pytest.fail)
    for number in range(1000):
        file.add(f"{number}\n")
    file.close()

    assert path.read_text(encoding="utf-8") == "".join(f"{number}\n" for number in range(1000))


@pytest.mark.slow
def test_what_waits_is_written_without_more_to_come() -> None:
    read, write = os.pipe()
    file = LineFile(write, what="out", warn=pytest.fail)
    flusher = Flusher([file])
    flusher.start()

    file.add("one\n")

    assert os.read(read, 100) == b"one\n"
    flusher.stop()
    file.close()
    os.close(read)


def test_a_reader_that_left_ends_the_output_with_one_warning() -> None:
    read, write = os.pipe()
    os.close(read)
    said: list[str] = []
    file = LineFile(write, what="--events", warn=said.append)

    for _ in range(2):
        file.add("line\n")
        file.flush()
    file.close()

    assert said == ["--events stopped: Broken pipe"]


def test_a_full_disk_ends_the_output_with_one_warning() -> None:
    said: list[str] = []
    file = LineFile(os.open("/dev/full", os.O_WRONLY), what="events.jsonl", warn=said.append)

    file.add("line\n")
    file.flush()
    file.close()

    assert said == ["events.jsonl stopped: No space left on device"]


def test_the_longest_attempts_are_named_longest_first() -> None:
    slowest = Slowest(2)
    for number, (run_s, attempt) in enumerate([(1, 1), (5, 2), (3, 1), (2, 1)]):
        slowest.take(attempt_ended(id=f"t{number}", run_s=float(run_s), attempt=attempt))

    assert slowest.named() == [("t1 (attempt 2)", 5.0), ("t2", 3.0)]


def test_the_lines_of_a_run_s_common_events_are_made_by_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of fields that each template knows must be that of the events, or it is never used."""
    monkeypatch.setattr(jsonline, "_dumps", lambda told: pytest.fail(f"no template was used for {told}"))

    for told in (
        submitted(),
        event("task.ready", id="a", reason=None),
        event("attempt.started", id="a", attempt=1, worker=2, pid=3),
        attempt_ended(),
        task_ended(),
    ):
        assert line_of(told)


@pytest.mark.processes
def test_a_queue_tells_the_feed_of_all_that_happens() -> None:
    feed = Feed()
    told: list[dict[str, Any]] = []
    feed.add(told.append, what="told")

    with Queue(1, on_event=feed.listener(None)) as queue:
        assert queue.submit(twice, 3).result() == 3
    feed.end(0)

    assert [one["seq"] for one in told] == list(range(1, len(told) + 1))
    assert told[-1]["exit_code"] == 0
