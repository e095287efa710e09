"""Every error of procq, in one tree split by whose fault it is (contract M).

Three branches: `UsageError` is raised at the call that was wrong and changes nothing;
`TaskError` is what `result()` raises, the fate of one task; `EngineError` says that
attempts cannot be run at all.  `InternalError` is a bug of procq.

Rules: an error keeps its parts as attributes, builds its message from them, and survives
pickling (`ProcqError.__reduce__`), because errors travel between processes.  This package
imports nothing else from procq.
"""

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from procq.errors.cancelled import TaskCancelled as TaskCancelled, TaskExpired as TaskExpired


class ProcqError(Exception):
    """The root of every error that procq itself raises.

    Subclasses take their parts as arguments and keep them as attributes.
    """

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild from the attributes, so that a constructor with its own signature survives."""
        return (_rebuild, (type(self), self.args, self.__dict__.copy()))


def _rebuild(cls: type[ProcqError], args: tuple[object, ...], state: dict[str, object]) -> ProcqError:
    """Make an error again without calling its constructor (its arguments are its parts)."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


# --- misuse: raised at the call, which then changed nothing ----------------------------------


class UsageError(ProcqError):
    """A call was wrong; nothing was changed by it."""


class _NamedError(UsageError, KeyError):
    """A `KeyError` whose text is its message, not the `repr` of it."""

    def __str__(self) -> str:
        """Return the message as it was written."""
        return str(self.args[0]) if self.args else ""


class DuplicateTaskError(UsageError, ValueError):
    """The id is already used by another task (contract C4, J3)."""

    def __init__(self, task_id: str, detail: str = "", hint: str = "give the new task another id") -> None:
        self.task_id = task_id
        super().__init__(f"id {task_id!r} is already used{f' by {detail}' if detail else ''}; {hint}")


class UnknownTaskError(_NamedError):
    """No task has this id: it was never submitted, or it is already forgotten (contract F5)."""

    def __init__(self, task_id: str, detail: str = "") -> None:
        self.task_id = task_id
        why = detail or "it was never submitted, or it finished and was forgotten (see retention)"
        super().__init__(f"no task {task_id!r}: {why}")


class UnknownDependencyError(_NamedError):
    """A task depends on something that is no known task (contract E1, E5)."""

    def __init__(self, task_id: str, missing: tuple[str, ...], hint: str = "") -> None:
        self.task_id = task_id
        self.missing = missing
        names = ", ".join(repr(name) for name in missing)
        super().__init__(
            f"{task_id} needs {names}, which no task has"
            + (f"; {hint}" if hint else "; submit it first, or in the same submit_many call")
        )


class UnknownHandlerError(_NamedError):
    """No handler is registered under a task's type (contract C2)."""

    def __init__(self, type_name: str, known: tuple[str, ...] = ()) -> None:
        self.type_name = type_name
        self.known = known
        listed = ", ".join(repr(name) for name in known) or "none"
        super().__init__(f"no handler for type {type_name!r}; known are {listed}")


class CycleError(UsageError, ValueError):
    """Tasks depend on each other in a circle (contract E1)."""

    def __init__(self, cycle: tuple[str, ...]) -> None:
        self.cycle = cycle
        super().__init__(f"dependency cycle: {' -> '.join((*cycle, cycle[0]))}; remove one of these dependencies")


class PayloadError(UsageError, TypeError):
    """Something cannot be sent to a worker, or back from it (contract C5, D9)."""


class QueueClosedError(UsageError, RuntimeError):
    """The queue takes no more work: `shutdown` began, it has halted, or this is not its process (contract C7, G6)."""


class QueueFullError(UsageError, RuntimeError):
    """`max_pending` or `max_pending_bytes` is reached and the call must not wait (contract C6)."""


class NotReservedError(UsageError, ValueError):
    """`complete`, `fail` or `renew` of a task that is not reserved (contract J3)."""

    def __init__(self, task_id: str, status: str) -> None:
        self.task_id = task_id
        self.status = status
        super().__init__(f"task {task_id!r} is not reserved but {status}; reserve() it first")


class JobsFileError(UsageError):
    """A jobs file cannot be used: missing, does not import, no entry, not a task.

    Args:
        what: What is wrong, one line.
        where: The place, or empty.
        hint: What to do, or empty.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__("\n".join([what, *([f"  {where}"] if where else []), *([f"  hint: {hint}"] if hint else [])]))


# --- what befell a task: raised by result() ---------------------------------------------------


class TaskError(ProcqError):
    """What became of one task; raised by `result()`.

    Attributes:
        task_id: The task's id, or None when the error stands alone.
        attempt: The attempt it happened in, from 1, or None.
    """

    task_id: str | None = None
    attempt: int | None = None

    def located(self, task_id: str, attempt: int | None) -> Self:
        """Name the task and attempt this happened to, and return the error itself."""
        self.task_id = task_id
        self.attempt = attempt
        return self


class AttemptTimeout(TaskError, TimeoutError):  # noqa: N818 - what befell an attempt, not a misuse
    """An attempt ran longer than its `timeout` and was ended (contract D5)."""


class WorkerCrashed(TaskError):  # noqa: N818
    """The worker process died while it ran the attempt (contract D4).

    Attributes:
        exit_code: Its exit code, or None if a signal ended it.
        signal: The name of the signal that ended it, or None.
    """

    exit_code: int | None = None
    signal: str | None = None


# `MemoryError` stands first because CPython makes its instances in a way of its own, which
# `_rebuild` then finds.
class MemoryLimitExceeded(MemoryError, TaskError):  # noqa: N818
    """The worker, its child processes included, held more than `max_memory_per_worker` (contract D10)."""


class WorkerLost(TaskError):  # noqa: N818
    """The attempt is gone without an answer (contract D2, lost)."""


class RemoteError(TaskError):
    """Stands in for an error of the task that could not be rebuilt here (contract D9).

    Attributes:
        type_name: The qualified name of the original error's class.
        message: Its message.
        traceback: The worker's traceback as text.
    """

    def __init__(self, type_name: str, message: str, traceback: str = "") -> None:
        self.type_name = type_name
        self.message = message
        self.traceback = traceback
        super().__init__(f"{type_name}: {message}")


class RemoteTraceback(ProcqError):  # noqa: N818
    """The cause of an error that came from a worker: the worker's traceback as text."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"\n{text.rstrip()}")


class DependencyFailed(TaskError):  # noqa: N818
    """A dependency did not succeed, so this task was cancelled without running (contract E4).

    Its cause is the error of the task where the failure began, as far as that task is still known.

    Attributes:
        origin: The id of the task where the failure began.
    """

    def __init__(self, origin: str, what: str = "failed") -> None:
        self.origin = origin
        super().__init__(f"dependency {origin!r} {what}")


# --- the engine --------------------------------------------------------------------------------


class EngineError(ProcqError):
    """Attempts cannot be run at all.

    Raised as itself by a queue that had to be killed because a call was broken off half-way, say by
    Ctrl-C within `submit`.
    """


class WorkerStartError(EngineError):
    """Workers cannot start: an initializer raises, or start-up takes too long (contract D11)."""


class InternalError(ProcqError):
    """A bug in procq; please report it with the text of this error.

    Attributes:
        history: The attempts of the task that it is about, oldest first (contract A3).
    """

    history: tuple[object, ...] = ()


# --- those of a module apart -------------------------------------------------------------------

_APART = ("TaskCancelled", "TaskExpired")


def __getattr__(name: str) -> object:
    """Import an error of `procq.errors.cancelled` when it is first used (PEP 562)."""
    if name not in _APART:
        raise AttributeError(f"module 'procq.errors' has no attribute {name!r}")
    from procq.errors import cancelled  # noqa: PLC0415 - 6 ms that hardly any program needs

    globals()[name] = value = getattr(cancelled, name)
    return value


def __dir__() -> list[str]:
    """List the names, used or not."""
    return sorted({*globals(), *_APART})
