"""`procq trace`: the attempts of a run as a table, as JSON lines, or for Perfetto."""

import json
from typing import Final

from procq.cli.exits import Exit
from procq.cli.parser import CommandParser, add_run_arguments

_EPILOG: Final = "Open what `--format chrome` writes in https://ui.perfetto.dev."


def execute(arguments: list[str]) -> int:
    """Write the attempts of a run to standard output."""
    parser = CommandParser(
        prog="procq trace", description="Write the attempts of a run, one each line.", epilog=_EPILOG
    )
    parser.add_argument(
        "--format", choices=("tsv", "jsonl", "chrome"), default="tsv", help="a table (default), JSON, or a timeline"
    )
    add_run_arguments(parser)
    parsed = parser.parse_args(arguments)
    from procq.cli import trace  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.data import write_texts  # noqa: PLC0415
    from procq.cli.reading import events_in, find_run  # noqa: PLC0415

    events = events_in(find_run(parsed.state, parsed.run).events_path)
    match parsed.format:
        case "tsv":
            write_texts((trace.HEADER, *map(trace.tsv_line, trace.rows_of(events))))
        case "jsonl":
            write_texts(json.dumps(row) + "\n" for row in trace.rows_of(events))
        case _:
            write_texts([json.dumps(trace.chrome_of(events)) + "\n"])
    return Exit.OK
