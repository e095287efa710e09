"""`Queue`: what programs import (contract C, F, G, H).

The façade: it pickles what the user says in the user's thread, and passes it on to the supervisor under
the one lock.  What a queue may be made with is for vetting.py to say; no rule of scheduling stands here.
"""

import atexit
import sys
import warnings
import weakref
from _random import Random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count as count_from
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    final,
    overload,
)

from procq.batch import is_known, tasks_of_specs, waiting_under
from procq.brake import Brake
from procq.closing import Mode, ShutdownReport
from procq.core.capacity import Capacity
from procq.core.scheduler import CancelAnswer, Scheduler
from procq.core.task import Task
from procq.draft import draft_all, pickle_call
from procq.engine.local.machine import quarter_of_memory
from procq.errors import QueueClosedError, UnknownTaskError, UsageError
from procq.halting import FailureLimit, Halt, OnFailure, RunDeadline
from procq.handle import Handle, TaskResult, handle_of, supervisor_of, task_of
from procq.inside import check_on_conflict
from procq.interrupts import finalizes
from procq.lock import refuse_nested_call
from procq.log import WARNING, Logger
from procq.offspring import heads_of
from procq.outcome import Ended
from procq.retry import BackoffLike, as_backoff, exponential
from procq.slots import DEFAULT_GROUP, need_refused
from procq.spec import DEFAULTS, OnConflict, TaskFunction, TaskSpec, call_spec, type_of
from procq.supervisor import Supervisor, live_supervisors
from procq.units import Duration, Size, count, seconds
from procq.vetting import (
    NOT_GIVEN,
    breakers_by_type,
    checked_policy,
    chosen_engine,
    count_or_none,
    handlers_by_type,
    headroom_of,
    limits_by_type,
    number_and_age,
    pending_bytes,
    slots_and_memory,
    workers_by_group,
)

if TYPE_CHECKING:
    from datetime import datetime
    from os import PathLike

    from procq.core.breaker import Breaker
    from procq.core.policies import Aging, WeightedFair
    from procq.core.records import DeadLetter
    from procq.engine.protocol import Engine
    from procq.events import OnEvent
    from procq.journal import Durability
    from procq.mapping import Results
    from procq.stats import Stats

logger = Logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

#: Finished tasks with an id of their own that are kept, and for how long: an hour (contract F5).
RETENTION: Final = (10_000, 3600)
#: Dead letters that are kept, and for how long: a week (contract F6; the figures of asynq and Dramatiq).
DEAD_LETTERS: Final = (10_000, 604_800)

#: How a known task is named: by its id, its handle or its spec (contract C0).
TaskRef: TypeAlias = "str | Handle[Any] | TaskSpec[Any]"


@final
class Queue:
    """A pool of worker processes and the in-memory queue in front of it.

    Made stopped; `start()` or `with` starts it.  Leaving `with` drains it, leaving by an
    exception kills it (contract G4).  Every method is thread-safe and may be called from
    done-callbacks; only those that say so block.  A call from a signal handler or a `__del__` that
    comes amid another one of its own thread is refused with a `UsageError` and does nothing; let
    the handler set a flag instead.  Delivery is at least once (D1).

    Args:
        workers: How many processes at most; None: as many as there are usable processors
            (affinity and cgroup quota), less those of `groups`, but at least 1.  They start when there
            is work for them.
        handlers: Functions by type, for `TaskSpec(type=..., payload=...)`.
        policy: "strict": highest priority first, then order of submission.  `Aging()`: likewise, but
            to wait is worth points, so that nobody starves.  `WeightedFair({...})`: every level gets its
            share of the starts.  Each states its bound.
        limits: At most so many tasks of a type run at once.
        groups: How many workers there are at most for the tasks of each further group, by its name (contract
            B7).  Tasks that name no group are in "default", and `workers` is how many there are for
            those, unless it is named here.
        resources: What attempts share while they run: "cpu", slots in all (a task takes its `cpus`,
            1 unless it says; by default there are as many as workers), and "memory", a size (a task
            takes its `memory`; by default there is as much as the machine or the cgroup has, found
            out when a task first asks).  Nothing is enforced by this; it decides what runs at
            once.  When there is not enough free for the most urgent task nothing less urgent starts
            before it, so a big one is not starved by small ones; from the first task that takes more
            than one slot on none is sent ahead, which costs throughput where tasks are tiny.
        breaker: By type: when tasks of that type that keep failing are held back (`Breaker`).
        backoff: What a task waits between attempts unless it says otherwise.
        initializer: Called with `initargs` once in each worker before its first task.  What it
            prepares must be in a module: functions of `__main__` travel by value, each call with
            globals of its own.
        initargs: Its arguments.
        max_pending: At most so many tasks wait; then `submit` waits.  None: no bound.
        max_pending_bytes: At most so many bytes of pickled calls are held; None: no bound.  By
            default a quarter of the memory that is available when it first matters.
        max_tasks_per_worker: A worker is replaced by a fresh one after so many attempts; None:
            never.
        max_memory_per_worker: A worker that holds more, its child processes included, is killed,
            which costs the attempt that it runs: outcome "memory", `MemoryLimitExceeded` (contract
            D10).  Looked at every 50 ms, so what takes memory faster overshoots.  None: no limit.
        recycle_memory: A worker that holds more after an attempt is replaced by a fresh one,
            charged to nobody.  None: as `max_memory_per_worker`.
        min_free_memory: While less is available on the machine, or in the cgroup of this program,
            no attempt starts unless none runs.  None: memory is not looked at.
        max_failures: The queue halts as soon as so many tasks have ended FAILED, or, given a share such
            as "5%", as soon as they are so much of those that ended SUCCEEDED or FAILED, which is
            judged once 20 have, and again at the end.  What halts it starts no other task any more;
            so nothing that could begin after it is sent ahead to a busy worker, which costs
            throughput where tasks are tiny.  Retries and cancelled tasks are no failures (contract G6).
        on_failure: How it then halts: "finish" lets what runs end, without retries; "kill" asks that to
            stop as well, and kills it after `kill_grace`.
        deadline: A duration from `start()`, or a `datetime`, turned into a duration once, at `start()`.
            Then nothing more starts, what runs is asked to stop and killed after `kill_grace`, and
            all the rest ends CANCELLED.
        kill_grace: From asking a task to stop until its process group is killed.
        start_timeout: A worker that is not ready by then, initializer included, is killed.
        capture: Whether what each attempt writes to standard output and standard error, its
            child processes and C code included, is kept in its `AttemptRecord` instead of
            appearing with the program's own: the last 64 KiB of each (contract H4).  No task is
            sent ahead to a busy worker then, which costs throughput where tasks are tiny.
        retention: How many finished tasks with an id of their own are kept, and how long.
        dead_letters: How many dead letters are kept, and how long.  Together they hold no more than a
            quarter of the memory that is available when it first matters, arguments included, or 64
            MiB; the oldest go first, and the newest is kept in any case (contract F6).
        engine: "local", or an engine object such as `procq.testing` makes.
        on_event: Called with each event, a `dict` of what JSON can hold, in a thread of procq's own, one
            after the other; `shutdown` waits for the last.  One that raises is logged and harms
            nobody; one that falls 100,000 events behind misses some, of which a `warning` event tells.
            With the opt-in kinds "task.held", "attempt.progress" and "log" a pair:
            `(callable, ["log"])`.
        journal: A file that keeps what the queue holds (contract L): opened again after a crash, a kill or a
            shutdown that cut work off, the queue goes on with it.  An attempt that ran then counts as lost;
            what has ended, as far as `retention` goes, is known by its id; what has no id of its own goes on as
            well, though nobody has its handle.  One queue has a file at a time.
        durability: "full": when `submit` returns, the disk has the task.  "process": the system has it, so
            that only a power failure can cost the last seconds; a submit waits for that 0.02 ms, and for the
            disk 0.3 (measured 2026-12).  "relaxed": within 10 ms.

    Raises:
        UsageError: A value cannot be; the message names it.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        handlers: Mapping[str, Callable[..., object]] | None = None,
        policy: "Literal['strict'] | Aging | WeightedFair" = "strict",
        limits: Mapping[str, int] | None = None,
        groups: Mapping[str, int] | None = None,
        resources: Mapping[str, Size] | None = None,
        breaker: "Mapping[str, Breaker] | None" = None,
        backoff: BackoffLike = exponential(),  # noqa: B008 - immutable
        initializer: Callable[..., object] | None = None,
        initargs: tuple[object, ...] = (),
        max_pending: int | None = None,
        max_pending_bytes: Size | None = NOT_GIVEN,  # type: ignore[assignment]  # None means no bound
        max_tasks_per_worker: int | None = None,
        max_memory_per_worker: Size | None = None,
        recycle_memory: Size | None = None,
        min_free_memory: Size | None = None,
        max_failures: int | str | None = None,
        on_failure: OnFailure = "finish",
        deadline: "Duration | datetime | None" = None,
        kill_grace: Duration = 1,
        start_timeout: Duration = 60,
        capture: bool = False,
        retention: tuple[int, Duration] = RETENTION,
        dead_letters: tuple[int, Duration] = DEAD_LETTERS,
        engine: "Literal['local'] | Engine" = "local",
        on_event: "OnEvent | None" = None,
        journal: "str | PathLike[str] | None" = None,
        durability: "Durability" = "full",
    ) -> None:
        if sys.platform == "win32":
            raise UsageError("procq does not run on Windows yet (Linux; macOS best effort); use WSL")
        if on_failure not in {"finish", "kill"}:
            raise UsageError(f"on_failure={on_failure!r}: must be 'finish' or 'kill'")
        listener = None
        if on_event is not None:
            from procq.events import Events, as_listener  # noqa: PLC0415 - only listeners pay for it

            listener = as_listener(on_event)
        self._handlers = handlers_by_type(handlers)
        self._groups = workers_by_group(workers, groups)
        self._cpus, memory_bytes = slots_and_memory(resources)
        capacity = None  # of an engine of another kind nothing is known here
        if engine == "local" or resources is not None:
            capacity = Capacity(self.workers if self._cpus is None else self._cpus, memory_bytes)
        scheduler = Scheduler(
            backoff=as_backoff(backoff),
            # For jitter, which needs no secrecy.  Of its own, so that two processes that were forked draw
            # differently; and of the C module: `random` is 10 ms, to be spent with the lock held.
            draw=getattr(engine, "draw", None) or Random().random,
            policy=checked_policy(policy),
            limits=limits_by_type(limits),
            breakers=breakers_by_type(breaker),
            groups=tuple(self._groups),
            capacity=capacity,
            retention=number_and_age(retention, "retention"),
            dead_letters=number_and_age(dead_letters, "dead_letters"),
            find_letter_bytes=quarter_of_memory,
        )
        chosen = chosen_engine(
            engine,
            groups=self._groups,
            kill_grace=kill_grace,
            start_timeout=start_timeout,
            initializer=initializer,
            initargs=initargs,
            max_tasks_per_worker=max_tasks_per_worker,
            max_memory_per_worker=max_memory_per_worker,
            recycle_memory=recycle_memory,
            capture=capture,
        )
        headroom = headroom_of(min_free_memory)
        events = None if listener is None else Events(listener, now=chosen.now, workers=self.workers)
        most = count_or_none(max_pending, "max_pending")
        most_bytes = pending_bytes(max_pending_bytes)
        failure_limit = None if max_failures is None else FailureLimit(max_failures)
        run_deadline = None if deadline is None else RunDeadline(deadline)
        if events is not None:
            scheduler.watcher = events.facts
        kept = None  # after all that may be refused: nobody would close it
        first_free = 0
        if journal is not None:
            from procq.journal import opened  # noqa: PLC0415 - sqlite3, which few queues need

            kept, first_free = opened(journal, durability, scheduler, chosen.now)
        self._supervisor = Supervisor(
            scheduler,
            chosen,
            max_pending=most,
            max_pending_bytes=most_bytes,
            headroom=headroom if engine == "local" else None,
            events=events,
            brake=Brake(scheduler, failure_limit, on_failure, run_deadline),
            journal=kept,
        )
        self._supervisor.offspring.numbers = count_from(first_free)
        self._mind_slots()
        self._numbers = self._supervisor.offspring.numbers
        self._free_id = self._supervisor.offspring.free_id
        #: why no items of a `map` may share a task; empty if they may
        counting = {"max_tasks_per_worker": max_tasks_per_worker, "max_failures": max_failures}
        self._alone_because = next((f"{name} counts single items" for name, n in counting.items() if n is not None), "")
        self._started_at: float | None = None
        #: what a spec was submitted as; as long as the spec lives, it is a grip on the task
        self._by_spec: weakref.WeakKeyDictionary[TaskSpec[Any], Handle[Any]] = weakref.WeakKeyDictionary()

    # --- life ----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start running what is submitted; returns the queue.  Calling it again changes nothing.

        Raises:
            QueueClosedError: The queue was shut down, or this is a forked child.
            WorkerStartError: This is no Linux, or the system has no thread or descriptor to spare.
        """
        if self._handlers:
            self._supervisor.offspring.heads = heads_of(self._handlers)
        self._supervisor.open()
        if self._started_at is None:
            self._started_at = self._supervisor.engine.now()
        return self

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:  # Ctrl-C waits until it has started, and then there would be no `__exit__`
            if self._supervisor.opened:
                self.shutdown(mode="kill")
            raise

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error_type is not None:
            self.shutdown(mode="kill")
            return
        try:
            self.shutdown(mode="drain")
        except BaseException:  # say, Ctrl-C while it drains: that too leaves by an exception
            self.shutdown(mode="kill")
            raise

    @finalizes
    def __del__(self) -> None:
        supervisor = getattr(self, "_supervisor", None)
        if supervisor is None or supervisor.forked or supervisor.is_attended:
            return
        if not supervisor.in_use:
            supervisor.let_go()
            return
        supervisor.abandon()
        warnings.warn(
            "a Queue was dropped without shutdown; its tasks are killed. Use `with Queue() as q:`",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __reduce__(self) -> str:
        raise UsageError("a Queue can't be sent to a worker; open one inside the task")

    def __repr__(self) -> str:
        supervisor = self._supervisor
        life = "" if supervisor.opened else "not started, "
        if supervisor.closing:
            life = "halted, " if supervisor.halted else "shut down, "
        parts = ", ".join(f"{number} {name}" for name, number in self._groups.items())
        by_group = f" ({parts})" if len(self._groups) > 1 else ""
        return f"<Queue {life}{self.workers} workers{by_group}, {supervisor.waiting()} waiting>"

    @property
    def workers(self) -> int:
        """How many workers there are at most, all groups together."""
        return sum(self._groups.values())

    @property
    def groups(self) -> dict[str, int]:
        """How many workers there are at most in each group, by its name; a copy."""
        return dict(self._groups)

    @property
    def halted(self) -> "Halt | None":
        """Why the queue has halted by itself, "max_failures" or "deadline" (contract G6); None: it has not."""
        return self._supervisor.halted

    def shutdown(self, timeout: Duration | None = None, mode: Mode = "drain") -> ShutdownReport:
        """Take no more work, bring what there is to its end, and leave nothing behind; blocks.

        It ends a `pause`.  May be called again, also from other threads while one call waits: a harsher mode or a
        nearer deadline takes over at once, and every call returns the report.  One in a callback does not
        wait for that to end, nor for another one that waits for it.

        Args:
            timeout: When it has passed, what runs is asked to stop and killed after
                `kill_grace`, and all the rest is cancelled; returns by `timeout` + `kill_grace`
                + 1 s.  None: no deadline.
            mode: "drain": everything accepted runs to its end, retries and delayed tasks
                included.  "finish": only what is running now, without retries.  "kill":
                nothing; with `timeout=0` without asking first.

        Raises:
            UsageError: An unknown mode, or no duration; or a call amid another.
        """
        if mode not in {"drain", "finish", "kill"}:
            raise UsageError(f"mode={mode!r}: must be 'drain', 'finish' or 'kill'")
        return self._supervisor.shutdown(mode, None if timeout is None else seconds(timeout, field="timeout"))

    def pause(self) -> None:
        """Start nothing new; what runs goes on, what was sent ahead is taken back (contract H1).

        A shutdown ends it.  Once one has begun there is none: a drain runs all that was accepted.

        Raises:
            QueueClosedError: Shutdown has begun, or the queue has halted.
            EngineError, InternalError: The queue has broken.
        """
        supervisor = self._supervisor
        with supervisor.entry:
            supervisor.check_alive()
            if supervisor.drains:
                raise QueueClosedError(
                    "the queue is being drained and can't be paused; to start nothing more call shutdown(mode='finish')"
                )
            if supervisor.closing:
                how = "has halted" if supervisor.halted else "was shut down"
                raise QueueClosedError(f"the queue {how} and can't be paused; it starts nothing more anyway")
            supervisor.pause()

    def resume(self) -> None:
        """Go on after `pause`; else nothing changes."""
        with self._supervisor.entry:
            self._supervisor.resume()

    def resize(self, workers: int, group: str = DEFAULT_GROUP) -> None:
        """Change how many worker processes a group may have (contract H1).

        More start when there is work for them; too many leave as soon as they are idle, and
        nothing that runs is disturbed.

        Raises:
            UnitError: `workers` is no whole number of at least 1.
            UsageError: There is no such group.
        """
        count(workers, field="workers", least=1)
        if group not in self._groups:
            raise UsageError(need_refused("resize()", group, self._groups))
        with self._supervisor.entry:
            self._supervisor.resize(workers, group)
            self._groups[group] = workers
            self._mind_slots()

    def _mind_slots(self) -> None:
        """Bring the slots in line with the workers; the lock is held, or nobody else knows the queue yet."""
        scheduler = self._supervisor.scheduler
        if self._cpus is None:
            if scheduler.capacity is not None:
                scheduler.capacity.resize(self.workers)
        elif self._cpus < self.workers:
            scheduler.count_slots()

    # --- submitting ----------------------------------------------------------------------------

    @overload
    def submit(
        self,
        spec: TaskSpec[R],
        /,
        *,
        block: bool = True,
        timeout: Duration | None = None,
        on_conflict: OnConflict = "raise",
    ) -> Handle[R]: ...
    @overload
    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    def submit(self, what: Any, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Submit a task: a function with its arguments, or a spec.

        Function and arguments are pickled here and now; what changes later does not matter.
        Every keyword belongs to the function.  The same spec again is the same task, and so is
        an equal one with the same id (contract C4).  Specs and handles among the arguments are
        dependencies, replaced by their results (E2); specs not submitted yet are submitted too.

        Blocks while the queue is full (`max_pending`); beside a spec `block=False` and
        `timeout=` bound that.

        Beside a spec `on_conflict=` says what happens if its id belongs to another task:
        "raise", "same": the spec is ignored, and that task's handle returned; "replace": that
        task, if it waits, ends CANCELLED, if it has ended, is forgotten, and the new one takes
        its id.  It goes for the specs among its dependencies too.

        Raises:
            PayloadError: Something cannot be pickled; names the argument and the culprit.
            DuplicateTaskError: The id belongs to another task, or to one that runs or is waited
                for, and so cannot be replaced.
            UnknownDependencyError: A dependency is not known (any more).
            UnknownHandlerError: No handler has the spec's type.
            QueueFullError: No room, and the call must not wait (any longer).
            QueueClosedError: Shutdown has begun, the queue has halted, or this is a forked child.
            EngineError: Attempts cannot be run: workers cannot start, or the queue had to be killed.
            UsageError: This is no function and no spec, or the queue has no such group of workers.
        """
        supervisor = self._supervisor
        if isinstance(what, TaskSpec):
            return self._submit_spec(what, args, kwargs)
        if isinstance(what, TaskFunction):
            return self._submit_batch([what.spec(*args, **kwargs)])[0]
        if not supervisor.accepts:  # before work is done for nothing; and again under the lock
            supervisor.check_usable()
        type_name = type_of(what)
        payload, found = pickle_call(what, args, kwargs, type_name)
        inputs: tuple[Task, ...] = ()
        if found:
            known = self._tasks_behind(found)
            if known is None:
                return self._submit_batch([call_spec(what, args, kwargs)])[0]
            inputs = known
        task = Task(
            f"#{next(self._numbers)}", type_name, payload, DEFAULTS,
            depends_on=tuple(dict.fromkeys(inputs)) if inputs else (), inputs=inputs,
        )  # fmt: skip
        lock = supervisor.lock
        if lock.is_mine():  # as `entry` does it, which takes three times as long
            refuse_nested_call()
        with lock:
            supervisor.room.wait(supervisor, len(payload), block=True, timeout_s=None)
            if not supervisor.accepts:
                supervisor.check_usable()
            if task.id in supervisor.scheduler.tasks:
                task.id = self._free_id()
            handle: Handle[Any] = Handle(supervisor, task)
            supervisor.submit((task,))
        supervisor.sync()
        return handle

    def _tasks_behind(self, sources: Sequence[object]) -> tuple[Task, ...] | None:
        """Return the tasks of handles of this queue; None if there is anything else among the sources."""
        supervisor = self._supervisor
        tasks = []
        for source in sources:
            if not isinstance(source, Handle) or supervisor_of(source) is not supervisor:
                return None
            tasks.append(task_of(source))
        return tuple(tasks)

    def submit_many(self, specs: Iterable[TaskSpec[R]], *, on_conflict: OnConflict = "raise") -> list[Handle[R]]:
        """Submit many specs; a list or tuple is checked whole before any of it is accepted.

        In a list or tuple tasks may name each other in any order.  Another iterable is read as
        there is room: each item as `submit` would take it, so a generator may be longer than
        memory.  Blocks while the queue is full.

        Args:
            specs: What to submit.
            on_conflict: As for `submit`; with "same" a list may name an id twice, too.

        Returns:
            A handle for each spec, in order.

        Raises:
            CycleError: They depend on each other in a circle.
            UsageError: This is a single spec.
            Exception: As `submit`; of a list nothing was then accepted.
        """
        self._supervisor.check_usable()
        if isinstance(specs, list | tuple):
            return self._submit_batch(specs, on_conflict=on_conflict)
        if isinstance(specs, TaskSpec):
            raise UsageError(f"submit_many got {specs!r}: expected a list of specs; use submit for one")
        return [self.submit(spec, on_conflict=on_conflict) for spec in specs]

    def _submit_spec(self, spec: TaskSpec[Any], args: tuple[object, ...], kwargs: Mapping[str, object]) -> Handle[Any]:
        if args or kwargs.keys() - {"block", "timeout", "on_conflict"}:
            raise UsageError(
                "submit(spec) takes only block=, timeout= and on_conflict= beside the spec; "
                "the arguments of the task belong into .spec(...)"
            )
        timeout = kwargs.get("timeout")
        return self._submit_batch(
            [spec],
            block=bool(kwargs.get("block", True)),
            timeout_s=None if timeout is None else seconds(cast("Duration", timeout), field="timeout"),
            on_conflict=cast("OnConflict", kwargs.get("on_conflict", "raise")),
        )[0]

    def _submit_batch(
        self,
        specs: Sequence[TaskSpec[Any]],
        *,
        block: bool = True,
        timeout_s: float | None = None,
        on_conflict: OnConflict = "raise",
    ) -> list[Handle[Any]]:
        """Submit specs and what they depend on, all or none."""
        check_on_conflict(on_conflict)
        supervisor = self._supervisor
        by_spec = self._by_spec
        known = supervisor.scheduler.tasks
        drafts = draft_all(specs, self._handlers, lambda spec: is_known(spec, by_spec, known, on_conflict))
        make = partial(tasks_of_specs, specs, drafts, supervisor, by_spec, self._free_id, on_conflict)
        with supervisor.entry:
            made = None
            payloads = [draft.payload for draft in drafts.values()]
            if any(draft.id in known for draft in drafts.values()):
                # What is known, or refused, needs no room and must not wait for any.
                supervisor.check_usable()
                made = make()
                payloads = [task.payload for task in made[0].new]
            has_waited = False
            if payloads:
                size = sum(map(len, payloads))
                # A submit that takes the places of others needs no room beside them.
                replaced = partial(waiting_under, drafts.values(), known) if on_conflict == "replace" else None
                has_waited = supervisor.room.wait(supervisor, size, block=block, timeout_s=timeout_s, replaced=replaced)
            try:
                supervisor.check_usable()
                batch, tasks = make() if made is None or has_waited else made
                handles = {spec: handle_of(supervisor, task) for spec, task in tasks.items()}
                if batch.new:
                    supervisor.submit(batch.new, partial(by_spec.update, handles), batch.replaced)
            finally:
                supervisor.room.let_in()
            by_spec.update(handles)
            submitted = [by_spec[spec] for spec in specs]
        supervisor.sync()
        return submitted

    # --- waiting -------------------------------------------------------------------------------

    def wait(self, task: "TaskRef", timeout: Duration | None = None) -> TaskResult[Any]:
        """Wait for a task's end and tell how it ended, without raising its error.

        Args:
            task: An id, a handle or a spec.
            timeout: The longest wait; None: without end.

        Raises:
            UnknownTaskError: No task has this id (any more).
            TimeoutError: It had not ended in time.
        """
        handle = self.handle(task)
        handle.wait(timeout)
        return TaskResult(task_of(handle))

    def handle(self, task: "TaskRef") -> Handle[Any]:
        """Return the handle of a known task.

        Raises:
            UnknownTaskError: No task has this id (any more), or it is of another queue.
        """
        if isinstance(task, Handle):
            return self._own(task)
        with self._supervisor.entry:
            if isinstance(task, TaskSpec):
                return self._own(task)
            return handle_of(self._supervisor, self._supervisor.scheduler.find(task))

    def _own(self, task: "Handle[Any] | TaskSpec[Any]") -> Handle[Any]:
        """Return the handle that is meant, if it is of this queue; for a spec the lock is held."""
        if isinstance(task, Handle):
            if supervisor_of(task) is not self._supervisor:
                raise UnknownTaskError(task.id, "its handle is of another queue")
            return task
        known = self._by_spec.get(task)
        if known is None:
            raise UnknownTaskError(task.label())
        return known

    def map(
        self,
        fn: "Callable[..., R] | TaskFunction[..., R]",
        *iterables: Iterable[Any],
        ordered: bool = True,
        chunksize: int | Literal["auto"] = "auto",
        buffersize: int | None = None,
        timeout: Duration | None = None,
    ) -> "Results[R]":
        """Call a function with each item, or each tuple of items, in the workers.

        Brief items travel together in chunks, which nobody need notice: each has its own error and
        its own retries.  Only a crash is shared: the items of a chunk whose worker died run again,
        each as a task of its own and uncharged, also those that had ended (contract D1).

        Items are read and submitted at once as far as `buffersize` allows, and then as results
        are taken.  The iterator raises the error of an item in its place and goes on with the
        next; closing it, or letting go of it, cancels what was not taken, also what runs.  Once the queue
        takes nothing more, by a shutdown or a halt say, no more is read: after what was accepted the iterator
        raises that once, and ends.

        Args:
            fn: A function, or a task function with its options.  With a `timeout`, a delay or
                another option that is for one task, or a limit on its type, each item is a task.
            iterables: Its arguments; the shortest one ends it.
            ordered: Results in the order of the items; False: as they come.
            chunksize: Items in a task at most.  "auto": one as long as they are slow or big, more
                where many fit into about 2 ms.
            buffersize: Items in flight at most, from being read until they are taken; None: as
                many as 4 tasks for each worker of the function's group have.
            timeout: The longest wait for any one result.

        Raises:
            UsageError: No iterable, a value that cannot be, or a group that the queue does not have.
        """
        from procq.mapping import Results, alone_because, chunks_of  # noqa: PLC0415 - 1 ms that only a map needs
        from procq.source import ITEMS_MAX, Size as MapSize, Source  # noqa: PLC0415

        if not iterables:
            raise UsageError("map() needs at least one iterable")
        window = count_or_none(buffersize, "buffersize")
        fixed = None if chunksize == "auto" else count(chunksize, field="chunksize", least=1)
        workers = self._workers_for(fn)
        supervisor = self._supervisor
        alone = self._alone_because or alone_because(fn, supervisor)
        if fixed is not None and fixed > 1:
            if alone:
                raise UsageError(f"chunksize={chunksize}: {alone}, so each is a task of its own; leave chunksize out")
            if window is not None and window < fixed:
                raise UsageError(f"buffersize={buffersize}: must be at least chunksize={chunksize}")
        most = ITEMS_MAX if window is None else max(1, window // (2 * workers))
        return Results(
            self,
            supervisor,
            fn,
            Source(iterables, supervisor.engine.now),
            MapSize(fixed, most),
            ordered=ordered,
            window=window,
            workers=workers,
            timeout_s=None if timeout is None else seconds(timeout, field="timeout"),
            chunks=None if alone or fixed == 1 else chunks_of(fn),
        )

    def _workers_for(self, fn: "Callable[..., object] | TaskFunction[..., object]") -> int:
        """Return how many workers the group of a function has.

        Raises:
            UsageError: There is no such group.
        """
        group = fn.options.group if isinstance(fn, TaskFunction) else DEFAULT_GROUP
        if group not in self._groups:
            raise UsageError(need_refused(type_of(fn), group, self._groups))
        return self._groups[group]

    def _submit_begun(self, fn: Callable[..., Any], args: tuple[Any, ...], ended: Ended) -> Handle[Any]:
        """Submit a task whose first attempt was made in a chunk of a `map`."""
        spec = fn.spec(*args) if isinstance(fn, TaskFunction) else call_spec(fn, args, {})
        payload, _ = pickle_call(cast("Callable[..., object]", spec.fn), args, {}, spec.type)
        supervisor = self._supervisor
        with supervisor.entry:
            supervisor.check_usable()
            task = Task(self._free_id(), spec.type, payload, spec.options)
            handle: Handle[Any] = Handle(supervisor, task)
            supervisor.submit_begun(task, ended)
        return handle

    # --- commands ------------------------------------------------------------------------------

    def cancel(self, task: "TaskRef") -> CancelAnswer:
        """Cancel a task (contract F3); its dependents end CANCELLED with it.  Never blocks.

        Returns:
            "cancelled", "stopping" (it is asked to stop, then killed) or "finished".

        Raises:
            UnknownTaskError: No task has this id (any more).
        """
        return self.handle(task).cancel()

    def dead_letters(self) -> "list[DeadLetter]":
        """Return the kept records of the tasks that ended FAILED, newest last (contract F6)."""
        with self._supervisor.entry:
            scheduler = self._supervisor.scheduler
            scheduler.prune(self._supervisor.engine.now())
            return scheduler.letters.listed()

    def replay(
        self,
        which: "TaskRef | Literal['all'] | Callable[[DeadLetter], bool]" = "all",
        *,
        reset_attempts: bool = True,
        with_dependents: bool = False,
    ) -> int:
        """Take dead letters back into the queue, at their original places (contract F7).

        Args:
            which: "all" dead letters; those for which a function is true; or one task, which
                may also be one that ended CANCELLED.
            reset_attempts: Whether all attempts are granted again.
            with_dependents: Whether the tasks that were cancelled because of it come back too.

        Returns:
            How many tasks were taken back, dependents not counted.

        Raises:
            UnknownTaskError: No task has this id (any more).
            QueueClosedError: Shutdown has begun, or the queue has halted.
        """
        self._supervisor.check_usable()
        which = self._filtered(which)
        with self._supervisor.entry:
            return self._supervisor.replay(
                self._select(which), reset_attempts=reset_attempts, with_dependents=with_dependents
            )

    def purge(self, which: "TaskRef | Literal['all'] | Callable[[DeadLetter], bool]" = "all") -> int:
        """Drop dead letters for good; returns how many.

        Raises:
            UnknownTaskError: No task has this id (any more).
        """
        which = self._filtered(which)
        with self._supervisor.entry:
            return self._supervisor.purge(self._select(which))

    def _filtered(self, which: Any) -> Any:  # noqa: ANN401 - what `replay` and `purge` take
        """Turn a function of a dead letter into the ids it chooses; it is the user's, and runs without the lock."""
        if not callable(which):
            return which
        return frozenset(letter.id for letter in self.dead_letters() if which(letter))

    def _select(self, which: object) -> list[Task]:
        """Find the tasks that `replay` or `purge` means; the lock is held."""
        scheduler = self._supervisor.scheduler
        if which == "all":
            return list(scheduler.letters)
        if isinstance(which, Handle | TaskSpec):
            return [task_of(self._own(which))]
        if isinstance(which, str):
            return [scheduler.find(which)]
        if isinstance(which, frozenset):
            return [task for task in scheduler.letters if task.id in which]
        raise UsageError(f"{which!r}: expected an id, a handle, a spec, 'all' or a function of a dead letter")

    def explain(self, task: "TaskRef") -> str:
        """Say in one line why a task is not running, or how it ended (contract F8).

        For what has not ended it names the concrete reason: the dependencies that it waits for, when
        it is due, the limit or the breaker of its type, the slots or the memory that are not free, how
        many tasks are ahead of it.  The words may change in any release.  Takes time in proportion to
        the READY tasks; never blocks for long.

        Raises:
            UnknownTaskError: No task has this id (any more).
        """
        from procq.explanation import Explanation, end_of  # noqa: PLC0415 - only whoever asks needs it

        known = task_of(self.handle(task))
        with self._supervisor.entry:
            text = Explanation(self._supervisor, known).text()
        return text or end_of(known)

    def stats(self) -> "Stats":
        """Look at the queue; takes time in proportion to the READY tasks (contract F8)."""
        from procq.stats import Stats  # noqa: PLC0415 - only whoever asks needs it

        with self._supervisor.entry:
            return Stats(self._supervisor, self._started_at)


# --- the end of the interpreter ------------------------------------------------------------------


@atexit.register
def _kill_at_exit() -> None:
    """Kill what was not shut down, so that nothing outlives the program (contract G4)."""
    for supervisor in live_supervisors():
        with suppress(Exception):
            cut_off = [] if supervisor.is_attended else supervisor.shutdown("kill", 0).cut_off
            if cut_off:
                logger.log(
                    WARNING,
                    "the program ended with %d tasks left, which were cut off; use `with Queue()`, or shutdown()",
                    len(cut_off),
                )
        with suppress(Exception):
            supervisor.shutdown("kill", 0)
