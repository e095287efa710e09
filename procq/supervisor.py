"""The supervisor: one scheduler, one engine, one lock (DESIGN, section 2).

What a program wants comes in here, and what the engine reports; who waits for an end is told from
here.  Which task goes where is decided in dispatch.py, who may submit in room.py, whether the queue
halts by itself in brake.py, how far that or a shutdown has gone in closing.py.  It unpickles
nothing and runs no user code, backoff callables aside.

Everything happens under `lock`, in the thread that brought the news: a caller that submits, or the
engine's own.  What a program calls takes it by way of `entry`; a method says so where the lock is
held already, or where none is needed, since a `__del__` may call it at any moment.
"""

import os
import threading
import weakref
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, cast

from procq.brake import Brake, Order
from procq.callback import CallbackThread
from procq.change import TORN, Change
from procq.closing import KILLED, WAITING, Closing, Mode, ShutdownReport
from procq.core.scheduler import CancelAnswer, Scheduler
from procq.core.states import TERMINAL
from procq.core.task import Run, Task
from procq.dispatch import Dispatcher
from procq.draft import Listing
from procq.engine.headroom import Headroom
from procq.engine.protocol import Attempt, Departure, Engine
from procq.errors import EngineError, InternalError, QueueClosedError, UsageError, WorkerStartError
from procq.fork import live, register
from procq.halting import Halt, Halted
from procq.interrupts import WATCH, changes, raise_pending, unwatch, watch
from procq.lock import FORKED, LostLock, Milestone, QueueLock, refuse_nested_call
from procq.log import WARNING, Logger
from procq.offspring import Offspring
from procq.outcome import Ended
from procq.parcel import Parcel, Payload
from procq.room import Room

if TYPE_CHECKING:
    from procq.events import Events
    from procq.journal import Journal

logger = Logger(__name__)

Listener = Callable[[Task], None]


class Supervisor:
    """Joins the scheduler and the engine under one lock.

    Args:
        scheduler: The rules.
        engine: Where attempts run.
        max_pending: At most so many tasks wait; None: no bound by count.
        max_pending_bytes: At most so many bytes of payload are held; or what finds the bound out,
            called once, when it first matters.
        headroom: Whether memory is short, so that no attempt may start beside another; None: it never is.
        events: Tell somebody what happens, of which the scheduler tells them; None: nobody listens.
        brake: Whether the queue ends by itself; None: it never does.
        journal: Keeps what there is, and has given it to the scheduler; None: nothing outlives the process.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        *,
        max_pending: int | None = None,
        max_pending_bytes: int | Callable[[], int] | None = None,
        headroom: Headroom | None = None,
        events: "Events | None" = None,
        brake: Brake | None = None,
        journal: "Journal | None" = None,
    ) -> None:
        #: the engine and whoever holds it take it; what programs call goes by `entry`
        self.lock = QueueLock()
        #: open while a caller's thread changes what the lock guards
        self._change = Change(engine.alarm)
        self.scheduler = scheduler
        self.engine = engine
        self._events = events
        self._journal = journal
        #: tasks whose handle has gone, noted by `__del__` without the lock
        self.orphans: deque[Task] = deque()
        #: tasks to be cancelled, noted by a `__del__` without the lock
        self._to_cancel: deque[Task] = deque()
        #: listeners to be taken back, likewise
        self._to_unlisten: deque[tuple[Task, Listener]] = deque()
        #: False for ever once work is refused: `check_usable` says why
        self.accepts = True
        #: set in a forked child, where the workers belong to somebody else
        self.forked = False
        #: set without the lock when the queue was dropped without shutdown
        self.abandoned = False
        #: what running attempts last said of how far they are, (done, total) by sequence number
        self.progress: dict[int, tuple[float, float]] = {}
        self._opened = False
        #: the thread that opens the queue now; 0: none does
        self._opening_by = 0
        self._start_error: Ended | None = None
        #: the engine has left nothing behind
        self._all_closed = Milestone()
        #: the engine's own thread, once it has left nothing but itself
        self._last_thread: threading.Thread | None = None
        #: the threads that wait for those to end
        self._joining: set[int] = set()
        #: runs done-callbacks
        self.callbacks = CallbackThread("procq-callbacks", "a done-callback")
        #: gives what workers log to the program's loggers; not the thread above, where a callback may wait
        #: for a task that cannot go on until what it logs is handled
        self.log_thread = CallbackThread("procq-logs", "a handler of log records")
        self.brake = Brake(scheduler) if brake is None else brake
        self.dispatcher = Dispatcher(scheduler, engine, headroom, self.brake, journal)
        self.offspring = Offspring(scheduler, self._take_back)
        self._closing = Closing(scheduler, engine, self.dispatcher, events)
        #: told in the thread of callbacks when the queue has halted by itself
        self.halt_listeners: list[Callable[[Halted], object]] = []
        self.room = Room(
            scheduler, engine, self.callbacks, max_pending=max_pending, max_pending_bytes=max_pending_bytes
        )
        #: what broke the supervisor's own thread; a bug of procq
        self.bug: BaseException | None = None
        register(self)
        if journal is not None:
            journal.serve(self.lock, engine.alarm, self.log_thread.put)

    @property
    def entry(self) -> QueueLock:
        """The lock, for a call that a signal handler or a `__del__` may make amid another.

        Raises:
            UsageError: This very thread holds it.
        """
        lock = self.lock
        if lock.is_mine():
            refuse_nested_call()
        return lock

    # --- life ----------------------------------------------------------------------------------

    @property
    def opened(self) -> bool:
        """Whether `open` was called."""
        return self._opened

    @property
    def in_use(self) -> bool:
        """Whether there is anything to shut down."""
        return self._opened or self.scheduler.open > 0

    @property
    def closing(self) -> bool:
        """Whether a shutdown or a halt has begun."""
        return self._closing.mode is not None

    @property
    def drains(self) -> bool:
        """Whether a shutdown runs all that was accepted, and has not come to its end."""
        return self._closing.mode == "drain" and not self._all_closed.is_set()

    @property
    def halted(self) -> Halt | None:
        """Why the queue has halted by itself; None: it has not."""
        return self._closing.halted

    @property
    def stuck(self) -> str:
        """Why the journal can't be written, so that nothing starts; empty if it can."""
        return self._journal.trouble if self._journal is not None and self._journal.is_stuck else ""

    @property
    def is_attended(self) -> bool:
        """Whether somebody sees to the end: a shutdown was asked for, or a halt has left nothing that runs."""
        return self._closing.is_asked or (self.closing and not self.scheduler.open)

    @changes
    def open(self) -> None:
        """Start running what is ready.

        Ctrl-C waits until it has been done.  A handler of the program's own that raises undoes
        it, if the engine was not open yet; after that it is done, but for what `_begin` does,
        which a second call makes up for.
        """
        self.check_usable()
        is_first = is_open = False
        watch(self)  # before anything else: now Ctrl-C is ours
        try:
            with self.entry:
                if not self._opened:
                    self._opened = is_first = True
                    self._opening_by = get_ident()
                    self.brake.set_out(self.engine.now())
            if is_first:
                self.engine.open(self)
            is_open = True
            self._begin()
        finally:
            if is_first:
                self._opening_by = 0
                self._opened = is_open  # else it may be tried again
                if not is_open:
                    self.brake.set_back()
            if not self._opened or self._all_closed.is_set():
                unwatch(self)
            if WATCH.pending:
                raise_pending()

    @changes
    def _begin(self) -> None:
        """Hand out what was submitted before the start."""
        with self.lock, self._change:
            self._turn(self.engine.now())
            self.engine.wake()

    def check_usable(self) -> None:
        """Refuse calls that would add work (contract C7).

        Raises:
            QueueClosedError: Shutdown began, the queue has halted, or this is a forked child.
            WorkerStartError: Workers cannot start.
            EngineError, InternalError: As `check_alive`.
        """
        if self.accepts:
            return
        if self.forked:
            raise QueueClosedError(FORKED)
        self.check_alive()
        if self._start_error is not None and not self._closing.is_asked:
            raise WorkerStartError(self._start_error.message)
        if self._closing.halted is not None:
            raise QueueClosedError(self._closing.told)
        raise QueueClosedError("the queue is shutting down and takes no more work")

    def mark_forked(self) -> None:
        """This is a forked child: refuse everything (see fork.py)."""
        self.forked = True
        self.accepts = False
        unwatch(self)
        if self._journal is not None:
            self._journal.mark_forked()
        # It may have been held when the process forked, by a thread that is not here.
        self.lock = LostLock()  # type: ignore[assignment]  # all that is left of it is to refuse

    @changes
    def shutdown(self, mode: Mode, timeout_s: float | None) -> ShutdownReport:
        """Begin a shutdown, or make the one under way harsher, and wait for its end."""
        if self.forked:
            return self._report()
        with self.entry:
            self.accepts = False
            now = self.engine.now()
            self._closing.begin(mode, timeout_s, now)
            self.dispatcher.paused = False  # or a drain would never end
            self.room.free_all()
            if self.bug is not None or self._change.by:
                self.engine.alarm()  # everything is killed, and what there was is not to be relied on
            else:
                with self._change:
                    self._begin_shutdown(mode, timeout_s, now)
        # Not `wake`: Ctrl-C amid an earlier one may have left the loop asleep and taken for awake.
        self.engine.alarm()
        self.wait_for(self._all_closed.wait, self._all_closed.is_set, None)
        unwatch(self)  # here too: in the main thread it has more effect
        self._join_threads()
        return self._report()

    def _join_threads(self) -> None:
        """Wait for the end of procq's own threads, unless this thread does already, interrupted by a signal handler.

        In a callback not for those that wait for it, as in another one that shuts a queue down at the same time.

        Such a wait holds a lock of the thread that it waits for, and a second one would never get it.
        """
        me = get_ident()
        if me in self._joining:
            return
        try:
            self._joining.add(me)
            if self._last_thread is not None:
                self._last_thread.join()
            deadline = self._closing.deadline
            events = () if self._events is None else (self._events.thread,)
            if self._journal is not None:
                self._journal.join()
            for thread in (self.callbacks, self.log_thread, *events):
                thread.join(None if deadline is None else deadline + CALLBACK_GRACE_S - self.engine.now())
        finally:
            self._joining.discard(me)

    def _begin_shutdown(self, mode: Mode, timeout_s: float | None, now: float) -> None:
        if self._opened:
            if mode == "kill" and timeout_s == 0:
                self._closing.cut_to(KILLED, now)
            self._turn(now)
            self.engine.wake()
        else:
            self._close_unopened(now)

    def _close_unopened(self, now: float) -> None:
        """End a queue that was never started: nothing ever ran, and nothing will."""
        self._opened = self.dispatcher.closed = True
        self._closing.cut_to(WAITING, now)
        self._settle()
        self._close_threads()
        self._all_closed.set()

    def _close_threads(self) -> None:
        """Let the threads for user code end once they have done what is due; the lock is held."""
        if self._journal is not None:
            self._journal.close()
            # What is let go of from now on is kept all the same.
            self.scheduler.watcher = None if self._events is None else self._events.facts
        self.callbacks.close()
        self.log_thread.close()
        if self._events is not None:
            self._events.close(self.scheduler.counts)

    def settle_if_abandoned(self) -> None:
        """End a queue that was dropped before it was started; `abandon` could not, without the lock."""
        if self.abandoned and not self._opened:
            with self.entry:
                if not self._opened:
                    self.accepts = False
                    now = self.engine.now()
                    self._closing.begin("kill", None, now, cause="dropped")
                    self._close_unopened(now)

    def let_go(self) -> None:
        """The queue was dropped though there was nothing to shut down: give the journal back; takes no lock."""
        if self._journal is not None:
            self._journal.abandon()

    def abandon(self) -> None:
        """Kill everything soon; takes no lock, so that `__del__` may call it anywhere."""
        self.abandoned = True
        self.accepts = False
        self.engine.alarm()
        unwatch(self)
        if not self._opened:  # then nobody else will ever end them
            self.callbacks.abandon()
            if self._journal is not None:
                self._journal.abandon()
            if self._events is not None:
                self._events.thread.abandon()

    @changes
    def look_out(self, task: Task) -> bool:
        """Look for the end of a task that should come at once, in the thread that waits for it.

        To sleep until the loop has heard of it takes two wake-ups, 15 to 20 us each across cores;
        with this a round trip takes half as long.  Other tasks are never looked out for.

        Returns:
            Whether it has ended.
        """
        engine = self.engine
        if not engine.is_imminent(task):
            return False
        if self.lock.is_mine():
            refuse_nested_call()
        until = engine.now() + _LOOK_OUT_S
        while True:
            os.sched_yield()  # to the worker, if it has to run on this very processor
            with self.lock:
                if task.status not in TERMINAL and not self._change.by and self.bug is None:
                    with self._change:
                        if engine.look_at(task):
                            self._turn(engine.now())
                            self.dispatcher.leave_to_loop()
                if task.status in TERMINAL:
                    return True
            if engine.now() > until or not engine.is_imminent(task):
                return False

    def wait_for(
        self, wait: Callable[[float | None], object], done: Callable[[], bool], timeout_s: float | None
    ) -> bool:
        """Wait until something is done, running attempts here if the engine has no thread.

        Args:
            wait: Sleeps for so long, or until it is done; returns whether it is.
            done: Whether it is done.
            timeout_s: The longest wait; None: without end.

        Returns:
            Whether it is done; False: `timeout_s` has passed.

        Raises:
            UsageError: The engine has no thread, and nothing that can happen would end the wait; or this thread
                holds the lock, so that nothing can happen.
        """
        engine = self.engine
        if self.lock.is_mine():
            refuse_nested_call()
        if not engine.manual:
            # What came counts, even if a replay has undone it before this thread could look.
            return bool(wait(timeout_s)) or done()
        until = None if timeout_s is None else engine.now() + timeout_s
        while not done():
            if not engine.step(until):
                break
            self.callbacks.flush(self.lock)
        if until is None:
            if not done():
                raise UsageError(f"this wait would never end: {self._standstill()}")
            return True
        # What came later than `until` came after the wait had ended.
        return done() and engine.now() <= until

    def _standstill(self) -> str:
        """Say why nothing happens any more."""
        if not self._opened:
            return "the queue is not started"
        return "the queue is paused" if self.dispatcher.paused else "nothing runs, and nothing is due"

    def _report(self) -> ShutdownReport:
        return self._closing.report(is_whole=self.bug is None and not self.forked)

    # --- submitting ----------------------------------------------------------------------------

    def submit(
        self, tasks: Sequence[Task], note: Callable[[], object] | None = None, replaced: Sequence[Task] = ()
    ) -> None:
        """Accept tasks, and start what can start in the caller's thread; the lock is held.

        Args:
            tasks: All of them, or none, are accepted.
            note: Called then, before an interrupt may come.
            replaced: Known tasks whose ids some of them take.

        Raises:
            DuplicateTaskError: One of those runs or is waited for.
        """
        if note is None:
            self._change.make(self._submit, tasks)
        else:
            self._change.make(self._submit_noted, (tasks, note, replaced))

    def _submit_noted(self, what: tuple[Sequence[Task], Callable[[], object], Sequence[Task]]) -> None:
        tasks, note, replaced = what
        if replaced:
            self._replace(tasks, replaced)
        else:
            self._submit(tasks)
        note()

    def _replace(self, tasks: Sequence[Task], replaced: Sequence[Task]) -> None:
        now = self.engine.now()
        self.dispatcher.take_back_those(replaced, now)
        try:
            self._submit(tasks, replaced)
        except UsageError:  # nothing was changed, but what was taken back wants to go on
            self._turn(now)
            raise
        finally:
            self.engine.wake()

    def _submit(self, tasks: Sequence[Task], replaced: Sequence[Task] = ()) -> None:
        scheduler = self.scheduler
        engine = self.engine
        now = engine.now()
        if self._journal is not None:
            self._journal.check()
        if now >= self.brake.ends_at:  # a moment before the loop comes to it
            self._turn(now)
            self.check_usable()
        if replaced:
            scheduler.replace(replaced, tasks, now)
        else:
            scheduler.accept(tasks, now)
        if self._journal is not None:
            self._keep(self._journal, tasks, now)
        due = scheduler.next_due() if scheduler.has_timers else None
        if due is not None and due <= now:  # the loop is about to see to it; nothing late may start before
            scheduler.advance(now)
        if self.orphans:
            self._disown_orphans()
        if self._opened:
            engine.look(now)
            if self.brake.is_due:  # it was heard just now
                self.tick(now)
            self.dispatcher.dispatch(now)
            self.dispatcher.leave_to_loop()
        self.settle()

    def _keep(self, journal: "Journal", tasks: Sequence[Task], now: float) -> None:
        """Have the journal keep tasks that were accepted just now, before any of them starts, or refuse them after all.

        Raises:
            EngineError: It can't be written.
        """
        journal.settle()
        if journal.is_stuck:
            self.scheduler.retract(tasks, now)
            journal.check()

    def sync(self) -> None:
        """Wait until what was submitted is on disk, where that was asked for; the lock is not held.

        Raises:
            EngineError: It can't be had there.
        """
        if self._journal is not None:
            self._journal.sync()

    @changes
    def submit_begun(self, task: Task, ended: Ended) -> None:
        """Accept a task whose first attempt was made within another task; the lock is held."""
        with self._change:
            now = self.engine.now()
            self.scheduler.accept_begun(task, ended, now)
            self._turn(now)
            self.engine.wake()

    # --- commands ------------------------------------------------------------------------------

    @changes
    def cancel(self, task: Task) -> CancelAnswer:
        """Cancel a task (contract F3); the lock is held."""
        self.check_alive()
        with self._change:
            now = self.engine.now()
            answer = self._cancel(task, now)
            self._turn(now)
            self.engine.wake()
            return answer

    def _cancel(self, task: Task, now: float) -> CancelAnswer:
        if task.seq in self.scheduler.ahead:
            self.dispatcher.take_back(task, now)
        answer = self.scheduler.cancel(task, now)
        if answer == "stopping" and not self.engine.stop(task, "cancelled"):
            return self.scheduler.cancel(task, now)  # it had not begun, or has ended
        return answer

    def cancel_later(self, tasks: Iterable[Task]) -> None:
        """Cancel tasks soon; takes no lock, so that `__del__` may call it anywhere."""
        self._to_cancel.extend(tasks)
        self.engine.alarm()

    @changes
    def replay(self, tasks: Sequence[Task], *, reset_attempts: bool, with_dependents: bool) -> int:
        """Take dead or cancelled tasks back; the lock is held.  Returns how many."""
        with self._change:
            now = self.engine.now()
            taken = 0
            for task in tasks:
                taken += self.scheduler.replay(
                    task, now, reset_attempts=reset_attempts, with_dependents=with_dependents
                )
            self._turn(now)
            self.engine.wake()
            return taken

    @changes
    def pause(self) -> None:
        """Start nothing new, and take back what was sent ahead (contract H1); the lock is held.

        Amid a shutdown only for whoever makes that harsher at once: a drain would wait for ever.
        """
        self.check_alive()
        with self._change:
            self.dispatcher.paused = True
            now = self.engine.now()
            self.dispatcher.take_back_all(now)
            self._turn(now)  # results may have been read here, of which the loop knows nothing
            self.engine.wake()

    @changes
    def resume(self) -> None:
        """Go on after `pause`; the lock is held."""
        self.check_alive()
        with self._change:
            self.dispatcher.paused = False
            self._turn(self.engine.now())
            self.engine.wake()

    @changes
    def purge(self, tasks: Iterable[Task]) -> int:
        """Drop the dead letters of tasks for good; the lock is held.  Returns how many there were."""
        with self._change:
            return self.scheduler.purge(tasks)

    @changes
    def resize(self, workers: int, group: str) -> None:
        """Change how many workers a group may have (contract H1); the lock is held."""
        with self._change:
            self.engine.places[group].resize(workers)

    # --- what the engine reports (procq.engine.protocol.Host) ------------------------------------

    def began(self, attempt: Attempt, at: float) -> None:
        """An attempt that was sent ahead has begun."""
        task = self.scheduler.ahead.get(attempt.seq)
        if task is not None:
            self.scheduler.start(task, at)

    @property
    def wants_places(self) -> bool:
        """Whether somebody wants to know where attempts begin."""
        return self._events is not None

    def placed(self, attempt: Attempt, worker_id: int, pid: int) -> None:
        """The attempt that has begun just now is with this worker."""
        if self._events is not None:
            self._events.facts.placed(attempt.id, worker_id, pid)

    def ended(self, attempt: Attempt, fence: int, ended: Ended) -> None:
        """An attempt has ended."""
        task = self._ran(attempt)
        if task is None:
            return
        self.scheduler.end(task, fence, ended, ended.ended_at)
        if self.brake.limit is not None:
            self.brake.judge()

    def spawned(self, attempt: Attempt, fence: int, ended: Ended, listing: Listing) -> None:
        """An attempt has returned, and brings tasks that are to be accepted with its success."""
        task = self._ran(attempt)
        if task is None:
            return
        self.offspring.take(task, fence, ended, listing, self.engine.now())
        if self.brake.limit is not None:
            self.brake.judge()

    def _take_back(self, tasks: Iterable[Task], now: float) -> None:
        """Take back tasks sent ahead, amid a report; that may read others, of which the loop must come to know."""
        self.dispatcher.take_back_those(tasks, now)
        self.engine.wake()

    def _ran(self, attempt: Attempt) -> Task | None:
        """Return the task whose attempt is reported to have ended; None: the report is late, and dropped."""
        task = self.scheduler.running.get(attempt.seq)
        if task is None:
            self.scheduler.dropped_late += 1
        elif self.progress:
            self.progress.pop(task.seq, None)
        return task

    def succeeded(self, attempt: Attempt, fence: int, value: Payload, run: Run) -> None:
        """An attempt has returned."""
        if self.progress:
            self.progress.pop(attempt.seq, None)
        self.scheduler.succeed(cast("Task", attempt), fence, value, run, run[1])
        if self.brake.limit is not None:
            self.brake.judge()

    def returned(self, attempt: Attempt) -> None:
        """An attempt that was started or sent ahead came back without having begun."""
        scheduler = self.scheduler
        task = scheduler.ahead.get(attempt.seq)
        if task is not None:
            scheduler.take_back(task)
        elif (task := scheduler.running.get(attempt.seq)) is not None:
            scheduler.put_back(task, self.engine.now())

    def progressed(self, attempt: Attempt, done: float, total: float) -> None:
        """A running attempt said how far it is."""
        if attempt.seq in self.scheduler.running:
            self.progress[attempt.seq] = (done, total)
            if self._events is not None:
                self._events.progressed(attempt.id, attempt.attempt, done, total)

    def logged(self, handle: Callable[[], object], parts: Mapping[str, object]) -> None:
        """Something was logged in an attempt."""
        self.log_thread.put(handle)
        if self._events is not None:
            self._events.logged(parts)

    def worker_started(self, worker_id: int, pid: int) -> None:
        """A worker's process was started."""
        if self._events is not None:
            self._events.worker_started(worker_id, pid)

    def worker_ended(self, worker_id: int, pid: int, reason: Departure) -> None:
        """A worker's process has ended."""
        if self._events is not None:
            self._events.worker_ended(worker_id, pid, reason)

    def backlog(self, group: str) -> int:
        """Return how many attempts of a group could begin if there were more workers, those ahead included."""
        return self.dispatcher.backlog(group)

    def next_due(self) -> float | None:
        """Return when `tick` must be called next if nothing happens before."""
        due = self.scheduler.next_due()
        look_at = self.dispatcher.look_at()
        if look_at is not None:
            due = _earlier(due, look_at)
        if self.brake.ends_at < inf and not self.dispatcher.closed:
            due = _earlier(due, self.brake.ends_at)
        if self._closing.mode == "kill" or not self.scheduler.open:
            return due
        return _earlier(due, self._closing.deadline)

    def tick(self, now: float) -> None:
        """Time has passed or something was reported: decide what happens next."""
        scheduler = self.scheduler
        if self.orphans:
            self._disown_orphans()
        while self._to_cancel:
            self._cancel(self._to_cancel.popleft(), now)
        while self._to_unlisten:
            self.unlisten(*self._to_unlisten.popleft())
        scheduler.advance(now)
        closing = self._closing
        if self.brake.limit is not None:
            self.brake.judge()
        for order in self.brake.orders(now):
            self._halt(order, now)
        if self.abandoned and closing.mode != "kill":
            closing.begin("kill", None, now, cause="dropped")
            self.room.free_all()
            closing.cut_to(KILLED, now)
        if closing.mode is not None:
            closing.advance(now, at_once=self.abandoned)
        if self._start_error is not None:
            self._fail_waiting(self._start_error, now)
        self.dispatcher.dispatch(now)
        if closing.mode is not None:
            closing.advance(now, at_once=self.abandoned)

    def _fail_waiting(self, ended: Ended, now: float) -> None:
        """End what waits, for nothing starts any more; again and again, as another group may still run something.

        What ends there makes others ready, which would wait for ever for workers of their own.
        """
        self.dispatcher.take_back_all(now)
        self.scheduler.fail_waiting(ended, now)

    def _halt(self, order: Order, now: float) -> None:
        """End the queue by itself (contract G6)."""
        if not self._closing.halt(order.why, order.told, order.how):
            return  # a shutdown is at it already, no less hard
        self.accepts = False
        self.room.free_all()
        self.dispatcher.take_back_all(now)  # so that it is known what runs
        self._settle()  # what led to it is told before it
        news = Halted(order.why, order.how, len(self.scheduler.running))
        if not self.halt_listeners:  # else somebody sees to it; and leaving `with` would be all that there is to see
            self.log_thread.put(partial(logger.log, WARNING, "a queue has ended by itself: %s", order.told))
        for listener in self.halt_listeners:
            self.callbacks.put(partial(listener, news))
        self.engine.wake()  # this may be a caller's thread

    def _judge_end(self) -> None:
        """Nothing is left that could still end: say that the queue has halted if by that it has."""
        order = None if self._closing.is_cut else self.brake.order_at_end()
        if order is not None:
            self._closing.note_halt(order.why, order.told)

    def settle(self) -> None:
        """Wake everybody for whom something has changed: the last act before the lock is given up."""
        if self._journal is not None:
            self._journal.settle()  # before anybody is told
        if self.scheduler.settled:
            self._settle()
        if self.room.turns:
            self.room.let_in()
        if self._events is not None:
            self._tell_events(self._events)

    def _tell_events(self, events: "Events") -> None:
        """Let events be told of all that has happened."""
        if events.tells_held:
            events.held(self.dispatcher.held_back())
        events.take()

    def _turn(self, now: float) -> None:
        """Do what the engine does in each of its turns, in a caller's thread."""
        self.tick(now)
        self.settle()

    def broken(self, ended: Ended) -> None:
        """Workers cannot start: what waits ends FAILED with the start-up error (D11), in this `tick` or the next."""
        self.accepts = False
        self._start_error = ended
        if self._events is not None:
            self._events.warn(ended.message)
        self.room.free_all()

    def failed(self, error: BaseException) -> None:
        """The engine's loop has a bug: wake everybody who waits, to be told so."""
        with self.lock:
            self.accepts = False
            self.bug = error
            if self._events is not None:
                self._events.warn(f"the supervisor's thread failed: {type(error).__name__}: {error}")
            for task in self.scheduler.tasks.values():
                for listener in task.listeners or ():
                    listener(task)  # type: ignore[operator]  # as in `_settle`
                task.listeners = None
            self.room.free_all()

    def check_whole(self) -> None:
        """Raise if a caller's change was broken off half-way.

        Raises:
            EngineError: One was.
        """
        self._change.check_whole()

    def check_alive(self) -> None:
        """Raise if the supervisor's own thread has failed.

        Raises:
            InternalError: It has; the cause tells of the bug.
            EngineError: It gave up because a caller's change was broken off half-way.
        """
        if isinstance(self.bug, EngineError):
            raise EngineError(TORN) from None
        if self.bug is not None:
            raise InternalError("procq's supervisor thread failed; please report this") from self.bug

    def closed(self) -> None:
        """The engine has left nothing behind."""
        with self.lock:
            self._settle()
            self._judge_end()
            self._close_threads()
        if not self.engine.manual:
            self._last_thread = threading.current_thread()
        self._all_closed.set()
        unwatch(self)

    # --- telling the waiting ---------------------------------------------------------------------

    def listen(self, task: Task, listener: Listener) -> bool:
        """Have `listener(task)` called once, under the lock, when the task has ended.

        The lock is held.  Returns False, and does nothing, if it has ended already.

        Raises:
            EngineError, InternalError: The supervisor has failed, so that it never will.
        """
        if task.status in TERMINAL:
            return False
        self.check_alive()
        if task.listeners is None:
            task.listeners = [listener]
        else:
            task.listeners.append(listener)
        return True

    def unlisten(self, task: Task, listener: Listener) -> None:
        """Take a listener back; the lock is held.  Not there is fine."""
        if task.listeners is not None and listener in task.listeners:
            task.listeners.remove(listener)

    def unlisten_later(self, task: Task, listener: Listener) -> None:
        """Take a listener back in the next turn; takes no lock, so that `__del__` may call it anywhere."""
        self._to_unlisten.append((task, listener))

    def _settle(self) -> None:
        """Tell everybody who waits for what has ended."""
        settled = self.scheduler.settled
        if not settled:
            return
        self.scheduler.settled = []
        for task in settled:
            if task.status not in TERMINAL:
                continue
            if task.trouble is not None:
                self._closing.note_end(task)
            listeners = task.listeners
            if listeners is not None:
                task.listeners = None
                for listener in listeners:
                    listener(task)  # type: ignore[operator]  # opaque to the core; written by `listen` alone

    @changes
    def orphan(self, task: Task) -> None:
        """Note that a handle of a task has gone; takes no lock for long, so that `__del__` may call it anywhere."""
        # A deque takes no lock.  Whoever holds ours, or the next to do so, lets go of the task; if it has
        # ended and is big, that should be now.  Only then: it takes a thousand times as long.
        self.orphans.append(task)
        value, payload = task.value, task.payload
        if (value is None or len(value) < _BIG_BYTES) and not isinstance(payload, Parcel) and len(payload) < _BIG_BYTES:
            return
        if task.status not in TERMINAL:
            return
        if not self.lock.is_mine() and not self._change.by and self.lock.acquire(blocking=False):
            try:
                if not self._change.by:
                    with self._change:
                        self._disown_orphans()
            finally:
                self.lock.release()

    def _disown_orphans(self) -> None:
        """Let go of the tasks whose last handle has gone."""
        orphans = self.orphans
        while orphans:
            task = orphans.popleft()
            owner = task.owner
            if isinstance(owner, int) and owner > 1:
                task.owner = owner - 1
            elif not isinstance(owner, weakref.ref) or owner() is None:
                self.scheduler.disown(task)

    @property
    def changed_by(self) -> int:
        """The thread that changes the state now, or was broken off amid that; 0: none."""
        me = get_ident()
        return me if self._opening_by == me else self._change.by

    def waiting(self) -> int:
        """Return how many tasks wait; the lock need not be held for a rough answer."""
        return self.scheduler.waiting


#: How long a thread looks out for the end of a task before it sleeps, in seconds.
_LOOK_OUT_S: Final = 0.0001

#: A task that has ended, with a result or a payload of so many bytes, is let go of without delay; and one
#: whose payload is more than bytes, as what it refers to may be as big.
_BIG_BYTES: Final = 64 * 1024


#: How long a shutdown with a deadline waits for callbacks that are still running, beyond it.
CALLBACK_GRACE_S: Final = 0.5


def _earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two instants, of which each may be never (None)."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def live_supervisors() -> list[Supervisor]:
    """Return the supervisors of this process that may have something running."""
    return [one for one in live() if isinstance(one, Supervisor) and one.opened and not one.forked]
