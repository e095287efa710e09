"""Makes tasks of the specs of one submit: a spec, or a list, with every spec they depend on (contract C4, E1, E2).

Everything is pickled (draft.py) and checked (making.py) before the queue accepts any of it.  Here
stands what only a submit has: specs that were submitted before, and handles.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from procq.core.states import WAITING
from procq.core.task import Task
from procq.draft import Draft
from procq.errors import UnknownDependencyError, UsageError
from procq.handle import Handle, supervisor_of, task_of
from procq.making import Batch, Names, tasks_of
from procq.spec import OnConflict, TaskSpec
from procq.supervisor import Supervisor


@final
class Resolver:
    """Finds the task behind a source, among those known and those of the batch; under the lock."""

    __slots__ = ("_by_spec", "_drafts", "_names", "_supervisor")

    def __init__(
        self,
        supervisor: Supervisor,
        drafts: Mapping[TaskSpec[Any], Draft],
        by_spec: Mapping[TaskSpec[Any], Handle[Any]],
    ) -> None:
        self._supervisor = supervisor
        self._drafts = drafts
        self._by_spec = by_spec
        self._names = Names(drafts.values(), supervisor.scheduler.tasks)

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
            return self._names.find(source, draft)
        raise UsageError(f"depends_on={source!r}: expected an id, a handle or a spec")


def tasks_of_specs(
    specs: Iterable[TaskSpec[Any]],
    drafts: Mapping[TaskSpec[Any], Draft],
    supervisor: Supervisor,
    by_spec: Mapping[TaskSpec[Any], Handle[Any]],
    free_id: Callable[[], str],
    on_conflict: OnConflict = "raise",
) -> tuple[Batch, dict[TaskSpec[Any], Task]]:
    """Make tasks of the drafts of a submit; the lock is held, and nothing is changed yet.

    Args:
        specs: What the user submits.
        drafts: Those, and what they depend on.
        supervisor: Whose tasks they will be.
        by_spec: What was submitted already.
        free_id: Makes an id that no task has.
        on_conflict: What becomes of a spec whose id another task has.

    Returns:
        What the drafts come to, and the task of each spec that was not submitted already.

    Raises:
        UsageError: They cannot be accepted.
    """
    known = supervisor.scheduler.tasks
    # Another thread may have submitted one of the specs while this one pickled.
    fresh = {spec: draft for spec, draft in drafts.items() if not is_known(spec, by_spec, known, on_conflict)}
    batch = tasks_of(
        list(fresh.values()),
        known,
        Resolver(supervisor, fresh, by_spec).find,
        free_id=free_id,
        now=supervisor.engine.now(),
        roots=[fresh[spec] for spec in specs if spec in fresh],
        on_conflict=on_conflict,
    )
    return batch, {spec: batch.made[draft] for spec, draft in fresh.items() if draft in batch.made}


def is_known(
    spec: TaskSpec[Any],
    by_spec: Mapping[TaskSpec[Any], Handle[Any]],
    tasks: Mapping[str, Task],
    on_conflict: OnConflict,
) -> bool:
    """Whether a spec was submitted already; with or without the lock.

    Its task may have been replaced since.  Then it is another spec like any other, unless a conflict is
    an error: one spec is one task (contract C1).
    """
    handle = by_spec.get(spec)
    if handle is None:
        return False
    task = task_of(handle)
    return on_conflict == "raise" or tasks.get(task.id, task) is task


def waiting_under(drafts: Iterable[Draft], tasks: Mapping[str, Task]) -> list[Task]:
    """Return the tasks that wait under the ids of drafts; the lock is held."""
    known = [tasks.get(draft.id) for draft in drafts if draft.id is not None]
    return [task for task in known if task is not None and task.status in WAITING]
