"""Turns specs into drafts: tasks to be, pickled, and with what they depend on still known by its source (C5, E2).

Happens in the thread that describes the tasks: a caller's in `submit`, a worker's where a task
returns `Spawn`.  What the sources mean, and whether the tasks can be accepted, is for the queue
to say (making.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, final

from procq.errors import PayloadError, UnknownHandlerError, UsageError
from procq.parcel import Payload, marked
from procq.payload import NotPicklable, behind, dump_call, dump_function, dump_part
from procq.spec import OnConflict, Options, TaskFunction, TaskSpec, called, type_of

Handlers = Mapping[str, Callable[..., object]]


@final
class Draft:
    """A task to be: pickled, and its dependencies known by their sources.

    Args:
        type_name: The task's type.
        payload: The pickled call; for a handler that is not known here its arguments alone.
        options: The options.
        depends_on: Every source that it waits for; those first whose results are arguments, by number.
        inputs: How many of them that is.
        for_handler: Whether the function is still to be put before the payload.
    """

    __slots__ = ("depends_on", "for_handler", "id", "inputs", "options", "payload", "type")

    def __init__(
        self,
        type_name: str,
        payload: Payload,
        options: Options,
        depends_on: Sequence[object] = (),
        *,
        inputs: int = 0,
        for_handler: bool = False,
    ) -> None:
        self.type = type_name
        self.payload = payload
        self.options = options
        self.id = options.id
        self.depends_on = depends_on
        self.inputs = inputs
        self.for_handler = for_handler

    @property
    def label(self) -> str:
        """Its id, or what kind of task it is."""
        return self.id or f"{self.type}(…)"


class Listing(NamedTuple):
    """Drafts that are accepted together, or none of them; and what becomes of those whose ids are used."""

    drafts: Sequence[Draft]
    roots: Sequence[Draft]  #: those that are wanted for their own sake, and not only because others need them
    on_conflict: OnConflict = "raise"


def draft_all(
    specs: Iterable[TaskSpec[Any]], handlers: Handlers | None, known: Callable[[TaskSpec[Any]], bool]
) -> dict[TaskSpec[Any], Draft]:
    """Draft specs and all the unsubmitted specs that they depend on, each once.

    Args:
        specs: What the user submits.
        handlers: Functions by type, for specs without a function; None: whoever accepts them knows those, and
            marks what is big.
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


def _draft(spec: TaskSpec[Any], handlers: Handlers | None) -> Draft:
    if spec.fn is not None:
        payload, inputs = pickle_call(spec.fn, spec.args, spec.kwargs, spec.type)
    elif handlers is None:
        payload, inputs = _pickle_arguments(spec, _handler)
    else:
        fn = handlers.get(spec.type)
        if fn is None:
            raise UnknownHandlerError(spec.type, tuple(sorted(handlers)))
        payload, inputs = _pickle_handled(fn, spec)
    if spec.options.id is not None and handlers is not None:
        payload = marked(payload)  # what comes again under the same id is compared with it (C4)
    sources = [*inputs, *spec.options.depends_on]
    for_handler = spec.fn is None and handlers is None
    return Draft(spec.type, payload, spec.options, sources, inputs=len(inputs), for_handler=for_handler)


# --- pickling ----------------------------------------------------------------------------------


def pickle_call(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], name: str
) -> tuple[Payload, list[object]]:
    """Pickle a call and say what in it stands for results.

    Raises:
        PayloadError: It cannot be pickled; names the argument and the path to the culprit.
    """
    try:
        return dump_call(called(fn), args, kwargs)
    except NotPicklable as error:
        _refuse(error, fn, args, kwargs, name)


def _pickle_handled(fn: Callable[..., object], spec: TaskSpec[Any]) -> tuple[Payload, list[object]]:
    """Pickle the call of a handler, in two parts if that can be: as it is when a task spawns it (C4)."""
    try:
        head = dump_function(called(fn))
    except NotPicklable:  # the whole call cannot be either, which says why
        head = None
    if head is None:
        return pickle_call(fn, spec.args, spec.kwargs, spec.type)
    payload, inputs = _pickle_arguments(spec, fn)
    return behind(head, payload), inputs


def _pickle_arguments(spec: TaskSpec[Any], fn: Callable[..., object]) -> tuple[Payload, list[object]]:
    """Pickle the arguments of a handler, as `pickle_call` does a whole call."""
    try:
        return dump_part(spec.args)
    except NotPicklable as error:
        _refuse(error, fn, spec.args, {}, spec.type)


def _handler(payload: object) -> object:
    """Stand for a handler that is not known here: what any takes."""
    return payload


def _refuse(
    error: NotPicklable,
    fn: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    name: str,
) -> NoReturn:
    cause = error.__cause__ or error
    if isinstance(cause, UsageError):
        raise cause from None
    from procq.diagnosis import explain_unpicklable  # noqa: PLC0415 - only for an error's text

    bare = fn.fn if isinstance(fn, TaskFunction) else fn
    raise PayloadError(explain_unpicklable(bare, args, kwargs, name, cause)) from cause


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
