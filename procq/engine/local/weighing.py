"""Has workers weighed while they run something, and sees to those that hold too much (contract D10).

    begun --> a timer --> due --> chore, without the lock: `MemoryWatch.weigh` --> see_to, under it

memory.py knows how much a worker holds and how much is too much; here is when that is asked, and what
becomes of the worker.

Who touches what: everything under the host's lock only, but for `MemoryWatch.weigh`, which takes
milliseconds and looks at no more than the workers' process ids.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, final

from procq.engine.local.crew import Crew
from procq.engine.local.loop import Loop
from procq.engine.local.memory import InQuestion, MemoryWatch, Weighed, is_in_question
from procq.engine.local.roster import State, Worker
from procq.engine.protocol import Host

if TYPE_CHECKING:
    from typing import Protocol

    from procq.outcome import Outcome

    class Stop(Protocol):
        """What stops an attempt."""

        def __call__(self, worker: Worker, reason: "Outcome", *, at_once: bool) -> bool:
            """Stop what a worker runs; False: that was not needed any more."""


#: The key of the timer.
_TIMER: Final = "memory"


@final
class Weighing:
    """Keeps workers within their limits.

    Args:
        memory: The limits.
        loop: Says when to look.
        crew: Whom to look at.
        stop: Stops what a worker runs.
    """

    __slots__ = ("_crew", "_loop", "_memory", "_stop")

    def __init__(self, memory: MemoryWatch, loop: Loop, crew: Crew, stop: "Stop") -> None:
        self._memory = memory
        self._loop = loop
        self._crew = crew
        self._stop = stop

    def begun(self, worker: Worker) -> None:
        """An attempt begins on a worker: it is weighed after a while."""
        worker.weighed = False
        if not self._memory.is_awaited:
            self._await_look()

    def has_stayed_heavy(self, worker: Worker) -> bool:
        """Whether a worker that has just ended an attempt has to be replaced; takes 5 us."""
        return self._memory.has_stayed_heavy(worker)

    def chores(self, host: Host) -> list[Callable[[], object]]:
        """Return what is to be done without the lock now, if anything."""
        if not self._memory.is_due:
            return []
        return [partial(self._weigh, host, self._memory.to_weigh(self._crew.workers.values()))]

    def _await_look(self) -> None:
        self._loop.set_timer(_TIMER, self._memory.next_look(time.monotonic()), self._memory.fall_due)

    def _weigh(self, host: Host, workers: list[InQuestion]) -> None:
        """Weigh workers without the lock, and see to those that hold too much."""
        weighed = self._memory.weigh(workers)
        with host.lock:
            host.check_whole()
            for one in weighed:
                self.see_to(one)
            if any(map(is_in_question, self._crew.workers.values())):
                self._await_look()
            else:
                self._memory.is_awaited = False

    def see_to(self, weighed: Weighed) -> None:
        """Kill or replace a worker if it holds too much."""
        worker, attempt, fence, load = weighed
        memory = self._memory
        is_same = worker.running is attempt and worker.fence == fence
        if worker.state is State.IDLE:
            if worker.weighed and attempt is None and memory.is_heavy(load):
                self._crew.let_go(worker, "recycled")
        elif worker.state in {State.BUSY, State.STOPPING} and memory.is_heavy(load):
            worker.heavy = True
            worker.group.roomy.pop(worker, None)
            # Another attempt than the one that was weighed must not pay for that; it is weighed soon.
            if is_same and memory.is_too_much(load) and self._stop(worker, "memory", at_once=True):
                worker.fault = memory.fault(load)
                worker.held_bytes = load.own_bytes
