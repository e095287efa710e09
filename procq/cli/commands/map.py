"""`procq map`: a function, called for each of some texts."""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, final

from procq.cli.configuration import read
from procq.cli.exits import CommandLineError
from procq.cli.parser import EXIT_CODES, CommandParser
from procq.cli.settings import add_flags

#: Settings that speak of the parameters of an entry, which a function that is called for items has not.
WITHOUT: Final = ("params", "params_file")

_DESCRIPTION: Final = """\
Call a function for each item, in worker processes.  Items are the arguments, or the lines of standard
input if there is `-` or nothing.  What the function returns is printed, a line an item, in their order:
a text as it is, anything else as JSON, nothing for None.
"""


@final
class _Parser(CommandParser):
    """Takes flags before, between and after the items, which argparse does not do with any number of them."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - argparse's signature
        """Parse the flags, and have the rest as `words`."""
        arguments = list(sys.argv[1:] if args is None else args)
        end = arguments.index("--") if "--" in arguments else len(arguments)
        parsed, words = self.parse_known_args(arguments[:end], namespace)
        wrong = [word for word in words if re.match(r"-[^\d.]", word)]
        if wrong:
            self.error(f"unrecognized arguments: {' '.join(wrong)}")
        parsed.words = [*words, *arguments[end + 1 :]]
        return parsed


def map_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq map`."""
    parser = _Parser(
        prog="procq map",
        usage="procq map [flags] FILE:FUNCTION|MODULE:FUNCTION [ITEM ... | -]",
        description=_DESCRIPTION,
        epilog="Items that begin with - stand after --.\n\n" + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-0", "--null", action="store_true", help="items of standard input end with a null byte, as of find -print0"
    )
    parser.add_argument("--unordered", action="store_true", help="print values as they come")
    add_flags(parser, without=WITHOUT)
    return parser


def execute(arguments: list[str]) -> int:
    """Call a function for each item."""
    parsed, settings = read(map_parser(), arguments, near=_folder)
    if not parsed.words:
        raise CommandLineError("no function given", hint="procq map conv.py:to_parquet a.csv b.csv")
    from procq.cli.items import Items, load_function, read_target  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.printing import Printing  # noqa: PLC0415
    from procq.cli.run import run  # noqa: PLC0415

    typed, *words = parsed.words
    target = read_target(typed)
    items = _items(words, null=parsed.null)
    printing = None if settings.results == "-" else Printing(ordered=not parsed.unordered)
    made = None if printing is None else printing.made
    return run(
        lambda: Items(load_function(target), items, made),
        settings,
        command=f"procq map {typed}",
        printing=printing,
    )


def _folder(parsed: Any) -> Path:  # noqa: ANN401 - what argparse makes
    """Return the folder of the file that is named; of a module that is where it is called."""
    name = parsed.words[0].rpartition(":")[0] if parsed.words else ""
    return Path(name).parent if name.endswith(".py") or "/" in name else Path()


def _items(words: list[str], *, null: bool) -> Iterable[str]:
    """Return the items: what was typed, or what standard input has.

    Raises:
        CommandLineError: There is neither, or both.
    """
    if words and words != ["-"]:
        if "-" in words:
            raise CommandLineError("`-` stands alone: items come from the command line or from standard input")
        if null:
            raise CommandLineError("--null: it is for items of standard input, and there are others")
        return words
    if not words and (sys.stdin is None or sys.stdin.isatty()):
        raise CommandLineError("no items given", hint="add them, or pipe them in: ls *.csv | procq map TARGET -")
    from procq.cli.items import lines  # noqa: PLC0415

    return lines(sys.stdin.fileno(), separator=b"\0" if null else b"\n")
