"""`-p NAME=VALUE` becomes what the entry's signature asks for, or a message that says what was wrong."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, Union

import pytest

from procq.cli.exits import CommandLineError
from procq.cli.parameters import bind
from procq.errors import JobsFileError

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]  # as files do for type checkers alone


class Color(Enum):
    RED = "r"
    GREEN = "g"


def entry_with(annotation: object) -> Callable[..., object]:
    """Return an entry `go(x: annotation)`."""

    def go(x: object) -> None: ...

    go.__annotations__["x"] = annotation
    return go


def value_of(annotation: object, *texts: str) -> object:
    """Return what an entry with one parameter of that type gets."""
    return bind(entry_with(annotation), [f"x={text}" for text in texts]).args[0]


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (str, "a=b c", "a=b c"),
        (str, "", ""),
        (int, "-12", -12),
        (float, "1e3", 1000.0),
        (bool, "true", True),
        (bool, "No", False),
        (bool, "0", False),
        (Path, "a/b", Path("a/b")),
        (date, "2026-11-29", date(2026, 11, 29)),
        (datetime, "2026-11-29T06:30:00", datetime(2026, 11, 29, 6, 30)),  # noqa: DTZ001 - as it was typed
        (timedelta, "1h30m", timedelta(minutes=90)),
        (Color, "RED", Color.RED),
        (Color, "g", Color.GREEN),
        (Literal["fast", 3], "fast", "fast"),
        (Literal["fast", 3], "3", 3),
        (Optional[int], "3", 3),  # noqa: UP045 - both spellings are in use
        (Optional[int], "", None),  # noqa: UP045
        (int | None, "3", 3),
        (Union[int, str], "3", 3),  # noqa: UP007
        (int | str, "x", "x"),
        (Annotated[int, "how many"], "3", 3),
        (Any, "x", "x"),
        ("int", "3", 3),
    ],
)
def test_a_text_becomes_a_value_of_the_annotation(annotation: object, text: str, value: object) -> None:
    got = value_of(annotation, text)

    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("annotation", [list[int], Optional[list[int]], "list[int]"])  # noqa: UP045
def test_a_list_collects_repeated_values(annotation: object) -> None:
    assert value_of(annotation, "3", "1", "2") == [3, 1, 2]


def test_a_bare_list_is_of_texts() -> None:
    assert value_of(list, "3") == ["3"]


@pytest.mark.parametrize(
    ("annotation", "text", "why"),
    [
        (int, "3.5", "not a whole number"),
        (float, "three", "not a number"),
        (bool, "maybe", "not a yes or no (true, false, yes, no, on, off, 1, 0)"),
        (date, "29.11.26", "not a date (YYYY-MM-DD)"),
        (datetime, "noon", "not a date and time (YYYY-MM-DDTHH:MM:SS)"),
        (timedelta, "5 minuts", "not a duration (250ms, 1.5s, 5m, 1h30m)"),
        (Color, "blue", "not one of RED, GREEN"),
        (Literal["fast", 3], "slow", "not one of fast, 3"),
        (int | None, "x", "not a whole number"),
        (int | bool, "x", "not a whole number; not a yes or no (true, false, yes, no, on, off, 1, 0)"),
        (list[int], "x", "not a whole number"),
    ],
)
def test_a_wrong_text_is_named_with_what_would_be_right(annotation: object, text: str, why: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        value_of(annotation, text)

    assert str(caught.value) == f"-p x={text}: {why}"


def test_without_an_annotation_the_default_says_the_type() -> None:
    def go(width=640, name="a", color=Color.RED, other=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
        ...

    bound = bind(go, ["width=3", "name=4", "color=g", "other=5"])

    assert bound.args == (3, "4", Color.GREEN, "5")


def test_what_is_not_given_keeps_its_default() -> None:
    def go(day: date, width: int = 640, *, deep: bool = False, **_rest: object) -> None: ...

    bound = bind(go, ["day=2026-11-29"])

    assert bound.args == (date(2026, 11, 29), 640)
    assert bound.kwargs == {"deep": False}
    assert bound.given == {"day": "2026-11-29"}


def test_positional_only_and_keyword_only_parameters_are_set_by_name() -> None:
    def go(a: int = 1, /, b: int = 2, *, c: int = 3) -> tuple[int, int, int]:
        return a, b, c

    bound = bind(go, ["c=30", "a=10"])

    assert go(*bound.args, **bound.kwargs) == (10, 2, 30)  # type: ignore[arg-type]  # objects to mypy


def test_missing_parameters_are_named_together() -> None:
    def nightly(day: date, shops: str, color: Color, width: int = 640, tags: list[int] | None = None) -> None: ...

    with pytest.raises(CommandLineError) as caught:
        bind(nightly, ["shops=ams"])

    assert caught.value.what == "nightly needs -p day=DATE -p color=RED|GREEN"
    assert caught.value.hint == (
        "parameters: day=DATE, shops=STR, color=RED|GREEN, width=INT (default 640), tags=INT (default None)"
    )


def test_an_unknown_parameter_is_told_the_closest_and_all() -> None:
    def nightly(day: str = "", shops: str = "") -> None: ...

    with pytest.raises(CommandLineError) as caught:
        bind(nightly, ["shop=ams"])

    assert caught.value.what == "-p shop=ams: nightly has no parameter 'shop'"
    assert caught.value.hint == "did you mean `shops`? known are day, shops"


def test_an_entry_without_parameters_takes_none() -> None:
    with pytest.raises(CommandLineError, match="has no parameter 'a'\n  hint: it takes none"):
        bind(lambda: None, ["a=1"])


@pytest.mark.parametrize("text", ["day", "=3", ""])
def test_a_parameter_without_name_and_value_is_refused(text: str) -> None:
    with pytest.raises(CommandLineError, match="expected NAME=VALUE"):
        bind(entry_with(str), [text])


def test_only_lists_take_several_values() -> None:
    with pytest.raises(CommandLineError, match="-p x: given 2 times"):
        value_of(int, "1", "2")


def test_an_annotation_that_no_text_fits_is_the_files_mistake() -> None:
    with pytest.raises(JobsFileError, match="parameter 'x' of go: no value can be read for complex"):
        value_of(complex, "1j")


def test_annotations_for_type_checkers_alone_do_no_harm() -> None:
    def go(day: date, other: "Unknown | None" = None) -> "Unknown": ...

    assert bind(go, ["day=2026-11-29"]).args == (date(2026, 11, 29), None)


def test_setting_a_parameter_whose_type_is_unknown_is_told() -> None:
    def go(other: "Unknown") -> None: ...

    with pytest.raises(JobsFileError, match="no value can be read for Unknown"):
        bind(go, ["other=1"])
