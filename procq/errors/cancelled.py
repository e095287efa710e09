"""The errors that are also `concurrent.futures`' own (contract M).

Apart, because that module, and with it `logging`, is 6 ms for every program, and hardly any meets one
of these.  Public names are those in `procq.errors`, which finds them here when they are first used.
"""

from concurrent.futures import CancelledError

from procq.errors import TaskError


class TaskCancelled(TaskError, CancelledError):  # noqa: N818 - what befell a task, not a misuse
    """The task was cancelled, by `cancel`, a shutdown or a halt of its queue, or replaced (contract F1, G6, C4)."""

    __module__ = "procq.errors"


class TaskExpired(TaskCancelled):
    """The task was not started before its `expires` (contract C3)."""

    __module__ = "procq.errors"
