"""`procq run`: a jobs file."""

from procq.cli.parser import run_parser
from procq.cli.settings import settings_from


def execute(arguments: list[str]) -> int:
    """Run the tasks that a jobs file lists."""
    parsed = run_parser().parse_args(arguments)
    settings = settings_from(parsed)
    from procq.cli.entry import Target, load_entry  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.run import run  # noqa: PLC0415

    target = Target.read(parsed.target, is_module=parsed.is_module)
    named = f":{target.function}" if target.function is not None else ""
    return run(lambda: load_entry(target), settings, command=target.command + named)
