"""One task as the core sees it, and the record of one attempt (contract A1, D2).

`Task` is the one mutable record of the core; `Scheduler` is its only writer.  Payloads and
results are opaque bytes.  Slots, no dictionary: a queue may hold a million of them.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from procq.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from procq.outcome import Ended, Outcome
    from procq.retry import Backoff

#: Why a task is CANCELLED.
Cause = Literal["cancelled", "shutdown", "expired", "dependency", "not needed"]


class Rules(Protocol):
    """What the core must know of a task's options (C3); many tasks share one object."""

    @property
    def priority(self) -> int:
        """The higher, the more urgent."""

    @property
    def max_attempts(self) -> int:
        """How many tries there are in all."""

    @property
    def timeout_s(self) -> float | None:
        """How long one attempt may run; None: no limit."""

    @property
    def backoff(self) -> "Backoff | None":
        """What it waits between attempts; None: what the queue says."""

    @property
    def retry_on(self) -> frozenset[str] | None:
        """Names of the error classes that are retried; None: any `Exception`."""

    @property
    def never_retry(self) -> frozenset[str]:
        """Names of error classes and outcomes that are not retried."""

    @property
    def retry_for_s(self) -> float | None:
        """No retry is due later than this after the first start; None: no limit."""

    @property
    def run_if(self) -> str:
        """After which ends of its dependencies it runs: "success", "done" or "failure"."""


class AttemptRecord(NamedTuple):
    """One attempt of a task, as kept in its history (contract D2).

    Instants are seconds on the engine's monotonic clock: only their differences mean anything.
    """

    attempt: int  #: its number, from 1; an attempt that is not charged shares its number with the next
    outcome: "Outcome"  #: ok, error, timeout, crash, memory, lost, cancelled, interrupted
    started_at: float
    ended_at: float
    pid: int | None  #: the worker's process id; None where there is none
    exit_code: int | None  #: of a worker that exited under the attempt
    signal: str | None  #: name of the signal that ended the worker
    cpu_s: float  #: CPU seconds of the worker during the attempt
    peak_rss_bytes: int  #: the worker's highest resident memory until then; 0: unknown
    error_type: str | None  #: qualified name of the error's class
    message: str | None  #: the error's text
    traceback: str | None  #: the worker's traceback as text
    stdout: str | None = None  #: the last part of what it wrote there; None: not captured
    stderr: str | None = None  #: likewise

    @property
    def run_s(self) -> float:
        """How long the attempt ran, in seconds."""
        return self.ended_at - self.started_at


class Task:
    """The state of one task, from submit until it is forgotten.  Only `Scheduler` writes to it."""

    __slots__ = (
        "cause", "cut", "dependents", "depends_on", "due", "ended", "entry", "expires_at", "explicit", "failures",
        "fence", "first_started_at", "history", "id", "inputs", "listeners", "needs", "origin", "owner",
        "payload", "rank", "rules", "seq", "started_at", "status", "submitted_at", "type", "unmet", "value",
    )  # fmt: skip

    def __init__(
        self,
        id: str,  # noqa: A002 - the contract's name
        type: str,  # noqa: A002
        payload: bytes,
        rules: Rules,
        *,
        depends_on: "Sequence[Task]" = (),
        inputs: "Sequence[Task]" = (),
        due: float | None = None,
        expires_at: float | None = None,
        explicit: bool = False,
    ) -> None:
        self.id = id
        #: what `limits` go by
        self.type = type
        #: the pickled call; opaque here
        self.payload = payload
        self.rules = rules
        #: every task that must end before this one starts, each once
        self.depends_on = depends_on
        #: their ids, kept where the task may be compared with one that is submitted again (C4)
        self.needs = tuple(task.id for task in depends_on) if explicit else ()
        #: those of them whose results are arguments, by number
        self.inputs = inputs
        #: the instant before which it does not start; None: at once
        self.due = due
        #: it must have started before this instant; None: no such bound
        self.expires_at = expires_at
        #: whether the user chose the id, so that the task is kept after its end (F5)
        self.explicit = explicit
        self.status = Status.BLOCKED
        #: order of submission, fixed for life (B2); -1 before it is accepted
        self.seq = -1
        #: what the policy orders by, fixed for life
        self.rank: float = 0
        self.submitted_at = 0.0
        #: the live entry in a ready lane; None: in no lane
        self.entry: tuple[float, int, Task] | None = None
        #: how many dependencies have not ended
        self.unmet = 0
        #: among others, every BLOCKED task that has this one, not SUCCEEDED, in `depends_on`
        self.dependents: list[Task] | None = None
        #: all and only tasks that are CANCELLED because this one ended as it did (F7), as keys
        self.cut: dict[Task, None] | None = None
        #: how often it was started; with the id the fence against late messages (D1)
        self.fence = 0
        #: attempts charged so far
        self.failures = 0
        self.first_started_at: float | None = None
        self.started_at: float | None = None
        #: reports of the attempts that ended, with their numbers
        self.history: list[tuple[int, Ended]] | None = None
        #: the pickled result once SUCCEEDED
        self.value: bytes | None = None
        #: the report that made it FAILED
        self.ended: Ended | None = None
        #: why it is CANCELLED; None in any other state
        self.cause: Cause | None = None
        #: the task where the failure began that cancelled this one
        self.origin: str | None = None
        #: who waits for the end; opaque here
        self.listeners: list[object] | None = None
        #: who keeps this task's record alive; opaque here
        self.owner: object = None

    def __repr__(self) -> str:
        return f"<Task {self.id!r} {self.type} {self.status}>"

    @property
    def attempt(self) -> int:
        """The number of the attempt that runs, or would run next."""
        return self.failures + 1

    @property
    def attempts(self) -> int:
        """How many attempts were charged or succeeded."""
        return self.failures + (self.status is Status.SUCCEEDED)

    @property
    def timeout_s(self) -> float | None:
        """How long one attempt may run; for engines."""
        return self.rules.timeout_s

    def records(self) -> tuple[AttemptRecord, ...]:
        """Return the attempts that ended, oldest first."""
        return tuple(
            AttemptRecord(
                attempt, ended.outcome, ended.started_at, ended.ended_at, ended.pid, ended.exit_code, ended.signal,
                ended.cpu_s, ended.peak_rss_bytes, ended.error_types[0] if ended.error_types else None,
                ended.message or None, ended.traceback or None, ended.stdout, ended.stderr,
            )
            for attempt, ended in self.history or ()
        )  # fmt: skip


class DeadLetter(NamedTuple):
    """The kept record of a task that ended FAILED (contract F6)."""

    id: str
    type: str
    attempts: int  #: attempts charged
    died_at: float  #: seconds on the queue's clock
    error_type: str | None  #: qualified name of the last error's class
    message: str  #: its text
    history: tuple[AttemptRecord, ...]
