"""What a run writes for machines: its directory with `run.json` and `events.jsonl`, `--events`, `--trace`.

Opens them, has the feed tell them, and closes them at the end.  Nothing of this ever fails a run that
has begun: what cannot be written is told once, and the run goes on without.
"""

import heapq
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, cast, final

from procq.cli.exits import CommandLineError, Exit
from procq.cli.feed import Feed
from procq.cli.lines import Flusher, LineFile, Warn
from procq.cli.settings import RunSettings
from procq.cli.state import DEFAULT_DIRECTORY, DEFAULT_KEEP_RUNS, RunDirectory, StateDirectory, StateError
from procq.errors import ProcqError
from procq.events import Event, own_version

if TYPE_CHECKING:
    from procq.cli.captured import Wrote

_STDOUT: Final = 1
#: How many `slowest:` names where nobody says.
_SLOWEST: Final = 5


def about_entry(entry: Callable[..., object]) -> dict[str, object]:
    """Return what `run.started` and `run.json` say of an entry."""
    import inspect  # noqa: PLC0415 - the producer has it anyway

    code = getattr(inspect.unwrap(entry), "__code__", None)
    return {
        "file": None if code is None else str(Path(code.co_filename).resolve()),
        "entry": getattr(entry, "__name__", None),
    }


@final
class Outputs:
    """The machine outputs of one run; a context manager, for a run that ends by an error.

    Args:
        settings: What the flags say.
        feed: Tells them; before the queue is made.

    Attributes:
        directory: The run's own; None: it has none.
        slowest: The longest attempts.
    """

    __slots__ = (
        "_about", "_events", "_feed", "_files", "_flusher", "_has_ended", "_is_output_broken", "_settings",
        "_trace", "_wants_state", "directory", "slowest",
    )  # fmt: skip

    def __init__(self, settings: RunSettings, feed: Feed) -> None:
        self._settings = settings
        self._feed = feed
        self._wants_state = not settings.no_state
        self.directory: RunDirectory | None = None
        self._about: dict[str, object] = {}
        self._events: list[LineFile] = []
        self._trace: LineFile | None = None
        self._files: list[LineFile] = []
        self._flusher: Flusher | None = None
        self._has_ended = False
        #: whether what attempts wrote could not be kept
        self._is_output_broken = False
        if self._wants_state or settings.events_target is not None:
            from procq.cli.jsonline import line_of  # noqa: PLC0415 - json, which a run without events does not need

            feed.previews.is_wanted = True
            feed.add(lambda event: self._write_event(line_of(event)), what="the events file")
        if settings.trace is not None:
            from procq.cli.trace import Attempts, tsv_line  # noqa: PLC0415

            feed.previews.is_wanted = True
            attempts = Attempts()
            feed.add(lambda event: self._write_rows(map(tsv_line, attempts.take(event))), what="--trace")
        self.slowest = Slowest(_SLOWEST if settings.durations is None else settings.durations)
        if self.slowest.number and (self._wants_state or settings.durations is not None):
            feed.add(self.slowest.take, what="--durations", kinds=["attempt.ended"])

    def _write_event(self, line: str) -> None:
        for file in self._events:
            file.add(line)

    def _write_rows(self, lines: "map[str]") -> None:
        for line in lines:
            if self._trace is not None:
                self._trace.add(line)

    # --- the beginning -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def open(self, about: Mapping[str, object], *, warn: Warn) -> None:
        """Open all files; before the queue is started.

        Args:
            about: What is known of the run.
            warn: Told of what cannot be written, in any thread.

        Raises:
            CommandLineError: A flag names what cannot be written.
        """
        target, trace = self._settings.events_target, self._settings.trace
        if target is not None:
            descriptor, is_owned = _opened(target)
            self._events.append(self._file(LineFile(descriptor, what="--events", warn=warn, is_owned=is_owned)))
        if trace is not None:
            self._trace = self._file(_opened_trace(trace, warn))
        if self._wants_state:
            self._open_state(about, warn)
        self._feed.about = {
            **{name: about[name] for name in ("file", "entry", "params", "command")},
            "state_dir": None if self.directory is None else str(self.directory.path.resolve()),
        }
        if self._files:
            self._flusher = Flusher(self._files)
            self._flusher.start()

    def _file(self, file: LineFile) -> LineFile:
        self._files.append(file)
        return file

    def _open_state(self, about: Mapping[str, object], warn: Warn) -> None:
        """Make the run's directory, or say why it has none."""
        place = StateDirectory(Path(self._settings.state or DEFAULT_DIRECTORY))
        try:
            directory = place.make_run()
        except StateError as error:
            warn(f"no state is kept: {error}")
            return
        keep = self._settings.keep_runs
        place.prune(DEFAULT_KEEP_RUNS if keep is None else keep)
        try:
            self._about = _about_run(directory, about)
            directory.write_about(self._about)
            descriptor = os.open(directory.events_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            warn(f"no state is kept: {directory.path}: {error.strerror}")
            directory.release()
            return
        self.directory = directory
        self._feed.run = directory.id
        self._events.append(self._file(LineFile(descriptor, what=str(directory.events_path), warn=warn)))

    def keep_output(self, task_id: str, attempts: "Sequence[Wrote]", *, warn: Warn) -> None:
        """Keep what the attempts of a task wrote; after a write that failed no more."""
        from procq.cli import captured  # noqa: PLC0415 - for runs that capture

        if self.directory is None or self._is_output_broken:
            return
        try:
            captured.keep(self.directory.output_path, task_id, attempts)
        except OSError as error:
            self._is_output_broken = True
            warn(f"{self.directory.output_path} stopped: {error.strerror}")

    # --- the end -------------------------------------------------------------------------------

    def end(self, exit_code: int, verdict: str, *, warn: Warn) -> None:
        """Tell how the run has ended, and close all; ending again does nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        event = self._feed.end(exit_code)
        if self._flusher is not None:
            self._flusher.stop()
        for file in self._files:
            file.close()
        if self.directory is not None:
            counts = None if event is None else event["counts"]
            end = {"ended_at": time.time(), "exit_code": int(exit_code), "verdict": verdict, "counts": counts}
            try:
                self.directory.write_about(self._about | end)
            except OSError as error:
                warn(f"{self.directory.path}/run.json cannot be written: {error.strerror}")
            self.directory.release()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is not None:  # the words for it are others', and a warning beside them would be too many
            self.end(_code_of(error), "FAILED", warn=lambda _text: None)


def _about_run(directory: RunDirectory, about: Mapping[str, object]) -> dict[str, object]:
    """Return what `run.json` says at the beginning."""
    return {
        "v": 1,
        "run": directory.id,
        **about,
        "argv": sys.argv,
        "cwd": str(Path.cwd()),
        "pid": os.getpid(),
        "host": os.uname().nodename,
        "procq": own_version(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "started_at": time.time(),
    }


def _code_of(error: BaseException) -> int:
    """Return the exit code that an error will have."""
    match error:
        case CommandLineError():
            return Exit.USAGE
        case KeyboardInterrupt():
            return 130
        case ProcqError():
            return Exit.JOBS_FILE
        case _:
            return Exit.BUG


def _opened(target: str) -> tuple[int, bool]:
    """Return the descriptor that `--events` names, and whether it is ours to close.

    Raises:
        CommandLineError: It cannot be written.
    """
    if target == "-":
        return _STDOUT, False
    try:
        if target.startswith("fd:"):
            number = int(target.removeprefix("fd:"))
            os.fstat(number)
            return number, False
        return os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666), True
    except ValueError:
        raise CommandLineError(f"--events {target}: expected a number after fd:") from None
    except OSError as error:
        raise CommandLineError(f"--events {target}: {error.strerror}") from None


def _opened_trace(path: str, warn: Warn) -> LineFile:
    """Open the file that `--trace` names to add to it, with a header if it has nothing.

    Raises:
        CommandLineError: It cannot be written.
    """
    from procq.cli.trace import HEADER  # noqa: PLC0415 - as above

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        about = os.fstat(descriptor)
    except OSError as error:
        raise CommandLineError(f"--trace {path}: {error.strerror}") from None
    file = LineFile(descriptor, what="--trace", warn=warn)
    if not (stat.S_ISREG(about.st_mode) and about.st_size):
        file.add(HEADER)
    return file


@final
class Slowest:
    """Remembers the longest attempts.

    Args:
        number: How many.
    """

    __slots__ = ("_heap", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        #: seconds, id and number of the attempt, the shortest first
        self._heap: list[tuple[float, str, int]] = []

    def take(self, event: Event) -> None:
        """Take the end of an attempt."""
        heap, run_s = self._heap, cast("float", event["run_s"])
        if len(heap) < self.number:
            heapq.heappush(heap, (run_s, cast("str", event["id"]), cast("int", event["attempt"])))
        elif run_s > heap[0][0]:
            heapq.heapreplace(heap, (run_s, cast("str", event["id"]), cast("int", event["attempt"])))

    def named(self) -> list[tuple[str, float]]:
        """Return what they are called, and seconds, longest first."""
        return [
            (task_id if attempt == 1 else f"{task_id} (attempt {attempt})", run_s)
            for run_s, task_id, attempt in sorted(self._heap, reverse=True)
        ]
