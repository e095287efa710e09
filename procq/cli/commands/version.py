"""`procq version`."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from procq.cli.exits import Exit
from procq.cli.parser import CommandParser


def execute(arguments: list[str]) -> int:
    """Print the version of procq, and that of Python."""
    CommandParser(prog="procq version", description="Print the version.").parse_args(arguments)
    try:
        number = version("procq")
    except PackageNotFoundError:  # run from a source tree
        number = "(not installed)"
    sys.stdout.write(f"procq {number} on Python {platform.python_version()}\n")
    return Exit.OK
