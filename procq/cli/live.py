"""The live display of a run: some ten lines at the end of the terminal that are redrawn in place.

    procq-events thread --take--> Board --picture--> lines --in_place--> Terminal (main thread)

It decides when to look; what there is to see is the board's, what is shown of it the picture's, and how lines
stay in place the terminal's.
"""

import threading
import time
from typing import TYPE_CHECKING, Final, final

from procq.cli.board import Board, Event
from procq.cli.picture import Look, picture
from procq.cli.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERVAL_S: Final = 0.2
#: At most such a part of the time is spent on drawing, however many types and tasks there are.
_LOOK_SHARE: Final = 100
#: Less than this is not shown whole; so little room leaves nothing but the title and the bar.
_LINES_MAX: Final = 12


@final
class Live:
    """Follows a run, and shows where it stands.

    Args:
        terminal: Where it is shown; it is live.
        interval_s: The time between two looks; None: the usual one.
        now: The time, on the monotonic clock that the other calls use.

    Attributes:
        heading: What runs.
        notice: Says what a run that is being stopped does, given how many attempts run and for how many
            seconds the oldest has; None: it is not being stopped.
        due: When the next look is due.
    """

    __slots__ = ("_board", "_interval_s", "_lock", "_offset", "_terminal", "due", "heading", "notice")

    def __init__(self, terminal: Terminal, *, interval_s: float | None, now: float) -> None:
        self._terminal = terminal
        self._interval_s = _INTERVAL_S if interval_s is None else interval_s
        self._board = Board()
        #: held for each event and each look: both take less than a millisecond
        self._lock = threading.Lock()
        #: from the clock of the calls to that of the events
        self._offset = time.time() - time.monotonic()
        self.heading = ""
        self.notice: Callable[[int, float], str] | None = None
        self.due: float | None = now + self._interval_s

    def take(self, event: Event) -> None:
        """Learn of an event; called in the events' thread."""
        with self._lock:
            self._board.take(event)

    def show(self, now: float) -> None:
        """Show where the run stands; the caller has waited until `due`."""
        began = time.thread_time()
        columns, lines = self._terminal.size()
        with self._lock:
            at = now + self._offset
            look = Look(
                now=at,
                columns=columns - 1,
                lines=min(lines - 1, _LINES_MAX),
                is_unicode=self._terminal.is_unicode,
                heading=self.heading,
                notice=self._notice(at),
            )
            shown = picture(self._board, look)
        self._terminal.in_place(shown)
        self.due = now + max(self._interval_s, _LOOK_SHARE * (time.thread_time() - began))

    def end(self) -> None:
        """Take the display away."""
        self._terminal.clear()
        self.due = None

    def _notice(self, at: float) -> str:
        """Return what takes the place of the heading."""
        if self.notice is None:
            return ""
        running = self._board.running
        oldest = min((one.started_at for one in running.values()), default=at)
        return self.notice(len(running), max(0.0, at - oldest))
