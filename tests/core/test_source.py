"""How many items make a task, and how an input is read (contract F2)."""

from collections.abc import Iterator

import pytest

from procq.source import BYTES_MAX, GROWTH, ITEMS_MAX, TARGET_S, Size, Source

TINY_S = 1e-7


def size(most: int = ITEMS_MAX) -> Size:
    return Size(None, most)


def test_F2_one_item_comes_first() -> None:
    assert size().items == 1


def test_F2_a_chunk_grows_step_by_step_while_items_are_brief() -> None:
    learnt = size()
    sizes = []
    for _ in range(7):
        sizes.append(learnt.items)
        learnt.note(learnt.items, learnt.items * TINY_S, 1)

    assert sizes == [1, 8, 64, 512, 4096, ITEMS_MAX, ITEMS_MAX]


@pytest.mark.parametrize("item_s", [TARGET_S, TARGET_S / 1.9, 1.0])
def test_F2_slow_items_stay_alone(item_s: float) -> None:
    learnt = size()
    learnt.note(1, item_s, 1)

    assert learnt.items == 1


def test_F2_a_chunk_is_worth_the_target() -> None:
    learnt = size()
    for _ in range(5):
        learnt.note(learnt.items, learnt.items * TARGET_S / 50, 1)

    assert 49 <= learnt.items <= 50


def test_F2_items_that_turn_slow_are_taken_apart_at_once() -> None:
    learnt = size()
    learnt.note(1000, 1000 * TINY_S, 1)
    learnt.note(8000, 8000 * TARGET_S, 1)

    assert learnt.items == 1


def test_F2_a_small_task_that_comes_late_does_not_hold_back_growth() -> None:
    learnt = size()
    learnt.note(64, 64 * TINY_S, 1)
    learnt.note(1, TINY_S, 1)

    assert learnt.items == 64 * GROWTH


def test_F2_items_with_big_results_are_not_put_together() -> None:
    learnt = size()
    learnt.note(1, TINY_S, BYTES_MAX)

    assert learnt.items == 1


def test_F2_no_chunk_is_bigger_than_the_bound() -> None:
    learnt = size(most=10)
    learnt.note(8, TINY_S, 1)

    assert learnt.items == 10


def test_F2_an_input_that_makes_one_wait_is_read_one_by_one() -> None:
    learnt = size()
    learnt.note(1000, 1000 * TINY_S, 1)
    learnt.note_read(8000, 8000 * TARGET_S)
    learnt.note(1, TINY_S, 1)

    assert learnt.items == 1


def test_F2_a_fixed_size_stays() -> None:
    fixed = Size(7, ITEMS_MAX)
    fixed.note(7, 1000.0, 10**9)
    fixed.note_read(7, 1000.0)

    assert fixed.items == 7


def test_F2_what_was_read_before_an_input_raised_is_kept() -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError

    class Sized(list[int]):
        def __iter__(self) -> Iterator[int]:
            return broken()

    for iterable in (broken(), Sized([1, 2, 3])):
        items: list[int] = []
        with pytest.raises(LookupError):
            Source([iterable], lambda: 0.0).read(items, 10)

        assert items == [1, 2]


def test_F2_what_a_slow_input_gave_is_sent_before_more_is_read() -> None:
    now = 0.0

    def slow() -> Iterator[int]:
        nonlocal now
        for number in range(100):
            now += TARGET_S / 4
            yield number

    items: list[int] = []
    more = Source([slow()], lambda: now).read(items, 100)

    assert items == [0, 1, 2, 3]
    assert more


def test_F2_several_inputs_are_read_in_turn_and_the_shortest_ends_them() -> None:
    numbers = iter(range(5))
    items: list[tuple[int, int]] = []
    source = Source([numbers, numbers], lambda: 0.0)

    while source.read(items, 1):
        pass

    assert items == [(0, 1), (2, 3)]
    assert not source.is_bare


def test_F2_only_containers_are_believed_to_know_their_length() -> None:
    assert Source([range(5), [1, 2, 3]], lambda: 0.0).left == 3
    assert Source([range(5), iter([1, 2, 3])], lambda: 0.0).left is None


def test_F2_the_last_chunks_are_a_fair_share_of_what_is_left() -> None:
    learnt = size()
    learnt.note(1000, 1000 * TINY_S, 1)

    assert learnt.near_end(None, 2) == 8000
    assert [learnt.near_end(left, 2) for left in (100_000, 20_000, 100, 0)] == [8000, 5000, 2000, 2000]
    assert Size(7, ITEMS_MAX).near_end(1, 2) == 7
