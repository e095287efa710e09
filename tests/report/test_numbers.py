"""The numbers of a report are those of the events, also where the events end early (UX 4.1)."""

import json
import math
import re
import stat
from pathlib import Path

import pytest
from tests.support.runs import Event, large_run

from procq import testing
from procq.cli import console
from procq.eventfile import read_events
from procq.report import render, write
from procq.report.account import Account
from procq.report.figures import figures_of, histogram, longest_chain, percentile
from procq.report.layered import Node, drawing
from procq.report.markup import duration, safe, size


def test_counts_and_attempts_are_those_of_the_events() -> None:
    events = list(large_run(2_000))

    figures = figures_of(Account(events))

    ends = [event for event in events if event["ev"] == "attempt.ended"]
    assert {name: told.attempts for name, told in figures.outcomes.items()} == {
        name: sum(event["outcome"] == name for event in ends) for name in ("ok", "error", "timeout", "crash")
    }
    assert figures.run_s == pytest.approx(sum(float(str(event["run_s"])) for event in ends))
    assert figures.counts == {name: number for name, number in counts_of(events).items() if number}


def counts_of(events: list[Event]) -> dict[str, int]:
    counts = events[-1]["counts"]
    assert isinstance(counts, dict)
    return counts


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50.0), (0.95, 95.0), (0.999, 100.0), (1.0, 100.0), (0.07, 7.0)])
def test_a_percentile_is_a_value_that_there_is(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(1, 101)], share) == expected


def test_a_histogram_counts_every_duration_once() -> None:
    drawn = histogram([0.0, 1e-9, 0.011, 0.5, 0.99, 1e9], -2, 1)

    assert sum(drawn.bars) == 6
    assert drawn.bars[0] == 3
    assert drawn.bars[-1] == 1
    assert math.isclose(drawn.edge(4), 0.1)


def of_task(task_id: str, *, needs: list[str], began: float, run_s: float) -> list[Event]:
    return [
        {"ev": "task.submitted", "t": 0.0, "id": task_id, "type": "a", "depends_on": needs},
        {"ev": "attempt.started", "t": began, "id": task_id, "attempt": 1, "worker": 1},
        {"ev": "attempt.ended", "t": began + run_s, "id": task_id, "attempt": 1, "outcome": "ok", "run_s": run_s},
        {"ev": "task.ended", "t": began + run_s, "id": task_id, "status": "succeeded"},
    ]


def test_the_critical_path_is_the_chain_that_took_longest() -> None:
    account = Account(
        [
            *of_task("c", needs=["b", "x"], began=5, run_s=1),  # told of before what it needs
            *of_task("b", needs=["a"], began=2, run_s=2),
            *of_task("a", needs=[], began=0, run_s=2),
            *of_task("x", needs=[], began=0, run_s=3),
        ]
    )

    chain = longest_chain(account)

    assert chain is not None
    assert ([account.tasks.ids[index] for index in chain.tasks], chain.run_s) == (["a", "b", "c"], 5.0)


def test_an_attempt_that_was_not_begun_is_none() -> None:
    started: Event = {"ev": "attempt.started", "t": 1.0, "id": "a", "attempt": 1, "worker": 1}

    account = Account(
        [started, {"ev": "task.ready", "t": 2.0, "id": "a", "reason": "not_begun"}, {**started, "t": 3.0}]
    )

    assert list(account.attempts.start) == [3.0]
    assert account.tasks.tries[0] == 1


def test_a_killed_run_tells_what_ran() -> None:
    events = list(large_run(50))
    last = max(nth for nth, event in enumerate(events) if event["ev"] == "attempt.started")

    page = render(events[: last + 1])

    assert "UNFINISHED" in page
    assert "with 1 task running" in page
    assert re.search(r'<td><span class="dim">running</span>', page)


def test_unknown_kinds_and_missing_fields_are_borne() -> None:
    kinds = {str(event["ev"]) for event in large_run(50)} | {"run.stopping", "log", "warning", "task.replayed", "new"}

    page = render([{"ev": kind} for kind in sorted(kinds)] + [{}, {"ev": None, "t": "soon"}])

    assert "<h1>" in page


def test_nothing_at_all_is_a_report_too() -> None:
    assert "No attempt was begun." in render([])


def test_a_real_queue_makes_a_report() -> None:
    events: list[Event] = []
    with testing.inline(on_event=events.append) as queue:
        queue.submit(divmod, 7, 2)
        queue.submit(divmod, 1, 0)

    page = render(events)

    assert "FAILED" in page
    assert "ZeroDivisionError" in page


def test_missing_events_are_said() -> None:
    events = list(large_run(20))

    assert "2 events are missing" in render(events[:4] + events[6:])


def test_above_100_000_attempts_the_page_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procq.report.track.WHOLE_MAX", 100)
    monkeypatch.setattr("procq.report.track.PART_MAX", 50)
    events = list(large_run(300))

    page = render(events)

    begun = sum(event["ev"] == "attempt.started" for event in events)
    found = re.search(r'id="track">(.*)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    bad = sum(event["ev"] == "attempt.ended" and event["outcome"] != "ok" for event in events)
    assert f"There were {begun} attempts, more than can be drawn" in page
    assert len(data["start"]) == 50
    assert len(data["out"]) == min(bad, 50)
    assert len(data["density"]) == 8


def test_the_file_is_its_owners_alone_and_replaces_another(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    write(large_run(20), target)

    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.read_text().startswith("<!doctype html>")
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_target_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()

    with pytest.raises(OSError, match=r"report\.html"):
        write(large_run(20), tmp_path / "report.html")

    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_half_a_line_at_the_end_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"ev":"a"}\nnull\n\xff\n{"ev":"b"}\n{"ev":"c", "i')

    assert list(read_events(file)) == [{"ev": "a"}, {"ev": "b"}]


def test_what_does_not_print_is_shown() -> None:
    assert safe("a\x1b[1m\u202eb\ud800<'\">") == "a\\x1b[1m\\u202eb\ufffd&lt;&#x27;&quot;&gt;"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0 s"), (0.00042, "0.4 ms"), (0.0123, "12 ms"), (0.4116, "412 ms"), (1.234, "1.23 s"),
        (59.96, "1 min 00 s"),
        (125.0, "2 min 05 s"), (11_220.0, "3 h 07 min"), (None, "-"),
    ],
)  # fmt: skip
def test_a_duration_reads_well(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("octets", "shown"), [(512.0, "512 B"), (999_600.0, "1 MB"), (1.25e9, "1.25 GB"), (None, "-")])
def test_a_size_reads_well(octets: float | None, shown: str) -> None:
    assert size(octets) == shown


def test_a_graph_with_circles_is_drawn() -> None:
    nodes = [Node(lines=(name,), title=name, kind="") for name in "abcd"]

    svg = drawing(nodes, dict.fromkeys([(0, 1), (1, 2), (2, 0), (3, 3), (0, 2)], ""), bold=frozenset(), label="x")

    assert svg.count("<rect") == 4
    assert svg.count('class="edge"') == 4


# --- procq report ----------------------------------------------------------------------------------


def runs(state: Path, **started: float) -> None:
    """Make runs in a state directory, each with the time at which it started."""
    for name, at in started.items():
        folder = state / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"run": name, "started_at": at}))
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in large_run(5)))


@pytest.mark.parametrize(("given", "name"), [([], "kb2c"), (["ka"], "ka1b"), (["ka1b"], "ka1b")])
def test_a_run_is_named_by_a_part_and_the_newest_by_nothing(given: list[str], name: str, tmp_path: Path) -> None:
    runs(tmp_path, ka1b=1.0, kb2c=2.0)

    assert console(["report", *given, "--state", str(tmp_path)]) == 0

    assert name in (tmp_path / name / "report.html").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("k", "several runs begin with k\n  hint: ka1b, kb2c"),
        ("z", "no such run: z\n  hint: the newest are kb2c, ka1b"),
    ],
)
def test_a_run_that_cannot_be_told_is_refused(
    given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs(tmp_path, ka1b=1.0, kb2c=2.0)

    assert console(["report", given, "--state", str(tmp_path)]) == 2

    assert said in capsys.readouterr().err


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs(tmp_path, ka1b=1.0)

    assert console(["report", "--state", str(tmp_path), "-o", str(tmp_path / "no" / "r.html")]) == 2

    assert "can't write" in capsys.readouterr().err


def test_a_file_without_events_makes_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.py").write_text("def jobs(): return []\n")

    assert console(["report", str(tmp_path / "jobs.py")]) == 2
    assert "has no events" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.py"]
