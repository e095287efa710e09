"""Drives a scheduler by hand, one line a call, and checks its invariants after each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict, Unpack

from procq.core.breaker import Breaker
from procq.core.capacity import Capacity
from procq.core.policies import Policy
from procq.core.scheduler import CancelAnswer, Scheduler
from procq.core.states import Status
from procq.core.task import Task
from procq.outcome import Ended
from procq.retry import Backoff, constant
from procq.slots import DEFAULT_GROUP, ONE_CPU, Demand

if TYPE_CHECKING:
    from procq.outcome import Outcome

#: What a task without a backoff of its own waits between attempts, in seconds.
PAUSE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedRules:
    """The options of a task, as the core sees them."""

    priority: int = 0
    max_attempts: int = 1
    timeout_s: float | None = None
    backoff: Backoff | None = None
    retry_on: frozenset[str] | None = None
    never_retry: frozenset[str] = frozenset()
    retry_for_s: float | None = None
    run_if: str = "success"
    group: str = DEFAULT_GROUP
    demand: Demand = ONE_CPU


class RuleArguments(TypedDict, total=False):
    """The fields of `FixedRules`."""

    priority: int
    max_attempts: int
    backoff: Backoff | None
    retry_on: frozenset[str] | None
    never_retry: frozenset[str]
    retry_for_s: float | None
    run_if: str
    group: str
    demand: Demand


class Hand:
    """A scheduler with tasks known by their ids, and a clock that the test moves.

    Args:
        policy: As `Scheduler`, like all the others.
        limits: Likewise.
        breakers: Likewise.
        groups: Likewise.
        capacity: Likewise.
        retention: Likewise.
        dead_letters: Likewise.
    """

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        limits: Mapping[str, int] | None = None,
        breakers: Mapping[str, Breaker] | None = None,
        groups: Sequence[str] = (DEFAULT_GROUP,),
        capacity: Capacity | None = None,
        retention: tuple[int, float] = (100, 1e9),
        dead_letters: tuple[int, float] = (100, 1e9),
    ) -> None:
        self.scheduler = Scheduler(
            backoff=constant(PAUSE_S),
            draw=lambda: 0.5,
            policy=policy,
            limits=limits,
            breakers=breakers,
            groups=groups,
            capacity=capacity,
            retention=retention,
            dead_letters=dead_letters,
        )
        self.now = 0.0
        #: the tasks submitted last under each id, also forgotten ones
        self.tasks: dict[str, Task] = {}

    def submit(
        self,
        task_id: str,
        *needs: str,
        type_name: str = "t",
        delay_s: float | None = None,
        expires_s: float | None = None,
        explicit: bool = True,
        **rules: Unpack[RuleArguments],
    ) -> Task:
        """Submit one task that depends on others; with delay and expiry from now."""
        task = self.make(
            task_id,
            *needs,
            type_name=type_name,
            delay_s=delay_s,
            expires_s=expires_s,
            explicit=explicit,
            **rules,
        )
        self.scheduler.accept((task,), self.now)
        self.tasks[task_id] = task
        return self.checked(task)

    def make(
        self,
        task_id: str,
        *needs: str,
        type_name: str = "t",
        delay_s: float | None = None,
        expires_s: float | None = None,
        explicit: bool = True,
        **rules: Unpack[RuleArguments],
    ) -> Task:
        """Make a task that is not submitted."""
        return Task(
            task_id,
            type_name,
            b"",
            FixedRules(**rules),
            depends_on=tuple(self.tasks[need] for need in needs),
            due=None if delay_s is None else self.now + delay_s,
            expires_at=None if expires_s is None else self.now + expires_s,
            explicit=explicit,
        )

    def start(self, group: str = DEFAULT_GROUP) -> str | None:
        """Start what comes next in a group; return its id."""
        task = self.scheduler.next_ready(group)
        if task is None:
            return None
        self.scheduler.start(task, self.now)
        return self.checked(task).id

    def start_all(self) -> list[str]:
        """Start all that may start, in order."""
        return list(iter(self.start, None))

    def end(
        self,
        task_id: str,
        outcome: "Outcome" = "ok",
        *,
        error_types: tuple[str, ...] = (),
        permanent: bool = False,
        retry_after_s: float | None = None,
        message: str = "",
    ) -> Status:
        """Report how the running attempt of a task ended; return the task's status after it."""
        task = self.tasks[task_id]
        ended = Ended(
            outcome,
            0.0 if task.started_at is None else task.started_at,
            self.now,
            value=b"result" if outcome == "ok" else None,
            error_types=error_types,
            permanent=permanent,
            retry_after_s=retry_after_s,
            message=message,
        )
        assert self.scheduler.end(task, task.fence, ended, self.now)
        return self.checked(task).status

    def run(self, task_id: str, outcome: "Outcome" = "ok") -> None:
        """Start the next task, which must be this one, and end it."""
        assert self.start() == task_id
        self.end(task_id, outcome)

    def pass_to(self, now: float) -> None:
        """Move the clock, and let time do its work."""
        self.now = now
        self.scheduler.advance(now)
        self.scheduler.check_invariants()

    def cancel(self, task_id: str) -> CancelAnswer:
        """Cancel a task."""
        answer = self.scheduler.cancel(self.tasks[task_id], self.now)
        self.scheduler.check_invariants()
        return answer

    def replay(self, task_id: str, *, reset_attempts: bool = True, with_dependents: bool = False) -> bool:
        """Take a task back."""
        taken = self.scheduler.replay(
            self.tasks[task_id], self.now, reset_attempts=reset_attempts, with_dependents=with_dependents
        )
        self.scheduler.check_invariants()
        return taken

    def status(self, task_id: str) -> Status:
        """Return a task's status."""
        return self.tasks[task_id].status

    def statuses(self, ids: Iterable[str]) -> list[Status]:
        """Return the statuses of some tasks."""
        return [self.status(task_id) for task_id in ids]

    def causes(self, ids: Iterable[str]) -> list[str | None]:
        """Return why some tasks are CANCELLED."""
        return [self.tasks[task_id].cause for task_id in ids]

    def settled(self) -> list[str]:
        """Take the ids of what reached a terminal state since the last time, in order."""
        settled, self.scheduler.settled = self.scheduler.settled, []
        return [task.id for task in settled]

    def letters(self) -> list[str]:
        """Return the ids of the dead letters, newest last."""
        return [letter.id for letter in self.scheduler.letters.listed()]

    def checked(self, task: Task) -> Task:
        """Check the invariants, and return the task."""
        self.scheduler.check_invariants()
        return task
