"""How a command ends: its exit codes, and the error for what was typed wrong.

The codes are documented, tested and stable; a code is never a count of failures.  A run that
was interrupted has no code: it dies by the signal (`procq.cli.signals`).
"""

from enum import IntEnum

from procq.errors import UsageError


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0  #: every task succeeded, retries included
    FAILED = 1  #: a task failed, was cancelled, or was not started because of -x or --max-failures
    USAGE = 2  #: wrong flags or parameters, or an unsupported platform
    JOBS_FILE = 3  #: the jobs file cannot be used
    DEADLINE = 4  #: --deadline stopped the run before the work was done
    NO_TASKS = 5  #: the entry produced no tasks, and --allow-empty was not given
    BUG = 70  #: an error of procq's own; the number is EX_SOFTWARE of BSD's sysexits.h


class CommandLineError(UsageError):
    """A flag or parameter is wrong; nothing was started.

    Args:
        what: What is wrong, one line.
        hint: What to do, or empty.
    """

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(what + (f"\n  hint: {hint}" if hint else ""))
