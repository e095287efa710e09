"""The workers of one group: who of them can take something, and how many there should be (contract B7).

The `Places` of the local engine.  Whatever a worker does it does for its own group alone, so a group never
looks at another; what all have in common, ids, births and deaths, is the crew's.

Everything here is touched under the host's lock only.
"""

from collections.abc import Callable
from typing import Final, final

from procq.engine.local.roster import LONG_S, State, Worker
from procq.engine.local.staffing import Staffing


@final
class Group:
    """A set of workers that share their tasks.

    Args:
        name: What tasks call it.
        limit: At most so many processes.
        let_go: Tells an idle worker to leave.
        wake: Has the loop take a turn soon.
        weighs: Whether its workers are weighed, and so may be replaced after any attempt (D10).

    Attributes:
        workers: All whose death has not been seen, by their ids.
        idle: All and only those in state IDLE; the last to become idle is the first to be used again,
            as its caches are warm.
        roomy: Busy workers to which more may be sent ahead; one that was filled up comes back when it runs low.
        share: At most so many attempts are ahead of one worker now.
        hungry: Workers that have begun another attempt since the last `foresee`.
        staffing: How many there should be.
    """

    __slots__ = ("_let_go", "_wake", "_weighs", "hungry", "idle", "name", "roomy", "share", "staffing", "workers")

    def __init__(
        self,
        name: str,
        *,
        limit: int,
        let_go: Callable[[Worker], object],
        wake: Callable[[], object],
        weighs: bool,
    ) -> None:
        self.name: Final = name
        self._let_go = let_go
        self._wake = wake
        self._weighs = weighs
        self.workers: dict[int, Worker] = {}
        self.idle: list[Worker] = []
        self.roomy: dict[Worker, None] = {}
        self.hungry: set[Worker] = set()
        self.staffing = Staffing(limit)
        self.share = 0

    # --- what the host asks (procq.engine.protocol.Places) ---------------------------------------

    def foresee(self, backlog: int) -> None:
        """Learn how much there is to hand out, and find those that have room for it.

        When little is left, what one worker has ahead the others may soon want: each gets no more
        than half of its share, so the end is shared out one by one.
        """
        self.share = backlog // (2 * len(self.workers) or 1)
        if self.hungry:
            for worker in self.hungry:
                self.mind_room(worker)
            self.hungry.clear()

    @property
    def growing(self) -> bool:
        """Whether more workers may be started for what is ready."""
        staffing = self.staffing
        return len(self.workers) < staffing.limit and not staffing.is_over

    def resize(self, workers: int) -> None:
        """Change how many workers there may be; those too many leave once they are idle."""
        self.staffing.resize(workers)
        while self.idle and self.too_many():
            self._let_go(self.idle[-1])
        for worker in list(self.roomy):
            self.mind_room(worker)
        self._wake()

    def states(self) -> dict[str, int]:
        """Count workers by what they do."""
        counts = {str(state): 0 for state in State}
        for worker in self.workers.values():
            counts[worker.state] += 1
        return counts

    # --- who has room ----------------------------------------------------------------------------

    def too_many(self) -> bool:
        """Whether there are more workers than there may be, those on their way out left aside."""
        limit = self.staffing.limit
        return len(self.workers) > limit and sum(worker.state.stays for worker in self.workers.values()) > limit

    def mind_room(self, worker: Worker) -> None:
        """Keep the worker among the roomy ones if more may be sent ahead to it, else not.

        One that was full must have run low first: what is sent then goes in one packet.
        """
        # Where there are too many, each shall become idle, so that those too many can leave.
        # Nothing waits for long where one that starts will soon take it, or where this one may be replaced
        # before it could begin it, being too heavy (D10).
        is_too_long = worker.running_s > LONG_S and (self.staffing.starting or self._weighs)
        if not worker.has_room(self.share) or self.too_many() or is_too_long:
            self.roomy.pop(worker, None)
        elif worker.runs_low:
            self.roomy[worker] = None
