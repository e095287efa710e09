"""How hard a run is being stopped, and why: the ladder that signals climb, and what else ends a run.

Pure: it is told what happened and the time, and answers what has to be done.

| what                                              | does                                       |
|---------------------------------------------------|--------------------------------------------|
| 1st SIGINT, SIGTERM, SIGHUP, an entry that raises | FINISH: nothing new starts, what runs ends |
| 2nd SIGINT, the stop timeout                      | KILL: ask, kill after the grace            |
| 3rd SIGINT                                        | KILL_NOW                                   |

Too many failures and the deadline halt the queue by itself; the ladder only takes note of how hard.
"""

import signal
from enum import IntEnum
from typing import Final, Literal, final

from procq.halting import Halt, Halted

#: Bounds SIGTERM and SIGHUP when --stop-timeout does not: whoever sends them usually kills soon,
#: Docker after 10 s, so 8 leave time for the grace and the summary.
DEFAULT_STOP_TIMEOUT_S: Final = 8.0

Cause = Literal[Halt, "signal", "producer"]


class Step(IntEnum):
    """How hard the run is being stopped; only ever climbs."""

    NONE = 0
    FINISH = 1
    KILL = 2
    KILL_NOW = 3


@final
class Ladder:
    """What has become of a run's will to go on.

    Args:
        stop_timeout_s: How long running attempts get after a stop signal; None: as long as they
            need after SIGINT, `DEFAULT_STOP_TIMEOUT_S` after SIGTERM and SIGHUP.
    """

    __slots__ = ("_kill_at", "_stop_timeout_s", "cause", "signal", "step")

    def __init__(self, *, stop_timeout_s: float | None = None) -> None:
        self._stop_timeout_s = stop_timeout_s
        #: when FINISH becomes KILL
        self._kill_at: float | None = None
        self.step = Step.NONE
        #: what made it climb to this step; None while the run goes on
        self.cause: Cause | None = None
        #: the first stop signal, by which the process will die
        self.signal: signal.Signals | None = None

    def signalled(self, number: signal.Signals, now: float) -> Step | None:
        """A stop signal came; return the step to take, None if nothing changes.

        SIGTERM and SIGHUP never climb beyond FINISH, they only bound it: a closing terminal
        sends SIGHUP more than once.
        """
        if self.signal is None:
            self.signal = number
        if number == signal.SIGINT:
            bound = self._stop_timeout_s
            wanted = Step(min(self.step + 1, Step.KILL_NOW))
        else:
            bound = DEFAULT_STOP_TIMEOUT_S if self._stop_timeout_s is None else self._stop_timeout_s
            wanted = Step.FINISH
        if bound is not None and self._kill_at is None:
            self._kill_at = now + bound
        return self._climb(wanted, "signal")

    def halted(self, news: Halted) -> Step | None:
        """The queue has halted by itself; return the step that it took, None if the run is stopped as hard already."""
        return self._climb(Step.KILL if news.how == "kill" else Step.FINISH, news.why)

    def broken(self) -> Step | None:
        """The entry raised or gave what is no task; return the step to take."""
        return self._climb(Step.FINISH, "producer")

    def passed(self, now: float) -> Step | None:
        """Time has passed; return the step to take, None if nothing is due."""
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            return self._climb(Step.KILL, "signal")
        return None

    def next_due(self) -> float | None:
        """Return the instant at which `passed` must be called next, None if there is none."""
        return self._kill_at

    def _climb(self, wanted: Step, cause: Cause) -> Step | None:
        """Take a step up; return it, or None if the run is stopped as hard already."""
        if wanted <= self.step:
            return None
        self.step = wanted
        self.cause = cause
        return wanted
