"""Tasks that are accepted together with the success that brings them: both or neither (contract E6)."""

from collections.abc import Sequence

import pytest
from tests.core.hand import Hand

from procq.core.states import Status
from procq.core.task import Task
from procq.errors import DuplicateTaskError, UsageError
from procq.outcome import Ended


def running() -> Hand:
    """Return a scheduler in which the task "parent" runs."""
    hand = Hand()
    hand.submit("parent", priority=5)
    assert hand.start() == "parent"
    return hand


def make(hand: Hand, name: str, *needs: str, **rules: str) -> Task:
    """Make a task that others may depend on, and submit it not."""
    task = hand.make(name, *needs, **rules)  # type: ignore[arg-type]  # texts alone are asked for here
    hand.tasks[name] = task
    return task


def spawn(hand: Hand, *tasks: Task, fence: int = 1, replaced: Sequence[Task] = ()) -> bool:
    parent = hand.tasks["parent"]
    ended = Ended("ok", 0.0, hand.now, value=b"result")
    try:
        return hand.scheduler.spawn(parent, fence, ended, tasks, hand.now, replaced)
    finally:
        hand.scheduler.check_invariants()


def test_E6_the_task_succeeds_and_what_it_spawns_is_ready() -> None:
    hand = running()

    assert spawn(hand, make(hand, "a"), make(hand, "b"))

    assert hand.statuses(["parent", "a", "b"]) == [Status.SUCCEEDED, Status.READY, Status.READY]
    assert hand.settled() == ["parent"]
    assert hand.tasks["parent"].value == b"result"
    assert hand.start_all() == ["a", "b"]


def test_E6_what_depends_on_the_task_and_on_each_other_waits_as_it_must() -> None:
    hand = running()

    assert spawn(hand, make(hand, "a", "parent"), make(hand, "b", "a", "parent"))

    assert hand.statuses(["a", "b"]) == [Status.READY, Status.BLOCKED]
    hand.run("a")
    assert hand.status("b") is Status.READY


def test_E6_a_task_that_nobody_holds_is_forgotten_and_yet_depended_on() -> None:
    hand = Hand()
    hand.submit("parent", explicit=False)
    hand.start()

    assert spawn(hand, make(hand, "a", "parent"))

    assert "parent" not in hand.scheduler.tasks
    assert hand.status("a") is Status.READY


def test_E6_a_spawn_of_nothing_is_a_success() -> None:
    hand = running()

    assert spawn(hand)

    assert hand.status("parent") is Status.SUCCEEDED


@pytest.mark.parametrize("fence", [0, 2])
def test_D1_a_late_report_spawns_nothing(fence: int) -> None:
    hand = running()

    assert not spawn(hand, make(hand, "a"), fence=fence)

    assert hand.status("parent") is Status.RUNNING
    assert "a" not in hand.scheduler.tasks
    assert hand.scheduler.dropped_late == 1


def test_D1_a_task_that_does_not_run_any_more_spawns_nothing() -> None:
    hand = running()
    hand.end("parent", "cancelled")

    assert not spawn(hand, make(hand, "a"))

    assert "a" not in hand.scheduler.tasks


def test_C4_an_id_in_use_is_refused_and_the_task_still_runs() -> None:
    hand = running()
    hand.submit("taken")

    with pytest.raises(DuplicateTaskError):
        spawn(hand, make(hand, "a"), hand.make("taken"))

    assert hand.status("parent") is Status.RUNNING
    assert "a" not in hand.scheduler.tasks
    assert hand.end("parent") is Status.SUCCEEDED


def test_C4_what_waits_is_replaced_together_with_the_success() -> None:
    hand = running()
    old = hand.submit("report")

    assert spawn(hand, make(hand, "report"), replaced=[old])

    assert (old.status, old.cause) == (Status.CANCELLED, "replaced")
    assert hand.status("parent") is Status.SUCCEEDED
    assert hand.scheduler.find("report") is hand.tasks["report"]
    assert hand.start_all() == ["report"]


def test_C4_what_waits_for_the_task_that_spawns_may_be_replaced() -> None:
    hand = running()
    old = hand.submit("after", "parent")

    assert spawn(hand, make(hand, "after", "parent"), replaced=[old])

    assert old.status is Status.CANCELLED
    assert hand.start_all() == ["after"]


@pytest.mark.parametrize("name", ["parent", "busy", "needed", "free"])
def test_C4_what_cannot_be_replaced_is_refused_and_nothing_has_changed(name: str) -> None:
    hand = running()
    hand.submit("busy")
    hand.start()
    old = [hand.submit("free"), hand.submit("needed")]
    hand.submit("dependent", "needed")
    before = hand.statuses(hand.tasks)
    news = [hand.make("free"), hand.make(name)]  # "free" twice, or with one that is in use

    with pytest.raises(DuplicateTaskError, match=name):
        spawn(hand, *news, replaced=[old[0], hand.tasks[name]])

    assert hand.statuses(hand.tasks) == before
    assert hand.scheduler.find("free") is old[0]
    assert hand.end("parent") is Status.SUCCEEDED


def test_G1_what_replaces_another_while_the_work_is_cut_short_ends_cancelled_for_that() -> None:
    hand = running()
    old = hand.submit("report")
    hand.scheduler.cut_off(hand.now)

    assert spawn(hand, make(hand, "report"), replaced=[old])

    assert old.cause == "shutdown"
    assert hand.causes(["report"]) == ["shutdown"]
    assert hand.scheduler.find("report") is hand.tasks["report"]
    assert hand.scheduler.open == 0


def test_B7_an_unknown_group_is_refused_and_the_task_still_runs() -> None:
    hand = running()

    with pytest.raises(UsageError, match="group 'nowhere'"):
        spawn(hand, make(hand, "a"), make(hand, "b", group="nowhere"))

    assert hand.status("parent") is Status.RUNNING
    assert not {"a", "b"} & hand.scheduler.tasks.keys()


def test_G1_what_is_spawned_while_the_work_is_cut_short_ends_cancelled_for_that() -> None:
    hand = running()
    hand.scheduler.cut_off(hand.now)

    assert spawn(hand, make(hand, "a", "parent"), make(hand, "b", "a"), make(hand, "c", "b", run_if="done"))

    assert hand.statuses(["parent", "a", "b", "c"]) == [Status.SUCCEEDED, *[Status.CANCELLED] * 3]
    assert hand.causes(["a", "b", "c"]) == ["shutdown"] * 3
    assert hand.start() is None
    assert hand.scheduler.open == 0


def test_C4_what_was_replaced_a_moment_ago_is_not_replaced_again_and_nothing_has_changed() -> None:
    """As what is taken back for it may bring the news that another task has the id by now."""
    hand = Hand()
    old = [hand.submit("one"), hand.submit("two")]
    hand.scheduler.replace(old[1:], [hand.make("two")], hand.now)
    taken = hand.scheduler.find("two")

    with pytest.raises(DuplicateTaskError, match="submit it again"):
        hand.scheduler.replace(old, [hand.make("one"), hand.make("two")], hand.now)

    assert old[0].status is Status.READY
    assert hand.scheduler.find("one") is old[0]
    assert hand.scheduler.find("two") is taken
