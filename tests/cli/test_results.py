"""`--results`: one line a task, values where JSON can hold them, and a reader that leaves harms nobody."""

import io
import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from procq.cli.exits import CommandLineError
from procq.cli.results import Results
from procq.core.states import Status


class Ended(NamedTuple):
    """A handle whose task has ended."""

    value: object
    status: Status = Status.SUCCEEDED
    id: str = "t-1"

    def result(self, timeout: float | None = None) -> object:  # noqa: ARG002 - a handle's signature
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Unprintable:
    """Has no repr to be had."""

    def __repr__(self) -> str:
        raise ValueError


def row_of(tmp_path: Path, value: object, status: Status = Status.SUCCEEDED, error: str = "") -> dict[str, object]:
    """Return the one line that a task with this value gets."""
    target = tmp_path / "out.jsonl"
    with Results(str(target)) as results:
        results.add(Ended(value, status), error)
    (line,) = target.read_text(encoding="utf-8").splitlines()
    row = json.loads(line)
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("value", [3, "größe", None, [1, "a", None], {"a": [1.5]}, True])
def test_a_value_that_json_holds_is_written_as_such(tmp_path: Path, value: object) -> None:
    assert row_of(tmp_path, value) == {"id": "t-1", "status": "succeeded", "value": value}


@pytest.mark.parametrize("value", ["caf\udce9.txt", ["größe", {"caf\udce9": 1}]])
def test_a_file_s_name_that_is_no_utf_8_is_written_escaped(tmp_path: Path, value: object) -> None:
    assert row_of(tmp_path, value)["value"] == value


def test_any_other_value_is_written_as_its_repr(tmp_path: Path) -> None:
    assert row_of(tmp_path, Path("a")) == {"id": "t-1", "status": "succeeded", "repr": "PosixPath('a')"}


def test_not_a_number_is_no_json(tmp_path: Path) -> None:
    assert row_of(tmp_path, float("nan"))["repr"] == "nan"


def test_a_value_that_holds_itself_is_written_as_its_repr(tmp_path: Path) -> None:
    endless: list[object] = []
    endless.append(endless)

    assert row_of(tmp_path, endless)["repr"] == "[[...]]"


def test_a_repr_that_raises_is_replaced(tmp_path: Path) -> None:
    assert row_of(tmp_path, Unprintable())["repr"] == "<Unprintable>"


def test_a_value_that_cannot_be_rebuilt_here_is_said(tmp_path: Path) -> None:
    assert row_of(tmp_path, ValueError("no such class"))["repr"] == "<no value here: no such class>"


def test_a_failed_task_has_its_error(tmp_path: Path) -> None:
    row = row_of(tmp_path, None, Status.FAILED, "ValueError: no")

    assert row == {"id": "t-1", "status": "failed", "error": "ValueError: no"}


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(CommandLineError, match="No such file or directory"):
        Results(str(tmp_path / "no" / "such" / "out.jsonl"))


def test_standard_output_is_written_and_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)

    with Results("-") as results:
        results.add(Ended(1), "")

    assert json.loads(stream.getvalue()) == {"id": "t-1", "status": "succeeded", "value": 1}


def test_a_reader_that_left_ends_the_results_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError("Broken pipe")

    monkeypatch.setattr(sys, "stdout", Broken())

    with Results("-") as results:
        results.add(Ended(1), "")
        results.add(Ended(2), "")

    assert results.warning == "warning: --results stopped: Broken pipe"
