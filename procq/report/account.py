"""What happened in a run, taken down from its events in one pass.

Keeps columns of numbers, not events: a million attempts are some 100 MB.  Texts are kept for what went
wrong alone, cut to what a page can show.  Any event may be missing, its fields too, and kinds may be
unknown: a run that was killed tells no end, and a listener that fell behind left gaps.

Draws and words nothing; `procq.report.figures` makes numbers of the columns.
"""

import heapq
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import nan
from typing import Final, final

Event = Mapping[str, object]

#: The words for how attempts end, RUNNING for those of which no end is known; a column has their index.
OUTCOMES: Final = ("ok", "error", "timeout", "crash", "memory", "lost", "cancelled", "interrupted", "running")
OK: Final = OUTCOMES.index("ok")
RUNNING: Final = OUTCOMES.index("running")
#: Marks an attempt that was none.
_NONE: Final = -1
#: Outcomes that say nothing against the task: somebody stopped it, or nobody knows yet.
BLAMELESS: Final = frozenset(map(OUTCOMES.index, ("ok", "cancelled", "interrupted", "running")))

#: Where tasks are; the first is where one is between two events that say it.
STATUSES: Final = ("", "blocked", "scheduled", "ready", "running", "succeeded", "failed", "cancelled")
_PLACE: Final = {status: place for place, status in enumerate(STATUSES)}

#: So many failed tasks are told with all their attempts; of the others the page has the error alone.
DETAILED_MAX: Final = 200
#: Characters kept of a message, a traceback, and what an attempt wrote: enough to see what it was.
_MESSAGE_CHARS: Final = 2_000
_TRACEBACK_CHARS: Final = 12_000
_OUTPUT_CHARS: Final = 4_000
#: Characters of ids and types; procq's own ids are shorter, a user's may be anything.
_NAME_CHARS: Final = 200
_WARNINGS_MAX: Final = 50
#: The type of tasks whose beginning is missing.
_UNKNOWN: Final = "(unknown)"
#: Arguments are kept of so many tasks, beside those that failed: the table has no more rows.
ARGS_MAX: Final = 5_000


def number(value: object) -> float | None:
    """Return a value as a number, None if it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def text(value: object) -> str:
    """Return a value as text, empty if it is null."""
    return value if isinstance(value, str) else "" if value is None else str(value)


def cut(value: str, chars: int) -> str:
    """Return a text without its middle if it is longer than so many characters."""
    if len(value) <= chars:
        return value
    half = chars // 2
    return f"{value[:half]} [... {len(value) - 2 * half:,} characters left out ...] {value[-half:]}"


@dataclass(slots=True, kw_only=True)
class Try:
    """One attempt of a task in trouble, with its texts."""

    index: int  #: its place in the columns
    number: int
    outcome: str
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    exit_code: int | None = None
    signal: str = ""
    output: str = ""  #: the end of what it wrote and logged

    @property
    def error(self) -> str:
        """What went wrong, in a line."""
        if not self.error_type and not self.message:
            return self.ending or self.outcome
        name = self.error_type.rpartition(".")[2]
        told = " ".join(self.message.split())
        if not name or told == name or told.startswith(f"{name}: "):
            return told
        return f"{name}: {told}".removesuffix(": ")

    @property
    def ending(self) -> str:
        """How the process ended, if it did: the signal, or the exit code."""
        if self.signal:
            return f"killed by {self.signal}"
        return "" if self.exit_code is None else f"exit code {self.exit_code}"


@final
@dataclass(slots=True)
class Attempts:
    """All attempts in the order of their starts being told, a column each."""

    task: "array[int]" = field(default_factory=lambda: array("l"))  #: the task's index
    number: "array[int]" = field(default_factory=lambda: array("l"))
    start: "array[float]" = field(default_factory=lambda: array("d"))
    end: "array[float]" = field(default_factory=lambda: array("d"))
    wait: "array[float]" = field(default_factory=lambda: array("d"))  #: from READY to its start; nan: unknown
    cpu: "array[float]" = field(default_factory=lambda: array("d"))  #: nan: unknown
    rss: "array[float]" = field(default_factory=lambda: array("d"))  #: nan: unknown
    outcome: "array[int]" = field(default_factory=lambda: array("b"))  #: index in OUTCOMES
    lane: "array[int]" = field(default_factory=lambda: array("l"))  #: -1: no worker was told
    worker: "array[int]" = field(default_factory=lambda: array("l"))  #: -1: no worker was told

    def __len__(self) -> int:
        return len(self.task)


@final
@dataclass(slots=True)
class Tasks:
    """All tasks in the order in which they were first told of, a column each."""

    ids: list[str] = field(default_factory=list)
    type: "array[int]" = field(default_factory=lambda: array("l"))  #: index in `Account.types`
    status: bytearray = field(default_factory=bytearray)  #: index in STATUSES
    ready_at: "array[float]" = field(default_factory=lambda: array("d"))
    run_s: "array[float]" = field(default_factory=lambda: array("d"))  #: of all its attempts together
    tries: "array[int]" = field(default_factory=lambda: array("l"))  #: attempts that were begun
    max_attempts: "array[int]" = field(default_factory=lambda: array("l"))  #: 0: unknown

    def __len__(self) -> int:
        return len(self.ids)


@final
class Account:
    """What happened, as far as the events tell it.

    Args:
        events: Of one run, in order.

    Attributes:
        tasks: All tasks.
        attempts: All attempts, without those that their workers turned out not to have begun.
        types: Types of tasks, by index.
        needs: Pairs of indices of tasks, one after the other: a task, and one that it depends on.
        backoffs: Of an attempt the one before of the same task, which did not succeed; both by index.
        moves: Times at which tasks came to another place, and for each `8 * old + new`.
        errors: The error of each failed task in a line, by its index.
        failed: The attempts of the first failed tasks with their texts, by index.
        attempt_errors: The error of each attempt that has one, by its index.
        args: A preview of the arguments, by index: of the first tasks, and of those that did not succeed.
        origins: How many tasks were cancelled because of each task, by id.
        causes: How many tasks were cancelled for each cause.
        lanes: The workers that had each lane of the timeline, one after the other.
        worker_ends: How many workers ended for each reason.
        warnings: What the queue warned of, when and in words; the first ones.
        missing: How many events are known to be missing.
        started, stopping, ended: The events of the run itself; empty where they are missing.
        first_t, last_t: When the first and the last thing happened.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.tasks = Tasks()
        self.attempts = Attempts()
        self.types: list[str] = [_UNKNOWN]
        self.needs = array("l")
        self.backoffs: dict[int, int] = {}
        self.moves_at = array("d")
        self.moves = array("b")
        self.errors: dict[int, str] = {}
        self.failed: dict[int, list[Try]] = {}
        self.attempt_errors: dict[int, str] = {}
        self.args: dict[int, str] = {}
        self.origins: Counter[str] = Counter()
        self.causes: Counter[str] = Counter()
        self.lanes: list[list[int]] = []
        self.worker_ends: Counter[str] = Counter()
        self.warnings: list[tuple[float, str]] = []
        self.missing = 0
        self.started: Event = {}
        self.stopping: Event = {}
        self.ended: Event = {}
        self.first_t = 0.0
        self.last_t = 0.0

        self._index_by_id: dict[str, int] = {}
        self._index_by_type: dict[str, int] = {_UNKNOWN: 0}
        #: Attempts that have begun and not ended, by task.
        self._open: dict[int, int] = {}
        #: The last attempt of tasks whose last one did not succeed.
        self._unsuccessful: dict[int, int] = {}
        #: All attempts of tasks of which one did not succeed and that have not ended well since.
        self._troubled: dict[int, list[Try]] = {}
        #: What attempts wrote that have not ended, or whose tasks have not, by task and attempt.
        self._output: dict[tuple[int, int], str] = {}
        self._lane_by_worker: dict[int, int] = {}
        self._free_lanes: list[int] = []
        #: Why and because of whom each task was cancelled, as long as it is.
        self._cancelled: dict[int, tuple[str, str]] = {}
        self._texts: dict[str, str] = {}
        self._take(events)

    def _take(self, events: Iterable[Event]) -> None:
        """Take down all events, each by its kind."""
        takers: dict[object, Callable[[Event, float], None]] = {
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
            "log": self._log,
            "warning": self._warning,
        }
        seq: float = 0
        low, high = float("inf"), float("-inf")
        for event in events:
            at = event.get("t")
            if not isinstance(at, int | float):
                at = high if high > low else 0.0
            elif at < low:
                low = at
            high = max(high, at)
            this_seq = event.get("seq")
            if isinstance(this_seq, int):
                if this_seq > seq + 1:
                    self.missing += int(this_seq - seq - 1)
                seq = this_seq
            kind = event.get("ev")
            taker = takers.get(kind) if isinstance(kind, str) else None
            if taker is not None:
                taker(event, at)
        if high >= low:
            self.first_t, self.last_t = low, high
        self._close()

    def _close(self) -> None:
        """Give an end to what was still running, and lanes to attempts without a worker; count causes."""
        for index in self._open.values():
            self.attempts.end[index] = max(self.last_t, self.attempts.start[index])
        if _NONE in self.attempts.outcome:
            self._drop_none()
        self._pack_lanes()
        for cause, origin in self._cancelled.values():
            self.causes[cause] += 1
            if cause == "dependency":
                self.origins[origin] += 1

    def _drop_none(self) -> None:
        """Take the marked rows out, and name the others by their new places."""
        kept = [index for index, outcome in enumerate(self.attempts.outcome) if outcome != _NONE]
        place = {index: new for new, index in enumerate(kept)}
        for column in fields(self.attempts):
            old = getattr(self.attempts, column.name)
            setattr(self.attempts, column.name, array(old.typecode, map(old.__getitem__, kept)))
        self.backoffs = {place[this]: place[before] for this, before in self.backoffs.items()}
        self.attempt_errors = {place[index]: error for index, error in self.attempt_errors.items()}
        for tries in self.failed.values():
            for each in tries:
                each.index = place[each.index]

    def _pack_lanes(self) -> None:
        """Put attempts that no worker is told of into as few lanes as they fit in."""
        attempts = self.attempts
        homeless = sorted((i for i in range(len(attempts)) if attempts.lane[i] < 0), key=attempts.start.__getitem__)
        lanes: list[tuple[float, int]] = []
        for index in homeless:
            if lanes and lanes[0][0] <= attempts.start[index]:
                lane = heapq.heappop(lanes)[1]
            else:
                lane = len(self.lanes)
                self.lanes.append([])
            attempts.lane[index] = lane
            heapq.heappush(lanes, (attempts.end[index], lane))

    # The run itself.

    def _run_started(self, event: Event, _at: float) -> None:
        self.started = event

    def _run_stopping(self, event: Event, _at: float) -> None:
        self.stopping = event

    def _run_ended(self, event: Event, _at: float) -> None:
        self.ended = event

    def _warning(self, event: Event, at: float) -> None:
        if len(self.warnings) < _WARNINGS_MAX:
            self.warnings.append((at, cut(text(event.get("text")), _MESSAGE_CHARS)))

    # Tasks.

    def _task(self, event: Event) -> int:
        """Return the index of an event's task, which is new if nothing was told of it before."""
        task_id = event.get("id")
        if not isinstance(task_id, str):
            task_id = text(task_id)
        index = self._index_by_id.get(task_id)
        return self._new_task(task_id) if index is None else index

    def _new_task(self, task_id: str) -> int:
        tasks = self.tasks
        index = self._index_by_id[task_id] = len(tasks.ids)
        tasks.ids.append(task_id if len(task_id) <= _NAME_CHARS else cut(task_id, _NAME_CHARS))
        tasks.type.append(0)
        tasks.status.append(0)
        tasks.ready_at.append(nan)
        tasks.run_s.append(0.0)
        tasks.tries.append(0)
        tasks.max_attempts.append(0)
        return index

    def _type(self, name: str) -> int:
        """Return the index of a type."""
        index = self._index_by_type.get(name)
        if index is None:
            index = self._index_by_type[name] = len(self.types)
            self.types.append(cut(name, _NAME_CHARS))
        return index

    def _move(self, index: int, place: int, at: float) -> None:
        """Note that a task has come to another place."""
        status = self.tasks.status
        self.moves_at.append(at)
        self.moves.append(8 * status[index] + place)
        status[index] = place

    def _task_submitted(self, event: Event, _at: float) -> None:
        index = self._task(event)
        self.tasks.type[index] = self._type(text(event.get("type")) or _UNKNOWN)
        limit = event.get("max_attempts")
        if isinstance(limit, int):
            self.tasks.max_attempts[index] = min(max(limit, 0), 2**31 - 1)
        needs = event.get("depends_on")
        if isinstance(needs, list | tuple):
            for needed in needs:
                self.needs.extend((index, self._task({"id": needed})))
        args = event.get("args")
        if args:
            self.args[index] = cut(text(args), _NAME_CHARS)

    def _task_blocked(self, event: Event, at: float) -> None:
        self._move(self._task(event), _PLACE["blocked"], at)

    def _task_scheduled(self, event: Event, at: float) -> None:
        self._move(self._task(event), _PLACE["scheduled"], at)

    def _task_ready(self, event: Event, at: float) -> None:
        index = self._task(event)
        if event.get("reason") == "not_begun":
            self._take_back(index)
        self._move(index, _PLACE["ready"], at)
        self.tasks.ready_at[index] = at

    def _task_replayed(self, event: Event, _at: float) -> None:
        index = self._task(event)
        self.errors.pop(index, None)
        tries = self.failed.pop(index, None)
        if tries is not None:
            self._troubled[index] = tries
        self._cancelled.pop(index, None)

    def _task_ended(self, event: Event, at: float) -> None:
        index = self._task(event)
        self._take_back(index)
        status = _PLACE.get(text(event.get("status")), 0)
        self._move(index, status, at)
        self._unsuccessful.pop(index, None)
        tries = self._troubled.pop(index, [])
        if status == _PLACE["failed"]:
            self._task_failed(index, tries)
        elif status == _PLACE["cancelled"]:
            cause = text(event.get("cause")) or ("dependency" if event.get("origin") else "unknown")
            self._cancelled[index] = (cause, text(event.get("origin")))
        elif index >= ARGS_MAX:
            self.args.pop(index, None)
        if self._output:
            for each in range(self.tasks.tries[index] + 1):
                self._output.pop((index, each), None)

    def _task_failed(self, index: int, tries: list[Try]) -> None:
        last = tries[-1].error if tries else "(its attempts are missing in the events)"
        self.errors[index] = self._interned(cut(last, _NAME_CHARS))
        if len(self.failed) < DETAILED_MAX:
            for each in tries:
                each.output = self._output.get((index, each.number), "")
            self.failed[index] = tries

    def _interned(self, value: str) -> str:
        """Return the one copy of a text that many tasks may have."""
        return self._texts.setdefault(value, value)

    # Attempts.

    def _attempt_started(self, event: Event, at: float) -> None:
        index = self._task(event)
        lost = self._open.pop(index, None)
        if lost is not None:  # its end is missing
            self.attempts.end[lost] = max(at, self.attempts.start[lost])
        tasks, attempts = self.tasks, self.attempts
        tasks.tries[index] += 1
        nth, worker = event.get("attempt"), event.get("worker")
        attempts.task.append(index)
        attempts.number.append(nth if isinstance(nth, int) else tasks.tries[index])
        attempts.start.append(at)
        attempts.end.append(at)
        waited = at - tasks.ready_at[index]
        attempts.wait.append(0.0 if waited < 0 else waited)
        attempts.cpu.append(nan)
        attempts.rss.append(nan)
        attempts.outcome.append(RUNNING)
        if isinstance(worker, int):
            attempts.worker.append(worker)
            attempts.lane.append(self._lane(worker))
        else:
            attempts.worker.append(-1)
            attempts.lane.append(-1)
        this = len(attempts) - 1
        self._open[index] = this
        if self._unsuccessful:
            before = self._unsuccessful.pop(index, None)
            if before is not None:
                self.backoffs[this] = before
        self._move(index, _PLACE["running"], at)

    def _take_back(self, index: int) -> None:
        """Forget the attempt of a task that has begun: it turned out that its worker has not begun it.

        Its row is marked, and dropped at the end, since others may have come behind it.
        """
        this = self._open.pop(index, None)
        if this is None:
            return
        self.tasks.tries[index] -= 1
        self.attempts.outcome[this] = _NONE
        if this in self.backoffs:
            self._unsuccessful[index] = self.backoffs.pop(this)

    def _attempt_ended(self, event: Event, at: float) -> None:
        index = self._task(event)
        this = self._open.pop(index, None)
        run_s = number(event.get("run_s"))
        if this is None:  # its beginning is missing
            self._attempt_started({**event, "worker": None}, at - (run_s or 0.0))
            this = self._open.pop(index)
        attempts = self.attempts
        # Its worker's own figure: the end is told when the supervisor learns of it.
        attempts.end[this] = max(attempts.start[this], at) if run_s is None else attempts.start[this] + run_s
        self.tasks.run_s[index] += attempts.end[this] - attempts.start[this]
        cpu, rss = event.get("cpu_s"), event.get("peak_rss")
        if isinstance(cpu, int | float):
            attempts.cpu[this] = cpu
        if isinstance(rss, int | float):
            attempts.rss[this] = rss
        outcome = event.get("outcome")
        if outcome == "ok":
            attempts.outcome[this] = OK
            if index in self._troubled:
                self._troubled[index].append(Try(index=this, number=attempts.number[this], outcome="ok"))
        else:
            self._attempt_unsuccessful(index, this, event)
        self._move(index, 0, at)

    def _attempt_unsuccessful(self, index: int, this: int, event: Event) -> None:
        outcome = text(event.get("outcome"))
        self.attempts.outcome[this] = OUTCOMES.index(outcome) if outcome in OUTCOMES else OUTCOMES.index("lost")
        error = event.get("error")
        about = error if isinstance(error, Mapping) else {"message": error}
        exit_code = event.get("exit_code")
        one = Try(
            index=this,
            number=self.attempts.number[this],
            outcome=outcome or "lost",
            error_type=cut(text(about.get("type")), _NAME_CHARS),
            message=cut(text(about.get("message")), _MESSAGE_CHARS),
            traceback=cut(text(about.get("traceback")), _TRACEBACK_CHARS),
            exit_code=exit_code if isinstance(exit_code, int) else None,
            signal=cut(text(event.get("signal")), _NAME_CHARS),
        )
        self._troubled.setdefault(index, []).append(one)
        self._unsuccessful[index] = this
        self.attempt_errors[this] = self._interned(cut(one.error, _NAME_CHARS))

    def _log(self, event: Event, _at: float) -> None:
        """Keep the end of what an attempt wrote, until its task has ended well."""
        nth = event.get("attempt")
        key = (self._task(event), nth if isinstance(nth, int) else 0)
        told = text(event.get("text"))
        level = text(event.get("level"))
        line = f"{level}: {told}" if level else told
        self._output[key] = (self._output.get(key, "") + line.rstrip("\n") + "\n")[-_OUTPUT_CHARS:]

    # Workers.

    def _lane(self, worker: int) -> int:
        """Return the lane of a worker: its own, or that of one that has ended."""
        lane = self._lane_by_worker.get(worker)
        if lane is None:
            if self._free_lanes:
                lane = heapq.heappop(self._free_lanes)
            else:
                lane = len(self.lanes)
                self.lanes.append([])
            self._lane_by_worker[worker] = lane
            self.lanes[lane].append(worker)
        return lane

    def _worker_started(self, event: Event, _at: float) -> None:
        worker = event.get("worker")
        if isinstance(worker, int):
            self._lane(worker)

    def _worker_ended(self, event: Event, _at: float) -> None:
        self.worker_ends[text(event.get("reason")) or "unknown"] += 1
        worker = event.get("worker")
        if isinstance(worker, int):
            lane = self._lane_by_worker.pop(worker, None)
            if lane is not None:
                heapq.heappush(self._free_lanes, lane)
