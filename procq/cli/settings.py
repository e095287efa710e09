"""What the flags of `run` say: each flag and the setting that it makes are declared in one place, `RunSettings`.

The parser, the settings and what a queue or a task is given of them all come from there.  Imports
argparse and leaves, nothing that runs tasks, so that `--help` answers at once.
"""

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from procq import units
from procq.cli.exits import CommandLineError
from procq.halting import FailureLimit, OnFailure
from procq.slots import DEFAULT_GROUP

if TYPE_CHECKING:
    from procq.cli.terminal import ColorChoice

_DURATION_HINT: Final = "write 250ms, 1.5s, 5m or 1h30m"
#: What -k sets: no number of failures that a run could have.
KEEP_GOING: Final = 0
#: What -x sets, apart from the 1 of --max-failures 1, so that messages can name the flag that was given.
AT_FIRST: Final = "first"
#: What POSIX has at most.
_NICEST: Final = 19
_CLOCK: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


# --- values ------------------------------------------------------------------------------------


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


def _workers(flag: str, text: str) -> Workers:
    """Read N, N% or auto."""
    if text == "auto":
        return Workers()
    match = re.fullmatch(r"(\d+)(%?)", text)
    if match is None or int(match[1]) < 1:
        raise CommandLineError(f"{flag} {text}: expected a number of at least 1, a share like 50%, or auto")
    number = int(match[1])
    return Workers(percent=number) if match[2] else Workers(count=number)


def _at_least_one(flag: str, text: str) -> int:
    """Read a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise CommandLineError(f"{flag}={text}: must be a whole number of at least 1")
    return int(text)


def _whole(flag: str, text: str) -> int:
    """Read a whole number."""
    if not text.isdecimal():
        raise CommandLineError(f"{flag}={text}: must be a whole number")
    return int(text)


def _niceness(flag: str, text: str) -> int:
    """Read by how much a process is to be nicer."""
    if not text.isdecimal() or not 1 <= int(text) <= _NICEST:
        raise CommandLineError(f"{flag}={text}: must be a whole number from 1 to {_NICEST}")
    return int(text)


def _number_of(flag: str, text: str, *, form: str, hint: str = "") -> tuple[str, int]:
    """Read a name, of a group or a type, and a number of at least 1 for it."""
    name, _, number = text.rpartition("=")
    if not name:
        raise CommandLineError(f"{flag} {text}: expected {form}", hint=hint)
    return name, _at_least_one(f"{flag} {name}", number)


def _failures(flag: str, text: str) -> int | str:
    """Read a whole number of at least 1, or a share."""
    value = int(text) if text.isdecimal() else text
    try:
        FailureLimit(value)
    except units.UnitError:
        raise CommandLineError(
            f"{flag}={text}: expected a number of at least 1, or a share of at most 100% like 5%"
        ) from None
    return value


def _duration(flag: str, text: str) -> float:
    """Read a duration, as seconds."""
    try:
        return units.seconds(text, field=flag)
    except units.UnitError:
        raise CommandLineError(f'{flag}="{text}": can\'t read this duration', hint=_DURATION_HINT) from None


def _positive_duration(flag: str, text: str) -> float:
    """Read a duration that is longer than 0."""
    value = _duration(flag, text)
    if value == 0:
        raise CommandLineError(f"{flag}={text}: must be longer than 0", hint="leave it out for no limit")
    return value


def _size(flag: str, text: str) -> int:
    """Read a size, as bytes."""
    try:
        return units.size_bytes(text, field=flag)
    except units.UnitError:
        raise CommandLineError(f'{flag}="{text}": can\'t read this size', hint="write 500MB, 4GB or 512MiB") from None


def _deadline(_flag: str, text: str) -> float:
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


# --- flags -------------------------------------------------------------------------------------


def _flag(
    *names: str,
    read: Callable[[str, str], object] | None = None,
    help: str,  # noqa: A002 - as argparse has it
    queue: str = "",
    task: str = "",
    **how: object,
) -> Any:  # noqa: ANN401 - stands for the value
    """Declare a flag with a value.

    Args:
        names: What is typed; errors show the first.
        read: Reads the value, given the flag and the text.
        help: What it does.
        queue: The parameter of `Queue` that it sets.
        task: The option that it sets for tasks that don't say.
        how: What else argparse is told.
    """
    how["help"] = help
    if read is not None:
        how["type"] = partial(read, names[0])
    return field(metadata={"flags": [(names, how)], "queue": queue, "task": task})


def _switch(*flags: tuple[str, object, str], default: object) -> Any:  # noqa: ANN401
    """Declare flags without a value, of which one may be given: each with what it sets, and what that does.

    A flag with two names has them in one text.
    """
    ways = [
        (tuple(names.split()), {"action": "store_const", "const": value, "default": default, "help": what})
        for names, value, what in flags
    ]
    return field(metadata={"flags": ways, "queue": "", "task": ""})


def _either(*declared: Any, queue: str = "") -> Any:  # noqa: ANN401
    """Declare flags of which only one may be given, as they all make the same setting; None if none is."""
    flags = [flag for one in declared for flag in one.metadata["flags"]]
    return field(metadata={"flags": flags, "queue": queue, "task": ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the flags of `run` say; also those of a script that calls `procq.main`.

    What was not given is None unless it says otherwise.
    """

    workers: Workers = _flag(  # noqa: RUF009 - it makes a `field`
        "-j",
        "--workers",
        read=_workers,
        default=Workers(),
        metavar="N|N%|auto",
        help="worker processes (auto: one a usable CPU)",
    )
    #: pairs of a name and a number, each name once
    groups: Sequence[tuple[str, int]] = _flag(
        "--group",
        read=partial(_number_of, form="NAME=N, such as heavy=2"),
        action="append",
        default=[],
        metavar="NAME=N",
        help="workers for tasks of that group; again for other groups",
    )
    params: Sequence[str] = _flag(
        "-p", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the entry; again for a list"
    )
    params_file: str | None = _flag(
        "--params-file", metavar="F.toml|json", help="parameters of the entry from a file; -p wins over it"
    )
    #: None: all of them
    first: int | None = _flag(
        "--first", read=_at_least_one, metavar="N", help="only the first N tasks of the entry, and what they need"
    )
    dry_run: bool = _switch(
        ("-n --dry-run", True, "list what would run, to standard output; run nothing"), default=False
    )
    max_attempts: int | None = _flag(
        "--max-attempts",
        read=_at_least_one,
        metavar="N",
        task="max_attempts",
        help="tries in all, for tasks that don't say (1)",
    )
    timeout_s: float | None = _flag(
        "--timeout",
        read=_positive_duration,
        metavar="D",
        task="timeout",
        help="limit of one attempt, for tasks that don't say (none)",
    )
    #: how long the run may take from its start
    deadline_s: float | None = _flag(
        "--deadline", read=_deadline, metavar="D|HH:MM", help="end the run by then, exit code 4"
    )
    #: `KEEP_GOING` (-k, wins over the jobs file) and `AT_FIRST` (-x) stand for the flags that take no number
    max_failures: int | str | None = _either(
        _switch(
            ("-x", AT_FIRST, "stop at the first failure: --max-failures 1"),
            ("-k", KEEP_GOING, "keep going after failures (default)"),
            default=None,
        ),
        _flag(
            "--max-failures",
            read=_failures,
            metavar="N|N%",
            help="stop when so many tasks have failed, or such a share of them",
        ),
        queue="max_failures",
    )
    on_failure: OnFailure | None = _flag(  # noqa: RUF009 - as above
        "--on-failure",
        choices=("finish", "kill"),
        queue="on_failure",
        help="what becomes then of running attempts (finish)",
    )
    stop_timeout_s: float | None = _flag(
        "--stop-timeout",
        read=_duration,
        metavar="D",
        help="time running attempts get after a stop signal (8s after SIGTERM, no limit after Ctrl-C)",
    )
    kill_grace_s: float | None = _flag(
        "--kill-grace",
        read=_duration,
        metavar="D",
        queue="kill_grace",
        help="between asking an attempt to stop and killing it (1s)",
    )
    max_tasks_per_worker: int | None = _flag(
        "--max-tasks-per-worker",
        read=_at_least_one,
        metavar="N",
        queue="max_tasks_per_worker",
        help="replace a worker after so many attempts (never)",
    )
    #: bytes, as the next two
    max_memory_per_worker: int | None = _flag(
        "--max-memory-per-worker",
        read=_size,
        metavar="S",
        queue="max_memory_per_worker",
        help="kill a worker that holds more; fails its attempt (no limit)",
    )
    recycle_memory: int | None = _flag(
        "--recycle-memory",
        read=_size,
        metavar="S",
        queue="recycle_memory",
        help="replace a worker that holds more after an attempt (as above)",
    )
    min_free_memory: int | None = _flag(
        "--min-free-memory",
        read=_size,
        metavar="S",
        queue="min_free_memory",
        help="start nothing beside what runs while less is available (no bound)",
    )
    #: pairs of a type and a number, each type once
    limits: Sequence[tuple[str, int]] = _flag(
        "--limit",
        read=partial(_number_of, form="TYPE=N", hint="such as --limit fetch=4"),
        action="append",
        default=[],
        metavar="TYPE=N",
        help="run at most so many tasks of a type at once; again for others",
    )
    max_pending: int | None = _flag(
        "--max-pending",
        read=_at_least_one,
        metavar="N",
        queue="max_pending",
        help="tasks that wait at most; then the entry waits (no bound)",
    )
    policy: Literal["strict", "aging", "fair"] | None = _flag(
        "--policy",
        choices=("strict", "aging", "fair"),
        help="who is next: priority, priority and wait, or a share for each level (strict)",
    )
    sets: Sequence[str] = _flag(
        "--set",
        action="append",
        default=[],
        metavar="TYPE.OPTION=VALUE",
        help="set an option of all tasks of a type, whatever they say; again for others",
    )
    lookahead: int | None = _flag(
        "--lookahead",
        read=_at_least_one,
        metavar="N",
        help="tasks read ahead of the workers (1000, or 20 a worker if that is more)",
    )
    nice: int | None = _flag(
        "--nice", read=_niceness, metavar="N", help="lower the priority of the run's processes by N"
    )
    allow_empty: bool = _switch(("--allow-empty", True, "no tasks is fine"), default=False)
    #: a file, or "-" for standard output
    results: str | None = _flag(
        "--results", metavar="F.jsonl", help="write one line a task: id, status, value; - is standard output"
    )
    #: a file, "-" for standard output, or "fd:N"
    events: str | None = _flag(
        "--events", metavar="F|-|fd:N", help="write each event as a line of JSON; - is standard output"
    )
    as_json: bool = _switch(("--json", True, "--events -, and no other words but errors"), default=False)
    trace: str | None = _flag("--trace", metavar="F", help="add one line an attempt to this table (TSV)")
    durations: int | None = _flag(
        "--durations",
        read=_whole,
        metavar="N",
        help="name the N slowest tasks at the end (5 after a run of 10s or more)",
    )
    state: str | None = _flag("--state", metavar="DIR", help="where runs keep their state (.procq)")
    no_state: bool = _switch(("--no-state", True, "keep none"), default=False)
    keep_runs: int | None = _flag(
        "--keep-runs", read=_at_least_one, metavar="N", help="runs whose state is kept, this one included (20)"
    )
    #: None: tasks write to the streams of the run
    output: Literal["failed", "all", "none", "files"] | None = _flag(
        "--output",
        choices=("failed", "all", "none", "files"),
        help="capture what tasks write: show it of failed ones, of all, drop it, or only keep it for procq logs",
    )
    #: -1 quiet, 0, 1 verbose
    verbosity: int = _switch(("-q", -1, "only what went wrong"), ("-v", 1, "full tracebacks"), default=0)
    color: "ColorChoice" = _flag(  # noqa: RUF009 - as above
        "--color", choices=("auto", "always", "never"), default="auto", help="colour (auto: on a terminal)"
    )
    progress: Literal["auto", "live", "plain", "off"] = _flag(
        "--progress",
        choices=("auto", "live", "plain", "off"),
        default="auto",
        help="lines redrawn in place, or plain ones now and then (auto: live on a terminal)",
    )
    interval_s: float | None = _flag(
        "--interval", read=_positive_duration, metavar="D", help="between two looks (live: 0.2s; plain: 30s)"
    )
    ascii_only: bool = _switch(("--ascii", True, "nothing but ASCII in what is redrawn"), default=False)

    @property
    def events_target(self) -> str | None:
        """Where events go: a file, "-" or "fd:N"; None: nowhere."""
        return "-" if self.as_json else self.events

    def for_queue(self) -> dict[str, object]:
        """Return the parameters of `Queue` that were given."""
        given = self._given("queue")
        if self.output is not None:
            given["capture"] = True
        if given.get("max_failures") == KEEP_GOING:
            given["max_failures"] = None
        elif given.get("max_failures") == AT_FIRST:
            given["max_failures"] = 1
        return given

    def failure_limit(self) -> str:
        """Return how the bound on failures was given, for messages."""
        if self.max_failures is None:
            return "max_failures"  # in the jobs file
        return "-x" if self.max_failures == AT_FIRST else f"--max-failures={self.max_failures}"

    def for_tasks(self) -> dict[str, object]:
        """Return the task options that were given for tasks that don't say."""
        return self._given("task")

    def _given(self, whose: str) -> dict[str, object]:
        named = [(one.metadata[whose], getattr(self, one.name)) for one in fields(self) if one.metadata[whose]]
        return {name: value for name, value in named if value is not None}


def add_flags(
    parser: argparse.ArgumentParser, *, without: Collection[str] = (), only: Collection[str] | None = None
) -> None:
    """Add every flag, in the order of the settings.

    Args:
        parser: Gets them.
        without: Settings that have no flag here; they stay as they are when none is given.
        only: If given, the only settings that have.
    """
    for setting in fields(RunSettings):
        if setting.name in without or (only is not None and setting.name not in only):
            _, how = setting.metadata["flags"][0]
            parser.set_defaults(**{setting.name: how.get("default")})
            continue
        flags: Sequence[tuple[Sequence[str], Mapping[str, Any]]] = setting.metadata["flags"]
        place = parser if len(flags) == 1 else parser.add_mutually_exclusive_group()
        for names, how in flags:
            place.add_argument(*names, dest=setting.name, **how)


def settings_from(parsed: argparse.Namespace) -> RunSettings:
    """Return the settings that the parsed flags stand for.

    Raises:
        CommandLineError: Two flags say the same thing of one group or one type.
    """
    values = {setting.name: getattr(parsed, setting.name) for setting in fields(RunSettings)}
    _refuse_twice("--group", values["groups"])
    _refuse_twice("--limit", values["limits"])
    for name in ("groups", "limits", "params", "sets"):
        values[name] = tuple(values[name])  # argparse appends to a list
    settings = RunSettings(**values)
    _refuse_at_odds(settings)
    default = dict(settings.groups).get(DEFAULT_GROUP)
    if default is not None and settings.workers.is_given:
        raise CommandLineError(
            f"--group {DEFAULT_GROUP}={default}: --workers says how many workers that group has",
            hint="give one of them",
        )
    return settings


def _refuse_at_odds(settings: RunSettings) -> None:
    """Refuse flags of which one undoes the other."""
    if settings.as_json and settings.events is not None:
        raise CommandLineError(f"--json and --events {settings.events}: --json is --events -", hint="give one of them")
    if settings.events_target == "-" and settings.results == "-":
        given = "--json" if settings.as_json else "--events -"
        raise CommandLineError(f"{given} and --results - both write to standard output", hint="give one of them a file")
    if settings.no_state and settings.state is not None:
        raise CommandLineError(f"--no-state and --state {settings.state}", hint="give one of them")


def _refuse_twice(flag: str, pairs: Sequence[tuple[str, int]]) -> None:
    """Refuse a name that was given two numbers: the user has forgotten the first, or meant another name."""
    seen: dict[str, int] = {}
    for name, number in pairs:
        if name in seen:
            raise CommandLineError(
                f"{flag} {name} is given twice: {name}={seen[name]} and {name}={number}", hint="leave one of them out"
            )
        seen[name] = number
