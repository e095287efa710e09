"""`procq runs`: the runs in the state directory, and how they went."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from procq.cli.exits import Exit
from procq.cli.parser import CommandParser, add_state_flag


def execute(arguments: list[str]) -> int:
    """List the runs, newest first."""
    parser = CommandParser(prog="procq runs", description="List the runs in the state directory, newest first.")
    parser.add_argument("--json", action="store_true", dest="as_json", help="one JSON object a line")
    add_state_flag(parser)
    parsed = parser.parse_args(arguments)
    from pathlib import Path  # noqa: PLC0415 - after the flags are known to be right

    from procq.cli.data import write_texts  # noqa: PLC0415
    from procq.cli.state import StateDirectory  # noqa: PLC0415

    rows = [_row(run) for run in reversed(StateDirectory(Path(parsed.state)).runs())]
    write_texts((json.dumps(row) + "\n" for row in rows) if parsed.as_json else _lines(rows))
    return Exit.OK


def _row(run: Any) -> dict[str, Any]:  # noqa: ANN401 - a RunDirectory, whose module is imported late
    """Return what is known of a run: what it wrote down, and what it is now."""
    from procq.cli.reading import condition_of, ended_at  # noqa: PLC0415

    condition = condition_of(run)
    about = {"run": run.id, "exit_code": None, "verdict": None, "counts": None, **run.about()}
    elapsed_s = max(0.0, ended_at(run, condition) - run.started_at())
    return about | {"condition": condition, "started_at": run.started_at(), "elapsed": elapsed_s}


def _lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each run."""
    from procq.cli.terminal import printable  # noqa: PLC0415
    from procq.units import format_seconds  # noqa: PLC0415

    for row in rows:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["started_at"]))
        words = row["verdict"] or row["condition"]
        params = " ".join(f"{name}={value}" for name, value in (row.get("params") or {}).items())
        what = f"{row.get('command', '?')} {params}".rstrip()
        counts = _counts(row["counts"])
        yield (
            printable(f"{row['run']}  {began}  {format_seconds(row['elapsed']):>7}  {words:<8}  {what}{counts}") + "\n"
        )


def _counts(counts: Mapping[str, int] | None) -> str:
    """Return "  (12 succeeded, 1 failed)"."""
    told = [f"{number} {status}" for status, number in (counts or {}).items() if number]
    return f"  ({', '.join(told)})" if told else ""
