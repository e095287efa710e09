"""What the engine knows of one worker: its state, what it runs and what waits behind that.

Says how much may wait there.  No calls into processes or pipes here, and no host: `LocalEngine`
acts, this remembers.
"""

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, Final, final

from procq.engine.local import wire
from procq.engine.local.birth import WorkerProcess
from procq.engine.local.pace import UNKNOWN_S
from procq.engine.protocol import Attempt, Departure

if TYPE_CHECKING:
    from procq.engine.local.group import Group
    from procq.outcome import Outcome

#: Work sent ahead to one worker, in seconds as its types' attempts have lasted so far: enough to
#: keep it busy for some naps of the supervisor, which needs not hear of every attempt at once; taken
#: back when anything else could begin sooner.
AHEAD_S: Final = 0.010
#: At most so many attempts are ahead of one worker.
AHEAD_MAX: Final = 64
#: Behind an attempt that is expected to last longer than this only one waits, and only where the others
#: have enough to do: what is older than theirs should not wait for long (B1).
LONG_S: Final = 0.005
#: Behind one that is expected to last longer than this nothing does, nor if that is unknown: an idle gap
#: of 100 us after each attempt is 0.2 % of this.
SPAN_S: Final = 0.050

#: Why a worker ends whose attempt is stopped for this.
_BY_STOPPING: "Final[dict[Outcome, Departure]]" = {
    "timeout": "timeout", "memory": "memory", "cancelled": "cancelled", "interrupted": "shutdown",
}  # fmt: skip


class State(StrEnum):
    """What a worker does."""

    STARTING = "starting"  #: spawned, not ready
    IDLE = "idle"  #: can be given an attempt
    BUSY = "busy"  #: runs an attempt, or must forget what was taken back first
    STOPPING = "stopping"  #: was asked to stop its attempt; never used again
    LEAVING = "leaving"  #: told to leave
    DYING = "dying"  #: to be killed, or killed, its death not yet seen

    @property
    def stays(self) -> bool:
        """Whether it can be used again."""
        return self in {State.STARTING, State.IDLE, State.BUSY}


@final
class Worker:
    """One worker as the engine sees it."""

    __slots__ = (
        "ahead", "begun_at", "bulky", "channel", "departure", "depth", "dropping", "expected_s", "fault", "fence",
        "group", "heavy", "held_bytes", "id", "inbox", "is_forgetting", "is_told", "left", "log_handled", "log_held",
        "log_read", "outbox", "outdated", "output", "pid", "process", "running", "running_s", "shares", "speaking",
        "start_error", "start_late", "state", "stopping", "stream_mask", "weighed",
    )  # fmt: skip

    def __init__(self, worker_id: int, process: WorkerProcess, left: float, group: "Group") -> None:
        #: ours, never the pid, which the system uses again
        self.id = worker_id
        #: whose attempts it runs, and no others, for life
        self.group = group
        self.process = process
        self.channel = process.channel
        #: what its attempts write, if that is captured
        self.output = process.output
        self.pid = process.pid
        self.state = State.STARTING
        #: the attempt it runs, or is about to begin
        self.running: Attempt | None = None
        #: which start of the task that is
        self.fence = 0
        #: when it began, as far as is known; seconds on the monotonic clock
        self.begun_at = 0.0
        #: whether the host knows that it has begun
        self.is_told = True
        #: whether `running` was sent in more than a packet: taking it back costs the worker its life
        self.bulky = False
        #: the attempts that wait behind `running`, with what each is expected to last
        self.ahead: deque[tuple[Attempt, float]] = deque()
        #: frames of the last of those, not sent yet; they are sent together
        self.outbox: list[wire.Frame] = []
        #: messages of it that were read and not handled yet
        self.inbox: deque[wire.UpMessage] = deque()
        #: whether a message of it has begun to come, and is watched for moving on
        self.speaking = False
        #: the keys of the shared memory that it has, and those that it is still to be told to forget
        self.shares: set[int] = set()
        self.outdated: set[int] = set()
        #: it was told to forget some, and has not said yet that it has
        self.is_forgetting = False
        #: tasks were taken back from it, and it has not said yet that it has forgotten them
        self.dropping = False
        #: what `running` was expected to last, and what it and all that is ahead are together
        self.running_s = 0.0
        self.expected_s = 0.0
        #: how many attempts it may still be given before it is replaced
        self.left = left
        #: it held more than `recycle_memory` while it ran something: weighed again when that has ended
        self.heavy = False
        #: what its process held when it was killed for that
        self.held_bytes = 0
        #: whether it was weighed since it last ran anything
        self.weighed = True
        #: how many may be ahead; cut when they are taken back, and growing with each result
        self.depth = AHEAD_MAX
        #: why `running` is being stopped
        self.stopping: Outcome | None = None
        #: what is wrong with the worker itself, if we ended it for that
        self.fault: str | None = None
        #: why it is let go of, or killed though nothing is wrong with it
        self.departure: Departure | None = None
        #: why it did not become ready
        self.start_error: wire.StartFailed | None = None
        self.start_late = False
        #: what the selector watches its stream for; None: not now; 0: nothing any more
        self.stream_mask: int | None = None
        #: bytes of log records that were read from it, and those handled; the latter is written only by
        #: the thread that handles them
        self.log_read = self.log_handled = 0
        #: nothing is read from it until more of them are handled
        self.log_held = False

    def why_gone(self, *, was_ready: bool) -> "Departure":
        """Say why its process has ended, now that it has."""
        if self.stopping is not None:
            return _BY_STOPPING.get(self.stopping, "crash")
        if self.departure is not None and self.fault is None:
            return self.departure
        return "crash" if was_ready and self.start_error is None and not self.start_late else "start"

    def has_room(self, share: int) -> bool:
        """Whether one more attempt may wait here, if no worker shall hold more than `share`."""
        ahead = len(self.ahead)
        return (
            self.state is State.BUSY
            and self.running is not None
            and self.left > 0
            and self.running_s <= SPAN_S
            and (self.running_s <= LONG_S or (share > 1 and self.depth > 0))
            and not (self.dropping or self.bulky or self.heavy)
            and self.output is None  # else it could write for an attempt of which nothing is known here yet
            and (not ahead or (self.expected_s < AHEAD_S and ahead < self.depth and ahead < share))
        )

    @property
    def runs_low(self) -> bool:
        """Whether little waits here, so that it is time to send more."""
        return not self.ahead or (self.expected_s < AHEAD_S / 2 and len(self.ahead) <= self.depth // 4)

    def append(self, attempt: Attempt, expected_s: float) -> None:
        """Let an attempt wait behind all others."""
        self.left -= 1
        self.ahead.append((attempt, expected_s))
        self.expected_s += expected_s

    def before(self, attempt: Attempt) -> int:
        """Return how many attempts are before one that waits here."""
        waiting = [one for one, _ in self.ahead]
        return waiting.index(attempt) + (self.running is not None)

    def begin_next(self, at: float) -> None:
        """Note that `running` has ended at this instant, and that what comes next has begun; the host is not told."""
        attempt, expected_s = self.ahead.popleft()
        self.expected_s -= self.running_s
        self.running_s = expected_s
        if self.depth < AHEAD_MAX:
            self.depth += 1
        self.running = attempt
        self.fence = attempt.fence + 1
        self.begun_at = at
        self.is_told = False

    def pop_last(self) -> Attempt:
        """Take out the attempt that waits behind all others: it was taken back."""
        attempt, expected_s = self.ahead.pop()
        self.left += 1
        self.expected_s -= expected_s
        return attempt

    def cut_depth(self) -> None:
        """Note that too much was sent: less may be ahead until results have come; nothing behind what is long.

        Else what comes in place of what was taken back would wait there, while another worker ends sooner (B8).
        """
        self.depth = max(1, self.depth // 4) if self.running_s <= LONG_S else 0

    def expect_long(self) -> None:
        """Note that `running` has turned out long: how long is unknown."""
        self.expected_s += UNKNOWN_S - self.running_s
        self.running_s = UNKNOWN_S

    def first_packet(self) -> list[wire.Frame]:
        """Return the first frames of the outbox, as many as fit into one packet; a big one is alone."""
        size = 0
        for count, frame in enumerate(self.outbox):
            size += len(frame)
            if size > wire.PACKET_MAX and count:
                return self.outbox[:count]
        return self.outbox[:]

    def empty_outbox(self) -> int:
        """Forget what is not sent yet, and return how many attempts that is."""
        unsent, self.outbox = len(self.outbox), []
        return unsent
