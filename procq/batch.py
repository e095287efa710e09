"""Makes tasks of the specs of one submit: a spec, or a list, with every spec they depend on (contract C4, E1, E2).

Everything is pickled (draft.py) and checked (making.py) before the queue accepts any of it.  Here
stands what only a submit has: specs that were submitted before, and handles.
"""

from collections.abc import Callable, Mapping
from typing import Any, final

from procq.core.task import Task
from procq.draft import Draft
from procq.errors import UnknownDependencyError, UsageError
from procq.handle import Handle, supervisor_of, task_of
from procq.making import Names, tasks_of
from procq.spec import TaskSpec
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
    drafts: Mapping[TaskSpec[Any], Draft],
    supervisor: Supervisor,
    by_spec: Mapping[TaskSpec[Any], Handle[Any]],
    free_id: Callable[[], str],
) -> tuple[list[Task], dict[TaskSpec[Any], Task]]:
    """Make tasks of the drafts of a submit; the lock is held, and nothing is changed yet.

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
    find = Resolver(supervisor, fresh, by_spec).find
    now = supervisor.engine.now()
    new, tasks = tasks_of(list(fresh.values()), supervisor.scheduler.tasks, find, free_id=free_id, now=now)
    return new, {spec: tasks[draft] for spec, draft in fresh.items()}
