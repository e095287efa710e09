"""The benchmark's arithmetic, and that its one command runs with nothing but the standard library's pools."""

import json
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from tests.support.looking import script_environment

if sys.platform != "linux":
    pytest.skip("the benchmarks read /proc", allow_module_level=True)

from bench.rows import ROWS, Goal, Row
from bench.runner import Line, read_lines
from bench.table import BEGIN, END, Figure, Finding, findings, markdown, told_goal, told_ratio, write_between_marks
from bench.workloads import RUNS

ROOT = Path(__file__).parents[1]


def line(subject: str, value: float | None, *, rep: int = 0, others: float | None = 0.0) -> Line:
    """One run of the no-op workload."""
    return Line("noop", subject, rep, others, 1.0, {"per_s": value, "cpu_us": 1.0})


def first_finding(*lines: Line) -> Finding:
    """Return what is found in the row of no-op tasks a second."""
    return next(findings(lines))


def finding(row: Row, best: str | None, **numbers: float) -> Finding:
    return Finding("noop", row, {subject: Figure((number,)) for subject, number in numbers.items()}, best)


def test_the_ratio_is_median_over_median_and_to_the_best_peer() -> None:
    ours = [line("procq", per_s, rep=rep) for rep, per_s in enumerate((10, 90, 60))]
    peers = [line("futures", 20), line("pool", 40), line("bare", 1000)]

    found = first_finding(*ours, *peers)

    assert found.best == "pool"
    assert found.ratio("pool") == 1.5
    assert found.ratio("futures") == 3
    assert found.figures["procq"].told(0) == "60 (10 to 90)"


def test_less_is_better_where_it_is_and_never_is_not_the_best() -> None:
    lines = [
        Line("crash", subject, 0, 0.0, 1.0, {"lost": 1, "known_ms": known_ms, "new_ms": new_ms})
        for subject, known_ms, new_ms in (("procq", 2, 20), ("futures", 4, None), ("pool", None, None))
    ]

    _, known, new = findings(lines)

    assert (known.best, known.ratio(known.best)) == ("futures", 0.5)
    assert (new.best, new.ratio(new.best)) == (None, None)
    assert new.figures["futures"].told(1) == "never"


def test_the_median_of_runs_that_sometimes_never_ended_is_never_only_if_most_did() -> None:
    assert Figure((1, inf, 3)).median == 3
    assert Figure((1, inf, inf)).median == inf


def test_of_the_tries_of_one_repetition_the_least_disturbed_counts() -> None:
    lines = [line("procq", 5, others=0.4), line("procq", 7, others=0.2), line("procq", 9, rep=1, others=None)]

    found = first_finding(*lines)
    table = list(markdown(lines, 0.1, []))

    assert found.figures["procq"].numbers == (7, 9)
    assert table[3].endswith("| 1 of 2, 1 repeated |")


@pytest.mark.parametrize(
    ("better", "goal", "ours", "met"),
    [
        ("more", Goal(3), 120, True),
        ("more", Goal(3), 119, False),
        ("more", Goal(2, 130), 120, False),
        ("more", Goal(2, 130), 131, True),
        ("less", Goal(0.5), 20, True),
        ("less", Goal(0.5), 21, False),
        ("less", Goal(figure=20), 20, True),
        ("less", Goal(figure=20), inf, False),
        ("less", Goal(0.5), inf, False),
        ("more", Goal(1, peer="futures"), 30, True),
        ("more", Goal(), 30, None),
    ],
)
def test_a_goal_is_met_when_all_of_it_is(better: str, goal: Goal, ours: float, met: bool | None) -> None:  # noqa: FBT001
    row = Row("per_s", "", "more" if better == "more" else "less", goal)

    found = finding(row, "pool", procq=ours, pool=40, futures=30)

    assert found.is_met() is met


def test_a_goal_without_anybody_to_compare_with_is_left_open() -> None:
    found = finding(ROWS["noop"][0], None, procq=200_000)

    assert found.is_met() is None
    assert told_goal(found) == ">= 3 x best, >= 100,000"
    assert told_ratio(found.ratio(found.best)) == "-"


def test_who_has_no_figure_is_explained_below_the_table() -> None:
    lines = [line("procq", 1), line("procq", 2, rep=1), line("futures", 3)]
    lines += [Line("noop", "joblib", 0, 0.0, 1.0, cannot="no submit"), Line("noop", "ray", 0, None, 1.0, failed="died")]

    notes = list(markdown(lines, 0.1, []))[6:]

    assert notes == [
        "- joblib: no submit (noop).",
        "- ray: failed (died) (noop).",
        "- ProcessPoolExecutor: one run only, because each takes so long (noop).",
    ]


def test_the_table_goes_between_the_marks_and_nowhere_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")

    write_between_marks(page, "new\n")

    assert page.read_text() == f"above\n{BEGIN}\n\nnew\n\n{END}\nbelow\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="there must be a line"):
        write_between_marks(page, "new")


def test_every_workload_has_its_rows() -> None:
    assert set(ROWS) == set(RUNS)


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_compares_with_what_python_brings(tmp_path: Path) -> None:
    page, runs = tmp_path / "page.md", tmp_path / "runs.jsonl"
    options = f"--reps 1 --tries 1 --patience 0 --only start --peers futures --json {runs} --markdown {page}"

    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "compare.py"), *options.split()],
        cwd=tmp_path,
        env=script_environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    facts, lines = read_lines(runs)
    assert [entry.subject for entry in lines] == ["procq", "futures", "bare"]
    assert all(entry.values["first_ms"] for entry in lines)
    assert [json.loads(text)["subject"] for text in done.stderr.splitlines()] == ["procq", "futures", "bare"]
    for written in (done.stdout, page.read_text()):
        assert facts[0] in written
        assert written.count("\n| fresh interpreter") == 2
