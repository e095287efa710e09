"""`procq status`: where the tasks of a run are, while it runs and afterwards."""

import json
import time
from collections.abc import Iterator
from typing import Any, Final

from procq.cli.exits import Exit
from procq.cli.parser import CommandParser, add_run_arguments

#: More lines than that nobody reads; `--json` has all.
_SHOWN: Final = 20


def execute(arguments: list[str]) -> int:
    """Show one run."""
    parser = CommandParser(
        prog="procq status", description="Show a run: tasks by status, what runs, what failed.", epilog=_EPILOG
    )
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON object")
    add_run_arguments(parser)
    parsed = parser.parse_args(arguments)
    from procq.cli.data import write_texts  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.reading import find_run  # noqa: PLC0415

    status = status_of(find_run(parsed.state, parsed.run))
    write_texts([json.dumps(status) + "\n"] if parsed.as_json else _lines(status))
    return Exit.OK


_EPILOG: Final = "A run that was killed is told of as far as it came."


def status_of(run: Any) -> dict[str, Any]:  # noqa: ANN401 - a RunDirectory, whose module is imported late
    """Return what `--json` writes."""
    from procq.cli.reading import Picture, condition_of, ended_at, events_in  # noqa: PLC0415

    condition = condition_of(run)  # before the events: one that ends meanwhile has them all
    picture = Picture(events_in(run.events_path))
    now = ended_at(run, condition)
    about: dict[str, Any] = {
        "command": None,
        "file": None,
        "entry": None,
        "params": {},
        "exit_code": None,
        "verdict": None,
    }
    about |= {name: value for name, value in run.about().items() if name != "counts"}
    return {
        **about,
        "v": 1,
        "run": run.id,
        "condition": condition,
        "started_at": run.started_at(),
        "elapsed": max(0.0, now - run.started_at()),
        "counts": picture.counts(),
        "running": [{**one._asdict(), "run_s": max(0.0, now - one.started_at)} for one in picture.running()],
        "failures": [one._asdict() for one in picture.failures()],
        "warnings": picture.warnings,
    }


def _lines(status: dict[str, Any]) -> Iterator[str]:
    """Yield what people are shown."""
    from procq.cli.terminal import printable  # noqa: PLC0415

    for line in _texts(status):
        yield printable(line) + "\n"


def _texts(status: dict[str, Any]) -> Iterator[str]:
    from procq.units import format_seconds  # noqa: PLC0415

    params = "".join(f"  {name}={value}" for name, value in status["params"].items())
    yield f"run {status['run']}  {status['command']}{params}"
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status["started_at"]))
    words = {
        "running": "running",
        "ended": f"{status['verdict']}, exit code {status['exit_code']},",
        "died": "died without an end,",
    }
    yield f"{words[status['condition']]} after {format_seconds(status['elapsed'])}  (began {began})"
    told = [f"{number} {name}" for name, number in status["counts"].items() if number]
    yield "  ".join(["tasks:", *told]) if told else "no tasks"
    verb = "running" if status["condition"] == "running" else "ran then"
    for one in status["running"][:_SHOWN]:
        yield f"  {verb}  {_named(one)}  attempt {one['attempt']}  {format_seconds(one['run_s'])}"
    yield from _rest(len(status["running"]), verb)
    for one in status["failures"][:_SHOWN]:
        times = f"  {one['attempts']} attempts" if one["attempts"] > 1 else ""
        yield f"  failed   {_named(one)}{times}  {' '.join((one['error'] or one['outcome'] or '').split())}"
    yield from _rest(len(status["failures"]), "failed ")
    for text in status["warnings"][:_SHOWN]:
        yield f"  warning  {text}"


def _named(one: dict[str, Any]) -> str:
    """Return a task as people recognise it."""
    return f"{one['id']} ({one['args']})" if one["args"] else str(one["id"])


def _rest(number: int, verb: str) -> Iterator[str]:
    """Say how many were not shown."""
    if number > _SHOWN:
        yield f"  {verb}  and {number - _SHOWN} more; --json lists all"
