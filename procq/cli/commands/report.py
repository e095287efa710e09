"""`procq report`: a run that was, or is, as one HTML file, made again from its events."""

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from procq.cli.exits import CommandLineError, Exit
from procq.cli.parser import CommandParser

_EVENTS: Final = "events.jsonl"


@final
class _Run:
    """The events of a run, and what its directory says of it."""

    def __init__(self, events: Path) -> None:
        self.events = events
        self.about = _read(events.with_name("run.json"))

    @property
    def began(self) -> float:
        """When it began, as far as that is known."""
        told = self.about.get("started_at")
        return float(told) if isinstance(told, int | float) else self.events.stat().st_mtime


def execute(arguments: list[str]) -> int:
    """Write the report of a run."""
    parser = CommandParser(
        prog="procq report",
        description="Write the report of a run as one HTML file, also of one that was killed or goes on still.",
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="its name or a part that begins only that; or an events file; default: the newest",
    )
    parser.add_argument("-o", "--output", metavar="F", help="the file; default: report.html beside the events")
    parser.add_argument("--state", metavar="DIR", default=".procq", help="where the runs are; default: .procq")
    parsed = parser.parse_args(arguments)
    run = _find(parsed.run, Path(parsed.state))
    target = Path(parsed.output) if parsed.output else run.events.with_name("report.html")
    from procq.eventfile import read_events  # noqa: PLC0415 - not needed for --help
    from procq.report import render, save  # noqa: PLC0415

    try:
        events = read_events(run.events)
        first = next(events, None)
        if first is None:
            raise CommandLineError(f"{run.events} has no events", hint="procq runs lists the runs that have")
        page = render(itertools.chain([first], events), about=run.about)
    except OSError as error:
        raise CommandLineError(f"can't read {run.events}: {error.strerror}") from None
    try:
        save(page, target)
    except OSError as error:
        raise CommandLineError(f"can't write {target}: {error.strerror}", hint="another place: -o FILE") from None
    sys.stderr.write(f"report: {target}\n")
    return Exit.OK


def _find(name: str | None, state: Path) -> _Run:
    """Return the run that was named.

    Raises:
        CommandLineError: There is none, or there are several.
    """
    if name is not None and Path(name).is_file():
        return _Run(Path(name))
    if name is not None and (Path(name) / _EVENTS).is_file():
        return _Run(Path(name) / _EVENTS)
    runs = {run.events.parent.name: run for run in _runs(state)}
    if not runs:
        raise CommandLineError(f"no runs in {state}", hint="procq run FILE makes one; --state DIR looks elsewhere")
    if name is None:
        return max(runs.values(), key=lambda run: run.began)
    fitting = [name] if name in runs else sorted(each for each in runs if each.startswith(name))
    if len(fitting) == 1:
        return runs[fitting[0]]
    if fitting:
        raise CommandLineError(f"several runs begin with {name}", hint=", ".join(fitting[:5]))
    newest = sorted(runs, key=lambda each: -runs[each].began)
    raise CommandLineError(f"no such run: {name}", hint=f"the newest are {', '.join(newest[:5])}")


def _runs(state: Path) -> Iterator[_Run]:
    for events in state.glob(f"*/{_EVENTS}"):
        yield _Run(events)


def _read(file: Path) -> dict[str, object]:
    """Return what a JSON file says; nothing if it cannot be read, since a report can do without."""
    try:
        told = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}
