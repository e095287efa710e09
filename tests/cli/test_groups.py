"""`--group`, and `@procq.jobs(groups=...)` beside it: how many workers each group of a run has (contract K1)."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from tests.cli.test_parser import settings
from tests.support.command import Finished

from procq.cli.run import workers_of
from procq.engine.local.machine import usable_cpus
from procq.errors import UsageError

Run = Callable[..., Finished]
Write = Callable[..., Path]

CPUS = usable_cpus()


@pytest.mark.parametrize(
    ("flags", "workers", "groups", "expected"),
    [
        # Nobody says anything of the default group: it has what is left.
        ([], None, None, {"default": CPUS}),
        ([], None, {"heavy": 1}, {"default": max(1, CPUS - 1), "heavy": 1}),
        (["--group", "heavy=1"], None, None, {"default": max(1, CPUS - 1), "heavy": 1}),
        (["--group", "heavy=1000"], None, {"heavy": 1}, {"default": 1, "heavy": 1000}),
        # One of both says it.
        (["-j3", "--group", "heavy=2"], None, None, {"default": 3, "heavy": 2}),
        (["--group", "default=3"], None, {"heavy": 2}, {"default": 3, "heavy": 2}),
        ([], 3, {"heavy": 2}, {"default": 3, "heavy": 2}),
        ([], None, {"default": 3, "heavy": 2}, {"default": 3, "heavy": 2}),
        (["--group=light=1"], 3, {"heavy": 2}, {"default": 3, "heavy": 2, "light": 1}),
        # Both do, and the flag wins.
        (["--group", "heavy=4"], 3, {"heavy": 2, "light": 6}, {"default": 3, "heavy": 4, "light": 6}),
        (["-j4"], 3, {"heavy": 2}, {"default": 4, "heavy": 2}),
        (["-j4"], None, {"default": 3}, {"default": 4}),
        (["--group", "default=4"], 3, None, {"default": 4}),
        (["-j", "100%"], 100, {"heavy": 2}, {"default": CPUS, "heavy": 2}),
        (["-j", "auto"], 3, {"heavy": 2}, {"default": 3, "heavy": 2}),
        # A name may have what a flag has.
        (["--group", "a=b=2"], 1, None, {"default": 1, "a=b": 2}),
    ],
)
def test_K1_a_flag_wins_over_the_jobs_file_group_by_group(
    flags: list[str], workers: int | None, groups: Mapping[str, int] | None, expected: dict[str, int]
) -> None:
    assert workers_of(settings(*flags), workers, groups) == expected


def test_K1_a_jobs_file_may_not_say_it_twice() -> None:
    with pytest.raises(UsageError, match=r"^workers=3 and groups\['default'\]=2 both say"):
        workers_of(settings(), 3, {"default": 2})


# --- runs ---

JOBS = """
import os
import procq

@procq.task
def light(x): return os.getpid()

@procq.task(group="heavy")
def heavy(x): return os.getpid()

@procq.task(group="gpu")
def train(x): ...

def jobs(): return [task.spec(x) for x in range(20) for task in (light, heavy)]

@procq.jobs(groups={"heavy": 1})
def marked(): yield from jobs()

@procq.jobs(groups={"heavy": 0})
def wrong(): return jobs()

@procq.jobs(groups=["heavy"])
def unmapped(): return jobs()

def hand_on(): return procq.Spawn([heavy.spec(1)])
def spawning(): return [procq.task(hand_on).spec()]

def unknown(): return [light.spec(1), train.spec(2)]
def unknown_later():
    yield light.spec(1)
    yield train.spec(2)
"""


@pytest.mark.processes
@pytest.mark.parametrize(("entry", "flags"), [("jobs", ["--group", "heavy=1"]), ("marked", [])])
def test_B7_the_groups_of_a_run_have_processes_of_their_own(
    write: Write, procq: Run, tmp_path: Path, entry: str, flags: list[str]
) -> None:
    write(JOBS)
    done = procq("run", f"jobs.py:{entry}", "-j1", "--results=out.jsonl", *flags)

    assert done.code == 0, done.err
    assert "  2 workers\n" in done.err
    pids = [json.loads(line)["value"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(Counter(pids).values()) == [20, 20]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("entry", "flags", "code", "told"),
    [
        ("unknown", [], 3, "train needs group 'gpu'; this queue has 'default'\n"),
        ("unknown", ["--group=heavy=1"], 3, "train needs group 'gpu'; this queue has 'default', 'heavy'\n"),
        ("unknown_later", [], 3, "train needs group 'gpu'; this queue has 'default'\n"),
        ("unmapped", ["--group=heavy=1"], 3, "@procq.jobs of unmapped(): groups=['heavy']: expected how many workers"),
        ("wrong", [], 3, "@procq.jobs of wrong(): groups['heavy']=0: must be at least 1"),
        (
            "jobs",
            ["-j1", "--group=default=1"],
            2,
            "--group default=1: --workers says how many workers that group has\n",
        ),
    ],
)
def test_K1_what_is_wrong_with_groups_is_told(
    write: Write, procq: Run, entry: str, flags: list[str], code: int, told: str
) -> None:
    write(JOBS)
    done = procq("run", f"jobs.py:{entry}", *flags)

    assert (done.code, done.out) == (code, "")
    assert f"procq: error: {told}" in done.err


@pytest.mark.processes
def test_K1_a_group_that_no_task_named_is_told_at_the_end(write: Write, procq: Run) -> None:
    write(JOBS)
    done = procq("run", "jobs.py:jobs", "-j1", "--group=heavy=1", "--group=haevy=1", "-q")

    assert (done.code, done.err.splitlines()) == (
        0,
        ["warning: --group haevy=1: no task named the group 'haevy'; tasks name it by their option: group='haevy'"],
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("entry", "flags"),
    [
        ("jobs", ["--group=heavy=1", "--group=default=1"]),
        ("spawning", ["-j1", "--group=heavy=1"]),
        ("unknown_later", ["-j1", "--group=gpu=1"]),
        ("marked", ["-j1", "--group=busy=1", "--set=heavy.group=busy"]),
    ],
)
def test_K1_nothing_is_said_of_a_group_that_a_task_named(
    write: Write, procq: Run, entry: str, flags: list[str]
) -> None:
    """It may be spawned, come late, or name it by a flag."""
    write(JOBS)
    done = procq("run", f"jobs.py:{entry}", *flags)

    assert done.code == 0, done.err
    assert "warning" not in done.err


@pytest.mark.processes
def test_K1_nothing_is_said_of_groups_where_the_entry_broke_off(write: Write, procq: Run) -> None:
    """A task that it did not come to may have named the group."""
    write(
        JOBS
        + """
def breaks():
    yield light.spec(1)
    raise KeyError
"""
    )

    assert "warning" not in procq("run", "jobs.py:breaks", "-j1", "--group=heavy=1").err
