"""`procq run`: a jobs file."""

from pathlib import Path
from typing import Any

from procq.cli.configuration import read
from procq.cli.parser import run_parser


def execute(arguments: list[str]) -> int:
    """Run the tasks that a jobs file lists."""
    parsed, settings = read(run_parser(), arguments, near=_folder)
    from procq.cli.entry import Target, load_entry  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.run import run  # noqa: PLC0415

    target = Target.read(parsed.target, is_module=parsed.is_module)
    named = f":{target.function}" if target.function is not None else ""
    return run(lambda: load_entry(target), settings, command=target.command + named)


def _folder(parsed: Any) -> Path:  # noqa: ANN401 - what argparse makes
    """Return the folder of the jobs file; of a module that is where it is called."""
    from procq.cli.entry import Target  # noqa: PLC0415 - after the flags are known to be right

    return Path() if parsed.is_module else Path(Target.read(parsed.target).name).parent
