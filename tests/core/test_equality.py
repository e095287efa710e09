"""The same call has other bytes where other texts are one object, and is known again all the same (contract C4)."""

import pickle
from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from tests.contract import tasks

from procq.equality import is_same_call
from procq.parcel import Parcel
from procq.payload import dump_call, load_call

TEXTS = st.sampled_from(["a", "b", "ab" * 200, b"a", b"ab", ""])
VALUES = st.recursive(
    TEXTS | st.integers(0, 2) | st.none() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner),
    max_leaves=20,
)


def dumped(fn: Callable[..., object], *args: object, **kwargs: object) -> bytes:
    data, _ = dump_call(fn, args, kwargs)
    assert not isinstance(data, Parcel)
    return data


def apart(value: object) -> object:
    """Return an equal value in which no two texts are one object."""
    match value:
        case str():
            return value.encode().decode() if len(value) > 1 else value
        case bytes():
            return bytes(bytearray(value)) if len(value) > 1 else value
        case list():
            return [apart(item) for item in value]
        case tuple():
            return tuple([apart(item) for item in value])
        case dict():
            return {apart(key): apart(item) for key, item in value.items()}
        case _:
            return value


def by_value() -> Callable[..., object]:
    """Return a function that a worker cannot import, made anew."""
    script: dict[str, object] = {"__name__": "__main__"}
    exec("words = {'one': 'two'}\ndef fn(x, y='one'):\n    return words, fn, x, y", script)
    fn = script["fn"]
    assert callable(fn)
    return fn


@given(VALUES)
def test_C4_equal_arguments_are_the_same_whichever_texts_are_one_object(value: object) -> None:
    assert is_same_call(dumped(tasks.echo, value), dumped(tasks.echo, apart(value)))


@given(VALUES, VALUES)
def test_C4_what_is_said_to_be_the_same_is_the_same(one: object, other: object) -> None:
    first, second = dumped(tasks.echo, one), dumped(tasks.echo, other)

    if is_same_call(first, second):
        loaded = load_call(first, ()), load_call(second, ())
        assert repr(loaded[0]) == repr(loaded[1])


def test_C4_a_function_that_travels_by_value_is_known_again_after_a_journey() -> None:
    word = "one, two"
    once = dumped(by_value(), word, y=word)
    fn, _, _ = load_call(once, ())
    twice = dumped(fn, word, y=apart(word))

    assert once != twice, "else there is nothing to see here"
    assert is_same_call(once, twice)
    assert not is_same_call(once, dumped(fn, word, y="three"))
    assert not is_same_call(once, dumped(fn, word))


def test_C4_text_is_not_bytes_and_a_list_twice_is_not_two_lists() -> None:
    shared = ["x"]

    assert not is_same_call(dumped(tasks.echo, "a"), dumped(tasks.echo, b"a"))
    assert not is_same_call(dumped(tasks.echo, [shared, shared]), dumped(tasks.echo, [["x"], ["x"]]))
    assert not is_same_call(dumped(tasks.echo, "a"), dumped(tasks.note, "a"))
    assert not is_same_call(dumped(tasks.echo, 1), dumped(tasks.echo, value=1))


@pytest.mark.parametrize(
    "other", [b"", b"\x01", b"\x01\xff\xff", b"\x80", b"\x80\x05h\x07.", pickle.dumps(1)[:-1], b"?"]
)
def test_H5_what_is_no_call_is_the_same_as_none(other: bytes) -> None:
    assert not is_same_call(dumped(tasks.echo, 1), other)
    assert not is_same_call(other, dumped(tasks.echo, 1))
