"""Turns the `Spawn` that a task returned into plain data and pickled calls, and those into drafts (contract E6).

The first happens where the task ran, the second where the tasks are accepted; in between it is bytes
that say nothing of whose they are.  Imported on either side when a task spawns something.
"""

from typing import Any, Final, cast

from procq.draft import Draft, Listing, draft_all
from procq.errors import UsageError
from procq.inside import Spawn
from procq.outcome import Ended, Spawned
from procq.parcel import Parcel
from procq.plain import MalformedError, read, write
from procq.spec import TaskSpec, describe

__all__ = ["MalformedError", "listing_of", "packed"]

#: More cannot be said of the tasks of one `Spawn`, calls left aside, in bytes: about half a million of them.
#: They are read and accepted under the lock, where each million takes seconds, and a frame has its limits too.
TEXT_MAX: Final = 32 * 2**20


def packed(spawn: Spawn) -> Spawned:
    """Pickle and describe the tasks of a `Spawn`, and all that they depend on.

    Raises:
        UsageError: They cannot be spawned.
    """
    specs = cast("tuple[TaskSpec[Any], ...]", spawn.specs)
    drafts = draft_all(specs, None, _is_known)
    for draft in drafts.values():
        draft.depends_on = [_named(source, drafts) for source in draft.depends_on]
        if isinstance(draft.payload, Parcel) and draft.payload.shares:
            raise UsageError(
                f"{draft.label} takes an object that a task has shared, which goes with its worker; "
                "pass the object itself"
            )
    text = write(Listing(list(drafts.values()), [drafts[spec] for spec in specs], spawn.on_conflict))
    if len(text) > TEXT_MAX:
        raise UsageError(
            f"Spawn of {len(drafts)} tasks: they are too many to be accepted at once; "
            "spawn a few tasks that spawn the rest"
        )
    return Spawned(text, [draft.payload for draft in drafts.values()])


def _is_known(_spec: TaskSpec[Any]) -> bool:
    """Whether a spec was submitted before: none that a worker has."""
    return False


def _named(source: object, drafts: dict[TaskSpec[Any], Draft]) -> object:
    """Return what a draft depends on as one of the same Spawn, or as an id."""
    if isinstance(source, TaskSpec):
        return drafts[source]
    if isinstance(source, str):
        return source
    raise UsageError(
        f"{describe(source)} can't be waited for by a task that is spawned: expected an id, or a spec of the same Spawn"
    )


def listing_of(ended: Ended) -> Listing:
    """Take the tasks out of a report that brings some; who keeps the report keeps no payloads with it.

    Raises:
        MalformedError: It was not `packed` that wrote them.
    """
    spawned, ended.spawned = ended.spawned, None
    assert spawned is not None, "it brings none"
    return read(spawned.text, spawned.payloads)
