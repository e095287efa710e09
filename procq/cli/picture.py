"""What the live display of a run shows: lines made of a `Board`, as wide and as high as there is room.

Pure: it is given the board, the time and the room, and returns lines; who draws them is another's affair.
Where it gets narrow, what people can do without goes first: columns of the table, then the bar, then names.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from procq.cli.board import Attempt, Board, Failure, TypeRow
from procq.cli.terminal import Line, Part, columns_of, cut
from procq.units import format_bytes, format_seconds

#: Rows of the table at most, so that the whole takes about ten lines.
_TYPES_MAX: Final = 5
#: Lines that must be left for a table: its head and a row.
_TABLE_LEAST: Final = 2
_BAR_MOST: Final = 30
_BAR_LEAST: Final = 8
_NAME_MOST: Final = 40
_TYPE_LEAST: Final = 8


class Look(NamedTuple):
    """What a picture is made for."""

    now: float  #: on the clock of the events
    columns: int
    lines: int
    is_unicode: bool  #: whether other signs than ASCII may be used
    heading: str  #: what runs, as the title has it
    notice: str = ""  #: what a run that is being stopped does; takes the heading's place


class _Column(NamedTuple):
    """A column of the table."""

    head: str
    width: int
    dropped: int  #: of those that do not fit, the one with the lowest number goes first
    cell: Callable[[TypeRow], Part]


def _number(value: int, style: str = "") -> Part:
    return ("bad", str(value)) if value and style == "bad" else str(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


_COLUMNS: Final = (
    _Column("blocked", 9, 1, lambda row: _number(row.counts[0])),
    _Column("sched", 7, 2, lambda row: _number(row.counts[1])),
    _Column("ready", 7, 5, lambda row: _number(row.counts[2])),
    _Column("run", 6, 8, lambda row: _number(row.counts[3])),
    _Column("ok", 8, 9, lambda row: _number(row.counts[4])),
    _Column("failed", 8, 7, lambda row: _number(row.counts[5], "bad")),
    _Column("p50", 8, 6, lambda row: _seconds(row.durations.quantile(0.5))),
    _Column("p95", 8, 4, lambda row: _seconds(row.durations.quantile(0.95))),
    _Column("peak", 8, 3, lambda row: format_bytes(row.peak_rss) if row.peak_rss else "-"),
)


def picture(board: Board, look: Look) -> list[Line]:
    """Return the lines that show where a run stands: at most `look.lines`, none wider than `look.columns`."""
    title, bar = _title(board, look), _bar(board, look)
    running = [_running(board, look)] if board.running else []
    failures = [_failure(board.failures[-1], look)] if board.failures else []
    room = look.lines - 2 - len(running) - len(failures)
    table = list(_table(board, look, room)) if room >= _TABLE_LEAST else []
    return [title, bar, *table, *running, *failures][: look.lines]


def _title(board: Board, look: Look) -> Line:
    """Return "procq run etl.py  8 workers  01:42 elapsed, ~00:49 left"."""
    times = f"  {clock(board.elapsed_s(look.now))} elapsed"
    left_s = board.eta_s(look.now) if board.stopping is None or board.stopping[0] == "drain" else None
    if left_s is not None and board.ended_at is None:
        times += f", {'~' if board.all_known else _at_least(look)}{clock(left_s)} left"
    head = shortened(look.notice or look.heading, look.columns - columns_of(times), look)
    return ("warn", head) if look.notice else head, times


def clock(seconds: float) -> str:
    """Write a duration as a clock does: "01:42", "1:02:03"."""
    minutes, whole = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes:02d}:{whole:02d}"


def _at_least(look: Look) -> str:
    return "\N{GREATER-THAN OR EQUAL TO}" if look.is_unicode else ">="


def shortened(text: str, columns: int, look: Look) -> str:
    """Return a text cut to so many columns, with dots where it was cut."""
    if columns_of(text) <= columns:
        return text
    dots = "\N{HORIZONTAL ELLIPSIS}" if look.is_unicode else "..."
    return cut(text, max(0, columns - len(dots))) + dots[: max(0, columns)]


def _bar(board: Board, look: Look) -> Line:
    """Return "[####----]  812/1204 done   3 waiting to retry   1 failed   2 skipped"."""
    counts: list[Part] = [f"{board.ended}/{'' if board.all_known else _at_least(look)}{board.known} done"]
    if board.retrying:
        counts += ["   ", ("warn", f"{board.retrying} waiting to retry")]
    if board.failed:
        counts += ["   ", ("bad", f"{board.failed} failed")]
    if board.skipped:
        counts += ["   ", ("warn", f"{board.skipped} skipped")]
    rate = board.throughput(look.now)
    if rate >= 1:
        counts += ["   ", f"{rate:.0f}/s"]
    taken = sum(columns_of(part if isinstance(part, str) else part[1]) for part in counts)
    width = min(_BAR_MOST, look.columns - taken - len("[]  "))
    if width < _BAR_LEAST:
        return counts
    done = width * board.ended // board.known if board.known else 0
    return "[", ("good", "#" * done), "-" * (width - done), "]  ", *counts


# --- the table -----------------------------------------------------------------------------------


def _table(board: Board, look: Look, room: int) -> Iterator[Line]:
    """Yield the head of the table and its rows, in at most so many lines."""
    rows = list(board.rows())
    if not rows:
        return
    fitting = min(_TYPES_MAX, room - 1)
    if len(rows) > fitting:
        # Those with something to do, in their order; the last line is needed for how many are not shown.
        chosen = sorted(rows, key=lambda row: row.remaining == 0)[: max(1, min(_TYPES_MAX, room - 2))]
        shown = [row for row in rows if row in chosen]
    else:
        shown = rows
    columns = _columns(look, max(len("type"), *(columns_of(row.type or "?") for row in shown)))
    width = look.columns - 1 - sum(column.width for column in columns)
    width = min(width, max(_TYPE_LEAST, *(columns_of(row.type or "?") for row in shown)))
    yield (("dim", f" {'type':<{width}}" + "".join(f"{column.head:>{column.width}}" for column in columns)),)
    for row in shown:
        yield _row(row, columns, width, look)
    if len(shown) < len(rows) and len(shown) + 1 < room:
        yield (("dim", f" +{len(rows) - len(shown)} types"),)


def _columns(look: Look, wanted: int) -> list[_Column]:
    """Return the columns that fit beside the names of the types."""
    columns = list(_COLUMNS)
    least = min(wanted, max(_TYPE_LEAST, look.columns // 4))
    while columns and sum(column.width for column in columns) + least + 1 > look.columns:
        columns.remove(min(columns, key=lambda column: column.dropped))
    return columns


def _row(row: TypeRow, columns: Sequence[_Column], width: int, look: Look) -> Line:
    name = shortened(row.type or "?", width, look)
    parts: list[Part] = [f" {name}{' ' * (width - columns_of(name))}"]
    for column in columns:
        cell = column.cell(row)
        text = cell if isinstance(cell, str) else cell[1]
        parts += [" " * (column.width - len(text)), cell]
    return parts


# --- tasks ---------------------------------------------------------------------------------------


def name_of(task: Attempt | Failure, look: Look) -> str:
    """Return a task as people recognise it: by its arguments if they are known, else by its id."""
    if task.args:
        text = task.args if task.args.startswith(task.type) else f"{task.type}({task.args})"
    else:
        text = task.task_id if task.task_id.startswith(task.type) else f"{task.type} {task.task_id}"
    return shortened(text, min(_NAME_MOST, look.columns // 2), look)


def _running(board: Board, look: Look) -> Line:
    """Return " running  clean(ams/17) 3.1s | clean(lis/9) 2.2s | +6"."""
    text = " running  "
    more = len(board.running)
    for one in board.running.values():
        told = f"{name_of(one, look)} {_age(one, look)}"
        separator = " | " if more < len(board.running) else ""
        rest = f" | +{more - 1}" if more > 1 else ""
        if separator and columns_of(text + separator + told + rest) > look.columns:
            return (f"{text} | +{more}",)
        text += separator + told
        more -= 1
    return (text,)


def _age(one: Attempt, look: Look) -> str:
    """Return how long an attempt has run, and how long it may."""
    age = format_seconds(max(0.0, look.now - one.started_at))
    return age if one.timeout_s is None else f"{age}/{format_seconds(one.timeout_s)}"


def _failure(failure: Failure, look: Look) -> Line:
    """Return "x failed  clean(ber/4)   attempt 2/2  ValueError: no"."""
    most = "" if failure.max_attempts is None else f"/{failure.max_attempts}"
    told = f"  {name_of(failure, look)}   attempt {failure.attempts}{most}  {failure.error}"
    return ("bad", "x failed"), shortened(told, look.columns - len("x failed"), look)
