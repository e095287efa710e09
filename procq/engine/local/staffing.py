"""How many workers of a group there should be, and when to give up starting them (contract D11, H1).

The rule is that of OTP's supervisors: restart, but only at a bounded intensity, and give up
loudly beyond it.  Pure bookkeeping: `now` is handed in, and nothing is started here.
"""

from collections import deque
from typing import Final, final

#: Consecutive failures to start a worker after which the engine gives up.  One may be chance, and
#: with several workers starting side by side a broken initializer fails in each.
FAILURES_MAX: Final = 3
#: Workers that may die idle within `_IDLE_DEATHS_PERIOD_S` and still be replaced before there is
#: work for them: somebody or something kills them for sport, and each start costs 15 ms of CPU.
_IDLE_DEATHS_MAX: Final = 10
_IDLE_DEATHS_PERIOD_S: Final = 10.0
#: How long to wait before trying again when the system refuses a new process or descriptor; it
#: doubles with each failure, up to the long pause.
_PAUSE_S: Final = 0.1
#: How long to go on with fewer workers when some have started and others cannot.
_LONG_PAUSE_S: Final = 30.0


@final
class Staffing:
    """Decides how many workers to start.

    Attributes:
        limit: At most so many workers.
        floor: So many are kept alive even when there is nothing to do.
        starting: How many are on their way.
        not_before: No worker is started before this instant.
        is_over: Whether none is started any more: it was given up, here or in another group, or all is to end.
    """

    __slots__ = ("_failures", "_idle_deaths", "floor", "is_over", "limit", "not_before", "starting")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.floor = 0
        self.starting = 0
        self.not_before = 0.0
        self.is_over = False
        self._failures = 0
        self._idle_deaths: deque[float] = deque()

    def resize(self, limit: int) -> None:
        """Change how many workers there may be."""
        self.limit = limit
        self.floor = min(self.floor, limit)

    def births(self, alive: int, backlog: int, now: float) -> int:
        """Return how many workers should be started now.

        Args:
            alive: How many there are, those on their way and those about to die included.
            backlog: How many attempts wait for a worker.
            now: The instant.
        """
        room = self.limit - alive
        if room <= 0 or self.is_over or now < self.not_before:
            return 0
        return max(0, min(room, max(backlog - self.starting, self.floor - alive)))

    def born(self, alive: int) -> None:
        """A worker was spawned, the `alive`-th."""
        self.starting += 1
        self.floor = min(max(self.floor, alive), self.limit)

    def ready(self) -> None:
        """A worker has started."""
        self.starting -= 1
        self._failures = 0

    def refused(self, now: float) -> None:
        """The system had no process or descriptor to spare: try again soon."""
        pause_s = _PAUSE_S * 2 ** min(self._failures, 10)  # an exponent without bound overflows one day
        self.not_before = now + min(pause_s, _LONG_PAUSE_S)

    def failed(self, others: int, now: float) -> int:
        """A worker could not start, and `others` have.

        Returns:
            How often in a row, if that is reason to give up; else 0.
        """
        self._failures += 1
        if self._failures < FAILURES_MAX or self.is_over:
            return 0
        if others:  # go on with those for a while
            self.not_before = now + _LONG_PAUSE_S
            return 0
        self.is_over = True
        return self._failures

    def died_idle(self, alive: int, now: float) -> None:
        """A worker died idle: it is replaced, unless that happens all the time."""
        deaths = self._idle_deaths
        deaths.append(now)
        while now - deaths[0] > _IDLE_DEATHS_PERIOD_S:
            deaths.popleft()
        if len(deaths) > _IDLE_DEATHS_MAX:
            self.floor = alive  # the next one starts when there is work for it
