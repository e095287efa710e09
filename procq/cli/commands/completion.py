"""`procq completion`: the completion script of a shell, as it was shipped."""

import argparse
from pathlib import Path
from typing import Final

from procq.cli.exits import CommandLineError, Exit
from procq.cli.parser import CommandParser

_SHELLS: Final = ("bash", "zsh", "fish")
_HOW: Final = """\
to use it:
  bash   procq completion bash > ~/.local/share/bash-completion/completions/procq
  zsh    procq completion zsh > DIR/_procq     (DIR being one of $fpath, before compinit)
  fish   procq completion fish > ~/.config/fish/completions/procq.fish
"""


def completion_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq completion`."""
    parser = CommandParser(
        prog="procq completion",
        description="Print the completion script of a shell.",
        epilog=_HOW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=_SHELLS, help="which shell")
    return parser


def execute(arguments: list[str]) -> int:
    """Print a script."""
    shell: str = completion_parser().parse_args(arguments).shell
    path = Path(__file__).parents[1] / "completion" / f"procq.{shell}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CommandLineError(f"{path}: {error.strerror}", hint="install procq again") from None
    from procq.cli.data import write_text  # noqa: PLC0415

    write_text(text)
    return Exit.OK
