"""Dead letters: their order, their two bounds, and what they say (contract F6)."""

import pytest
from tests.core.hand import FixedRules

from procq.core.letters import DeadLetters, letter_of
from procq.core.task import Task
from procq.outcome import Ended


def dead(seq: int) -> Task:
    """Return a task as it is when it dies."""
    task = Task(f"task {seq}", "t", b"", FixedRules())
    task.seq = seq
    return task


def filled(limit: int, keep_s: float, *, deaths: int = 3) -> tuple[DeadLetters, list[Task]]:
    """Return letters of tasks that died at 0, 10, 20, ..."""
    letters = DeadLetters(limit, keep_s)
    tasks = [dead(seq) for seq in range(deaths)]
    for number, task in enumerate(tasks):
        letters.add(task, 10.0 * number)
    return letters, tasks


def test_F6_letters_are_listed_in_order_of_death_newest_last() -> None:
    letters = DeadLetters(10, 1000)
    for seq in (5, 1, 3):
        letters.add(dead(seq), 0)

    assert [letter.id for letter in letters.listed()] == ["task 5", "task 1", "task 3"]
    assert [task.id for task in letters] == ["task 5", "task 1", "task 3"]


def test_F6_over_the_limit_the_oldest_is_dropped_and_counted() -> None:
    letters, tasks = filled(3, 1000)

    assert letters.add(dead(9), 30) == [tasks[0]]

    assert [task.seq for task in letters] == [1, 2, 9]
    assert letters.dropped == 1
    assert tasks[0] not in letters


@pytest.mark.parametrize(("now", "kept"), [(99.9, 3), (100, 2), (109.9, 2), (110, 1), (1e9, 0)])
def test_F6_a_letter_is_dropped_when_it_has_been_kept_for_so_long(now: float, kept: int) -> None:
    letters, tasks = filled(10, 100)

    gone = letters.prune(now)

    assert len(letters) == kept
    assert gone == tasks[: 3 - kept]
    assert letters.dropped == 3 - kept


def test_F6_a_limit_of_nothing_keeps_nothing() -> None:
    letters = DeadLetters(0, 1000)
    task = dead(0)

    assert letters.add(task, 0) == [task]
    assert len(letters) == 0


def test_F7_a_removed_letter_makes_room_and_is_not_counted_as_dropped() -> None:
    letters, tasks = filled(3, 1000)

    letters.remove(tasks[1])
    letters.remove(tasks[1])  # not there is fine

    assert letters.add(dead(9), 30) == []
    assert letters.dropped == 0


def test_F6_a_task_that_dies_again_is_the_newest() -> None:
    letters, tasks = filled(10, 1000)
    letters.remove(tasks[0])

    letters.add(tasks[0], 50)

    assert [task.seq for task in letters] == [1, 2, 0]


def test_F6_a_letter_tells_the_last_error_and_the_whole_history() -> None:
    task = dead(1)
    task.failures = 2
    ended = Ended("error", 3, 4, error_types=("ValueError", "Exception"), message="no")
    trouble = task.in_trouble()
    trouble.ended = ended
    trouble.history = [(1, Ended("crash", 1, 2, message="gone", signal="SIGKILL")), (2, ended)]

    letter = letter_of(task, died_at=4)

    assert letter[:6] == ("task 1", "t", 2, 4, "ValueError", "no")
    assert [(record.attempt, record.outcome, record.signal) for record in letter.history] == [
        (1, "crash", "SIGKILL"),
        (2, "error", None),
    ]


def test_F6_a_letter_of_a_death_without_an_error_class_says_so() -> None:
    task = dead(1)
    task.in_trouble().ended = Ended("timeout", 0, 1, message="ran longer than its timeout of 1 s")

    letter = letter_of(task, died_at=1)

    assert letter.error_type is None
    assert letter.message == "ran longer than its timeout of 1 s"
