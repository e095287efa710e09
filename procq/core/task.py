"""One task as the core sees it (contract A1).

`Task` is the one mutable record of the core; `Scheduler` is its only writer.  Payloads and
results are opaque bytes.  Slots, no dictionary: a queue may hold a million of them.
"""

from typing import TYPE_CHECKING, Final, Literal

from procq.core.states import Status
from procq.parcel import Payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from procq.core.records import AttemptRecord
    from procq.core.rules import Rules
    from procq.outcome import Ended

#: Read through the class, a member of an enum takes 60 ns: a tenth of what making a task takes.
_BLOCKED: Final = Status.BLOCKED

#: An attempt that succeeded: started_at, ended_at, pid, cpu_s, peak_rss_bytes, as in `AttemptRecord`.  A plain
#: tuple of numbers, because the garbage collector stops looking at those: a million results do not slow it down.
Run = tuple[float, float, int | None, float, int]
#: Likewise, where what it wrote is captured; then stdout and stderr.
CapturedRun = tuple[float, float, int | None, float, int, str | None, str | None]

#: Why all the work is cut short: by a shutdown, or because the queue halted by itself.
CutCause = Literal["shutdown", "max_failures", "deadline"]
#: Why a task is CANCELLED.
Cause = Literal[CutCause, "cancelled", "replaced", "expired", "dependency", "not needed"]


class Conditions:
    """What must be so before a task starts: other tasks have ended, an instant has come, or has not."""

    __slots__ = ("depends_on", "due", "expires_at", "needs", "unmet")

    def __init__(
        self, depends_on: "Sequence[Task]", due: float | None, expires_at: float | None, needs: tuple[str, ...]
    ) -> None:
        #: every task that must end before this one starts, each once
        self.depends_on = depends_on
        #: their ids, kept where the task may be compared with one that is submitted again (C4)
        self.needs = needs
        #: how many of them have not ended
        self.unmet = 0
        #: the instant before which it does not start; None: at once
        self.due = due
        #: it must have started before this instant; None: no such bound
        self.expires_at = expires_at


class Trouble:
    """All that did not go as wished with a task, until it is forgotten."""

    __slots__ = ("cause", "cut", "ended", "history", "is_replaced", "origin")

    def __init__(self) -> None:
        #: reports of the attempts that ended without success, with their numbers
        self.history: list[tuple[int, Ended]] | None = None
        #: the report that made it FAILED
        self.ended: Ended | None = None
        #: why it is CANCELLED; None in any other state
        self.cause: Cause | None = None
        #: whether another task has taken its id for good, so that it cannot be replayed (C4)
        self.is_replaced = False
        #: the task where the failure began that cancelled this one
        self.origin: str | None = None
        #: all and only tasks that are CANCELLED because this one ended as it did (F7), as keys
        self.cut: dict[Task, None] | None = None


class Task:
    """The state of one task, from submit until it is forgotten.  Only `Scheduler` writes to it.

    A queue may hold a million that were only just submitted, so what few tasks have is held apart
    and read through properties.
    """

    __slots__ = (
        "conditions", "dependents", "explicit", "failures", "fence", "first_started_at", "id", "inputs", "listeners",
        "owner", "payload", "place", "ran", "rank", "rules", "seq", "standing", "started_at", "status",
        "submitted_at", "trouble", "type", "value",
    )  # fmt: skip

    def __init__(
        self,
        id: str,  # noqa: A002 - the contract's name
        type: str,  # noqa: A002
        payload: Payload,
        rules: "Rules",
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
        #: the pickled call; opaque here.  Once SUCCEEDED no more than what it is compared by (C4)
        self.payload = payload
        self.rules = rules
        #: the dependencies whose results are arguments, by number
        self.inputs = inputs
        #: whether the user chose the id, so that the task is kept after its end (F5)
        self.explicit = explicit
        #: what must be so before it starts; None: nothing
        self.conditions: Conditions | None = None
        self.status = _BLOCKED
        #: order of submission, fixed for life (B2); -1 before it is accepted
        self.seq = -1
        #: what the policy orders by, fixed for life
        self.rank: float = 0
        self.submitted_at = 0.0
        #: whether it waits in a ready lane; False: it has left, but its place there is still kept
        self.standing: bool | None = None
        #: among others, every BLOCKED task that has this one, not SUCCEEDED, in `depends_on`
        self.dependents: list[Task] | None = None
        #: how often it was started; with the id the fence against late messages (D1)
        self.fence = 0
        #: attempts charged so far
        self.failures = 0
        self.first_started_at: float | None = None
        self.started_at: float | None = None
        #: the attempt that succeeded
        self.ran: Run | CapturedRun | None = None
        #: the pickled result once SUCCEEDED
        self.value: Payload | None = None
        #: what went wrong so far; None: nothing
        self.trouble: Trouble | None = None
        #: who waits for the end; opaque here
        self.listeners: list[object] | None = None
        #: who keeps this task's record alive; opaque here
        self.owner: object = None
        #: where the engine keeps it; opaque here
        self.place: object = None
        if depends_on or due is not None or expires_at is not None:
            needs = tuple(task.id for task in depends_on) if explicit else ()
            self.conditions = Conditions(depends_on, due, expires_at, needs)

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

    @property
    def group(self) -> str:
        """Which set of workers runs it."""
        return self.rules.group

    @property
    def depends_on(self) -> "Sequence[Task]":
        """Every task that must end before this one starts, each once."""
        return () if self.conditions is None else self.conditions.depends_on

    @property
    def needs(self) -> tuple[str, ...]:
        """Their ids, if the user chose this task's id."""
        return () if self.conditions is None else self.conditions.needs

    @property
    def expires_at(self) -> float | None:
        """The instant before which it must have started; None: no such bound."""
        return None if self.conditions is None else self.conditions.expires_at

    @property
    def ended(self) -> "Ended | None":
        """The report that made it FAILED; None in any other state."""
        return None if self.trouble is None else self.trouble.ended

    @property
    def cause(self) -> Cause | None:
        """Why it is CANCELLED; None in any other state."""
        return None if self.trouble is None else self.trouble.cause

    @property
    def origin(self) -> str | None:
        """The task where the failure began that cancelled this one."""
        return None if self.trouble is None else self.trouble.origin

    @property
    def history(self) -> "Sequence[tuple[int, Ended]]":
        """Reports of the attempts that ended without success, with their numbers, oldest first."""
        return () if self.trouble is None or self.trouble.history is None else self.trouble.history

    @property
    def cut(self) -> "Iterable[Task]":
        """All and only tasks that are CANCELLED because this one ended as it did (F7)."""
        return () if self.trouble is None or self.trouble.cut is None else self.trouble.cut

    def in_trouble(self) -> Trouble:
        """Return what went wrong, to be added to."""
        if self.trouble is None:
            self.trouble = Trouble()
        return self.trouble

    def records(self) -> "tuple[AttemptRecord, ...]":
        """Return the attempts that ended, oldest first."""
        from procq.core.records import records_of  # noqa: PLC0415 - only whoever asks for them needs it

        return records_of(self)


def by_seq(task: Task) -> int:
    """Sort key: order of submission."""
    return task.seq
