"""The attempts of a run as a table: `--trace` as they end, `procq trace` afterwards, both from events.

Pure: events go in, rows come out.  A row waits for what became of the task after the attempt, so it
comes with the next event of that task.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, final

Event = Mapping[str, Any]
Row = dict[str, Any]

COLUMNS: Final = (
    "seq", "id", "type", "attempt", "max_attempts", "outcome", "status", "worker", "pid", "queued_at", "started_at",
    "ended_at", "wait_s", "run_s", "cpu_user_s", "cpu_sys_s", "cpu_pct", "peak_rss", "exit_code", "signal", "error",
    "group", "priority", "args",
)  # fmt: skip

#: What tells where a task is after an attempt.
_PLACES: Final = {"task.scheduled": "scheduled", "task.ready": "ready", "task.blocked": "blocked"}
#: Of the text of a cell; a traceback is not among them, and a message of a megabyte helps nobody in a table.
_CELL_CHARS: Final = 1000
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

HEADER: Final = "\t".join(COLUMNS) + "\n"


def tsv_line(row: Row) -> str:
    """Return a row as text; a backslash, a tab and a line's end are written as in Python."""
    return "\t".join(_cell(row[name]) for name in COLUMNS) + "\n"


def _cell(value: object) -> str:
    """Return a value as text: raw units, nothing for what is unknown."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, str):
        return value[:_CELL_CHARS].translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()
    return str(value)


def rows_of(events: Iterable[Event]) -> Iterator[Row]:
    """Yield a row for each attempt that has ended."""
    attempts = Attempts()
    for event in events:
        yield from attempts.take(event)
    yield from attempts.rest()


@final
class _Known:
    """What is known of a task that has not ended."""

    __slots__ = ("about", "queued_at", "row", "started")

    def __init__(self, about: Event) -> None:
        self.about = about  #: the event of its submission
        self.queued_at: float | None = None  #: since when it may start
        self.started: Event | None = None  #: the beginning of the attempt that runs
        self.row: Row | None = None  #: of the attempt that ended last, without the status


@final
class Attempts:
    """Makes rows of events.

    Holds only the tasks that have not ended.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def take(self, event: Event) -> Iterable[Row]:
        """Take an event; return the rows that are whole now, one at most."""
        kind = event["ev"]
        if kind == "task.submitted":
            self._known[event["id"]] = _Known(event)
            return ()
        if not kind.startswith(("task.", "attempt.")):
            return ()
        known = self._known.get(event["id"])
        if known is None:  # replayed, or its beginning is missing
            known = self._known[event["id"]] = _Known({"id": event["id"]})
        if kind == "attempt.started":
            known.started = event
        elif kind == "attempt.ended":
            known.row = _row(known, event)
            known.started = None
        elif kind == "task.ended":
            del self._known[event["id"]]
            return _whole(known, event["status"])
        elif kind in _PLACES:
            known.queued_at = event["t"] if kind == "task.ready" else None
            return _whole(known, _PLACES[kind])
        return ()

    def rest(self) -> Iterator[Row]:
        """Yield the rows of attempts after which nothing more was told of their tasks."""
        for known in self._known.values():
            yield from _whole(known, None)


def _whole(known: _Known, status: str | None) -> Iterable[Row]:
    """Return the row of a task's last attempt, now that it is known what came of it."""
    row, known.row = known.row, None
    if row is None:
        return ()
    row["status"] = status
    return (row,)


def _row(known: _Known, ended: Event) -> Row:
    """Return what is known of an attempt as it ends."""
    about, started = known.about, known.started or {}
    started_at = ended["t"] - ended["run_s"] if started.get("t") is None else started["t"]
    queued_at = known.queued_at
    error = ended["error"]
    return {
        "seq": ended["seq"],
        "id": ended["id"],
        "type": about.get("type"),
        "attempt": ended["attempt"],
        "max_attempts": about.get("max_attempts"),
        "outcome": ended["outcome"],
        "status": None,
        "worker": started.get("worker"),
        "pid": started.get("pid"),
        "queued_at": queued_at,
        "started_at": started_at,
        "ended_at": ended["t"],
        "wait_s": None if queued_at is None else max(0.0, started_at - queued_at),
        "run_s": ended["run_s"],
        # Workers report the sum of both.
        "cpu_user_s": None,
        "cpu_sys_s": None,
        "cpu_pct": 100 * ended["cpu_s"] / ended["run_s"] if ended["run_s"] > 0 and ended["cpu_s"] is not None else None,
        "peak_rss": ended["peak_rss"],
        "exit_code": ended["exit_code"],
        "signal": ended["signal"],
        "error": None if error is None else _error_text(error),
        "group": about.get("group"),
        "priority": about.get("priority"),
        "args": about.get("args"),
    }


def _error_text(error: Mapping[str, str | None]) -> str:
    """Return "ValueError: text"."""
    return ": ".join(part for part in (error["type"], error["message"]) if part)


def chrome_of(events: Iterable[Event]) -> dict[str, Any]:
    """Return attempts as Chrome's trace event format has them, which Perfetto opens: a lane for each worker."""
    run: Event = {}
    attempts = Attempts()
    rows: list[Row] = []
    for event in events:
        if event["ev"] == "run.started":
            run = event
        rows += attempts.take(event)
    rows += attempts.rest()
    zero = run.get("t", min((row["started_at"] for row in rows), default=0.0))
    pid = run.get("pid", 0)
    lanes = sorted({row["worker"] or 0 for row in rows})
    named = [_meta("process_name", pid, 0, f"procq {run.get('run', '')}".rstrip())]
    named += [_meta("thread_name", pid, lane, f"worker {lane}" if lane else "no worker") for lane in lanes]
    return {"traceEvents": [*named, *(_span(row, pid, zero) for row in rows)], "displayTimeUnit": "ms"}


def _meta(what: str, pid: int, lane: int, name: str) -> Row:
    """Return what names a process or a lane."""
    return {"ph": "M", "name": what, "pid": pid, "tid": lane, "args": {"name": name}}


def _span(row: Row, pid: int, zero: float) -> Row:
    """Return an attempt, its times in microseconds since the run began."""
    shown = ("id", "attempt", "outcome", "status", "wait_s", "cpu_pct", "peak_rss", "error", "args")
    return {
        "ph": "X",
        "name": row["type"] or row["id"],
        "cat": row["outcome"],
        "pid": pid,
        "tid": row["worker"] or 0,
        "ts": (row["started_at"] - zero) * 1e6,
        "dur": row["run_s"] * 1e6,
        "args": {name: row[name] for name in shown if row[name] is not None},
    }
