"""The picture of a run, folded from its events (docs/reference/events.md): what `run` shows while it goes.

    events --take--> Board --read--> live display, status, top, dash

It reads the stream of events and nothing else, so it can follow a run from outside as well as from inside.
It has no clock: it goes by the `t` of the events, and whoever asks says what time it is.

Streams have gaps, as events may be dropped, and other versions of procq write them.  So nothing here relies on
an event having come: a task that was never told of is known from the first event about it, with no type; an
attempt of which no end was told is over when its task goes on, or its worker does something else.

Rule: memory grows with what is open and never with what has ended, and an open task takes one entry in a `dict`
beside its id, which the queue holds anyway.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Final, NamedTuple, TypeAlias, TypeVar, final

from procq.cli.sketch import Sketch

Event: TypeAlias = Mapping[str, object]
_T = TypeVar("_T")

#: The statuses of a task in the order in which it goes through them, as events name them.
STATUSES: Final = ("blocked", "scheduled", "ready", "running", "succeeded", "failed", "cancelled")
_BLOCKED, _SCHEDULED, _READY, _RUNNING, _SUCCEEDED, _FAILED, _CANCELLED = range(len(STATUSES))
#: SCHEDULED for another attempt: told apart from a task that waits for its own time.
_RETRYING: Final = len(STATUSES)
#: An open task is one small number: its kind times this, and its status.
_STATES: Final = 16

#: How many failures are remembered, of how many open tasks the arguments, and of how many tasks that wait for
#: an instant which one that is: more than anybody looks at.
_FAILURES_MAX: Final = 100
_ARGS_MAX: Final = 10_000
_DUE_MAX: Final = 1_000
#: Kinds beyond this are not told apart by what else is known of them than their type.
_KINDS_MAX: Final = 10_000
#: Attempts that ended without their task having gone on; there are more only where events are missing.
_LOOSE_MAX: Final = 1_000
#: Throughput is that of so many seconds.
_WINDOW_S: Final = 10
_TEXT_MAX: Final = 300


class _Kind(NamedTuple):
    """What tasks have in common, so that it is kept once."""

    type: str
    max_attempts: int | None
    timeout_s: float | None


class Attempt(NamedTuple):
    """An attempt that runs."""

    task_id: str
    type: str  #: empty if that was not told
    args: str  #: a preview of the arguments; empty if there is none
    attempt: int
    max_attempts: int | None
    worker: int | None
    pid: int | None
    started_at: float
    timeout_s: float | None


class Failure(NamedTuple):
    """A task that failed for good."""

    task_id: str
    type: str
    args: str
    attempts: int
    max_attempts: int | None
    outcome: str  #: of its last attempt; empty if that was not told
    error: str  #: "ValueError: text", likewise
    at: float


class Worker(NamedTuple):
    """A worker that lives."""

    worker: int
    pid: int | None
    started_at: float


@final
class TypeRow:
    """What is known of the tasks of one type.

    Attributes:
        counts: Tasks by status, in the order of `STATUSES`.
        retrying: How many of the scheduled ones wait for another attempt.
        skipped: How many of the cancelled ones were so because of another task.
        retried: How many of those that succeeded needed more than one attempt.
        durations: Of the attempts that succeeded.
        peak_rss: The most that an attempt used, in bytes; 0: nothing is known.
    """

    __slots__ = ("counts", "durations", "peak_rss", "retried", "retrying", "skipped", "type")

    def __init__(self, type_name: str) -> None:
        self.type = type_name
        self.counts = [0] * len(STATUSES)
        self.retrying = 0
        self.skipped = 0
        self.retried = 0
        self.durations = Sketch()
        self.peak_rss = 0

    @property
    def remaining(self) -> int:
        """How many tasks have not ended."""
        return sum(self.counts[:_SUCCEEDED])


@final
class Board:
    """A run as its events have told it so far.

    Attributes:
        about: The fields of `run.started`: what the run is.
        types: Rows by type, in the order in which they were met.
        running: Attempts that run, by task, oldest first.
        due: When tasks go on that wait for an instant, by task; of the first of them if there are many.
        failures: The latest tasks that failed.
        workers: Those that live, by number.
        stopping: The mode and the cause of a shutdown that has begun; None: none has.
        all_known: Whether no further task can come.
        started_at: When the run began; None as long as nothing was told.
        ended_at: When it ended; None: it goes on.
        seen_at: The latest instant that was told of.
        warnings: How many there were.
    """

    __slots__ = (
        "_args", "_by_worker", "_early", "_ended", "_errors", "_kind_numbers", "_kinds", "_kinds_full", "_makers",
        "_open", "_per_second", "about", "all_known", "due", "ended_at", "failures", "running", "seen_at",
        "started_at", "stopping", "types", "warnings", "workers",
    )  # fmt: skip

    def __init__(self) -> None:
        self.about: dict[str, object] = {}
        self.types: dict[str, TypeRow] = {}
        self.running: dict[str, Attempt] = {}
        self.due: dict[str, float] = {}
        self.failures: deque[Failure] = deque(maxlen=_FAILURES_MAX)
        self.workers: dict[int, Worker] = {}
        self.stopping: tuple[str, str] | None = None
        self.all_known = False
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.seen_at = 0.0
        self.warnings = 0
        #: every task that has not ended: its kind and its status in one number
        self._open: dict[str, int] = {}
        self._kinds: list[_Kind] = []
        self._kind_numbers: dict[_Kind, int] = {}
        #: previews of the arguments of open tasks, as many as there is room for
        self._args: dict[str, str] = {}
        #: which task each worker is on
        self._by_worker: dict[int, str] = {}
        #: instants at which attempts ended of which no beginning was told yet
        self._early: dict[str, float] = {}
        #: what was wrong with attempts whose task has not gone on yet
        self._errors: dict[str, tuple[str, str]] = {}
        #: how many tasks have ended, and how many of them in which of the last seconds
        self._ended = 0
        self._per_second: deque[tuple[int, int]] = deque(maxlen=_WINDOW_S + 2)
        self._makers: Mapping[str, Callable[[Event, float], None]] = {
            "run.started": self._run_started,
            "run.stopping": self._run_stopping,
            "run.ended": self._run_ended,
            "task.submitted": self._task_submitted,
            "task.blocked": self._task_blocked,
            "task.scheduled": self._task_scheduled,
            "task.ready": self._task_ready,
            "task.replayed": self._task_replayed,
            "task.ended": self._task_ended,
            "attempt.started": self._attempt_started,
            "attempt.ended": self._attempt_ended,
            "worker.started": self._worker_started,
            "worker.ended": self._worker_ended,
            "warning": self._warning,
        }

    def take(self, event: Event) -> None:
        """Learn of an event; one of a kind that is not known is passed over."""
        at = _number(event.get("t"))
        if at is None:
            at = self.seen_at
        if self.started_at is None:
            self.started_at = at
        self.seen_at = max(self.seen_at, at)
        maker = self._makers.get(_text(event.get("ev")))
        if maker is not None:
            maker(event, at)

    # --- what is read ----------------------------------------------------------------------------

    @property
    def known(self) -> int:
        """How many tasks were told of."""
        return self._ended + len(self._open)

    @property
    def ended(self) -> int:
        """How many of them have ended."""
        return self._ended

    @property
    def ok(self) -> int:
        """How many tasks succeeded."""
        return self.counts[_SUCCEEDED]

    @property
    def failed(self) -> int:
        """How many failed."""
        return self.counts[_FAILED]

    @property
    def skipped(self) -> int:
        """How many were cancelled because of another task."""
        return sum(row.skipped for row in self.types.values())

    @property
    def retrying(self) -> int:
        """How many wait for another attempt."""
        return sum(row.retrying for row in self.types.values())

    @property
    def counts(self) -> list[int]:
        """Tasks by status, in the order of `STATUSES`."""
        return [sum(row.counts[status] for row in self.types.values()) for status in range(len(STATUSES))]

    @property
    def capacity(self) -> int:
        """How many attempts can run at once, as far as that is known; at least 1."""
        told = self.about.get("workers")
        return max(1, told if isinstance(told, int) else 0, len(self.workers))

    def args_of(self, task_id: str) -> str:
        """Return a preview of the arguments of an open task; empty if there is none."""
        return self._args.get(task_id, "")

    def elapsed_s(self, now: float) -> float:
        """Return how long the run has gone on, or went on if it has ended."""
        if self.started_at is None:
            return 0.0
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.started_at)

    def throughput(self, now: float) -> float:
        """Return how many tasks a second have ended of late."""
        since = now - _WINDOW_S
        lately = sum(number for second, number in self._per_second if since < second <= now)
        span = min(float(_WINDOW_S), self.elapsed_s(now))
        return lately / span if span > 0 else 0.0

    def eta_s(self, now: float) -> float | None:
        """Return how long the tasks that are known will take; None if nobody can tell.

        What remains of each type takes its median, and all workers work on it.  A type of which nothing has
        ended yet takes what the others do on average.
        """
        medians = {name: row.durations.quantile(0.5) for name, row in self.types.items()}
        known = [(median, self.types[name].durations.count) for name, median in medians.items() if median is not None]
        if not known:
            return None
        usual = sum(median * number for median, number in known) / sum(number for _, number in known)
        remaining = 0
        work_s = 0.0
        for name, row in self.types.items():
            median = medians[name]
            remaining += row.remaining
            work_s += row.remaining * (usual if median is None else median)
        for one in self.running.values():
            median = medians.get(one.type)
            work_s -= min(max(0.0, now - one.started_at), usual if median is None else median)
        return max(0.0, work_s) / max(1, min(self.capacity, remaining))

    # --- the run and its workers -----------------------------------------------------------------

    def _run_started(self, event: Event, at: float) -> None:
        self.about = dict(event)
        self.started_at = at

    def _run_stopping(self, event: Event, _at: float) -> None:
        mode = _text(event.get("mode"))
        self.stopping = mode, _text(event.get("cause"))
        if mode == "drain":  # begins when everything was submitted, and refuses whatever comes
            self.all_known = True

    def _run_ended(self, _event: Event, at: float) -> None:
        self.ended_at = at
        self.all_known = True
        self.running.clear()
        self._by_worker.clear()
        self.due.clear()

    def _worker_started(self, event: Event, at: float) -> None:
        number = _whole(event.get("worker"))
        if number is not None:
            self.workers[number] = Worker(number, _whole(event.get("pid")), at)

    def _worker_ended(self, event: Event, _at: float) -> None:
        number = _whole(event.get("worker"))
        if number is not None:
            self.workers.pop(number, None)
            self._let_go(number)

    def _warning(self, _event: Event, _at: float) -> None:
        self.warnings += 1

    # --- tasks -------------------------------------------------------------------------------------

    def _task_submitted(self, event: Event, _at: float) -> None:
        task_id = _text(event.get("id"))
        kind = _Kind(_text(event.get("type")), _whole(event.get("max_attempts")), _number(event.get("timeout")))
        state = self._open.pop(task_id, None)
        if state is not None:  # something was told of it before, or its id was taken again and that was not
            status = state % _STATES
            self._count(self._kinds[state // _STATES].type, status, -1)
            self._count(kind.type, status, 1)
        else:
            status = _READY  # what it waits for comes next, if there is anything
            self._count(kind.type, status, 1)
        self._open[task_id] = self._number_of(kind) * _STATES + status
        args = event.get("args")
        if isinstance(args, str) and args and len(self._args) < _ARGS_MAX:
            self._args[task_id] = args[:_TEXT_MAX]

    def _task_blocked(self, event: Event, _at: float) -> None:
        self._goes_on(_text(event.get("id")), _BLOCKED)

    def _task_scheduled(self, event: Event, at: float) -> None:
        task_id = _text(event.get("id"))
        is_retry = _text(event.get("reason")) in {"backoff", "retry_later"}
        self._goes_on(task_id, _RETRYING if is_retry else _SCHEDULED)
        if len(self.due) < _DUE_MAX:
            self.due[task_id] = at + (_number(event.get("in_s")) or 0.0)

    def _task_ready(self, event: Event, _at: float) -> None:
        self._goes_on(_text(event.get("id")), _READY)

    def _task_replayed(self, event: Event, _at: float) -> None:
        task_id = _text(event.get("id"))
        for failure in self.failures:
            if failure.task_id == task_id:
                self._count(failure.type, _FAILED, -1)
                self._ended -= 1
                self.failures.remove(failure)
                self._open[task_id] = (
                    self._number_of(_Kind(failure.type, failure.max_attempts, None)) * _STATES + _READY
                )
                self._count(failure.type, _READY, 1)
                return
        self._goes_on(task_id, _READY)  # of what type it was is forgotten: it counts as one more

    def _task_ended(self, event: Event, at: float) -> None:
        task_id = _text(event.get("id"))
        status = _ENDS.get(_text(event.get("status")))
        if status is None:
            return
        kind = self._kind_of(task_id)
        self._goes_on(task_id, status, forget_error=False)
        del self._open[task_id]
        args = self._args.pop(task_id, "")
        self._early.pop(task_id, None)
        outcome, error = self._errors.pop(task_id, ("", ""))
        self._ended += 1
        row = self.types[kind.type]
        attempts = _whole(event.get("attempts")) or 0
        if status == _SUCCEEDED:
            row.retried += attempts > 1
        elif status == _FAILED:
            failure = Failure(task_id, kind.type, args, attempts, kind.max_attempts, outcome, error, at)
            self.failures.append(failure)
        elif event.get("cause") == "dependency":
            row.skipped += 1
        second = int(at)
        last = self._per_second[-1] if self._per_second else None
        if last is not None and second <= last[0]:  # time goes back a little between attempts of two workers
            self._per_second[-1] = last[0], last[1] + 1
        else:
            self._per_second.append((second, 1))

    def _goes_on(self, task_id: str, status: int, *, forget_error: bool = True) -> None:
        """Note where a task is now; no attempt of it runs any more."""
        self._stop(task_id)
        if forget_error:
            self._errors.pop(task_id, None)
        self.due.pop(task_id, None)
        self._move(task_id, status)

    def _move(self, task_id: str, status: int) -> None:
        """Change the status of an open task."""
        state = self._open.get(task_id)
        if state is None:
            number = self._number_of(_Kind("", None, None))
        else:
            number, was = divmod(state, _STATES)
            self._count(self._kinds[number].type, was, -1)
        self._count(self._kinds[number].type, status, 1)
        self._open[task_id] = number * _STATES + status

    def _count(self, type_name: str, status: int, change: int) -> None:
        """Count a task of a type in a status, or no more."""
        row = self._row(type_name)
        if status == _RETRYING:
            row.retrying += change
            status = _SCHEDULED
        row.counts[status] += change

    def _row(self, type_name: str) -> TypeRow:
        row = self.types.get(type_name)
        if row is None:
            row = self.types[type_name] = TypeRow(type_name)
        return row

    def _kind_of(self, task_id: str) -> _Kind:
        state = self._open.get(task_id)
        return _Kind("", None, None) if state is None else self._kinds[state // _STATES]

    def _number_of(self, kind: _Kind) -> int:
        """Return the number of a kind, a new one if it was not met before."""
        number = self._kind_numbers.get(kind)
        if number is None:
            if len(self._kinds) >= _KINDS_MAX and kind[1:] != (None, None):
                return self._number_of(_Kind(kind.type, None, None))
            number = self._kind_numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        return number

    # --- attempts ----------------------------------------------------------------------------------

    def _attempt_started(self, event: Event, at: float) -> None:
        task_id = _text(event.get("id"))
        ended_at = self._early.pop(task_id, None)
        if ended_at is not None and at <= ended_at:  # its end was told before
            return
        worker = _whole(event.get("worker"))
        if worker is not None:
            self._let_go(worker)
        self._stop(task_id)
        self._move(task_id, _RUNNING)
        kind = self._kind_of(task_id)
        timeout_s = _number(event.get("timeout"))
        self.running[task_id] = Attempt(
            task_id=task_id,
            type=kind.type,
            args=self.args_of(task_id),
            attempt=_whole(event.get("attempt")) or 1,
            max_attempts=kind.max_attempts,
            worker=worker,
            pid=_whole(event.get("pid")),
            started_at=at,
            timeout_s=kind.timeout_s if timeout_s is None else timeout_s,
        )
        if worker is not None:
            self._by_worker[worker] = task_id

    def _attempt_ended(self, event: Event, at: float) -> None:
        task_id = _text(event.get("id"))
        if task_id in self.running:
            self._stop(task_id)
        elif task_id in self._open:
            _keep(self._early, task_id, at)
        row = self._row(self._kind_of(task_id).type)
        row.peak_rss = max(row.peak_rss, _whole(event.get("peak_rss")) or 0)
        outcome = _text(event.get("outcome"))
        if outcome == "ok":
            run_s = _number(event.get("run_s"))
            if run_s is not None:
                row.durations.add(run_s)
        else:
            _keep(self._errors, task_id, (outcome, _error_text(event)))

    def _stop(self, task_id: str) -> None:
        """Forget the attempt of a task that ran."""
        attempt = self.running.pop(task_id, None)
        if attempt is not None and attempt.worker is not None and self._by_worker.get(attempt.worker) == task_id:
            del self._by_worker[attempt.worker]

    def _let_go(self, worker: int) -> None:
        """Forget the attempt that a worker was on."""
        task_id = self._by_worker.get(worker)
        if task_id is not None:
            self._stop(task_id)

    def rows(self) -> Iterator[TypeRow]:
        """Yield the rows that have something to tell, in the order in which their types were met."""
        return (row for row in self.types.values() if any(row.counts))


_ENDS: Final[Mapping[str, int]] = {"succeeded": _SUCCEEDED, "failed": _FAILED, "cancelled": _CANCELLED}


def _keep(loose: dict[str, _T], task_id: str, what: _T) -> None:
    """Remember something for a moment, and the oldest no longer if there is too much."""
    if len(loose) >= _LOOSE_MAX:
        del loose[next(iter(loose))]
    loose[task_id] = what


def _error_text(event: Event) -> str:
    """Return "ValueError: text", or how the worker died."""
    error = event.get("error")
    if isinstance(error, Mapping):
        name = _text(error.get("type")).rpartition(".")[2]
        message = " ".join(_text(error.get("message"))[:_TEXT_MAX].split())
        return (f"{name}: {message}" if name and message else name or message)[:_TEXT_MAX]
    return _text(event.get("outcome"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) else None
