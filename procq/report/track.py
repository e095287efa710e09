"""What the script draws the timeline from: columns of whole numbers, as short as JSON has them.

Up to `WHOLE_MAX` attempts all are in it.  Of more the failed and the slowest ones are, and beside them
how busy each lane was with all of them, exactly; `note` says so to the reader.
"""

import heapq
import json
from collections.abc import Mapping
from typing import Final

from procq.report.account import BLAMELESS, OUTCOMES, RUNNING
from procq.report.charts import occupancy
from procq.report.markup import visible
from procq.report.sections import Subject, lane_name

#: All attempts are drawn up to so many: 100,000 make some 3 MB, and one picture takes 40 ms.
WHOLE_MAX: Final = 100_000
#: Of more than those, so many are.
PART_MAX: Final = 20_000
_SPANS: Final = 800
#: Times are counted in the largest unit of which the run has so many at least.
_LEAST_UNITS: Final = 10_000_000
_DIGITS: Final = "0123456789"
_ID_CHARS: Final = 80


def drawn(subject: Subject) -> list[int]:
    """Return which attempts the timeline has, by index and in the order of their starts."""
    attempts = subject.account.attempts
    chosen = range(len(attempts))
    if len(chosen) > WHOLE_MAX:
        # Failed ones first, and the slowest first among each.
        def rank(index: int) -> tuple[bool, float]:
            outcome = attempts.outcome[index]
            return outcome not in BLAMELESS or outcome == RUNNING, attempts.end[index] - attempts.start[index]

        return sorted(heapq.nlargest(PART_MAX, chosen, key=rank), key=attempts.start.__getitem__)
    return sorted(chosen, key=attempts.start.__getitem__)


def note(subject: Subject) -> str:
    """Say what the timeline leaves out; empty if it has everything."""
    number = len(subject.account.attempts)
    if number <= WHOLE_MAX:
        return ""
    failed = sum(outcome not in BLAMELESS for outcome in subject.account.attempts.outcome)
    first = "the failed ones, and beside them the slowest" if failed < PART_MAX else "the slowest of those that failed"
    return (
        f"There were {number:,} attempts, more than can be drawn one by one. The timeline shows {PART_MAX:,} of them: "
        f"{first}. The shade behind them tells how busy each lane was with all. "
        "All numbers and tables of types are of all attempts."
    )


def track(subject: Subject) -> Mapping[str, object]:
    """Return the columns."""
    account = subject.account
    attempts, tasks = account.attempts, account.tasks
    indices = drawn(subject)
    place = {index: nth for nth, index in enumerate(indices)}
    first, wall = account.first_t, account.last_t - account.first_t
    unit = 1e-6
    while wall / unit > _LEAST_UNITS:
        unit *= 10
    starts, before = [], 0
    for index in indices:
        start = round((attempts.start[index] - first) / unit)
        starts.append(start - before)  # the difference to the one before is shorter
        before = start
    return {
        "unit": unit,
        "wall": wall,
        "lanes": [lane_name(account, lane) for lane in range(len(account.lanes))],
        "types": [[visible(name), color] for name, color in zip(account.types, subject.colors, strict=True)],
        "outcomes": OUTCOMES,
        "start": starts,
        "ran": [round((attempts.end[index] - attempts.start[index]) / unit) for index in indices],
        "lane": [attempts.lane[index] for index in indices],
        "type": [tasks.type[attempts.task[index]] for index in indices],
        "id": [visible(tasks.ids[attempts.task[index]][:_ID_CHARS]) for index in indices],
        # Most are the first attempt and ended well; of the others: which, and what.
        "nth": [[nth, attempts.number[index]] for nth, index in enumerate(indices) if attempts.number[index] != 1],
        "out": [[nth, attempts.outcome[index]] for nth, index in enumerate(indices) if attempts.outcome[index]],
        "errors": {place[index]: visible(error) for index, error in account.attempt_errors.items() if index in place},
        "again": [[place[old], place[new]] for new, old in account.backoffs.items() if old in place and new in place],
        "density": _density(subject) if len(attempts) > len(indices) else [],
    }


def _density(subject: Subject) -> list[str]:
    """Return for each lane a digit for each span of time: how busy it was, 9 is always."""
    shades = []
    for cells in occupancy(subject.account, _SPANS):
        busy = [0.0] * _SPANS
        for (span, _kind), share in cells.items():
            busy[span] += share
        shades.append("".join(_DIGITS[min(9, int(share * 9 + 0.999))] for share in busy))
    return shades


def as_json(columns: Mapping[str, object]) -> str:
    """Return JSON that can stand in a script element: nothing in it can end that."""
    told = json.dumps(columns, separators=(",", ":"), allow_nan=False)
    return told.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
