"""How a run shows that it goes on where nothing can be redrawn: a plain line now and then."""

import time
from collections.abc import Callable
from typing import Literal, NamedTuple, final

from procq.cli.terminal import Terminal
from procq.units import format_seconds

Mode = Literal["auto", "live", "plain", "off"]

#: One line in 30 s is enough to see in a CI log that a run is alive, and little enough to read.
_INTERVAL_S = 30.0
#: Looking at a queue with a million tasks takes a while and holds its lock: at most a twentieth
#: of the time is spent on it.
_LOOK_SHARE = 20


class Snapshot(NamedTuple):
    """Where a run stands."""

    ended: int
    known: int  #: tasks known so far
    all_known: bool  #: whether the producer has ended
    running: int
    delayed: int  #: waiting for an instant, most of them for a retry
    failed: int
    skipped: int
    elapsed_s: float


def text(now: Snapshot) -> str:
    """Return "812/1204 done  8 running  3 scheduled  1 failed  2 skipped  1m42s"."""
    parts = [f"{now.ended}/{'' if now.all_known else '>='}{now.known} done", f"{now.running} running"]
    optional = ((now.delayed, "scheduled"), (now.failed, "failed"), (now.skipped, "skipped"))
    parts += [f"{number} {word}" for number, word in optional if number]
    return "  ".join([*parts, format_seconds(now.elapsed_s)])


@final
class Progress:
    """Decides when to show progress.

    Args:
        terminal: Where it is shown.
        interval_s: The time between two lines; None: the usual one.
        now: The time, on the clock that the other calls use.
        look: Returns where the run stands.
    """

    __slots__ = ("_interval_s", "_look", "_terminal", "due")

    def __init__(
        self, terminal: Terminal, *, interval_s: float | None, now: float, look: Callable[[float], Snapshot]
    ) -> None:
        self._terminal = terminal
        self._look = look
        self._interval_s = _INTERVAL_S if interval_s is None else interval_s
        #: when the next line is due
        self.due: float | None = now + self._interval_s

    def show(self, now: float) -> None:
        """Show where the run stands; the caller has waited until `due`."""
        began = time.monotonic()
        snapshot = self._look(now)
        took_s = time.monotonic() - began
        self._terminal.line(text(snapshot))
        self.due = now + max(self._interval_s, _LOOK_SHARE * took_s)

    def end(self) -> None:
        """Show no more."""
        self.due = None
