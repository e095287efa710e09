"""The state directory: `.procq/` beside where a command is run, a sub-directory for each run.

    .procq/.gitignore            "*": none of this belongs into anybody's repository
    .procq/k7f3/run.json         what the run is; written anew at its end
    .procq/k7f3/events.jsonl     what happened, as it happened

Decides names, modes, who may touch what, and which old runs go.  Knows nothing of queues and tasks.

A run that is alive holds a lock on its own directory, which the system lets go of with the process,
however that dies: no process id has to be believed.
"""

import contextlib
import fcntl
import json
import os
import random
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, final

from procq.cli.exits import CommandLineError

T = TypeVar("T")

DEFAULT_DIRECTORY: Final = ".procq"
DEFAULT_KEEP_RUNS: Final = 20

#: Nothing that looks like something else when it is read out or copied by hand: no i, l, o, u, 0, 1.
#: A letter comes first, so that no id looks like a number.
_LETTERS: Final = "abcdefghjkmnpqrstvwxyz"
_ALPHABET: Final = _LETTERS + "23456789"
_ID_CHARS: Final = 4
#: 652,000 ids: this often in a row two runs meet only where something else is wrong.
_TRIES: Final = 100
#: A directory without a `run.json` may be of a run that begins just now; after so long it is not.
_YOUNG_S: Final = 3600.0
#: Candidates that an error lists.
_LISTED: Final = 8


class StateError(Exception):
    """The state directory cannot be used; a run goes on without."""


def fresh_id() -> str:
    """Return an id for a run."""
    draw = random.SystemRandom()
    return draw.choice(_LETTERS) + "".join(draw.choices(_ALPHABET, k=_ID_CHARS - 1))


def is_run_id(name: str) -> bool:
    """Return whether a directory of this name may be that of a run."""
    return len(name) == _ID_CHARS and name[0] in _LETTERS and set(name) <= set(_ALPHABET)


@final
class RunDirectory:
    """The directory of one run.

    Args:
        path: Where it is.
    """

    __slots__ = ("_lock", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        #: the descriptor that holds the lock; None: this process does not
        self._lock: int | None = None

    @property
    def id(self) -> str:
        """The run's id."""
        return self.path.name

    @property
    def events_path(self) -> Path:
        """Where its events are."""
        return self.path / "events.jsonl"

    @property
    def output_path(self) -> Path:
        """Where is what its attempts wrote."""
        return self.path / "output"

    def hold(self) -> None:
        """Show that the run is alive, as long as this process is."""
        self._lock = _locked(self.path, fcntl.LOCK_EX)

    def release(self) -> None:
        """The run has ended."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_alive(self) -> bool:
        """Return whether the process of the run is there."""
        try:
            descriptor = _locked(self.path, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks: its process id must do
            about = self.about()
            return "ended_at" not in about and _is_process(about.get("pid"))
        os.close(descriptor)
        return False

    def about(self) -> dict[str, Any]:
        """Return what `run.json` says; empty if there is none that can be read."""
        try:
            about = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return about if isinstance(about, dict) else {}

    def write_about(self, about: Mapping[str, object]) -> None:
        """Write `run.json`, so that a reader sees the one before or this one, and nothing between.

        Raises:
            OSError: It cannot be written.
        """
        beside = self.path / f"run.json.{os.getpid()}"
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(about, file, indent=1)
                file.write("\n")
            beside.replace(self.path / "run.json")
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise

    def started_at(self) -> float:
        """Return when the run began, in seconds since 1970."""
        at = self.about().get("started_at")
        if isinstance(at, int | float):
            return at
        try:
            return self.path.stat().st_mtime
        except OSError:  # it has just been removed
            return 0.0

    def remove(self) -> bool:
        """Remove the directory, unless its run is alive or just beginning; return whether it was."""
        try:
            descriptor = _locked(self.path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # alive, or the file system cannot tell
            return False
        try:
            if not self.about() and time.time() - self.path.stat().st_mtime < _YOUNG_S:
                return False
            shutil.rmtree(self.path, ignore_errors=True)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


@final
class StateDirectory:
    """The directory that holds those of the runs.

    Args:
        path: Where it is.
    """

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def make_run(self) -> RunDirectory:
        """Make the directory of a new run, which is alive from then on.

        Raises:
            StateError: That is not possible.
        """
        try:
            self._make()
            for _ in range(_TRIES):
                run = RunDirectory(self.path / fresh_id())
                try:
                    run.path.mkdir(mode=0o700)
                except FileExistsError:
                    continue
                # A file system without locks is no reason to go without all the rest.
                with contextlib.suppress(OSError):
                    run.hold()
                return run
        except OSError as error:
            raise StateError(f"{self.path}: {error.strerror}") from None
        raise StateError(f"{self.path}: found no name for another run")

    def _make(self) -> None:
        """Make the directory, if it is not there."""
        try:
            self.path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            if not self.path.is_dir():
                raise StateError(f"{self.path} is no directory") from None
            # Pickles will be read from there, and who can put one there can have code run.
            if self.path.stat().st_uid != os.geteuid():
                raise StateError(f"{self.path} belongs to another user") from None
            return
        (self.path / ".gitignore").write_text("*\n", encoding="utf-8")

    def runs(self) -> list[RunDirectory]:
        """Return the runs, oldest first."""
        try:
            found = [RunDirectory(path) for path in self.path.iterdir() if is_run_id(path.name) and path.is_dir()]
        except OSError:
            return []
        return sorted(found, key=lambda run: (run.started_at(), run.id))

    def prune(self, keep: int) -> None:
        """Remove the oldest runs that have ended, so that there are at most so many, or all others are alive."""
        runs = self.runs()
        surplus = len(runs) - keep
        for run in runs:
            if surplus <= 0:
                break
            surplus -= run.remove()

    def find(self, prefix: str | None) -> RunDirectory:
        """Return the run whose id begins so; None: the newest.

        Raises:
            CommandLineError: There is none, or more than one.
        """
        runs = self.runs()
        if not runs:
            raise CommandLineError(f"no runs in {self.path}", hint="procq run FILE; --state DIR if they are elsewhere")
        if prefix is None:
            return runs[-1]
        return chosen(prefix, {run.id: run for run in reversed(runs)}, what="run")


def chosen(prefix: str, by_id: Mapping[str, T], *, what: str) -> T:
    """Return the one whose id this is, or begins so.

    Raises:
        CommandLineError: There is none, or more than one.
    """
    if prefix in by_id:
        return by_id[prefix]
    found = [one for one in by_id if one.startswith(prefix)]
    if len(found) == 1:
        return by_id[found[0]]
    if found:
        raise CommandLineError(f"{what} {prefix} is ambiguous", hint=f"it may be {_listed(found)}")
    raise CommandLineError(f"no such {what}: {prefix}", hint=f"there is {_listed(by_id)}" if by_id else "there is none")


def _listed(ids: Iterable[str]) -> str:
    """Return "a, b and 3 more"."""
    names = list(ids)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _locked(path: Path, how: int) -> int:
    """Open a directory and lock it; return the descriptor, with which the lock goes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_process(pid: object) -> bool:
    """Return whether there is a process with that id."""
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
