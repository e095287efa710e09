"""The inline engine: attempts run in the thread that waits, on a clock that a test moves (DESIGN 6).

Theory of operation.  Nothing happens by itself.  Whoever waits for something calls `step` until
it has come: a step runs one attempt here, or moves the clock on to the next instant at which
something is due.  So a test of retries, delays and timeouts takes no time and always goes the
same way.  Calls, results and errors go through the same pickling as with workers.

A task lets time pass with `InlineContext.spend`, and meanwhile all happens that would happen
beside it: tasks expire, deadlines end, and where its own timeout ends or somebody stops it,
`Terminated` is raised in it.  Code that spends nothing takes no time.

Rule: nothing here reads a real clock or starts a thread.
"""

import contextlib
import io
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NoReturn, final

from procq.engine import attempt as attempts
from procq.engine.judgement import judge_stopped
from procq.engine.protocol import Attempt, Host, StopReason
from procq.engine.tail import Tail
from procq.errors import UsageError, WorkerStartError
from procq.inside import Context, Terminated, enter
from procq.outcome import Ended, class_names
from procq.parcel import Payload, copied
from procq.payload import load_call
from procq.slots import DEFAULT_GROUP
from procq.units import Duration, seconds

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from procq.outcome import Outcome

#: What a task is killed with when its grace is over.
_KILL: Final = "SIGKILL"


@final
class FakeClock:
    """A clock that stands still until it is moved (seconds, from 0).

    Attributes:
        now: The time.  It never goes backwards.
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0

    def __repr__(self) -> str:
        return f"<FakeClock at {self.now:g} s>"

    def advance(self, duration: Duration) -> None:
        """Let time pass in which no queue gets to do anything; what became due is then late.

        Raises:
            UnitError: `duration` is no duration.
        """
        self.now += seconds(duration, field="advance")


@final
class Died(BaseException):
    """Ends a task whose worker is made to die; not to be caught, as little as a death."""

    ends_attempt = True


@final
class _Run:
    """The attempt that runs, or is about to."""

    __slots__ = ("attempt", "death", "died_at", "ends_at", "fence", "gate", "kill_at", "stopping")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.fence = attempt.fence
        self.gate = attempts.Gate()
        #: when its timeout is used up
        self.ends_at: float | None = None
        #: why it is being stopped
        self.stopping: Outcome | None = None
        #: when its grace is over
        self.kill_at: float | None = None
        #: how its worker died, an exit code or the name of a signal, and when
        self.death: int | str | None = None
        self.died_at = 0.0


class _Sink(io.RawIOBase):
    """A file that keeps the last of what is written to it."""

    def __init__(self) -> None:
        self.tail = Tail()

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        written = bytes(data)
        self.tail.append(written)
        return len(written)


@final
class _Output:
    """Stands in for `sys.stdout` and `sys.stderr` while an attempt runs."""

    __slots__ = ("_sinks",)

    def __init__(self) -> None:
        self._sinks = (_Sink(), _Sink())

    @contextlib.contextmanager
    def redirected(self) -> Iterator[None]:
        stdout, stderr = (
            io.TextIOWrapper(io.BufferedWriter(sink), "utf-8", "backslashreplace", write_through=True)
            for sink in self._sinks
        )
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            yield
        for stream in (stdout, stderr):
            with contextlib.suppress(ValueError):  # the task closed it
                stream.flush()

    def texts(self) -> tuple[str, str]:
        stdout, stderr = self._sinks
        return stdout.tail.text(), stderr.tail.text()


@final
class InlineContext(Context):
    """Who the running attempt is, and what it can do to its fake surroundings."""

    __slots__ = ("_engine",)

    def __init__(self, engine: "InlineEngine", attempt: Attempt, deadline: float | None) -> None:
        super().__init__(attempt.id, attempt.attempt, deadline, partial(engine.progressed, attempt))
        self._engine = engine

    @property
    def remaining(self) -> float | None:
        """Seconds on the fake clock until `deadline`, at least 0; None without a timeout."""
        return None if self.deadline is None else max(0.0, self.deadline - self._engine.now())

    def spend(self, duration_s: float) -> None:
        """Let time pass in the attempt."""
        self._engine.spend(duration_s)

    def die(self, death: int | str) -> NoReturn:
        """End the attempt as the death of its worker would.

        Args:
            death: The worker's exit code, or the name of the signal that kills it.
        """
        self._engine.die(death)


@final
class InlineEngine:
    """Runs attempts in the thread that waits, one at a time.

    Args:
        clock: The clock, which only `step`, `spend` and the test move.
        seed: Of the draws for jitter.
        kill_grace_s: From asking an attempt to stop until it is killed, on the fake clock.
        initializer: The pickled call that a worker would make first, or nothing: made before the
            first attempt, and again after each death.
        groups: The groups that tasks may name; they take turns, as all runs in one thread.
        capture: Whether to take down what attempts write to `sys.stdout` and `sys.stderr`; not what
            C code and other programs write, for the descriptors are the test's own.
    """

    manual = True
    #: No worker has anything ahead, and none is ever added.
    roomy = ()
    growing = False

    def __init__(
        self,
        *,
        clock: FakeClock,
        seed: int = 0,
        kill_grace_s: float = 1.0,
        initializer: Payload = b"",
        groups: Iterable[str] = (DEFAULT_GROUP,),
        capture: bool = False,
    ) -> None:
        self.clock = clock
        #: draws for jitter, the same in every run
        self.draw = Random(seed).random  # noqa: S311 - jitter needs no secrecy
        self._kill_grace_s = kill_grace_s
        self._initializer = initializer
        self._initialized = not initializer
        self._capture = capture
        #: all here, one attempt at a time
        self.places: Mapping[str, InlineEngine] = dict.fromkeys(groups, self)
        self._host: Host | None = None
        #: held by the thread that takes a step
        self._turn = threading.Lock()
        self._driver: int | None = None
        #: whether an attempt may begin: only within a step, so that nothing runs at submit
        self._room = False
        self._run: _Run | None = None
        #: somebody who may not take the lock wants `tick` called
        self._alarmed = False
        self._broken = False
        self._closing = False
        self._closed = False

    # --- what the host asks (procq.engine.protocol.Engine) ---------------------------------------

    def now(self) -> float:
        """Read the fake clock."""
        return self.clock.now

    def open(self, host: Host) -> None:
        """Take note of whom to report to."""
        assert self._host is None, "an engine serves one queue"
        self._host = host

    @property
    def idle(self) -> tuple[()] | tuple["InlineEngine"]:
        """Where attempts could begin at once: here within a step, else nowhere."""
        return (self,) if self._room and self._run is None else ()

    def start(self, attempt: Attempt) -> None:
        """Note which attempt the step under way shall run."""
        self._run = _Run(attempt)

    def fits_ahead(self, _attempt: Attempt) -> bool:
        """Whether an attempt can be sent ahead: none can."""
        return False

    def send_ahead(self, attempt: Attempt) -> None:
        """There is no room ahead."""
        raise NotImplementedError

    def foresee(self, backlog: int) -> None:
        """One at a time, however many."""

    def look(self, now: float) -> None:
        """Nothing happens meanwhile."""

    def is_imminent(self, _attempt: Attempt) -> bool:
        """No attempt runs by itself."""
        return False

    def look_at(self, attempt: Attempt) -> bool:
        """Attempts run by themselves nowhere."""
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing is held back."""

    def take_back(self, attempt: Attempt) -> bool:
        """Nothing was sent ahead."""
        raise NotImplementedError

    def stop(self, attempt: Attempt, reason: StopReason, *, at_once: bool = False) -> bool:
        """Have the attempt stopped, or killed, the next time it spends time.

        Without that its code goes on to its end, as nothing else runs in its thread.

        Returns:
            Whether it runs.
        """
        run = self._run
        if run is None or run.attempt.seq != attempt.seq:
            return False
        self._stop(run, reason, grace_s=0.0 if at_once else self._kill_grace_s)
        return True

    def whereabouts(self, _attempt: Attempt) -> str:
        """Say where an attempt is that was started."""
        return "in the thread that waits"

    def resize(self, workers: int) -> None:
        """One attempt runs at a time, whatever is asked."""

    def wake(self, by: float | None = None) -> None:
        """Nothing sleeps: the next step looks by itself."""

    def alarm(self) -> None:
        """Have the next step look before it moves the clock."""
        self._alarmed = True

    def close(self, *, at_once: bool) -> None:  # noqa: ARG002 - there is nobody to let go
        """Have the next step say that all is over."""
        self._closing = True

    def states(self) -> dict[str, int]:
        """Count workers by what they do: there is one."""
        busy = int(self._run is not None)
        return {"idle": 1 - busy, "busy": busy}

    def step(self, until: float | None) -> bool:
        """Run one attempt here, or move the clock to the next instant at which something is due.

        Returns:
            False: nothing can happen before `until`, to which the clock was moved.

        Raises:
            UsageError: The attempt that runs here waits for its own queue.
        """
        if self._driver == threading.get_ident():
            raise UsageError("a task waits for the inline queue that runs it, which would never end")
        if not self._turn.acquire(blocking=False):
            with self._turn:
                return True  # another thread took a step: look whether that was enough
        self._driver = threading.get_ident()
        try:
            return self._step(until)
        finally:
            self._driver = None
            self._turn.release()

    # --- a step --------------------------------------------------------------------------------

    def _step(self, until: float | None) -> bool:
        host, clock = self._host, self.clock
        if until is not None and until < clock.now:
            return False
        if host is None or self._closed:
            return self._pass_until(until)
        if self._settle_present(host):
            return True
        with host.lock:
            due = host.next_due()
        if due is None or (until is not None and until < due):
            return self._pass_until(until)
        clock.now = max(clock.now, due)
        return True

    def _pass_until(self, until: float | None) -> bool:
        if until is not None:
            self.clock.now = max(self.clock.now, until)
        return False

    def _settle_present(self, host: Host) -> bool:
        """Do one thing that is to be done at this instant; return whether there was any."""
        with host.lock:
            due = host.next_due()
            happened = self._alarmed or (due is not None and due <= self.clock.now)
            self._alarmed = False
            host.tick(self.clock.now)
            host.settle()
            wants_worker = any(host.backlog(group) for group in self.places) and not self._broken
        if wants_worker and not self._initialized:
            self._initialize(host)
        with host.lock:
            self._room = not self._broken
            host.tick(self.clock.now)
            host.settle()
            self._room = False
            run = self._run
        if run is not None:
            self._perform(host, run)
            return True
        if self._closing:
            self._closed = True
            host.closed()
            return True
        return happened

    def _initialize(self, host: Host) -> None:
        """Do what a starting worker does first (contract H3, D11)."""
        try:
            fn, args, kwargs = load_call(copied(self._initializer), ())
            fn(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - an initializer is the user's code
            name, message, trace = attempts.describe(error)
            text = f"workers cannot start; the last time {name}: {message}\n{trace}".rstrip()
            now = self.clock.now
            ended = Ended("error", now, now, permanent=True, error_types=class_names(WorkerStartError), message=text)
            with host.lock:
                self._broken = True
                host.broken(ended)
        else:
            self._initialized = True

    def _perform(self, host: Host, run: _Run) -> None:
        """Run an attempt from its start to its report."""
        attempt = run.attempt
        timeout_s = attempt.timeout_s
        if timeout_s is not None:
            run.ends_at = self.clock.now + timeout_s
        before = enter(InlineContext(self, attempt, run.ends_at))
        # In memory of their own: nothing is sent away, and what the task writes must not be seen elsewhere (I1).
        call = copied(attempt.payload)
        inputs = [copied(given.value or b"") for given in attempt.inputs]
        output = _Output() if self._capture else None
        try:
            with contextlib.nullcontext() if output is None else output.redirected():
                ended = attempts.run(call, inputs, clock=self.now, gate=run.gate)
        finally:
            enter(before)
        if ended.value is not None:
            ended.value = copied(ended.value)
        ended = self._judge(run, ended)
        if output is not None:
            ended.stdout, ended.stderr = output.texts()
        listing = None
        if ended.spawned is not None:
            from procq.engine.spawning import listing_of  # noqa: PLC0415 - few queues need it

            listing = listing_of(ended)
        with host.lock:
            self._run = None
            if listing is not None and ended.outcome == "ok":
                host.spawned(attempt, run.fence, ended, listing)
            else:
                host.ended(attempt, run.fence, ended)
            host.tick(self.clock.now)
            host.settle()

    def _judge(self, run: _Run, ended: Ended) -> Ended:
        """Say how an attempt ended, given what happened to it meanwhile."""
        if run.stopping is None and run.ends_at is not None and ended.ended_at > run.ends_at:
            run.stopping = "timeout"  # the clock was moved past it by other means than `spend`
        if run.death is not None:
            ended = _death_report(run.death, ended.started_at, run.died_at)
        if run.stopping is not None:
            judge_stopped(ended, run.stopping, run.attempt)
        elif ended.terminated:
            ended = _death_report("SIGTERM", ended.started_at, ended.ended_at)
        if run.death is not None or run.stopping is not None or ended.outcome == "crash":
            self._initialized = not self._initializer  # its worker is never used again
        return ended

    def _stop(self, run: _Run, reason: "Outcome", *, grace_s: float) -> None:
        # A cancel outranks a timeout: it must not be retried (F3).
        if run.stopping is None or reason == "cancelled":
            run.stopping = reason
        kill_at = self.clock.now + grace_s
        run.kill_at = kill_at if run.kill_at is None else min(run.kill_at, kill_at)

    # --- what a running attempt asks -------------------------------------------------------------

    def progressed(self, attempt: Attempt, done: float, total: float) -> None:
        """Pass on how far an attempt is."""
        host = self._require_host()
        with host.lock:
            if self._run is not None and self._run.attempt is attempt:
                host.progressed(attempt, done, total)

    def spend(self, duration_s: float) -> None:
        """Let time pass in the running attempt, and all happen that happens meanwhile.

        Raises:
            Terminated: Its timeout was used up, or it was stopped.
            Died: Its grace was over.
        """
        host, run, clock = self._require_host(), self._require_run(), self.clock
        until = clock.now + duration_s
        while True:
            with host.lock:
                host.tick(clock.now)
                host.settle()
                if run.stopping is None and run.ends_at is not None and run.ends_at <= clock.now < until:
                    self._stop(run, "timeout", grace_s=self._kill_grace_s)
                if run.kill_at is not None and run.kill_at <= clock.now:
                    run.death = _KILL
                    run.died_at = clock.now
                instants = (until, run.kill_at if run.stopping else run.ends_at, host.next_due())
            if run.death is not None:
                raise Died
            if run.stopping is not None and run.gate.may_fire():
                raise Terminated
            if clock.now >= until:
                return
            clock.now = min(at for at in instants if at is not None and at > clock.now)

    def die(self, death: int | str) -> NoReturn:
        """End the running attempt as the death of its worker would.

        Raises:
            Died: Always.
        """
        run = self._require_run()
        if run.death is None:
            run.death = death
            run.died_at = self.clock.now
        raise Died

    def _require_host(self) -> Host:
        assert self._host is not None, "the engine is not open"
        return self._host

    def _require_run(self) -> _Run:
        assert self._run is not None, "no attempt runs"
        return self._run


def _death_report(death: int | str, started_at: float, died_at: float) -> Ended:
    """Report an attempt whose worker died."""
    code, signal = (death, None) if isinstance(death, int) else (None, death)
    how = f"exited with code {code}" if signal is None else f"was killed by {signal}"
    text = f"the worker {how} while it ran this task"
    return Ended("crash", started_at, died_at, message=text, exit_code=code, signal=signal)
