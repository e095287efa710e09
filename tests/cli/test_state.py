"""The state directory: who shares it, what may go, and how runs are found (contract K2)."""

import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from procq.cli.exits import CommandLineError
from procq.cli.state import RunDirectory, StateDirectory, StateError, fresh_id, is_run_id


@pytest.fixture
def place(tmp_path: Path) -> StateDirectory:
    return StateDirectory(tmp_path / ".procq")


def ended(place: StateDirectory, name: str, started_at: float) -> RunDirectory:
    """Make the directory of a run that has ended."""
    path = place.path / name
    path.mkdir(parents=True)
    run = RunDirectory(path)
    run.write_about({"v": 1, "run": name, "started_at": started_at, "ended_at": started_at + 1})
    return run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_K2_only_its_owner_can_read_it_and_git_does_not_see_it(place: StateDirectory) -> None:
    run = place.make_run()
    run.write_about({})

    assert (mode(place.path), mode(run.path), mode(run.path / "run.json")) == (0o700, 0o700, 0o600)
    assert (place.path / ".gitignore").read_text(encoding="utf-8") == "*\n"


def test_a_folder_that_was_there_gets_no_ignore_file(tmp_path: Path) -> None:
    """`--state .` must not hide a whole project from git."""
    StateDirectory(tmp_path).make_run()

    assert not (tmp_path / ".gitignore").exists()


def test_an_id_is_short_and_looks_like_nothing_else() -> None:
    ids = {fresh_id() for _ in range(2000)}

    assert all(is_run_id(one) for one in ids)
    assert all(len(one) == 4 and one[0].isalpha() and not set(one) & set("iluo01") for one in ids)
    assert len(ids) > 1900
    assert not is_run_id("run1")
    assert not is_run_id("4abc")


def test_two_runs_never_share_a_directory(place: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("procq.cli.state.fresh_id", lambda: next(drawn))

    assert [place.make_run().id, place.make_run().id] == ["aaaa", "bbbb"]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".procq").touch()

    with pytest.raises(StateError, match="is no directory"):
        StateDirectory(tmp_path / ".procq").make_run()


def test_one_of_another_user_is_refused(place: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make_run()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)

    with pytest.raises(StateError, match="belongs to another user"):
        place.make_run()


def test_the_oldest_runs_go(place: StateDirectory) -> None:
    for number, name in enumerate(["cccc", "aaaa", "dddd", "bbbb"]):
        ended(place, name, 100.0 + number)

    place.prune(2)

    assert [run.id for run in place.runs()] == ["dddd", "bbbb"]


def test_a_run_that_is_alive_never_goes_also_when_another_process_prunes(place: StateDirectory) -> None:
    alive = place.make_run()
    alive.write_about({"started_at": 1.0})
    for number, name in enumerate(["zzzz", "yyyy"]):
        ended(place, name, 100.0 + number)
    prune = "import sys; from pathlib import Path; from procq.cli.state import StateDirectory as S; "

    subprocess.run([sys.executable, "-c", f"{prune}S(Path(sys.argv[1])).prune(1)", place.path], check=True)

    assert [run.id for run in place.runs()] == [alive.id]


def test_a_run_that_has_only_just_made_its_directory_does_not_go(place: StateDirectory) -> None:
    young = place.path / "aaaa"
    young.mkdir(parents=True)

    place.prune(0)

    assert young.exists()


def test_other_folders_are_left_alone(place: StateDirectory) -> None:
    (place.path / "mine").mkdir(parents=True)
    (place.path / "notes").mkdir()

    place.prune(0)

    assert (place.path / "notes").exists()


def test_whether_a_run_is_alive_is_told_by_its_lock(place: StateDirectory) -> None:
    run = place.make_run()
    other = RunDirectory(run.path)
    assert other.is_alive()

    run.release()

    assert not other.is_alive()


def test_a_run_that_was_killed_is_not_alive(place: StateDirectory) -> None:
    place.path.mkdir()
    (place.path / "aaaa").mkdir()
    hold = "import os, sys, signal; from pathlib import Path; from procq.cli.state import RunDirectory as R; "
    kill = "r = R(Path(sys.argv[1])); r.hold(); print(r.is_alive()); sys.stdout.flush(); os.kill(os.getpid(), 9)"

    done = subprocess.run(
        [sys.executable, "-c", hold + kill, place.path / "aaaa"], stdout=subprocess.PIPE, text=True, check=False
    )

    assert (done.returncode, done.stdout.strip()) == (-9, "True")
    assert not RunDirectory(place.path / "aaaa").is_alive()


def test_without_locks_the_process_id_must_do(place: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    run = place.make_run()
    run.write_about({"pid": os.getpid(), "started_at": 1.0})
    assert run.is_alive()

    run.write_about({"pid": os.getpid(), "started_at": 1.0, "ended_at": 2.0})

    assert not run.is_alive()


def test_what_a_run_is_is_never_half_written(place: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run = place.make_run()
    run.write_about({"v": 1})

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", fail)
    with pytest.raises(OSError, match="No space left"):
        run.write_about({"v": 1, "ended_at": 2})

    assert run.about() == {"v": 1}
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_a_run_is_found_by_any_beginning_that_is_its_own(place: StateDirectory) -> None:
    for number, name in enumerate(["abcd", "abxy", "kmnp"]):
        ended(place, name, 100.0 + number)

    assert place.find(None).id == "kmnp"
    assert place.find("k").id == "kmnp"
    assert place.find("abc").id == "abcd"
    with pytest.raises(CommandLineError, match="run ab is ambiguous\n  hint: it may be abxy, abcd"):
        place.find("ab")
    with pytest.raises(CommandLineError, match="no such run: zz\n  hint: there is kmnp, abxy, abcd"):
        place.find("zz")


def test_where_there_are_no_runs_that_is_said(place: StateDirectory) -> None:
    with pytest.raises(CommandLineError, match="no runs in"):
        place.find(None)
