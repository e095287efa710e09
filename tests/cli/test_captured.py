"""What attempts wrote: kept by `--output`, shown by it and by `procq logs` (UX 3.1, 3.2)."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.command import LIMIT_S, Finished, child_environment

from procq.cli import captured

Run = Callable[..., Finished]
Write = Callable[..., Path]

JOBS = """
import sys
from pathlib import Path
from procq import task

HERE = Path(__file__).parent

@task
def say(x):
    print(f"said {x}")

@task(max_attempts=2)
def fail(x):
    for number in range(30):
        print(f"line {number} of {x}")
    print("\\x1b[31mred", file=sys.stderr)
    raise ValueError(x)

@task
def say_later():
    while not (HERE / "go").exists():
        pass
    print("at last")

def both(): return [say.using(id="say/1").spec(1), fail.using(id="fail/2", backoff=0).spec(2)]
def later(): return [say_later.using(id="later").spec()]
"""


class Wrote(NamedTuple):
    """An attempt that has ended."""

    attempt: int
    stdout: str | None
    stderr: str | None = None


@pytest.mark.parametrize("task_id", ["a", "../../a", "clean/ber/4", "größe", "", "x" * 300, "caf\udce9", "a.b"])
def test_what_was_kept_is_what_is_read_whatever_the_task_is_called(tmp_path: Path, task_id: str) -> None:
    output = tmp_path / "output"

    captured.keep(output, task_id, [Wrote(1, "out\n", "err\n"), Wrote(2, None, "more\n")])

    assert captured.read(output, task_id) == [(1, "stdout", "out\n"), (1, "stderr", "err\n"), (2, "stderr", "more\n")]
    assert {path.parent for path in tmp_path.rglob("*.std*")} == {output}


@pytest.mark.parametrize("other", ["a.1", "a/1", "b", "A%2E1", "a.1.stdout"])
def test_what_another_task_wrote_is_not_taken_for_it(tmp_path: Path, other: str) -> None:
    captured.keep(tmp_path, other, [Wrote(1, "other\n")])

    assert captured.read(tmp_path, "a") == []


def test_two_long_ids_have_files_of_their_own(tmp_path: Path) -> None:
    for last in "ab":
        captured.keep(tmp_path, "x" * 300 + last, [Wrote(1, last)])

    assert captured.read(tmp_path, "x" * 300 + "a") == [(1, "stdout", "a")]


def test_attempts_that_share_a_number_share_a_file(tmp_path: Path) -> None:
    captured.keep(tmp_path, "a", [Wrote(1, "first\n"), Wrote(1, "second\n")])

    assert captured.read(tmp_path, "a") == [(1, "stdout", "first\nsecond\n")]


def test_only_the_last_lines_of_much_are_shown() -> None:
    text = "".join(f"{number}\n" for number in range(100))

    assert list(captured.shown([Wrote(1, text)], most=2)) == ["[... 98 lines left out ...]", "98", "99"]


@pytest.fixture(autouse=True)
def jobs(write: Write) -> Path:
    return write(JOBS)


@pytest.mark.processes
def test_failed_shows_the_last_lines_of_what_a_failed_task_wrote_and_nothing_else(procq: Run) -> None:
    done = procq("run", "jobs.py:both", "--output", "failed")

    assert done.out == ""
    shown = [line for line in done.err.splitlines() if line.startswith("    | ")]
    assert shown[0] == "    | [... 10 lines left out ...]"
    assert shown[-2:] == ["    | line 29 of 2", "    | \\x1b[31mred"]
    assert "said 1" not in done.err


@pytest.mark.processes
def test_all_shows_what_each_task_wrote_after_its_id(procq: Run) -> None:
    done = procq("run", "jobs.py:both", "--output", "all")

    assert done.out == ""
    assert "say/1 | said 1" in done.err.splitlines()
    assert done.err.count("fail/2 | line 3 of 2") == 2


@pytest.mark.processes
@pytest.mark.parametrize(("how", "is_kept"), [("files", True), ("none", False)])
def test_files_and_none_show_nothing(procq: Run, tmp_path: Path, how: str, *, is_kept: bool) -> None:
    done = procq("run", "jobs.py:both", "--output", how)

    assert "said 1" not in done.out + done.err
    assert "line 3" not in done.out + done.err
    kept = list((tmp_path / ".procq").glob("*/output/*"))
    assert bool(kept) == is_kept
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} <= {0o600}


@pytest.mark.processes
def test_logs_shows_what_each_attempt_wrote(procq: Run) -> None:
    procq("run", "jobs.py:both", "--output", "failed")

    done = procq("logs", "fa")

    assert done.code == 0
    heads = [line for line in done.out.splitlines() if line.startswith("==")]
    assert heads == [f"== fail/2  attempt {attempt}  {stream}" for attempt in (1, 2) for stream in ("stdout", "stderr")]
    assert done.out.count("line 3 of 2") == 2
    assert procq("logs", "say/1").out == "== say/1  attempt 1  stdout\nsaid 1\n"


@pytest.mark.processes
def test_logs_of_what_is_not_there_says_so(procq: Run) -> None:
    procq("run", "jobs.py:both")

    assert procq("logs", "nobody").err == "procq: error: no such task: nobody\n  hint: there is say/1, fail/2\n"
    done = procq("logs", "say/1")
    assert (done.code, done.out) == (2, "")
    assert "nothing is kept of what say/1 wrote\n  hint: procq run FILE --output files keeps it" in done.err


@pytest.mark.processes
def test_logs_can_wait_for_what_a_task_will_write(procq: Run, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "procq", "run", "jobs.py:later", "--output", "files"]
    with subprocess.Popen(run, cwd=tmp_path, env=child_environment(), stderr=subprocess.DEVNULL) as process:
        while "nothing is kept" not in procq("logs", "later").err:  # until the task is known
            pass
        follow = [sys.executable, "-m", "procq", "logs", "later", "-f"]
        with subprocess.Popen(
            follow, cwd=tmp_path, env=child_environment(), stdout=subprocess.PIPE, text=True
        ) as following:
            (tmp_path / "go").touch()
            out, _ = following.communicate(timeout=LIMIT_S)
        assert process.wait(LIMIT_S) == 0

    assert (following.returncode, out) == (0, "== later  attempt 1  stdout\nat last\n")
