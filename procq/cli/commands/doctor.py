"""`procq doctor`: what this machine gives procq, what it lacks, and whether a task runs."""

import argparse
import sys
from typing import Final

from procq.cli.exits import CommandLineError, Exit
from procq.cli.parser import CommandParser

_EPILOG: Final = """\
exit codes:
  0  procq can run, whatever it warns of
  1  it cannot
"""


def doctor_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq doctor`."""
    parser = CommandParser(
        prog="procq doctor",
        description="Say what this machine gives procq, what it lacks, and whether a task runs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    return parser


def execute(arguments: list[str]) -> int:
    """Look, and say what was found."""
    parsed = doctor_parser().parse_args(arguments)
    if sys.platform == "win32":
        raise CommandLineError("procq does not run on Windows yet (Linux; macOS best effort)", hint="use WSL")
    from procq.cli.checkup import examine  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.data import write_lines, write_text  # noqa: PLC0415

    found = examine()
    can_run = not found.problems
    if parsed.json:
        from procq.cli.results import json_text  # noqa: PLC0415

        facts = {"ok": can_run, "problems": found.problems, "warnings": found.warnings, **found.facts}
        write_text(json_text(facts) + "\n")
    else:
        lines = [f"{topic:<12} {text}" for topic, text in found.lines]
        lines += [f"warning: {text}" for text in found.warnings] + [f"problem: {text}" for text in found.problems]
        write_lines([*lines, "procq can run here" if can_run else "procq cannot run here"])
    return Exit.OK if can_run else Exit.FAILED
