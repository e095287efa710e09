"""The words of a run: its first line, a failure as it happens, and the closing block.

Returns lines as parts for `Terminal.line` and writes nothing.  "skipped" is how people see
CANCELLED with `DependencyFailed`.
"""

import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from procq.cli.ending import Ending, trimmed
from procq.cli.stopping import Ladder, Step
from procq.cli.tally import Tally
from procq.cli.terminal import Part
from procq.core.task import Cause
from procq.units import format_seconds

Verdict = Literal["ok", "FAILED", "stopped at the deadline", "interrupted"]
Line = tuple[Part, ...]

#: How many failed tasks and origins of skipped ones the closing block names: more than anybody
#: reads, few enough for a CI log.
_NAMED: Final = 200


def start_line(command: str, *, given: Mapping[str, str], workers: int) -> Line:
    """Return the first line: what runs, with which parameters, on how many workers."""
    parts = [command, *(f"{name}={value}" for name, value in given.items()), _count(workers, "worker")]
    return ("  ".join(parts),)


def failure_lines(ending: Ending, *, full: bool) -> Iterator[Line]:
    """Yield the lines for a task that just failed: one, and its traceback.

    Args:
        ending: The failed task.
        full: Whether to show frames that are not the user's.
    """
    yield (
        ("bad", "x failed"),
        f"  {ending.label}  attempt {ending.attempts}/{ending.max_attempts}  {ending.error}   {ending.where}",
    )
    lines = ending.traceback.rstrip().splitlines() if full else trimmed(ending.traceback)
    for line in lines:
        yield (("dim", f"    {line}"),)


def stopping_line(step: Step, ladder: Ladder, *, running: int, limit: str, oldest_s: float | None = None) -> str:
    """Return what a run that is being stopped does now; empty if that is told in another place.

    Args:
        step: How hard it is being stopped.
        ladder: Why.
        running: How many tasks run.
        limit: How the bound on failures was given.
        oldest_s: For how many seconds the oldest of them has run; None: that is not said.
    """
    if ladder.cause == "producer":  # what was wrong with the jobs file is told at the end
        return ""
    if step is Step.KILL_NOW:
        return "killing at once"
    by_hand = ladder.cause == "signal" and (step is Step.KILL or ladder.signal is signal.SIGINT)
    why = "" if by_hand else f"{_what_stops(ladder, limit)}: "
    if not running:
        return f"{why}stopping; nothing is running"
    age = "" if oldest_s is None else f" (oldest {format_seconds(oldest_s)})"
    tasks = f"{_count(running, 'running task')}{age}"
    if step is Step.FINISH:
        return f"{why}finishing {tasks}; Ctrl-C {'again ' if by_hand else ''}kills them"
    return f"{why}stopping {tasks}{', killing what does not; Ctrl-C again kills at once' if by_hand else ''}"


def _what_stops(ladder: Ladder, limit: str) -> str:
    """Return what has stopped a run, as the line about that begins."""
    if ladder.cause == "signal":
        assert ladder.signal is not None, "it stops the run"
        return ladder.signal.name
    return limit if ladder.cause == "max_failures" else "deadline reached"


def reason_of(cause: Cause | None, ladder: Ladder, *, limit: str) -> str:
    """Return why a task was cancelled that was not skipped, as the closing block says it.

    Args:
        cause: The queue's word for it.
        ladder: Why the run is being stopped, if it is.
        limit: How the bound on failures was given.
    """
    match cause:
        case "max_failures":
            return f"stopped by {limit}"
        case "deadline":
            return "the run's deadline had passed"
        case "expired":
            return "it had not started before its `expires`"
        case "shutdown":
            if ladder.signal is None or ladder.cause == "producer":
                return "the jobs file failed"
            return f"interrupted by {'Ctrl-C' if ladder.signal is signal.SIGINT else ladder.signal.name}"
        case _:
            return str(cause)


def closing_lines(tally: Tally, *, verdict: Verdict, elapsed_s: float) -> Iterator[Line]:
    """Yield the closing block: the counts, what failed, what that made be skipped, why others were cancelled."""
    yield (
        ("good" if verdict == "ok" else "bad", verdict),
        f" {_preposition(verdict)} {format_seconds(elapsed_s)}: {_counts(tally)}",
    )
    for ending in tally.failures[:_NAMED]:
        attempts = f"  {_count(ending.attempts, 'attempt')}" if ending.attempts > 1 else ""
        yield (("bad", "  failed"), f"   {ending.label}{attempts}  {ending.error}   {ending.where}")
    if len(tally.failures) > _NAMED:
        yield (("bad", "  failed"), f"   and {_count(len(tally.failures) - _NAMED, 'more task')}; --results lists all")
    labels = {ending.task_id: ending.label for ending in tally.failures}
    for origin, number in tally.skipped.most_common(_NAMED):
        yield (("warn", "  skipped"), f"  {_count(number, 'task')} after {labels.get(origin, origin)}")
    if len(tally.skipped) > _NAMED:
        rest = tally.skipped.total() - sum(number for _, number in tally.skipped.most_common(_NAMED))
        yield (("warn", "  skipped"), f"  {_count(rest, 'task')} after others")
    for reason, number in tally.cancelled.most_common():
        named = tally.named[reason]
        for what in named if number <= len(named) else [_count(number, "task")]:
            yield (("warn", "  cancelled"), f"  {what}: {reason}")


def unread_line(known: int) -> Line:
    """Return the line that says which tasks were not even accepted when the deadline came."""
    which = f"all but the first {_count(known, 'task')}" if known else "all tasks"
    return (("warn", "  not begun"), f"  {which} of the jobs file: the deadline came before they were accepted")


def slowest_line(slowest: Sequence[tuple[str, float]]) -> Line:
    """Return the line that names the tasks with the longest attempts, by their ids."""
    return (f"slowest: {', '.join(f'{task_id} {format_seconds(run_s)}' for task_id, run_s in slowest)}",)


def _preposition(verdict: Verdict) -> str:
    """Return the word between a verdict and a duration."""
    return "in" if verdict in {"ok", "FAILED"} else "after"


def _counts(tally: Tally) -> str:
    """Return "1199 ok (4 after retries), 2 failed, 3 skipped, 0 cancelled"."""
    parts = [f"{tally.ok} ok" + (f" ({tally.retried} after retries)" if tally.retried else "")]
    if tally.went_wrong:
        parts += [
            f"{len(tally.failures)} failed",
            f"{tally.skipped.total()} skipped",
            f"{tally.cancelled.total()} cancelled",
        ]
    if tally.unneeded:
        parts.append(f"{tally.unneeded} not needed")
    if tally.replaced:
        parts.append(f"{tally.replaced} replaced")
    return ", ".join(parts)


def _count(number: int, noun: str) -> str:
    """Return "1 task", "3 tasks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
