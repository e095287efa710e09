"""Why a task is not running, or how it ended, in words (contract F8).

Looks and changes nothing.  Asks in the order in which a task has to pass: has the queue begun, do its
dependencies stand in the way, an instant, its type, the slots, other tasks, and then a free worker.

`Explanation` is asked under the queue's lock.  `end_of` is not: it rebuilds the error, which may run
code of the user's.
"""

from collections.abc import Iterator
from typing import Final, final

from procq.core.states import TERMINAL, Status
from procq.core.task import Task
from procq.handle import error_of
from procq.slots import DEFAULT_GROUP, Demand
from procq.supervisor import Supervisor
from procq.units import format_bytes, format_seconds

#: So many of the dependencies that a task waits for are named.
_NAMED_MAX: Final = 5


@final
class Explanation:
    """What there is to say of one task that has not ended.

    Args:
        supervisor: Of its queue.
        task: The task.
    """

    __slots__ = ("_now", "_scheduler", "_supervisor", "_task")

    def __init__(self, supervisor: Supervisor, task: Task) -> None:
        self._supervisor = supervisor
        self._scheduler = supervisor.scheduler
        self._task = task
        self._now = supervisor.engine.now()

    def text(self) -> str:
        """Say it in one line; nothing of a task that has ended."""
        task = self._task
        if task.status in TERMINAL:
            return ""
        words = [*self._reasons()]
        if task.expires_at is not None and task.first_started_at is None:
            words.append(f"it expires in {self._until(task.expires_at)} unless it has started")
        return f"{task.id} is {task.status}: {'; '.join(words)}"

    def _reasons(self) -> Iterator[str]:
        task = self._task
        match task.status:
            case Status.BLOCKED:
                yield self._blocked()
            case Status.SCHEDULED:
                yield self._scheduled()
            case Status.READY:
                yield from self._ready()
            case Status.RUNNING:
                yield from self._running()
            case _:
                raise AssertionError(task.status)

    # --- what waits ----------------------------------------------------------------------------

    def _blocked(self) -> str:
        waits_for = [need for need in self._task.depends_on if need.status not in TERMINAL]
        named = ", ".join(f"{need.id} ({self._state(need)})" for need in waits_for[:_NAMED_MAX])
        more = len(waits_for) - _NAMED_MAX
        return f"waits for {named}{f' and {more} more' if more > 0 else ''}"

    def _state(self, need: Task) -> str:
        """Say in brief where a dependency is."""
        if need.status is Status.RUNNING and need.started_at is not None:
            return f"running for {format_seconds(self._now - need.started_at)}"
        due = self._scheduler.delayed.at(need.seq) if need.status is Status.SCHEDULED else None
        return str(need.status) if due is None else f"scheduled, due in {self._until(due)}"

    def _scheduled(self) -> str:
        task = self._task
        due = self._scheduler.delayed.at(task.seq)
        assert due is not None, f"{task} waits for no instant"
        if not task.history:
            return f"not before its time, due in {self._until(due)}"
        attempt, ended = task.history[-1]
        if ended.retry_after_s is not None:
            return f"attempt {attempt} asked to come back later, due in {self._until(due)}"
        of = f"{attempt} of {task.rules.max_attempts}"
        return f"attempt {of} ended in {ended.outcome}, waits before the next one, due in {self._until(due)}"

    def _ready(self) -> Iterator[str]:
        """Say what a task waits for that could start: the first thing that stands in its way."""
        task, supervisor = self._task, self._supervisor
        if not supervisor.opened:
            yield "the queue is not started"
        elif supervisor.dispatcher.paused:
            yield "the queue is paused"
        elif supervisor.stuck:
            yield supervisor.stuck
        elif task.seq in self._scheduler.ahead:
            yield f"sent ahead {supervisor.engine.whereabouts(task)}"
        elif held := (self._held_by_type() or self._held_by_slots() or self._held_by_memory()):
            yield held
        else:
            yield self._in_line()

    def _held_by_type(self) -> str:
        task = self._task
        gate = self._scheduler.gates.get(task.type)
        if gate is None or gate.open:
            return ""
        if gate.circuit is None or gate.circuit.admits:
            return f"type limit {gate.taken}/{gate.limit}: as many tasks of type {task.type!r} run as may"
        breaker = gate.circuit.breaker
        if gate.circuit.state == "open":
            until = self._until(gate.circuit.opened_until)
            return (
                f"the breaker of type {task.type!r} is open for {until} more, "
                f"after {_counted(breaker.failures, 'failure')} within {format_seconds(breaker.window_s)}"
            )
        return f"the breaker of type {task.type!r} is half-open, and a probe runs that decides"

    def _held_by_slots(self) -> str:
        task, scheduler = self._task, self._scheduler
        if not scheduler.fits(task):  # its own first: a worker that is free would not help
            return f"waits for {self._lacking(task.rules.demand)}"
        first = self._supervisor.dispatcher.held_for_slots()
        if first is None or not self._supervisor.engine.places[task.group].idle:
            return ""
        if scheduler.precedence(task) < scheduler.precedence(first):
            return ""
        return f"comes after {first.id}, which waits for {self._lacking(first.rules.demand)}"

    def _lacking(self, demand: Demand) -> str:
        """Say what of a demand is not free."""
        capacity = self._scheduler.capacity
        assert capacity is not None, "what was asked for more than it has"
        lacking = []
        if demand.cpus > capacity.free_cpus:
            lacking.append(f"{demand.cpus} cpus, {max(0, capacity.free_cpus)} of {capacity.cpus} are free")
        if demand.memory_bytes > capacity.free_bytes:
            free = f"{format_bytes(max(0, capacity.free_bytes))} of {format_bytes(capacity.memory_bytes)}"
            lacking.append(f"{format_bytes(demand.memory_bytes)} of memory, {free} are free")
        return ", and for ".join(lacking)

    def _held_by_memory(self) -> str:
        if not self._supervisor.dispatcher.is_short_of_memory:
            return ""
        return "less memory is available than min_free_memory, so nothing starts beside what runs"

    def _in_line(self) -> str:
        task = self._task
        before = self._scheduler.ready.before(task)
        places = self._supervisor.engine.places[task.group]
        if len(places.idle) > before:
            return "about to start"
        line = f"{before} tasks are ahead of it" if before != 1 else "1 task is ahead of it"
        ahead = f", {line}" if before else ", and it is next"
        whose = "" if task.group == DEFAULT_GROUP else f" of group {task.group!r}"
        if places.growing:
            return f"waits for a worker{whose} to start{ahead}"
        return f"no worker{whose} is free{ahead}"

    # --- what runs -----------------------------------------------------------------------------

    def _running(self) -> Iterator[str]:
        task = self._task
        assert task.started_at is not None, f"{task} has no start"
        ran_s = self._now - task.started_at
        where = self._supervisor.engine.whereabouts(task)
        ran = format_seconds(max(0.0, ran_s))
        yield f"attempt {task.attempt} of {task.rules.max_attempts} {where}, for {ran} so far"
        if task.rules.timeout_s is not None:
            yield f"its timeout ends it in {format_seconds(max(0.0, task.rules.timeout_s - ran_s))}"
        progress = self._supervisor.progress.get(task.seq)
        if progress is not None:
            yield f"it has done {progress[0]:g} of {progress[1]:g}"

    def _until(self, instant: float) -> str:
        return format_seconds(max(0.0, instant - self._now))


def end_of(task: Task) -> str:
    """Say in one line how a task has ended."""
    attempts = _counted(task.attempts, "attempt")
    if task.status is Status.SUCCEEDED:
        return f"{task.id} is succeeded, after {attempts}"
    error = error_of(task)
    if error is None:
        return f"{task.id} is {task.status}: it was replayed just now"
    first_line = str(error).partition("\n")[0]
    tried = f" after {attempts}" if task.status is Status.FAILED else ""
    return f"{task.id} is {task.status}{tried}: {type(error).__name__}: {first_line}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
