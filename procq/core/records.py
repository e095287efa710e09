"""What people are told of the attempts of a task, made when they ask (contract D2, F6).

task.py imports it then, and not before: most tasks nobody asks about.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from procq.core.task import Task
    from procq.outcome import Outcome


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


class DeadLetter(NamedTuple):
    """The kept record of a task that ended FAILED (contract F6)."""

    id: str
    type: str
    attempts: int  #: attempts charged
    died_at: float  #: seconds on the queue's clock
    error_type: str | None  #: qualified name of the last error's class
    message: str  #: its text
    history: tuple[AttemptRecord, ...]


def records_of(task: "Task") -> tuple[AttemptRecord, ...]:
    """Return the attempts of a task that ended, oldest first."""
    records = [
        AttemptRecord(
            attempt, ended.outcome, ended.started_at, ended.ended_at, ended.pid, ended.exit_code, ended.signal,
            ended.cpu_s, ended.peak_rss_bytes, ended.error_types[0] if ended.error_types else None,
            ended.message or None, ended.traceback or None, ended.stdout, ended.stderr,
        )
        for attempt, ended in task.history
    ]  # fmt: skip
    if task.ran is not None:
        started_at, ended_at, pid, cpu_s, peak_rss_bytes, *written = task.ran
        records.append(
            AttemptRecord(
                task.attempt, "ok", started_at, ended_at, pid, None, None, cpu_s, peak_rss_bytes, None, None, None,
                *written,
            )
        )  # fmt: skip
    return tuple(records)


def letter_of(task: "Task", died_at: float) -> DeadLetter:
    """Write the letter of a task that ended FAILED."""
    last = task.ended
    return DeadLetter(
        id=task.id,
        type=task.type,
        attempts=task.failures,
        died_at=died_at,
        error_type=last.error_types[0] if last is not None and last.error_types else None,
        message="" if last is None else last.message,
        history=records_of(task),
    )
