"""The local engine: spawned workers, driven by one thread that waits in one selector (DESIGN 2).

    caller threads --start, send_ahead, take_back, stop--> Channel --> worker
    loop thread    <--results, deaths (pidfd), wake-ups, timers-- workers

Who touches what: everything of `LocalEngine` is touched under the host's lock only, by whichever
thread holds it; the loop thread gives the lock up while it waits in the selector and while it
spawns.  Nothing here unpickles, and nothing blocks while the lock is held.

The engine knows which attempt each worker runs and which one waits ahead of it; priorities,
retries and graphs are the host's.  After a death three facts settle the blame: results still in
the pipe count, packets still in the pipe were not begun, and the one attempt that is neither is
the culprit (contract D4).
"""

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, final

from procq.core.heaps import TimerHeap
from procq.engine.judgement import judge_stopped
from procq.engine.local import birth, deaths, wire
from procq.engine.local.machine import usable_cpus
from procq.engine.local.transport import above_standard_streams
from procq.engine.protocol import Attempt, Host, StopReason
from procq.errors import WorkerStartError
from procq.outcome import Ended, class_names

if TYPE_CHECKING:
    from procq.outcome import Outcome

logger = logging.getLogger(__name__)

#: Consecutive failures to start a worker after which the engine gives up (contract D11).  One may
#: be chance, and with several workers starting side by side a broken initializer fails in each.
_START_FAILURES_MAX: Final = 3
#: Workers that may die idle within `_IDLE_DEATHS_PERIOD_S` and still be replaced before there is
#: work for them: somebody or something kills them for sport, and each start costs 15 ms of CPU.
_IDLE_DEATHS_MAX: Final = 10
_IDLE_DEATHS_PERIOD_S: Final = 10.0
#: How long to wait before trying again when the system refuses a new process or descriptor.
_SPAWN_PAUSE_S: Final = 0.1
#: How long to go on with fewer workers when some have started and others cannot.
_SPAWN_PAUSE_LONG_S: Final = 30.0
#: Workers spawned before the loop looks at its messages again (about 1 ms each).
_SPAWNS_PER_TURN: Final = 4
#: Work sent ahead to one worker, in seconds as its type's attempts have lasted so far: enough to
#: keep it busy while the supervisor attends to something else (PERFORMANCE: a depth of 16 no-ops
#: carries 1.7 times as many tasks as a depth of 1), too little to matter to what comes after.
_AHEAD_S: Final = 0.001
#: At most so many attempts are sent ahead to one worker; the socket holds some 270 small packets.
_AHEAD_MAX: Final = 64
#: Attempts with more payload than this are not sent ahead, and no more is in one pipe at a time:
#: a socket of default size holds three times as much.
_AHEAD_MAX_BYTES: Final = wire.PACKET_MAX - 1024
#: Nothing waits ahead at a worker whose attempt is expected to last longer than this, or has: what
#: is more urgent could not overtake it at every other worker, nor an idle one take it over (B8).
#: An idle gap of 60 us after each attempt is 1 % of this.
_LONG_S: Final = 0.005
#: What an attempt is expected to last when none of its type has ended yet: long.
_UNKNOWN_S: Final = 1.0
#: How much of the newest duration goes into the moving average of a type.
_NEWEST: Final = 0.125
#: Types whose average is kept; a program that makes up types without end starts over.
_PACES_MAX: Final = 10_000
#: From the end of a worker's pipes to its death: some milliseconds while it frees its memory.
_HANG_UP_S: Final = 1.0
#: How long a worker may take to read a big payload; far more than any honest one needs.
_TRANSFER_S: Final = 10.0
#: Reads after which a result that must be in the pipe already would have been read: what is in
#: the kernel's buffers is at most some MiB, and one read takes one.
_READS_MAX: Final = 64
#: No poll is longer, so that a clock that jumps in a suspended machine is noticed some day; an
#: idle queue wakes for nothing else.
_LONGEST_WAIT_S: Final = 3600.0

_READ: Final = select.EPOLLIN
_WRITE: Final = select.EPOLLOUT


class _State(StrEnum):
    """What a worker does."""

    STARTING = "starting"  #: spawned, not ready
    IDLE = "idle"  #: in `_idle`
    BUSY = "busy"  #: runs an attempt
    STOPPING = "stopping"  #: was asked to stop its attempt; never used again
    LEAVING = "leaving"  #: told to leave
    DYING = "dying"  #: SIGKILLed, its death not yet seen


@final
class _Worker:
    """What the engine knows of one worker."""

    __slots__ = (
        "ahead", "begun_at", "bulky", "channel", "depth", "dropping", "expected_s", "fault", "fence", "id", "left",
        "outbox", "pid", "process", "running", "running_s", "start_error", "start_late", "state", "stopping",
        "stream_mask",
    )  # fmt: skip

    def __init__(self, worker_id: int, process: birth.WorkerProcess, left: float) -> None:
        self.id = worker_id
        self.process = process
        self.channel = process.channel
        self.pid = process.pid
        self.state = _State.STARTING
        #: the attempt it runs, or is about to read
        self.running: Attempt | None = None
        #: which start of the task that is
        self.fence = 0
        self.begun_at = 0.0
        #: whether `running` was sent in more than a packet, which cannot be taken back whole
        self.bulky = False
        #: the attempts that wait behind `running`, with what each is expected to last
        self.ahead: deque[tuple[Attempt, float]] = deque()
        #: frames not sent yet, of the last of those; `flush` sends them together
        self.outbox: list[wire.Frame] = []
        #: tasks were taken back from it, and it has not said yet that it has forgotten them
        self.dropping = False
        #: what `running` was expected to last, and what it and all that is ahead are together
        self.running_s = 0.0
        self.expected_s = 0.0
        #: how many attempts it may still be given before it is replaced
        self.left = left
        #: how many may be ahead; cut when they are taken back, and growing with each result
        self.depth = _AHEAD_MAX
        #: why `running` is being stopped
        self.stopping: Outcome | None = None
        #: what is wrong with the worker itself, if we ended it for that
        self.fault: str | None = None
        #: why it did not become ready
        self.start_error: wire.StartFailed | None = None
        self.start_late = False
        #: what the selector watches its stream for
        self.stream_mask = 0


@final
class LocalEngine:
    """Runs attempts in spawned processes on this machine (contract H).

    Args:
        workers: At most so many processes.
        kill_grace_s: From asking an attempt to stop until its process group is killed.
        start_timeout_s: A worker that is not ready by then is killed.
        initializer: A pickled call that each worker makes first, or nothing.
        jobs: Files that serve as modules in the workers, by module name.
        max_tasks_per_worker: A worker is replaced after so many attempts; None: never.
    """

    manual = False

    def __init__(
        self,
        *,
        workers: int,
        kill_grace_s: float = 1.0,
        start_timeout_s: float = 60.0,
        initializer: bytes = b"",
        jobs: Callable[[], Mapping[str, str]] = dict,
        max_tasks_per_worker: int | None = None,
    ) -> None:
        self._limit = workers
        self._cpus = usable_cpus()
        self._kill_grace_s = kill_grace_s
        self._start_timeout_s = start_timeout_s
        self._initializer = initializer
        self._jobs = jobs
        self._tasks_per_worker = float("inf") if max_tasks_per_worker is None else max_tasks_per_worker
        self._host: Host | None = None
        self._workers: dict[int, _Worker] = {}
        self._worker_ids = 0
        #: the last to become idle is the first to be used again: its caches are warm
        self._idle: list[_Worker] = []
        #: busy workers to which more may be sent ahead, the one that has waited longest first
        self._roomy: dict[_Worker, None] = {}
        self._by_seq: dict[int, _Worker] = {}
        self._ahead_at: dict[int, _Worker] = {}
        #: moving average of how long the attempts of a type have lasted, in seconds
        self._paces: dict[str, float] = {}
        self._review_at = 0.0
        #: at most so many are ahead of one worker now
        self._share = 0
        #: workers that have begun another attempt since the last `foresee`
        self._hungry: set[_Worker] = set()
        #: workers with something in their outbox
        self._to_flush: list[_Worker] = []
        self._handlers: dict[int, tuple[Callable[[_Worker], None], _Worker]] = {}
        #: deadlines of attempts, ends of graces, start-up limits: (what to do, worker)
        self._timers: TimerHeap[tuple[Callable[[_Worker], None], _Worker]] = TimerHeap()
        #: workers to be killed, and workers just asked to stop: the loop looks for what they have
        #: started, which takes milliseconds, and so does it without the lock
        self._doomed: list[_Worker] = []
        self._asked: list[_Worker] = []
        self._starting = 0
        #: so many workers are kept alive even when there is nothing to do
        self._wanted = 0
        self._start_failures = 0
        self._idle_deaths: deque[float] = deque()
        self._spawn_not_before = 0.0
        self._broken = False
        self._closing = False
        self._oom_watch = deaths.OomWatch()
        self._poller: select.epoll  # made by `open`, as is the next: an unused queue holds no descriptor
        #: an eventfd: written to wake the loop
        self._alarm_fd = -1
        self._asleep = False
        self._planned = 0.0
        #: how often the loop has woken; an idle queue must not
        self.turns = 0

    # --- what the host asks (procq.engine.protocol.Engine) ---------------------------------------

    now = staticmethod(time.monotonic)

    def open(self, host: Host) -> None:
        """Start the loop's thread."""
        self._host = host
        self._alarm_fd = above_standard_streams(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self._poller = select.epoll()
        self._poller.register(self._alarm_fd, _READ)
        # A daemon, so that a forgotten queue cannot keep the interpreter from ending; the exit
        # hook of `Queue` kills its workers before daemons are frozen (contract G4).
        threading.Thread(target=self._run, name="procq-supervisor", daemon=True).start()

    @property
    def idle(self) -> int:
        """How many attempts could begin at once."""
        return len(self._idle)

    def foresee(self, backlog: int) -> None:
        """Learn how much there is to hand out, and find those that have room for it.

        When little is left, what one worker has ahead the others may soon want: each gets no more
        than half of its share, so the end is shared out one by one.
        """
        self._share = backlog // (2 * len(self._workers) or 1)
        for worker in self._hungry:
            self._mind_room(worker)
        self._hungry.clear()

    @property
    def room_ahead(self) -> int:
        """How many busy workers could be sent an attempt ahead."""
        return len(self._roomy)

    @property
    def growing(self) -> bool:
        """Whether more workers may be started for what is ready."""
        return len(self._workers) < self._limit and not self._closing and not self._broken

    def start(self, attempt: Attempt) -> None:
        """Hand an attempt to the worker that became idle last."""
        worker = self._idle.pop()
        worker.left -= 1
        worker.running_s = worker.expected_s = self._paces.get(attempt.type, _UNKNOWN_S)
        self._begin(worker, attempt, time.monotonic())
        self._post(worker, attempt, attempt.fence)
        self._mind_room(worker)

    def fits_ahead(self, attempt: Attempt) -> bool:
        """Whether an attempt fits in one packet."""
        return _packet_bytes(attempt) <= _AHEAD_MAX_BYTES

    def send_ahead(self, attempt: Attempt) -> None:
        """Send an attempt to a busy worker, behind what it runs."""
        worker = next(iter(self._roomy))
        del self._roomy[worker]
        if not self._ahead_at:
            self._review_at = time.monotonic() + _LONG_S
            self.wake(self._review_at)
        worker.left -= 1
        expected_s = self._paces.get(attempt.type, _UNKNOWN_S)
        worker.ahead.append((attempt, expected_s))
        worker.expected_s += expected_s
        self._ahead_at[attempt.seq] = worker
        self._post(worker, attempt, attempt.fence + 1)
        self._mind_room(worker)

    def flush(self) -> None:
        """Send what was handed out since the last time, one packet to a worker."""
        to_flush, self._to_flush = self._to_flush, []
        for worker in to_flush:
            self._flush(worker)

    def take_back(self, attempt: Attempt) -> bool:
        """Take back all that the attempt's worker has not begun (DESIGN 3)."""
        worker = self._ahead_at[attempt.seq]
        self._take_back_from(worker)
        if attempt.seq not in self._ahead_at:
            return True
        # The worker has begun it, so the results of those before it are in the pipe to us.
        for _ in range(_READS_MAX):
            if attempt.seq not in self._ahead_at:
                return False
            self._read(worker)
        self._condemn(worker, "it claimed tasks that it has not run")
        return False

    def stop(self, attempt: Attempt, reason: StopReason, *, at_once: bool = False) -> bool:
        """Ask a running attempt to stop, and kill it after the grace; or kill it at once."""
        worker = self._by_seq.get(attempt.seq)
        return worker is not None and self._stop(worker, reason, at_once=at_once)

    def wake(self, by: float | None = None) -> None:
        """Have the loop take a turn soon, or by an instant; the lock is held."""
        if self._asleep and (by is None or by < self._planned):
            self._asleep = False
            self.alarm()

    def alarm(self) -> None:
        """Have the loop take a turn; may be called without the lock, at any moment."""
        fd = self._alarm_fd
        if fd >= 0:
            with contextlib.suppress(OSError):  # closed meanwhile, or full: then it wakes anyway
                os.eventfd_write(fd, 1)

    def close(self, *, at_once: bool) -> None:
        """Let all workers go, or kill them."""
        self._closing = True
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if at_once or worker.state is not _State.IDLE:
                self._kill(worker)
            else:
                self._let_go(worker, now)
        self.wake()

    def step(self, _until: float | None) -> bool:
        """Attempts run by themselves."""
        raise NotImplementedError

    def resize(self, workers: int) -> None:
        """Change how many workers there may be; those too many leave once they are idle."""
        self._limit = workers
        self._wanted = min(self._wanted, workers)
        now = time.monotonic()
        while len(self._workers) > self._limit and self._idle:
            self._let_go(self._idle[-1], now)
        self.wake()

    def states(self) -> dict[str, int]:
        """Count workers by what they do."""
        counts = {str(state): 0 for state in _State}
        for worker in self._workers.values():
            counts[worker.state] += 1
        return counts

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.pid for worker in self._workers.values()]

    # --- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Turn until everything is closed; the outermost frame of the supervisor's thread."""
        host = self._require_host()
        try:
            while self._turn(host):
                pass
        except BaseException as error:
            # A bug of procq must not leave callers waiting for ever: end everything loudly.
            logger.critical("procq's supervisor thread failed; please report this", exc_info=True)
            host.failed(error)
            for worker in list(self._workers.values()):
                worker.process.kill()
                worker.process.close()
        finally:
            self._close_descriptors()
            host.closed()

    def _turn(self, host: Host) -> bool:
        """Wait, then handle what happened; False when all is over."""
        with host.lock:
            if self._closing and not self._workers:
                return False
            wait_s = self._plan(host)
        events = self._poller.poll(wait_s)
        self.turns += 1
        with host.lock:
            self._asleep = False
            for fd, mask in events:
                if fd == self._alarm_fd:
                    os.eventfd_read(fd)
                    continue
                known = self._handlers.get(fd)  # gone if an event before it closed it
                if known is not None:
                    known[0](known[1])
                elif mask:
                    with contextlib.suppress(OSError, KeyError):
                        self._poller.unregister(fd)
            now = time.monotonic()
            if now >= self._review_at:
                self._review(now)
            while (due := self._timers.pop_due(now)) is not None:
                due[0](due[1])
            host.tick(now)
            births = self._plan_births(host, now)
            asked, self._asked = self._asked, []
            doomed, self._doomed = self._doomed, []
        for worker in asked:
            worker.process.descendants()
        for worker in doomed:
            worker.process.descendants()
            worker.process.kill()
        for _ in range(births):
            self._spawn(host)
        return True

    def _plan(self, host: Host) -> float:
        """Decide how long to sleep, and say so for `wake`; the lock is held."""
        now = time.monotonic()
        instants = [at for at in (host.next_due(), self._timers.next_at()) if at is not None]
        if self._ahead_at:
            instants.append(self._review_at)
        if self._spawn_not_before > now and host.backlog:
            instants.append(self._spawn_not_before)
        if self._doomed or self._asked or self._births_wanted(host, now):
            instants.append(now)
        self._planned = min(instants, default=now + _LONGEST_WAIT_S)
        self._asleep = True
        return min(max(0.0, self._planned - now), _LONGEST_WAIT_S)

    # --- births --------------------------------------------------------------------------------

    def _births_wanted(self, host: Host, now: float) -> int:
        """Return how many workers should be started now."""
        room = self._limit - len(self._workers)
        if room <= 0 or self._closing or self._broken or now < self._spawn_not_before:
            return 0
        for_backlog = host.backlog - self._starting
        for_floor = self._wanted - len(self._workers)
        return max(0, min(max(for_backlog, for_floor), room))

    def _plan_births(self, host: Host, now: float) -> int:
        return min(self._births_wanted(host, now), _SPAWNS_PER_TURN)

    def _spawn(self, host: Host) -> None:
        """Start a worker; without the lock, since it takes a millisecond."""
        self._worker_ids += 1
        worker_id = self._worker_ids
        try:
            process = birth.spawn(
                birth.WorkerConfig(
                    worker_id=worker_id,
                    workers=self._limit,
                    cpus=self._cpus,
                    initializer=self._initializer,
                    jobs=self._jobs(),
                )
            )
        except WorkerStartError as error:
            with host.lock:
                self._spawn_refused(error)
            return
        with host.lock:
            worker = _Worker(worker_id, process, self._tasks_per_worker)
            self._workers[worker_id] = worker
            self._wanted = min(max(self._wanted, len(self._workers)), self._limit)
            self._starting += 1
            self._watch(process.channel.result_fd, self._read_all, worker)
            self._watch(process.pidfd, self._died, worker)
            self._watch_stream(worker)
            self._timers.set((worker_id, "start"), time.monotonic() + self._start_timeout_s, (self._start_late, worker))
            if self._closing:
                self._kill(worker)

    def _spawn_refused(self, error: WorkerStartError) -> None:
        """The system has no process or descriptor to spare: try again soon, or give up."""
        now = time.monotonic()
        self._spawn_not_before = now + _SPAWN_PAUSE_S * 2**self._start_failures
        if self._workers:
            return  # the others go on; what they end makes room
        self._start_failed(str(error))
        self._require_host().tick(now)  # it may have been the last try, and this turn's tick is over

    def _ready(self, worker: _Worker) -> None:
        """A worker has started."""
        if worker.state is not _State.STARTING:
            return
        self._starting -= 1
        self._start_failures = 0
        self._timers.discard((worker.id, "start"))
        if len(self._workers) > self._limit:
            self._let_go(worker, time.monotonic())
        else:
            worker.state = _State.IDLE
            self._idle.append(worker)

    def _start_late(self, worker: _Worker) -> None:
        worker.start_late = True
        worker.fault = f"it was not ready within start_timeout={self._start_timeout_s:g} s"
        self._kill(worker)

    def _start_failed(self, why: str) -> None:
        """Count a failure to start; too many in a row end the work (contract D11)."""
        self._start_failures += 1
        if self._start_failures < _START_FAILURES_MAX or self._broken:
            return
        if len(self._workers) > self._starting:  # some others did start: go on with those for a while
            logger.warning("a worker cannot start; going on with %d: %s", len(self._workers) - self._starting, why)
            self._spawn_not_before = time.monotonic() + _SPAWN_PAUSE_LONG_S
        else:
            self._broken = True
            now = time.monotonic()
            text = f"workers cannot start, tried {self._start_failures} times; the last time {why}"
            logger.error("%s", text)
            self._require_host().broken(
                Ended("error", now, now, permanent=True, error_types=class_names(WorkerStartError), message=text)
            )

    # --- attempts ------------------------------------------------------------------------------

    def _begin(self, worker: _Worker, attempt: Attempt, at: float) -> None:
        """Note what a worker runs from now on."""
        worker.running = attempt
        worker.fence = attempt.fence
        worker.begun_at = at
        worker.bulky = False
        self._by_seq[attempt.seq] = worker
        if worker.state is _State.DYING:  # all that is left to know is how the attempt ended
            return
        worker.state = _State.BUSY
        if attempt.timeout_s is not None:
            # Not from `at`: the worker may have been busy since then with sending a big result.
            self._set_deadline(worker, time.monotonic() + attempt.timeout_s)

    def _mind_room(self, worker: _Worker) -> None:
        """Keep the worker among the roomy ones if more may be sent ahead to it, else not."""
        ahead = worker.ahead
        if (
            worker.state is _State.BUSY
            and worker.running is not None
            and worker.left > 0
            and not worker.dropping
            and worker.running_s <= _LONG_S
            and not worker.bulky
            and (not ahead or (worker.expected_s < _AHEAD_S and len(ahead) < worker.depth and len(ahead) < self._share))
        ):
            self._roomy[worker] = None
        else:
            self._roomy.pop(worker, None)

    def _set_deadline(self, worker: _Worker, at: float) -> None:
        self._timers.set((worker.id, "deadline"), at, (self._overdue, worker))
        self.wake(at)

    def _post(self, worker: _Worker, attempt: Attempt, fence: int) -> None:
        """Put an attempt into a worker's outbox."""
        inputs = attempt.inputs
        frame = wire.pack_task(
            attempt.seq, fence, attempt.attempt, attempt.timeout_s, attempt.id, attempt.payload,
            [given.value or b"" for given in inputs] if inputs else (),
        )  # fmt: skip
        if not isinstance(frame, bytes):  # only ever to an idle worker, so it is alone
            worker.bulky = True
        if not worker.outbox:
            self._to_flush.append(worker)
        worker.outbox.append(frame)

    def _flush(self, worker: _Worker) -> None:
        """Send a worker what is in its outbox; one that cannot be reached has met its end."""
        while worker.outbox:  # else it was taken back
            packet = _first_packet(worker.outbox)
            try:
                sent = worker.channel.send_tasks(packet)
            except wire.WireError as error:
                del worker.outbox[: len(packet)]
                self._take_back_from(worker)
                self._condemn(worker, str(error))
                return
            if not sent:
                self._return_unsent(worker)
                return
            del worker.outbox[: len(packet)]
        if worker.channel.sending:  # its time runs once it has everything
            if worker.running is not None and worker.running.timeout_s is not None:
                self._set_deadline(worker, worker.begun_at + _TRANSFER_S + worker.running.timeout_s)
            self._watch_stream(worker)

    def _return_unsent(self, worker: _Worker) -> None:
        """Give back what found the pipe full, which a few big packets make it."""
        unsent, worker.outbox = len(worker.outbox), []
        is_idle = unsent > len(worker.ahead)
        worker.depth = max(1, worker.depth // 4)
        self._give_back(worker, min(unsent, len(worker.ahead)))
        if is_idle:  # so it has read all, and yet there is no room
            self._return_running(worker)
            self._condemn(worker, "it takes no task")
        self._mind_room(worker)

    def _unassign(self, worker: _Worker) -> Attempt | None:
        """Take note that a worker runs nothing any more, and return what it ran."""
        attempt = worker.running
        if attempt is not None:
            worker.running = None
            self._by_seq.pop(attempt.seq, None)
            self._roomy.pop(worker, None)
            if attempt.timeout_s is not None:
                self._timers.discard((worker.id, "deadline"))
        return attempt

    def _read(self, worker: _Worker) -> bool:
        """Read one message of a worker; return whether there was a whole one."""
        channel = worker.channel
        was_receiving = channel.receiving
        try:
            message = channel.receive()
        except wire.WireError as error:
            self._condemn(worker, f"it sent what is no message ({error})")
            return False
        if channel.receiving or was_receiving:
            self._watch_stream(worker)
        if message is None:
            if channel.hung_up:
                self._hung_up(worker)
            return False
        if message.__class__ is wire.Report:  # nearly always, and `match` would first ask for its bases
            self._ended(worker, message)
            return True
        match message:
            case wire.Ready():
                self._ready(worker)
            case wire.Progress():
                if worker.running is not None and (worker.running.seq, worker.fence) == (message.seq, message.fence):
                    self._require_host().progressed(worker.running, message.done, message.total)
            case wire.StartFailed():
                worker.start_error = message
            case wire.Dropped():
                self._dropped(worker)
            case _:
                self._condemn(worker, "it announced a message within a message")
        return True

    def _read_all(self, worker: _Worker) -> None:
        """Read what a worker has said; several results at a time when it ends many attempts."""
        while self._read(worker) and worker.ahead:
            pass

    def _hung_up(self, worker: _Worker) -> None:
        """A worker has closed its end: its death follows at once, or it is a cheat."""
        self._unwatch(worker.channel.result_fd)
        self._unwatch_stream(worker)
        key = (worker.id, "hang-up")
        if worker.state is not _State.DYING and key not in self._timers:
            self._timers.set(key, time.monotonic() + _HANG_UP_S, (self._still_there, worker))

    def _still_there(self, worker: _Worker) -> None:
        self._condemn(worker, "it closed the pipes to its supervisor")

    def _ended(self, worker: _Worker, report: wire.Report) -> None:
        """A worker reports the end of its attempt."""
        attempt = worker.running
        if attempt is None or attempt.seq != report.seq or worker.fence != report.fence:
            self._condemn(worker, "it reported an attempt that it was not given")
            return
        ended = report.ended
        ended.pid = worker.pid
        # The clock is one for all processes of a machine; what a worker says is bounded all the same.
        ended.ended_at = min(max(ended.ended_at, worker.begun_at), time.monotonic())
        ended.started_at = min(max(ended.started_at, 0.0), ended.ended_at)
        self._unassign(worker)
        self._note_pace(attempt.type, ended.ended_at - ended.started_at)
        if worker.stopping is not None:
            judge_stopped(ended, worker.stopping, attempt)
            self._kill(worker)
        elif ended.terminated:
            ended.outcome, ended.signal = "crash", "SIGTERM"
            ended.message = f"the worker (pid {worker.pid}) was ended by SIGTERM from outside"
            ended.value, ended.error_types, ended.permanent = None, (), False
            self._kill(worker)
        else:
            self._go_on(worker, ended.ended_at)
        self._host_ended(attempt, report.fence, ended)

    def _go_on(self, worker: _Worker, at: float) -> None:
        """A worker has ended an attempt: it begins what waits ahead, or is idle."""
        if worker.ahead:
            attempt, expected_s = worker.ahead.popleft()
            del self._ahead_at[attempt.seq]
            worker.expected_s -= worker.running_s
            worker.running_s = expected_s
            if worker.depth < _AHEAD_MAX:
                worker.depth += 1
            self._require_host().began(attempt, at)
            self._begin(worker, attempt, at)
            self._hungry.add(worker)
        elif worker.state is _State.BUSY and not worker.dropping:
            self._to_idle(worker, at)

    def _to_idle(self, worker: _Worker, now: float) -> None:
        worker.state = _State.IDLE
        if worker.left <= 0 or len(self._workers) > self._limit:
            self._let_go(worker, now)
        else:
            self._idle.append(worker)

    def _note_pace(self, type_name: str, run_s: float) -> None:
        """Learn how long the attempts of a type last; one that lasted much longer counts in full."""
        paces = self._paces
        known_s = paces.get(type_name)
        if known_s is None:
            if len(paces) >= _PACES_MAX:
                paces.clear()
            paces[type_name] = run_s
        elif run_s > 8 * known_s:
            paces[type_name] = run_s
        else:
            paces[type_name] = known_s + (run_s - known_s) * _NEWEST

    def _review(self, now: float) -> None:
        """Take back what waits behind attempts that turned out long."""
        self._review_at = now + _LONG_S
        for worker in self._workers.values():
            if worker.running is not None and worker.running_s <= _LONG_S and now - worker.begun_at > _LONG_S:
                worker.expected_s += _UNKNOWN_S - worker.running_s
                worker.running_s = _UNKNOWN_S
                self._take_back_from(worker)
                self._mind_room(worker)

    def _host_ended(self, attempt: Attempt, fence: int, ended: Ended) -> None:
        self._require_host().ended(attempt, fence, ended)

    # --- stopping ------------------------------------------------------------------------------

    def _overdue(self, worker: _Worker) -> None:
        """An attempt has used up its timeout (contract D5)."""
        overdue = worker.running
        while self._read(worker):  # it may have ended in time, and its report not been read yet
            pass
        if overdue is None or worker.running is not overdue or worker.state is not _State.BUSY:
            return
        self._stop(worker, "timeout")

    def _stop(self, worker: _Worker, reason: "Outcome", *, at_once: bool = False) -> bool:
        """Ask a worker's attempt to stop; it is killed after the grace, and never used again.

        Returns:
            Whether that was needed: not if the attempt turned out not to have begun, or to have ended.
        """
        attempt = worker.running
        if worker.state is _State.BUSY:
            if self._take_back_from(worker) and reason == "timeout" and worker.running is None:
                self._kill(worker)  # it has not begun its task for so long: it must be stopped, or stuck
            # What is still ahead has been begun by the worker, so the attempt before it has ended.
            for _ in range(_READS_MAX):
                if not worker.ahead or worker.running is not attempt:
                    break
                self._read(worker)
        if attempt is None or worker.running is not attempt:
            return False
        # A cancel outranks a timeout: it must not be retried (F3).
        if worker.stopping is None or reason == "cancelled":
            worker.stopping = reason
        if at_once:
            self._kill(worker)
        elif worker.state is _State.BUSY:
            worker.state = _State.STOPPING
            self._roomy.pop(worker, None)
            worker.process.ask()
            self._asked.append(worker)
            self._timers.set((worker.id, "grace"), time.monotonic() + self._kill_grace_s, (self._kill, worker))
            self.wake()
        return True

    def _take_back_from(self, worker: _Worker) -> bool:
        """Take back all that a worker has not begun, and give it to the host.

        Returns:
            Whether what it is to run was taken back too.
        """
        unsent, worker.outbox = len(worker.outbox), []
        revoked = worker.channel.revoke()
        if not unsent + revoked:
            return False
        if revoked and worker.state is not _State.DYING:
            worker.dropping = True
            with contextlib.suppress(wire.WireError):  # the pipe is shut: its death will tell
                if not worker.channel.drop():
                    self._condemn(worker, "there is no room in its pipe")
        worker.depth = max(1, worker.depth // 4)
        was_running = unsent + revoked > len(worker.ahead)
        self._give_back(worker, min(unsent + revoked, len(worker.ahead)))
        if was_running:
            self._return_running(worker)
        self._mind_room(worker)
        return was_running

    def _give_back(self, worker: _Worker, number: int) -> None:
        """Give the last attempts ahead back to the host."""
        host = self._require_host()
        for _ in range(number):
            attempt, expected_s = worker.ahead.pop()
            worker.left += 1
            worker.expected_s -= expected_s
            del self._ahead_at[attempt.seq]
            host.returned(attempt)

    def _return_running(self, worker: _Worker) -> None:
        """Give what a worker was to run, and has not begun, back to the host."""
        if worker.bulky:  # its stream holds what nobody will read
            self._kill(worker)
        attempt = self._unassign(worker)
        if attempt is not None:
            worker.left += 1
            self._require_host().returned(attempt)
            self._go_on(worker, time.monotonic())

    def _dropped(self, worker: _Worker) -> None:
        """A worker has forgotten what was taken back: it may be given more."""
        worker.dropping = False
        if worker.running is not None:
            self._mind_room(worker)
        elif worker.state is _State.BUSY:
            self._to_idle(worker, time.monotonic())

    def _condemn(self, worker: _Worker, fault: str) -> None:
        """End a worker that broke the rules; its death tells the rest."""
        if worker.fault is None:
            worker.fault = fault
        self._kill(worker)

    def _kill(self, worker: _Worker) -> None:
        """Kill a worker and everything in its process group, now."""
        if worker.state is _State.DYING:
            return
        if worker.state is _State.IDLE:
            self._idle.remove(worker)
        elif worker.state is _State.STARTING:
            self._starting -= 1
        worker.state = _State.DYING
        self._roomy.pop(worker, None)
        self._timers.discard((worker.id, "grace"))
        self._doomed.append(worker)
        self.wake()

    def _let_go(self, worker: _Worker, now: float) -> None:
        """Tell an idle worker to leave."""
        if worker in self._idle:
            self._idle.remove(worker)
        worker.state = _State.LEAVING
        with contextlib.suppress(wire.WireError):
            worker.channel.send(wire.EXIT_FRAME)
        self._timers.set((worker.id, "grace"), now + self._kill_grace_s, (self._kill, worker))
        self.wake()

    # --- deaths --------------------------------------------------------------------------------

    def _died(self, worker: _Worker) -> None:
        """A worker's process has ended, however that came about."""
        state = worker.state
        if state is _State.STARTING:
            self._starting -= 1
        elif state is _State.IDLE:
            self._idle.remove(worker)
        worker.state = _State.DYING
        not_begun = worker.channel.revoke() + len(worker.outbox)
        worker.outbox = []
        never_began = not_begun > len(worker.ahead)
        self._give_back(worker, min(not_begun, len(worker.ahead)))
        self._read_rest(worker)
        leave = worker.process.reap() or birth.Exit()
        self._bury(worker)
        if not self._workers:
            self._spawn_not_before = 0.0
        self._blame(worker, leave, never_began=never_began)
        if state is _State.STARTING or worker.start_error is not None or worker.start_late:
            self._start_failed(deaths.start_failure_text(leave, error=worker.start_error, fault=worker.fault))
        elif state is _State.IDLE:
            self._note_idle_death()

    def _read_rest(self, worker: _Worker) -> None:
        """Read what a dead worker had said, which still counts.

        All of it is there already, and no end need follow: what the worker forked may hold its pipes.
        """
        missing = -1
        while self._read(worker) or worker.channel.missing != missing:
            missing = worker.channel.missing

    def _blame(self, worker: _Worker, leave: birth.Exit, *, never_began: bool) -> None:
        """Settle what becomes of the attempts a dead worker had."""
        running = self._unassign(worker)
        self._give_back(worker, len(worker.ahead))
        if running is None:
            return
        if never_began and worker.stopping != "cancelled":
            self._require_host().returned(running)
            return
        struck = self._oom_watch.has_struck() if leave.signal == "SIGKILL" else None
        text = deaths.crash_text(worker.pid, leave, fault=worker.fault, oom_struck=struck)
        ended = Ended(
            "crash", worker.begun_at, time.monotonic(), message=text, pid=worker.pid, exit_code=leave.exit_code,
            signal=leave.signal, peak_rss_bytes=leave.max_rss_bytes,
        )  # fmt: skip
        if worker.stopping is not None:
            judge_stopped(ended, worker.stopping, running)
        self._host_ended(running, worker.fence, ended)

    def _bury(self, worker: _Worker) -> None:
        """Take a dead worker out of every table and close what is its."""
        del self._workers[worker.id]
        self._roomy.pop(worker, None)
        self._hungry.discard(worker)
        for kind in ("start", "grace", "deadline", "hang-up"):
            self._timers.discard((worker.id, kind))
        self._unwatch(worker.channel.result_fd)
        self._unwatch(worker.process.pidfd)
        self._unwatch_stream(worker)
        worker.process.close()

    def _note_idle_death(self) -> None:
        """Replace a worker that died idle, unless that happens all the time."""
        now = time.monotonic()
        deaths = self._idle_deaths
        deaths.append(now)
        while deaths and now - deaths[0] > _IDLE_DEATHS_PERIOD_S:
            deaths.popleft()
        if len(deaths) > _IDLE_DEATHS_MAX:
            self._wanted = len(self._workers)  # the next one starts when there is work for it

    # --- the selector --------------------------------------------------------------------------

    def _watch(self, fd: int, handler: Callable[[_Worker], object], worker: _Worker) -> None:
        self._handlers[fd] = (handler, worker)  # type: ignore[assignment]  # what a handler returns is ignored
        self._poller.register(fd, _READ)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, KeyError):  # closed already
                self._poller.unregister(fd)

    def _watch_stream(self, worker: _Worker) -> None:
        """Watch a worker's stream for what its channel waits for, if for anything."""
        channel = worker.channel
        mask = (_WRITE if channel.sending else 0) | (_READ if channel.receiving else 0)
        if channel.hung_up:  # else its end would be reported again and again
            mask = 0
        if mask == worker.stream_mask:
            return
        if not mask:
            self._unwatch_stream(worker)
        elif worker.stream_mask:
            self._poller.modify(channel.stream_fd, mask)
        else:
            self._handlers[channel.stream_fd] = (self._stream_moves, worker)
            self._poller.register(channel.stream_fd, mask)
        worker.stream_mask = mask

    def _unwatch_stream(self, worker: _Worker) -> None:
        worker.stream_mask = 0
        self._unwatch(worker.channel.stream_fd)

    def _stream_moves(self, worker: _Worker) -> None:
        """A worker's stream can be written or read."""
        channel = worker.channel
        if channel.sending and channel.flush():
            self._transfer_done(worker)
        if channel.receiving:
            self._read(worker)
        if worker.id in self._workers:
            self._watch_stream(worker)

    def _transfer_done(self, worker: _Worker) -> None:
        """A big payload has been written: only now does its attempt's time begin to run."""
        attempt = worker.running
        if attempt is not None and worker.state is _State.BUSY:
            worker.begun_at = time.monotonic()
            if attempt.timeout_s is not None:
                self._set_deadline(worker, worker.begun_at + attempt.timeout_s)

    def _close_descriptors(self) -> None:
        host = self._require_host()
        with host.lock:
            self._asleep = False
            self._poller.close()
            alarm_fd, self._alarm_fd = self._alarm_fd, -1
            os.close(alarm_fd)

    def _require_host(self) -> Host:
        assert self._host is not None, "the engine is not open"
        return self._host


def _first_packet(frames: list[wire.Frame]) -> list[wire.Frame]:
    """Return the first frames, as many as fit into one packet; at least one, as a big one is alone."""
    size = 0
    for count, frame in enumerate(frames):
        size += len(frame)
        if size > wire.PACKET_MAX and count:
            return frames[:count]
    return frames[:]


def _packet_bytes(attempt: Attempt) -> int:
    """Return about how many bytes an attempt takes in a pipe."""
    size = len(attempt.payload) + 4 * len(attempt.id) + 64
    for given in attempt.inputs:
        size += 8 + len(given.value or b"")
    return size
