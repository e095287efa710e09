"""The queue's rules as a calculator: facts and `now` go in, what has to be done comes out.

Theory of operation.  Every open task is in exactly one container: BLOCKED in the lists of
dependents of what it waits for, SCHEDULED in `delayed`, READY in `ready` or (already sent to a
busy worker, not begun) in `ahead`, RUNNING in `running`.  The driver asks `next_ready()` while it
has room, says `start`, and reports how the attempt ended with `end`.  Whatever reaches a terminal
state is appended to `settled`, which the driver takes after each call.  `next_due()` says when
`advance` must be called next, if nothing else happens before.

Rules: `_move` writes a status and asks the table; `accept`, `start` and `succeed`, which every task
goes through, and `_revive` write the one status each of them gives, having asked for the one before.
`_end_one` is the only door to a terminal state (contract A4); `succeed` is its short form for a task
that nothing hangs on.  A call that can be wrong checks everything before it changes anything.
Nothing here reads a clock, draws a number or calls a user's function, backoff callables aside.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from procq.core import graph
from procq.core.capacity import Capacity
from procq.core.heaps import TimerHeap
from procq.core.lanes import Key, ReadyLanes
from procq.core.letters import DeadLetters
from procq.core.policies import Policy, Strict, WeightedFair
from procq.core.states import MOVES, TERMINAL, UNSUCCESSFUL, WAITING, Status
from procq.core.task import CapturedRun, Cause, CutCause, Run, Task, by_seq
from procq.errors import DuplicateTaskError, InternalError, UnknownTaskError, UsageError
from procq.outcome import Ended
from procq.parcel import Parcel, Payload
from procq.retry import Backoff
from procq.slots import DEFAULT_GROUP, ONE_CPU, need_refused

if TYPE_CHECKING:
    from procq.core.breaker import Breaker
    from procq.core.gates import Gate
    from procq.core.past import Past
    from procq.core.shares import Ready
    from procq.core.watching import Watcher
    from procq.outcome import Outcome

CancelAnswer = Literal["cancelled", "stopping", "finished"]

#: Read through the class, a member of an enum takes 60 ns each time.
_BLOCKED: Final = Status.BLOCKED
_SCHEDULED: Final = Status.SCHEDULED
_READY: Final = Status.READY
_RUNNING: Final = Status.RUNNING
_SUCCEEDED: Final = Status.SUCCEEDED
_FAILED: Final = Status.FAILED
_CANCELLED: Final = Status.CANCELLED

#: The key of a task more urgent than all.
_MOST_URGENT: Final[Key] = (float("-inf"), -1)

#: Outcomes that use no attempt: the task did nothing wrong (contract F3, G2).
_UNCHARGED: Final = frozenset({"cancelled", "interrupted"})


class Scheduler:
    """Owns every task from submit until it is forgotten (contract A, B, D3, D6-D8, E, F5-F7).

    Not thread-safe: its driver calls it under one lock.  `now` never goes backwards.

    Args:
        backoff: What a task without a backoff of its own waits between attempts.
        draw: Returns numbers in [0, 1) for jitter; seeded in tests.
        policy: In which order ready tasks start.
        limits: At most so many tasks of a type run at once.
        breakers: When a type that keeps failing is held back.
        groups: The groups of workers there are.
        capacity: What attempts share while they run; None: nobody asks for anything.
        retention: How many finished tasks with an explicit id are kept, and how long in seconds.
        dead_letters: How many dead letters are kept, and how long in seconds.
        find_letter_bytes: Finds out how many bytes of them are kept, called once, when it first matters;
            None: no bound.
    """

    def __init__(
        self,
        *,
        backoff: Backoff,
        draw: Callable[[], float],
        policy: Policy | None = None,
        limits: Mapping[str, int] | None = None,
        breakers: "Mapping[str, Breaker] | None" = None,
        groups: Sequence[str] = (DEFAULT_GROUP,),
        capacity: Capacity | None = None,
        retention: tuple[int, float] = (10_000, float("inf")),
        dead_letters: tuple[int, float] = (10_000, 604_800.0),
        find_letter_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._backoff = backoff
        self._draw = draw
        #: None: `Strict`, whose rank is no more than the negated priority
        self._policy = None if isinstance(policy, Strict) else policy
        self._retention_limit, self._retention_s = retention
        #: every task that is known, by id
        self.tasks: dict[str, Task] = {}
        #: what stands before the start of tasks, by type; of types with a limit or a breaker alone
        self.gates = _gates({} if limits is None else limits, {} if breakers is None else breakers)
        #: all and only READY tasks that are not sent ahead
        self.ready = _ready_lanes(policy, self.gates, groups)
        #: what attempts share while they run; None: nobody asks for anything
        self.capacity = capacity
        #: whether starts are counted against `capacity`: not before a task takes more than one slot
        self.counts_slots = False
        #: whether levels share the starts
        self._is_fair = isinstance(policy, WeightedFair)
        #: whether anything at all has to be noted when an attempt starts or ends
        self._is_counted = bool(self.gates) or self._is_fair
        #: READY tasks already sent to a busy worker that has not begun them, by sequence number
        self.ahead: dict[int, Task] = {}
        #: nothing of a group in `ahead` is less urgent than this; kept so that a look costs nothing mostly
        self._ahead_bounds: dict[str, Key] = dict.fromkeys(groups, _MOST_URGENT)
        #: how many of `ahead` are of which group; None: there is one group
        self._ahead_counts: dict[str, int] | None = None if len(groups) == 1 else dict.fromkeys(groups, 0)
        #: all and only SCHEDULED tasks, by due instant
        self.delayed: TimerHeap[Task] = TimerHeap()
        #: all and only RUNNING tasks, by sequence number
        self.running: dict[int, Task] = {}
        #: tasks that must have started by an instant and have not
        self.expiring: TimerHeap[Task] = TimerHeap()
        #: types whose breaker is open, by the instant at which it lets a probe through
        self.cooling: TimerHeap[Gate] = TimerHeap()
        #: FAILED tasks that are kept
        self.letters = DeadLetters(*dead_letters, find_letter_bytes)
        #: finished tasks with an explicit id, oldest end first, with the instant of their end
        self._finished: OrderedDict[int, tuple[Task, float]] = OrderedDict()
        #: tasks that reached a terminal state since the driver last took them
        self.settled: list[Task] = []
        #: how many tasks ended in which state, those included that are forgotten
        self._ends: dict[Status, int] = {_SUCCEEDED: 0, _FAILED: 0, _CANCELLED: 0}
        #: tasks that are not in a terminal state, and the bytes of their payloads
        self.open = 0
        self.open_bytes = 0
        #: retries granted, late messages dropped
        self.retries = 0
        self.dropped_late = 0
        #: is told what happens, for events and the journal; None: nobody wants to know
        self.watcher: Watcher | None = None
        #: refuses, by a `UsageError`, tasks that somebody could not keep; None: nobody keeps any
        self.vet: Callable[[Sequence[Task]], object] | None = None
        self._next_seq = 0
        #: why the work is cut short, so that nothing new becomes ready (contract E4, G1, G6); None: it is not
        self._cutting: CutCause | None = None

    @property
    def waiting(self) -> int:
        """How many tasks have not ended and do not run."""
        return self.open - len(self.running)

    def ended_as(self, status: Status) -> int:
        """How many tasks are in a terminal state, those included that are forgotten."""
        return self._ends[status]

    @property
    def counts(self) -> dict[Status, int]:
        """How many tasks are in which state; ended ones are counted even when forgotten."""
        ready = len(self.ready) + len(self.ahead)
        blocked = self.open - ready - len(self.delayed) - len(self.running)
        return {
            _BLOCKED: blocked,
            _SCHEDULED: len(self.delayed),
            _READY: ready,
            _RUNNING: len(self.running),
            **self._ends,
        }

    # --- coming in -----------------------------------------------------------------------------

    def accept(self, tasks: Sequence[Task], now: float) -> None:
        """Take in new tasks, all or none; each may depend on known ones and on earlier ones here.

        Raises:
            DuplicateTaskError: An id is already in use (contract J3, C4).
            UsageError: A task is of no group that there is, or asks for more than there is (B7, B9), or can't
                be kept (L1).
        """
        known = self.tasks
        if self.vet is not None:
            self.vet(tasks)
        if len(tasks) == 1:
            task = tasks[0]
            if task.id in known:
                raise DuplicateTaskError(task.id, f"a task of type {known[task.id].type!r}")
            rules = task.rules
            if rules.demand is not ONE_CPU or rules.group not in self._ahead_bounds:
                self._check_place(task)
        else:
            self._refuse_duplicates(tasks)
            for task in tasks:
                self._check_place(task)
        policy = self._policy
        watcher = self.watcher
        for task in tasks:
            task.seq = self._next_seq
            self._next_seq += 1
            task.submitted_at = now
            rules = task.rules
            if rules.demand is not ONE_CPU and rules.demand != ONE_CPU:
                self.count_slots()
            task.rank = -rules.priority if policy is None else policy.rank(rules.priority, now)
            known[task.id] = task
            self.open += 1
            self.open_bytes += len(task.payload)
            if watcher is not None:
                watcher.submitted(task, now)
            if task.conditions is None:
                task.status = _READY  # no move: it begins so
                self.ready.push(task)
            else:
                self._accept_bound(task, now)

    def retract(self, tasks: Sequence[Task], now: float) -> None:
        """Undo `accept`, right after it: the tasks were never there."""
        for task in reversed(tasks):  # dependents first
            if task.status not in TERMINAL:
                self._leave(task)
                self._end(task, _CANCELLED, now, cause="cancelled")
            self._forget(task)

    def replace(self, old: Sequence[Task], tasks: Sequence[Task], now: float) -> None:
        """Take in new tasks, of which some take the ids of known ones, all or none (contract C4).

        What waits of those ends CANCELLED, what has ended is forgotten.  One that was sent ahead must
        be taken back, or started, by the driver first.

        Raises:
            DuplicateTaskError: One of them runs or is waited for, or an id is already in use by another task,
                be it one that has replaced one of them since.
            UsageError: As `accept`.
        """
        for task in old:
            if self.tasks.get(task.id, task) is not task:
                raise DuplicateTaskError(
                    task.id, "a task that has replaced the same one in this moment", hint="submit it again"
                )
            _check_replaceable(task)
        self._refuse_duplicates(tasks, frozenset(task.id for task in old))
        if self.vet is not None:
            self.vet(tasks)
        for task in tasks:
            self._check_place(task)
        for task in old:
            if task.status not in TERMINAL:
                self._leave(task)
                self._end(task, _CANCELLED, now, cause="replaced")
            if task.trouble is not None:
                task.trouble.is_replaced = True
            self.letters.remove(task)
            self._finished.pop(task.seq, None)
            self._forget(task)
        self.accept(tasks, now)

    def _check_place(self, task: Task) -> None:
        """Refuse a task that could never start.

        Raises:
            UsageError: It could not.
        """
        group, demand = task.rules.group, task.rules.demand
        if group not in self._ahead_bounds:
            raise UsageError(need_refused(task.type, group, self._ahead_bounds))
        excess = "" if self.capacity is None or demand == ONE_CPU else self.capacity.excess(demand)
        if excess:
            raise UsageError(f"{task.type} asks for {excess}, so it could never start")

    def count_slots(self) -> None:
        """From now on count what attempts take of the capacity, those included that run."""
        if self.counts_slots or self.capacity is None:
            return
        self.counts_slots = self._is_counted = True
        for task in self.running.values():
            self.capacity.take(task.rules.demand)

    def _accept_bound(self, task: Task, now: float) -> None:
        """Take in a task that may have to wait for something, or is late already."""
        expires_at = task.expires_at
        if expires_at is not None:
            if now >= expires_at:
                self._end(task, _CANCELLED, now, cause="expired")
                return
            self.expiring.set(task.seq, expires_at, task, task.seq)
        self._attach(task, now)

    def accept_begun(self, task: Task, ended: Ended, now: float) -> None:
        """Take in a task whose first attempt was made within another task, and judge that attempt.

        Raises:
            DuplicateTaskError: Its id is already in use.
        """
        self.accept((task,), now)
        # As if it had been sent ahead: it need not be the most urgent.
        self.ready.discard(task)
        task.status = _RUNNING
        self.running[task.seq] = task
        if self._is_counted:
            self._count_start(task)
        self._begin(task, ended.started_at)
        self.end(task, task.fence, ended, now)

    def spawn(
        self,
        parent: Task,
        fence: int,
        ended: Ended,
        tasks: Sequence[Task],
        now: float,
        replaced: Sequence[Task] = (),
    ) -> bool:
        """Note that an attempt returned, and take in the tasks that it brings: both or neither (contract E6).

        They may depend on the parent, too.  When shutdown cuts the work short they end CANCELLED at once.

        Args:
            parent: The task.
            fence: Names the attempt.
            ended: The report on it.
            tasks: What it brings.
            now: The instant of the call.
            replaced: Known tasks whose ids some of them take, as in `replace`.

        Returns:
            False if the report is late: that attempt is not the current one (D1).

        Raises:
            UsageError: As `accept`, or as `replace`; then nothing is changed.
        """
        if parent.fence != fence or parent.status is not _RUNNING:
            self.dropped_late += 1
            return False
        if replaced:
            self.replace(replaced, tasks, now)
        else:
            self.accept(tasks, now)
        self.end(parent, fence, ended, now)
        if self._cutting is not None:
            self._cut(tasks, now, self._cutting)
        return True

    def _refuse_duplicates(self, tasks: Sequence[Task], freed: frozenset[str] = frozenset()) -> None:
        seen: set[str] = set()
        for task in tasks:
            if (task.id in self.tasks and task.id not in freed) or task.id in seen:
                raise DuplicateTaskError(task.id)
            seen.add(task.id)

    def _attach(self, task: Task, now: float) -> None:
        """Make a BLOCKED task wait for its dependencies, or end or release it if none is open."""
        verdict = graph.attach(task)
        if verdict == "free":
            self._release(task, now)
        elif verdict != "waits":
            self._end(task, _CANCELLED, now, cause=verdict.cause, origin=verdict.origin)
        elif self.watcher is not None:
            self.watcher.blocked(task, now)

    def _release(self, task: Task, now: float) -> None:
        """Let a task wait for its instant, or make it ready."""
        due = None if task.conditions is None else task.conditions.due
        if due is not None and now < due:
            self._make_scheduled(task, due, now)
        else:
            self._make_ready(task, now)

    def _make_scheduled(self, task: Task, due: float, now: float) -> None:
        self._move(task, _SCHEDULED)
        self.delayed.set(task.seq, due, task, task.seq)
        if self.watcher is not None:
            self.watcher.scheduled(task, due, now)

    def _make_ready(self, task: Task, now: float) -> None:
        self._move(task, _READY)
        self.ready.push(task)
        if self.watcher is not None:
            self.watcher.ready(task, now)

    def restore(self, task: Task, past: "Past", now: float) -> None:
        """Take in a task as it was when an earlier supervisor ended, at its old place (contract L2).

        Tasks come in order of submission.  One that ran is RUNNING again, though nobody runs it: `end` must
        follow once all are there, and its attempt is lost.

        Args:
            task: It has its dependencies, each restored before.
            past: What it was.
            now: The instant of the call.

        Raises:
            UsageError: It is of no group that there is, or asks for more than there is (B7, B9).
        """
        is_open = past.status not in TERMINAL
        if is_open:
            self._check_place(task)
        task.seq = past.seq
        self._next_seq = max(self._next_seq, past.seq + 1)
        task.submitted_at = past.submitted_at
        priority = task.rules.priority
        task.rank = -priority if self._policy is None else self._policy.rank(priority, past.submitted_at)
        task.fence, task.failures, task.first_started_at = past.fence, past.failures, past.first_started_at
        if past.history:
            task.in_trouble().history = list(past.history)
        if not past.is_forgotten:
            self.tasks[task.id] = task
        if is_open:
            self._restore_open(task, past, now)
        else:
            self._restore_ended(task, past, now)

    def _restore_ended(self, task: Task, past: "Past", now: float) -> None:
        """Take in a task that had ended."""
        status = task.status = past.status
        self._ends[status] += 1
        if status is _SUCCEEDED:
            task.ran, task.value = past.ran, past.value
        else:
            trouble = task.in_trouble()
            trouble.ended = past.history[-1][1] if status is _FAILED and past.history else None
            trouble.cause, trouble.origin = past.cause, past.origin
            graph.recall(task, past.cut_by)
        if past.is_forgotten:
            return
        if status is _FAILED:
            for gone in self.letters.add(task, past.ended_at):
                self._forget(gone)
        elif task.explicit:
            self._finished[task.seq] = (task, past.ended_at)
            self._prune_finished(now)

    def _restore_open(self, task: Task, past: "Past", now: float) -> None:
        """Take in a task that had not ended."""
        rules = task.rules
        if rules.demand is not ONE_CPU and rules.demand != ONE_CPU:
            self.count_slots()
        self.open += 1
        self.open_bytes += len(task.payload)
        if self.watcher is not None:
            self.watcher.submitted(task, now)
        if past.started_at is not None:
            task.status, task.started_at = _RUNNING, past.started_at
            self.running[task.seq] = task
            if self._is_counted:
                self.ready.began(task)
                self._count_start(task)
            return
        if task.conditions is not None and task.expires_at is not None and past.first_started_at is None:
            self.expiring.set(task.seq, task.expires_at, task, task.seq)
        task.status = _BLOCKED
        if past.due is not None and past.due > now and not graph.is_waiting(task):
            self._make_scheduled(task, past.due, now)
        elif past.first_started_at is not None:
            self._make_ready(task, now)
        elif task.conditions is None:
            task.status = _READY  # as in `accept`
            self.ready.push(task)
        else:
            self._attach(task, now)

    # --- what runs next ------------------------------------------------------------------------

    def next_ready(self, group: str = DEFAULT_GROUP) -> Task | None:
        """Return the task of a group to start next, without starting it; None if none may start (B1, B4-B7, D8).

        Whether its slots are free is another question: `fits`.
        """
        return self.ready.peek(group)

    def precedence(self, task: Task) -> Key:
        """Sort key among the next tasks of all groups: by urgency, or where levels share the oldest first."""
        return (0, task.seq) if self._is_fair else (task.rank, task.seq)

    def fits(self, task: Task) -> bool:
        """Whether what a task takes is free now (contract B9).

        Also if nothing runs, so that a task that asks for more than is left after a `resize` runs alone.
        """
        if not self.counts_slots or self.capacity is None or not self.running:
            return True
        return self.capacity.fits(task.rules.demand)

    def backlog(self, group: str = DEFAULT_GROUP) -> int:
        """Return how many tasks of a group are READY."""
        return self.ready.count(group) + self.count_ahead(group)

    def count_ahead(self, group: str = DEFAULT_GROUP) -> int:
        """Return how many tasks of a group are sent ahead."""
        return len(self.ahead) if self._ahead_counts is None else self._ahead_counts[group]

    def send_ahead(self, task: Task) -> None:
        """Note that the task `next_ready` returned was sent to a busy worker; it stays READY."""
        ready = self.ready
        ready.pop(task)
        self.ahead[task.seq] = task
        group, key = task.rules.group, ready.key(task)
        if self._ahead_counts is not None:
            self._ahead_counts[group] += 1
        if key > self._ahead_bounds[group]:  # noqa: PLR1730 - `max` takes twice as long
            self._ahead_bounds[group] = key

    def overtaken_by(self, task: Task) -> Task | None:
        """Return the least urgent task of its group that was sent ahead, if it is less urgent than `task` (B8)."""
        group, key = task.rules.group, self.ready.key(task)
        if key > self._ahead_bounds[group]:
            return None
        last = max(self._ahead_of(group), key=self.ready.key, default=None)
        bound = self._ahead_bounds[group] = _MOST_URGENT if last is None else self.ready.key(last)
        return last if key < bound else None

    def first_ahead(self, group: str = DEFAULT_GROUP) -> Task:
        """Return the most urgent task of a group that was sent ahead; there must be one."""
        return min(self._ahead_of(group), key=self.ready.key)

    def _ahead_of(self, group: str) -> Iterable[Task]:
        if self._ahead_counts is None:
            return self.ahead.values()
        return (task for task in self.ahead.values() if task.rules.group == group)

    def take_back(self, task: Task) -> None:
        """Put a task that was sent ahead and not begun back among the ready ones (B8)."""
        self._leave_ahead(task)
        self.ready.returned(task)
        self.ready.push(task)

    def _leave_ahead(self, task: Task) -> None:
        del self.ahead[task.seq]
        if self._ahead_counts is not None:
            self._ahead_counts[task.rules.group] -= 1

    def start(self, task: Task, now: float) -> None:
        """Begin the next attempt of the task `next_ready` returned, or of one sent ahead."""
        if task.status is not _READY:
            raise _illegal(task, _RUNNING)
        if task.standing:
            self.ready.pop(task)
        else:
            self._leave_ahead(task)
        task.status = _RUNNING
        if self._is_counted:
            self.ready.began(task)
            self._count_start(task)
        self.running[task.seq] = task
        self._begin(task, now)

    def _count_start(self, task: Task) -> None:
        """Note what an attempt takes that starts."""
        gate = self.gates.get(task.type)
        if gate is not None:
            gate.take(task.seq)
        if self.counts_slots and self.capacity is not None:
            self.capacity.take(task.rules.demand)

    def _count_end(self, task: Task) -> None:
        """Give back what an attempt took that has ended, or has not begun after all."""
        gate = self.gates.get(task.type)
        if gate is not None:
            gate.release()
        if self.counts_slots and self.capacity is not None:
            self.capacity.give_back(task.rules.demand)

    def _begin(self, task: Task, started_at: float) -> None:
        """Number the attempt that begins, and note when."""
        task.fence += 1
        task.started_at = started_at
        if self.watcher is not None:
            self.watcher.begun(task, started_at)
        if task.first_started_at is None:
            task.first_started_at = started_at
            if task.conditions is not None and task.expires_at is not None:
                self.expiring.discard(task.seq)

    def put_back(self, task: Task, now: float) -> None:
        """Undo the start of an attempt that has not begun: nobody ran it, and nothing is charged."""
        del self.running[task.seq]
        if self._is_counted:
            self._count_end(task)
            self._learn(task, None, now)
            self.ready.returned(task)
        if self._cutting is not None:
            self._end(task, _CANCELLED, now, cause=self._cutting)
            return
        task.started_at = None
        if not task.history:
            task.first_started_at = None
            expires_at = task.expires_at
            if expires_at is not None:
                self.expiring.set(task.seq, expires_at, task, task.seq)
        self._move(task, _READY)
        self.ready.push(task)
        if self.watcher is not None:
            self.watcher.returned(task, now)

    def next_due(self) -> float | None:
        """Return the next instant at which `advance` has something to do, or None."""
        due = self.delayed.next_at()
        expiry = self.expiring.next_at()
        if self.cooling:
            instants = (due, expiry, self.cooling.next_at())
            return min((instant for instant in instants if instant is not None), default=None)
        if due is None or expiry is None:
            return expiry if due is None else due
        return min(due, expiry)

    @property
    def has_timers(self) -> bool:
        """Whether `next_due` has anything to look at."""
        return bool(self.delayed.live or self.expiring.live or self.cooling.live)

    def advance(self, now: float) -> None:
        """Expire what had to start before `now`, then make ready what is due (`now >= due`), and let probes through."""
        while (late := self.expiring.pop_due(now)) is not None:
            self._leave(late)
            self._end(late, _CANCELLED, now, cause="expired")
        while (task := self.delayed.pop_due(now)) is not None:
            self._make_ready(task, now)
        while (gate := self.cooling.pop_due(now)) is not None:
            assert gate.circuit is not None, "it was open"
            gate.circuit.cool()
            gate.tell()

    # --- how attempts end ----------------------------------------------------------------------

    def succeed(self, task: Task, fence: int, value: Payload | None, run: Run | CapturedRun, now: float) -> bool:
        """Note that an attempt returned: `end` for the outcome "ok", and more.

        It may also be the next attempt of a task that was sent ahead: then it began and ended since
        the driver last looked, and passes through RUNNING on the way.

        Args:
            task: The task.
            fence: Names the attempt: how often the task had been started with it.
            value: The pickled result.
            run: When and where it ran.
            now: The instant of the call.

        Returns:
            False if the report is late: that attempt is not the current one (D1).
        """
        if task.status is _RUNNING and task.fence == fence:
            del self.running[task.seq]
            if self._is_counted:
                self._count_end(task)
                self._learn(task, "ok", now)
        elif task.fence + 1 == fence and task.seq in self.ahead:
            del self.ahead[task.seq]  # what it would take of anything it has given back
            if self._ahead_counts is not None:
                self._ahead_counts[task.rules.group] -= 1
            task.status = _RUNNING
            if self._is_counted:
                self.ready.began(task)
            self._begin(task, run[0])
        else:
            self.dropped_late += 1
            return False
        task.ran = run
        task.value = value
        watcher = self.watcher
        if watcher is not None:
            watcher.succeeded(task, value, run)
        if task.conditions is None and task.dependents is None and task.owner is not None and not task.explicit:
            # As `_end` would have it, for a task that nothing hangs on.
            task.status = _SUCCEEDED
            self._ends[_SUCCEEDED] += 1
            self.open -= 1
            self.open_bytes -= len(task.payload)
            task.payload = b""
            self.settled.append(task)
            if watcher is not None:
                watcher.ended(task, now)
        else:
            self._end(task, _SUCCEEDED, now)
        return True

    def end(self, task: Task, fence: int, ended: Ended, now: float) -> bool:
        """Judge the report on an attempt (contract D3): success, retry, failure or cancellation.

        Returns:
            False if the report is late: that attempt is not the current one (D1).
        """
        if task.fence != fence or task.status is not _RUNNING:
            self.dropped_late += 1
            return False
        if ended.outcome == "ok":
            run: Run | CapturedRun
            run = (ended.started_at, ended.ended_at, ended.pid, ended.cpu_s, ended.peak_rss_bytes)
            if ended.stdout is not None or ended.stderr is not None:
                run = (*run, ended.stdout, ended.stderr)
            return self.succeed(task, fence, ended.value, run, now)
        del self.running[task.seq]
        if self._is_counted:
            self._count_end(task)
            self._learn(task, ended.outcome if _is_charged(ended) else None, now)
        trouble = task.in_trouble()
        if trouble.history is None:
            trouble.history = []
        trouble.history.append((task.attempt, ended))
        if self.watcher is not None:
            self.watcher.failed(task, ended)
        if ended.outcome == "cancelled":
            self._end(task, _CANCELLED, now, cause="cancelled")
        else:
            self._judge_failure(task, ended, now)
        return True

    def _learn(self, task: Task, outcome: "Outcome | None", now: float) -> None:
        """Let the breaker of a task's type know how an attempt ended; None: in a way that says nothing (D8)."""
        gate = self.gates.get(task.type)
        if gate is None or gate.circuit is None:
            return
        circuit = gate.circuit
        if outcome is None:
            circuit.undone(task.seq)
        elif outcome == "ok":
            circuit.succeeded(task.seq)
        elif circuit.failed(task.seq, now):
            self.cooling.set(task.type, circuit.opened_until, gate)
        gate.tell()

    def _judge_failure(self, task: Task, ended: Ended, now: float) -> None:
        """Retry the task, or end it."""
        if not _is_charged(ended):
            if ended.retry_after_s is None:
                self._retry(task, 0.0, now)
            else:
                self._retry_in_time(task, ended, ended.retry_after_s, now)
            return
        task.failures += 1
        if not self._may_retry(task, ended):
            self._fail(task, ended, now)
            return
        try:
            delay_s = self._delay_after(task)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function must not stop the queue
            ended.message += f" (not retried: its backoff function raised {type(error).__name__}: {error})"
            self._fail(task, ended, now)
            return
        self._retry_in_time(task, ended, delay_s, now)

    def _retry_in_time(self, task: Task, ended: Ended, delay_s: float, now: float) -> None:
        """Put a task back, unless its next attempt would come later than `retry_for` allows (C3)."""
        limit_s = task.rules.retry_for_s
        first_started_at = now if task.first_started_at is None else task.first_started_at
        if limit_s is not None and now + delay_s > first_started_at + limit_s:
            self._fail(task, ended, now)
        else:
            self._retry(task, delay_s, now)

    def _may_retry(self, task: Task, ended: Ended) -> bool:
        """Whether attempts are left and this kind of failure is retried (contract D3)."""
        rules = task.rules
        if ended.permanent or task.failures >= rules.max_attempts or ended.outcome in rules.never_retry:
            return False
        if ended.outcome != "error":
            return True
        if not rules.never_retry.isdisjoint(ended.error_types):
            return False
        return rules.retry_on is None or not rules.retry_on.isdisjoint(ended.error_types)

    def _delay_after(self, task: Task) -> float:
        """Return the wait after the task's last failure, in seconds."""
        backoff = task.rules.backoff
        return (self._backoff if backoff is None else backoff).delay(task.failures, self._draw())

    def _retry(self, task: Task, delay_s: float, now: float) -> None:
        """Put a task back; when the work is cut short, cancel it instead (G1, G2)."""
        if self._cutting is not None:
            self._end(task, _CANCELLED, now, cause=self._cutting)
            return
        self.retries += 1
        if delay_s > 0:
            self._make_scheduled(task, now + delay_s, now)
        else:
            self._make_ready(task, now)

    def _fail(self, task: Task, ended: Ended, now: float) -> None:
        """End a task FAILED and keep its dead letter (D7, F6)."""
        task.in_trouble().ended = ended
        self._end(task, _FAILED, now)

    # --- the end of a task ---------------------------------------------------------------------

    def _end(
        self, task: Task, status: Status, now: float, *, cause: Cause | None = None, origin: str | None = None
    ) -> None:
        """End a task and all that follows from it, breadth first and without recursion (E3, E4)."""
        self._end_one(task, status, now, cause, origin)
        if task.dependents is None:
            return
        wave = [task]
        for ended in wave:  # grows while it is walked
            if ended.dependents is not None:
                wave += self._tell(ended, now)

    def _tell(self, ended: Task, now: float) -> list[Task]:
        """Tell those that wait for a task, in order of submission, that it has ended; return whom this cancelled."""
        waiting = graph.waiting_for(ended)
        cut: list[Task] = []
        for dependent in waiting:
            verdict = graph.hear(dependent, ended)
            if verdict == "free":
                self._release(dependent, now)
            elif verdict != "waits":
                self._end_one(dependent, _CANCELLED, now, verdict.cause, verdict.origin)
                cut.append(dependent)
        graph.settle(ended, waiting, cut)
        return cut

    def _end_one(self, task: Task, status: Status, now: float, cause: Cause | None, origin: str | None) -> None:
        """Move a task to a terminal state: the only door (contract A4)."""
        self._move(task, status)
        self._ends[status] += 1
        self.open -= 1
        self.open_bytes -= len(task.payload)
        if cause is not None:
            trouble = task.in_trouble()
            trouble.cause = cause
            trouble.origin = origin
        conditions = task.conditions
        if conditions is not None and conditions.expires_at is not None:
            self.expiring.discard(task.seq)
        self.settled.append(task)
        if self.watcher is not None:
            self.watcher.ended(task, now)
        if status is _FAILED:
            for gone in self.letters.add(task, now):
                self._forget(gone)
            return
        if status is _SUCCEEDED:
            task.inputs = ()
            if not task.explicit:
                task.conditions = None
                task.payload = b""
            else:  # it is compared with what is submitted again (C4): an outline and `needs` stay
                if isinstance(task.payload, Parcel):
                    task.payload = task.payload.outlined()
                if conditions is not None:
                    conditions.depends_on = ()
        if task.explicit:
            self._finished[task.seq] = (task, now)
            self._prune_finished(now)
        elif task.owner is None:
            self._forget(task)

    # --- commands ------------------------------------------------------------------------------

    def cancel(self, task: Task, now: float) -> CancelAnswer:
        """Cancel a task (contract F3).

        A task that was sent ahead must be taken back, or started, by the driver first.

        Returns:
            "cancelled" if it ended at once; "stopping" if it runs and the driver must stop it;
            "finished" if it had ended.
        """
        if task.status in TERMINAL:
            return "finished"
        if task.status is _RUNNING:
            return "stopping"
        self._leave(task)
        self._end(task, _CANCELLED, now, cause="cancelled")
        return "cancelled"

    def cut_off(self, now: float, cause: CutCause = "shutdown") -> list[Task]:
        """Cancel everything that waits, and retry nothing from now on (contract G1).

        What was sent ahead must be taken back, or started, by the driver first.  Returns what it
        cancelled, in order of submission.  May be called again, for another cause from then on.
        """
        self._cutting = cause
        waiting = sorted((task for task in self.tasks.values() if task.status in WAITING), key=by_seq)
        self._cut(waiting, now, cause)
        return waiting

    def _cut(self, tasks: Sequence[Task], now: float, cause: CutCause) -> None:
        """Cancel those of some tasks that wait, for a shutdown or a halt."""
        # Dependents first, so that each is cancelled for that, not for its dependency.
        for task in reversed(tasks):
            if task.status in WAITING:
                self._leave(task)
                self._end(task, _CANCELLED, now, cause=cause)

    def fail_waiting(self, ended: Ended, now: float) -> None:
        """End everything READY or SCHEDULED as FAILED: attempts cannot be run at all (D11).

        What was sent ahead must be taken back, or started, by the driver first.
        """
        # Again and again: what runs whatever becomes of its dependencies gets ready by this.
        while waiting := sorted((*self.ready, *self.delayed), key=by_seq):
            for task in waiting:
                self._leave(task)
                self._fail(task, ended, now)

    def replay(self, task: Task, now: float, *, reset_attempts: bool = True, with_dependents: bool = False) -> bool:
        """Take a FAILED or CANCELLED task back at its original place (contract F7).

        A dependent is left as it is if it was cancelled for another reason, or if it was forgotten
        and its id was given to another task since.

        Returns:
            Whether it was taken back; False for a task in any other state, and for one that was
            cancelled again at once because a dependency still stands in its way.

        Raises:
            DuplicateTaskError: Its id was given to another task since, as it was forgotten or replaced.
        """
        if task.status not in UNSUCCESSFUL:
            return False
        if self._is_displaced(task):
            raise DuplicateTaskError(task.id, "a task that was submitted after this one was forgotten or replaced")
        revived = [task]
        if with_dependents:
            for ended in revived:  # grows while it is walked
                revived += ended.cut
            revived.sort(key=by_seq)  # dependencies were submitted before their dependents
        for one in revived:
            if not self._is_displaced(one):
                self._revive(one, now, reset_attempts=reset_attempts)
        return task.status not in TERMINAL

    def _is_displaced(self, task: Task) -> bool:
        """Whether another task has its id, or has replaced it and is forgotten by now."""
        return self.tasks.get(task.id, task) is not task or (task.trouble is not None and task.trouble.is_replaced)

    def _revive(self, task: Task, now: float, *, reset_attempts: bool) -> None:
        """Bring one task back from its end."""
        self.letters.remove(task)
        self._finished.pop(task.seq, None)
        self.tasks[task.id] = task
        if reset_attempts:
            task.failures = 0
            task.first_started_at = None
        assert task.ran is None, f"{task} has succeeded"
        graph.reopen(task)  # it asks for the cause, which goes now
        trouble = task.in_trouble()
        trouble.ended = trouble.cause = trouble.origin = None
        if task.conditions is not None:
            task.conditions.due = task.conditions.expires_at = None
        self.open += 1
        self.open_bytes += len(task.payload)
        self._ends[task.status] -= 1
        task.status = _BLOCKED
        if self.watcher is not None:
            self.watcher.replayed(task, now)
        self._attach(task, now)

    def purge(self, tasks: Iterable[Task]) -> int:
        """Drop the dead letters of these tasks for good; return how many there were."""
        gone = [task for task in tasks if task in self.letters]
        for task in gone:
            self.letters.remove(task)
            self._forget(task)
        return len(gone)

    def find(self, task_id: str) -> Task:
        """Return the task of this id.

        Raises:
            UnknownTaskError: Never submitted, or forgotten.
        """
        task = self.tasks.get(task_id)
        if task is None:
            raise UnknownTaskError(task_id)
        return task

    def disown(self, task: Task) -> None:
        """Nobody holds the task's handle any more: forget it once it has ended (contract F5)."""
        task.owner = None
        if task.status in TERMINAL and not task.explicit and task not in self.letters:
            self._forget(task)

    def prune(self, now: float) -> None:
        """Forget what was kept long enough: finished tasks and dead letters."""
        self._prune_finished(now)
        for gone in self.letters.prune(now):
            self._forget(gone)

    def _prune_finished(self, now: float) -> None:
        while self._finished:
            task, ended_at = next(iter(self._finished.values()))
            if len(self._finished) <= self._retention_limit and now - ended_at < self._retention_s:
                break
            del self._finished[task.seq]
            self._forget(task)

    def _forget(self, task: Task) -> None:
        """Take a task out of the index; handles and dependents that hold it still can use it."""
        if self.tasks.get(task.id) is task:
            del self.tasks[task.id]
        if self.watcher is not None:
            self.watcher.forgotten(task)

    # --- inner workings ------------------------------------------------------------------------

    def _leave(self, task: Task) -> None:
        """Take a waiting task out of the container of its state."""
        if task.status is _READY:
            assert task.seq not in self.ahead, f"{task} must be taken back first"
            self.ready.discard(task)
        elif task.status is _SCHEDULED:
            self.delayed.discard(task.seq)

    def _move(self, task: Task, status: Status) -> None:
        """Write a task's status, if the table allows the move (contract A3)."""
        if status not in MOVES[task.status]:
            raise _illegal(task, status)
        task.status = status

    def check_invariants(self) -> None:
        """Assert that every open task is in exactly the container of its state; O(n), for tests."""
        ready = list(self.ready)
        self.ready.check_invariants()
        assert len(ready) == len(self.ready), "ready lanes miscount"
        assert len({task.seq for task in ready}) == len(ready), "a task is ready twice"
        delayed = set(self.delayed)
        assert not any(task.standing for task in self.ahead.values()), "a task both ready and ahead"
        for group, number in (self._ahead_counts or {}).items():
            assert number == sum(task.group == group for task in self.ahead.values()), f"ahead of {group} miscounted"
        for name, gate in self.gates.items():
            taken = sum(task.type == name for task in self.running.values())
            assert gate.taken == taken, f"{name}: counted {gate.taken} running, there are {taken}"
            is_open = gate.circuit is not None and gate.circuit.state == "open"
            assert is_open == (name in self.cooling), f"the breaker of {name} is open or not, and does not cool"
        if self.counts_slots and self.capacity is not None:
            cpus = sum(task.rules.demand.cpus for task in self.running.values())
            assert self.capacity.free_cpus == self.capacity.cpus - cpus, f"{cpus} cpus are taken, and miscounted"
        for task in ready:
            assert task.status is _READY, f"{task} in the ready lanes"
            assert task.seq not in self.ahead, f"{task} both ready and ahead"
        assert all(task.status is _READY for task in self.ahead.values()), "ahead must be READY"
        assert all(task.status is _SCHEDULED for task in delayed), "delayed must be SCHEDULED"
        assert all(task.status is _RUNNING for task in self.running.values()), "running must be RUNNING"
        assert all(task.status is _FAILED for task in self.letters), "letters must be FAILED"
        members = {_READY: len(ready) + len(self.ahead), _SCHEDULED: len(delayed)}
        members[_RUNNING] = len(self.running)
        blocked = [task for task in self.tasks.values() if task.status is _BLOCKED]
        members[_BLOCKED] = len(blocked)
        counts = self.counts
        for status, number in members.items():
            assert counts[status] == number, f"{status}: counted {counts[status]}, held {number}"
        assert self.open == sum(members.values()), "open tasks miscounted"
        held_bytes = sum(len(task.payload) for task in self.tasks.values() if task.status not in TERMINAL)
        assert self.open_bytes == held_bytes, f"counted {self.open_bytes} bytes, held {held_bytes}"
        for task in blocked:
            waits_for = [dep for dep in task.depends_on if dep.status not in TERMINAL]
            unmet = 0 if task.conditions is None else task.conditions.unmet
            assert unmet == len(waits_for) > 0, f"{task} waits for {unmet}, not {len(waits_for)}"
            unfinished = [dep for dep in task.depends_on if dep.status is not _SUCCEEDED]
            assert all(task in (dep.dependents or ()) for dep in unfinished), f"{task} is not told"
        for task in self.tasks.values():
            for one in task.cut:
                assert one.status is _CANCELLED and one.cause in graph.BY_DEPENDENCY, f"{one} was not cut"  # noqa: PT018
                assert task in one.depends_on, f"{one} does not depend on {task}"
            assert (task.ran is not None) == (task.status is _SUCCEEDED), f"{task} has run to {task.ran}"
        for task in (*ready, *self.ahead.values(), *delayed, *self.running.values()):
            assert self.tasks.get(task.id) is task, f"{task} is open but not known"


def _gates(limits: Mapping[str, int], breakers: "Mapping[str, Breaker]") -> "dict[str, Gate]":
    """Build what stands before the start of tasks, by type."""
    if not limits and not breakers:
        return {}
    from procq.core.gates import Gate  # noqa: PLC0415 - few queues have any

    return {name: Gate(limits.get(name), breakers.get(name)) for name in {**limits, **breakers}}


def _ready_lanes(policy: Policy | None, gates: "Mapping[str, Gate]", groups: Sequence[str]) -> "Ready":
    """Build what ready tasks wait in."""
    if len(groups) == 1 and not isinstance(policy, WeightedFair):
        return ReadyLanes(gates)
    from procq.core.shares import shared_lanes  # noqa: PLC0415 - few queues have several sets of lanes

    return shared_lanes(policy, gates, groups)


def _is_charged(ended: Ended) -> bool:
    """Whether an attempt that did not succeed uses one up (contract D2, D7, G2)."""
    return ended.outcome not in _UNCHARGED and (ended.retry_after_s is None or ended.permanent)


def _illegal(task: Task, status: Status) -> InternalError:
    """Return the error of a move that the table does not allow (contract A3)."""
    story = "; ".join(f"attempt {record.attempt}: {record.outcome}" for record in task.records())
    error = InternalError(
        f"task {task.id!r} cannot move from {task.status} to {status} "
        f"(started {task.fence} times; {story or 'no attempt ended'}); please report this"
    )
    error.history = task.records()
    return error


def _check_replaceable(task: Task) -> None:
    """Refuse to put another task into the place of one (contract C4).

    Raises:
        DuplicateTaskError: It runs, or open tasks wait for it, which would be cut.
    """
    if task.status is _RUNNING:
        raise DuplicateTaskError(
            task.id, "a task that runs, and so can't be replaced", hint="cancel it, or wait for its end"
        )
    waiting = [] if task.status in TERMINAL else graph.waiting_for(task)
    if waiting:
        raise DuplicateTaskError(
            task.id,
            f"a task that others wait for ({waiting[0].id!r} is one), and so can't be replaced",
            hint="cancel those, or give the new task another id",
        )
