"""Turns specs into tasks: pickles their calls, finds what they depend on, orders and makes them (C4, C5, E1, E2).

A batch is what one submit brings: a spec, or a list of them, with every spec they depend on that
is not submitted yet.  Everything is pickled and checked before the queue accepts any of it, so a
refused call changes nothing.  Pickling happens in the caller's thread and without the lock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, final

from procq.core.task import Task
from procq.errors import (
    CycleError,
    DuplicateTaskError,
    PayloadError,
    UnknownDependencyError,
    UnknownHandlerError,
    UsageError,
)
from procq.handle import Handle, supervisor_of, task_of
from procq.parcel import Payload, marked
from procq.payload import NotPicklable, dump_call
from procq.spec import Options, TaskFunction, TaskSpec, type_of
from procq.supervisor import Supervisor

if TYPE_CHECKING:
    from datetime import datetime

Handlers = Mapping[str, Callable[..., object]]

#: So many ids are compared with an unknown one, the newest first: some milliseconds under the lock.
_COMPARED_MAX: Final = 2000


@final
class Draft:
    """A task to be: pickled, and its dependencies known by their sources."""

    __slots__ = ("depends_on", "id", "inputs", "options", "payload", "spec", "type")

    def __init__(self, spec: TaskSpec[Any], payload: Payload, inputs: list[object]) -> None:
        self.spec = spec
        self.options: Options = spec.options
        self.id = spec.options.id
        self.type = spec.type
        self.payload = payload
        #: what stands for results in the call, by number
        self.inputs = inputs
        #: every source this waits for; what gives an input does
        self.depends_on: list[object] = [*inputs, *spec.options.depends_on]

    @property
    def label(self) -> str:
        """Its id, or what kind of task it is."""
        return self.spec.label()


def pickle_call(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], name: str
) -> tuple[Payload, list[object]]:
    """Pickle a call and say what in it stands for results.

    Raises:
        PayloadError: It cannot be pickled; names the argument and the path to the culprit.
    """
    try:
        return dump_call(fn, args, kwargs)
    except NotPicklable as error:
        cause = error.__cause__ or error
        if isinstance(cause, UsageError):
            raise cause from None
        from procq.diagnosis import explain_unpicklable  # noqa: PLC0415 - only for an error's text

        bare = fn.fn if isinstance(fn, TaskFunction) else fn
        raise PayloadError(explain_unpicklable(bare, args, kwargs, name, cause)) from cause


def draft_all(
    specs: Iterable[TaskSpec[Any]], handlers: Handlers, known: Callable[[TaskSpec[Any]], bool]
) -> dict[TaskSpec[Any], Draft]:
    """Draft specs and all the unsubmitted specs that they depend on, each once.

    Args:
        specs: What the user submits.
        handlers: Functions by type, for specs without a function.
        known: Whether a spec is submitted already.

    Raises:
        UsageError: Something is no spec, has no handler, or cannot be pickled.
    """
    drafts: dict[TaskSpec[Any], Draft] = {}
    pending = list(specs)
    pending.reverse()  # a stack; the first comes first
    while pending:
        spec = pending.pop()
        if not isinstance(spec, TaskSpec):
            raise UsageError(f"expected a TaskSpec, got {type(spec).__name__}; describe a task with .spec(...)")
        if spec in drafts or known(spec):
            continue
        draft = _draft(spec, handlers)
        drafts[spec] = draft
        pending += [source for source in draft.depends_on if isinstance(source, TaskSpec)]
    return drafts


def _draft(spec: TaskSpec[Any], handlers: Handlers) -> Draft:
    fn = spec.fn
    if fn is None:
        fn = handlers.get(spec.type)
        if fn is None:
            raise UnknownHandlerError(spec.type, tuple(sorted(handlers)))
    payload, inputs = pickle_call(fn, spec.args, spec.kwargs, spec.type)
    if spec.options.id is not None:  # what comes again under the same id is compared with it (C4)
        payload = marked(payload)
    draft = Draft(spec, payload, inputs)
    if draft.options.run_if == "failure" and not draft.depends_on:
        raise UsageError(f"{draft.label} has run_if='failure' and depends on nothing that could fail; add depends_on=")
    return draft


def pickle_initializer(initializer: Callable[..., object] | None, initargs: tuple[object, ...]) -> Payload:
    """Pickle what each worker calls first; empty for nothing.

    Raises:
        PayloadError: It cannot be pickled.
        UsageError: It takes the result of a task.
    """
    if initializer is None:
        return b""
    payload, inputs = pickle_call(initializer, tuple(initargs), {}, type_of(initializer))
    if inputs:
        raise UsageError("initargs: a spec or handle stands for a result that a starting worker cannot have")
    return payload


@final
class Resolver:
    """Finds the task behind a source, among those known and those of the batch; under the lock."""

    __slots__ = ("_by_id", "_by_spec", "_drafts", "_supervisor")

    def __init__(
        self,
        supervisor: Supervisor,
        drafts: Mapping[TaskSpec[Any], Draft],
        by_spec: Mapping[TaskSpec[Any], Handle[Any]],
    ) -> None:
        self._supervisor = supervisor
        self._drafts = drafts
        self._by_spec = by_spec
        self._by_id = {draft.id: draft for draft in drafts.values() if draft.id is not None}

    def find(self, source: object, draft: Draft) -> Task | Draft:
        """Return the task or the draft that a source means.

        Raises:
            UnknownDependencyError: There is none.
            UsageError: It is no source at all.
        """
        if isinstance(source, TaskSpec):
            found = self._drafts.get(source)
            return task_of(self._by_spec[source]) if found is None else found
        if isinstance(source, Handle):
            if supervisor_of(source) is not self._supervisor:
                raise UnknownDependencyError(
                    draft.label, (source.id,), "it is a task of another queue; pass its result instead"
                )
            return task_of(source)
        if isinstance(source, str):
            known = self._by_id.get(source) or self._supervisor.scheduler.tasks.get(source)
            if known is None:
                raise UnknownDependencyError(draft.label, (source,), self._closest(source))
            return known
        raise UsageError(f"depends_on={source!r}: expected an id, a handle or a spec")

    def _closest(self, name: str) -> str:
        from difflib import get_close_matches  # noqa: PLC0415 - only for an error's text

        ids = chain(self._by_id, reversed(self._supervisor.scheduler.tasks))
        close = get_close_matches(name, islice(ids, _COMPARED_MAX), n=1)
        if close:
            return f"the closest id is {close[0]!r}"
        return "it was never submitted, or it finished and was forgotten (see retention); submit it first"


def in_order(drafts: Sequence[Draft], found: Mapping[Draft, Sequence[Task | Draft]]) -> list[Draft]:
    """Order drafts so that each comes after those it depends on, and else as they were given.

    Raises:
        CycleError: They depend on each other in a circle.
    """
    ordered: list[Draft] = []
    done: set[Draft] = set()
    for root in drafts:
        # Depth first with a stack of its own: a chain may be longer than Python's.
        path: dict[Draft, None] = {}
        stack: list[tuple[Draft, bool]] = [(root, False)]
        while stack:
            draft, needs_are_done = stack.pop()
            if needs_are_done:
                del path[draft]
                done.add(draft)
                ordered.append(draft)
            elif draft in path:
                around = list(path)
                raise CycleError(tuple(one.label for one in around[around.index(draft) :]))
            elif draft not in done:
                path[draft] = None
                stack.append((draft, True))
                needs = [need for need in found[draft] if isinstance(need, Draft)]
                stack += [(need, False) for need in reversed(needs) if need not in done]
    return ordered


# --- tasks -------------------------------------------------------------------------------------


def tasks_of(
    drafts: Mapping[TaskSpec[Any], Draft],
    supervisor: Supervisor,
    by_spec: Mapping[TaskSpec[Any], Handle[Any]],
    free_id: Callable[[], str],
) -> tuple[list[Task], dict[TaskSpec[Any], Task]]:
    """Make tasks of drafts; the lock is held, and nothing is changed yet.

    Args:
        drafts: What one submit brings.
        supervisor: Whose tasks they will be.
        by_spec: What was submitted already.
        free_id: Makes an id that no task has.

    Returns:
        The tasks that are new, in an order in which each follows its dependencies, and the task of each
        spec that was not submitted already, be it new or known by its id.

    Raises:
        UsageError: They cannot be accepted.
    """
    # Another thread may have submitted one of the specs while this one pickled.
    fresh = {spec: draft for spec, draft in drafts.items() if spec not in by_spec}
    resolver = Resolver(supervisor, fresh, by_spec)
    found = {draft: [resolver.find(source, draft) for source in draft.depends_on] for draft in fresh.values()}
    known = _known_tasks(found, supervisor.scheduler.tasks)
    now = supervisor.engine.now()
    tasks: dict[Draft, Task] = dict(known)
    new: list[Task] = []
    for draft in in_order(list(fresh.values()), found):
        if draft in known:
            continue
        needs = [tasks[need] if isinstance(need, Draft) else need for need in found[draft]]
        tasks[draft] = _make(draft, free_id() if draft.id is None else draft.id, needs, now)
        new.append(tasks[draft])
    return new, {spec: tasks[draft] for spec, draft in fresh.items()}


def _known_tasks(found: Mapping[Draft, Sequence[Task | Draft]], tasks: Mapping[str, Task]) -> dict[Draft, Task]:
    """Find drafts that are known tasks under the same id (contract C4).

    Args:
        found: Drafts, with what each depends on, its inputs first.
        tasks: What is known, by id.

    Raises:
        DuplicateTaskError: An id belongs to another task, or two of the batch share one.
    """
    known: dict[Draft, Task] = {}
    first: dict[str, Draft] = {}
    for draft, needs in found.items():
        if draft.id is None:
            continue
        twin = first.setdefault(draft.id, draft)
        if twin is not draft:
            raise DuplicateTaskError(draft.id, "another task of the same submit")
        task = tasks.get(draft.id)
        if task is not None:
            if not _is_same(task, draft, needs):
                raise DuplicateTaskError(draft.id, f"another task of type {task.type!r} ({task.status})")
            known[draft] = task
    return known


def _make(draft: Draft, task_id: str, needs: list[Task], now: float) -> Task:
    options = draft.options
    return Task(
        task_id,
        draft.type,
        draft.payload,
        options.alone(),
        depends_on=tuple(dict.fromkeys(needs)),
        inputs=tuple(needs[: len(draft.inputs)]),
        due=_due(options, now),
        expires_at=_instant(options.expires, now),
        explicit=draft.id is not None and not options.is_derived,
    )


def _is_same(task: Task, draft: Draft, needs: Iterable[Task | Draft]) -> bool:
    """Whether a known task is what a draft describes (contract C4)."""
    rules = task.rules
    return (
        task.type == draft.type
        and task.payload == draft.payload
        # Inputs first, and in order: in the payload a result is but a number.
        and task.needs == tuple(dict.fromkeys(need.id for need in needs))
        and isinstance(rules, Options)
        and rules.same_as(draft.options)
    )


def _due(options: Options, now: float) -> float | None:
    """Return the instant before which a task does not start."""
    if options.run_at is not None:
        return _instant(options.run_at, now)
    return _instant(options.delay_s, now)


def _instant(value: "float | datetime | None", now: float) -> float | None:
    """Turn a wait or a wall-clock instant into one of the queue's clock, once (contract, Words)."""
    if value is None:
        return None
    if isinstance(value, int | float):
        return now + value
    from datetime import datetime  # noqa: PLC0415 - imported by the user already

    return now + (value - datetime.now(value.tzinfo)).total_seconds()
