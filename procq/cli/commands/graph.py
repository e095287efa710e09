"""`procq graph`: what a jobs file would run, and what needs what, as a drawing or as data."""

import argparse
from typing import TYPE_CHECKING, Final

from procq.cli.exits import CommandLineError, Exit
from procq.cli.parser import CommandParser, add_target
from procq.cli.settings import add_flags

if TYPE_CHECKING:
    from procq.cli.blueprint import By

#: Beyond this a drawing of single tasks shows nothing any more.
MOST_TASKS: Final = 150
#: The settings that say what the entry lists.
_WITH: Final = frozenset({"params", "params_file", "first"})
_FORMATS: Final = ("mermaid", "dot", "svg", "json")


def graph_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq graph`."""
    parser = CommandParser(
        prog="procq graph",
        description="Call the entry of a jobs file, run none of its tasks, and write their graph to standard output.",
    )
    add_target(parser)
    parser.add_argument("--format", choices=_FORMATS, default="mermaid", help="how it is written (mermaid)")
    parser.add_argument(
        "--by", choices=("type", "task"), default="type", help="a node for each type, or for each task (type)"
    )
    add_flags(parser, only=_WITH)
    return parser


def execute(arguments: list[str]) -> int:
    """Write the graph of a jobs file."""
    parsed = graph_parser().parse_args(arguments)
    from procq.cli import parameters, producer  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.blueprint import FORMATS, Blueprint  # noqa: PLC0415
    from procq.cli.data import write_text  # noqa: PLC0415
    from procq.cli.entry import Target, load_entry  # noqa: PLC0415

    target = Target.read(parsed.target, is_module=parsed.is_module)
    entry = load_entry(target)
    bound = parameters.bind(entry, parsed.params, file=parsed.params_file)
    work = producer.checked_iterator(entry, producer.call(entry, bound))
    if parsed.first is not None:
        work = producer.first(work, parsed.first)
    blueprint = Blueprint(parsed.by)
    for spec in producer.specs(entry, work):
        blueprint.add(spec)
        _check_size(blueprint.total, parsed.by, parsed.format)
    title = f"{target.shown}:{getattr(entry, '__name__', 'jobs')}"
    write_text("\n".join(FORMATS[parsed.format](blueprint.nodes(), blueprint.edges(), parsed.by, title)) + "\n")
    return Exit.OK


def _check_size(total: int, by: "By", form: str) -> None:
    """Refuse to draw more single tasks than a drawing can show.

    Raises:
        CommandLineError: With what shows them.
    """
    from procq.cli.blueprint import PICTURES  # noqa: PLC0415

    if by == "task" and form in PICTURES and total > MOST_TASKS:
        raise CommandLineError(
            f"--by task: more than {MOST_TASKS} tasks, which no drawing can show",
            hint="--by type counts them; --first N draws some; --format json or dot has all",
        )
