"""What an engine is told, and what it reports (DESIGN, section 6).

An engine starts attempts, stops them and reports how they ended; it knows nothing of priorities,
retries or graphs.  Unless it says otherwise, everything here is called under the one lock of the
queue, by whichever thread holds it, and must not block.
"""

from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from procq.core.task import Run
from procq.draft import Listing
from procq.outcome import Ended
from procq.parcel import Payload

#: Why an attempt is stopped; also the outcome it then has, unless it finished first.
StopReason = Literal["cancelled", "interrupted"]

#: Why a worker's process has ended: it had made enough attempts or held too much memory after one; there were
#: too many; it died; its attempt was stopped, for one of three reasons; the queue is over; it never got ready.
Departure = Literal["recycled", "resize", "crash", "timeout", "memory", "cancelled", "shutdown", "start"]


class Input(Protocol):
    """A dependency that has succeeded."""

    @property
    def value(self) -> Payload | None:
        """Its pickled result."""


class Attempt(Protocol):
    """What an engine must know of a task to run its next attempt."""

    @property
    def id(self) -> str:
        """The task's id."""

    @property
    def type(self) -> str:
        """What kind of task it is; attempts of one kind last about as long."""

    @property
    def group(self) -> str:
        """Which set of workers runs it."""

    @property
    def seq(self) -> int:
        """The task's number in its queue."""

    @property
    def fence(self) -> int:
        """How often the task was started; with `seq` it names one attempt."""

    @property
    def attempt(self) -> int:
        """The attempt's number, from 1."""

    @property
    def timeout_s(self) -> float | None:
        """How long it may run, in seconds."""

    @property
    def payload(self) -> Payload:
        """The pickled call."""

    @property
    def inputs(self) -> Sequence[Input]:
        """The dependencies whose results it takes, by number."""

    #: for the engine alone: where the attempt is; None: nowhere
    place: object


class Host(Protocol):
    """Whom an engine reports to; it calls these under `lock`."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """The one lock of the queue."""

    def check_whole(self) -> None:
        """Raise `EngineError` if the host cannot go on; to be called first whenever the lock was taken anew."""

    @property
    def wants_places(self) -> bool:
        """Whether somebody wants to know where attempts begin; the same as long as the host lives."""

    def began(self, attempt: Attempt, at: float) -> None:
        """An attempt that was sent ahead has begun at this instant."""

    def placed(self, attempt: Attempt, worker_id: int, pid: int) -> None:
        """The attempt that was started, or has begun, just now is with this worker; only if `wants_places`."""

    def ended(self, attempt: Attempt, fence: int, ended: Ended) -> None:
        """An attempt has ended."""

    def spawned(self, attempt: Attempt, fence: int, ended: Ended, listing: Listing) -> None:
        """An attempt has returned, and brings tasks that are to be accepted with its success (contract E6)."""

    def succeeded(self, attempt: Attempt, fence: int, value: Payload, run: Run) -> None:
        """An attempt has returned; one that was sent ahead may have begun since the host last heard of it."""

    def returned(self, attempt: Attempt) -> None:
        """An attempt that was started or sent ahead has not begun, and never will there."""

    def progressed(self, attempt: Attempt, done: float, total: float) -> None:
        """A running attempt said how far it is."""

    def logged(self, handle: Callable[[], object], parts: Mapping[str, object]) -> None:
        """Something was logged in an attempt: have `handle()` called soon, in a thread for user code.

        What it was is in `parts`, named as in a `LogRecord`, with `task_id` and `attempt`.
        """

    def worker_started(self, worker_id: int, pid: int) -> None:
        """A worker's process was started; it is not ready yet."""

    def worker_ended(self, worker_id: int, pid: int, reason: Departure) -> None:
        """A worker's process has ended, and what it ran has been reported."""

    def next_due(self) -> float | None:
        """Return when `tick` must be called next if nothing happens before; None: never."""

    def settle(self) -> None:
        """Wake everybody for whom something has changed; to be called last, before the lock is given up."""

    def tick(self, now: float) -> None:
        """Time has passed or something was reported: decide what happens next."""

    def backlog(self, group: str) -> int:
        """Return how many attempts of a group could begin if there were more places."""

    def broken(self, ended: Ended) -> None:
        """Attempts cannot be run at all; every one would end like this (contract D11)."""

    def failed(self, error: BaseException) -> None:
        """The engine's own loop has a bug; called without the lock, and `closed` follows."""

    def closed(self) -> None:
        """The engine has left nothing behind and makes no further call.  Called without the lock."""


class Places(Protocol):
    """Where the attempts of one group run (contract B7)."""

    def foresee(self, backlog: int) -> None:
        """Learn how many attempts wait in all, before some of them are handed out."""

    @property
    def idle(self) -> Sized:
        """Where attempts could begin at once, a place for each."""

    @property
    def roomy(self) -> Sized:
        """Where attempts could be sent ahead, to wait behind others."""

    @property
    def growing(self) -> bool:
        """Whether more workers may be started for what is ready."""

    def resize(self, workers: int) -> None:
        """Change how many attempts may run at once; never disturbs one that runs."""

    def states(self) -> dict[str, int]:
        """Count workers by what they do."""


class Engine(Protocol):
    """Where attempts run."""

    @property
    def places(self) -> Mapping[str, Places]:
        """Where, by group; the same groups as long as it lives."""

    def now(self) -> float:
        """Read the engine's monotonic clock, in seconds; with or without the lock."""

    def open(self, host: Host) -> None:
        """Get ready to run attempts; called without the lock, and again only if it raised."""

    def start(self, attempt: Attempt) -> None:
        """Begin an attempt; only while something of its group is `idle`.  Its `fence` is already the new one."""

    def fits_ahead(self, attempt: Attempt) -> bool:
        """Whether an attempt is small enough to be sent ahead."""

    def send_ahead(self, attempt: Attempt) -> None:
        """Send an attempt to a busy worker; only while something of its group is `roomy`."""

    def look(self, now: float) -> None:
        """Hear in a caller's thread what the engine's own has had no time for; the host is told as ever."""

    def is_imminent(self, attempt: Attempt) -> bool:
        """Whether an attempt runs that should end at once, so that one may `look_at` it; with or without the lock."""

    def look_at(self, attempt: Attempt) -> bool:
        """Hear in a caller's thread what there is from where an attempt runs; return whether there was anything."""

    def flush(self) -> None:
        """Really send what was started and sent ahead since the last time."""

    def take_back(self, attempt: Attempt) -> bool:
        """Take back an attempt that was sent ahead.

        Others that its worker has not begun may come back with it, told by `returned` too.

        Returns:
            True: it has not begun and never will; the host was told by `returned`.  False: it
            has begun, which the host may have been told by `began`.
        """

    def stop(self, attempt: Attempt, reason: StopReason, *, at_once: bool = False) -> bool:
        """Ask a running attempt to stop, and kill it after the grace; or kill it at once.

        Returns:
            Whether it is being stopped.  False: it has ended, or it turned out not to have
            begun and was `returned`.
        """

    def whereabouts(self, attempt: Attempt) -> str:
        """Say where an attempt is that was started or sent ahead: a phrase such as "on worker 3 (pid 4711)"."""

    def wake(self, by: float | None = None) -> None:
        """Have `tick` called soon, or at the latest at the instant `by`."""

    def alarm(self) -> None:
        """Have `tick` called soon; may be called without the lock, at any moment."""

    def close(self, *, at_once: bool) -> None:
        """Let the workers go, none of which runs an attempt; or kill them at once."""

    @property
    def manual(self) -> bool:
        """Whether attempts run only in `step`, in the thread that waits."""

    def step(self, until: float | None) -> bool:
        """Run one attempt here, or move on to the next instant; only if `manual`, and without the lock.

        Returns:
            False: nothing can happen before `until`.
        """

    def states(self) -> dict[str, int]:
        """Count workers by what they do."""
