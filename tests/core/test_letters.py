"""Dead letters: their order, their two bounds, and what they say (contract F6)."""

import pytest
from tests.core.hand import FixedRules

from procq.core import letters as letters_module
from procq.core.letters import DeadLetters
from procq.core.records import letter_of
from procq.core.task import Task
from procq.outcome import Ended


def dead(seq: int, payload: bytes = b"") -> Task:
    """Return a task as it is when it dies."""
    task = Task(f"task {seq}", "t", payload, FixedRules())
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


@pytest.fixture
def no_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "SMALL_BYTES", 0)


@pytest.mark.usefixtures("no_small_letters")
def test_F6_over_the_bound_in_bytes_the_oldest_are_dropped_and_counted() -> None:
    letters = DeadLetters(100, 1000, lambda: 1000)
    tasks = [dead(seq, bytes(300)) for seq in range(3)]
    for task in tasks:
        assert letters.add(task, 0) == []

    big = dead(9, bytes(500))
    assert letters.add(big, 0) == tasks[:2]
    assert [task.seq for task in letters] == [2, 9]
    assert letters.dropped == 2

    letters.remove(big)
    assert letters.add(dead(10, bytes(700)), 0) == [], "what was removed weighs nothing any more"


@pytest.mark.usefixtures("no_small_letters")
def test_F6_a_letter_weighs_what_its_attempts_have_said() -> None:
    letters = DeadLetters(100, 1000, lambda: 1000)
    first, second = dead(1), dead(2)
    for task in (first, second):
        failed = Ended("error", 0, 1, value=bytes(200), message="m" * 100, traceback="t" * 100, stdout="o" * 150)
        task.in_trouble().history = [(1, failed)]

    assert letters.add(first, 0) == []
    assert letters.add(second, 0) == [first]


@pytest.mark.usefixtures("no_small_letters")
def test_F6_the_newest_letter_is_kept_however_big_it_is() -> None:
    letters = DeadLetters(100, 1000, lambda: 1000)
    first, second = dead(1, bytes(2000)), dead(2, bytes(3000))

    assert letters.add(first, 0) == []
    assert letters.add(second, 0) == [first]
    assert letters.prune(1) == []


def test_F6_the_bound_in_bytes_is_found_out_once_and_only_when_it_matters() -> None:
    asked: list[int] = []

    def find() -> int:
        asked.append(1)
        return 0

    letters = DeadLetters(100, 1000, find)
    half = bytes(letters_module.SMALL_BYTES // 2)
    for seq in range(2):
        assert letters.add(dead(seq, half), 0) == []
    assert asked == []

    assert len(letters.add(dead(2, half), 0)) == 1, "the least that is kept is what needs no memory asked for"
    assert len(letters.add(dead(3, half), 0)) == 1
    assert asked == [1]


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
