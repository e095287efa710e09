"""Who there is: starts workers, asks them to stop, lets them go, ends them, buries them (contract H1, D4, D11).

    spawn --> STARTING --ready--> IDLE <--> BUSY --ask--> STOPPING
                                   | let_go    any of them | kill, condemn
                                   v                       v
                                LEAVING --------------> DYING --its death is seen, bury--> gone

A STARTING one may be let go of as well, if there are too many by the time it is ready.  Decides how many
there are and how each of them ends; who of them runs what is the engine's, which makes them BUSY, and IDLE
again.

Who touches what: everything of `Crew` under the host's lock only, but for the loop's thread's own `_ids`.
What takes milliseconds (to start a process, to look for what a worker has started, to kill all of that, to
log) is collected here under the lock and done by the loop's thread without it: `chores`, `_spawn`.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, final

from procq.engine.local import birth, deaths, wire
from procq.engine.local.lookout import Lookout
from procq.engine.local.machine import usable_cpus
from procq.engine.local.roster import State, Worker
from procq.engine.local.staffing import Staffing
from procq.engine.protocol import Host
from procq.errors import WorkerStartError
from procq.log import ERROR, WARNING, Logger
from procq.outcome import Ended, class_names
from procq.parcel import Payload
from procq.slots import DEFAULT_GROUP

logger = Logger(__name__)

#: Workers spawned before the loop looks at its messages again (about 1 ms each).
_SPAWNS_PER_TURN: Final = 4
#: From telling an idle worker to leave until it is killed: time for its exit hooks.  Below the
#: second by which a shutdown may be late (G2), since it may come on top of the grace of another.
_LEAVE_S: Final = 0.8


@final
class Crew:
    """The workers of one engine.

    Args:
        lookout: Watches them.
        wake: Has the loop take a turn soon.
        limit: At most so many processes.
        kill_grace_s: From asking an attempt to stop until its process group is killed.
        start_timeout_s: A worker that is not ready by then is killed.
        initializer: A pickled call that each worker makes first, or nothing.
        jobs: Files that serve as modules in the workers, by module name.
        tasks_per_worker: How many attempts a worker may be given.
        capture: Whether to take down what attempts write to the standard streams.

    Attributes:
        workers: All whose death has not been seen, by their ids.
        idle: All and only those in state IDLE; the last to become idle is the first to be used again,
            as its caches are warm.
        roomy: Busy workers to which more may be sent ahead; one that was filled up comes back when it runs low.
        is_closing: Whether no worker is to be started any more.
    """

    __slots__ = (
        "_asked", "_capture", "_cpus", "_doomed", "_ids", "_initializer", "_jobs", "_kill_grace_s", "_lookout", "_news",
        "_staffing", "_start_timeout_s", "_tasks_per_worker", "_wake", "idle", "is_closing", "roomy", "workers",
    )  # fmt: skip

    def __init__(
        self,
        lookout: Lookout,
        wake: Callable[[], object],
        *,
        limit: int,
        kill_grace_s: float,
        start_timeout_s: float,
        initializer: Payload,
        jobs: Callable[[], Mapping[str, str]],
        tasks_per_worker: float,
        capture: bool,
    ) -> None:
        self._lookout = lookout
        self._wake = wake
        self._staffing = Staffing(limit)
        self._cpus = usable_cpus()
        self._kill_grace_s = kill_grace_s
        self._start_timeout_s = start_timeout_s
        self._initializer = initializer
        self._jobs = jobs
        self._tasks_per_worker = tasks_per_worker
        self._capture = capture
        self._ids = 0
        self.workers: dict[int, Worker] = {}
        self.idle: list[Worker] = []
        self.roomy: dict[Worker, None] = {}
        self.is_closing = False
        #: workers to be killed, and workers just asked to stop: what they have started is still to be looked for
        self._doomed: list[Worker] = []
        self._asked: list[Worker] = []
        #: what is to be logged: not under the lock, which a handler of the program may want too
        self._news: list[tuple[int, str]] = []

    # --- how many ------------------------------------------------------------------------------

    @property
    def growing(self) -> bool:
        """Whether more workers may be started for what is ready."""
        staffing = self._staffing
        return len(self.workers) < staffing.limit and not self.is_closing and not staffing.has_failed

    @property
    def starting(self) -> int:
        """How many workers have been started and are not ready yet."""
        return self._staffing.starting

    def too_many(self) -> bool:
        """Whether there are more workers than there may be, those on their way out left aside."""
        limit = self._staffing.limit
        return len(self.workers) > limit and sum(worker.state.stays for worker in self.workers.values()) > limit

    def births_at(self, now: float) -> float | None:
        """Return when workers may be started again; None: they may be now."""
        return self._staffing.not_before if self._staffing.not_before > now else None

    def states(self) -> dict[str, int]:
        """Count workers by what they do."""
        counts = {str(state): 0 for state in State}
        for worker in self.workers.values():
            counts[worker.state] += 1
        return counts

    def resize(self, limit: int) -> None:
        """Change how many workers there may be; of those too many the idle ones leave."""
        self._staffing.resize(limit)
        while self.idle and self.too_many():
            self.let_go(self.idle[-1])

    # --- births --------------------------------------------------------------------------------

    def chores(self, host: Host, now: float) -> list[Callable[[], object]]:
        """Take over what must be done without the lock, because it takes milliseconds."""
        births = 0 if self.is_closing else self._staffing.births(len(self.workers), host.backlog(DEFAULT_GROUP), now)
        if not (births or self._news or self._asked or self._doomed):
            return []
        chores: list[Callable[[], object]] = [partial(logger.log, *news) for news in self._news]
        chores += [worker.process.descendants for worker in self._asked]
        for worker in self._doomed:
            chores += (worker.process.descendants, worker.process.kill)
        chores += [partial(self._spawn, host)] * min(births, _SPAWNS_PER_TURN)
        self._news, self._asked, self._doomed = [], [], []
        return chores

    def _spawn(self, host: Host) -> None:
        """Start a worker; without the lock, since it takes a millisecond."""
        self._ids += 1
        worker_id = self._ids
        try:
            process = birth.spawn(
                birth.WorkerConfig(
                    worker_id=worker_id,
                    workers=self._staffing.limit,
                    cpus=self._cpus,
                    initializer=self._initializer,
                    jobs=self._jobs(),
                    capture=self._capture,
                )
            )
        except WorkerStartError as error:
            with host.lock:
                self._spawn_refused(host, error)
            return
        with host.lock:
            worker = Worker(worker_id, process, self._tasks_per_worker)
            self.workers[worker_id] = worker
            self._staffing.born(len(self.workers))
            self._lookout.add(worker)
            self._lookout.set_timer(worker, "start", time.monotonic() + self._start_timeout_s, self._start_late)
            if self.is_closing:
                self.kill(worker)

    def _spawn_refused(self, host: Host, error: WorkerStartError) -> None:
        """The system has no process or descriptor to spare: try again soon, or give up."""
        now = time.monotonic()
        self._staffing.refused(now)
        if self.workers:
            return  # the others go on; what they end makes room
        self._start_failed(host, str(error))
        host.tick(now)  # it may have been the last try, and this turn's tick is over

    def ready(self, worker: Worker) -> None:
        """A worker has started."""
        if worker.state is not State.STARTING:
            return
        self._staffing.ready()
        self._lookout.drop_timer(worker, "start")
        if self.too_many():
            self.let_go(worker)
        else:
            worker.state = State.IDLE
            self.idle.append(worker)

    def _start_late(self, worker: Worker) -> None:
        worker.start_late = True
        worker.fault = f"it was not ready within start_timeout={self._start_timeout_s:g} s"
        self.kill(worker)

    def _start_failed(self, host: Host, why: str) -> None:
        """Count a failure to start; too many in a row end the work (contract D11)."""
        others = len(self.workers) - self._staffing.starting
        now = time.monotonic()
        tries = self._staffing.failed(others, now)
        if tries:
            text = f"workers cannot start, tried {tries} times; the last time {why}"
            self._news.append((ERROR, text))
            host.broken(
                Ended("error", now, now, permanent=True, error_types=class_names(WorkerStartError), message=text)
            )
        elif others and now < self._staffing.not_before:
            self._news.append((WARNING, f"a worker cannot start; going on with {others}: {why}"))

    # --- ends ----------------------------------------------------------------------------------

    def let_go(self, worker: Worker) -> None:
        """Tell a worker that runs nothing to leave."""
        if worker in self.idle:
            self.idle.remove(worker)
        worker.state = State.LEAVING
        with contextlib.suppress(wire.WireError):
            worker.channel.send(wire.EXIT_FRAME)
        self._lookout.set_timer(worker, "grace", time.monotonic() + _LEAVE_S, self.kill)

    def ask(self, worker: Worker) -> None:
        """Ask a busy worker to stop its attempt; it is killed after the grace."""
        worker.state = State.STOPPING
        self.roomy.pop(worker, None)
        worker.process.ask()
        self._asked.append(worker)
        self._lookout.set_timer(worker, "grace", time.monotonic() + self._kill_grace_s, self.kill)
        self._wake()

    def condemn(self, worker: Worker, fault: str) -> None:
        """End a worker that broke the rules; its death tells the rest."""
        if worker.fault is None:
            worker.fault = fault
        self.kill(worker)

    def kill(self, worker: Worker) -> None:
        """Kill a worker and everything in its process group, now."""
        if worker.state is State.DYING:
            return
        self.write_off(worker)
        self._lookout.drop_timer(worker, "grace")
        self._doomed.append(worker)
        self._wake()

    def close(self, *, at_once: bool) -> None:
        """Let all workers go, or kill them; start no more."""
        self.is_closing = True
        for worker in list(self.workers.values()):
            if at_once or worker.state is not State.IDLE:
                self.kill(worker)
            else:
                self.let_go(worker)
        self._wake()

    def abandon(self, host: Host) -> None:
        """Kill all workers, and forget them: the loop that would see their deaths has ended; without the lock."""
        with host.lock:
            workers = list(self.workers.values())
            self.workers.clear()
            self.idle.clear()
            self.roomy.clear()
        for worker in workers:
            worker.process.abandon()

    # --- deaths --------------------------------------------------------------------------------

    def write_off(self, worker: Worker) -> State:
        """Take note that a worker is dead, or will be: nothing more is given to it.

        Returns:
            The state in which that met it.
        """
        state = worker.state
        if state is State.IDLE:
            self.idle.remove(worker)
        elif state is State.STARTING:
            self._staffing.starting -= 1
        worker.state = State.DYING
        self.roomy.pop(worker, None)
        return state

    def bury(self, worker: Worker) -> None:
        """Take a dead worker out of every table and close what is its."""
        del self.workers[worker.id]
        self._lookout.remove(worker)
        worker.process.close()
        if not self.workers:
            self._staffing.not_before = 0.0

    def mind_death(self, host: Host, worker: Worker, state: State, leave: birth.Exit) -> None:
        """Learn from a death that met a worker in this state: can none start, are idle ones killed for sport?"""
        if state is State.STARTING or worker.start_error is not None or worker.start_late:
            text = deaths.start_failure_text(leave, error=worker.start_error, fault=worker.fault)
            self._start_failed(host, text)
        elif state is State.IDLE:
            self._staffing.died_idle(len(self.workers), time.monotonic())
