"""`procq logs`: what the attempts of a task wrote to their standard streams."""

import time
from collections.abc import Iterator
from typing import Any, Final

from procq.cli.exits import CommandLineError, Exit
from procq.cli.parser import CommandParser, add_state_flag

_EPILOG: Final = "There is something to show where the run was started with --output failed, all or files."
_INTERVAL_S: Final = 0.3


def execute(arguments: list[str]) -> int:
    """Show what a task wrote."""
    parser = CommandParser(prog="procq logs", description="Show what the attempts of a task wrote.", epilog=_EPILOG)
    parser.add_argument("id", metavar="ID", help="the task's id or how it begins")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the task has ended")
    parser.add_argument("--run", metavar="RUN", help="the run's id or how it begins (default: the newest)")
    add_state_flag(parser)
    parsed = parser.parse_args(arguments)
    from procq.cli.data import write_texts  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli.reading import find_run  # noqa: PLC0415

    write_texts(_texts(find_run(parsed.state, parsed.run), parsed.id, follow=parsed.follow))
    return Exit.OK


def _texts(run: Any, prefix: str, *, follow: bool) -> Iterator[str]:  # noqa: ANN401 - a RunDirectory, imported late
    """Yield what there is, and with `follow` what comes.

    Raises:
        CommandLineError: There is no such task, or nothing of it.
    """
    from procq.cli import captured  # noqa: PLC0415
    from procq.cli.reading import Picture, Tail, task_named  # noqa: PLC0415

    tail, picture = Tail(run.events_path), Picture()
    for event in tail.read():
        picture.take(event)
    task_id = task_named(prefix, picture.statuses)
    told: set[tuple[int, str]] = set()
    while True:
        is_over = not follow or picture.has_ended(task_id) or not run.is_alive()
        for one in captured.read(run.output_path, task_id):
            if (one.attempt, one.stream) not in told:
                told.add((one.attempt, one.stream))
                yield f"== {task_id}  attempt {one.attempt}  {one.stream}\n{one.text.removesuffix(chr(10))}\n"
        if is_over:
            break
        time.sleep(_INTERVAL_S)
        for event in tail.read():
            picture.take(event)
    if not told:
        raise CommandLineError(
            f"nothing is kept of what {task_id} wrote", hint="procq run FILE --output files keeps it"
        )
