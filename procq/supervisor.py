"""The supervisor: one scheduler, one engine, one lock (DESIGN, section 2).

Decides which ready task goes to which free place, passes reports on to the scheduler, tells the
waiting about what has settled, and takes the queue through its shutdown.  It unpickles nothing and
runs no user code, backoff callables aside.  Everything here happens under `lock`, in the thread that brought the news:
a caller that submits, or the engine's own.
"""

import contextlib
import os
import threading
import weakref
from _queue import SimpleQueue
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Literal, NamedTuple, NoReturn, cast, final

from procq.core.scheduler import CancelAnswer, Scheduler
from procq.core.states import TERMINAL, Status
from procq.core.task import Run, Task
from procq.engine.headroom import Headroom
from procq.engine.protocol import Attempt, Engine
from procq.errors import (
    EngineError,
    InternalError,
    ProcqError,
    QueueClosedError,
    QueueFullError,
    UsageError,
    WorkerStartError,
)
from procq.interrupts import WATCH, changes, raise_pending, shielded, unwatch, waits, watch
from procq.log import DEBUG, ERROR, Logger
from procq.outcome import Ended
from procq.parcel import Payload

logger = Logger(__name__)

Mode = Literal["drain", "finish", "kill"]
Listener = Callable[[Task], None]

#: Modes from the gentlest to the harshest; a later call may only be harsher.
_HARSHNESS: Final[dict[Mode, int]] = {"drain": 0, "finish": 1, "kill": 2}


class ShutdownReport(NamedTuple):
    """What a shutdown did (contract G1)."""

    drained: bool  #: whether everything accepted ran to its end
    succeeded: int  #: tasks that ended SUCCEEDED in the queue's whole life
    failed: int  #: FAILED likewise
    cancelled: int  #: CANCELLED likewise
    cut_off: tuple[str, ...]  #: ids of the tasks that the shutdown cancelled, in order of submission


class Supervisor:
    """Joins the scheduler and the engine under one lock.

    Args:
        scheduler: The rules.
        engine: Where attempts run.
        max_pending: At most so many tasks wait; None: no bound by count.
        max_pending_bytes: At most so many bytes of payload are held; or what finds the bound out,
            called once, when it first matters.
        headroom: Whether memory is short, so that no attempt may start beside another; None: it never is.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        *,
        max_pending: int | None = None,
        max_pending_bytes: int | Callable[[], int] | None = None,
        headroom: Headroom | None = None,
    ) -> None:
        self.lock = threading.Lock()
        #: open while a caller's thread changes what the lock guards
        self._change = _Change(engine.alarm)
        self.scheduler = scheduler
        self.engine = engine
        #: tasks whose handle has gone, noted by `__del__` without the lock
        self.orphans: deque[Task] = deque()
        #: tasks to be cancelled, noted by a `__del__` without the lock
        self._to_cancel: deque[Task] = deque()
        #: listeners to be taken back, likewise
        self._to_unlisten: deque[tuple[Task, Listener]] = deque()
        #: False for ever once work is refused: `check_usable` says why
        self._accepts = True
        #: set in a forked child, where the workers belong to somebody else
        self.forked = False
        #: set without the lock when the queue was dropped without shutdown
        self.abandoned = False
        #: what running attempts last said of how far they are, (done, total) by sequence number
        self.progress: dict[int, tuple[float, float]] = {}
        self._max_pending = max_pending
        self._max_pending_bytes = max_pending_bytes
        #: as long as so many bytes of payload are open there is room for more, whatever the bounds
        self._roomy_bytes: float = 0 if isinstance(max_pending_bytes, int) else SMALL_BYTES
        if max_pending is not None:
            self._roomy_bytes = -1
        elif max_pending_bytes is None:
            self._roomy_bytes = float("inf")
        #: callers that wait for room, longest first
        self._queue_for_room: deque[threading.Lock] = deque()
        self._opened = False
        #: the thread that opens the queue now; 0: none does
        self._opening_by = 0
        self._paused = False
        self._headroom = headroom
        self._mode: Mode | None = None
        self._deadline: float | None = None
        #: what the shutdown cancelled
        self._cut: list[Task] = []
        #: how far the cut has gone: 0 not at all, 1 all that waits, 2 all that runs is asked, 3 killed
        self._cut_level = 0
        self._engine_closing = False
        self._start_error: Ended | None = None
        self._all_closed = threading.Event()
        #: the engine's own thread, once it has left nothing but itself
        self._last_thread: threading.Thread | None = None
        #: runs done-callbacks
        self.callbacks = CallbackThread("procq-callbacks", "a done-callback")
        #: gives what workers log to the program's loggers; not the thread above, where a callback may wait
        #: for a task that cannot go on until what it logs is handled
        self.log_thread = CallbackThread("procq-logs", "a handler of log records")
        #: what broke the supervisor's own thread; a bug of procq
        self.bug: BaseException | None = None
        _register(self)

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
        """Whether a shutdown has begun."""
        return self._mode is not None

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
            with self.lock:
                if not self._opened:
                    self._opened = is_first = True
                    self._opening_by = get_ident()
            if is_first:
                self.engine.open(self)
            is_open = True
            self._begin()
        finally:
            if is_first:
                self._opening_by = 0
                self._opened = is_open  # else it may be tried again
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
            QueueClosedError: Shutdown began, or this is a forked child.
            WorkerStartError: Workers cannot start.
            EngineError, InternalError: As `check_alive`.
        """
        if self._accepts:
            return
        if self.forked:
            raise QueueClosedError(_FORKED)
        self.check_alive()
        if self._mode is not None or self.abandoned:
            raise QueueClosedError("the queue is shutting down and takes no more work")
        if self._start_error is not None:
            raise WorkerStartError(self._start_error.message)

    @changes
    def shutdown(self, mode: Mode, timeout_s: float | None) -> ShutdownReport:
        """Begin a shutdown, or make the one under way harsher, and wait for its end."""
        if self.forked:
            return self._report()
        with self.lock:
            self._accepts = False
            now = self.engine.now()
            if self._mode is None or _HARSHNESS[mode] > _HARSHNESS[self._mode]:
                self._mode = mode
            if timeout_s is not None:
                deadline = now + timeout_s
                self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
            self._paused = False  # or a drain would never end
            self._free_all_waiting()
            if self.bug is not None or self._change.by:
                self.engine.alarm()  # everything is killed, and what there was is not to be relied on
            else:
                with self._change:
                    self._begin_shutdown(mode, timeout_s, now)
        # Not `wake`: Ctrl-C amid an earlier one may have left the loop asleep and taken for awake.
        self.engine.alarm()
        self.wait_for(self._all_closed.wait, self._all_closed.is_set, None)
        unwatch(self)  # here too: in the main thread it has more effect
        if self._last_thread is not None:
            self._last_thread.join()
        for thread in (self.callbacks, self.log_thread):
            thread.join(None if self._deadline is None else self._deadline + CALLBACK_GRACE_S - self.engine.now())
        return self._report()

    def _begin_shutdown(self, mode: Mode, timeout_s: float | None, now: float) -> None:
        if self._opened:
            if mode == "kill" and timeout_s == 0:
                self._cut_to(3, now)
            self._turn(now)
            self.engine.wake()
        else:
            self._close_unopened(now)

    def _close_unopened(self, now: float) -> None:
        """End a queue that was never started: nothing ever ran, and nothing will."""
        self._opened = self._engine_closing = True
        self._cut_to(1, now)
        self._settle()
        self.callbacks.close()
        self.log_thread.close()
        self._all_closed.set()

    def settle_if_abandoned(self) -> None:
        """End a queue that was dropped before it was started; `abandon` could not, without the lock."""
        if self.abandoned and not self._opened:
            with self.lock:
                if not self._opened:
                    self._accepts = False
                    self._mode = "kill"
                    self._close_unopened(self.engine.now())

    def abandon(self) -> None:
        """Kill everything soon; takes no lock, so that `__del__` may call it anywhere."""
        self.abandoned = True
        self._accepts = False
        self.engine.alarm()
        unwatch(self)

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
        until = engine.now() + _LOOK_OUT_S
        while True:
            os.sched_yield()  # to the worker, if it has to run on this very processor
            with self.lock:
                if task.status not in TERMINAL and not self._change.by and self.bug is None:
                    with self._change:
                        if engine.look_at(task):
                            self._turn(engine.now())
                            self._leave_to_loop()
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
            UsageError: The engine has no thread, and nothing that can happen would end the wait.
        """
        engine = self.engine
        if not engine.manual:
            # What came counts, even if a replay has undone it before this thread could look.
            return bool(wait(timeout_s)) or done()
        until = None if timeout_s is None else engine.now() + timeout_s
        while not done():
            if not engine.step(until):
                break
            self.callbacks.flush()
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
        return "the queue is paused" if self._paused else "nothing runs, and nothing is due"

    def _report(self) -> ShutdownReport:
        counts = self.scheduler.counts
        cut = tuple(task.id for task in sorted(self._cut, key=_by_seq))
        is_drained = not cut and self.bug is None and not self.forked
        return ShutdownReport(
            is_drained, counts[Status.SUCCEEDED], counts[Status.FAILED], counts[Status.CANCELLED], cut
        )

    def _advance_shutdown(self, now: float) -> None:
        """Take the next step of a shutdown under way, if it is time for one."""
        if self._deadline is not None and now >= self._deadline:
            self._mode = "kill"
        if self._mode == "finish":
            self._cut_to(1, now)
        elif self._mode == "kill":
            self._cut_to(2, now)
        if self.scheduler.open == 0 and not self._engine_closing:
            self._engine_closing = True
            self.engine.close(at_once=self.abandoned)

    def _cut_to(self, level: int, now: float) -> None:
        """Cut the work short: 1 cancels all that waits, 2 also asks what runs to stop, 3 kills it."""
        if self._cut_level >= level:
            return
        if self._cut_level == 0:
            self._take_back_all(now)
            self.scheduler.cut_off(now)
        self._cut_level = level
        if level > 1:
            for task in list(self.scheduler.running.values()):
                self.engine.stop(task, "interrupted", at_once=level > 2)  # noqa: PLR2004 - the level's own meaning

    def _take_back_all(self, now: float) -> None:
        for task in list(self.scheduler.ahead.values()):
            if task.seq in self.scheduler.ahead:  # else it came back with another of the same worker
                self._take_back(task, now)

    # --- submitting ----------------------------------------------------------------------------

    @changes
    def submit(self, tasks: Sequence[Task], note: Callable[[], object] | None = None) -> None:
        """Accept tasks, and start what can start in the caller's thread; the lock is held.

        Args:
            tasks: All of them, or none, are accepted.
            note: Called then, before an interrupt may come.
        """
        # As a `with` would do it, which takes as long as all the rest of it.
        change = self._change
        if change.by:
            raise EngineError(_TORN)
        change.by = get_ident()
        try:
            self._submit(tasks)
            if note is not None:
                note()
        except BaseException as error:
            change.__exit__(type(error), error, None)
            raise
        change.by = 0
        if WATCH.pending:
            raise_pending()

    def _submit(self, tasks: Sequence[Task]) -> None:
        scheduler = self.scheduler
        engine = self.engine
        now = engine.now()
        scheduler.accept(tasks, now)
        due = scheduler.next_due() if scheduler.delayed or scheduler.expiring else None
        if due is not None and due <= now:  # the loop is about to see to it; nothing late may start before
            scheduler.advance(now)
        if self.orphans:
            self._disown_orphans()
        if self._opened:
            engine.look(now)
            self._dispatch(now)
            self._leave_to_loop()
        if scheduler.settled:
            self._settle()
        if self._queue_for_room:
            self.let_in()

    @changes
    def submit_begun(self, task: Task, ended: Ended) -> None:
        """Accept a task whose first attempt was made within another task; the lock is held."""
        with self._change:
            now = self.engine.now()
            self.scheduler.accept_begun(task, ended, now)
            self._turn(now)
            self.engine.wake()

    def _leave_to_loop(self) -> None:
        """Wake the loop after a change in a caller's thread, if anything is left for it.

        It need not be woken when the caller itself could hand a task to a worker, or when that waits
        behind others: only for more workers, and for an instant to wait for, which a report that was
        read here may have brought as well.
        """
        scheduler = self.scheduler
        if (scheduler.ready or scheduler.ahead) and self.engine.growing:
            self.engine.wake()
        elif (scheduler.delayed or scheduler.expiring) and (due := scheduler.next_due()) is not None:
            self.engine.wake(due)
        look_at = None if self._headroom is None else self._look_at()
        if look_at is not None:
            self.engine.wake(look_at)

    def wait_for_room(self, size: int, *, block: bool, timeout_s: float | None) -> None:
        """Wait until a task with so many bytes may be submitted; the lock is held before and after.

        Raises:
            QueueFullError: There is no room, and the call must not wait (any longer).
            QueueClosedError: Shutdown began meanwhile.
        """
        if self.scheduler.open_bytes + size <= self._roomy_bytes or not self._is_full(size):
            return
        if not self._opened:
            raise QueueFullError(f"{self._bound()}, and the queue is not started, so waiting would never end")
        if not block:
            raise QueueFullError(f"{self._bound()}; submit later, or let submit() block")
        turn = threading.Lock()
        self._queue_for_room.append(turn)  # it keeps this place, however often it looks in vain
        try:
            self._wait_in_turn(turn, size, timeout_s)
        except BaseException:
            self._queue_for_room.remove(turn)
            self.let_in()
            raise
        self._queue_for_room.remove(turn)  # the next one is let in once this task is accepted, or refused

    @waits
    def _wait_in_turn(self, turn: threading.Lock, size: int, timeout_s: float | None) -> None:
        ends_at = None if timeout_s is None else self.engine.now() + timeout_s
        while self._is_full(size):
            self.check_usable()
            if ends_at is not None and self.engine.now() >= ends_at:
                raise QueueFullError(f"{self._bound()}, and no room came within {timeout_s:g} s")
            turn.acquire(blocking=False)
            self.lock.release()
            try:
                if not self.engine.manual:
                    turn.acquire(timeout=-1 if ends_at is None else max(0.0, ends_at - self.engine.now()))
                elif self.engine.step(ends_at):
                    self.callbacks.flush()
                elif ends_at is None:
                    raise QueueFullError(f"{self._bound()}, and nothing that could run would make room")
            finally:
                self._lock_again()
            if WATCH.pending:
                raise_pending()
        self.check_usable()

    @shielded
    def _lock_again(self) -> None:
        """Take the lock, which whoever called will give back: to raise before would give back another's."""
        self.lock.acquire()

    def _is_full(self, size: int) -> bool:
        scheduler = self.scheduler
        if self._max_pending is not None and scheduler.open - len(scheduler.running) >= self._max_pending:
            return True
        if self._max_pending_bytes is None or not scheduler.open:
            return False
        if not isinstance(self._max_pending_bytes, int):
            if scheduler.open_bytes + size <= SMALL_BYTES:
                return False
            self._max_pending_bytes = self._max_pending_bytes()
        return scheduler.open_bytes + size > self._max_pending_bytes

    def _bound(self) -> str:
        """Say which bound is reached."""
        scheduler = self.scheduler
        waiting = scheduler.open - len(scheduler.running)
        if self._max_pending is not None and waiting >= self._max_pending:
            return f"{waiting} tasks wait already (max_pending={self._max_pending})"
        return f"{scheduler.open_bytes} bytes of payload wait already (max_pending_bytes={self._max_pending_bytes})"

    def let_in(self) -> None:
        """Wake the caller that waits longest for room, if there is any; the lock is held.

        It looks again.  Whoever had its turn calls this, even if it submitted nothing after all:
        the next one may have nothing else to be woken by.
        """
        if self._queue_for_room and not self._is_full(0):
            self._wake_turn(self._queue_for_room[0])

    def _free_all_waiting(self) -> None:
        for turn in self._queue_for_room:
            self._wake_turn(turn)

    @staticmethod
    def _wake_turn(turn: threading.Lock) -> None:
        if turn.locked():
            turn.release()

    # --- dispatching ---------------------------------------------------------------------------

    def _dispatch(self, now: float) -> None:
        """Give what is ready to whoever is free; the hot path."""
        if self._paused or self._engine_closing:
            return
        scheduler = self.scheduler
        backlog = len(scheduler.ready) + len(scheduler.ahead)
        if backlog:
            if self._headroom is not None and self._headroom.is_short(now):
                self._start_alone(now)
                return
            self.engine.foresee(backlog)
            self._hand_out(now)
            self.engine.flush()

    def _start_alone(self, now: float) -> None:
        """Memory is short: start one attempt if none runs, since nobody else may ever free any (contract D10).

        What was sent ahead goes on: it is some milliseconds of work for each worker.
        """
        task = None if self.scheduler.running else self.scheduler.next_ready()
        if task is not None and self.engine.idle:
            self.scheduler.start(task, now)
            self.engine.start(task)
            self.engine.flush()

    def _look_at(self) -> float | None:
        """Return when to look whether there is memory again for what is held back; None: nothing is."""
        headroom = self._headroom
        if headroom is None or not headroom.was_short or self._paused or not self.scheduler.ready:
            return None
        return headroom.look_at

    def _hand_out(self, now: float) -> None:
        """Decide who gets what, the most urgent first."""
        scheduler = self.scheduler
        engine = self.engine
        while True:
            task = scheduler.next_ready()
            if task is None:
                if scheduler.ahead and engine.idle:
                    # A worker idles while a task waits behind another one: move it there (B8).
                    self._take_back(scheduler.first_ahead(), now)
                    continue
                return
            if engine.idle:
                scheduler.start(task, now)
                engine.start(task)
            elif engine.roomy and self._may_go_ahead(task):
                scheduler.send_ahead(task)
                engine.send_ahead(task)
            elif scheduler.ahead and (less_urgent := scheduler.overtaken_by(task)) is not None:
                self._take_back(less_urgent, now)
                if engine.roomy and not self._may_go_ahead(task) and not engine.idle:
                    return  # it cannot be sent ahead: the worker that ends first takes it
            else:
                return

    def _may_go_ahead(self, task: Task) -> bool:
        """Whether a task may wait at a busy worker: not if a limit or an expiry could still stop it."""
        if task.conditions is not None and task.expires_at is not None:
            return False
        return not self.scheduler.ready.limited(task.type) and self.engine.fits_ahead(task)

    def _take_back(self, task: Task, now: float) -> None:
        """Take back a task sent ahead; if it has begun, note that."""
        if not self.engine.take_back(task) and task.seq in self.scheduler.ahead:
            self.scheduler.start(task, now)

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
            self._take_back(task, now)
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
        """Start nothing new, and take back what was sent ahead (contract H1); the lock is held."""
        self.check_alive()
        with self._change:
            self._paused = True
            now = self.engine.now()
            self._take_back_all(now)
            self._turn(now)  # results may have been read here, of which the loop knows nothing
            self.engine.wake()

    @changes
    def resume(self) -> None:
        """Go on after `pause`; the lock is held."""
        self.check_alive()
        with self._change:
            self._paused = False
            self._turn(self.engine.now())
            self.engine.wake()

    @changes
    def purge(self, tasks: Iterable[Task]) -> int:
        """Drop the dead letters of tasks for good; the lock is held.  Returns how many there were."""
        with self._change:
            return self.scheduler.purge(tasks)

    @changes
    def resize(self, workers: int) -> None:
        """Change how many workers there may be (contract H1); the lock is held."""
        with self._change:
            self.engine.resize(workers)

    # --- what the engine reports (procq.engine.protocol.Host) ------------------------------------

    def began(self, attempt: Attempt, at: float) -> None:
        """An attempt that was sent ahead has begun."""
        task = self.scheduler.ahead.get(attempt.seq)
        if task is not None:
            self.scheduler.start(task, at)

    def ended(self, attempt: Attempt, fence: int, ended: Ended) -> None:
        """An attempt has ended."""
        task = self.scheduler.running.get(attempt.seq)
        if task is None:
            self.scheduler.dropped_late += 1
            return
        if self.progress:
            self.progress.pop(task.seq, None)
        self.scheduler.end(task, fence, ended, ended.ended_at)

    def succeeded(self, attempt: Attempt, fence: int, value: Payload, run: Run) -> None:
        """An attempt has returned."""
        if self.progress:
            self.progress.pop(attempt.seq, None)
        self.scheduler.succeed(cast("Task", attempt), fence, value, run, run[1])

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

    def logged(self, handle: Callable[[], object]) -> None:
        """Something was logged in an attempt."""
        self.log_thread.put(handle)

    @property
    def backlog(self) -> int:
        """How many attempts could begin if there were more workers, those that wait ahead included."""
        if self._paused:
            return 0
        backlog = len(self.scheduler.ready) + len(self.scheduler.ahead)
        if self._headroom is not None and self._headroom.was_short:  # another worker takes memory too
            return 0 if self.scheduler.running else min(1, backlog)
        return backlog

    def next_due(self) -> float | None:
        """Return when `tick` must be called next if nothing happens before."""
        due = self.scheduler.next_due()
        if self._headroom is not None:
            due = _earlier(due, self._look_at())
        if self._mode == "kill" or not self.scheduler.open:
            return due
        return _earlier(due, self._deadline)

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
        if self.abandoned and self._mode != "kill":
            self._mode = "kill"
            self._free_all_waiting()
            self._cut_to(3, now)
        if self._mode is not None:
            self._advance_shutdown(now)
        self._dispatch(now)
        if self._mode is not None:
            self._advance_shutdown(now)

    def settle(self) -> None:
        """Wake everybody for whom something has changed: the last act before the lock is given up."""
        if self.scheduler.settled:
            self._settle()
        if self._queue_for_room:
            self.let_in()

    def _turn(self, now: float) -> None:
        """Do what the engine does in each of its turns, in a caller's thread."""
        self.tick(now)
        self.settle()

    def broken(self, ended: Ended) -> None:
        """Workers cannot start: what waits ends FAILED with the start-up error (D11)."""
        self._accepts = False
        self._start_error = ended
        self.scheduler.fail_waiting(ended, self.engine.now())
        self._free_all_waiting()

    def failed(self, error: BaseException) -> None:
        """The engine's loop has a bug: wake everybody who waits, to be told so."""
        with self.lock:
            self._accepts = False
            self.bug = error
            for task in self.scheduler.tasks.values():
                for listener in task.listeners or ():
                    listener(task)  # type: ignore[operator]  # as in `_settle`
                task.listeners = None
            self._free_all_waiting()

    def check_whole(self) -> None:
        """Raise if a caller's change was broken off half-way.

        Raises:
            EngineError: One was.
        """
        if self._change.by:
            raise EngineError(_TORN)

    def check_alive(self) -> None:
        """Raise if the supervisor's own thread has failed.

        Raises:
            InternalError: It has; the cause tells of the bug.
            EngineError: It gave up because a caller's change was broken off half-way.
        """
        if isinstance(self.bug, EngineError):
            raise EngineError(_TORN) from None
        if self.bug is not None:
            raise InternalError("procq's supervisor thread failed; please report this") from self.bug

    def closed(self) -> None:
        """The engine has left nothing behind."""
        with self.lock:
            self._settle()
        self.callbacks.close()
        self.log_thread.close()
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
            if task.trouble is not None and task.cause == "shutdown":
                self._cut.append(task)
            listeners = task.listeners
            if listeners is not None:
                task.listeners = None
                for listener in listeners:
                    listener(task)  # type: ignore[operator]  # opaque to the core; written by `listen` alone

    @changes
    def orphan(self, task: Task) -> None:
        """Note that a handle of a task has gone; takes no lock for long, so that `__del__` may call it anywhere."""
        # A deque takes no lock.  Whoever holds ours, or the next to do so, lets go of the task; if its
        # result is big, that should be now.  Only then: Ctrl-C is lost if it comes within a `__del__`.
        self.orphans.append(task)
        if task.value is None or len(task.value) < _BIG_BYTES:
            return
        if not self._change.by and self.lock.acquire(blocking=False):
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
        return self.scheduler.open - len(self.scheduler.running)


@final
class _Change:
    """Open while a caller's thread changes the state, and for ever if it was broken off half-way.

    A handler of the program's own may raise between any two instructions of the main thread
    (Python's own is kept from that, see interrupts.py).  Amid a submit it would leave a task that
    runs nowhere, for which a shutdown would wait without end; so whoever takes the lock next looks
    here, and if a change is open everything is killed.  A flag and no handler of exceptions,
    because the interrupt may hit that too.
    """

    __slots__ = ("_alarm", "by")

    def __init__(self, alarm: Callable[[], object]) -> None:
        #: the thread whose change is open; 0: none is
        self.by = 0
        self._alarm = alarm

    def __enter__(self) -> None:
        if self.by:
            raise EngineError(_TORN)
        self.by = get_ident()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Our own errors are raised before anything is changed.
        if error_type is None or issubclass(error_type, ProcqError):
            self.by = 0
            if WATCH.pending:
                raise_pending()
        else:
            self._alarm()  # the loop may be asleep, and must see that all is over


_TORN: Final = (
    "the queue was interrupted amid a change, say by a signal handler that raised within submit(), and had to be "
    "killed; make a new Queue"
)

#: How long a thread looks out for the end of a task before it sleeps, in seconds.
_LOOK_OUT_S: Final = 0.0001

#: A result of so many bytes is let go of without delay.
_BIG_BYTES: Final = 64 * 1024


@final
class CallbackThread:
    """Runs calls of user code one after the other, outside every lock; started when first needed (F4).

    Args:
        name: The thread's.
        what: What is called, for messages.
    """

    __slots__ = ("_calls", "_closed", "_lock", "_name", "_thread", "_what")

    def __init__(self, name: str, what: str) -> None:
        self._name = name
        self._what = what
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._lock = threading.Lock()

    def put(self, call: Callable[[], object]) -> None:
        """Have a call made soon; never blocks for long, and may be called under the queue's lock."""
        with self._lock:
            self._calls.put(call)
            if self._thread is None:
                self._start_thread()
            if self._closed:  # a callback that was added after the end of the queue
                self._calls.put(None)

    def close(self) -> None:
        """Let the thread end after the calls that are due."""
        with self._lock:
            self._closed = True
            if self._thread is not None:
                self._calls.put(None)

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has none to spare: the next callback tries again
            # From 3.12 on none can be started while the interpreter ends, which is nobody's fault.
            level = DEBUG if "interpreter shutdown" in str(error) else ERROR
            logger.log(level, "%s cannot be called: %s", self._what, error)
        else:
            self._thread = thread

    def flush(self) -> None:
        """Wait until the calls that are due have been made, unless this is one of them."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        flushed = threading.Event()
        self.put(flushed.set)
        flushed.wait()

    def join(self, timeout_s: float | None) -> None:
        """Wait for the thread's end, unless this is it."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(None if timeout_s is None else max(0.0, timeout_s))

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                with self._lock:
                    if self._calls.empty():
                        self._thread = None
                        return
                continue
            try:
                call()
            except BaseException:
                # A user's callback: whatever it raises is told once and harms nobody (F4).
                with contextlib.suppress(BaseException):  # a handler of the program's may raise too
                    logger.log(ERROR, "%s raised", self._what, exc_info=True)
            del call  # or it would keep a handle alive until the next one comes


#: How long a shutdown with a deadline waits for callbacks that are still running, beyond it.
CALLBACK_GRACE_S: Final = 0.5

#: Payloads of so many bytes in all never wait for room, so the memory need not be asked for.
SMALL_BYTES: Final = 64 * 2**20


def _earlier(one: float | None, other: float | None) -> float | None:
    """Return the earlier of two instants, of which each may be never (None)."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _by_seq(task: Task) -> int:
    return task.seq


#: Every live supervisor of this process, so that a forked child can mark them as not its own.
_LIVE: "weakref.WeakSet[Supervisor]" = weakref.WeakSet()


def live_supervisors() -> list[Supervisor]:
    """Return the supervisors of this process that may have something running."""
    return [supervisor for supervisor in _LIVE if supervisor.opened and not supervisor.forked]


def _register(supervisor: Supervisor) -> None:
    if not _LIVE:
        _hook_fork()
    _LIVE.add(supervisor)


def _hook_fork() -> None:
    """Mark the supervisors in every forked child, once a process."""
    if not hasattr(_hook_fork, "done"):
        os.register_at_fork(after_in_child=_mark_forked)
        _hook_fork.done = True  # type: ignore[attr-defined]  # register_at_fork cannot be undone or asked


def _mark_forked() -> None:
    for supervisor in _LIVE:
        supervisor.forked = True
        supervisor._accepts = False  # noqa: SLF001 - this module's own
        unwatch(supervisor)
        # It may have been held when the process forked, by a thread that is not here.
        supervisor.lock = _LostLock()  # type: ignore[assignment]  # all that is left of it is to refuse


class _LostLock:
    """Stands in for the lock in a forked child: whoever wants it is refused (contract C7)."""

    __slots__ = ()

    def __enter__(self) -> NoReturn:
        raise QueueClosedError(_FORKED)

    def __exit__(self, *_: object) -> None:
        """Never reached."""

    def acquire(self, *, blocking: bool) -> bool:
        """Return False: a try without a wait fails in peace."""
        assert not blocking
        return False


_FORKED: Final = (
    "this queue belongs to the process that made it, and this is a forked child of that; make a Queue of its own here"
)
