"""Makes tasks of drafts: finds what they depend on, orders them, and knows them again (contract C4, E1).

What is made together is a batch: what one submit brings, or what a task spawns.  Everything is
checked before any of it is accepted, so a refusal changes nothing.  Nothing here is pickled or
unpickled, and no user code runs.

Everything here happens under the queue's lock.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, final

from procq.core.states import TERMINAL
from procq.core.task import Task
from procq.draft import Draft
from procq.errors import DuplicateTaskError, UnknownDependencyError, UsageError
from procq.ordering import needs_first
from procq.parcel import Payload
from procq.spec import OnConflict, Options

if TYPE_CHECKING:
    from datetime import datetime

#: So many ids are compared with an unknown one, the newest first: some milliseconds under the lock.
_COMPARED_MAX: Final = 2000


@final
class Names:
    """Finds a task by its id, among those of a batch and those that the queue knows.

    Args:
        drafts: The batch.
        tasks: What the queue knows, by id.
    """

    __slots__ = ("_by_id", "_tasks")

    def __init__(self, drafts: Iterable[Draft], tasks: dict[str, Task]) -> None:
        self._by_id = {draft.id: draft for draft in drafts if draft.id is not None}
        self._tasks = tasks

    def find(self, name: str, draft: Draft) -> Task | Draft:
        """Return what has this id.

        Args:
            name: The id.
            draft: What depends on it, for the error.

        Raises:
            UnknownDependencyError: Nothing has.
        """
        known = self._by_id.get(name) or self._tasks.get(name)
        if known is None:
            raise UnknownDependencyError(draft.label, (name,), self._closest(name))
        return known

    def _closest(self, name: str) -> str:
        from difflib import get_close_matches  # noqa: PLC0415 - only for an error's text

        ids = chain(self._by_id, reversed(self._tasks))
        close = get_close_matches(name, islice(ids, _COMPARED_MAX), n=1)
        if close:
            return f"the closest id is {close[0]!r}"
        return "it was never submitted, or it finished and was forgotten (see retention); submit it first"


class Batch(NamedTuple):
    """What a batch comes to."""

    new: list[Task]  #: in an order in which each follows its dependencies
    made: dict[Draft, Task]  #: of each draft, be its task new or known; not of one that only an ignored one needs
    replaced: list[Task]  #: known tasks whose ids new ones take


def tasks_of(
    drafts: Sequence[Draft],
    tasks: Mapping[str, Task],
    find: Callable[[object, Draft], Task | Draft],
    *,
    free_id: Callable[[], str],
    now: float,
    roots: Sequence[Draft] | None = None,
    on_conflict: OnConflict = "raise",
) -> Batch:
    """Make tasks of drafts; nothing is changed yet.

    Args:
        drafts: The batch.
        tasks: What the queue knows, by id.
        find: Says what a source means that a draft depends on.
        free_id: Makes an id that no task has.
        now: The instant at which they are accepted.
        roots: Those that are wanted for their own sake; None: all.
        on_conflict: What becomes of a draft whose id another task has.

    Raises:
        UsageError: They cannot be accepted.
    """
    known = _used(drafts, tasks) if on_conflict == "same" else {}
    # What only an ignored draft needs is not wanted.
    found = _found(drafts if roots is None or not known else roots, find, known)
    found = {draft: found[draft] for draft in drafts if draft in found}
    same, replaced = _known_tasks(found, tasks, may_replace=on_conflict == "replace")
    made = dict(same)
    new: list[Task] = []
    # Mostly nothing needs anything, and a submit of one spec should not pay for the question.
    for draft in in_order(list(found), found) if any(found.values()) else found:
        if draft not in made:
            needs = [made[need] if isinstance(need, Draft) else need for need in found[draft]]
            made[draft] = _make(draft, free_id() if draft.id is None else draft.id, needs, now)
            new.append(made[draft])
    _refuse_needed(new, replaced)
    for draft, other in known.items():
        if not isinstance(other, Draft):
            made[draft] = other
        elif other in made:
            made[draft] = made[other]
    return Batch(new, made, replaced)


def in_order(drafts: Sequence[Draft], found: Mapping[Draft, Sequence[Task | Draft]]) -> list[Draft]:
    """Order drafts so that each comes after those it depends on, and else as they were given.

    Raises:
        CycleError: They depend on each other in a circle.
    """
    return needs_first(drafts, lambda draft: [need for need in found[draft] if isinstance(need, Draft)], _label)


def _label(draft: Draft) -> str:
    return draft.label


def _used(drafts: Iterable[Draft], tasks: Mapping[str, Task]) -> "dict[Draft, Task | Draft]":
    """Find drafts whose ids are used, with what uses them: a known task, or an earlier draft."""
    used: dict[Draft, Task | Draft] = {}
    first: dict[str, Draft] = {}
    for draft in drafts:
        if draft.id is None:
            continue
        if draft.id in tasks:
            used[draft] = tasks[draft.id]
        elif first.setdefault(draft.id, draft) is not draft:
            used[draft] = first[draft.id]
    return used


def _found(
    roots: Iterable[Draft], find: Callable[[object, Draft], Task | Draft], known: "Mapping[Draft, Task | Draft]"
) -> "dict[Draft, list[Task | Draft]]":
    """Find what drafts need, and what that needs.

    Args:
        roots: The drafts.
        find: Says what a source means.
        known: What stands in for some of them, of which nothing is needed.

    Raises:
        UsageError: Something cannot be found.
    """
    found: dict[Draft, list[Task | Draft]] = {}
    pending = [known.get(root, root) for root in roots]
    pending.reverse()  # a stack; the first comes first
    while pending:
        draft = pending.pop()
        if not isinstance(draft, Draft) or draft in found:
            continue
        meant = [find(source, draft) for source in draft.depends_on]
        found[draft] = [known.get(need, need) if isinstance(need, Draft) else need for need in meant]
        pending += found[draft]
    return found


def _known_tasks(
    found: Mapping[Draft, Sequence[Task | Draft]], tasks: Mapping[str, Task], *, may_replace: bool
) -> tuple[dict[Draft, Task], list[Task]]:
    """Find drafts whose ids are used (contract C4).

    Args:
        found: Drafts, with what each depends on, its inputs first.
        tasks: What is known, by id.
        may_replace: Whether a draft may take the id of another task.

    Returns:
        The drafts that are known tasks, and the tasks whose ids other ones take.

    Raises:
        DuplicateTaskError: An id belongs to another task, or two of the batch share one.
    """
    known: dict[Draft, Task] = {}
    replaced: list[Task] = []
    first: dict[str, Draft] = {}
    for draft, needs in found.items():
        if draft.id is None:
            continue
        twin = first.setdefault(draft.id, draft)
        if twin is not draft:
            raise DuplicateTaskError(draft.id, "another task of the same submit")
        task = tasks.get(draft.id)
        if task is None:
            continue
        if _is_same(task, draft, needs):
            known[draft] = task
        elif may_replace:
            replaced.append(task)
        else:
            raise DuplicateTaskError(
                draft.id,
                f"another task of type {task.type!r} ({task.status})",
                hint="give the new task another id, or say by on_conflict='same' or 'replace' which of them you mean",
            )
    return known, replaced


def _refuse_needed(new: Iterable[Task], replaced: Iterable[Task]) -> None:
    """Refuse to replace what a new task needs.

    Raises:
        DuplicateTaskError: One does.
    """
    waiting = {task for task in replaced if task.status not in TERMINAL}
    for task in new if waiting else ():
        for need in task.depends_on:
            if need in waiting:
                raise DuplicateTaskError(
                    need.id,
                    f"a task whose result {task.id!r} of the same submit needs, and so can't be replaced",
                    hint="give the new task another id",
                )


def _make(draft: Draft, task_id: str, needs: list[Task], now: float) -> Task:
    options = draft.options
    if options.run_if == "failure" and not needs:
        raise UsageError(f"{draft.label} has run_if='failure' and depends on nothing that could fail; add depends_on=")
    return Task(
        task_id,
        draft.type,
        draft.payload,
        options.alone(),
        depends_on=tuple(dict.fromkeys(needs)),
        inputs=tuple(needs[: draft.inputs]),
        due=_due(options, now),
        expires_at=_instant(options.expires, now),
        explicit=draft.id is not None and not options.is_derived,
    )


def _is_same(task: Task, draft: Draft, needs: Iterable[Task | Draft]) -> bool:
    """Whether a known task is what a draft describes (contract C4)."""
    rules = task.rules
    return (
        task.type == draft.type
        and _is_same_payload(task.payload, draft.payload)
        # Inputs first, and in order: in the payload a result is but a number.
        and task.needs == tuple(dict.fromkeys(need.id for need in needs))
        and isinstance(rules, Options)
        and rules.same_as(draft.options)
    )


def _is_same_payload(one: Payload, other: Payload) -> bool:
    if one == other:
        return True
    if not isinstance(one, bytes) or not isinstance(other, bytes):
        return False
    from procq.equality import is_same_call  # noqa: PLC0415 - only where an id comes again

    return is_same_call(one, other)


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
    from datetime import datetime  # noqa: PLC0415 - few tasks have an instant

    return now + (value - datetime.now(value.tzinfo)).total_seconds()
