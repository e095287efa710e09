"""Turns what an entry produces into submitted tasks: names, run-wide defaults, dependencies.

A jobs file's specs are not submitted as they are: each gets its derived id and the defaults of
the command line, which makes another spec of it, so specs among its arguments are replaced by
what was made of them.  One spec object stays one task however often it is met (contract C1).

Works in the producer's thread; `accepted` is called there for each new task.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast, final

from procq.cli import preview
from procq.cli.feed import Previews
from procq.cli.ids import Namer
from procq.cli.pertype import PerType
from procq.errors import CycleError, JobsFileError, UnknownDependencyError
from procq.handle import Handle
from procq.ordering import needs_first
from procq.spec import Output, TaskSpec, call_spec, named

Spec = TaskSpec[Any]

#: The containers in which specs count as dependencies.
_CONTAINERS: Final = (list, tuple, dict)


class Accepting(Protocol):
    """What is used of a queue."""

    def submit_many(self, specs: "list[Spec]") -> "list[Handle[Any]]":
        """Submit specs, all or none."""


@final
class Intake:
    """Submits the specs of one run.

    Args:
        queue: Where they go.
        defaults: Options for tasks that don't say.
        pertype: Options for tasks whatever they say, and the types that flags name.
        accepted: Told of each new task: its handle, and the spec it was made of.
        previews: Told how the arguments of each task look.
    """

    __slots__ = ("_accepted", "_defaults", "_held", "_ids", "_made", "_namer", "_pertype", "_previews", "_queue")

    def __init__(
        self,
        queue: Accepting,
        *,
        defaults: Mapping[str, object],
        accepted: Callable[["Handle[Any]", Spec], None],
        pertype: PerType | None = None,
        previews: Previews | None = None,
    ) -> None:
        self._queue = queue
        self._defaults = defaults
        self._accepted = accepted
        self._pertype = PerType() if pertype is None else pertype
        self._previews = previews if previews is not None and previews.is_wanted else None
        self._namer = Namer()
        #: what was made of each spec, as long as the jobs file holds on to the spec: its handle,
        #: or its renamed twin until that is accepted
        self._made: weakref.WeakKeyDictionary[Spec, Spec | Handle[Any]] = weakref.WeakKeyDictionary()
        #: the derived id of each spec, likewise; None: it has none
        self._ids: weakref.WeakKeyDictionary[Spec, str | None] = weakref.WeakKeyDictionary()
        #: specs that name a task not met yet, and what needs them; they wait for the last spec
        self._held: dict[Spec, None] = {}

    @property
    def unstable_types(self) -> set[str]:
        """Types of which a task had no stable id."""
        return self._namer.unstable_types

    def has_stable_id(self, spec: Spec) -> bool:
        """Return whether a spec that was taken has an id that is the same in every run."""
        return self._ids.get(spec) is not None

    def take_all(self, specs: Sequence[Spec]) -> None:
        """Submit a whole list and what it needs; it is checked before any of it is accepted.

        Raises:
            UsageError: As `Queue.submit_many`.
        """
        batch = with_needs(specs, self._made.__contains__)
        self._pertype.know(spec.type for spec in batch)
        self._pertype.check()
        self._submit(batch)

    def take(self, spec: Spec) -> None:
        """Submit one more spec and what it needs; blocks while the queue is full.

        A spec that names an id nobody has yet is held until `finish`.

        Raises:
            UsageError: As `Queue.submit`.
        """
        for one in with_needs([spec], self._made.__contains__):
            self._pertype.know((one.type,))
            if any(need in self._held for need in needs_of(one)):
                self._held[one] = None
                continue
            try:
                self._submit([one])
            except UnknownDependencyError:
                self._held[one] = None

    def finish(self) -> None:
        """Submit what was held, now that every name is known.

        Raises:
            UsageError: As `Queue.submit_many`; a name that is still unknown among them, or a type that a flag names.
        """
        held, self._held = list(self._held), {}
        self._submit(with_needs(held, self._made.__contains__))
        self._pertype.check()

    def _submit(self, batch: list[Spec]) -> None:
        """Submit new specs that are in order: each after those it needs."""
        if not batch:
            return
        twins: dict[Spec, Spec] = {}
        try:
            for spec in batch:
                twins[spec] = self._made[spec] = self._twin(spec)
            handles = self._handed_in(twins)
        except BaseException as error:
            for spec in twins:
                self._made.pop(spec, None)
            if isinstance(error, CycleError):
                raise _located(error, twins) from None
            raise
        for spec, handle in zip(batch, handles, strict=True):
            self._made[spec] = handle
            self._accepted(handle, spec)

    def _handed_in(self, twins: Mapping[Spec, Spec]) -> "list[Handle[Any]]":
        """Submit twins, with what their events say of their arguments."""
        previews = self._previews
        if previews is None:
            return self._queue.submit_many(list(twins.values()))
        named = [(spec, twin.id) for spec, twin in twins.items() if twin.id is not None]
        for spec, task_id in named:
            previews.enter(task_id, spec)
        if len(named) < len(twins):
            previews.open()
        try:
            handles = self._queue.submit_many(list(twins.values()))
            for (spec, twin), handle in zip(twins.items(), handles, strict=True):
                if twin.id is None:
                    previews.enter(handle.id, spec)
        except BaseException:
            for _, task_id in named:
                previews.leave(task_id)
            raise
        finally:
            previews.close()
        return handles

    def _twin(self, spec: Spec) -> Spec:
        """Return the spec with its id, the run's defaults, and twins in place of specs."""
        if spec not in self._ids:
            self._ids[spec] = self._namer.name(spec, self._id_of)
        task_id = self._ids[spec]
        if spec.type in self._pertype.options:
            has_any = bool(spec.options.depends_on) or any(True for _ in needs_of(spec))
            self._pertype.check_needs(spec.type, preview.label(spec), has_any=has_any)
        given = spec.options.given
        changes = {name: value for name, value in self._defaults.items() if name not in given}
        changes |= self._pertype.options.get(spec.type, {})
        if spec.options.depends_on:
            changes["depends_on"] = [self._replaced(source) for source in spec.options.depends_on]
        args = tuple(self._replaced(value) for value in spec.args)
        kwargs = {name: self._replaced(value) for name, value in spec.kwargs.items()}
        if spec.fn is not None:
            # The type is named, because a wrapped partial has no name to derive it from again.
            twin = call_spec(spec.fn, args, kwargs, spec.options.using(changes | {"type": spec.type}))
        else:
            twin = TaskSpec(type=spec.type, payload=args[0], **cast("Any", given)).using(**cast("Any", changes))
        return twin if task_id is None or spec.id is not None else named(twin, task_id)

    def _replaced(self, value: Any) -> Any:  # noqa: ANN401 - whatever stands in arguments
        """Return the value with what was made of them in place of specs; itself if there are none."""
        kind = type(value)
        if kind is Output:
            return self._replaced(value.source)
        if isinstance(value, TaskSpec):
            return self._made.get(value, value)
        if kind not in _CONTAINERS or not any(True for _ in _specs_in(value)):
            return value
        if kind is dict:
            return {key: self._replaced(item) for key, item in value.items()}
        return kind(self._replaced(item) for item in value)

    def _id_of(self, source: object) -> str | None:
        """Return the id of what stands in a spec's arguments, if it is stable."""
        if isinstance(source, TaskSpec):
            return self._ids.get(source)
        return source.id if isinstance(source, Handle) else None


def _located(error: CycleError, twins: Mapping[Spec, Spec]) -> JobsFileError:
    """Say where the tasks of a cycle stand."""
    labels = {twin.label(): spec for spec, twin in twins.items()}
    lines = [f"{label}  {preview.place(labels[label])}" for label in error.cycle if label in labels]
    return JobsFileError(
        f"dependency cycle: {' -> '.join((*error.cycle, error.cycle[0]))}",
        where="\n  ".join(lines),
        hint="remove one of these dependencies",
    )


def with_needs(specs: Iterable[Spec], is_known: Callable[[Spec], bool]) -> list[Spec]:
    """Return specs and all the unknown specs they need, each once and after those it needs.

    Raises:
        CycleError: An argument leads back to its own spec.
    """
    roots = (spec for spec in specs if not is_known(spec))
    return needs_first(roots, lambda spec: [need for need in needs_of(spec) if not is_known(need)], TaskSpec.label)


def needs_of(spec: Spec) -> Iterator[Spec]:
    """Yield the specs that a spec needs: in its arguments, and in `depends_on`."""
    return _specs_in([*spec.args, *spec.kwargs.values(), *spec.options.depends_on])


def _specs_in(value: object) -> Iterator[Spec]:
    """Yield the specs in a value, in order, at any depth of lists, tuples and dicts."""
    stack: list[Any] = [value]
    open_containers: set[int] = set()
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is Output:
            item = item.source
        if isinstance(item, TaskSpec):
            yield item
        elif kind in _CONTAINERS and id(item) not in open_containers:
            # A container that holds itself is looked into once; its payload will be refused or not.
            open_containers.add(id(item))
            stack += reversed(list(item.values() if kind is dict else item))
