"""`procq doctor` says what is so, warns of what will be missed, and fails only where procq cannot run."""

import importlib.metadata
import json
import os
import resource
from pathlib import Path

import pytest

from procq.cli import checkup, console
from procq.cli.checkup import Findings
from procq.engine.local.machine import total_memory, usable_cpus
from procq.queue import Queue


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.processes
def test_where_procq_can_run_it_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = console(["doctor"])

    out = capsys.readouterr().out
    assert code == 0
    topics = [line.split()[0] for line in out.splitlines()]
    assert topics[:8] == ["procq", "cpus", "memory", "descriptors", "state", "extras", "lacks", "task"]
    assert out.endswith("procq can run here\n")
    assert not (here / ".procq").exists()


@pytest.mark.processes
def test_json_has_the_figures(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console(["doctor", "--json"])

    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is True
    assert facts["problems"] == []
    assert facts["cpus"]["usable"] == usable_cpus()
    assert facts["cpus"]["affinity"] == len(os.sched_getaffinity(0))
    assert total_memory() in {facts["memory"]["limit"], facts["memory"]["machine"]}
    assert facts["descriptors"]["soft"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert facts["state"] == {"path": str(here / ".procq"), "exists": False, "writable": True}
    assert facts["task"]["runs"] is True


def test_a_task_that_does_not_run_is_a_problem_and_makes_the_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Queue, "start", refuse)
    monkeypatch.setattr(Queue, "__enter__", refuse)

    code = console(["doctor"])

    out = capsys.readouterr().out
    assert code == 1
    assert "problem: a task does not run: OSError: [Errno 24] Too many open files\n" in out
    assert out.endswith("procq cannot run here\n")


def test_few_descriptors_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (66, 4096))
    found = Findings()

    checkup._descriptors(found)

    assert found.lines == [("descriptors", "66 at most, enough for 0 workers")]
    assert "ulimit -n 4096" in found.warnings[0]


def test_no_limit_of_descriptors_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    found = Findings()

    checkup._descriptors(found)

    assert found.facts["descriptors"] == {"soft": None, "hard": None, "enough_for": None}
    assert not found.warnings


def test_the_quota_of_a_container_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "cgroup_quota", lambda: 1.5)
    found = Findings()

    checkup._cpus(found)

    assert "cgroup quota: 1.5" in found.lines[0][1]
    assert found.facts["cpus"]["quota"] == 1.5


def test_a_file_in_place_of_the_state_directory_is_warned_of(here: Path) -> None:
    (here / ".procq").touch()
    found = Findings()

    checkup._state(found)

    assert found.facts["state"]["writable"] is False
    assert "runs here leave no record" in found.warnings[0]


def test_what_the_system_lacks_is_told_with_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    found = Findings()

    checkup._features(found)

    assert found.lines == [("lacks", "memfd_create: share() does not work")]
    assert found.facts["lacks"] == {"missing": ["memfd_create"]}


def test_extras_are_told_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["textual>=1; extra == 'tui'", 'pytest>=9; extra == "test"', "psutil", 'psutil>=5; extra == "more"']

    class About:
        def get_all(self, _name: str) -> list[str]:
            return ["tui", "test", "more"]

    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: About())
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: wanted)
    monkeypatch.setattr(checkup, "_is_installed", lambda name: name != "textual")
    found = Findings()

    checkup._extras(found)

    assert found.facts["extras"] == {"present": {"more": True, "tui": False}}
    assert found.lines == [("extras", "more present, tui missing")]
