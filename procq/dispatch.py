"""Which ready task goes to which free place, and which is taken back from it (contract B7-B9, D10, H1).

Asks the scheduler what is most urgent and the engine who is free; decides nothing of what happens
to a task afterwards.

Everything here happens under the queue's lock, in a caller's thread or the engine's own.
"""

from typing import TYPE_CHECKING, final

from procq.brake import Brake
from procq.core.scheduler import Scheduler
from procq.core.task import Task
from procq.engine.headroom import Headroom
from procq.engine.protocol import Engine, Places
from procq.slots import DEFAULT_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from procq.core.facts import Hold
    from procq.journal import Journal


@final
class Dispatcher:
    """Hands out tasks.

    Args:
        scheduler: What there is to do.
        engine: Where it can be done.
        headroom: As `Supervisor`.
        brake: Whether nothing may start any more.
        journal: Has to know of an attempt before it is sent; None: there is none.
    """

    __slots__ = (
        "_brake", "_engine", "_headroom", "_journal", "_only", "_places", "_scheduler", "closed", "paused",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler,
        engine: Engine,
        headroom: Headroom | None,
        brake: Brake,
        journal: "Journal | None" = None,
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._places = engine.places
        #: where, if there is but one group: to ask for each takes as long as all the rest
        self._only = engine.places[DEFAULT_GROUP] if len(engine.places) == 1 else None
        self._headroom = headroom
        self._brake = brake
        self._journal = journal
        #: the user wants nothing new to start
        self.paused = False
        #: the engine is being closed and takes nothing more
        self.closed = False

    def dispatch(self, now: float) -> None:
        """Give what is ready to whoever is free; the hot path."""
        if self.paused or self.closed or self._brake.is_pulled:
            return
        if self._journal is not None and self._journal.is_stuck:
            return
        scheduler = self._scheduler
        backlog = len(scheduler.ready) + len(scheduler.ahead)
        if not backlog:
            return
        if self._headroom is not None and self._headroom.is_short(now):
            self._start_alone(now)
            return
        if scheduler.counts_slots:
            self._hand_out_slots(now)
        elif self._only is not None:
            self._only.foresee(backlog)
            self._hand_out(DEFAULT_GROUP, self._only, now)
        elif self._engine.manual:  # one place for all groups
            self._start_first(now)
        else:
            for group, places in self._places.items():
                backlog = scheduler.backlog(group)
                if backlog:
                    places.foresee(backlog)
                    self._hand_out(group, places, now)
        self._send()

    def _send(self) -> None:
        """Send what was handed out, once the journal knows of it."""
        if self._journal is not None:
            self._journal.settle()
        self._engine.flush()

    def _start_alone(self, now: float) -> None:
        """Memory is short: start one attempt if none runs, since nobody else may ever free any (contract D10).

        What was sent ahead goes on: it is some milliseconds of work for each worker.
        """
        if not self._scheduler.running:
            self._start_first(now)
            self._send()

    def _start_first(self, now: float) -> None:
        """Start the most urgent task of all groups in which somebody is idle, if there is any."""
        task = self._first_startable()
        if task is not None:
            self._start(task, now)

    def _first_startable(self) -> Task | None:
        """Return the most urgent task of all groups in which somebody is idle, or None."""
        scheduler = self._scheduler
        tasks = [scheduler.next_ready(group) for group, places in self._places.items() if places.idle]
        return min((task for task in tasks if task is not None), key=scheduler.precedence, default=None)

    def _start(self, task: Task, now: float) -> None:
        self._scheduler.start(task, now)
        self._engine.start(task)

    def _hand_out_slots(self, now: float) -> None:
        """Start what the free slots are enough for, the most urgent of all groups first (contract B9).

        When they are not enough for the most urgent one, nothing else starts: else small tasks would take what
        it waits for, again and again.  For the same reason nothing is sent ahead.
        """
        scheduler = self._scheduler
        if scheduler.ahead:
            self.take_back_all(now)
        while not self._brake.is_pulled and (task := self._first_startable()) is not None and scheduler.fits(task):
            self._start(task, now)

    def held_for_slots(self) -> Task | None:
        """Return the task that waits for slots, and that all others wait for; None: there is none."""
        if not self._scheduler.counts_slots:
            return None
        task = self._first_startable()
        return None if task is None or self._scheduler.fits(task) else task

    def _hand_out(self, group: str, places: Places, now: float) -> None:
        """Decide who of a group gets what, the most urgent first."""
        scheduler = self._scheduler
        engine = self._engine
        brake = self._brake
        next_ready = scheduler.ready.peek  # `Scheduler.next_ready` without its own call
        while not brake.is_pulled:  # to take a task back may bring the news
            task = next_ready(group)
            if task is None:
                if places.idle and scheduler.count_ahead(group):
                    # A worker idles while a task waits behind another one: move it there (B8).
                    self.take_back(scheduler.first_ahead(group), now)
                    continue
                return
            if places.idle:
                scheduler.start(task, now)
                engine.start(task)
            elif places.roomy and self._may_go_ahead(task):
                scheduler.send_ahead(task)
                engine.send_ahead(task)
            elif scheduler.ahead and (less_urgent := scheduler.overtaken_by(task)) is not None:
                self.take_back(less_urgent, now)
                if places.roomy and not self._may_go_ahead(task) and not places.idle:
                    return  # it cannot be sent ahead: the worker that ends first takes it
            else:
                return

    def _may_go_ahead(self, task: Task) -> bool:
        """Whether a task may wait at a busy worker: not if a limit, a breaker, an expiry or a halt could stop it."""
        if self._brake.limit is not None and self._brake.is_near():
            return False
        if task.conditions is not None and task.expires_at is not None:
            return False
        return task.type not in self._scheduler.gates and self._engine.fits_ahead(task)

    def take_back(self, task: Task, now: float) -> None:
        """Take back a task sent ahead; if it has begun, note that."""
        if not self._engine.take_back(task) and task.seq in self._scheduler.ahead:
            self._scheduler.start(task, now)

    def take_back_all(self, now: float) -> None:
        """Take back all that was sent ahead."""
        self.take_back_those(list(self._scheduler.ahead.values()), now)

    def take_back_those(self, tasks: "Iterable[Task]", now: float) -> None:
        """Take back those of some tasks that are sent ahead; what has begun of them, note that."""
        for task in tasks:
            if task.seq in self._scheduler.ahead:  # else it came back with another of the same worker
                self.take_back(task, now)

    def held_back(self) -> "Iterator[tuple[Task, Hold]]":
        """Tell which READY tasks are next in line and may not start, and why; not one for want of a free worker."""
        scheduler = self._scheduler
        if self.paused or (self.is_short_of_memory and scheduler.running):
            for group in self._places:
                task = scheduler.next_ready(group)
                if task is not None:
                    yield task, "paused" if self.paused else "memory"
        elif (task := self.held_for_slots()) is not None:
            yield task, "slots"
        for task in scheduler.ready.shut():
            yield task, scheduler.gates[task.type].why_shut

    def backlog(self, group: str) -> int:
        """Return how many attempts of a group could begin if there were more workers, those ahead included."""
        if self.paused or self._brake.is_pulled:
            return 0
        backlog = self._scheduler.backlog(group)
        if self.is_short_of_memory:  # another worker takes memory too
            return 0 if self._scheduler.running else min(1, backlog)
        if backlog and self._waits_behind_slots(group):  # another worker could take nothing either
            return 0
        return backlog

    def _waits_behind_slots(self, group: str) -> bool:
        """Whether the most urgent task of a group comes after one that waits for slots, or is that one."""
        held = self.held_for_slots()
        first = None if held is None else self._scheduler.next_ready(group)
        if held is None or first is None:
            return held is not None
        return self._scheduler.precedence(held) <= self._scheduler.precedence(first)

    @property
    def is_short_of_memory(self) -> bool:
        """Whether starts are held back because the machine has too little of it, as last seen."""
        return self._headroom is not None and self._headroom.was_short

    def leave_to_loop(self) -> None:
        """Wake the loop after a change in a caller's thread, if anything is left for it.

        It need not be woken when the caller itself could hand a task to a worker, or when that waits
        behind others: only for more workers, and for an instant to wait for, which a report that was
        read here may have brought as well.
        """
        scheduler = self._scheduler
        if (scheduler.ready or scheduler.ahead) and self._may_grow():
            self._engine.wake()
        elif scheduler.has_timers and (due := scheduler.next_due()) is not None:
            self._engine.wake(due)
        look_at = self.look_at()
        if look_at is not None:
            self._engine.wake(look_at)

    def _may_grow(self) -> bool:
        """Whether more workers may be started for what is READY."""
        if self._only is not None:
            return self._only.growing
        return any(places.growing and self._scheduler.backlog(group) for group, places in self._places.items())

    def look_at(self) -> float | None:
        """Return when to look whether there is memory again for what is held back; None: nothing is."""
        headroom = self._headroom
        if headroom is None or not headroom.was_short or self.paused or not self._scheduler.ready:
            return None
        return headroom.look_at
