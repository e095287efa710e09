"""What `procq run` writes for machines: the state directory, events, traces (K1, K2, UX 3.5)."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest
from tests.support.command import LIMIT_S, Finished, child_environment
from tests.support.story import Story

from procq import Queue, events, task
from procq.steering import Steering

pytestmark = pytest.mark.processes

Run = Callable[..., Finished]
Write = Callable[..., Path]

JOBS = """
import os, signal, sys
from pathlib import Path
import procq
from procq import task

HERE = Path(__file__).parent

@task
def square(x): return x * x

@task
def fail(x): raise ValueError("no\\tluck")

@task(max_attempts=3)
def die_once(name):
    seen = HERE / f"seen-{name}"
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return name

@task
def anything(x): return 1

@task
def total(xs): return sum(xs)

@task
def more(x): return procq.Spawn([square.spec(x)], value=x)

@task
def wait():
    (HERE / "begun").touch()
    while not (HERE / "go").exists():
        pass

def good(n: int = 3): return [square.spec(x) for x in range(n)]
def bad(): return [fail.spec(1), total.spec([fail.spec(2)]), square.spec(3)]
def deadly(): return [die_once.spec(name) for name in "abcdef"] + [square.spec(x) for x in range(30)]
def all_kinds():
    yield total.spec([square.spec(x) for x in range(3)])
    yield anything.spec(object())
    yield more.using(max_attempts=2).spec(7)
    yield anything.using(id="mine").spec("a\\u2028\\n" * 100)
def waiting(): return [wait.spec(), total.spec([1, 2])]
def empty(): return []
def wrong(): return [square.using(depends_on=["nobody"]).spec(1)]

TOLD = []
@procq.jobs(on_event=TOLD.append)
def listening(): return [square.spec(1)]
@procq.jobs(on_event=lambda event: 1 / 0)
def listening_badly(): return [square.spec(1)]
"""


@pytest.fixture(autouse=True)
def jobs(write: Write) -> Path:
    return write(JOBS)


def only_run(folder: Path) -> Path:
    (run,) = [path for path in (folder / ".procq").iterdir() if path.is_dir()]
    return run


def about(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((only_run(folder) / "run.json").read_text(encoding="utf-8"))
    return found


def told(text: str) -> list[dict[str, Any]]:
    """Return the events in a text, each of which must be as the schema has it, and the whole as it can be."""
    story = Story(of_a_command=True)
    for line in text.splitlines():
        story(json.loads(line))
    story.check()
    return story.events


def events_of(folder: Path) -> list[dict[str, Any]]:
    return told((only_run(folder) / "events.jsonl").read_text(encoding="utf-8"))


def test_K2_a_run_keeps_what_it_is_and_what_happened(procq: Run, tmp_path: Path) -> None:
    done = procq("run", "jobs.py:good", "-p", "n=2")

    assert done.code == 0
    run = only_run(tmp_path)
    kept = about(tmp_path)
    assert kept["run"] == run.name
    assert (kept["command"], kept["entry"], kept["params"]) == ("procq run jobs.py:good", "good", {"n": "2"})
    assert (kept["file"], kept["cwd"]) == (str(tmp_path / "jobs.py"), str(tmp_path))
    assert (kept["exit_code"], kept["verdict"], kept["counts"]["succeeded"]) == (0, "ok", 2)
    assert 0 < kept["ended_at"] - kept["started_at"] < LIMIT_S
    first, *_, last = events_of(tmp_path)
    assert (first["run"], first["params"], first["state_dir"]) == (run.name, {"n": "2"}, str(run))
    assert (last["ev"], last["exit_code"]) == ("run.ended", 0)
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.iterdir()} == {0o600}


def test_K2_no_state_keeps_nothing(procq: Run, tmp_path: Path) -> None:
    assert procq("run", "jobs.py:good", "--no-state").code == 0

    assert not (tmp_path / ".procq").exists()


def test_what_all_goes_well_takes_two_lines(procq: Run) -> None:
    done = procq("run", "jobs.py:good")

    assert len(done.err.splitlines()) <= 3
    assert done.out == ""


def test_every_kind_of_task_is_told_of_with_a_preview_of_its_arguments(procq: Run, tmp_path: Path) -> None:
    assert procq("run", "jobs.py:all_kinds").code == 0

    submitted = [event for event in events_of(tmp_path) if event["ev"] == "task.submitted"]
    shown = {event["type"]: event["args"] for event in submitted if event["args"] is not None}
    assert [event["args"] for event in submitted if event["type"] == "square"] == ["x=0", "x=1", "x=2", None]
    assert shown["more"] == "x=7"
    assert shown["total"].startswith("xs=[square")
    by_id = {event["id"]: event["args"] for event in submitted if event["type"] == "anything"}
    assert by_id.pop("mine").startswith("x='a\\u2028\\n")
    (unnamed,) = by_id.values()
    assert unnamed.startswith("x=<object object")


def test_events_have_no_gap_and_each_is_as_the_schema_has_it_while_workers_are_killed(
    procq: Run, tmp_path: Path
) -> None:
    assert procq("run", "jobs.py:deadly", "-j", "2").code == 0

    found = events_of(tmp_path)
    assert [event["seq"] for event in found] == list(range(1, len(found) + 1))
    assert len([event for event in found if event["ev"] == "attempt.ended" and event["outcome"] == "crash"]) == 6
    assert found[-1]["counts"]["succeeded"] == 36


def test_K1_json_is_all_that_is_said(procq: Run) -> None:
    done = procq("run", "jobs.py:bad", "--json")

    assert (done.code, done.err) == (1, "")
    found = told(done.out)
    assert found[-1]["exit_code"] == 1
    assert found[-1]["counts"]["failed"] == 2


def test_K1_json_still_says_what_is_wrong(procq: Run) -> None:
    done = procq("run", "jobs.py:wrong", "--json")

    assert done.code == 3
    assert "procq: error:" in done.err
    assert told(done.out)[-1]["exit_code"] == 3


def test_events_go_to_a_file_or_a_descriptor_too(tmp_path: Path) -> None:
    read, write = os.pipe()
    subprocess.run(
        [sys.executable, "-m", "procq", "run", "jobs.py:good", "--no-state", "--events", f"fd:{write}"],
        cwd=tmp_path, env=child_environment(), pass_fds=[write], check=True, timeout=LIMIT_S, capture_output=True,
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        assert told(pipe.read())[0]["state_dir"] is None


def test_events_in_a_file_are_those_of_the_last_run(procq: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert procq("run", "jobs.py:good", "--events", "events.out").code == 0

    assert len(told((tmp_path / "events.out").read_text(encoding="utf-8"))) > 5


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--events", "no/such/file"), "--events no/such/file: No such file or directory"),
        (("--events", "fd:77"), "--events fd:77: Bad file descriptor"),
        (("--events", "fd:x"), "--events fd:x: expected a number after fd:"),
        (("--trace", "no/such/file"), "--trace no/such/file: No such file or directory"),
        (("--json", "--events", "x"), "--json and --events x: --json is --events -"),
        (("--json", "--results", "-"), "--json and --results - both write to standard output"),
        (("--no-state", "--state", "x"), "--no-state and --state x"),
        (("--keep-runs", "0"), "--keep-runs=0: must be a whole number of at least 1"),
        (("--durations", "x"), "--durations=x: must be a whole number"),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_anything_starts(
    procq: Run, tmp_path: Path, flags: tuple[str, ...], what: str
) -> None:
    done = procq("run", "jobs.py:good", *flags)

    assert done.code == 2
    assert done.err.startswith(f"procq: error: {what}\n")
    assert not (tmp_path / ".procq").exists()


def test_a_reader_that_leaves_ends_the_events_with_one_warning_and_not_the_run(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "procq", "run", "jobs.py:good", "--events", "-"],
        cwd=tmp_path, env=child_environment(), stdout=write, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    os.close(write)

    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "warning" in line] == [
        "warning: --events stopped: Broken pipe"
    ]
    assert events_of(tmp_path)[-1]["exit_code"] == 0


@pytest.mark.parametrize("where", ["a file", "below a file"])
def test_a_run_that_cannot_keep_state_says_so_once_and_goes_on(procq: Run, tmp_path: Path, where: str) -> None:
    (tmp_path / "taken").touch()
    state = "taken" if where == "a file" else "taken/below"

    done = procq("run", "jobs.py:good", "--state", state)

    assert done.code == 0
    (warning,) = [line for line in done.err.splitlines() if "warning" in line]
    assert warning.startswith(f"warning: no state is kept: {state}")


def test_the_oldest_runs_go_when_a_new_one_begins(procq: Run, tmp_path: Path) -> None:
    first = None
    for _ in range(3):
        assert procq("run", "jobs.py:good", "--keep-runs", "2").code == 0
        first = first or only_run(tmp_path).name

    names = {path.name for path in (tmp_path / ".procq").iterdir() if path.is_dir()}
    assert len(names) == 2
    assert first not in names


@pytest.mark.parametrize(
    ("entry", "flags", "code", "verdict"),
    [("bad", (), 1, "FAILED"), ("empty", (), 5, "no tasks"), ("empty", ("--allow-empty",), 0, "no tasks"),
     ("wrong", (), 3, "FAILED")],
)  # fmt: skip
def test_a_run_s_end_is_kept_however_it_ends(
    procq: Run, tmp_path: Path, entry: str, flags: tuple[str, ...], code: int, verdict: str
) -> None:
    assert procq("run", f"jobs.py:{entry}", *flags).code == code

    kept = about(tmp_path)
    assert (kept["exit_code"], kept["verdict"]) == (code, verdict)
    assert events_of(tmp_path)[-1]["exit_code"] == code


def test_an_interrupted_run_keeps_its_end(tmp_path: Path, begin: "Callable[..., Begun]") -> None:
    process, events = begin("jobs.py:waiting")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert any('"run.stopping"' in line for line in events)  # else all may have ended before it heard
    (tmp_path / "go").touch()

    assert -process.wait(LIMIT_S) in {signal.SIGINT, signal.SIGTERM}
    kept = about(tmp_path)
    assert (kept["verdict"], kept["exit_code"]) in {("interrupted", 130), ("interrupted", 143)}
    assert events_of(tmp_path)[-1]["exit_code"] == kept["exit_code"]


class Begun(NamedTuple):
    """A run whose first task has begun."""

    process: "subprocess.Popen[str]"
    events: IO[str]  #: those that it has not been asked for yet, a line each


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Begun]]:
    """Begin a run, and wait until its first task has."""
    opened: list[IO[str]] = []

    def begin_run(entry: str, *flags: str) -> Begun:
        read, write = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "procq", "run", entry, "-j", "1", "--events", f"fd:{write}", *flags],
            cwd=tmp_path, env=child_environment(), pass_fds=[write], stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        os.close(write)
        events = os.fdopen(read, encoding="utf-8")
        opened.append(events)
        assert any('"attempt.started"' in line for line in events)
        return Begun(process, events)

    yield begin_run
    for one in opened:
        one.close()


def status(procq: Run, *arguments: str) -> dict[str, Any]:
    done = procq("status", "--json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_the_status_of_a_live_run_shows_what_runs_and_afterwards_that_it_ended(
    procq: Run, tmp_path: Path, begin: Callable[..., Begun]
) -> None:
    process, _ = begin("jobs.py:waiting")
    live = status(procq)
    while not live["running"]:  # the state's events may come a moment later
        live = status(procq)
    listed = procq("runs")
    (tmp_path / "go").touch()

    assert process.wait(LIMIT_S) == 0
    assert (live["condition"], live["counts"]["running"]) == ("running", 1)
    assert [(one["type"], one["attempt"]) for one in live["running"]] == [("wait", 1)]
    assert "running" in listed.out
    done = status(procq)
    assert (done["condition"], done["counts"]["succeeded"], done["running"]) == ("ended", 2, [])
    assert done["counts"] == about(tmp_path)["counts"]


def test_the_status_of_a_run_that_was_killed_shows_how_far_it_came(
    procq: Run, tmp_path: Path, begin: Callable[..., Begun]
) -> None:
    process, _ = begin("jobs.py:waiting")
    while not status(procq)["running"]:
        pass
    process.kill()
    process.wait(LIMIT_S)
    with (only_run(tmp_path) / "events.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"v":1,"seq":99,"ev":"task.en')

    found = status(procq)

    assert (found["condition"], found["counts"]["running"]) == ("died", 1)
    text = procq("status").out
    assert "died without an end" in text
    assert "ran then  wait" in text
    assert "died" in procq("runs").out


def test_the_status_shows_what_failed(procq: Run) -> None:
    procq("run", "jobs.py:bad")

    text = procq("status").out

    assert "tasks:  1 succeeded  2 failed  1 cancelled" in text
    assert "(x=1)  ValueError: no luck" in text
    assert [one["error"] for one in status(procq)["failures"]] == ["ValueError: no\tluck"] * 2


def test_runs_and_their_tasks_are_named_by_any_beginning(procq: Run, tmp_path: Path) -> None:
    procq("run", "jobs.py:good")
    name = only_run(tmp_path).name

    assert status(procq, name[:2])["run"] == name
    done = procq("status", "0")
    assert done.code == 2
    assert done.err == f"procq: error: no such run: 0\n  hint: there is {name}\n"


def test_where_nothing_ran_that_is_said(procq: Run) -> None:
    done = procq("status")

    assert done.code == 2
    assert done.err.startswith("procq: error: no runs in .procq\n  hint: procq run FILE")
    assert procq("runs") == (0, "", "")


def rows(text: str) -> list[dict[str, str]]:
    header, *lines = [line.split("\t") for line in text.splitlines()]
    assert all(len(line) == len(header) for line in lines)
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_a_trace_has_a_row_an_attempt_and_can_be_added_to(procq: Run, tmp_path: Path) -> None:
    procq("run", "jobs.py:deadly", "--trace", "trace.tsv", "--no-state")
    procq("run", "jobs.py:bad", "--trace", "trace.tsv", "--no-state")

    found = rows((tmp_path / "trace.tsv").read_text(encoding="utf-8"))

    assert len(found) == 36 + 6 + 3
    crashes = [row for row in found if row["outcome"] == "crash"]
    assert {(row["signal"], row["attempt"], row["max_attempts"]) for row in crashes} == {("SIGKILL", "1", "3")}
    assert {row["status"] for row in crashes} <= {"scheduled", "ready"}
    assert [row["error"] for row in found if row["status"] == "failed"] == ["ValueError: no\\tluck"] * 2


def test_a_trace_of_a_past_run_says_the_same(procq: Run, tmp_path: Path) -> None:
    procq("run", "jobs.py:deadly", "--trace", "trace.tsv")

    table = procq("trace", "--format", "tsv").out
    as_json = [json.loads(line) for line in procq("trace", "--format", "jsonl").out.splitlines()]

    assert table == (tmp_path / "trace.tsv").read_text(encoding="utf-8")
    assert [(row["seq"], row["id"]) for row in as_json] == [(int(row["seq"]), row["id"]) for row in rows(table)]


def test_a_jobs_file_s_own_listener_is_told_beside_the_state(write: Write, procq: Run, tmp_path: Path) -> None:
    write(JOBS + "import atexit, json\natexit.register(lambda: print(json.dumps(TOLD)) if TOLD else None)")

    done = procq("run", "jobs.py:listening")

    assert json.loads(done.out) == events_of(tmp_path)


def test_a_jobs_file_s_own_listener_that_raises_harms_no_other(procq: Run, tmp_path: Path) -> None:
    done = procq("run", "jobs.py:listening_badly")

    assert done.code == 0
    assert done.err.count("on_event raised") == 1
    assert events_of(tmp_path)[-1]["exit_code"] == 0


def test_the_longest_attempts_are_named_where_that_is_asked_for(procq: Run) -> None:
    done = procq("run", "jobs.py:good", "--durations", "2", "--no-state")

    (line,) = [line for line in done.err.splitlines() if line.startswith("slowest: ")]
    assert line.count("square-") == 2


@task
def nothing(_: int) -> None: ...


def test_a_queue_that_gets_all_its_tasks_at_once_drops_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "WAITING_MAX", 10)
    kinds: list[object] = []

    with Queue(1, on_event=lambda event: kinds.append(event["ev"])) as queue:
        Steering(queue).keep_all_events()
        queue.submit_many(nothing.spec(number) for number in range(500))

    assert kinds.count("task.submitted") == 500
    assert "warning" not in kinds
