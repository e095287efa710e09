"""The picture of a run that is folded from its events."""

import itertools
import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from procq.cli.board import STATUSES, Board
from procq.cli.sketch import Sketch

Event = dict[str, Any]


def event(kind: str, t: float = 0.0, **fields: object) -> Event:
    return {"v": 1, "seq": 1, "t": t, "run": "r", "ev": kind, **fields}


def submitted(task_id: str, type_name: str = "clean", t: float = 0.0, **fields: object) -> Event:
    return event("task.submitted", t, id=task_id, type=type_name, max_attempts=2, **fields)


def started(task_id: str, t: float, attempt: int = 1, worker: int | None = 1) -> Event:
    return event("attempt.started", t, id=task_id, attempt=attempt, worker=worker, pid=100)


def ended(task_id: str, t: float, outcome: str = "ok", **fields: object) -> Event:
    return event("attempt.ended", t, id=task_id, attempt=1, outcome=outcome, **{"run_s": 1.0, **fields})


def over(task_id: str, status: str, t: float = 0.0, **fields: object) -> Event:
    return event("task.ended", t, id=task_id, status=status, **{"attempts": 1, "cause": None, **fields})


def board_of(*events: Event) -> Board:
    board = Board()
    for one in events:
        board.take(one)
    return board


def counts_of(board: Board) -> dict[str, int]:
    return {name: number for name, number in zip(STATUSES, board.counts, strict=True) if number}


# --- a run as it goes ------------------------------------------------------------------------------


def test_a_task_is_followed_from_its_submission_to_its_end() -> None:
    board = board_of(submitted("a"))
    assert counts_of(board) == {"ready": 1}
    board.take(started("a", 5.0))
    assert counts_of(board) == {"running": 1}
    assert [(one.task_id, one.type, one.worker, one.started_at) for one in board.running.values()] == [
        ("a", "clean", 1, 5.0)
    ]
    board.take(ended("a", 7.0, run_s=2.0, peak_rss=500))
    assert not board.running
    board.take(over("a", "succeeded", 7.0))

    assert counts_of(board) == {"succeeded": 1}
    assert (board.known, board.ended, board.ok, board.failed) == (1, 1, 1, 0)
    row = board.types["clean"]
    assert row.peak_rss == 500
    assert row.durations.quantile(0.5) == pytest.approx(2.0, rel=0.02)


def test_a_failure_is_remembered_with_what_was_wrong() -> None:
    error = {"type": "json.JSONDecodeError", "message": "no\n  good", "traceback": None}
    board = board_of(submitted("a", args="clean(raw=x)"), started("a", 1.0), ended("a", 2.0, "error", error=error))
    board.take(over("a", "failed", 3.0, attempts=2))

    (failure,) = board.failures
    assert (failure.task_id, failure.args, failure.attempts, failure.max_attempts) == ("a", "clean(raw=x)", 2, 2)
    assert (failure.outcome, failure.error, failure.at) == ("error", "JSONDecodeError: no good", 3.0)


def test_what_a_task_got_wrong_before_it_was_tried_again_is_not_its_failure() -> None:
    board = board_of(
        submitted("a"),
        ended("a", 1.0, "crash"),
        event("task.scheduled", 1.0, id="a", reason="backoff", in_s=2.0),
        over("a", "failed", 3.0),
    )

    assert board.failures[0].error == ""


def test_tasks_that_wait_to_be_tried_again_are_told_apart() -> None:
    board = board_of(
        submitted("a"),
        event("task.scheduled", 1.0, id="a", reason="delay", in_s=5.0),
        submitted("b"),
        event("task.scheduled", 2.0, id="b", reason="retry_later", in_s=3.0),
    )
    assert (board.retrying, counts_of(board)) == (1, {"scheduled": 2})
    assert board.due == {"a": 6.0, "b": 5.0}

    board.take(event("task.ready", 5.0, id="b", reason=None))

    assert (board.retrying, counts_of(board)) == (0, {"scheduled": 1, "ready": 1})
    assert board.due == {"a": 6.0}


def test_skipped_tasks_are_those_cancelled_because_of_another() -> None:
    board = board_of(*(submitted(name) for name in "ab"), over("a", "cancelled", cause="dependency"))
    board.take(over("b", "cancelled", cause="shutdown"))

    assert (board.skipped, counts_of(board)) == (1, {"cancelled": 2})


def test_all_is_known_once_the_queue_takes_no_more() -> None:
    board = board_of(submitted("a"))
    assert not board.all_known
    board.take(event("run.stopping", mode="drain", cause="shutdown"))
    assert board.all_known
    assert board_of(event("run.stopping", mode="finish", cause="shutdown")).all_known is False


def test_a_run_that_has_ended_runs_nothing_and_takes_no_more_time() -> None:
    board = board_of(event("run.started", 100.0, workers=2), submitted("a"), started("a", 101.0))

    board.take(event("run.ended", 130.0, counts={}))

    assert not board.running
    assert board.elapsed_s(999.0) == 30.0


def test_the_rest_of_the_time_is_what_remains_of_each_type_by_its_median() -> None:
    board = board_of(event("run.started", workers=4))
    for number in range(10):
        board.take(submitted(f"f{number}", "fetch"))
        board.take(submitted(f"c{number}", "clean"))
    for name, run_s in (("f0", 2.0), ("c0", 8.0)):
        board.take(started(name, 0.0))
        board.take(ended(name, 1.0, run_s=run_s))
        board.take(over(name, "succeeded", 1.0))

    assert board.eta_s(1.0) == pytest.approx((9 * 2 + 9 * 8) / 4, rel=0.02)

    board.take(started("c1", 1.0))
    assert board.eta_s(5.0) == pytest.approx((9 * 2 + 9 * 8 - 4) / 4, rel=0.02)
    assert board_of(submitted("a")).eta_s(1.0) is None


def test_a_type_of_which_nothing_has_ended_takes_what_others_do() -> None:
    board = board_of(event("run.started", workers=1), submitted("a", "fetch"), submitted("b", "train"))
    board.take(ended("a", 1.0, run_s=3.0))
    board.take(over("a", "succeeded", 1.0))

    assert board.eta_s(1.0) == pytest.approx(3.0, rel=0.02)


def test_throughput_is_that_of_the_last_seconds() -> None:
    board = board_of(event("run.started", 0.0))
    for number in range(1000):
        board.take(submitted(str(number), t=number / 10))
        board.take(over(str(number), "succeeded", number / 10))

    assert board.throughput(100.0) == pytest.approx(10, rel=0.15)
    assert board.throughput(200.0) == 0.0


def test_workers_come_and_go() -> None:
    board = board_of(event("worker.started", 3.0, worker=1, pid=10), event("worker.started", 4.0, worker=2, pid=11))
    assert [(one.worker, one.pid, one.started_at) for one in board.workers.values()] == [(1, 10, 3.0), (2, 11, 4.0)]
    assert board.capacity == 2

    board.take(event("worker.ended", 5.0, worker=1, pid=10, reason="crash"))

    assert list(board.workers) == [2]


def test_a_task_that_is_replayed_has_not_ended() -> None:
    board = board_of(submitted("a"), over("a", "failed"), event("task.replayed", id="a", attempts=1))
    assert (board.known, board.ended, counts_of(board)) == (1, 0, {"ready": 1})
    assert not board.failures


# --- streams with gaps -----------------------------------------------------------------------------


def test_an_end_that_is_told_before_its_beginning_leaves_nothing_running() -> None:
    board = board_of(submitted("a"), ended("a", 2.0), started("a", 1.0))
    assert not board.running

    board.take(started("a", 3.0, attempt=2))  # another one, as an attempt that is not charged shares its number

    assert list(board.running) == ["a"]


def test_a_task_of_which_no_submission_was_told_counts_all_the_same() -> None:
    board = board_of(started("a", 1.0))
    assert (board.known, [one.type for one in board.running.values()]) == (1, [""])
    board.take(over("a", "succeeded"))
    assert (board.known, board.ended, board.ok) == (1, 1, 1)


def test_a_worker_that_goes_on_or_dies_has_left_what_it_was_on() -> None:
    board = board_of(submitted("a"), submitted("b"), started("a", 1.0), started("b", 2.0))
    assert list(board.running) == ["b"]
    board.take(event("worker.ended", 3.0, worker=1, pid=100, reason="crash"))
    assert not board.running


def test_an_attempt_is_over_when_its_task_goes_on() -> None:
    board = board_of(submitted("a"), started("a", 1.0), event("task.ready", 2.0, id="a", reason="not_begun"))

    assert not board.running
    assert counts_of(board) == {"ready": 1}


KINDS = (
    "run.started", "run.stopping", "run.ended", "task.submitted", "task.blocked", "task.scheduled", "task.ready",
    "task.held", "task.replayed", "task.ended", "attempt.started", "attempt.progress", "attempt.ended",
    "worker.started", "worker.ended", "log", "warning", "nonsense",
)  # fmt: skip
ODD: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3) | st.just([])
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "t": ODD | st.floats(0, 1e9),
        "id": st.sampled_from("abc") | ODD,
        "type": st.sampled_from(["x", "y"]) | ODD,
        "status": st.sampled_from(STATUSES) | ODD,
        "reason": st.sampled_from(["backoff", "delay"]) | ODD,
        "outcome": st.sampled_from(["ok", "error"]) | ODD,
        "run_s": ODD,
        "peak_rss": ODD,
        "in_s": ODD,
        "attempts": ODD,
        "attempt": ODD,
        "worker": st.integers(0, 2) | ODD,
        "pid": ODD,
        "error": ODD | st.dictionaries(st.sampled_from(["type", "message"]), ODD),
        "mode": st.sampled_from(["drain", "kill"]) | ODD,
    },
)


@given(st.lists(st.tuples(st.sampled_from(KINDS), FIELDS), max_size=60))
def test_whatever_comes_the_numbers_agree(events: list[tuple[str, Event]]) -> None:
    board = Board()
    for kind, fields in events:
        board.take({"ev": kind, **fields})

        assert min(board.counts) >= 0
        assert sum(board.counts) == board.known
        assert sum(board.counts[4:]) == board.ended
        assert board.retrying <= board.counts[1]
        assert len(board.running) <= board.counts[3]
        assert board.elapsed_s(1e9) >= 0
        assert board.throughput(1e9) >= 0
        left = board.eta_s(1e9)
        assert left is None or left >= 0


# --- against a naive fold ----------------------------------------------------------------------------


def story(random_numbers: random.Random, tasks: int) -> Iterator[Event]:
    """Yield the events of a run, of which some are missing later."""
    clock = itertools.count(1)
    todo = []
    for number in range(tasks):
        task_id = f"t{number}"
        yield submitted(task_id, random_numbers.choice("xyz"), next(clock))
        if random_numbers.random() < 0.3:
            yield event("task.blocked", next(clock), id=task_id, reason="dependencies")
        yield event("task.ready", next(clock), id=task_id, reason=None)
        todo.append(task_id)
    while todo:
        task_id = todo.pop(random_numbers.randrange(len(todo)))
        worker = random_numbers.randrange(3)
        yield started(task_id, next(clock), worker=worker)
        outcome = random_numbers.choice(["ok", "ok", "error", "crash"])
        yield ended(task_id, next(clock), outcome, run_s=random_numbers.lognormvariate(0, 3), peak_rss=next(clock))
        if outcome == "ok":
            yield over(task_id, "succeeded", next(clock))
        elif random_numbers.random() < 0.5:
            yield event("task.scheduled", next(clock), id=task_id, reason="backoff", in_s=1.0)
            todo.append(task_id)
        else:
            yield over(task_id, "failed", next(clock))


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_board_agrees_with_a_fold_that_keeps_everything(seed: int, tasks: int) -> None:
    board = Board()
    status: dict[str, str] = {}
    types: dict[str, str] = {}
    durations: dict[str, list[float]] = {}
    peaks: Counter[str] = Counter()
    for one in story(random.Random(seed), tasks):
        board.take(one)
        task_id = one["id"]
        match one["ev"]:
            case "task.submitted":
                types[task_id], status[task_id] = one["type"], "ready"
            case "task.ended":
                status[task_id] = one["status"]
            case "attempt.started":
                status[task_id] = "running"
            case "attempt.ended":
                kind = types[task_id]
                peaks[kind] = max(peaks[kind], one["peak_rss"])
                if one["outcome"] == "ok":
                    durations.setdefault(kind, []).append(one["run_s"])
            case other:
                status[task_id] = other.partition(".")[2]

        assert counts_of(board) == dict(Counter(status.values()))

    for kind, row in board.types.items():
        assert row.peak_rss == peaks[kind]
        values = sorted(durations.get(kind, []))
        for share in (0.5, 0.95):
            if values:
                exact = values[math.ceil(share * len(values)) - 1]
                assert row.durations.quantile(share) == pytest.approx(exact, rel=0.021)


@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(0, 10**6))
def test_with_events_missing_nothing_is_counted_twice(seed: int, tasks: int, gaps: int) -> None:
    missing = random.Random(gaps)
    board = Board()
    told = set()
    ends = 0
    for one in story(random.Random(seed), tasks):
        if missing.random() < 0.3:
            continue
        board.take(one)
        if one["ev"] != "attempt.ended":  # which alone makes no task known
            told.add(one["id"])
        ends += one["ev"] == "task.ended"

        assert (board.known, board.ended) == (len(told), ends)
        assert len(board.running) <= 3


# --- durations -----------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1e6), min_size=1), st.sampled_from([0.0, 0.5, 0.95, 0.999, 1.0]))
def test_a_share_of_the_values_is_told_within_two_percent(values: list[float], share: float) -> None:
    sketch = Sketch()
    for value in values:
        sketch.add(value)

    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert sketch.quantile(share) == pytest.approx(exact, rel=0.021)
    assert sketch.count == len(values)


def test_a_sketch_takes_any_number() -> None:
    sketch = Sketch()
    for value in (-1.0, 0.0, math.inf):
        sketch.add(value)

    assert sketch.quantile(0.5) == pytest.approx(1e-6, rel=0.03)
    assert Sketch().quantile(0.5) is None


# --- memory ----------------------------------------------------------------------------------------


def test_tasks_that_have_ended_take_no_memory() -> None:
    board = Board()

    def run(tasks: range) -> None:
        for number in tasks:
            task_id = f"t{number}"
            board.take(submitted(task_id, t=number / 1e3, args=f"clean({number})"))
            board.take(started(task_id, number / 1e3))
            board.take(ended(task_id, number / 1e3, "ok", run_s=number / 1e3 % 7))
            board.take(over(task_id, "failed" if number % 3 == 0 else "succeeded", number / 1e3))

    run(range(5_000))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run(range(5_000, 25_000))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()

    assert grown < 100_000
    assert len(board.failures) == 100
