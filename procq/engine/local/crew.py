"""Who there is: starts workers, asks them to stop, lets them go, ends them, buries them (contract H1, D4, D11).

    spawn --> STARTING --ready--> IDLE <--> BUSY --ask--> STOPPING
                                   | let_go    any of them | kill, condemn
                                   v                       v
                                LEAVING --------------> DYING --its death is seen, bury--> gone

A STARTING one may be let go of as well, if there are too many by the time it is ready.  Decides how many
there are in each group and how each of them ends; who of them runs what is the engine's, which makes them
BUSY, and IDLE again.

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
from procq.engine.local.group import Group
from procq.engine.local.lookout import Lookout
from procq.engine.local.machine import usable_cpus
from procq.engine.local.roster import State, Worker
from procq.engine.protocol import Departure, Host
from procq.errors import WorkerStartError
from procq.log import ERROR, WARNING, Logger
from procq.outcome import Ended, class_names
from procq.parcel import Payload

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
        limits: At most so many processes, by group.
        kill_grace_s: From asking an attempt to stop until its process group is killed.
        start_timeout_s: A worker that is not ready by then is killed.
        initializer: A pickled call that each worker makes first, or nothing.
        jobs: Files that serve as modules in the workers, by module name.
        tasks_per_worker: How many attempts a worker may be given.
        capture: Whether to take down what attempts write to the standard streams.
        weighs: Whether workers are weighed, and so may be replaced after any attempt.

    Attributes:
        workers: All whose death has not been seen, by their ids.
        groups: All groups, by name; each of the workers is in one of them, for life.
        is_closing: Whether no worker is to be started any more.
    """

    __slots__ = (
        "_asked", "_capture", "_cpus", "_doomed", "_ids", "_initializer", "_jobs", "_kill_grace_s", "_lookout", "_news",
        "_start_timeout_s", "_tasks_per_worker", "_wake", "groups", "is_closing", "workers",
    )  # fmt: skip

    def __init__(
        self,
        lookout: Lookout,
        wake: Callable[[], object],
        *,
        limits: Mapping[str, int],
        kill_grace_s: float,
        start_timeout_s: float,
        initializer: Payload,
        jobs: Callable[[], Mapping[str, str]],
        tasks_per_worker: float,
        capture: bool,
        weighs: bool,
    ) -> None:
        self._lookout = lookout
        self._wake = wake
        self._cpus = usable_cpus()
        self._kill_grace_s = kill_grace_s
        self._start_timeout_s = start_timeout_s
        self._initializer = initializer
        self._jobs = jobs
        self._tasks_per_worker = tasks_per_worker
        self._capture = capture
        self._ids = 0
        self.workers: dict[int, Worker] = {}
        self.groups = {
            name: Group(name, limit=limit, let_go=self.let_go, wake=wake, weighs=weighs)
            for name, limit in limits.items()
        }
        self.is_closing = False
        #: workers to be killed, and workers just asked to stop: what they have started is still to be looked for
        self._doomed: list[Worker] = []
        self._asked: list[Worker] = []
        #: what is to be logged: not under the lock, which a handler of the program may want too
        self._news: list[tuple[int, str]] = []

    # --- how many ------------------------------------------------------------------------------

    def births_at(self, host: Host, now: float) -> float | None:
        """Return when workers may be started again for what waits; None: nothing waits for that."""
        held = [
            group.staffing.not_before
            for group in self.groups.values()
            if group.staffing.not_before > now and host.backlog(group.name)
        ]
        return min(held, default=None)

    def states(self) -> dict[str, int]:
        """Count workers by what they do, those of all groups together."""
        counts = [group.states() for group in self.groups.values()]
        return {str(state): sum(one[state] for one in counts) for state in State}

    # --- births --------------------------------------------------------------------------------

    def chores(self, host: Host, now: float) -> list[Callable[[], object]]:
        """Take over what must be done without the lock, because it takes milliseconds."""
        births = self._births(host, now)
        if not (births or self._news or self._asked or self._doomed):
            return []
        chores: list[Callable[[], object]] = [partial(logger.log, *news) for news in self._news]
        chores += [worker.process.descendants for worker in self._asked]
        for worker in self._doomed:
            chores += (worker.process.descendants, worker.process.kill)
        chores += births
        self._news, self._asked, self._doomed = [], [], []
        return chores

    def _births(self, host: Host, now: float) -> list[Callable[[], object]]:
        """Return the births that are due, of each group in turn, and no more than a turn has time for."""
        births: list[Callable[[], object]] = []
        for group in self.groups.values():
            due = group.staffing.births(len(group.workers), host.backlog(group.name), now)
            if due:
                births += [partial(self._spawn, host, group)] * min(due, _SPAWNS_PER_TURN - len(births))
        return births

    def _spawn(self, host: Host, group: Group) -> None:
        """Start a worker; without the lock, since it takes a millisecond."""
        self._ids += 1
        worker_id = self._ids
        try:
            process = birth.spawn(
                birth.WorkerConfig(
                    worker_id=worker_id,
                    workers=sum(one.staffing.limit for one in self.groups.values()),
                    cpus=self._cpus,
                    initializer=self._initializer,
                    jobs=self._jobs(),
                    capture=self._capture,
                )
            )
        except WorkerStartError as error:
            with host.lock:
                self._spawn_refused(host, group, error)
            return
        with host.lock:
            worker = Worker(worker_id, process, self._tasks_per_worker, group)
            self.workers[worker_id] = group.workers[worker_id] = worker
            group.staffing.born(len(group.workers))
            self._lookout.add(worker)
            self._lookout.set_timer(worker, "start", time.monotonic() + self._start_timeout_s, self._start_late)
            host.worker_started(worker_id, worker.pid)
            if self.is_closing:
                worker.departure = "shutdown"
                self.kill(worker)

    def _spawn_refused(self, host: Host, group: Group, error: WorkerStartError) -> None:
        """The system has no process or descriptor to spare: try again soon, or give up."""
        now = time.monotonic()
        group.staffing.refused(now)
        # The group's others go on, and what anybody ends makes room; where all sit idle nothing ever would.
        if group.workers or any(worker.state is not State.IDLE for worker in self.workers.values()):
            return
        self._start_failed(host, group, str(error))
        host.tick(now)  # it may have been the last try, and this turn's tick is over

    def ready(self, worker: Worker) -> None:
        """A worker has started."""
        if worker.state is not State.STARTING:
            return
        worker.group.staffing.ready()
        self._lookout.drop_timer(worker, "start")
        if worker.group.too_many():
            self.let_go(worker)
        else:
            worker.state = State.IDLE
            worker.group.idle.append(worker)

    def _start_late(self, worker: Worker) -> None:
        worker.start_late = True
        worker.fault = f"it was not ready within start_timeout={self._start_timeout_s:g} s"
        self.kill(worker)

    def _start_failed(self, host: Host, group: Group, why: str) -> None:
        """Count a failure to start; too many in a row in a group that has no other worker end the work (D11)."""
        others = len(group.workers) - group.staffing.starting
        now = time.monotonic()
        tries = group.staffing.failed(others, now)
        if tries:
            for one in self.groups.values():  # what keeps one from starting keeps all: they are started alike
                one.staffing.is_over = True
            text = f"workers{self._of(group)} cannot start, tried {tries} times; the last time {why}"
            self._news.append((ERROR, text))
            host.broken(
                Ended("error", now, now, permanent=True, error_types=class_names(WorkerStartError), message=text)
            )
        elif others and now < group.staffing.not_before:
            self._news.append((WARNING, f"a worker{self._of(group)} cannot start; going on with {others}: {why}"))

    def _of(self, group: Group) -> str:
        """Name a group where there are several."""
        return f" of group {group.name!r}" if len(self.groups) > 1 else ""

    # --- ends ----------------------------------------------------------------------------------

    def let_go(self, worker: Worker, why: Departure = "resize") -> None:
        """Tell a worker that runs nothing to leave."""
        worker.departure = why
        if worker in worker.group.idle:
            worker.group.idle.remove(worker)
        worker.state = State.LEAVING
        with contextlib.suppress(wire.WireError):
            worker.channel.send(wire.EXIT_FRAME)
        self._lookout.set_timer(worker, "grace", time.monotonic() + _LEAVE_S, self.kill)

    def ask(self, worker: Worker) -> None:
        """Ask a busy worker to stop its attempt; it is killed after the grace."""
        worker.state = State.STOPPING
        worker.group.roomy.pop(worker, None)
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

    def end_births(self) -> None:
        """Start no more workers, in any group."""
        self.is_closing = True
        for group in self.groups.values():
            group.staffing.is_over = True

    def close(self, *, at_once: bool) -> None:
        """Let all workers go, or kill them; start no more."""
        self.end_births()
        for worker in list(self.workers.values()):
            if at_once or worker.state is not State.IDLE:
                if worker.departure is None and worker.state is not State.DYING:
                    worker.departure = "shutdown"
                self.kill(worker)
            else:
                self.let_go(worker, "shutdown")
        self._wake()

    def abandon(self, host: Host) -> None:
        """Kill all workers, and forget them: the loop that would see their deaths has ended; without the lock."""
        with host.lock:
            workers = list(self.workers.values())
            self.workers.clear()
            for group in self.groups.values():
                group.workers.clear()
                group.idle.clear()
                group.roomy.clear()
            for worker in workers:
                host.worker_ended(worker.id, worker.pid, "shutdown")
        for worker in workers:
            worker.process.abandon()

    # --- deaths --------------------------------------------------------------------------------

    def write_off(self, worker: Worker) -> State:
        """Take note that a worker is dead, or will be: nothing more is given to it.

        Returns:
            The state in which that met it.
        """
        state, group = worker.state, worker.group
        if state is State.IDLE:
            group.idle.remove(worker)
        elif state is State.STARTING:
            group.staffing.starting -= 1
        worker.state = State.DYING
        group.roomy.pop(worker, None)
        return state

    def bury(self, worker: Worker) -> None:
        """Take a dead worker out of every table and close what is its."""
        group = worker.group
        del self.workers[worker.id], group.workers[worker.id]
        group.hungry.discard(worker)
        self._lookout.remove(worker)
        worker.process.close()
        if not group.workers:
            group.staffing.not_before = 0.0

    def mind_death(self, host: Host, worker: Worker, state: State, leave: birth.Exit) -> None:
        """Learn from a death that met a worker in this state: can none start, are idle ones killed for sport?"""
        if state is State.STARTING or worker.start_error is not None or worker.start_late:
            text = deaths.start_failure_text(leave, error=worker.start_error, fault=worker.fault)
            self._start_failed(host, worker.group, text)
        elif state is State.IDLE:
            worker.group.staffing.died_idle(len(worker.group.workers), time.monotonic())
