"""The table of legal moves, over all pairs, and the one function that consults it (contract A2, A3)."""

from itertools import product

import pytest
from tests.core.hand import Hand

from procq.core.states import MOVES, REVIVALS, TERMINAL, UNSUCCESSFUL, WAITING, Priority, Status
from procq.core.task import Task
from procq.errors import InternalError

#: Contract A3, as it is written there; FAILED from READY and SCHEDULED is D11's.
LEGAL = {
    "blocked": {"scheduled", "ready", "cancelled"},
    "scheduled": {"ready", "cancelled", "failed"},
    "ready": {"running", "cancelled", "failed"},
    "running": {"succeeded", "scheduled", "ready", "failed", "cancelled"},
    "succeeded": set(),
    "failed": set(),
    "cancelled": set(),
}
PAIRS = list(product(Status, Status))


def task_that_is(status: Status) -> tuple[Hand, Task]:
    """Return a task in this status, with an attempt in its past if it can have one, and its scheduler."""
    hand = Hand()
    hand.submit("open")
    needs = ["open"] if status is Status.BLOCKED else []
    delay_s = 5 if status is Status.SCHEDULED else None
    task = hand.submit("task", *needs, delay_s=delay_s, priority=1, max_attempts=2)
    match status:
        case Status.READY:
            hand.run("task", "interrupted")
        case Status.RUNNING:
            hand.run("task", "interrupted")
            hand.start()
        case Status.SUCCEEDED:
            hand.run("task")
        case Status.FAILED:
            hand.start()
            hand.end("task", "error", permanent=True)
        case Status.CANCELLED:
            hand.cancel("task")
        case _:
            pass
    assert task.status is status
    return hand, task


def snapshot(hand: Hand, task: Task) -> dict[str, object]:
    """Return everything that a move could change."""
    scheduler = hand.scheduler
    return {
        "task": {name: getattr(task, name) for name in Task.__slots__},
        "counts": dict(scheduler.counts),
        "open": scheduler.open,
        "ready": list(scheduler.ready),
        "delayed": list(scheduler.delayed),
        "running": dict(scheduler.running),
        "letters": list(scheduler.letters),
        "settled": list(scheduler.settled),
    }


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_A3_the_table_allows_what_the_contract_names_and_nothing_else(before: Status, after: Status) -> None:
    assert (after in MOVES[before]) == (after in LEGAL[before])


def test_A3_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        MOVES[Status.FAILED] = frozenset({Status.READY})  # type: ignore[index]  # that is the test


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair[1] not in MOVES[pair[0]]])
def test_A3_an_illegal_move_raises_and_changes_nothing(before: Status, after: Status) -> None:
    hand, task = task_that_is(before)
    unchanged = snapshot(hand, task)

    with pytest.raises(InternalError, match=f"'task' cannot move from {before} to {after}"):
        hand.scheduler._move(task, after)

    assert snapshot(hand, task) == unchanged
    hand.scheduler.check_invariants()


def test_A3_the_error_of_an_illegal_move_carries_the_history() -> None:
    hand, task = task_that_is(Status.RUNNING)

    with pytest.raises(InternalError, match=r"started 2 times; attempt 1: interrupted") as caught:
        hand.scheduler._move(task, Status.BLOCKED)

    assert caught.value.history == task.records()


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.READY])
def test_A3_starting_what_is_not_ready_raises_and_changes_nothing(status: Status) -> None:
    hand, task = task_that_is(status)
    unchanged = snapshot(hand, task)

    with pytest.raises(InternalError):
        hand.scheduler.start(task, 0)

    assert snapshot(hand, task) == unchanged


@pytest.mark.parametrize(("before", "after"), [pair for pair in PAIRS if pair[1] in MOVES[pair[0]]])
def test_A3_a_legal_move_writes_the_status_and_nothing_else(before: Status, after: Status) -> None:
    hand, task = task_that_is(before)
    unchanged = snapshot(hand, task)

    hand.scheduler._move(task, after)

    assert task.status is after
    task.status = before
    assert snapshot(hand, task) == unchanged


def test_A3_the_moves_that_are_written_without_the_table_are_in_it() -> None:
    """`start` and `succeed` know the state before and after."""
    assert Status.RUNNING in MOVES[Status.READY]
    assert Status.SUCCEEDED in MOVES[Status.RUNNING]


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.RUNNING])
def test_A3_what_does_not_run_cannot_succeed_and_is_not_changed(status: Status) -> None:
    hand, task = task_that_is(status)
    unchanged = snapshot(hand, task)

    for fence in (task.fence, task.fence + 1):
        assert not hand.scheduler.succeed(task, fence, b"result", (0.0, 1.0, None, 0.0, 0), 1.0)

    assert snapshot(hand, task) == unchanged
    assert hand.scheduler.dropped_late == 2


@pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, Status.BLOCKED, Status.CANCELLED])
def test_A2_a_task_enters_in_a_state_that_is_its_own_to_begin_with(status: Status) -> None:
    """READY at once where nothing is in the way; through BLOCKED otherwise, and seen in it only with dependencies."""
    hand = Hand()
    hand.submit("open")

    task = hand.submit(
        "task",
        *(["open"] if status is Status.BLOCKED else []),
        delay_s=5 if status is Status.SCHEDULED else None,
        expires_s=0 if status is Status.CANCELLED else None,
    )

    assert task.status is status
    assert {name: number for name, number in hand.scheduler.counts.items() if number} == (
        {Status.READY: 2} if status is Status.READY else {Status.READY: 1, status: 1}
    )


def test_A2_terminal_are_the_states_that_only_a_replay_leaves() -> None:
    assert {status for status in Status if status.terminal} == set(TERMINAL)
    assert {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED} == set(TERMINAL)
    assert {Status.BLOCKED, Status.SCHEDULED, Status.READY} == set(WAITING)
    assert set(REVIVALS) == set(UNSUCCESSFUL) == set(TERMINAL) - {Status.SUCCEEDED}


def test_A2_a_status_is_written_in_lower_case() -> None:
    assert [str(status) for status in Status] == [status.name.lower() for status in Status]


def test_B1_the_named_priorities() -> None:
    assert {level.name: int(level) for level in Priority} == {"LOW": -10, "NORMAL": 0, "HIGH": 10, "CRITICAL": 20}
