"""What the end of a task means for the tasks that depend on it (contract E1-E4, F7).

A link runs both ways: up in `conditions.depends_on`, down in `dependents`, and `conditions.unmet` counts
how many of the former have not ended.  Down it is kept until the dependency has succeeded, because any
other end may be taken back by a replay; `trouble.cut` then holds those that it cancelled.

Nothing here gives a task a status: it says what becomes of one, and the scheduler does it.
"""

from collections.abc import Container, Sequence
from typing import Final, Literal, final

from procq.core.states import TERMINAL, UNSUCCESSFUL, Status
from procq.core.task import Cause, Task, by_seq

#: Read through the class, a member of an enum takes 60 ns each time.
_BLOCKED: Final = Status.BLOCKED
_SUCCEEDED: Final = Status.SUCCEEDED

#: Causes of a cancellation that began with a dependency (contract E4).
BY_DEPENDENCY: Final[frozenset[Cause]] = frozenset({"dependency", "not needed"})


@final
class Cut:
    """Why a task is cancelled on account of what it depends on."""

    __slots__ = ("cause", "origin")

    def __init__(self, cause: Cause, origin: str | None) -> None:
        self.cause: Cause = cause
        #: id of the task where the failure began
        self.origin = origin


#: What becomes of a task: it waits for what it depends on, it need not wait any more, or it is cancelled.
Verdict = Literal["waits", "free"] | Cut

_NOT_NEEDED: Final = Cut("not needed", None)


def attach(task: Task) -> Verdict:
    """Make a BLOCKED task wait for those of its dependencies that have not ended."""
    conditions = task.conditions
    if conditions is None or not conditions.depends_on:
        return "free"
    needs_success = task.rules.run_if == "success"
    conditions.unmet = 0
    for dependency in conditions.depends_on:
        if needs_success and dependency.status in UNSUCCESSFUL:
            _remember_cut(dependency, (task,))
            return _cut_by(dependency)
    for dependency in conditions.depends_on:
        if dependency.status is _SUCCEEDED:
            continue
        if dependency.status not in TERMINAL:
            conditions.unmet += 1
        # Also with one that has ended: should it come back, it is waited for again.
        if dependency.dependents is None:
            dependency.dependents = [task]
        else:
            dependency.dependents.append(task)
    return "waits" if conditions.unmet else _once_all_have_ended(task)


def is_waiting(task: Task) -> bool:
    """Whether any dependency of a task has not ended."""
    return any(dependency.status not in TERMINAL for dependency in task.depends_on)


def cut_by(task: Task) -> tuple[int, ...]:
    """Return the numbers of the dependencies whose ends have cancelled a task."""
    if task.cause not in BY_DEPENDENCY:
        return ()
    return tuple(need.seq for need in task.depends_on if task in need.cut)


def recall(task: Task, seqs: Container[int]) -> None:
    """Have those dependencies know it again, for a task that is restored as CANCELLED (F7)."""
    for dependency in task.depends_on:
        if dependency.seq in seqs and dependency.status is not _SUCCEEDED:
            _remember_cut(dependency, (task,))


def waiting_for(dependency: Task) -> list[Task]:
    """Return the tasks that wait for one, in order of submission."""
    if dependency.dependents is None:
        return []
    waiting = [task for task in dict.fromkeys(dependency.dependents) if task.status is _BLOCKED]
    waiting.sort(key=by_seq)
    return waiting


def hear(dependent: Task, ended: Task) -> Verdict:
    """Tell a task that waits that one of its dependencies has ended."""
    if ended.status is not _SUCCEEDED and dependent.rules.run_if == "success":
        return _cut_by(ended)
    conditions = dependent.conditions
    assert conditions is not None, f"{dependent} waits for nothing"
    conditions.unmet -= 1
    return "waits" if conditions.unmet else _once_all_have_ended(dependent)


def settle(ended: Task, told: Sequence[Task], cut: Sequence[Task]) -> None:
    """Keep of the links of a task that has ended, and has told its dependents, what a replay needs."""
    if ended.status is _SUCCEEDED:  # it never comes back
        ended.dependents = None
        if ended.trouble is not None:
            ended.trouble.cut = None
    else:
        ended.dependents = [task for task in told if task.status is _BLOCKED] or None
        _remember_cut(ended, cut)


def reopen(task: Task) -> None:
    """Make those that wait for a task that comes back wait for it again; nothing has cut it off any more.

    The task must still have the cause of its end.
    """
    trouble = task.in_trouble()
    if trouble.cause in BY_DEPENDENCY:
        for dependency in task.depends_on:
            if dependency.trouble is not None and dependency.trouble.cut is not None:
                dependency.trouble.cut.pop(task, None)
    again = waiting_for(task)
    for dependent in again:
        assert dependent.conditions is not None, f"{dependent} waits for nothing"
        dependent.conditions.unmet += 1
    task.dependents = again or None


def _remember_cut(dependency: Task, cut: Sequence[Task]) -> None:
    """Note tasks among those that the end of a dependency cancelled, so that a replay finds them (F7)."""
    if cut:
        trouble = dependency.in_trouble()
        if trouble.cut is None:
            trouble.cut = {}
        trouble.cut.update(dict.fromkeys(cut))


def _once_all_have_ended(task: Task) -> Verdict:
    """Say whether a task runs whose dependencies have all ended, none of them against its `run_if` (E4)."""
    if task.rules.run_if != "failure" or any(
        dependency.status in UNSUCCESSFUL and dependency.cause != "not needed" for dependency in task.depends_on
    ):
        return "free"
    return _NOT_NEEDED


def _cut_by(dependency: Task) -> Cut:
    """Say that a task is cancelled because this one, which it needs to succeed, did not."""
    cause: Cause = "not needed" if dependency.cause == "not needed" else "dependency"
    return Cut(cause, dependency.id if dependency.origin is None else dependency.origin)
