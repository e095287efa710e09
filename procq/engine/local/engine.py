"""The local engine: spawned workers, driven by one thread that waits in one selector (DESIGN 2, 3).

    caller threads --start, send_ahead, take_back, stop--> Channel --> worker
    caller threads <--results, while they submit or wait (look, look_at)-- workers
    loop thread    <--results, deaths (pidfd), wake-ups, timers-- workers

Who touches what: everything of `LocalEngine` and of its parts is touched under the host's lock only,
by whichever thread holds it; the loop's thread gives the lock up while it waits in the selector,
and for the chores of `_turn`.  Nothing here unpickles, and nothing blocks while the lock is held.

The engine knows which attempt each worker runs and which ones wait ahead of it; priorities,
retries and graphs are the host's.  Its parts know nothing of it: `Crew` says which workers there
are, `Group` who of a group can take something, `Lookout` what the loop watches of them, `Patience`
how long they may keep it waiting; `Drive`, `Lending`, `Weighing` and `record.Intake` do what their
names say.

The kernel keeps count of what a worker has begun (`Channel`), so after a death the blame is certain:
what has not been begun comes back uncharged, results still in the pipe count, and the one attempt
that was begun and has no result is the culprit (D4).
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, final

from procq.engine.judgement import judge_stopped
from procq.engine.local import birth, deaths, patience, record, wire
from procq.engine.local.crew import Crew
from procq.engine.local.drive import Drive
from procq.engine.local.lending import Lending
from procq.engine.local.lookout import Lookout
from procq.engine.local.loop import Loop
from procq.engine.local.pace import UNKNOWN_S, Paces
from procq.engine.local.patience import Patience
from procq.engine.local.roster import LONG_S, SPAN_S, State, Worker
from procq.engine.protocol import Attempt, Host, StopReason
from procq.errors import WorkerStartError
from procq.outcome import Ended
from procq.parcel import Payload

if TYPE_CHECKING:
    from procq.draft import Listing
    from procq.engine.local.memory import MemoryWatch
    from procq.engine.local.weighing import Weighing
    from procq.outcome import Outcome

#: Attempts bigger than this are not sent ahead: what waits in a pipe must be one packet.
_AHEAD_MAX_BYTES: Final = wire.PACKET_MAX - 1024
#: From handing an attempt out until it begins, on a machine with other work to do; its time must
#: not be over before it has had it (D5).
_SETTING_OUT_S: Final = 0.005
#: A thread that submits without a pause holds the interpreter, and the loop's own gets it every 5 ms
#: only (`sys.getswitchinterval`): workers that end 64 tiny attempts in half a millisecond would idle.
#: So the caller's thread looks after them, this often.
_LOOK_EVERY_S: Final = 0.0003
#: While every worker has more to do, its reports can wait for so long: each would wake the loop, which
#: takes a processor from a worker for some 50 us (measured with attempts of 1 ms on 2 processors: 0.92
#: of them went into attempts without naps, 0.95 with).
_NAP_S: Final = 0.004
#: Shorter naps are not worth it.
_NAP_MIN_S: Final = 0.001
#: Between two looks at what waits behind attempts that may turn out long, at most.
_REVIEW_S: Final = 0.020
#: An attempt that should last no longer than this is looked for by the thread that waits for it.
_IMMINENT_S: Final = 0.00005
#: Reads after which a result that must be in the pipe already would have been read: what is in
#: the kernel's buffers is at most some MiB, and one read takes a tenth of one.  Who says more is
#: a flood, log records say, and must not hold up the loop.
_READS_MAX: Final = 64


@final
class LocalEngine:
    """Runs attempts in spawned processes on this machine (contract H).

    Args:
        groups: At most so many processes, by group.
        kill_grace_s: From asking an attempt to stop until its process group is killed.
        start_timeout_s: A worker that is not ready by then is killed.
        initializer: A pickled call that each worker makes first, or nothing.
        jobs: Files that serve as modules in the workers, by module name.
        max_tasks_per_worker: A worker is replaced after so many attempts; None: never.
        memory: How much memory workers may hold; None: as much as they like.
        capture: Whether to take down what attempts write to the standard streams.
    """

    manual = False

    def __init__(
        self,
        *,
        groups: Mapping[str, int],
        kill_grace_s: float = 1.0,
        start_timeout_s: float = 60.0,
        initializer: Payload = b"",
        jobs: Callable[[], Mapping[str, str]] = dict,
        max_tasks_per_worker: int | None = None,
        memory: "MemoryWatch | None" = None,
        capture: bool = False,
    ) -> None:
        self._host: Host | None = None
        #: whether the host wants to know where attempts begin
        self._tells_places = False
        self._loop = Loop()
        self._lookout = Lookout(self._loop, read=self._read, transferred=self._transfer_done, died=self._died)
        self._crew = Crew(
            self._lookout,
            self._loop.wake,
            limits=groups,
            kill_grace_s=kill_grace_s,
            start_timeout_s=start_timeout_s,
            initializer=initializer,
            jobs=jobs,
            tasks_per_worker=float("inf") if max_tasks_per_worker is None else max_tasks_per_worker,
            capture=capture,
            weighs=memory is not None,
        )
        self._drive = Drive(self._loop, self._crew, self._turn)
        self._patience = Patience(self._crew, self._lookout)
        self._records = record.Intake(self._lookout.watch_stream)
        self._lending = Lending(self._loop.alarm)
        self._weighing: Weighing | None = None
        if memory is not None:
            from procq.engine.local import weighing  # noqa: PLC0415 - few queues limit what workers hold

            self._weighing = weighing.Weighing(memory, self._loop, self._crew, self._stop)
        self._oom_watch = deaths.OomWatch()
        self._initializer = initializer
        # The crew's own tables, which are looked at all the time.
        self._workers = self._crew.workers
        self.places = self._crew.groups
        #: the group of every attempt, if there is but one: to ask each takes a tenth of what sending it ahead does
        self._only = next(iter(self.places.values())) if len(self.places) == 1 else None
        #: how many attempts wait ahead of workers
        self._ahead = 0
        self._paces = Paces()
        self._review_at = 0.0
        #: when a caller's thread looks what they have said, if the loop has not by then
        self._look_at = 0.0
        #: workers with something in their outbox
        self._to_flush: list[Worker] = []
        #: how long the next turn may sleep
        self._wait_s = self._nap_s = 0.0

    # --- what the host asks (procq.engine.protocol.Engine) ---------------------------------------

    now = staticmethod(time.monotonic)

    @property
    def turns(self) -> int:
        """How often the loop has woken; an idle queue's must not."""
        return self._loop.turns

    def open(self, host: Host) -> None:
        """Start the loop's thread.

        Raises:
            WorkerStartError: This is no Linux, or the system has no thread or descriptor to spare.
            UsageError: A module that is imported for a task starts it.
        """
        birth.check_platform()
        birth.check_not_imported()
        birth.prepare()
        if self._crew.is_closing:
            raise WorkerStartError("the start of this queue was interrupted, say by Ctrl-C; make a new Queue")
        self._host = host
        self._tells_places = host.wants_places
        try:
            self._drive.start(host)
        except (OSError, RuntimeError) as error:
            raise WorkerStartError(f"cannot start the queue: {error}") from error

    def start(self, attempt: Attempt) -> None:
        """Hand an attempt to the worker of its group that became idle last."""
        group = self._only or self.places[attempt.group]
        worker = group.idle.pop()
        worker.left -= 1
        worker.depth = worker.depth or 1
        worker.running_s = worker.expected_s = self._paces.expected_s(attempt.type, UNKNOWN_S)
        self._begin(worker, attempt, time.monotonic())
        self._post(worker, attempt, attempt.fence)
        group.mind_room(worker)
        if self._weighing is not None:
            self._weighing.begun(worker)

    def fits_ahead(self, attempt: Attempt) -> bool:
        """Whether an attempt fits in one packet."""
        size = len(attempt.payload) + 4 * len(attempt.id)
        for given in attempt.inputs:
            size += 8 + len(given.value or b"")
        return size <= _AHEAD_MAX_BYTES

    def send_ahead(self, attempt: Attempt) -> None:
        """Send an attempt to a busy worker, behind what it runs: the same one until that is full."""
        group = self._only or self.places[attempt.group]
        worker = next(iter(group.roomy))
        if not self._ahead:
            self._review_at = time.monotonic() + LONG_S
            self.wake(self._review_at)
        self._ahead += 1
        attempt.place = worker
        worker.append(attempt, self._paces.expected_s(attempt.type, UNKNOWN_S))
        self._post(worker, attempt, attempt.fence + 1)
        if not worker.has_room(group.share):
            del group.roomy[worker]

    def flush(self) -> None:
        """Send what was handed out since the last time, one packet to a worker."""
        to_flush, self._to_flush = self._to_flush, []
        for worker in to_flush:
            self._flush(worker)

    def take_back(self, attempt: Attempt) -> bool:
        """Take back all that the attempt's worker has not begun (DESIGN 3)."""
        worker = attempt.place
        assert isinstance(worker, Worker), f"{attempt.id!r} is not ahead"
        self._take_back_from(worker)
        if attempt.place is not worker:
            return True
        # The worker has begun it, so the results of those before it are in the pipe to us.
        for _ in range(_READS_MAX):
            if attempt.place is not worker or worker.running is attempt:
                return False
            self._read(worker)
        self._crew.condemn(worker, "it claimed tasks that it has not run")
        self._give_back(worker, len(worker.ahead))
        return True

    def stop(self, attempt: Attempt, reason: StopReason, *, at_once: bool = False) -> bool:
        """Ask a running attempt to stop, and kill it after the grace; or kill it at once."""
        worker = attempt.place
        return isinstance(worker, Worker) and worker.running is attempt and self._stop(worker, reason, at_once=at_once)

    def whereabouts(self, attempt: Attempt) -> str:
        """Say where an attempt is that was started or sent ahead."""
        worker = attempt.place
        if not isinstance(worker, Worker):
            return "on a worker"
        where = f"worker {worker.id} (pid {worker.pid})"
        if worker.running is attempt:
            return f"on {where}{', which was asked to stop it' if worker.stopping else ''}"
        return f"to {where}, where {worker.before(attempt)} are before it"

    def wake(self, by: float | None = None) -> None:
        """Have the loop take a turn soon, or by an instant; the lock is held."""
        self._loop.wake(by)

    def alarm(self) -> None:
        """Have the loop take a turn; may be called without the lock, at any moment."""
        self._loop.alarm()

    def close(self, *, at_once: bool) -> None:
        """Let all workers go, or kill them."""
        self._crew.close(at_once=at_once)

    def step(self, _until: float | None) -> bool:
        """Attempts run by themselves."""
        raise NotImplementedError

    def states(self) -> dict[str, int]:
        """Count workers by what they do."""
        return self._crew.states()

    def pids(self) -> list[int]:
        """Return the process ids of the workers."""
        return [worker.pid for worker in self._workers.values()]

    # --- the loop ------------------------------------------------------------------------------

    def _turn(self, host: Host) -> bool:
        """Wait, then handle what happened; False when all is over."""
        events = self._loop.poll(self._wait_s, self._nap_s)
        with host.lock:
            host.check_whole()
            self._loop.handle(events)
            now = time.monotonic()
            self._look_at = now + _LOOK_EVERY_S
            if now >= self._review_at:
                self._review(now)
            self._loop.ring_timers(now)
            if self._lending.is_due:
                self._lending.forget(self._workers.values())
            host.tick(now)
            chores = self._crew.chores(host, now)
            if self._weighing is not None:
                chores += self._weighing.chores(host)
            self._wait_s = 0.0 if chores else self._plan(host)
            self._nap_s = self._spare_s(now) if self._ahead else 0.0
            is_over = self._crew.is_closing and not self._workers
            # Last: whoever is woken here needs the interpreter, which this thread gives up in `poll`.
            host.settle()
        for chore in chores:
            chore()
        if chores:
            self._prepare()
        return not is_over

    @staticmethod
    def _prepare() -> None:
        """Import what a big result needs, while workers start and the lock is free.

        Not when it comes: an import may have to wait, for another thread's or for ever, if a handler of the
        program's own has broken one off; and that would be with the lock held.  What a `Spawn` needs is
        imported with the first one all the same: `json` is 2 ms, which every short program would pay.
        """
        import mmap  # noqa: PLC0415 - half a millisecond, where nobody waits for it

        del mmap

    def _plan(self, host: Host) -> float:
        """Decide how long to sleep; the lock is held."""
        now = time.monotonic()
        review_at = self._review_at if self._ahead else None
        return self._loop.plan((host.next_due(), review_at, self._crew.births_at(host, now)), now)

    def _spare_s(self, now: float) -> float:
        """Return how long no worker needs to be heard: all have twice as much to do; at most `_wait_s`.

        Not one of another group that idles either: it may be given something meanwhile.
        """
        spare_s = min(_NAP_S, self._wait_s)
        for worker in self._workers.values():
            if not worker.ahead or worker.dropping or worker.channel.receiving:
                return 0.0
            spare_s = min(spare_s, (worker.begun_at + worker.expected_s - now) / 2)
        return spare_s if spare_s >= _NAP_MIN_S else 0.0

    # --- attempts ------------------------------------------------------------------------------

    def _begin(self, worker: Worker, attempt: Attempt, at: float) -> None:
        """Note what a worker runs from now on."""
        worker.running = attempt
        worker.fence = attempt.fence
        worker.begun_at = at
        worker.bulky = False
        worker.is_told = True
        attempt.place = worker
        if self._tells_places:
            self._require_host().placed(attempt, worker.id, worker.pid)
        if worker.output is not None:
            worker.output.begin()
        if worker.state is State.DYING:  # all that is left to know is how the attempt ended
            return
        worker.state = State.BUSY
        if attempt.timeout_s is not None:
            # Not from `at`: the worker may have been busy since then with sending a big result.
            self._set_deadline(worker, time.monotonic() + _SETTING_OUT_S + attempt.timeout_s)

    def _set_deadline(self, worker: Worker, at: float) -> None:
        self._lookout.set_timer(worker, "deadline", at, self._overdue)

    def _post(self, worker: Worker, attempt: Attempt, fence: int) -> None:
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

    def _flush(self, worker: Worker) -> None:
        """Send a worker what is in its outbox; one that cannot be reached has met its end."""
        while worker.outbox:  # else it was taken back
            packet = worker.first_packet()
            try:
                sent = worker.channel.send_tasks(packet)
            except wire.WireError as error:
                del worker.outbox[: len(packet)]
                self._take_back_from(worker)
                self._crew.condemn(worker, str(error))
                return
            if not sent:
                self._return_unsent(worker)
                return
            del worker.outbox[: len(packet)]
        if worker.channel.sending:  # its time runs once it has everything
            if worker.running is not None and worker.running.timeout_s is not None:
                self._set_deadline(worker, worker.begun_at + patience.TRANSFER_S + worker.running.timeout_s)
            self._lookout.watch_stream(worker)

    def _return_unsent(self, worker: Worker) -> None:
        """Give back what found the pipe full, which a few big packets make it."""
        unsent = worker.empty_outbox()
        is_idle = unsent > len(worker.ahead)
        worker.cut_depth()
        self._give_back(worker, min(unsent, len(worker.ahead)))
        if is_idle:  # so it has read all, and yet there is no room
            self._return_running(worker)
            self._crew.condemn(worker, "it takes no task")
        worker.group.mind_room(worker)

    def _unassign(self, worker: Worker) -> Attempt | None:
        """Take note that a worker runs nothing any more, and return what it ran."""
        attempt = worker.running
        if attempt is not None:
            worker.running = attempt.place = None
            worker.group.roomy.pop(worker, None)
            if attempt.timeout_s is not None:
                self._lookout.drop_timer(worker, "deadline")
        return attempt

    def _read(self, worker: Worker) -> bool:
        """Read what a worker has said, at most some thousand messages, and act on it.

        Returns:
            Whether there was a whole message.
        """
        inbox = worker.inbox
        if not inbox:  # else a message led here: those behind it come first
            channel = worker.channel
            try:
                inbox += channel.receive()
            except wire.WireError as error:
                self._lookout.unwatch_stream(worker)
                self._crew.condemn(worker, f"it sent what is no message ({error})")
                return False
            if channel.receiving is not worker.speaking:
                self._patience.mind_message(worker)
            if not inbox:
                if channel.hung_up:
                    self._patience.hung_up(worker)
                return False
        self._hear(worker)
        return True

    def _hear(self, worker: Worker) -> None:
        """Act on what a worker has said; the hot path.

        Of the attempts that were ahead only the one that runs in the end is told to the host and
        gets a deadline: the others have begun and returned already.
        """
        host = self._require_host()
        note = self._paces.note
        now = time.monotonic()
        inbox = worker.inbox
        while inbox:
            message = inbox.popleft()
            if not isinstance(message, tuple):
                self._tell_begun(worker)
                self._hear_other(worker, message)
                continue
            seq, fence, value, started_at, ended_at, cpu_s, peak_rss_bytes = message
            attempt = worker.running
            if attempt is None or attempt.seq != seq or worker.fence != fence:
                self._crew.condemn(worker, "it reported an attempt that it was not given")
                break
            # The clock is one for all processes of a machine; what a worker says is bounded all the same.
            if not worker.begun_at <= ended_at <= now:
                ended_at = min(max(ended_at, worker.begun_at), now)
            if not 0.0 <= started_at <= ended_at:
                started_at = ended_at
            if worker.stopping is not None:
                ended = Ended("ok", started_at, ended_at, value=value, cpu_s=cpu_s, peak_rss_bytes=peak_rss_bytes)
                self._ended(worker, attempt, ended)
                continue
            note(attempt.type, ended_at - started_at)
            if attempt.timeout_s is not None and worker.is_told:
                self._lookout.drop_timer(worker, "deadline")
            attempt.place = None
            if worker.ahead:
                worker.begin_next(ended_at)
                self._ahead -= 1
            else:
                worker.running = None
                worker.group.roomy.pop(worker, None)
                self._rest(worker)
            host.succeeded(attempt, fence, value, (started_at, ended_at, worker.pid, cpu_s, peak_rss_bytes))
        self._tell_begun(worker)

    def _tell_begun(self, worker: Worker) -> None:
        """Tell the host of the attempt that a worker has begun, if it does not know."""
        attempt = worker.running
        if attempt is None or worker.is_told:
            return
        self._require_host().began(attempt, worker.begun_at)
        self._begin(worker, attempt, worker.begun_at)
        worker.group.hungry.add(worker)

    def _hear_other(self, worker: Worker, message: wire.OtherMessage) -> None:
        """Act on a message that is no success."""
        match message:
            case wire.Report():
                attempt = worker.running
                if attempt is None or attempt.seq != message.seq or worker.fence != message.fence:
                    self._crew.condemn(worker, "it reported an attempt that it was not given")
                else:
                    self._reported(worker, attempt, message.ended)
            case wire.Ready():
                self._crew.ready(worker)
            case wire.Progress():
                if worker.running is not None and (worker.running.seq, worker.fence) == (message.seq, message.fence):
                    self._require_host().progressed(worker.running, message.done, message.total)
            case wire.Record():
                self._records.take(self._require_host(), worker, message)
            case wire.StartFailed():
                worker.start_error = message
            case wire.Dropped():
                self._dropped(worker)
            case wire.Wanted():
                self._wanted(worker, message.key)
            case wire.Forgotten():
                self._lending.answered(worker)

    def _wanted(self, worker: Worker, key: int) -> None:
        """A worker needs shared memory: it gets what its call refers to."""
        call = self._initializer if worker.running is None else worker.running.payload
        try:
            self._lending.lend(worker, call, key)
        except wire.WireError as error:
            self._crew.condemn(worker, str(error))

    def look(self, now: float) -> None:
        """Read in a caller's thread what workers have said, if the loop has not for a while."""
        if now < self._look_at or not self._workers:  # without those the loop may not even be open
            return
        self._look_at = now + _LOOK_EVERY_S
        for worker in self._lookout.speakers():
            if worker.state is State.BUSY and not worker.log_held:
                self._read(worker)

    def is_imminent(self, attempt: Attempt) -> bool:
        """Whether an attempt runs that should end within the time that it takes to fall asleep and wake."""
        worker = attempt.place
        return isinstance(worker, Worker) and worker.running is attempt and worker.running_s < _IMMINENT_S

    def look_at(self, attempt: Attempt) -> bool:
        """Read in a caller's thread what the worker of an attempt has said."""
        worker = attempt.place
        return isinstance(worker, Worker) and worker.state is State.BUSY and not worker.log_held and self._read(worker)

    def _reported(self, worker: Worker, attempt: Attempt, ended: Ended) -> None:
        """A worker has reported that its attempt ended otherwise than by a plain success."""
        ended.ended_at = min(max(ended.ended_at, worker.begun_at), time.monotonic())
        ended.started_at = min(max(ended.started_at, 0.0), ended.ended_at)
        listing = None
        if ended.spawned is not None:
            from procq.engine.spawning import MalformedError, listing_of  # noqa: PLC0415 - few queues need it, and `json`

            try:
                listing = listing_of(ended)
            except MalformedError as error:
                self._crew.condemn(worker, f"it sent what is no message ({error})")
                return
        self._ended(worker, attempt, ended, listing)

    def _ended(self, worker: Worker, attempt: Attempt, ended: Ended, listing: "Listing | None" = None) -> None:
        """A worker's attempt has ended otherwise than by returning, or was being stopped, or brings more tasks."""
        ended.pid = worker.pid
        fence = worker.fence
        if worker.output is not None:
            worker.output.add_to(ended)
        self._paces.note(attempt.type, ended.ended_at - ended.started_at)
        self._unassign(worker)
        if worker.stopping is not None:
            self._judge_stopped(worker, ended, worker.stopping, attempt)
            self._crew.kill(worker)
        elif ended.terminated:
            ended.outcome, ended.signal = "crash", "SIGTERM"
            ended.message = f"the worker (pid {worker.pid}) was ended by SIGTERM from outside"
            ended.value, ended.error_types, ended.permanent = None, (), False
            self._crew.kill(worker)
        else:
            self._go_on(worker, ended.ended_at)
        if listing is not None and ended.outcome == "ok":
            self._require_host().spawned(attempt, fence, ended, listing)
        else:
            self._require_host().ended(attempt, fence, ended)

    def _go_on(self, worker: Worker, at: float) -> None:
        """A worker has ended an attempt: it begins what waits ahead, or is idle."""
        if worker.ahead:
            worker.begin_next(at)
            self._ahead -= 1
            self._tell_begun(worker)
        else:
            self._rest(worker)

    def _rest(self, worker: Worker) -> None:
        """A worker has nothing more to run."""
        if worker.state is not State.BUSY:
            return
        if worker.dropping:  # it has nothing to do but to answer
            self._patience.await_answer(worker)
        else:
            self._to_idle(worker)

    def _to_idle(self, worker: Worker) -> None:
        worker.state = State.IDLE
        is_used_up = worker.left <= 0 or (self._weighing is not None and self._weighing.has_stayed_heavy(worker))
        if is_used_up or worker.group.too_many():
            self._crew.let_go(worker, "recycled" if is_used_up else "resize")
        else:
            worker.group.idle.append(worker)

    def _review(self, now: float) -> None:
        """Take back what waits behind attempts that turned out long, and plan the next review."""
        next_at = now + _REVIEW_S
        for worker in self._workers.values():
            # What is big stays: nothing waits behind it, and to take it back costs the worker its life.
            if worker.running is None or worker.bulky or worker.running_s > SPAN_S:
                continue
            long_at = worker.begun_at + LONG_S + 2 * worker.running_s
            if now > long_at:
                worker.expect_long()
                self._take_back_from(worker)
                worker.group.mind_room(worker)
            elif worker.ahead:
                next_at = min(next_at, long_at)
        self._review_at = max(next_at, now + LONG_S)

    # --- stopping ------------------------------------------------------------------------------

    def _overdue(self, worker: Worker, moves_before: int = -1) -> None:
        """An attempt has used up its timeout (contract D5)."""
        overdue = worker.running
        for _ in range(_READS_MAX):  # it may have ended in time, and its report not been read yet
            if not self._read(worker):
                break
        if overdue is None or worker.running is not overdue or worker.state is not State.BUSY:
            return
        if worker.channel.receiving_big and worker.channel.moves != moves_before:
            # It has ended in time: its report is big, and may take its time as long as it moves on.
            handler = partial(self._overdue, moves_before=worker.channel.moves)
            self._lookout.set_timer(worker, "deadline", time.monotonic() + patience.TRANSFER_S, handler)
            return
        self._stop(worker, "timeout")

    def _stop(self, worker: Worker, reason: "Outcome", *, at_once: bool = False) -> bool:
        """Ask a worker's attempt to stop; it is killed after the grace, and never used again.

        Returns:
            Whether that was needed: not if the attempt turned out not to have begun, or to have ended.
        """
        attempt = worker.running
        if worker.state is State.BUSY:
            is_too_big = worker.bulky and reason == "memory"  # taken back, it would come again, and for ever
            if not is_too_big and self._take_back_from(worker) and reason == "timeout" and worker.running is None:
                self._crew.kill(worker)  # it has not begun its task for so long: it must be stopped, or stuck
            # It may have ended; it has if the worker has begun what is still ahead.
            for _ in range(_READS_MAX):
                if worker.running is not attempt or not (self._read(worker) or worker.ahead):
                    break
        if attempt is None or worker.running is not attempt:
            return False
        # A cancel outranks a timeout: it must not be retried (F3).
        if worker.stopping is None or reason == "cancelled":
            worker.stopping = reason
        if at_once:
            self._crew.kill(worker)
        elif worker.state is State.BUSY:
            self._crew.ask(worker)
        return True

    def _take_back_from(self, worker: Worker) -> bool:
        """Take back all that a worker has not begun, and give it to the host.

        Returns:
            Whether what it is to run was taken back too.
        """
        unsent = worker.empty_outbox()
        revoked = worker.channel.revoke()
        if not unsent + revoked:
            return False
        if revoked and worker.state is not State.DYING:
            worker.dropping = True
            with contextlib.suppress(wire.WireError):  # the pipe is shut: its death will tell
                if not worker.channel.drop():
                    self._crew.condemn(worker, "there is no room in its pipe")
        worker.cut_depth()
        was_running = unsent + revoked > len(worker.ahead)
        self._give_back(worker, min(unsent + revoked, len(worker.ahead)))
        if was_running:
            self._return_running(worker)
        worker.group.mind_room(worker)
        return was_running

    def _give_back(self, worker: Worker, number: int) -> None:
        """Give the last attempts ahead back to the host."""
        host = self._require_host()
        for _ in range(number):
            attempt = worker.pop_last()
            self._ahead -= 1
            attempt.place = None
            host.returned(attempt)

    def _return_running(self, worker: Worker) -> None:
        """Give what a worker was to run, and has not begun, back to the host."""
        if worker.bulky:  # what is left of it would have to be sent and read for nothing
            worker.departure = worker.departure or "recycled"
            self._crew.kill(worker)
        attempt = self._unassign(worker)
        if attempt is not None:
            worker.left += 1
            self._require_host().returned(attempt)
            self._go_on(worker, time.monotonic())

    def _dropped(self, worker: Worker) -> None:
        """A worker has forgotten what was taken back: it may be given more."""
        worker.dropping = False
        self._patience.answered(worker)
        if worker.running is not None:
            worker.group.mind_room(worker)
        elif worker.state is State.BUSY:
            self._to_idle(worker)

    @staticmethod
    def _judge_stopped(worker: Worker, ended: Ended, reason: "Outcome", attempt: Attempt) -> None:
        """Say how an attempt ended that was to be stopped."""
        judge_stopped(ended, reason, attempt)
        if ended.outcome == "memory":  # what it used, in place of how it died of that
            ended.message, ended.error_types = f"the worker (pid {worker.pid}) was killed because {worker.fault}", ()
            # The system tells no peak below that of the supervisor.
            ended.peak_rss_bytes = max(ended.peak_rss_bytes, worker.held_bytes)

    # --- deaths --------------------------------------------------------------------------------

    def _died(self, worker: Worker) -> None:
        """A worker's process has ended, however that came about."""
        state = self._crew.write_off(worker)
        not_begun = worker.channel.revoke() + worker.empty_outbox()
        never_began = not_begun > len(worker.ahead)
        self._give_back(worker, min(not_begun, len(worker.ahead)))
        self._read_rest(worker)
        leave = worker.process.reap() or birth.Exit()
        self._crew.bury(worker)
        self._blame(worker, leave, never_began=never_began)
        self._require_host().worker_ended(worker.id, worker.pid, worker.why_gone(was_ready=state is not State.STARTING))
        self._crew.mind_death(self._require_host(), worker, state, leave)

    def _read_rest(self, worker: Worker) -> None:
        """Read what a dead worker had said, which still counts.

        All of it is there already, and no end need follow: what the worker forked may hold its pipes.
        """
        moves = -1
        for _ in range(_READS_MAX):
            if not self._read(worker) and worker.channel.moves == moves:
                break
            moves = worker.channel.moves

    def _blame(self, worker: Worker, leave: birth.Exit, *, never_began: bool) -> None:
        """Settle what becomes of the attempts a dead worker had."""
        running = self._unassign(worker)
        self._give_back(worker, len(worker.ahead))
        if running is None:
            return
        # What is big may be what it died of: it might never begin anywhere, and be given back for ever.
        if never_began and not worker.bulky and worker.stopping != "cancelled":
            self._require_host().returned(running)
            return
        is_unread = never_began and worker.bulky
        unread = len(running.payload) + sum(len(given.value or b"") for given in running.inputs) if is_unread else 0
        struck = self._oom_watch.has_struck() if leave.signal == "SIGKILL" else None
        text = deaths.crash_text(worker.pid, leave, fault=worker.fault, oom_struck=struck, unread_bytes=unread)
        ended = Ended(
            "crash", worker.begun_at, time.monotonic(), message=text, pid=worker.pid, exit_code=leave.exit_code,
            signal=leave.signal, peak_rss_bytes=leave.max_rss_bytes,
        )  # fmt: skip
        if worker.output is not None:
            worker.output.add_to(ended)
        if worker.stopping is not None:
            self._judge_stopped(worker, ended, worker.stopping, running)
        self._require_host().ended(running, worker.fence, ended)

    # --- big payloads --------------------------------------------------------------------------

    def _transfer_done(self, worker: Worker) -> None:
        """A big payload has been written: only now does its attempt's time begin to run."""
        attempt = worker.running
        if attempt is not None and worker.state is State.BUSY:
            worker.begun_at = time.monotonic()
            if attempt.timeout_s is not None:
                self._set_deadline(worker, worker.begun_at + attempt.timeout_s)

    def _require_host(self) -> Host:
        assert self._host is not None, "the engine is not open"
        return self._host
