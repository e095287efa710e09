"""What `run` does less of or with other things: `--dry-run`, `--first`, `--nice` and `--params-file`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import LIMIT_S, Finished, child_environment

from procq.cli import console, paramsfile
from procq.cli.exits import CommandLineError

Run = Callable[..., Finished]
Write = Callable[..., Path]

JOBS = """
    import os
    from datetime import date
    from pathlib import Path
    from procq import task

    HERE = Path(__file__).parent

    @task
    def square(x):
        (HERE / "ran").touch()
        return x * x

    @task
    def total(xs): return sum(xs)

    @task
    def nice(): return os.nice(0)

    def graph(): return [total.using(id="sum").spec([square.spec(x).out for x in (2, 3)]), square.spec(object())]
    def endless():
        try:
            n = 0
            while True:
                yield square.spec(n)
                n += 1
        finally:
            (HERE / "closed").touch()
    def nothing(): return []
    def cyclic():
        return [square.using(id=one, depends_on=[other]).spec(1) for one, other in ("ab", "ba")]
    def lacking():
        yield square.using(depends_on=["nobody"]).spec(1)
    def unsent(): return [square.spec(lambda: 1), square.spec((x for x in "a"))]
    def level(): return [nice.spec()]
    def typed(day: date, names: list[str] = [], width: int = 1, quick: bool = False):
        return [square.using(id=f"{day!r} {names} {width} {quick}").spec(1)]
"""


@pytest.fixture
def jobs(write: Write, fresh_loader: None) -> Path:  # noqa: ARG001 - for its effect
    return write(JOBS)


# --- dry runs ------------------------------------------------------------------------------------


def test_a_dry_run_lists_what_would_run_and_why_and_runs_nothing(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = console(["run", f"{jobs}:graph", "-n"])

    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert [(row[0], row[2]) for row in rows[:2]] == [("new", "square(x=2)"), ("new", "square(x=3)")]
    assert rows[2][:2] == ["new", "sum"]
    assert rows[3][:2] == ["no stable id", "-"]
    assert err == "would run 4 tasks: 3 square, 1 total\n"
    assert not (jobs.parent / "ran").exists()


def test_a_dry_run_reads_all_of_a_generator_whatever_the_bounds_of_a_run(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = console(["run", f"{jobs}:endless", "-n", "--first", "5000", "--lookahead", "3", "--max-pending", "2"])

    out, err = capsys.readouterr()
    assert code == 0
    assert out.count("\n") == 5000
    assert err == "would run 5000 tasks: 5000 square\n"


@pytest.mark.parametrize(
    ("entry", "code", "what"),
    [
        ("nothing", 5, "nothing() produced no tasks"),
        ("cyclic", 3, "dependency cycle: a -> b -> a"),
        ("lacking", 3, "'nobody'"),
        ("unsent", 3, "generator"),
    ],
)
def test_a_dry_run_refuses_what_a_run_does(
    jobs: Path, capsys: pytest.CaptureFixture[str], entry: str, code: int, what: str
) -> None:
    assert console(["run", f"{jobs}:{entry}", "-n"]) == code

    assert what in capsys.readouterr().err


def test_a_dry_run_refuses_a_type_that_no_task_has(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert console(["run", f"{jobs}:graph", "-n", "--limit", "sqare=1"]) == 2

    assert "did you mean `square`?" in capsys.readouterr().err


def test_a_dry_run_leaves_the_results_of_the_run_before_alone(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = jobs.parent / "out.jsonl"
    results.write_text("before")

    console(["run", f"{jobs}:graph", "-n", "--results", str(results)])

    assert capsys.readouterr().out
    assert results.read_text() == "before"


@pytest.mark.processes
def test_a_dry_run_of_an_endless_generator_ends_with_its_reader(jobs: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "procq", "run", f"{jobs}:endless", "-n"],
        cwd=jobs.parent, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.stdout.close()
        code = process.wait(LIMIT_S)
        err = process.stderr.read()

    assert first.endswith("square(x=0)\n")
    assert (code, err) == (0, "")


# --- --first -------------------------------------------------------------------------------------


@pytest.mark.processes
def test_the_first_tasks_run_and_an_endless_generator_is_left(jobs: Path, procq: Run) -> None:
    done = procq("run", f"{jobs}:endless", "--first", "3")

    assert done.code == 0
    assert "3 ok" in done.err
    assert (jobs.parent / "closed").exists()


@pytest.mark.processes
def test_the_first_of_a_list_brings_what_it_needs(jobs: Path, procq: Run) -> None:
    done = procq("run", f"{jobs}:graph", "--first=1")

    assert done.code == 0
    assert "3 ok" in done.err


# --- --nice --------------------------------------------------------------------------------------


@pytest.mark.processes
def test_workers_are_as_nice_as_the_run(jobs: Path, procq: Run) -> None:
    done = procq("run", f"{jobs}:level", "--nice", "3", "--results", "-")

    assert json.loads(done.out)["value"] == min(19, os.nice(0) + 3)


# --- --params-file -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", 'day = 2026-11-29\nnames = ["a", "b"]\nwidth = 3\nquick = true\n'),
        ("p.json", '{"day": "2026-11-29", "names": ["a", "b"], "width": 3, "quick": true}'),
    ],
)
def test_parameters_come_from_a_file(
    jobs: Path, write: Write, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    path = write(text, name)

    assert console(["run", f"{jobs}:typed", "-n", "--params-file", str(path)]) == 0

    assert "datetime.date(2026, 11, 29) ['a', 'b'] 3 True" in capsys.readouterr().out


def test_p_wins_over_the_file(jobs: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write('{"day": "2026-11-29", "names": ["a", "b"]}', "p.json")

    console(["run", f"{jobs}:typed", "-n", "--params-file", str(path), "-p", "names=c"])

    assert "datetime.date(2026, 11, 29) ['c'] 1 False" in capsys.readouterr().out


def test_an_empty_list_in_a_file_is_one(jobs: Path, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write('{"day": "2026-11-29", "names": []}', "p.json")

    console(["run", f"{jobs}:typed", "-n", "--params-file", str(path)])

    assert "datetime.date(2026, 11, 29) [] 1 False" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"day": "29.11.26"}', "p.json: day=29.11.26: not a date (YYYY-MM-DD)"),
        ('{"dya": "2026-11-29"}', "p.json: typed has no parameter 'dya'"),
        ('{"day": ["2026-11-29", "2026-11-30"]}', "p.json: day: given 2 times"),
        ('{"day": {"a": 1}}', "p.json: day: no parameter can be a table"),
        ("[1]", "p.json: expected an object of names and values"),
        ("{", "p.json: Expecting property name"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_with_its_name(
    jobs: Path, write: Write, capsys: pytest.CaptureFixture[str], text: str, what: str
) -> None:
    path = write(text, "p.json")

    assert console(["run", f"{jobs}:typed", "-n", "--params-file", str(path)]) == 2

    assert what in capsys.readouterr().err


@pytest.mark.parametrize(("name", "what"), [("none.toml", "No such file"), ("p.yaml", "neither .toml nor .json")])
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / "p.yaml").touch()

    with pytest.raises(CommandLineError, match=what):
        paramsfile.read(str(tmp_path / name))
