# Medians, ratios and the Markdown table, all from the lines of single runs.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf
from pathlib import Path
from statistics import median
from typing import Final

from bench.peers import BARE, OURS, PEERS
from bench.rows import ROWS, Goal, Row
from bench.runner import Line

BEGIN: Final = "<!-- bench: begin -->"
END: Final = "<!-- bench: end -->"
NOTHING: Final = "-"
NEVER: Final = "never"


# What one subject reached in one row; infinite stands for never.
@dataclass(frozen=True, slots=True)
class Figure:
    numbers: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.numbers)

    # Median, and from where to where if that is more than one number.
    def told(self, digits: int) -> str:
        middle, low, high = (told(number, digits) for number in (self.median, min(self.numbers), max(self.numbers)))
        return middle if low == high else f"{middle} ({low} to {high})"


def told(number: float, digits: int) -> str:
    return NEVER if isinf(number) else f"{number:,.{digits}f}"


# All that the table says about one row.
@dataclass(frozen=True, slots=True)
class Finding:
    workload: str
    row: Row
    figures: Mapping[str, Figure]
    # The best peer that has a figure, if any.
    best: str | None

    # procq's figure over a peer's; None if one of them has none, or nothing to divide by.
    def ratio(self, peer: str | None) -> float | None:
        ours, theirs = self.figures.get(OURS), None if peer is None else self.figures.get(peer)
        if ours is None or theirs is None or not theirs.median or isinf(theirs.median) or isinf(ours.median):
            return None
        return ours.median / theirs.median

    # Whether the goal is met; None if there is none, or it cannot be told.
    def is_met(self) -> bool | None:
        goal, ours = self.row.goal, self.figures.get(OURS)
        if ours is None or (goal.times is None and goal.figure is None):
            return None
        if isinf(ours.median):
            return False
        answers = []
        if goal.times is not None:
            ratio = self.ratio(goal.peer or self.best)
            if ratio is None:
                return None
            answers.append(self._reaches(ratio, goal.times))
        if goal.figure is not None:
            answers.append(self._reaches(ours.median, goal.figure))
        return all(answers)

    # Compared as the table tells them, or it would call 50.04 missed and print 50.
    def _reaches(self, number: float, wanted: float) -> bool:
        return number >= wanted if self.row.better == "more" else number <= wanted


# The figure of a workload that only procq has; None if it was not measured.
def figure_of(lines: Sequence[Line], workload: str, value: str) -> Figure | None:
    found = [line.values[value] for line in lines if line.workload == workload]
    numbers = tuple(number for number in found if number is not None)
    return Figure(numbers) if numbers else None


# Of the tries of one repetition the one that others disturbed least counts.
def least_disturbed(lines: Sequence[Line]) -> list[Line]:
    kept: dict[tuple[str, str, int], Line] = {}
    for line in lines:
        place = (line.workload, line.subject, line.rep)
        if line.values and (place not in kept or (line.others or 0) < (kept[place].others or 0)):
            kept[place] = line
    return list(kept.values())


def findings(lines: Sequence[Line]) -> Iterator[Finding]:
    counted = least_disturbed(lines)
    for workload, rows in ROWS.items():
        if any(line.workload == workload for line in lines):
            for row in rows:
                figures = {
                    subject: Figure(numbers)
                    for subject in (*PEERS, BARE)
                    if (numbers := numbers_of(counted, workload, subject, row.value))
                }
                yield Finding(workload, row, figures, best_of(figures, row))


def numbers_of(lines: Sequence[Line], workload: str, subject: str, value: str) -> tuple[float, ...]:
    found = [
        line.values[value]
        for line in lines
        if (line.workload, line.subject) == (workload, subject) and value in line.values
    ]
    return tuple(inf if number is None else number for number in found)


# "Never" is no figure to be best with, not even where nobody has another.
def best_of(figures: Mapping[str, Figure], row: Row) -> str | None:
    medians = {
        subject: figure.median
        for subject, figure in figures.items()
        if subject not in (OURS, BARE) and not isinf(figure.median)
    }
    if not medians:
        return None
    return max(medians, key=medians.__getitem__) if row.better == "more" else min(medians, key=medians.__getitem__)


# --- Markdown --------------------------------------------------------------------------------------


def markdown(lines: Sequence[Line], limit: float, facts: Sequence[str]) -> Iterator[str]:
    yield from facts
    yield ""
    yield f"| 2 workers; median (min to max) | {OURS} | best peer | ratio | goal | bare | other peers | disturbed |"
    yield "|---|---|---|---|---|---|---|---|"
    for finding in findings(lines):
        cells = (
            finding.row.title,
            cell(finding, OURS),
            NOTHING if finding.best is None else f"{PEERS[finding.best].title}: {cell(finding, finding.best)}",
            told_ratio(finding.ratio(finding.best)),
            told_goal(finding),
            cell(finding, BARE),
            others(finding),
            disturbed(lines, finding.workload, limit),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield from notes(lines)


def cell(finding: Finding, subject: str) -> str:
    figure = finding.figures.get(subject)
    return NOTHING if figure is None else figure.told(finding.row.digits)


# All digits that tell something, whether it is 0.004 or 40.
def told_ratio(ratio: float | None) -> str:
    if ratio is None:
        return NOTHING
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"  # noqa: PLR2004


def told_goal(finding: Finding) -> str:
    goal, sign = finding.row.goal, ">=" if finding.row.better == "more" else "<="
    parts = [] if goal.times is None else [f"{sign} {goal.times:g} x {whom(goal)}"]
    if goal.figure is not None:
        parts.append(f"{sign} {goal.figure:,.15g}")
    met = finding.is_met()
    if met is not None:
        parts[-1] += ": met" if met else ": **missed**"
    return ", ".join(parts)


def whom(goal: Goal) -> str:
    return "best" if goal.peer is None else PEERS[goal.peer].title


# From the best to the worst; medians alone, or nobody would read it.
def others(finding: Finding) -> str:
    rest = [subject for subject in finding.figures if subject not in (OURS, BARE, finding.best)]
    rest.sort(key=lambda subject: finding.figures[subject].median, reverse=finding.row.better == "more")
    digits = finding.row.digits
    told_rest = [f"{PEERS[subject].title} {told(finding.figures[subject].median, digits)}" for subject in rest]
    return "; ".join(told_rest) or NOTHING


# How many of the runs that count were disturbed all the same, and how many were repeated.
def disturbed(lines: Sequence[Line], workload: str, limit: float) -> str:
    tried = [line for line in lines if line.workload == workload and line.values]
    counted = least_disturbed(tried)
    text = f"{sum(line.is_disturbed(limit) for line in counted)} of {len(counted)}"
    return text if len(tried) == len(counted) else f"{text}, {len(tried) - len(counted)} repeated"


# Why a figure is missing, or comes from fewer runs than the others.
def notes(lines: Sequence[Line]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if line.subject not in PEERS:
            continue
        title = PEERS[line.subject].title
        if line.cannot is not None:
            reasons.setdefault(f"{title}: {line.cannot}", []).append(line.workload)
        elif line.failed is not None:
            reasons.setdefault(f"{title}: failed ({line.failed})", []).append(line.workload)
    for reason, workloads in sorted(reasons.items()):
        yield f"- {reason} ({', '.join(dict.fromkeys(workloads))})."
    yield from few_runs(lines)


def few_runs(lines: Sequence[Line]) -> Iterator[str]:
    counted = least_disturbed(lines)
    reps = max((line.rep for line in lines), default=0) + 1
    stopped = {(line.workload, line.subject) for line in lines if line.failed or line.cannot}
    few: dict[tuple[str, int], list[str]] = {}
    for workload, subject in dict.fromkeys((line.workload, line.subject) for line in counted if line.subject in PEERS):
        count = sum((line.workload, line.subject) == (workload, subject) for line in counted)
        if count < reps and (workload, subject) not in stopped:
            few.setdefault((subject, count), []).append(workload)
    for (subject, count), workloads in few.items():
        runs = "one run" if count == 1 else f"{count} runs"
        yield f"- {PEERS[subject].title}: {runs} only, because each takes so long ({', '.join(workloads)})."


# Puts the table between the two marks of a file; the file is made if there is none.
def write_between_marks(path: Path, table: str) -> None:
    text = path.read_text() if path.exists() else f"{BEGIN}\n{END}\n"
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path}: there must be a line {BEGIN} and after it a line {END}")
    path.write_text(f"{before}{BEGIN}\n\n{table.strip()}\n\n{END}{after}")
