"""Whether what a task spawns is accepted, and what it becomes (contract E6).

A task's `Spawn` comes as drafts whose calls are pickled; here they are made tasks, together with the
success of the attempt that brought them, or it ends in an error and there are none.  No user code runs
and nothing is unpickled: a handler's function was pickled when the queue was started.

Everything here happens under the queue's lock, in a caller's thread or the engine's own.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import final

from procq.core.scheduler import Scheduler
from procq.core.task import Task
from procq.draft import Draft, Handlers, Listing
from procq.engine.attempt import clipped
from procq.errors import DuplicateTaskError, PayloadError, UnknownHandlerError, UsageError
from procq.making import Batch, Names, tasks_of
from procq.outcome import Ended, class_names
from procq.parcel import marked
from procq.payload import NotPicklable, behind, dump_function, dumps_whole
from procq.spec import Options, called


@final
class Offspring:
    """Accepts what tasks spawn.

    Args:
        scheduler: Where tasks go, and from which they are known.
        take_back: Takes back those of some tasks that were sent ahead, or notes that they have begun.
    """

    __slots__ = ("_scheduler", "_take_back", "defaults", "heads", "numbers", "overrides", "tell")

    def __init__(self, scheduler: Scheduler, take_back: Callable[[Iterable[Task], float], object]) -> None:
        self._scheduler = scheduler
        self._take_back = take_back
        #: the next id that is made
        self.numbers = itertools.count()
        #: what calls of handlers begin with, by type; or why there can be none
        self.heads: Mapping[str, bytes | PayloadError] = {}
        #: options for tasks that don't say
        self.defaults: Mapping[str, object] = {}
        #: options for tasks whatever they say, by type
        self.overrides: Mapping[str, Mapping[str, object]] = {}
        #: told of the tasks that were accepted, before anybody is told that one has ended; our own code
        self.tell: Callable[[Sequence[Task]], object] | None = None

    def free_id(self) -> str:
        """Make an id that no task has."""
        while (task_id := f"#{next(self.numbers)}") in self._scheduler.tasks:
            pass
        return task_id

    def take(self, parent: Task, fence: int, ended: Ended, listing: Listing, now: float) -> None:
        """Accept drafts together with the success of the attempt that brought them, or let it fail for good.

        Args:
            parent: The task.
            fence: Names the attempt.
            ended: The report on it.
            listing: What it spawns.
            now: The instant of the call.
        """
        scheduler = self._scheduler
        if parent.fence != fence:
            scheduler.dropped_late += 1
            return
        try:
            tasks, _, replaced = self._batch_of(parent, listing, now)
            is_accepted = scheduler.spawn(parent, fence, ended, tasks, now, replaced)
        except UsageError as error:
            scheduler.end(parent, fence, _refusal(ended, error), now)
        else:
            if is_accepted and tasks and self.tell is not None:
                self.tell(tasks)

    def _batch_of(self, parent: Task, listing: Listing, now: float) -> Batch:
        """Make tasks of drafts; nothing is changed, but that what they replace is not ahead any more.

        Raises:
            UsageError: They cannot be accepted.
        """
        for draft in listing.drafts:
            self._complete(draft)
        if self.defaults or self.overrides:
            self._set_options(listing.drafts)
        batch = self._made(listing, now)
        if parent in batch.replaced:
            raise DuplicateTaskError(
                parent.id,
                "the task that spawns it, whose result is kept under that id, and so can't be replaced",
                hint="give the new task another id",
            )
        while ahead := [task for task in batch.replaced if task.seq in self._scheduler.ahead]:
            self._take_back(ahead, now)
            # What was read meanwhile is no less true: a task has begun, or another has spawned the like.
            batch = self._made(listing, now)
        return batch

    def _made(self, listing: Listing, now: float) -> Batch:
        drafts, tasks = listing.drafts, self._scheduler.tasks
        find = _Finder(Names(drafts, tasks)).find
        return tasks_of(
            drafts,
            tasks,
            find,
            free_id=self.free_id,
            now=now,
            roots=listing.roots,
            on_conflict=listing.on_conflict,
        )

    def _complete(self, draft: Draft) -> None:
        """Put the function before the arguments of a handler, and mark what may be compared."""
        if draft.for_handler:
            head = self.heads.get(draft.type)
            if head is None:
                raise UnknownHandlerError(draft.type, tuple(sorted(self.heads)))
            if isinstance(head, PayloadError):
                raise head
            draft.payload = behind(head, draft.payload)
            draft.for_handler = False
        if draft.id is not None:  # not in the worker: a mark tells things apart in one process only
            draft.payload = marked(draft.payload)

    def _set_options(self, drafts: Sequence[Draft]) -> None:
        merged: dict[tuple[int, str], Options] = {}
        for draft in drafts:
            key = id(draft.options), draft.type
            if key not in merged:
                options = draft.options.with_defaults(self.defaults)
                changes = self.overrides.get(draft.type)
                merged[key] = options.using(changes) if changes else options
        for draft in drafts:
            draft.options = merged[id(draft.options), draft.type]


@final
class _Finder:
    """Says what a draft that was spawned depends on."""

    __slots__ = ("_names",)

    def __init__(self, names: Names) -> None:
        self._names = names

    def find(self, source: object, draft: Draft) -> Task | Draft:
        """Return the task or the draft that a source means.

        Raises:
            UnknownDependencyError: There is none.
        """
        if isinstance(source, Draft):
            return source
        assert isinstance(source, str), f"{source!r} was read as a need"
        return self._names.find(source, draft)


def _refusal(ended: Ended, error: UsageError) -> Ended:
    """Return the report on an attempt whose tasks were refused; another would bring the same."""
    return Ended(
        "error",
        ended.started_at,
        ended.ended_at,
        # Our own error, of texts alone; so `result()` gives it with all its parts.
        value=dumps_whole(error),
        error_types=class_names(type(error)),
        message=clipped(str(error)),
        permanent=True,
        pid=ended.pid,
        cpu_s=ended.cpu_s,
        peak_rss_bytes=ended.peak_rss_bytes,
        stdout=ended.stdout,
        stderr=ended.stderr,
    )


def heads_of(handlers: Handlers) -> dict[str, bytes | PayloadError]:
    """Pickle handlers, so that tasks can spawn calls of them by their types; in a caller's thread, without the lock.

    Returns:
        What the calls of each begin with; or why it cannot be had, which is no harm until somebody wants it.
    """
    return {type_name: _head_of(type_name, fn) for type_name, fn in handlers.items()}


def _head_of(type_name: str, fn: Callable[..., object]) -> bytes | PayloadError:
    try:
        head = dump_function(called(fn))
    except NotPicklable as error:
        return PayloadError(f"the handler of type {type_name!r} can't be sent to a worker: {error}")
    if head is None:
        return PayloadError(
            f"the handler of type {type_name!r} is too big to be spawned by its type; put it into a module"
        )
    return head
