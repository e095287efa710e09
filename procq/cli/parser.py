"""The command line as it is typed: commands, flags and what their values mean.

Imports argparse and leaves, nothing that runs tasks, so that `--help` answers at once.
"""

import argparse
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from procq import units
from procq.cli.exits import CommandLineError

if TYPE_CHECKING:
    from procq.cli.terminal import ColorChoice

_DURATION_HINT: Final = "write 250ms, 1.5s, 5m or 1h30m"
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")

_EXIT_CODES: Final = """\
exit codes:
  0  every task succeeded (retries included)
  1  a task failed or was cancelled, or was not started because of -x
  2  wrong flags or parameters
  3  the jobs file can't be used; nothing was started
  4  --deadline stopped the run before the work was done
  5  no tasks produced (with --allow-empty: 0)
An interrupted run dies by the signal after clean-up (a shell shows 130 or 143).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many workers: a number, a share of the usable CPUs, or neither (all of them)."""

    count: int | None = None
    percent: float | None = None

    @property
    def is_given(self) -> bool:
        """Whether the user said anything but "auto"."""
        return self.count is not None or self.percent is not None

    def resolve(self, usable: int) -> int:
        """Return the number of workers on a machine with that many usable CPUs, at least 1."""
        if self.count is not None:
            return self.count
        return usable if self.percent is None else max(1, int(usable * self.percent / 100))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the flags of `run` say; also those of a script that calls `procq.main`."""

    workers: Workers
    params: Sequence[str]  #: each NAME=VALUE
    max_attempts: int | None  #: for tasks that don't say
    timeout_s: float | None  #: for tasks that don't say
    deadline_s: float | None  #: how long the run may take from its start
    stop_at_failure: bool
    stop_timeout_s: float | None
    kill_grace_s: float | None
    max_tasks_per_worker: int | None
    max_memory_per_worker: int | None  #: bytes, as the next two
    recycle_memory: int | None
    min_free_memory: int | None
    verbosity: int  #: -1 quiet, 0, 1 verbose
    color: "ColorChoice"
    progress: str  #: auto, plain, off
    interval_s: float | None
    allow_empty: bool
    lookahead: int | None
    results: str | None  #: a file, "-" for standard output, or None


class _Parser(argparse.ArgumentParser):
    """argparse with procq's way to say what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing; the caller knows how errors are shown and which code they have."""
        unknown = re.fullmatch(r"unrecognized arguments: (.*)", message)
        if unknown is None:
            raise CommandLineError(message.removeprefix("argument "), hint=f"{self.prog} --help")
        wrong = unknown[1].split()[0]
        close = difflib.get_close_matches(wrong.partition("=")[0], list(self._option_string_actions), n=1)
        hint = f"did you mean `{close[0]}`? all flags: {self.prog} --help" if close else f"{self.prog} --help"
        raise CommandLineError(f"unknown argument: {wrong}", hint=hint)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - argparse's signature
        """Parse and refuse what is left over with this parser's own flags as candidates."""
        known, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return known


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq`, without what its commands take."""
    parser = _Parser(
        prog="procq",
        usage="procq COMMAND ...",
        description="Run CPU-heavy Python on all cores, and know what happened to every piece.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<9} {what}" for name, what in COMMANDS.items())
        + "\n\nprocq COMMAND --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


#: The commands and what they do.
COMMANDS: Final = {"run": "run a jobs file", "version": "print the version"}


def version_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq version`."""
    return _Parser(prog="procq version", description="Print the version.", allow_abbrev=False)


def check_command(name: str) -> None:
    """Refuse a command that does not exist.

    Raises:
        CommandLineError: With the closest command as a hint.
    """
    if name in COMMANDS:
        return
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    if close:
        hint = f"did you mean `procq {close[0]}`?"
    elif name.endswith(".py") or ".py:" in name:
        hint = f"did you mean `procq run {name}`?"
    else:
        hint = f"commands are {', '.join(COMMANDS)}"
    raise CommandLineError(f"no such command: {name}", hint=hint)


def run_parser(prog: str = "procq run", *, with_target: bool = True) -> argparse.ArgumentParser:
    """Return the parser of `procq run`, or of a script that calls `procq.main`.

    Args:
        prog: How the program is called.
        with_target: Whether FILE[:ENTRY] is to be named; a script is its own.
    """
    parser = _Parser(
        prog=prog,
        description="Run the tasks that a jobs file lists.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if with_target:
        parser.add_argument("target", metavar="FILE[:ENTRY]", help="the jobs file, and which of its functions")
        parser.add_argument("-m", dest="is_module", action="store_true", help="FILE is a module's dotted name")
    _add_run_flags(parser)
    return parser


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add what decides how a run goes and what it shows."""
    add = parser.add_argument
    add("-j", "--workers", type=_workers, default=Workers(), metavar="N|N%|auto",
        help="worker processes (auto: one a usable CPU)")  # fmt: skip
    add("-p", dest="params", action="append", default=[], metavar="NAME=VALUE",
        help="a parameter of the entry; again for a list")  # fmt: skip
    add("--max-attempts", type=_at_least_one("--max-attempts"), metavar="N",
        help="tries in all, for tasks that don't say (1)")  # fmt: skip
    add("--timeout", type=_duration("--timeout", positive=True), metavar="D",
        help="limit of one attempt, for tasks that don't say (none)")  # fmt: skip
    add("--deadline", type=_deadline, metavar="D|HH:MM", help="end the run by then, exit code 4")
    halting = parser.add_mutually_exclusive_group()
    halting.add_argument("-x", dest="stop_at_failure", action="store_true", help="stop at the first failure")
    halting.add_argument("-k", dest="stop_at_failure", action="store_false", help="keep going after failures (default)")
    add("--stop-timeout", type=_duration("--stop-timeout"), metavar="D",
        help="time running attempts get after a stop signal (8s after SIGTERM, no limit after Ctrl-C)")  # fmt: skip
    add("--kill-grace", type=_duration("--kill-grace"), metavar="D",
        help="between asking an attempt to stop and killing it (1s)")  # fmt: skip
    add("--max-tasks-per-worker", type=_at_least_one("--max-tasks-per-worker"), metavar="N",
        help="replace a worker after so many attempts (never)")  # fmt: skip
    add("--max-memory-per-worker", type=_size("--max-memory-per-worker"), metavar="S",
        help="kill a worker that holds more; fails its attempt (no limit)")  # fmt: skip
    add("--recycle-memory", type=_size("--recycle-memory"), metavar="S",
        help="replace a worker that holds more after an attempt (as above)")  # fmt: skip
    add("--min-free-memory", type=_size("--min-free-memory"), metavar="S",
        help="start nothing beside what runs while less is available (no bound)")  # fmt: skip
    add("--lookahead", type=_at_least_one("--lookahead"), metavar="N",
        help="tasks read ahead of the workers (1000, or 20 a worker if that is more)")  # fmt: skip
    add("--allow-empty", action="store_true", help="no tasks is fine")
    add("--results", metavar="F.jsonl", help="write one line a task: id, status, value; - is standard output")
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("-q", dest="verbosity", action="store_const", const=-1, default=0, help="only what went wrong")
    noise.add_argument("-v", dest="verbosity", action="store_const", const=1, help="full tracebacks")
    add("--color", choices=("auto", "always", "never"), default="auto", help="colour (auto: on a terminal)")
    add("--progress", choices=("auto", "plain", "off"), default="auto",
        help="a line in place on a terminal, else plain lines")  # fmt: skip
    add(
        "--interval",
        type=_duration("--interval", positive=True),
        metavar="D",
        help="between two progress lines (0.2s; plain: 30s)",
    )


def settings_from(parsed: argparse.Namespace) -> RunSettings:
    """Return the settings that the parsed flags stand for."""
    return RunSettings(
        workers=parsed.workers,
        params=tuple(parsed.params),
        max_attempts=parsed.max_attempts,
        timeout_s=parsed.timeout,
        deadline_s=parsed.deadline,
        stop_at_failure=parsed.stop_at_failure,
        stop_timeout_s=parsed.stop_timeout,
        kill_grace_s=parsed.kill_grace,
        max_tasks_per_worker=parsed.max_tasks_per_worker,
        max_memory_per_worker=parsed.max_memory_per_worker,
        recycle_memory=parsed.recycle_memory,
        min_free_memory=parsed.min_free_memory,
        verbosity=parsed.verbosity,
        color=parsed.color,
        progress=parsed.progress,
        interval_s=parsed.interval,
        allow_empty=parsed.allow_empty,
        lookahead=parsed.lookahead,
        results=parsed.results,
    )


# --- values ------------------------------------------------------------------------------------


def _workers(text: str) -> Workers:
    """Read N, N% or auto."""
    if text == "auto":
        return Workers()
    match = re.fullmatch(r"(\d+)(%?)", text)
    if match is None or int(match[1]) < 1:
        raise CommandLineError(f"-j {text}: expected a number of at least 1, a share like 50%, or auto")
    number = int(match[1])
    return Workers(percent=number) if match[2] else Workers(count=number)


class _at_least_one:  # noqa: N801 - reads as a function where it is used
    """Reads a whole number of at least 1 for a flag."""

    def __init__(self, flag: str) -> None:
        self._flag = flag

    def __call__(self, text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise CommandLineError(f"{self._flag}={text}: must be a whole number of at least 1")
        return int(text)


class _duration:  # noqa: N801
    """Reads a duration for a flag, as seconds."""

    def __init__(self, flag: str, *, positive: bool = False) -> None:
        self._flag = flag
        self._positive = positive

    def __call__(self, text: str) -> float:
        try:
            value = units.seconds(text, field=self._flag)
        except units.UnitError:
            raise CommandLineError(f'{self._flag}="{text}": can\'t read this duration', hint=_DURATION_HINT) from None
        if self._positive and value == 0:
            raise CommandLineError(f"{self._flag}={text}: must be longer than 0", hint="leave it out for no limit")
        return value


class _size:  # noqa: N801
    """Reads a size for a flag, as bytes."""

    def __init__(self, flag: str) -> None:
        self._flag = flag

    def __call__(self, text: str) -> int:
        try:
            return units.size_bytes(text, field=self._flag)
        except units.UnitError:
            raise CommandLineError(
                f'{self._flag}="{text}": can\'t read this size', hint="write 500MB, 4GB or 512MiB"
            ) from None


def _deadline(text: str) -> float:
    """Read a duration, or a time of day as the seconds until it comes next."""
    return deadline_s(text, datetime.now().astimezone())


def deadline_s(text: str, now: datetime) -> float:
    """Return how many seconds after `now` the deadline is.

    Args:
        text: A duration, or HH:MM: the next time the clock shows that, tomorrow if it has
            passed today.
        now: The time, in the local zone.

    Raises:
        CommandLineError: It is neither.
    """
    match = _CLOCK.fullmatch(text)
    if match is None:
        try:
            return units.seconds(text, field="--deadline")
        except units.UnitError:
            raise CommandLineError(
                f'--deadline="{text}": neither a duration nor a time of day',
                hint=f"{_DURATION_HINT}, or 06:00",
            ) from None
    wall = now.replace(tzinfo=None)
    at = wall.replace(hour=int(match[1]), minute=int(match[2]), second=0, microsecond=0)
    if at <= wall:
        at += timedelta(days=1)
    # Back to the zone last, so that a night with a change of clocks is as long as it is.
    return (at.astimezone() - now).total_seconds()
