"""What has happened to tasks, taken down in passing for whoever reads events (docs/reference/events.md).

The scheduler says what it does in a call each; here that becomes a small tuple: what, when, and what
of the task will have changed by the time somebody looks.  No fact refers to a task, so whoever is
slow to read holds no payload and no result.  The driver moves `new` out of here; words are made of it
elsewhere.

Rule: a fact costs a tuple.  Where nobody listens there is no `Facts`, and it costs a look.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, final

from procq.core.states import Status
from procq.core.task import CapturedRun, Run, Task
from procq.parcel import Payload

if TYPE_CHECKING:
    from procq.outcome import Ended

#: What happened, and when on the engine's clock; then what that kind of fact has more.
Fact = tuple[str, float, *tuple[object, ...]]

#: Why a task that is READY is not started.
Hold = Literal["limit", "breaker", "memory", "paused", "slots"]

#: Texts of so many characters weigh as much as a fact.
_TEXT_UNIT: Final = 1024

_SUCCEEDED: Final = Status.SUCCEEDED


@final
class Facts:
    """Takes down facts, as long as there is room.

    Args:
        find_room: Called when `limit` is reached: raises it, or returns False.
        with_output: Whether what attempts wrote is taken down too, where it was captured.

    Attributes:
        new: What happened since the driver last took it, in order.
        weight: How many facts were taken down in all; one with long texts counts as more.
        limit: From this weight on facts are only counted.
        dropped: How many were, since somebody last said so.
        cpu_s: CPU time of all attempts that ended, those included that were not taken down.
    """

    __slots__ = ("_find_room", "_with_output", "cpu_s", "dropped", "limit", "new", "weight")

    def __init__(self, find_room: Callable[[], bool], *, with_output: bool = False) -> None:
        self.new: list[Fact] = []
        self.weight = 0
        self.limit: float = 0
        self.dropped = 0
        self.cpu_s = 0.0
        self._find_room = find_room
        self._with_output = with_output

    def note(self, fact: Fact) -> None:
        """Take down a fact, if there is room."""
        if self.weight < self.limit or self._find_room():
            self.weight += 1
            self.new.append(fact)
        else:
            self.dropped += 1

    def keep(self, fact: Fact) -> None:
        """Take down a fact whether there is room or not: one of the few that all others are read by."""
        self.weight += 1
        self.new.append(fact)

    # --- tasks ---------------------------------------------------------------------------------

    def submitted(self, task: Task, now: float) -> None:
        """A task was accepted; without conditions it is READY with that."""
        conditions = task.conditions
        if conditions is None:
            self.note(("task.submitted", now, task.id, task.type, task.rules, (), None))
            self.note(("task.ready", now, task.id, None))
        else:
            needs = [need.id for need in conditions.depends_on]
            self.note(("task.submitted", now, task.id, task.type, task.rules, needs, conditions.due))

    def blocked(self, task: Task, now: float) -> None:
        """A task waits for others."""
        self.note(("task.blocked", now, task.id, "dependencies"))

    def scheduled(self, task: Task, due: float, now: float) -> None:
        """A task waits for an instant: its own, or that of its next attempt."""
        if not task.history:
            why: object = task.rules
        else:
            ended = task.history[-1][1]
            why = "backoff" if ended.retry_after_s is None else "retry_later"
        self.note(("task.scheduled", now, task.id, why, due - now))

    def ready(self, task: Task, now: float) -> None:
        """A task may start now."""
        self.note(("task.ready", now, task.id, None))

    def returned(self, task: Task, now: float) -> None:
        """An attempt that was started has not begun, and never will; the task may start again."""
        self.note(("task.ready", now, task.id, "not_begun"))

    def held(self, task: Task, reason: Hold, now: float) -> None:
        """A READY task that is next in line may not start."""
        self.note(("task.held", now, task.id, reason))

    def ended(self, task: Task, now: float) -> None:
        """A task has reached a terminal state."""
        trouble = task.trouble
        if trouble is None:
            self.note(
                ("task.ended", now, task.id, task.status, task.failures + (task.status is _SUCCEEDED), None, None)
            )
        else:
            self.note(("task.ended", now, task.id, task.status, task.attempts, trouble.cause, trouble.origin))

    def replayed(self, task: Task, now: float) -> None:
        """A task that had ended comes back; what it waits for follows."""
        self.note(("task.replayed", now, task.id, task.failures))

    def forgotten(self, task: Task) -> None:
        """To be forgotten is no event."""

    # --- attempts ------------------------------------------------------------------------------

    def begun(self, task: Task, started_at: float) -> None:
        """An attempt has begun."""
        self.note(("attempt.started", started_at, task.id, task.failures + 1, None, None))

    def placed(self, task_id: str, worker_id: int | None, pid: int | None) -> None:
        """Say where the attempt is that was the last to begin, if that is not known."""
        if self.new:
            kind, at, *about = self.new[-1]
            if kind == "attempt.started" and about[0] == task_id and about[3] is None:
                self.new[-1] = (kind, at, task_id, about[1], worker_id, pid)

    def succeeded(self, task: Task, value: Payload | None, run: Run | CapturedRun) -> None:
        """An attempt has returned."""
        self.placed(task.id, None, run[2])
        self.cpu_s += run[3]
        size = 0 if value is None else len(value)
        output = run[5:] if self._with_output else ()
        # Numbers alone, and by themselves: the garbage collector need not look at them.
        self.note(("attempt.ok", run[1], task.id, task.failures + 1, run[1] - run[0], run[3], run[4], size, *output))
        if output:
            self.weigh(*output)

    def failed(self, task: Task, ended: "Ended") -> None:
        """An attempt has ended without success."""
        self.placed(task.id, None, ended.pid)
        self.cpu_s += ended.cpu_s
        error_type = ended.error_types[0] if ended.error_types else None
        output = (ended.stdout, ended.stderr) if self._with_output else ()
        self.note((
            "attempt.failed", ended.ended_at, task.id, task.failures + 1, ended.outcome,
            ended.ended_at - ended.started_at, ended.cpu_s, ended.peak_rss_bytes, ended.exit_code, ended.signal,
            error_type, ended.message, ended.traceback, *output,
        ))  # fmt: skip
        self.weigh(ended.message, ended.traceback, *output)

    def weigh(self, *texts: str | None) -> None:
        """Count the texts of the last fact for what they take."""
        if self.weight < self.limit:
            self.weight += sum(len(text) for text in texts if text is not None) // _TEXT_UNIT
