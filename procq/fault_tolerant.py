"""`FaultTolerantQueue`: the queue's rules for those who bring workers and clock (contract J).

A thin face on `procq.core`: it translates words (reserve, fail, cooldown) into the scheduler's, and
adds the one thing the core does not have, leases.  Order, retries, dependencies and dead letters
are the core's own.  No clock, no threads, no I/O: time is what the caller says it is.
"""

import math
from collections.abc import Callable, Iterable
from typing import Final, cast, final

from procq.core.heaps import TimerHeap
from procq.core.scheduler import Scheduler
from procq.core.states import UNSUCCESSFUL, Status
from procq.core.task import Task
from procq.errors import DuplicateTaskError, NotReservedError, UnknownDependencyError, UnknownTaskError, UsageError
from procq.outcome import Ended
from procq.slots import DEFAULT_GROUP, ONE_CPU
from procq.units import Duration, UnitError, count, seconds

#: A duration, or a function of how often the task has failed (from 1) that returns one.
Cooldown = Duration | Callable[[int], Duration]

#: More tasks than any memory holds: nothing is forgotten.
_ALL: Final = 2**63 - 1
_FOR_EVER: Final = math.inf


@final
class FaultTolerantQueue:
    """Hands out tasks, takes failed ones back after a cooldown, and gives up on hopeless ones.

    Every method that takes `now` may be given any finite number, in any unit, as long as it never
    goes back; durations given as numbers are in the same unit, and whole numbers are added exactly.
    Nothing here waits.  Not thread-safe: callers share it under a lock of their own.

    A call that raises changes nothing: no task, and not the latest `now` either.  One thing is no
    effect of the call but a fact of time: reservations whose lease ran out by its `now` have failed
    at their own instants, even if the call is then refused (unless `now` is what is wrong with it);
    the latest `now` is then the last of these instants.

    Nothing is ever forgotten: memory grows with the number of tasks and attempts.  With n tasks
    `enqueue`, `reserve`, `complete`, `fail` and `renew` take O(log n) amortised: a cooldown or a
    lease that ends is handled once, by the first call that sees it, and was paid for by the call that
    began it; a death or a completion takes a step more for each dependent it cancels or unblocks,
    which was paid for by that task's `enqueue` or `replay`.

    Args:
        max_attempts: The failure of this number moves a task to the dead letters; at least 1.
        lease: How long a reservation lasts unless renewed; None: until `complete` or `fail`.

    Raises:
        UsageError: A value cannot be; the message names it.
    """

    __slots__ = ("_lease_s", "_leases", "_max_attempts", "_now", "_scheduler")

    def __init__(self, max_attempts: int, lease: Duration | None = None) -> None:
        self._max_attempts = count(max_attempts, field="max_attempts", least=1)
        self._lease_s = None if lease is None else _exact_seconds(lease, field="lease")
        if self._lease_s == 0:
            raise UnitError(f"lease={lease!r}: must be longer than 0; leave it out for reservations without end")
        #: the latest `now` of a call that was not refused, or the latest lease that ran out
        self._now: float = -math.inf
        self._scheduler = Scheduler(
            backoff=_Cooldown(0), draw=_no_draw, retention=(_ALL, _FOR_EVER), dead_letters=(_ALL, _FOR_EVER)
        )
        #: all and only reserved tasks, by the end of their lease; empty without leases
        self._leases: TimerHeap[Task] = TimerHeap()

    def enqueue(self, task_id: str, cooldown: Cooldown, now: float, depends_on: Iterable[str] = ()) -> None:
        """Take in a task; its place in the order is fixed by this call, for life (J1, J2).

        Takes O(d + log n) for d dependencies.

        Args:
            task_id: A text that no task here has, in whatever state.
            cooldown: How long the task rests after a failure, or a function that is given how
                often it has failed (1, 2, ...) since it came in or was replayed.  If it raises
                when a lease has run out, the task is dead: there is no call to refuse.
            now: The instant of the call.
            depends_on: Ids of tasks that must be completed before.  If one is dead or cancelled,
                the new task is cancelled at once (J4).

        Raises:
            DuplicateTaskError: The id is in use; tasks that ended count.
            UnknownDependencyError: A dependency was never enqueued.
            ValueError: `now` is no finite number or goes back, or the cooldown is no duration.
            UsageError: The id is no text, or `depends_on` no list of ids.
        """
        _check_id(task_id)
        rules = _Rules(self._max_attempts, _Cooldown(_checked_cooldown(cooldown)))
        names = _checked_ids(depends_on)
        self._note(now)
        known = self._scheduler.tasks
        if task_id in known:
            raise DuplicateTaskError(task_id, f"a task that is {known[task_id].status}")
        missing = tuple(name for name in names if name not in known)
        if missing:
            raise UnknownDependencyError(task_id, missing, "enqueue what a task depends on before it")
        self._move_to(now)
        depends_on_tasks = tuple(known[name] for name in names)
        task = Task(task_id, "", b"", rules, depends_on=depends_on_tasks, explicit=True)
        self._scheduler.accept((task,), now)
        self._scheduler.settled.clear()

    def reserve(self, now: float) -> str | None:
        """Hand out the eligible task that was enqueued earliest (J1); O(log n) amortised.

        With leases the reservation ends at `now + lease`, unless renewed.

        Returns:
            The task's id, or None if no task is eligible: none is left, or the rest is reserved,
            cools down, or waits for dependencies.

        Raises:
            ValueError: `now` is no finite number or goes back.
        """
        self._note(now)
        self._move_to(now)
        task = self._scheduler.next_ready()
        if task is None:
            return None
        self._scheduler.start(task, now)
        self._lease(task, now)
        return task.id

    def complete(self, task_id: str, now: float) -> None:
        """Note that a reserved task is done; O(log n) amortised.

        Whoever completes is not asked who reserved: after a lease has run out, the late call of the
        first worker is refused, until another worker has reserved the task.

        Raises:
            NotReservedError: It is not reserved, or its lease ran out at or before `now` (J3, J5).
            UnknownTaskError: It was never enqueued.
            ValueError: `now` is no finite number or goes back.
        """
        task = self._reserved(task_id, now)
        self._move_to(now)
        self._end(task, Ended("ok", cast("float", task.started_at), now), now)

    def fail(self, task_id: str, now: float) -> None:
        """Note that a reserved task failed, or was preempted, which counts the same (J2).

        It is eligible again exactly from `now` plus its cooldown on; with the failure that uses its
        last attempt it joins the dead letters, and what depends on it is cancelled (J4).
        O(log n) amortised.

        Raises:
            NotReservedError: It is not reserved, or its lease ran out at or before `now` (J3, J5).
            UnknownTaskError: It was never enqueued.
            ValueError: `now` is no finite number or goes back, or the cooldown function returned
                no duration.
            Exception: Whatever the cooldown function raises; the task is then still reserved.
        """
        task = self._reserved(task_id, now)
        if task.attempt < self._max_attempts:
            _rules_of(task).backoff.prepare(task.attempt)
        self._move_to(now)
        self._end(task, Ended("error", cast("float", task.started_at), now), now)

    def renew(self, task_id: str, now: float) -> None:
        """Have a reservation last until `now + lease`; without leases it lasts anyway.

        Raises:
            NotReservedError: It is not reserved, or its lease ran out at or before `now` (J5).
            UnknownTaskError: It was never enqueued.
            ValueError: `now` is no finite number or goes back.
        """
        task = self._reserved(task_id, now)
        self._move_to(now)
        self._lease(task, now)

    def dead_letter_queue(self) -> list[str]:
        """Return the ids of the tasks that are out of attempts, in order of death (J2).

        A lease that has run out since the last call with a `now` is not seen yet.
        """
        return [task.id for task in self._scheduler.letters]

    def replay(self, task_id: str, now: float, with_dependents: bool = False) -> None:  # noqa: FBT001, FBT002 - contract J
        """Take a dead task back with all its attempts, at its original place in the order (J6).

        A task that was cancelled because of a dependency can be replayed by itself once none of its
        dependencies is dead or cancelled any more.

        Args:
            task_id: The task.
            now: The instant of the call; the task is eligible at once, or when its dependencies are
                completed.
            with_dependents: Whether the tasks come back too that were cancelled because of it.

        Raises:
            UsageError: It is neither dead nor cancelled, or a dependency of it still is.
            UnknownTaskError: It was never enqueued.
            ValueError: `now` is no finite number or goes back.
        """
        self._note(now)
        task = self._find(task_id)
        if task.status not in UNSUCCESSFUL:
            raise UsageError(f"task {task_id!r} is not dead but {task.status}; only a dead task can be replayed")
        for dependency in task.depends_on:
            if dependency.status in UNSUCCESSFUL:
                raise UsageError(
                    f"task {task_id!r} depends on {dependency.id!r}, which is {_in_words(dependency)}; "
                    f"replay {dependency.id!r}, with with_dependents=True"
                )
        self._move_to(now)
        self._scheduler.replay(task, now, with_dependents=with_dependents)
        self._scheduler.settled.clear()

    def status(self, task_id: str) -> Status:
        """Return a task's status as the last call with a `now` left it.

        BLOCKED: waits for dependencies; SCHEDULED: cools down; READY: eligible; RUNNING: reserved;
        SUCCEEDED: completed; FAILED: dead; CANCELLED: because of a dependency.

        Raises:
            UnknownTaskError: It was never enqueued.
        """
        return self._find(task_id).status

    # --- inner workings ------------------------------------------------------------------------

    def _find(self, task_id: str) -> Task:
        task = self._scheduler.tasks.get(task_id)
        if task is None:
            raise UnknownTaskError(task_id, "it was never enqueued")
        return task

    def _reserved(self, task_id: str, now: float) -> Task:
        """Return a task that is reserved at this instant; changes nothing but for leases (J5)."""
        self._note(now)
        task = self._find(task_id)
        if task.status is not Status.RUNNING:
            raise NotReservedError(task_id, _in_words(task))
        return task

    def _note(self, now: float) -> None:
        """Refuse an instant that cannot be; have the leases that ran out by then fail, in their order."""
        _check_instant(now)
        if now < self._now:
            raise UnitError(f"now={now!r}: time goes back; it was {self._now!r} already")
        while (ran_out_at := self._leases.next_at()) is not None and ran_out_at <= now:
            task = self._leases.pop_due(ran_out_at)
            assert task is not None
            self._now = ran_out_at
            self._end(task, Ended("lost", cast("float", task.started_at), ran_out_at), ran_out_at)

    def _move_to(self, now: float) -> None:
        """Make this the present: the call is not going to be refused any more."""
        self._now = now
        self._scheduler.advance(now)

    def _lease(self, task: Task, now: float) -> None:
        if self._lease_s is not None:
            self._leases.set(task.seq, now + self._lease_s, task, task.seq)

    def _end(self, task: Task, ended: Ended, now: float) -> None:
        """End a reservation, and let the core judge what becomes of the task."""
        self._leases.discard(task.seq)
        self._scheduler.end(task, task.fence, ended, now)
        self._scheduler.settled.clear()


@final
class _Cooldown:
    """The rest after a failure, as the core asks for it."""

    __slots__ = ("_prepared", "_value")

    def __init__(self, value: float | Callable[[int], Duration]) -> None:
        self._value = value
        #: what the function returned for the failure that is being noted; None: not asked yet
        self._prepared: float | None = None

    def prepare(self, failures: int) -> None:
        """Ask the function now, while an error of it can still refuse the call."""
        self._prepared = self._ask(failures)

    def delay(self, attempt: int, _draw: float, /) -> float:
        """Return the rest after the failure of this number.

        Nobody has prepared it when a lease ran out.  A function that then raises ends the task,
        because nobody could say when it is eligible again: so it is the core's rule.
        """
        prepared, self._prepared = self._prepared, None
        return self._ask(attempt) if prepared is None else prepared

    def _ask(self, failures: int) -> float:
        value = self._value
        return _exact_seconds(value(failures), field="cooldown") if callable(value) else value


@final
class _Rules:
    """What the core must know of a task: only threshold and cooldown differ from its defaults."""

    __slots__ = ("backoff", "max_attempts")

    priority = 0
    timeout_s: float | None = None
    retry_on: frozenset[str] | None = None
    never_retry: frozenset[str] = frozenset()
    retry_for_s: float | None = None
    run_if = "success"
    group = DEFAULT_GROUP
    demand = ONE_CPU

    def __init__(self, max_attempts: int, backoff: _Cooldown) -> None:
        self.max_attempts = max_attempts
        self.backoff = backoff


def _rules_of(task: Task) -> _Rules:
    return cast("_Rules", task.rules)


def _no_draw() -> float:
    """Stand in for randomness: cooldowns have no jitter."""
    return 0.0


def _check_id(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"task_id={value!r}: expected a text that is not empty")


def _check_instant(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnitError(f"now={value!r}: expected a number, not {type(value).__name__}")
    try:
        finite = math.isfinite(value)
    except OverflowError:  # a whole number that no float can be added to
        finite = False
    if not finite:
        raise UnitError(f"now={value!r}: expected a finite number")


def _exact_seconds(value: Duration, *, field: str) -> float:
    """Read a duration and leave whole numbers whole, so that a clock in nanoseconds stays exact."""
    read = seconds(value, field=field)
    return value if isinstance(value, int) else read


def _checked_cooldown(value: Cooldown) -> float | Callable[[int], Duration]:
    return value if callable(value) else _exact_seconds(value, field="cooldown")


def _checked_ids(value: object) -> tuple[str, ...]:
    """Read a list of ids, each once."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(f"depends_on={value!r}: expected a list of ids")
    names: dict[str, None] = {}
    for name in value:
        if not isinstance(name, str):
            raise UsageError(f"depends_on={name!r}: expected an id, which is a text")
        names[name] = None
    return tuple(names)


def _in_words(task: Task) -> str:
    """Say how a task stands that is not as the call needs it."""
    match task.status:
        case Status.FAILED:
            stands = "dead"
        case Status.SUCCEEDED:
            stands = "completed"
        case _:
            stands = str(task.status)
    last = task.history[-1][1] if task.history and task.ran is None else None
    return stands if last is None or last.outcome != "lost" else f"{stands} (its lease ran out at {last.ended_at!r})"
