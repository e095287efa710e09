"""Ready tasks in several sets of lanes: by group of workers (contract B7), and by level, served in turns (B6).

Whatever the scheduler holds has the same face, that of `ReadyLanes`: one set of lanes where there is one
group and the order is that of ranks, `FairLanes` where levels share, `GroupedLanes` of either where there
are several groups.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol, final

from procq.core.gates import Gate
from procq.core.lanes import Key, ReadyLanes
from procq.core.policies import Policy, WeightedFair
from procq.core.task import Task
from procq.slots import DEFAULT_GROUP


class Ready(Protocol):
    """All and only the READY tasks that are not sent ahead."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Task]: ...

    def count(self, group: str = ...) -> int:
        """Return how many tasks of a group wait."""

    def push(self, task: Task) -> None:
        """Take in a task under its rank and sequence number, both fixed for life."""

    def discard(self, task: Task) -> None:
        """Take a task out of the middle."""

    def peek(self, group: str = ...) -> Task | None:
        """Return the task of a group to start next, or None."""

    def pop(self, task: Task) -> None:
        """Take out the task that `peek` returned."""

    def before(self, task: Task) -> int:
        """Return how many tasks that may start come before one that waits: of its group, and of its level; O(n)."""

    def key(self, task: Task) -> Key:
        """Sort key of a group's next task among those of it that were popped and have not begun."""

    def began(self, task: Task) -> None:
        """A task that was popped has begun."""

    def returned(self, task: Task) -> None:
        """A task that was popped has not begun after all."""

    def shut(self) -> Iterator[Task]:
        """Yield the most urgent task of each type whose gate is shut, of each group and level."""

    def check_invariants(self) -> None:
        """Assert that everything stands where it should; O(n), for tests."""


def shared_lanes(policy: Policy | None, gates: Mapping[str, Gate], groups: Sequence[str]) -> Ready:
    """Build what ready tasks wait in where there are several groups, or levels with shares.

    Args:
        policy: In which order they start; None: by priority.
        gates: What stands before their start, by type.
        groups: The groups of workers there are.
    """
    sets = [FairLanes(policy, gates) if isinstance(policy, WeightedFair) else ReadyLanes(gates) for _ in groups]
    return sets[0] if len(sets) == 1 else GroupedLanes(dict(zip(groups, sets, strict=True)))


@final
class FairLanes:
    """The ready tasks of one group, where every level gets its share (B6).

    Start-time fair queueing.  Each level has a clock, which goes a stride forward whenever one of its
    tasks is given out; the stride is the shorter, the heavier the level.  Next comes the level whose clock
    is the furthest behind, the higher one if two are equal.  A level that had nothing to start for
    a while has its clock set to that of whoever began last: it comes next, and is owed nothing more.

    Args:
        policy: The levels.
        gates: As `ReadyLanes`.
    """

    __slots__ = ("_clocks", "_given", "_levels", "_now", "_policy")

    def __init__(self, policy: WeightedFair, gates: Mapping[str, Gate]) -> None:
        self._policy = policy
        self._levels = [ReadyLanes(gates) for _ in policy.strides]
        self._clocks = [0] * len(self._levels)
        #: what the clock of the task that began last showed when it was given out; never goes back
        self._now = 0
        #: likewise of those that were given out and have not begun, by sequence number
        self._given: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._levels))

    def __iter__(self) -> Iterator[Task]:
        return chain.from_iterable(self._levels)

    def count(self, _group: str = DEFAULT_GROUP) -> int:
        """Return how many tasks wait."""
        return len(self)

    def push(self, task: Task) -> None:
        """Take in a task."""
        self._levels[self._level(task)].push(task)

    def discard(self, task: Task) -> None:
        """Take a task out of the middle."""
        self._levels[self._level(task)].discard(task)

    def peek(self, _group: str = DEFAULT_GROUP) -> Task | None:
        """Return the first task of the level whose turn it is; None: no level has any that may start."""
        best: Task | None = None
        best_clock = 0
        for level, lanes in enumerate(self._levels):
            clock = self._clocks[level]
            if best is not None and clock >= best_clock:
                continue
            task = lanes.peek()
            if task is not None:
                best, best_clock = task, clock
        return best

    def pop(self, task: Task) -> None:
        """Give out the task that `peek` returned: its level has had a turn."""
        level = self._level(task)
        self._levels[level].pop(task)
        clock = self._clocks[level]
        self._given[task.seq] = clock
        self._clocks[level] = clock + self._policy.strides[level]

    def before(self, task: Task) -> int:
        """Return how many tasks of its level that may start come before one that waits; O(n)."""
        return self._levels[self._level(task)].before(task)

    def key(self, task: Task) -> Key:
        """Sort key: what the clock shows or showed, and the higher level first."""
        level = self._level(task)
        given = self._given.get(task.seq)
        return self._clocks[level] if given is None else given, level

    def began(self, task: Task) -> None:
        """A task that was given out has begun: the clock of each level that has nothing to start goes along.

        That of any other is left alone.  It is behind where some of its tasks were given out and came back,
        while others have begun: that it is owed.  Nor is a level that had nothing put before it.
        """
        now = self._now = max(self._now, self._given.pop(task.seq))
        clocks = self._clocks
        idle = []
        for level, lanes in enumerate(self._levels):
            if lanes.peek() is None:
                idle.append(level)
            elif clocks[level] < now:
                now = clocks[level]
        for level in idle:
            clocks[level] = max(clocks[level], now)

    def returned(self, task: Task) -> None:
        """A task that was given out has not begun: its level gets the turn back."""
        self._given.pop(task.seq, None)
        level = self._level(task)
        self._clocks[level] -= self._policy.strides[level]

    def shut(self) -> Iterator[Task]:
        """Yield the most urgent task of each type whose gate is shut, of each level."""
        return chain.from_iterable(lanes.shut() for lanes in self._levels)

    def _level(self, task: Task) -> int:
        return self._policy.level(task.rules.priority)

    def check_invariants(self) -> None:
        """Assert that everything stands where it should; O(n), for tests."""
        for level, lanes in enumerate(self._levels):
            lanes.check_invariants()
            assert all(self._level(task) == level for task in lanes), f"a task of another level than {level}"


@final
class GroupedLanes:
    """The ready tasks of several groups (B7)."""

    __slots__ = ("_by_group",)

    def __init__(self, by_group: Mapping[str, ReadyLanes | FairLanes]) -> None:
        self._by_group = by_group

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    def __iter__(self) -> Iterator[Task]:
        lanes: Iterable[Iterable[Task]] = self._by_group.values()
        return chain.from_iterable(lanes)

    def count(self, group: str = DEFAULT_GROUP) -> int:
        """Return how many tasks of a group wait."""
        return len(self._by_group[group])

    def push(self, task: Task) -> None:
        """Take in a task."""
        self._by_group[task.rules.group].push(task)

    def discard(self, task: Task) -> None:
        """Take a task out of the middle."""
        self._by_group[task.rules.group].discard(task)

    def peek(self, group: str = DEFAULT_GROUP) -> Task | None:
        """Return the task of a group to start next, or None."""
        return self._by_group[group].peek()

    def pop(self, task: Task) -> None:
        """Take out the task that `peek` returned."""
        self._by_group[task.rules.group].pop(task)

    def before(self, task: Task) -> int:
        """Return how many tasks of its group that may start come before one that waits; O(n)."""
        return self._by_group[task.rules.group].before(task)

    def key(self, task: Task) -> Key:
        """Sort key among the tasks of its group."""
        return self._by_group[task.rules.group].key(task)

    def began(self, task: Task) -> None:
        """A task that was popped has begun."""
        self._by_group[task.rules.group].began(task)

    def returned(self, task: Task) -> None:
        """A task that was popped has not begun after all."""
        self._by_group[task.rules.group].returned(task)

    def shut(self) -> Iterator[Task]:
        """Yield the most urgent task of each type whose gate is shut, of each group."""
        return chain.from_iterable(lanes.shut() for lanes in self._by_group.values())

    def check_invariants(self) -> None:
        """Assert that everything stands where it should; O(n), for tests."""
        for group, lanes in self._by_group.items():
            lanes.check_invariants()
            assert all(task.rules.group == group for task in lanes), f"a task of another group than {group}"
