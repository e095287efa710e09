"""How one attempt ended, in plain words: what an engine reports and the core judges (contract D2).

Errors appear here as names, texts and opaque bytes, never as objects: the supervisor judges a
failure by the names of its classes and never unpickles it.  Workers import this module, so it
imports nothing from procq.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final, Literal

    from procq.parcel import Payload

    Outcome = Literal["ok", "error", "timeout", "crash", "memory", "lost", "cancelled", "interrupted"]

#: Every way an attempt can end.
OUTCOMES: "Final[tuple[Outcome, ...]]" = (
    "ok", "error", "timeout", "crash", "memory", "lost", "cancelled", "interrupted",
)  # fmt: skip


class Spawned:
    """The tasks that an attempt has returned beside its value, to be accepted with its success (contract E6).

    Attributes:
        text: All of them but their payloads, as procq/plain.py writes it.
        payloads: The pickled calls, in the same order.
    """

    __slots__ = ("payloads", "text")

    def __init__(self, text: bytes, payloads: "Sequence[Payload]") -> None:
        self.text = text
        self.payloads = payloads


class Ended:
    """The report on an attempt that ended.

    Attributes:
        outcome: One of `OUTCOMES`.
        started_at: When the attempt began running, on the engine's monotonic clock; seconds.
        ended_at: When it ended, likewise.
        value: For "ok" the pickled result; for "error" the pickled error, or None if it
            cannot be pickled or rebuilt (then it is known by its texts alone).
        error_types: Qualified names of the error's class and its bases, most derived first.
        message: The error's text.
        traceback: The worker's traceback as text, the task's own frames only.
        permanent: Whether no further attempt may follow (contract D3, D9).
        retry_after_s: The wait asked for by `RetryLater`, else None.
        terminated: Whether `Terminated` was raised in the attempt.
        pid: The worker's process id; None where there is no process.
        exit_code: Of a worker that exited under the attempt, else None.
        signal: Name of the signal that ended the worker, else None.
        cpu_s: CPU seconds used by the worker during the attempt, children excluded.
        peak_rss_bytes: The worker's highest resident memory so far, in bytes (0: unknown).
        stdout: The last part of what it wrote to standard output; None if that is not captured.
        stderr: To standard error, likewise.
        spawned: The tasks that come with a success; None: none do.
    """

    __slots__ = (
        "cpu_s", "ended_at", "error_types", "exit_code", "message", "outcome", "peak_rss_bytes", "permanent",
        "pid", "retry_after_s", "signal", "spawned", "started_at", "stderr", "stdout", "terminated", "traceback",
        "value",
    )  # fmt: skip

    def __init__(
        self,
        outcome: "Outcome",
        started_at: float,
        ended_at: float,
        *,
        value: "Payload | None" = None,
        error_types: tuple[str, ...] = (),
        message: str = "",
        traceback: str = "",
        permanent: bool = False,
        retry_after_s: float | None = None,
        terminated: bool = False,
        pid: int | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
        cpu_s: float = 0.0,
        peak_rss_bytes: int = 0,
        stdout: str | None = None,
        stderr: str | None = None,
        spawned: Spawned | None = None,
    ) -> None:
        self.outcome = outcome
        self.started_at = started_at
        self.ended_at = ended_at
        self.value = value
        self.error_types = error_types
        self.message = message
        self.traceback = traceback
        self.permanent = permanent
        self.retry_after_s = retry_after_s
        self.terminated = terminated
        self.pid = pid
        self.exit_code = exit_code
        self.signal = signal
        self.cpu_s = cpu_s
        self.peak_rss_bytes = peak_rss_bytes
        self.stdout = stdout
        self.stderr = stderr
        self.spawned = spawned


def class_names(error_class: type) -> tuple[str, ...]:
    """Return the qualified names of a class and its bases, most derived first, `object` left out."""
    return tuple(qualified_name(cls) for cls in error_class.__mro__ if cls is not object)


def qualified_name(cls: type) -> str:
    """Return "module.Class", without the module for builtins."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
