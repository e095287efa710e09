"""`procq report`: a run that was, or is, as one HTML file, made again from its events."""

import itertools
import sys
from pathlib import Path

from procq.cli.exits import CommandLineError, Exit
from procq.cli.parser import CommandParser
from procq.cli.state import RunDirectory


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
    from procq.eventfile import read_events  # noqa: PLC0415 - not needed for --help
    from procq.report import render, save  # noqa: PLC0415

    found = _find(parsed.run, Path(parsed.state))
    target = Path(parsed.output) if parsed.output else found.with_name("report.html")
    try:
        events = read_events(found)
        first = next(events, None)
        if first is None:
            raise CommandLineError(f"{found} has no events", hint="procq runs lists the runs that have")
        page = render(itertools.chain([first], events), about=RunDirectory(found.parent).about())
    except OSError as error:
        raise CommandLineError(f"can't read {found}: {error.strerror}") from None
    try:
        save(page, target)
    except OSError as error:
        raise CommandLineError(f"can't write {target}: {error.strerror}", hint="another place: -o FILE") from None
    sys.stderr.write(f"report: {target}\n")
    return Exit.OK


def _find(name: str | None, state: Path) -> Path:
    """Return the events file of the run that was named.

    Raises:
        CommandLineError: There is none, or there are several.
    """
    if name is not None:
        given = Path(name)
        for events in (given, RunDirectory(given).events_path):
            if events.is_file():
                return events
    runs = {events.parent.name: RunDirectory(events.parent) for events in state.glob("*/events.jsonl")}
    if not runs:
        raise CommandLineError(f"no runs in {state}", hint="procq run FILE makes one; --state DIR looks elsewhere")
    newest = sorted(runs.values(), key=RunDirectory.started_at, reverse=True)
    if name is None:
        return newest[0].events_path
    fitting = [name] if name in runs else sorted(each for each in runs if each.startswith(name))
    if len(fitting) == 1:
        return runs[fitting[0]].events_path
    if fitting:
        raise CommandLineError(f"several runs begin with {name}", hint=", ".join(fitting[:5]))
    raise CommandLineError(f"no such run: {name}", hint=f"the newest are {', '.join(run.id for run in newest[:5])}")
