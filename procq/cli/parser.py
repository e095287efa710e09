"""The command line as it is typed: its commands, and how a wrong one is told.

Imports argparse and leaves, nothing that runs tasks, so that `--help` answers at once.
"""

import argparse
import difflib
import re
from typing import Any, Final, NoReturn

from procq.cli.exits import CommandLineError
from procq.cli.settings import add_flags

#: What the help of commands that run tasks ends with.
EXIT_CODES: Final = """\
exit codes:
  0  every task succeeded (retries included)
  1  a task failed or was cancelled, or was not started because of -x or --max-failures
  2  wrong flags or parameters
  3  the jobs file can't be used; at most what its generator had yielded was started
  4  --deadline stopped the run before the work was done
  5  no tasks produced (with --allow-empty: 0)
An interrupted run dies by the signal after clean-up (a shell shows 130 or 143).
"""


class CommandParser(argparse.ArgumentParser):
    """argparse with procq's way to say what is wrong; it abbreviates no flag."""

    def __init__(self, **how: Any) -> None:  # noqa: ANN401 - what argparse takes
        super().__init__(allow_abbrev=False, **how)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing; the caller knows how errors are shown and which code they have."""
        unknown = re.fullmatch(r"unrecognized arguments: (.*)", message)
        if unknown is None:
            raise CommandLineError(message.removeprefix("argument "), hint=f"{self.prog} --help")
        wrong = unknown[1].split()[0]
        meant = self._meant(wrong.partition("=")[0])
        joint = " " if meant.endswith("?") else "; "
        hint = f"{meant}{joint}all flags: {self.prog} --help" if meant else f"{self.prog} --help"
        raise CommandLineError(f"unknown argument: {wrong}", hint=hint)

    def _meant(self, wrong: str) -> str:
        """Say what may be meant by a flag that is none; empty if nobody can tell."""
        close = difflib.get_close_matches(wrong, list(self._option_string_actions), n=1)
        return f"did you mean `{close[0]}`?" if close else ""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - argparse's signature
        """Parse and refuse what is left over with this parser's own flags as candidates."""
        known, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return known


class _RunParser(CommandParser):
    """The parser of `procq run`, which knows where that is set for which there is no flag."""

    def _meant(self, wrong: str) -> str:
        """Say what may be meant by a flag that is none; empty if nobody can tell."""
        if not wrong.startswith("--"):
            return super()._meant(wrong)
        from procq.cli.elsewhere import for_flag  # noqa: PLC0415 - imports what tasks are made of

        return for_flag(wrong) or super()._meant(wrong)


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq`, without what its commands take."""
    parser = CommandParser(
        prog="procq",
        usage="procq COMMAND ...",
        description="Run CPU-heavy Python on all cores, and know what happened to every piece.",
        epilog="commands:\n"
        + "\n".join(f"  {name:<11} {what}" for name, what in COMMANDS.items())
        + "\n\nprocq COMMAND --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser


#: The commands and what they do.
COMMANDS: Final = {
    "run": "run a jobs file",
    "map": "call a function for each of some texts",
    "show": "list entries, parameters and task functions of a jobs file",
    "graph": "draw what a jobs file would run",
    "runs": "list past runs and those that are alive",
    "status": "show a run: tasks by status, what runs, what failed",
    "logs": "show what the attempts of a task wrote",
    "trace": "write the attempts of a run as a table or a timeline",
    "report": "write the report of a run as one HTML file",
    "completion": "print the completion script of a shell",
    "doctor": "say what this machine gives procq, and what it lacks",
    "version": "print the version",
}


def check_command(name: str) -> None:
    """Refuse a command that does not exist.

    Raises:
        CommandLineError: With the closest command as a hint.
    """
    if name in COMMANDS:
        return
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    if close:
        hint = f"did you mean `procq {close[0]}`?"
    elif name.endswith(".py") or ".py:" in name:
        hint = f"did you mean `procq run {name}`?"
    else:
        hint = f"commands are {', '.join(COMMANDS)}"
    raise CommandLineError(f"no such command: {name}", hint=hint)


def add_state_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of all commands that read what runs have left."""
    parser.add_argument("--state", metavar="DIR", default=".procq", help="where runs keep their state (.procq)")


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what all commands take that are about one run."""
    parser.add_argument("run", metavar="RUN", nargs="?", help="the run's id or how it begins (default: the newest)")
    add_state_flag(parser)


def run_parser(prog: str = "procq run", *, with_target: bool = True) -> argparse.ArgumentParser:
    """Return the parser of `procq run`, or of a script that calls `procq.main`.

    Args:
        prog: How the program is called.
        with_target: Whether FILE[:ENTRY] is to be named; a script is its own.
    """
    parser = _RunParser(
        prog=prog,
        description="Run the tasks that a jobs file lists.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if with_target:
        add_target(parser)
    add_flags(parser)
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    """Have FILE[:ENTRY] named, or a module with -m."""
    parser.add_argument("target", metavar="FILE[:ENTRY]", help="the jobs file, and which of its functions")
    parser.add_argument("-m", dest="is_module", action="store_true", help="FILE is a module's dotted name")
