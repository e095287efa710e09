"""How a queue is brought to its end: how hard, by when, why, and what that cut off (contract G1, G2, G6).

Takes the next step whenever it is asked whether it is time for one; whoever asks knows the time.
Nothing here waits, and a step that was taken is never taken back.

Everything here happens under the queue's lock, in a caller's thread or the engine's own; `mode` and
`deadline` are also read without, and `report` is asked for once all is over, or in a forked child.
"""

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, final, get_args

from procq.core.scheduler import Scheduler
from procq.core.states import Status
from procq.core.task import Cause, CutCause, Task, by_seq
from procq.dispatch import Dispatcher
from procq.engine.protocol import Engine
from procq.halting import Halt

if TYPE_CHECKING:
    from procq.events import Events

Mode = Literal["drain", "finish", "kill"]

#: Modes from the gentlest to the harshest; a later call may only be harsher.
_HARSHNESS: Final[dict[Mode, int]] = {"drain": 0, "finish": 1, "kill": 2}

#: Causes of a cancellation that come from here.
_CUTS: Final[frozenset[Cause]] = frozenset(get_args(CutCause))

#: How far the work is cut short: all that waits is cancelled, what runs is asked to stop as well, or killed.
WAITING: Final = 1
ASKED: Final = 2
KILLED: Final = 3


class ShutdownReport(NamedTuple):
    """What a shutdown did (contract G1)."""

    drained: bool  #: whether everything accepted ran to its end
    succeeded: int  #: tasks that ended SUCCEEDED in the queue's whole life
    failed: int  #: FAILED likewise
    cancelled: int  #: CANCELLED likewise
    cut_off: tuple[str, ...]  #: ids of the tasks that the shutdown or a halt cancelled, in order of submission
    halted: Halt | None = None  #: why the queue halted by itself; None: it did not (contract G6)


@final
class Closing:
    """The shutdown of a queue, or its halt, from the beginning.

    Args:
        scheduler: What there is to be ended.
        engine: What runs it, and is closed when nothing is left.
        dispatcher: Takes back what was sent ahead.
        events: Are told how hard it is, and why; None: nobody listens.
    """

    __slots__ = (
        "_cut", "_cut_level", "_dispatcher", "_engine", "_events", "_scheduler", "_why", "deadline", "halted",
        "is_asked", "mode", "told",
    )  # fmt: skip

    def __init__(
        self, scheduler: Scheduler, engine: Engine, dispatcher: Dispatcher, events: "Events | None" = None
    ) -> None:
        self._scheduler = scheduler
        self._engine = engine
        self._dispatcher = dispatcher
        self._events = events
        #: how hard; None: neither a shutdown nor a halt has begun
        self.mode: Mode | None = None
        #: what made it as hard as it is
        self._why: CutCause = "shutdown"
        #: the instant at which a shutdown becomes a kill; None: never by itself
        self.deadline: float | None = None
        #: whether somebody has asked for a shutdown
        self.is_asked = False
        #: why the queue has halted by itself, in a word and in a sentence; None: it has not
        self.halted: Halt | None = None
        self.told = ""
        #: what it cancelled
        self._cut: list[Task] = []
        #: how far the cut has gone; 0: nothing was cut short
        self._cut_level = 0

    def begin(self, mode: Mode, timeout_s: float | None, now: float, *, cause: str = "shutdown") -> None:
        """Begin a shutdown, or make the one under way harsher or sooner."""
        self.is_asked = True
        if self._would_harden(mode):
            self._harden(mode, "shutdown", cause)
        if timeout_s is not None:
            deadline = now + timeout_s
            self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)

    def halt(self, why: Halt, told: str, mode: Mode) -> bool:
        """Have the queue end by itself; return whether that changes anything."""
        if not self._would_harden(mode):
            return False
        self._harden(mode, why, why)
        self.note_halt(why, told)
        return True

    def note_halt(self, why: Halt, told: str) -> None:
        """Say that the queue has halted, if it had not before."""
        if self.halted is None:
            self.halted = why
            self.told = told

    @property
    def is_cut(self) -> bool:
        """Whether any task was cut off."""
        return bool(self._cut)

    def _would_harden(self, mode: Mode) -> bool:
        return self.mode is None or _HARSHNESS[mode] > _HARSHNESS[self.mode]

    def _harden(self, mode: Mode, why: CutCause, cause: str) -> None:
        self.mode = mode
        self._why = why
        if self._events is not None:
            self._events.stopping(mode, cause)

    def advance(self, now: float, *, at_once: bool) -> None:
        """Take the next step, if it is time for one; `at_once`: workers are killed rather than let go."""
        if self.deadline is not None and now >= self.deadline and self.mode != "kill":
            self._harden("kill", "shutdown", "deadline")
        if self.mode == "finish":
            self.cut_to(WAITING, now)
        elif self.mode == "kill":
            self.cut_to(ASKED, now)
        if self._scheduler.open == 0 and not self._dispatcher.closed:
            self._dispatcher.closed = True
            self._engine.close(at_once=at_once)

    def cut_to(self, level: int, now: float) -> None:
        """Cut the work short, as far as a level, if it is not yet."""
        if self._cut_level >= level:
            return
        if self._cut_level == 0:
            self._dispatcher.take_back_all(now)
        self._scheduler.cut_off(now, self._why)
        self._cut_level = level
        if level >= ASKED:
            for task in list(self._scheduler.running.values()):
                self._engine.stop(task, "interrupted", at_once=level == KILLED)

    def note_end(self, task: Task) -> None:
        """A task has ended: remember it if it ended CANCELLED by this."""
        if task.cause in _CUTS:
            self._cut.append(task)

    def report(self, *, is_whole: bool) -> ShutdownReport:
        """Say what it did; `is_whole`: nothing went wrong but what was cut off."""
        counts = self._scheduler.counts
        cut = tuple(task.id for task in sorted(self._cut, key=by_seq))
        return ShutdownReport(
            is_whole and not cut,
            counts[Status.SUCCEEDED],
            counts[Status.FAILED],
            counts[Status.CANCELLED],
            cut,
            self.halted,
        )
