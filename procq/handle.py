"""The grip on a submitted task: waiting for its end, its result or its error (contract F1, F4).

Results and errors are unpickled here, in the thread that asks, and anew each time.  Waiting never
polls: a waiter hangs a queue of its own on the task and sleeps on that.
"""

import weakref
from _queue import Empty, SimpleQueue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

from procq.core.scheduler import CancelAnswer
from procq.core.states import TERMINAL, Status
from procq.core.task import Task
from procq.errors import (
    AttemptTimeout,
    DependencyFailed,
    MemoryLimitExceeded,
    PayloadError,
    RemoteError,
    RemoteTraceback,
    TaskError,
    UsageError,
    WorkerCrashed,
    WorkerLost,
    WorkerStartError,
)
from procq.interrupts import finalizes
from procq.log import WARNING, Logger
from procq.outcome import Ended, class_names
from procq.payload import loads
from procq.spec import Output, stand_for
from procq.supervisor import Supervisor
from procq.units import Duration, seconds

if TYPE_CHECKING:
    from procq.core.records import AttemptRecord

logger = Logger(__name__)

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

#: Reading a member through its class costs as much as a call.
_SUCCEEDED: Final = Status.SUCCEEDED


@final
class TaskResult(Generic[R_co]):
    """How a task stands, or ended (contract F1).  A copy: it does not change any more.

    Attributes:
        id: The task's id.
        status: Its status.
        value: What it returned; None unless it SUCCEEDED.
        error: The error `result()` raises; None if there is none.
        attempts: How many attempts were used.
        history: The attempts that ended, oldest first.
    """

    __slots__ = ("attempts", "error", "history", "id", "status", "value")

    def __init__(self, task: Task) -> None:
        self.id = task.id
        self.status = task.status
        self.value: R_co | None = None
        if task.status is Status.SUCCEEDED:
            self.value = cast("R_co", loads(task.value or b""))
        self.error = error_of(task)
        self.attempts = task.attempts
        self.history: tuple[AttemptRecord, ...] = task.records()

    def __repr__(self) -> str:
        return f"<TaskResult {self.id!r} {self.status} after {self.attempts} attempts>"


@final
class Handle(Generic[R_co]):
    """The grip on one task; made by `Queue.submit`, never by hand.

    Thread-safe.  A task without an id of its own is forgotten as soon as its handle is gone and
    it has ended (contract F5).
    """

    __slots__ = ("__weakref__", "_supervisor", "_task")

    def __init__(self, supervisor: Supervisor, task: Task) -> None:
        self._task = task
        self._supervisor = supervisor
        # With an id of its own there is one handle; without, they are counted: a reference takes 72 bytes.
        if task.explicit:
            task.owner = weakref.ref(self)
        else:
            task.owner = task.owner + 1 if isinstance(task.owner, int) else 1

    @finalizes
    def __del__(self) -> None:
        supervisor = getattr(self, "_supervisor", None)  # Ctrl-C may have come before there was one
        if supervisor is not None:
            supervisor.orphan(self._task)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Handle) and self._task is other._task)

    def __hash__(self) -> int:
        return id(self._task)

    def __reduce__(self) -> tuple[object, ...]:
        """Become the number of the result while a call is pickled (contract E2)."""
        return stand_for(self)

    def __repr__(self) -> str:
        return f"<Handle {self.label()} {self.status}>"

    def label(self) -> str:
        """Return the type and the id."""
        return f"{self._task.type} {self._task.id}"

    @property
    def id(self) -> str:
        """The task's id."""
        return self._task.id

    @property
    def type(self) -> str:
        """The task's type."""
        return self._task.type

    @property
    def status(self) -> Status:
        """The task's status at this moment."""
        return self._task.status

    @property
    def ok(self) -> bool:
        """Whether the task SUCCEEDED."""
        return self._task.status is Status.SUCCEEDED

    @property
    def attempts(self) -> int:
        """How many attempts were used so far."""
        return self._task.attempts

    @property
    def progress(self) -> tuple[float, float] | None:
        """What the running attempt last said by `current().progress(done, total)`, or None."""
        return self._supervisor.progress.get(self._task.seq)

    @property
    def history(self) -> "tuple[AttemptRecord, ...]":
        """The attempts that ended, oldest first."""
        return self._task.records()

    @property
    def error(self) -> BaseException | None:
        """The error `result()` would raise, a new object each time; None if there is none (yet)."""
        return error_of(self._task)

    @property
    def out(self) -> R_co:
        """Stands for the result, typed as the result; pass it to another task (contract E2)."""
        return cast("R_co", Output(self))

    def done(self) -> bool:
        """Whether the task has ended; never blocks."""
        return self._task.status in TERMINAL

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the task's end and return what it returned, a new object each time.

        Args:
            timeout: The longest wait; None: without end.  Ends only the wait, not the task.

        Raises:
            TimeoutError: The task had not ended in time.
            TaskCancelled: It was cancelled (also a `CancelledError`).
            DependencyFailed: Something it depends on did not succeed.
            AttemptTimeout, WorkerCrashed, ...: What befell its last attempt.
            EngineError, InternalError: The queue broke down, so that the task never ends.
            Exception: What the task itself raised, with the worker's traceback as its cause.
        """
        task = self._task
        if task.status is not _SUCCEEDED:
            error = self.exception(timeout)
            if error is not None:
                raise error
        return cast("R_co", loads(task.value or b""))

    def exception(self, timeout: Duration | None = None) -> BaseException | None:
        """Wait for the task's end and return its error, or None if it succeeded.

        Raises:
            TimeoutError: The task had not ended in time.
        """
        task = self._task
        while True:
            self.wait(timeout)
            if task.status is Status.SUCCEEDED:
                return None
            error = error_of(task)
            if error is not None:
                return error
            # Replayed in this very moment: it will have another end.

    def wait(self, timeout: Duration | None = None) -> None:
        """Wait for the task's end, however it ends.

        Raises:
            TimeoutError: The task had not ended in time.
        """
        if self._task.status not in TERMINAL and not self._supervisor.look_out(self._task):
            wait_for_end(self._supervisor, self._task, _limit(timeout))

    def cancel(self) -> CancelAnswer:
        """Cancel the task (contract F3); never waits for its end.

        Returns:
            "cancelled": it had not begun and never will.  "stopping": it is asked to stop, and
            killed after `kill_grace`.  "finished": it had ended.
        """
        with self._supervisor.entry:
            return self._supervisor.cancel(self._task)

    def add_done_callback(self, fn: "Callable[[Handle[R_co]], object]") -> None:
        """Have `fn(handle)` called once when the task has ended; at once if it has.

        It runs in a thread of procq's own, outside every lock, one after the other.  One that raises
        is logged and harms nobody (contract F4).
        """
        supervisor = self._supervisor
        callback = partial(supervisor.callbacks.put, partial(fn, self))
        with supervisor.entry:
            if not supervisor.listen(self._task, _Callback(callback)):
                callback()


class _Callback:
    """A listener that hands a user's callback to the callback thread."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __call__(self, _task: Task) -> None:
        self._call()


def task_of(handle: "Handle[Any]") -> Task:
    """Return the core's record behind a handle."""
    return handle._task  # noqa: SLF001 - the façade's own


def handle_of(supervisor: Supervisor, task: Task) -> Handle[Any]:
    """Return the handle of a task: where it has an id of its own the one there is, else one equal to others."""
    owner = task.owner
    handle = owner() if isinstance(owner, weakref.ref) else None
    return Handle(supervisor, task) if handle is None else handle


def supervisor_of(handle: "Handle[Any]") -> Supervisor:
    """Return the supervisor behind a handle."""
    return handle._supervisor  # noqa: SLF001


def _limit(timeout: Duration | None) -> float | None:
    return None if timeout is None else seconds(timeout, field="timeout")


def wait_for_end(supervisor: Supervisor, task: Task, timeout_s: float | None) -> None:
    """Sleep until a task has ended.

    Raises:
        TimeoutError: It had not ended in time.
        EngineError, InternalError: The supervisor failed, so that it never will.
    """
    arrived: SimpleQueue[Task] = SimpleQueue()
    supervisor.settle_if_abandoned()
    with supervisor.entry:
        if not supervisor.listen(task, arrived.put):
            return
    warn_if_not_started(supervisor, timeout_s)
    ended = False
    try:
        ended = supervisor.wait_for(partial(_get, arrived), partial(_has_ended, supervisor, task), timeout_s)
    finally:
        if not ended:
            with supervisor.lock:
                supervisor.unlisten(task, arrived.put)
    if not ended:
        hint = "" if supervisor.opened else "; its queue was not started"
        raise TimeoutError(f"task {task.id!r} is still {task.status} after {timeout_s:g} s of waiting{hint}")
    supervisor.check_alive()


def warn_if_not_started(supervisor: Supervisor, timeout_s: float | None) -> None:
    """Warn of a wait without end for a queue that was not started."""
    if not supervisor.opened and timeout_s is None:
        logger.log(WARNING, "waiting for a task of a queue that was not started; call its start(), or use `with`")


def _has_ended(supervisor: Supervisor, task: Task) -> bool:
    return task.status in TERMINAL or supervisor.bug is not None


def _get(arrived: "SimpleQueue[Any]", timeout_s: float | None) -> bool:
    """Wait for an arrival and return whether there was one."""
    try:
        arrived.get(timeout=timeout_s)
    except Empty:
        return False
    return True


def as_completed(handles: "Iterable[Handle[R]]", timeout: Duration | None = None) -> "Iterator[Handle[R]]":
    """Yield handles in the order in which their tasks end; linear in their number (contract F2).

    Args:
        handles: Handles of one queue, or of several.  The iterable is read at once; one that is
            given twice comes once.
        timeout: The longest wait for all of them together; None: without end.

    Raises:
        TimeoutError: Not all had ended in time.
        UsageError: Something is no handle.
    """
    waiting = dict.fromkeys(handles)
    for handle in waiting:
        if not isinstance(handle, Handle):
            raise UsageError(f"as_completed() got {handle!r}; expected handles, as Queue.submit returns them")
    return _Completed(waiting, _limit(timeout))


@final
class _Completed(Generic[R]):
    """What `as_completed` returns.  Not a generator: that would be over for good after a Ctrl-C."""

    __slots__ = ("_arrivals", "_ends_at", "_handles", "_supervisor", "_timeout_s")

    def __init__(self, handles: "Iterable[Handle[R]]", timeout_s: float | None) -> None:
        self._arrivals = Arrivals()
        #: all and only those not handed over yet
        self._handles: dict[Task, Handle[R]] = {}
        self._supervisor: Supervisor | None = None
        self._timeout_s = timeout_s
        #: when the wait is over; it begins with the first `next`
        self._ends_at: float | None = None
        for handle in handles:
            self._supervisor = self._supervisor or supervisor_of(handle)
            self._handles[task_of(handle)] = handle
            self._arrivals.expect(handle)

    def __iter__(self) -> "_Completed[R]":
        return self

    def __next__(self) -> Handle[R]:
        handles, arrivals, supervisor = self._handles, self._arrivals, self._supervisor
        if supervisor is not None and self._timeout_s is not None and self._ends_at is None:
            self._ends_at = supervisor.engine.now() + self._timeout_s
        while handles:
            assert supervisor is not None
            task = arrivals.first(supervisor, self._ends_at)
            if task is None:
                left = len(handles)
                self._forget()
                raise TimeoutError(f"{left} tasks had not ended after {self._timeout_s:g} s of waiting")
            handle = handles[task]
            del handles[task], arrivals.ended[0]  # never one without the other: see interrupts.py
            return handle
        raise StopIteration

    def _forget(self) -> None:
        """Wait for nothing any more."""
        for handle in self._handles.values():
            self._arrivals.forget(handle)
        self._handles.clear()

    @finalizes
    def __del__(self) -> None:
        for task, handle in getattr(self, "_handles", {}).items():
            # Not here: this may run anywhere, even while the lock is held by this thread.
            supervisor_of(handle).unlisten_later(task, self._arrivals.arrive)


@final
class Arrivals:
    """The tasks that somebody waits for, in the order of their ends; each costs the same, however many there are.

    For one thread at a time.  An arrival is looked at where it stands, and deleted from there when
    it has been handed over: an interrupt, which may come at any moment of a wait, finds none of
    them in between.

    Attributes:
        ended: What has arrived, oldest first; whoever has handed the first one over deletes it.
    """

    __slots__ = ("_bell", "ended")

    def __init__(self) -> None:
        self.ended: deque[Task] = deque()
        #: not empty if something has arrived since whoever waits looked; it may say so in vain, and be lost
        self._bell: SimpleQueue[None] = SimpleQueue()

    def arrive(self, task: Task) -> None:
        """Let a task arrive; in any thread."""
        self.ended.append(task)
        if self._bell.empty():  # else whoever waits has yet to hear it, and will find this one too
            self._bell.put(None)

    def expect(self, handle: "Handle[Any]") -> None:
        """Let the handle's task arrive when it ends, at once if it has."""
        supervisor, task = supervisor_of(handle), task_of(handle)
        with supervisor.entry:
            ended = not supervisor.listen(task, self.arrive)
        if ended:
            self.arrive(task)

    def forget(self, handle: "Handle[Any]") -> None:
        """Take an expectation back."""
        supervisor = supervisor_of(handle)
        with supervisor.entry:
            supervisor.unlisten(task_of(handle), self.arrive)

    def first(self, supervisor: Supervisor, ends_at: float | None) -> Task | None:
        """Wait until something has arrived and return the first of it, which stays; None if nothing came in time.

        Args:
            supervisor: Of the tasks, or of one of them.
            ends_at: The instant at which the wait is over; None: it has no end.

        Raises:
            EngineError, InternalError: The supervisor failed, so that there never will be any.
        """
        ended = self.ended
        while not ended:
            left_s = None if ends_at is None else max(0.0, ends_at - supervisor.engine.now())
            came = supervisor.wait_for(
                partial(_get, self._bell), lambda: bool(ended) or supervisor.bug is not None, left_s
            )
            supervisor.check_alive()
            if not came:
                return None
        if ended[0].status not in TERMINAL:  # a replay, or what a supervisor that failed tells everybody
            supervisor.check_alive()
        return ended[0]


# --- errors ------------------------------------------------------------------------------------


def error_of(task: Task) -> BaseException | None:
    """Return what `result()` raises for a task, a new object; None if there is no error."""
    ended = task.ended
    if task.status is Status.FAILED and ended is not None:  # None: it is being replayed
        return error_of_attempt(task, ended)
    if task.status is Status.CANCELLED:
        return _error_of_cancellation(task).located(task.id, None)
    return None


def _error_of_cancellation(task: Task) -> TaskError:
    from procq.errors import TaskCancelled, TaskExpired  # noqa: PLC0415 - imports `concurrent.futures`

    match task.cause:
        case "dependency":
            return _error_of_dependency(task)
        case "expired":
            return TaskExpired(f"task {task.id!r} was not started before its expires, and so never")
        case "shutdown":
            return TaskCancelled(f"task {task.id!r} was cut off by the shutdown of its queue")
        case "replaced":
            return TaskCancelled(f"task {task.id!r} was replaced by another task under the same id")
        case "max_failures":
            return TaskCancelled(
                f"task {task.id!r} was cut off, as its queue halted: too many tasks failed (max_failures)"
            )
        case "deadline":
            return TaskCancelled(f"task {task.id!r} was cut off: the run's deadline has passed")
        case "not needed":
            return TaskCancelled(f"task {task.id!r} was not needed: what it depends on did not fail")
        case _:
            return TaskCancelled(f"task {task.id!r} was cancelled")


def _error_of_dependency(task: Task) -> DependencyFailed:
    """Say where the failure began that cancelled a task, and what it was."""
    origin = _origin(task)
    if origin is None:
        return DependencyFailed(task.origin or "?")
    if origin.status is Status.CANCELLED:
        error = DependencyFailed(origin.id, f"({origin.type}) was cancelled")
    elif origin.ended is None:  # replayed since
        error = DependencyFailed(origin.id, f"({origin.type}) had failed")
    else:
        name = f"{origin.ended.error_types[0]}: " if origin.ended.error_types else ""
        error = DependencyFailed(origin.id, f"({origin.type}) failed: {name}{origin.ended.message}")
    error.__cause__ = error_of(origin)
    return error


def _origin(task: Task) -> Task | None:
    """Follow a cancelled task's dependencies up to where the failure began; None if that is forgotten."""
    at = task
    while at.id != task.origin:
        culprit = next((need for need in at.depends_on if task.origin in {need.id, need.origin}), None)
        if culprit is None:
            return None
        at = culprit
    return at


def error_of_attempt(task: Task, ended: Ended) -> BaseException:
    """Return what is raised for an attempt that ended so, a new object."""
    error: TaskError
    match ended.outcome:
        case "timeout":
            error = AttemptTimeout(f"task {task.id!r} {ended.message}")
        case "crash":
            error = WorkerCrashed(f"task {task.id!r}: {ended.message}")
            error.exit_code, error.signal = ended.exit_code, ended.signal
        case "memory":
            error = MemoryLimitExceeded(f"task {task.id!r}: {ended.message}")
        case "error":
            return _error_of_task(task, ended)
        case _:
            error = WorkerLost(f"task {task.id!r}: {ended.message or 'the attempt is gone without an answer'}")
    return error.located(task.id, task.failures)


#: Errors that are known here by the name of their class and made from their text alone.
_BY_NAME = {class_names(cls)[0]: cls for cls in (PayloadError, WorkerStartError)}


def _error_of_task(task: Task, ended: Ended) -> BaseException:
    """Rebuild what the task raised; what cannot be rebuilt is told (contract D9)."""
    name = ended.error_types[0] if ended.error_types else "Exception"
    error: BaseException | None = None
    if ended.value is not None:
        try:
            loaded = loads(ended.value)
        except Exception:  # noqa: BLE001 - a constructor of the user's; the stand-in below tells all
            loaded = None
        # What is no `Exception` must not act here as it would have acted there: a SystemExit
        # would end the program that asks (D3).
        if isinstance(loaded, Exception):
            error = loaded
    elif name in _BY_NAME:
        error = _BY_NAME[name](ended.message)
    if error is None:
        message = ended.message.removeprefix(f"{name}: ")  # what is no `Exception` is told with its name
        error = RemoteError(name, message, ended.traceback).located(task.id, task.failures)
    if ended.traceback:
        error.__cause__ = RemoteTraceback(ended.traceback)
    return error
