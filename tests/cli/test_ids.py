"""Derived ids: the same in every run for the same work, different for different work (contract C4)."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from enum import Enum, IntEnum
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given, strategies as st

from procq.cli.ids import Namer, stable_id
from procq.spec import TaskSpec, task


class Color(Enum):
    RED = "r"
    GREEN = "g"


class Level(IntEnum):
    LOW = 1


@task
def work(*args: object, **kwargs: object) -> None: ...


@task
def other(*args: object) -> None: ...


def no_id(_source: object) -> None:
    """Know no dependency."""


def id_of(*args: object, **kwargs: object) -> str | None:
    """Return the id of a task with these arguments."""
    return stable_id(work.spec(*args, **kwargs), no_id)


def test_C4_an_id_is_the_type_and_a_digest() -> None:
    task_id = id_of("a.csv", 3)

    assert task_id is not None
    kind, _, digest = task_id.rpartition("-")
    assert kind == "work"
    assert len(digest) == 16
    assert int(digest, 16) >= 0


PLAIN: list[object] = [
    "a", "1", "", b"a", b"", 1, -1, 0, True, False, 1.0, 0.0, -0.0, float("inf"), None, Path("a"), date(2026, 11, 29),
    datetime.fromisoformat("2026-11-29"), datetime(2026, 11, 29, tzinfo=UTC), timedelta(1),
    Color.RED, Color.GREEN, Level.LOW,
    (), [], {}, ("a",), ["a"], {"a": 1}, {"a": "1"}, {1: "a"}, ("a", "b"), ("ab",), (("a",), "b"), ("a", ("b",)),
    10**5000,
]  # fmt: skip


def test_C4_no_two_plain_values_look_alike() -> None:
    ids = [id_of(value) for value in PLAIN]

    assert None not in ids
    assert len(set(ids)) == len(PLAIN)


def test_C4_arguments_do_not_run_into_each_other() -> None:
    calls = [id_of("a", "b"), id_of("ab"), id_of("a", b="b"), id_of(("a", "b")), id_of("a"), id_of(a="b"), id_of()]

    assert len(set(calls)) == len(calls)


def test_C4_the_type_counts() -> None:
    assert stable_id(work.spec(1), no_id) != stable_id(other.spec(1), no_id)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1, 2},
        lambda: None,
        [object()],
        {"a": {1}},
        1j,
        type("Str", (str,), {})("a"),
        type("List", (list,), {})(),
    ],
)
def test_C4_other_values_have_no_stable_id(value: object) -> None:
    assert id_of(value) is None


def test_C4_a_value_that_holds_itself_has_no_stable_id() -> None:
    endless: list[object] = []
    endless.append(endless)

    assert id_of(endless) is None


def test_C4_the_order_of_a_dict_does_not_count() -> None:
    assert id_of({"a": 1, "b": 2}) == id_of({"b": 2, "a": 1})
    assert id_of(a=1, b=2) == id_of(b=2, a=1)


def test_C4_a_pure_path_is_the_path_it_says() -> None:
    assert id_of(Path("a/b")) == id_of(PurePosixPath("a/b"))


def test_C4_a_file_name_that_is_no_utf8_has_an_id() -> None:
    assert id_of(Path("\udcff"), "\udcff") is not None


def test_C4_a_dependency_counts_by_its_id() -> None:
    one, two = work.spec(1), work.spec(2)
    names: dict[TaskSpec[Any], str] = {one: "one", two: "two"}

    ids = [stable_id(other.spec(argument), names.get) for argument in (one, one.out, two, "one", [one])]  # type: ignore[arg-type]

    assert ids[0] == ids[1]
    assert len(set(ids)) == 4


def test_C4_a_dependency_without_id_makes_its_dependents_unstable() -> None:
    assert stable_id(other.spec(work.spec(object())), no_id) is None


def test_C4_ids_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from procq.cli.ids import stable_id; from procq.spec import task\n"
        "def work(*args): ...\n"
        "print(stable_id(task(work).spec('a', {'x': 1, 'y': [2.5, None]}, b'z'), lambda source: None))"
    )

    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True, timeout=30
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert outputs == {f"{id_of('a', {'y': [2.5, None], 'x': 1}, b'z')}\n".encode()}


def test_C4_equal_tasks_are_numbered() -> None:
    namer = Namer()

    names = [namer.name(work.spec(value), no_id) for value in (1, 2, 1, 1)]

    base, second, *repeats = names
    assert repeats == [f"{base}/2", f"{base}/3"]
    assert second != base


def test_C4_an_id_of_the_users_own_stays() -> None:
    assert Namer().name(work.using(id="mine").spec(1), no_id) == "mine"


def test_C4_types_without_stable_ids_are_remembered_for_a_warning() -> None:
    namer = Namer()

    assert namer.name(work.spec(object()), no_id) is None
    assert namer.unstable_types == {"work"}


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(plain_values, plain_values)
def test_C4_ids_are_equal_exactly_for_values_that_are_written_alike(one: object, two: object) -> None:
    assert (id_of(one) == id_of(two)) == (canonical(one) == canonical(two))


def canonical(value: object) -> object:
    """Return something that compares as ids should: types count, the order of dicts does not."""
    if isinstance(value, dict):
        return ("dict", frozenset((canonical(key), canonical(item)) for key, item in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(canonical(item) for item in value))
    return (type(value).__name__, repr(value))
