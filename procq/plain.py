"""Described tasks as plain data: texts, numbers and lists, which JSON holds and anybody may read (contract E6).

What a task spawns reaches the supervisor in this form, because there nothing is unpickled and no
user code runs; and what has to outlive a process can be kept in it.  A task's payload is not part
of it: that is bytes, and stays beside.

    {"options": [{"priority": 10, "timeout": 30.0}, ...],
     "tasks": [{"type": "resize", "options": 0, "id": "a", "needs": [1, "other"], "inputs": 1}, ...],
     "on_conflict": "same"}

A number in `needs` is a place in the same list, a text the id of a task; the first `inputs` of them
give results that are arguments.  A task is `implied` if it is there only because others need it.
Options stand once, however many tasks have the same, and only those that were given; durations are
seconds, sizes bytes, instants texts in ISO 8601, exception classes their qualified names.
`on_conflict` says what becomes of a used id where that is no error (C4).

Rule: what is read may have been written by a cheat.  Whatever it is, it becomes drafts or raises
`MalformedError`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from procq.draft import Draft, Listing
from procq.errors import UsageError
from procq.inside import check_on_conflict
from procq.parcel import Payload
from procq.retry import Backoff, Exponential, Listed, as_backoff, exponential
from procq.spec import ClassName, Options

if TYPE_CHECKING:
    from datetime import datetime

    from procq.spec import OnConflict

#: What JSON holds.
Plain: TypeAlias = "bool | int | float | str | Sequence[Plain] | Mapping[str, Plain] | None"


class MalformedError(ValueError):
    """This is no plain form of described tasks."""


# --- tasks -------------------------------------------------------------------------------------


def write(listing: Listing) -> bytes:
    """Write drafts that depend on each other and on tasks known by their ids.

    Raises:
        UsageError: An option has no plain form: a backoff that is a function.
    """
    drafts, roots = listing.drafts, frozenset(listing.roots)
    places = {draft: place for place, draft in enumerate(drafts)}
    table = _Table()
    tasks: list[Plain] = []
    for draft in drafts:
        task: dict[str, Plain] = {"type": draft.type, "options": table.place_of(draft.options, draft.label)}
        if draft.id is not None:
            task["id"] = draft.id
        if draft.options.is_derived:
            task["derived"] = True
        if draft.depends_on:
            task["needs"] = [places[need] if isinstance(need, Draft) else str(need) for need in draft.depends_on]
        if draft.inputs:
            task["inputs"] = draft.inputs
        if draft.for_handler:
            task["handler"] = True
        if draft not in roots:
            task["implied"] = True
        tasks.append(task)
    plain: dict[str, Plain] = {"options": table.rows, "tasks": tasks}
    if listing.on_conflict != "raise":
        plain["on_conflict"] = listing.on_conflict
    return json.dumps(plain, separators=(",", ":")).encode()


class _Table:
    """Options, each set of them once."""

    __slots__ = ("_places", "_seen", "rows")

    def __init__(self) -> None:
        self.rows: list[Plain] = []
        self._places: dict[str, int] = {}
        #: options that were looked up, by `id`, kept so that no other gets it
        self._seen: dict[int, tuple[Options, int]] = {}

    def place_of(self, options: Options, label: str) -> int:
        """Return where these options stand, but for the id, which is the task's own."""
        seen = self._seen.get(id(options))
        if seen is not None:
            return seen[1]
        try:
            row = plain_options(options)
        except UsageError as error:
            raise UsageError(f"{label}: {error}") from None
        row.pop("id", None)
        row.pop("derived", None)
        text = json.dumps(row, sort_keys=True)
        place = self._places.setdefault(text, len(self.rows))
        if place == len(self.rows):
            self.rows.append(row)
        self._seen[id(options)] = (options, place)
        return place


def read(text: bytes, payloads: Sequence[Payload]) -> Listing:
    """Read drafts.

    Args:
        text: What `write` wrote.
        payloads: The payloads of the tasks, in their order.

    Raises:
        MalformedError: It wrote something else.
    """
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:  # no text, no JSON, or lists in lists without end
        raise MalformedError(f"no JSON: {error}") from error
    rows, tasks = _part(plain, "options", list), _part(plain, "tasks", list)
    if len(tasks) != len(payloads):
        raise MalformedError(f"{len(tasks)} tasks with {len(payloads)} payloads")
    shared = [read_options(row) for row in rows]
    drafts = [_draft(task, payload, shared) for task, payload in zip(tasks, payloads, strict=True)]
    for draft, task in zip(drafts, tasks, strict=True):
        needs = _part(task, "needs", list, [])
        draft.depends_on = [_source(need, drafts) for need in needs]
        if not 0 <= draft.inputs <= len(needs):
            raise MalformedError(f"{draft.inputs} inputs of {len(needs)} needs")
    roots = [draft for draft, task in zip(drafts, tasks, strict=True) if not _flag(task, "implied")]
    return Listing(drafts, roots, _on_conflict(plain))


def _on_conflict(plain: object) -> "OnConflict":
    rule = _part(plain, "on_conflict", str, "raise")
    try:
        check_on_conflict(rule)
    except UsageError as error:
        raise MalformedError(str(error)) from error
    return cast("OnConflict", rule)


def _draft(task: object, payload: Payload, shared: Sequence[Options]) -> Draft:
    place = _part(task, "options", int)
    if not 0 <= place < len(shared):
        raise MalformedError(f"options at {place} of {len(shared)}")
    options = shared[place]
    task_id = _part(task, "id", str, None)
    type_name = _part(task, "type", str)
    if not type_name:
        raise MalformedError("a task without a type")
    if task_id is not None:
        try:
            is_derived = _flag(task, "derived")
            options = options.named(task_id) if is_derived else options.using({"id": task_id})
        except UsageError as error:
            raise MalformedError(str(error)) from error
    return Draft(
        type_name,
        payload,
        options,
        inputs=_part(task, "inputs", int, 0),
        for_handler=_flag(task, "handler"),
    )


def _source(need: object, drafts: Sequence[Draft]) -> object:
    if isinstance(need, str):
        return need
    if type(need) is int and 0 <= need < len(drafts):
        return drafts[need]
    raise MalformedError(f"a need that is neither an id nor a place: {need!r:.100}")


_MISSING: Final = object()


def _part(holder: object, name: str, kind: type, default: object = _MISSING) -> Any:  # noqa: ANN401 - of that kind
    """Return a part of exactly this kind; the default if it is not there."""
    if type(holder) is not dict:
        raise MalformedError(f"no place for {name!r}: {type(holder).__name__}")
    value = holder.get(name, default)
    if value is not default and type(value) is not kind:
        raise MalformedError(f"{name!r} is no {kind.__name__}")
    if value is _MISSING:
        raise MalformedError(f"{name!r} is missing")
    return value


def _flag(holder: object, name: str) -> bool:
    return bool(_part(holder, name, bool, None))


# --- options -----------------------------------------------------------------------------------


def plain_options(options: Options) -> dict[str, Plain]:
    """Return the options that were given as plain data, what they depend on left aside.

    Raises:
        UsageError: The backoff is a function, which has no plain form.
    """
    plain: dict[str, Plain] = {name: _WRITERS[name](options) for name in options.given if name != "depends_on"}
    if options.is_derived:
        plain["derived"] = True
    return plain


def read_options(plain: object) -> Options:
    """Make options of plain data.

    Raises:
        MalformedError: `plain_options` never returns this.
    """
    if type(plain) is not dict:
        raise MalformedError(f"options that are {type(plain).__name__}")
    try:
        given = {name: _READERS.get(name, _as_it_is)(value) for name, value in plain.items() if name != "derived"}
        options = Options(given)
        return options.named(options.id) if "derived" in plain and options.id is not None else options
    except (UsageError, ValueError, TypeError, OverflowError) as error:
        raise MalformedError(f"options that cannot be: {error}") from error


def _plain_instant(value: "float | datetime | None") -> Plain:
    return value if value is None or isinstance(value, int | float) else value.isoformat()


def _plain_backoff(backoff: Backoff | None) -> Plain:
    match backoff:
        case None:
            return None
        case Exponential():
            return {"exponential": [backoff.base_s, backoff.factor, backoff.cap_s, backoff.jitter]}
        case Listed():
            return {"listed": list(backoff.delays_s)}
        case _:
            raise UsageError(
                "a backoff that is a function can't be passed on by a task, nor kept in a journal; "
                "use exponential(), constant() or a list of durations"
            )


def _plain_names(names: frozenset[str] | None) -> Plain:
    return None if names is None else sorted(names)


_WRITERS: Final[Mapping[str, Callable[[Options], Plain]]] = {
    "id": lambda options: options.id,
    "type": lambda options: options.type,
    "priority": lambda options: options.priority,
    "max_attempts": lambda options: options.max_attempts,
    "timeout": lambda options: options.timeout_s,
    "run_at": lambda options: _plain_instant(options.run_at),
    "delay": lambda options: options.delay_s,
    "expires": lambda options: _plain_instant(options.expires),
    "run_if": lambda options: options.run_if,
    "backoff": lambda options: _plain_backoff(options.backoff),
    "retry_on": lambda options: _plain_names(options.retry_on),
    "never_retry": lambda options: _plain_names(options.never_retry),
    "retry_for": lambda options: options.retry_for_s,
    "group": lambda options: options.group,
    "cpus": lambda options: options.demand.cpus,
    "memory": lambda options: options.demand.memory_bytes or None,
}


def _as_it_is(value: object) -> object:
    """Return what `Options` judges by itself; it takes no list here, and looks into none."""
    if value is None or isinstance(value, str | int | float):
        return value
    raise MalformedError(f"an option that is {type(value).__name__}")


def _instant(value: object) -> object:
    if not isinstance(value, str):
        return _as_it_is(value)
    from datetime import datetime  # noqa: PLC0415 - few tasks have one

    return datetime.fromisoformat(value)


def _backoff(value: object) -> Backoff | None:
    if value is None:
        return None
    if type(value) is not dict or len(value) != 1:
        raise MalformedError("a backoff that is none")
    if "listed" in value:
        return as_backoff(_part(value, "listed", list))
    base, factor, cap, jitter = _part(value, "exponential", list)
    return exponential(base, factor=factor, cap=cap, jitter=jitter)


def _names(value: object) -> object:
    if value is None:
        return None
    if type(value) is not list or not all(type(name) is str for name in value):
        raise MalformedError("names that are none")
    return tuple([ClassName(name) for name in cast("list[str]", value)])


_READERS: Final[Mapping[str, Callable[[object], object]]] = {
    "run_at": _instant,
    "expires": _instant,
    "backoff": _backoff,
    "retry_on": _names,
    "never_retry": _names,
}
