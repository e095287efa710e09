"""How a run shows that it goes on: a line in place on a terminal, else a plain line now and then."""

from typing import Literal, NamedTuple, final

from procq.cli.terminal import Terminal
from procq.units import format_seconds

Mode = Literal["auto", "plain", "off"]

_LIVE_INTERVAL_S = 0.2
#: One line in 30 s is enough to see in a CI log that a run is alive, and little enough to read.
_PLAIN_INTERVAL_S = 30.0
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
    """Decides when to show progress, and how.

    Args:
        terminal: Where it is shown.
        mode: What `--progress` says.
        interval_s: What `--interval` says, or None.
        now: The time, on the clock that the other calls use.
    """

    __slots__ = ("_in_place", "_interval_s", "_terminal", "due")

    def __init__(self, terminal: Terminal, *, mode: Mode, interval_s: float | None, now: float) -> None:
        self._terminal = terminal
        self._in_place = terminal.is_live and mode == "auto"
        default = _LIVE_INTERVAL_S if self._in_place else _PLAIN_INTERVAL_S
        self._interval_s = default if interval_s is None else interval_s
        #: when the next line is due; None: never
        self.due: float | None = None if mode == "off" else now + self._interval_s

    def show(self, snapshot: Snapshot, now: float, *, took_s: float = 0.0) -> None:
        """Show where the run stands; the caller has waited until `due`.

        Args:
            snapshot: Where it stands.
            now: The time.
            took_s: How long it took to find that out.
        """
        if self._in_place:
            self._terminal.in_place(text(snapshot))
        else:
            self._terminal.line(text(snapshot))
        self.due = now + max(self._interval_s, _LOOK_SHARE * took_s)

    def end(self) -> None:
        """Take the line in place away."""
        self._terminal.clear()
