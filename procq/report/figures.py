"""The numbers of a run: percentiles, histograms, curves over time, the longest chain.  Pure arithmetic on columns.

All of them are of all attempts, however many there are; nothing here samples.
"""

from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, isnan, log10
from typing import Final, final

from procq.report.account import BLAMELESS, OUTCOMES, RUNNING, STATUSES, Account

#: Points of a curve; as many as a wide screen tells apart.
POINTS: Final = 300
#: Bars of a histogram for each factor of ten.
BARS_PER_DECADE: Final = 4
_CANCELLED: Final = OUTCOMES.index("cancelled")


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least such a share of them does not exceed; None of no values.

    Args:
        ordered: Ascending.
        share: From 0 to 1.
    """
    if not ordered:
        return None
    # What floating point puts a hair above a whole number is that number: 0.07 * 100 is 7.000000000000001.
    return ordered[max(0, ceil(round(share * len(ordered), 9)) - 1)]


@final
@dataclass(slots=True)
class TypeFigures:
    """What there is to say of one type."""

    name: str
    tasks: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    retried: int = 0  #: tasks with more than one attempt
    runs: "array[float]" = field(default_factory=lambda: array("d"))  #: durations of ended attempts, ascending
    waits: "array[float]" = field(default_factory=lambda: array("d"))  #: ascending
    rss: "array[float]" = field(default_factory=lambda: array("d"))  #: peaks, ascending
    run_s: float = 0.0
    cpu_s: float = 0.0
    cpu_of_s: float = 0.0  #: the running time of attempts whose CPU time is known


@final
@dataclass(slots=True)
class OutcomeFigures:
    """What there is to say of the attempts with one outcome."""

    attempts: int = 0
    run_s: float = 0.0


@final
@dataclass(slots=True)
class Figures:
    """The numbers of a whole run."""

    types: list[TypeFigures]  #: by index of type
    outcomes: dict[str, OutcomeFigures]  #: those that there are, in the order of OUTCOMES
    wall_s: float
    run_s: float  #: of all attempts
    cpu_s: float
    lost_s: float  #: running time of attempts that failed
    retried: int  #: tasks with more than one attempt
    recovered: int  #: those of them that succeeded
    counts: dict[str, int]  #: tasks by status, "" for those that are between two
    order: list[int]  #: indices of types, by running time, those without tasks left out


def figures_of(account: Account) -> Figures:
    """Return the numbers of a run."""
    types = [TypeFigures(name) for name in account.types]
    _count_tasks(account, types)
    outcomes = _count_attempts(account, types)
    for each in types:
        each.runs, each.waits, each.rss = (array("d", sorted(column)) for column in (each.runs, each.waits, each.rss))
    counts: Counter[str] = Counter()
    for each in types:
        counts.update(each.statuses)
    tries, statuses = account.tasks.tries, account.tasks.status
    succeeded = STATUSES.index("succeeded")
    return Figures(
        types=types,
        outcomes={name: outcomes[name] for name in OUTCOMES if outcomes[name].attempts},
        wall_s=wall_s(account),
        run_s=sum(each.run_s for each in types),
        cpu_s=sum(each.cpu_s for each in types),
        lost_s=sum(told.run_s for name, told in outcomes.items() if OUTCOMES.index(name) not in BLAMELESS),
        retried=sum(each.retried for each in types),
        recovered=sum(1 for n, status in zip(tries, statuses, strict=True) if n > 1 and status == succeeded),
        counts=dict(counts),
        order=sorted((i for i in range(len(types)) if types[i].tasks), key=lambda i: (-types[i].run_s, types[i].name)),
    )


def wall_s(account: Account) -> float:
    """Return how long the run took, as far as it is told."""
    told = account.ended.get("elapsed")
    return float(told) if isinstance(told, int | float) else account.last_t - account.first_t


def _count_tasks(account: Account, types: list[TypeFigures]) -> None:
    tasks = account.tasks
    by_place: Counter[tuple[int, int]] = Counter(zip(tasks.type, tasks.status, strict=True))
    for (kind, place), number in by_place.items():
        types[kind].tasks += number
        types[kind].statuses[STATUSES[place]] += number
    for kind, tries in zip(tasks.type, tasks.tries, strict=True):
        if tries > 1:
            types[kind].retried += 1


def _count_attempts(account: Account, types: list[TypeFigures]) -> dict[str, OutcomeFigures]:
    attempts, kinds = account.attempts, account.tasks.type
    outcomes = {name: OutcomeFigures() for name in OUTCOMES}
    by_index = [outcomes[name] for name in OUTCOMES]
    columns = zip(
        attempts.task, attempts.start, attempts.end, attempts.wait, attempts.cpu, attempts.rss, attempts.outcome,
        strict=True,
    )  # fmt: skip
    for task, start, end, wait, cpu, rss, outcome in columns:
        figures = types[kinds[task]]
        run_s = end - start
        figures.attempts += 1
        figures.run_s += run_s
        by_index[outcome].attempts += 1
        by_index[outcome].run_s += run_s
        if outcome != RUNNING:
            figures.runs.append(run_s)
        if wait == wait:  # noqa: PLR0124 - not nan; a call for each of a million attempts is felt
            figures.waits.append(wait)
        if cpu == cpu:  # noqa: PLR0124
            figures.cpu_s += cpu
            figures.cpu_of_s += run_s
        if rss == rss:  # noqa: PLR0124
            figures.rss.append(rss)
    return outcomes


# Histograms.


@final
@dataclass(slots=True)
class Histogram:
    """How many durations lie in each bar, the bars being equally wide on a logarithmic scale."""

    low: int  #: exponent of ten at which it begins
    high: int  #: exponent of ten at which it ends
    bars: list[int]

    def edge(self, bar: int) -> float:
        """Return where a bar begins, in seconds."""
        return float(10 ** (self.low + bar / BARS_PER_DECADE))


def decades(columns: Sequence[Sequence[float]]) -> tuple[int, int]:
    """Return exponents of ten between which all values of ascending columns lie; 10 µs is the least told apart."""
    least = min((column[0] for column in columns if column), default=1.0)
    most = max((column[-1] for column in columns if column), default=1.0)
    low = floor(log10(max(least, 1e-5)))
    return low, max(low + 1, floor(log10(max(most, 1e-5))) + 1)


def histogram(ordered: Sequence[float], low: int, high: int) -> Histogram:
    """Return the histogram of durations on a given scale."""
    bars = [0] * ((high - low) * BARS_PER_DECADE)
    for value in ordered:
        bar = int((log10(value) - low) * BARS_PER_DECADE) if value > 0 else 0
        bars[min(max(bar, 0), len(bars) - 1)] += 1
    return Histogram(low, high, bars)


# Curves over the time of the run.


def busy(account: Account, *, weights: Sequence[float] | None = None) -> list[float]:
    """Return at `POINTS` spans of the run how much was in attempts at most: workers, or their weights.

    Args:
        account: The run.
        weights: What each attempt counts while it runs; nan counts nothing.  Default: 1.
    """
    changes: list[tuple[float, float]] = []
    attempts = account.attempts
    for index in range(len(attempts)):
        weight = 1.0 if weights is None else weights[index]
        if not isnan(weight):
            changes.append((attempts.start[index], weight))
            changes.append((attempts.end[index], -weight))
    changes.sort()  # at one instant what ends comes first: a worker is not counted twice
    return _highest(changes, account)


def waiting(account: Account, places: frozenset[str]) -> list[float]:
    """Return at `POINTS` spans of the run how many tasks were in given places at most."""
    counted = [status in places for status in STATUSES]
    changes = []
    for at, move in zip(account.moves_at, account.moves, strict=True):
        delta = counted[move % 8] - counted[move // 8]
        if delta:
            changes.append((at, float(delta)))
    changes.sort(key=lambda change: change[0])  # as told where the instant is the same
    return _highest(changes, account)


def _highest(changes: Sequence[tuple[float, float]], account: Account) -> list[float]:
    """Return the highest value in each span of a quantity of which the changes are known."""
    span = (account.last_t - account.first_t) / POINTS or 1.0
    points = [0.0] * POINTS
    value, filled = 0.0, 0
    for at, delta in changes:
        here = min(max(int((at - account.first_t) / span), 0), POINTS - 1)
        while filled < here:  # it stood still until then
            filled += 1
            points[filled] = max(points[filled], value)
        value = max(0.0, value + delta)
        points[here] = max(points[here], value)
    for left in range(filled + 1, POINTS):
        points[left] = value
    return points


# The longest chain of dependent tasks.


@final
@dataclass(slots=True)
class Chain:
    """The dependent tasks, first to last, that took longest together."""

    tasks: list[int]
    run_s: float


def longest_chain(account: Account) -> Chain | None:
    """Return the chain that took longest; None if no task depends on another.

    A task counts with all its attempts, without waits between them.
    """
    needs = account.needs
    if not needs:
        return None
    tasks = account.tasks
    needed_by: dict[int, list[int]] = {}
    unmet = array("l", bytes(array("l").itemsize * len(tasks)))
    for at in range(0, len(needs), 2):
        unmet[needs[at]] += 1
        needed_by.setdefault(needs[at + 1], []).append(needs[at])
    total = array("d", tasks.run_s)
    before = array("l", [-1]) * len(tasks)
    ready = deque(index for index in needed_by if not unmet[index])
    best = -1
    while ready:
        index = ready.popleft()
        if best < 0 or total[index] > total[best]:
            best = index
        for dependent in needed_by.get(index, ()):
            if total[index] + tasks.run_s[dependent] >= total[dependent]:
                total[dependent] = total[index] + tasks.run_s[dependent]
                before[dependent] = index
            unmet[dependent] -= 1
            if not unmet[dependent]:
                ready.append(dependent)
    if best < 0:  # a cycle: no true run has one
        return None
    chain, run_s = [best], total[best]
    while before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    return Chain(chain[::-1], run_s)
