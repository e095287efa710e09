"""The commands themselves: reads the line, calls what does the work, and turns its end into a code.

This is the one place that shows errors of use and bugs, so that they look alike everywhere:
`procq: error: WHAT`, where, `hint: DO THIS`.
"""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from procq.cli.exits import CommandLineError, Exit
from procq.cli.terminal import standard_error
from procq.errors import EngineError, InternalError, ProcqError

if TYPE_CHECKING:
    from procq.cli.entry import Entry


def console(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the entry point of the `procq` script.

    Args:
        argv: The arguments, without the program's name; default: those of the process.

    Returns:
        The exit code, one of `Exit`.  A run that was interrupted does not return: the process
        dies by the signal.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _shielded(lambda: _dispatch(arguments))


def main(jobs: "Entry", argv: Sequence[str] | None = None) -> NoReturn:
    """Give a script the flags of `procq run`, for the tasks that `jobs` lists; then exit.

    Call it at the end of the script, under `if __name__ == "__main__":`, so that `procq run` can
    load the same file.  The functions of the script travel to the workers by reference: the file
    is loaded once more under a name of its own, as `procq run` loads it.

    Args:
        jobs: The entry: a function of the script, its parameters set with `-p NAME=VALUE`, that
            returns the tasks to run.
        argv: The arguments, without the program's name; default: those of the process.

    Raises:
        JobsFileError: It is reached inside a worker, or while a jobs file is being loaded.
        SystemExit: Always otherwise, with the exit code.
    """
    from procq.cli.script import refuse_while_loading, script_entry  # noqa: PLC0415 - keeps `import procq` light

    refuse_while_loading()
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(_shielded(lambda: _run_script(lambda: script_entry(jobs), arguments)))


def _dispatch(arguments: list[str]) -> int:
    """Run the command that the arguments name."""
    from procq.cli.parser import check_command  # noqa: PLC0415

    if not arguments or arguments[0].startswith("-"):
        return _without_command(arguments)
    command, *rest = arguments
    check_command(command)
    return _execute(command, rest)


def _execute(command: str, rest: list[str]) -> int:
    """Run a command, of which there is a module with the same name."""
    from importlib import import_module  # noqa: PLC0415

    execute: Callable[[list[str]], int] = import_module(f"procq.cli.commands.{command}").execute
    return execute(rest)


def _without_command(arguments: list[str]) -> int:
    """Do what `procq` does without a command: its help, its version, or an error."""
    from procq.cli.parser import command_parser  # noqa: PLC0415

    parser = command_parser()
    if parser.parse_args(arguments).version:
        return _execute("version", [])
    raise CommandLineError("no command given", hint="procq run FILE; procq --help lists the commands")


def _run_script(entry: "Callable[[], Entry]", arguments: list[str]) -> int:
    """Run the entry of a script."""
    from pathlib import Path  # noqa: PLC0415

    from procq.cli.configuration import read  # noqa: PLC0415
    from procq.cli.parser import run_parser  # noqa: PLC0415

    prog = f"python {Path(sys.argv[0]).name}"
    _, settings = read(run_parser(prog, with_target=False), arguments, near=lambda _: Path(sys.argv[0]).parent)
    from procq.cli.run import run  # noqa: PLC0415

    return run(entry, settings, command=prog)


def _shielded(body: Callable[[], int]) -> int:
    """Call `body`, and turn whatever it raises into words and an exit code."""
    try:
        return int(body())
    except CommandLineError as error:
        standard_error().error(error)
        return Exit.USAGE
    except KeyboardInterrupt:
        import signal  # noqa: PLC0415

        from procq.cli.signals import die_by  # noqa: PLC0415

        standard_error().line("interrupted")
        return die_by(signal.SIGINT)
    except Exception as error:  # noqa: BLE001 - the outermost place: what comes here must be told, whatever it is
        if isinstance(error, ProcqError) and not isinstance(error, InternalError):
            standard_error().error(error)
            return Exit.USAGE if isinstance(error, EngineError) else Exit.JOBS_FILE
        return _bug()


def _bug() -> int:
    """Show the error being handled as a bug of procq."""
    import traceback  # noqa: PLC0415

    terminal = standard_error()
    for line in traceback.format_exc().splitlines():
        terminal.line(line)
    terminal.error("this is a bug in procq; please report it with the lines above")
    return Exit.BUG
