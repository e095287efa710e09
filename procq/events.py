"""The stream of events: what happens in a queue, told to whoever asked for it with `on_event`.

    scheduler, engine --Facts--> take (under the lock) --batches--> procq-events --dicts--> on_event

Under the queue's lock facts are only moved; a thread of their own makes events of them and calls the
listener, one at a time and in order.  So a listener may be slow, raise, or call the queue: it holds up
nobody but itself.  What waits for it is bounded, and what comes beyond that is dropped and counted.

docs/reference/events.md says what each kind has, and events.schema.json is what the tests hold it to.
"""

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Final, TypeAlias, cast, final

from procq.callback import CallbackThread
from procq.core.facts import Fact, Facts, Hold
from procq.core.states import Status
from procq.errors import UsageError
from procq.log import ERROR, Logger
from procq.spec import Options, is_async

if TYPE_CHECKING:
    from procq.core.rules import Rules
    from procq.core.task import Task

logger = Logger(__name__)

Event: TypeAlias = dict[str, object]
Listener: TypeAlias = Callable[[Event], object]
#: What `Queue(on_event=...)` takes.
OnEvent: TypeAlias = Listener | tuple[Listener, Iterable[str]]

#: Kinds that are told only to those who name them: there may be many of each for one task.
OPT_IN: Final = ("task.held", "attempt.progress", "log")

#: At most so many events wait for the listener; long texts count for more, one for each KiB.  A listener
#: that is busy with something else for a second, while workers do nothing but no-ops, falls behind by about
#: so many, and should not miss any for that.  They take 24 MB, or 100 MB if all is text (measured 2026-11),
#: and are told within 0.3 s; with more of them a listener that never catches up would take more memory.
WAITING_MAX: Final = 100_000
#: Once events were dropped, others are taken down only when no more than such a share of that waits: what is missing
#: is then missing in a few long gaps, and there are as few warnings.
_REOPEN_SHARE: Final = 0.5

#: The fields of the kinds whose facts have them as they are told.
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "run.stopping": ("mode", "cause"),
    "task.blocked": ("id", "reason"),
    "task.ready": ("id", "reason"),
    "task.held": ("id", "reason"),
    "task.replayed": ("id", "attempts"),
    "attempt.progress": ("id", "attempt", "done", "total"),
    "log": ("id", "attempt", "level", "stream", "logger", "text"),
    "warning": ("id", "attempt", "level", "text"),
}


def as_listener(on_event: object) -> tuple[Listener, frozenset[str]]:
    """Return the listener and the opt-in kinds that it wants.

    Args:
        on_event: A callable, or a pair of one and an iterable of kinds.

    Raises:
        UsageError: It is neither, or a kind is none of `OPT_IN`.
    """
    kinds: object = ()
    listener = on_event
    if isinstance(on_event, tuple) and len(on_event) == 2:  # noqa: PLR2004 - a pair
        listener, kinds = on_event
    if not callable(listener) or isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise UsageError(f"on_event={on_event!r}: expected a callable, or a pair (callable, [kind, ...])")
    if is_async(listener):
        raise UsageError(f"on_event={on_event!r}: is an async function, which nobody would await; give a plain one")
    wanted = list(kinds)
    for kind in wanted:
        if kind not in OPT_IN:
            raise UsageError(f"on_event asks for {kind!r}: only {', '.join(OPT_IN)} can be asked for beside the others")
    return listener, frozenset(wanted)


@final
class Events:
    """Tells a listener what happens in one queue, from its making to the end of its shutdown.

    Args:
        on_event: Checked: as `as_listener` returns it.
        now: Reads the engine's clock.
        workers: How many workers the queue may have.

    Attributes:
        facts: Takes down what happens; its owner and the engine write to it under the queue's lock.
        thread: In which the listener is called.
        waiting_max: How many events may wait for the listener.
        tells_held: Whether the listener wants to know which tasks are held back.
    """

    __slots__ = (
        "_batches", "_done", "_errors", "_is_called", "_is_closed", "_listener", "_makers", "_now", "_offset",
        "_run", "_seq", "_started_at", "_tells_logs", "_tells_progress", "_told_held", "_version", "_worker_ids",
        "facts", "tells_held", "thread", "waiting_max",
    )  # fmt: skip

    def __init__(self, on_event: tuple[Listener, frozenset[str]], *, now: Callable[[], float], workers: int) -> None:
        self._listener, wanted = on_event
        self.tells_held = "task.held" in wanted
        self._tells_progress = "attempt.progress" in wanted
        self._tells_logs = "log" in wanted
        self.waiting_max: float = WAITING_MAX
        self.thread = CallbackThread("procq-events", "the events' thread")
        self._now = now
        self._started_at = now()
        #: what makes seconds since 1970 of an instant of the engine's; read once, so that no step of the
        #: system's clock makes anything look longer or shorter than it was
        self._offset = time.time() - self._started_at
        self._run = os.urandom(6).hex()
        #: found out here, as it takes imports, for which the thread might have to wait
        self._version = own_version()
        self.facts = Facts(self._find_room, with_output=self._tells_logs)
        self.facts.keep(("run.started", self._started_at, workers))
        #: facts that were taken, with what all until then weigh
        self._batches: deque[tuple[list[Fact], int]] = deque()
        #: what all weighs that was told; written by the thread alone
        self._done = 0
        #: whether the thread knows that there is something to be told
        self._is_called = False
        self._is_closed = False
        #: the tasks that were told to be held back and still are, by sequence number
        self._told_held: dict[int, Hold] = {}
        # From here on all is the thread's.
        self._seq = 0
        self._errors = 0
        #: which worker it is, by process id
        self._worker_ids: dict[int, int] = {}
        self._makers: Mapping[str, Callable[..., None]] = {
            "run.started": self._run_started,
            "run.ended": self._run_ended,
            "task.submitted": self._task_submitted,
            "task.scheduled": self._task_scheduled,
            "task.ended": self._task_ended,
            "attempt.started": self._attempt_started,
            "attempt.ok": self._attempt_ok,
            "attempt.failed": self._attempt_failed,
            "worker.started": self._worker_started,
            "worker.ended": self._worker_ended,
            **dict.fromkeys(_FIELDS, self._as_it_is),
        }

    # --- what happens beside the tasks; under the lock -------------------------------------------

    def stopping(self, mode: str, cause: str) -> None:
        """A shutdown has begun, or has become harsher."""
        self.facts.keep(("run.stopping", self._now(), mode, cause))

    def worker_started(self, worker_id: int, pid: int) -> None:
        """A worker's process was started."""
        self.facts.keep(("worker.started", self._now(), worker_id, pid))

    def worker_ended(self, worker_id: int, pid: int, reason: str) -> None:
        """A worker's process has ended."""
        self.facts.keep(("worker.ended", self._now(), worker_id, pid, reason))

    def held(self, held: "Iterable[tuple[Task, Hold]]") -> None:
        """Learn which tasks are next in line and may not start; each is told once while that lasts."""
        told, self._told_held = self._told_held, {}
        for task, reason in held:
            self._told_held[task.seq] = reason
            if told.get(task.seq) != reason:
                self.facts.held(task, reason, self._now())

    def progressed(self, task_id: str, attempt: int, done: float, total: float) -> None:
        """A running attempt said how far it is."""
        if self._tells_progress:
            self.facts.note(("attempt.progress", self._now(), task_id, attempt, _finite(done), _finite(total)))

    def logged(self, parts: Mapping[str, object]) -> None:
        """Something was logged in an attempt."""
        if self._tells_logs:
            at = cast("float", parts["created"]) - self._offset
            text = "\n".join(str(parts[name]) for name in ("message", "exc_text", "stack_info") if parts[name])
            self.facts.note(
                ("log", at, parts["task_id"], parts["attempt"], parts["levelname"], None, parts["name"], text)
            )
            self.facts.weigh(text)

    def warn(self, text: str) -> None:
        """Something is wrong with the queue itself."""
        self.facts.keep(("warning", self._now(), None, None, "WARNING", text))

    def take(self) -> None:
        """Move what happened on to the thread: the last act before the lock is given up."""
        facts = self.facts
        if facts.new and not self._is_closed:
            new, facts.new = facts.new, []
            self._batches.append((new, facts.weight))
            if not self._is_called:
                self._is_called = True  # before, as it may be done before `put` returns
                if not self.thread.put(self._tell_all):
                    self._is_called = False

    def _find_room(self) -> bool:
        """Return whether more facts may be taken down, and how many were not, if they may be again."""
        facts, done = self.facts, self._done
        if self._is_closed or facts.weight - done >= self.waiting_max * (_REOPEN_SHARE if facts.dropped else 1):
            return False
        facts.limit = done + self.waiting_max
        if facts.dropped:
            self._tell_dropped()
        return True

    def _tell_dropped(self) -> None:
        dropped, self.facts.dropped = self.facts.dropped, 0
        self.warn(f"on_event is too slow: {dropped} events were dropped")

    def close(self, counts: Mapping[Status, int]) -> None:
        """Say that all is over; nothing is told after that."""
        facts, now = self.facts, self._now()
        if facts.dropped:
            self._tell_dropped()
        facts.keep(("run.ended", now, counts, now - self._started_at, facts.cpu_s))
        self.take()
        self._is_closed = True
        facts.limit = 0
        self.thread.close()

    # --- the thread ------------------------------------------------------------------------------

    def _tell_all(self) -> None:
        """Tell the listener of all that was taken."""
        batches, makers = self._batches, self._makers
        while True:
            while batches:
                facts, weight = batches.popleft()
                for fact in facts:
                    makers[fact[0]](*fact)
                self._done = weight
            self._is_called = False
            if not batches:
                return
            self._is_called = True  # a batch came before that was seen

    def _as_it_is(self, kind: str, at: float, *about: object) -> None:
        """Tell a fact that has its kind's fields as they are told."""
        self._tell(kind, at, dict(zip(_FIELDS[kind], about, strict=True)))

    def _tell(self, kind: str, at: float, fields: Event) -> None:
        self._seq += 1
        try:
            self._listener({"v": 1, "seq": self._seq, "t": at + self._offset, "run": self._run, "ev": kind, **fields})
        except BaseException:
            # The user's code: whatever it raises harms nobody.  It is told once, since what is wrong with one
            # event is mostly wrong with all.
            self._errors += 1
            if self._errors == 1:
                with contextlib.suppress(BaseException):  # a handler of the program's may raise too
                    logger.log(ERROR, "on_event raised; from now on that is only counted", exc_info=True)

    def _run_started(self, _kind: str, at: float, workers: int) -> None:
        fields: Event = {
            "workers": workers,
            "pid": os.getpid(),
            "python": ".".join(map(str, sys.version_info[:3])),
            "procq": self._version,
            "host": os.uname().nodename,
        }
        self._tell("run.started", at, fields)

    def _run_ended(self, _kind: str, at: float, counts: Mapping[Status, int], elapsed_s: float, cpu_s: float) -> None:
        if self._errors > 1:
            logger.log(ERROR, "on_event raised %d times in all", self._errors)
        told = {str(status): number for status, number in counts.items()}
        self._tell("run.ended", at, {"counts": told, "elapsed": elapsed_s, "cpu_s": cpu_s})

    def _task_submitted(
        self, _kind: str, at: float, task_id: str, type_name: str, rules: "Rules", *about: object
    ) -> None:
        needs, due = cast("tuple[Iterable[str], float | None]", about)
        fields: Event = {
            "id": task_id,
            "type": type_name,
            "priority": rules.priority,
            "group": rules.group,
            "depends_on": list(needs),
            "run_at": None if due is None else due + self._offset,
            "max_attempts": rules.max_attempts,
        }
        self._tell("task.submitted", at, fields)

    def _task_scheduled(self, _kind: str, at: float, task_id: str, why: "str | Rules", in_s: float) -> None:
        if not isinstance(why, str):  # the task's rules: it waits for what they say
            why = "run_at" if isinstance(why, Options) and why.run_at is not None else "delay"
        self._tell("task.scheduled", at, {"id": task_id, "reason": why, "in_s": in_s})

    def _task_ended(self, _kind: str, at: float, task_id: str, status: Status, *about: object) -> None:
        attempts, cause, origin = about
        fields: Event = {
            "id": task_id,
            "status": status.value,
            "attempts": attempts,
            "cause": cause,
            "origin": origin,
        }
        self._tell("task.ended", at, fields)

    def _attempt_started(
        self, _kind: str, at: float, task_id: str, attempt: int, worker_id: int | None, pid: int | None
    ) -> None:
        if worker_id is None and pid is not None:  # it began and ended unseen
            worker_id = self._worker_ids.get(pid)
        self._tell("attempt.started", at, {"id": task_id, "attempt": attempt, "worker": worker_id, "pid": pid})

    def _attempt_ok(self, _kind: str, at: float, task_id: str, attempt: int, *about: object) -> None:
        run_s, cpu_s, peak_rss_bytes, result_bytes, *output = about
        fields: Event = {
            "id": task_id,
            "attempt": attempt,
            "outcome": "ok",
            "run_s": run_s,
            "cpu_s": cpu_s,
            "peak_rss": peak_rss_bytes or None,  # 0 is unknown
            "exit_code": None,
            "signal": None,
            "error": None,
            "result_bytes": result_bytes,
        }
        self._tell("attempt.ended", at, fields)
        self._tell_output(at, task_id, attempt, output)

    def _attempt_failed(self, _kind: str, at: float, task_id: str, attempt: int, *about: object) -> None:
        outcome, run_s, cpu_s, peak_rss_bytes, exit_code, signal, error_type, message, traceback, *output = about
        error = None
        if error_type is not None or message:
            error = {"type": error_type, "message": message, "traceback": traceback or None}
        fields: Event = {
            "id": task_id,
            "attempt": attempt,
            "outcome": outcome,
            "run_s": run_s,
            "cpu_s": cpu_s,
            "peak_rss": peak_rss_bytes or None,
            "exit_code": exit_code,
            "signal": signal,
            "error": error,
            "result_bytes": None,
        }
        self._tell("attempt.ended", at, fields)
        self._tell_output(at, task_id, attempt, output)

    def _tell_output(self, at: float, task_id: str, attempt: int, output: "Iterable[object]") -> None:
        """Tell what an attempt that has ended wrote, where that was captured and is asked for."""
        for stream, text in zip(("stdout", "stderr"), output, strict=False):
            if text:
                values = (task_id, attempt, None, stream, None, text)
                self._tell("log", at, dict(zip(_FIELDS["log"], values, strict=True)))

    def _worker_started(self, _kind: str, at: float, worker_id: int, pid: int) -> None:
        self._worker_ids[pid] = worker_id
        self._tell("worker.started", at, {"worker": worker_id, "pid": pid})

    def _worker_ended(self, _kind: str, at: float, worker_id: int, pid: int, reason: str) -> None:
        self._worker_ids.pop(pid, None)
        self._tell("worker.ended", at, {"worker": worker_id, "pid": pid, "reason": reason})


def _finite(number: float) -> float | None:
    """Return a number as JSON has it, which knows no infinity."""
    return number if isfinite(number) else None


def own_version() -> str | None:
    """Return procq's version; None if it was not installed as a package."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - 20 ms that only a listener needs

    try:
        return version("procq")
    except PackageNotFoundError:
        return None
