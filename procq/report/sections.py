"""The eight sections of a report, each as HTML: the words, numbers, tables and pictures in it.

Every number here comes from `Figures`, `Account` or `run.ended`; what is cut is said in words beside it.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isnan
from typing import Final, final

from procq.report import charts, graph
from procq.report.account import ARGS_MAX, BLAMELESS, OUTCOMES, Account, Try, cut, text
from procq.report.figures import (
    Chain,
    Figures,
    TypeFigures,
    busy,
    decades,
    histogram,
    longest_chain,
    percentile,
    waiting,
)
from procq.report.markup import duration, percent, plural, safe, size, table, user

#: Rows of the table of all attempts; the trace file has the others.
ROWS_MAX: Final = ARGS_MAX
#: Rows of any other table that might have more.
_FEW: Final = 100
#: Types that have a colour of their own; the others share a ninth.
COLORS: Final = 8
#: Failures that are open when the page is.
_OPEN: Final = 3

#: How many tasks there are, by status, and how people are told of them.
_VERDICTS: Final[Mapping[str, tuple[str, str]]] = {
    "ok": ("\u2713", "OK"),
    "failed": ("\u2717", "FAILED"),
    "stopped": ("\u25a0", "STOPPED"),
    "unfinished": ("\u2026", "UNFINISHED"),
}


@final
@dataclass(slots=True)
class Subject:
    """What a report is about."""

    account: Account
    figures: Figures
    about: Mapping[str, object]  #: what the state directory says of the run, perhaps nothing
    colors: list[int]  #: the number of each type's colour
    chain: Chain | None

    @classmethod
    def of(cls, account: Account, figures: Figures, about: Mapping[str, object]) -> "Subject":
        """Return the subject that a run is."""
        rank = {kind: min(nth, COLORS) for nth, kind in enumerate(figures.order)}
        colors = [rank.get(kind, COLORS) for kind in range(len(account.types))]
        return cls(account, figures, about, colors, longest_chain(account))

    def fact(self, name: str) -> object:
        """Return what is known of the run by this name: from its first event, else from its directory."""
        told = self.account.started.get(name)
        return self.about.get(name) if told is None else told

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks there are by status; the run's own counters if it came to tell them."""
        told = self.account.ended.get("counts")
        if isinstance(told, Mapping):
            return {str(name): number for name, number in told.items() if isinstance(number, int)}
        return self.figures.counts

    @property
    def skipped(self) -> int:
        """How many tasks were cancelled because one that they need did not succeed."""
        return self.account.causes["dependency"]

    @property
    def workers(self) -> int:
        """How many workers the run had."""
        told = self.fact("workers")
        return told if isinstance(told, int) else len(self.account.lanes)

    @property
    def verdict(self) -> str:
        """How the run ended; a key of `_VERDICTS`."""
        if not self.account.ended:
            return "unfinished"
        counts = self.counts
        left = sum(counts.get(name, 0) for name in ("blocked", "scheduled", "ready", "running"))
        if left or self.account.causes.keys() & {"shutdown", "deadline", "max_failures"}:
            return "stopped"
        needless = self.account.causes["not needed"] + self.account.causes["replaced"]
        return "failed" if counts.get("failed", 0) + counts.get("cancelled", 0) - needless > 0 else "ok"


def title(subject: Subject) -> str:
    """Return the name of the page."""
    named = text(subject.fact("file")) or text(subject.fact("command")) or "a queue"
    return f"{_VERDICTS[subject.verdict][1]}: {cut(named, 80)}, run {cut(_run_id(subject), 40)}"


def _run_id(subject: Subject) -> str:
    return text(subject.about.get("run")) or text(subject.account.started.get("run")) or "(unknown)"


# 1. What came of it.


def verdict(subject: Subject) -> str:
    """Return the head of the page: how it ended, the counts, and what ran where."""
    sign, word = _VERDICTS[subject.verdict]
    return (
        f'<header class="verdict {subject.verdict}"><h1><span aria-hidden="true">{sign}</span> {word}'
        f"<small>{_ending(subject)}</small></h1>\n{_tiles(subject)}</header>\n"
    ) + _section("run", "The run", _facts(subject) + _notes(subject))


def _ending(subject: Subject) -> str:
    account, counts = subject.account, subject.counts
    after = f"after {duration(subject.figures.wall_s)}"
    cause = text(account.stopping.get("cause"))
    if subject.verdict == "unfinished":
        running = subject.figures.counts.get("running", 0)
        return (
            f"no end is told: the events stop {safe(after)} with {plural(running, 'task')} running; "
            "the run was killed, or goes on still"
        )
    if subject.verdict == "stopped":
        why = {"deadline": "its deadline had come", "max_failures": "too many tasks had failed"}.get(cause)
        return f"{safe(after)}" + (f": {why}" if why else ", before all the work was done")
    if subject.verdict == "failed":
        return f"{safe(after)}: {plural(counts.get('failed', 0), 'task')} failed" + (
            f", {subject.skipped:,} skipped because of them" if subject.skipped else ""
        )
    return safe(after)


def _tiles(subject: Subject) -> str:
    figures, counts = subject.figures, subject.counts
    known = {name: counts.get(name, 0) for name in ("succeeded", "failed", "cancelled")}
    left = sum(counts.values()) - sum(known.values())
    tiles = [
        ("succeeded", f"{known['succeeded']:,}", f"{figures.recovered:,} after retries" if figures.recovered else ""),
        ("failed", f"{known['failed']:,}", ""),
        ("cancelled", f"{known['cancelled']:,}", f"{subject.skipped:,} of them skipped" if subject.skipped else ""),
    ]
    if left:
        tiles.append(("not ended", f"{left:,}", ""))
    wall, cpu = figures.wall_s, _cpu_s(subject)
    used = figures.run_s / (wall * subject.workers) if wall > 0 and subject.workers else None
    tiles += [
        ("wall time", duration(wall), ""),
        ("CPU time", duration(cpu), f"{cpu / wall:.1f} CPUs on average" if wall > 0 else ""),
        ("utilisation", percent(used), f"of {plural(subject.workers, 'worker')}"),
    ]
    shown = "".join(
        f'<div class="{safe(name.split()[0])}{"" if value != "0" else " zero"}"><dt>{safe(name)}</dt>'
        f"<dd>{safe(value)}{f'<small>{safe(more)}</small>' if more else ''}</dd></div>"
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'


def _cpu_s(subject: Subject) -> float:
    told = subject.account.ended.get("cpu_s")
    return float(told) if isinstance(told, int | float) else subject.figures.cpu_s


def _facts(subject: Subject) -> str:
    """Return what ran, where and when, as a list."""
    fact = subject.fact
    params = fact("params")
    if isinstance(params, Mapping):
        params = "  ".join(f"{name}={value}" for name, value in params.items())
    argv = fact("argv")
    command = shlex.join(map(str, argv)) if isinstance(argv, list) else text(fact("command"))
    entry, file = text(fact("entry")), text(fact("file"))
    ended_t = subject.account.last_t
    pairs = [
        ("command", command),
        ("jobs file", f"{file}:{entry}" if file and entry else file),
        ("parameters", text(params)),
        ("run", _run_id(subject)),
        ("began", _instant(subject.account.first_t)),
        ("ended" if subject.account.ended else "last event", _instant(ended_t)),
        ("exit code", text(subject.about.get("exit_code"))),
        ("workers", str(subject.workers)),
        ("host", text(fact("host"))),
        ("process", text(fact("pid"))),
        ("folder", text(fact("cwd"))),
        ("Python", text(fact("python"))),
        ("procq", text(fact("procq"))),
    ]
    rows = "".join(f"<div><dt>{name}</dt><dd>{user(cut(value, 1000))}</dd></div>" for name, value in pairs if value)
    return f'<dl class="facts">{rows}</dl>\n'


def _instant(t: float) -> str:
    try:
        return datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if t > 0 else ""
    except (ValueError, OverflowError, OSError):  # no time that a calendar has
        return ""


def _notes(subject: Subject) -> str:
    """Return what the reader has to know of the numbers, and what the queue warned of."""
    account, notes = subject.account, []
    if account.missing:
        notes.append(
            f"{plural(account.missing, 'event')} are missing in the stream, so some figures below are too low; "
            "the counts of tasks above are the run's own."
            if account.ended
            else f"{plural(account.missing, 'event')} are missing in the stream, so some figures are too low."
        )
    shown = "".join(f'<p class="note">{note}</p>\n' for note in notes)
    if account.warnings:
        items = "".join(
            f"<li>{duration(at - account.first_t)}: {user(told)}</li>" for at, told in account.warnings[:_FEW]
        )
        shown += f"<h3>Warnings</h3><ul>{items}</ul>\n"
    return shown


# 2. What failed.


def failures(subject: Subject) -> str:
    """Return the tasks that failed, each with its attempts, and what became of others because of them."""
    account = subject.account
    number = subject.counts.get("failed", 0)
    if not number and not account.errors and not account.causes:
        return _section("failures", "Failures", "<p>No task failed.</p>")
    parts = [] if account.errors else ["<p>No task failed.</p>"]
    groups = Counter((account.tasks.type[index], error) for index, error in account.errors.items())
    if len(account.errors) > 1:
        rows = [
            (user(account.types[kind]), _long(error), f"{times:,}") for (kind, error), times in groups.most_common(_FEW)
        ]
        parts.append(
            table("Failed tasks by their last error", ("type", "error", "tasks"), rows, numeric=frozenset({2}))
        )
        parts.append(_more(len(groups), _FEW, "kinds of error"))
    told = list(account.failed.items())
    parts += [_failure(account, index, tries, is_open=nth < _OPEN) for nth, (index, tries) in enumerate(told)]
    parts.append(_more(len(account.errors), len(told), "failed tasks", where="the table of all attempts and the trace"))
    if account.causes:
        rows = [(user(cause), _because(cause), f"{times:,}") for cause, times in account.causes.most_common()]
        heads = ("cause", "that is", "tasks")
        parts.append(table("Cancelled tasks by cause", heads, rows, numeric=frozenset({2})))
    return _section("failures", "Failures", "\n".join(parts))


def _because(cause: str) -> str:
    """Say why tasks were cancelled."""
    return {
        "dependency": "skipped: a task that they need did not succeed",
        "cancelled": "somebody cancelled them",
        "replaced": "another task took their place",
        "expired": "they had not started in time",
        "not needed": "nothing that they were to follow failed",
        "shutdown": "the run was stopped",
        "max_failures": "too many others had failed",
        "deadline": "the run's deadline had come",
    }.get(cause, "")


def _more(there_are: int, shown: int, what: str, *, where: str = "the trace") -> str:
    if there_are <= shown:
        return ""
    return f'<p class="note">The first {shown:,} of {there_are:,} {what} are shown; {where} has the others.</p>'


def _failure(account: Account, index: int, tries: Sequence[Try], *, is_open: bool) -> str:
    """Return one failed task."""
    tasks = account.tasks
    task_id = tasks.ids[index]
    allowed = tasks.max_attempts[index]
    charged = f"attempt {tries[-1].number}/{allowed}" if tries and allowed else ""
    skipped = account.origins[task_id]
    args = account.args.get(index, "")
    head = (
        f'<summary><span class="bad" aria-hidden="true">\u2717</span> <b>{user(task_id)}</b> '
        f'<span class="dim">{user(account.types[tasks.type[index]])} {charged}</span>'
        f'<span class="error">{user(account.errors[index])}</span></summary>'
    )
    body = [f'<p class="dim">{user(args)}</p>'] if args else []
    if skipped:
        body.append(f"<p>{plural(skipped, 'task was', 'tasks were')} skipped because of it.</p>")
    if tries:
        body.append(_history(account, tries))
    for each in reversed(tries[-3:]):  # the last ones: what came before mostly says the same
        body += _texts(each)
    return f'<details{" open" if is_open else ""} class="failure">{head}\n{"".join(body)}</details>'


def _history(account: Account, tries: Sequence[Try]) -> str:
    attempts = account.attempts
    rows = [
        (
            f"{each.number}",
            _outcome(each.outcome),
            duration(attempts.start[each.index] - account.first_t),
            duration(attempts.end[each.index] - attempts.start[each.index]),
            size(attempts.rss[each.index]),
            "-" if attempts.worker[each.index] < 0 else f"{attempts.worker[each.index]}",
            _long(cut(_told(each), 300)) if each.outcome != "ok" else "",
        )
        for each in tries[-_FEW:]
    ]
    heads = ("attempt", "outcome", "began at", "ran", "peak memory", "worker", "error")
    return table("Attempts", heads, rows, numeric=frozenset({2, 3, 4, 5}))


def _told(each: Try) -> str:
    """Return what went wrong, and how the process ended if that is not said yet."""
    return each.error if each.ending in each.error else f"{each.error} ({each.ending})"


def _long(value: str) -> str:
    """Return a text that needs some width to be read."""
    return f'<bdi class="long">{safe(value)}</bdi>'


def _texts(each: Try) -> Iterator[str]:
    """Yield the long texts of an attempt."""
    if "\n" in each.message.strip() or len(each.message) > 300:  # noqa: PLR2004 - more than the table shows
        yield f"<h3>Message of attempt {each.number}</h3>{_block(each.message, f'message of attempt {each.number}')}"
    if each.traceback:
        label = f"traceback of attempt {each.number}"
        yield f"<h3>Traceback of attempt {each.number}</h3>{_block(each.traceback, label)}"
    if each.output:
        label = f"output of attempt {each.number}"
        yield f"<h3>Output of attempt {each.number}, its end</h3>{_block(each.output, label)}"


def _block(value: str, label: str) -> str:
    return f'<pre tabindex="0" role="group" aria-label="{label}">{safe(value)}</pre>'


def _outcome(name: str) -> str:
    look = "good" if name == "ok" else "bad" if name not in _CALM else "dim"
    return f'<span class="{look}">{safe(name)}</span>'


_CALM: Final = frozenset(OUTCOMES[index] for index in BLAMELESS)


# 3. When it ran.


def timeline(subject: Subject, *, note: str) -> str:
    """Return the timeline as a strip, with a place for the one that the script draws, and as a table.

    Args:
        subject: The run.
        note: What the script's timeline leaves out, in words; may be empty.
    """
    account = subject.account
    if not len(account.attempts):
        return _section("timeline", "Timeline", "<p>No attempt was begun.</p>")
    lanes = charts.occupancy(account, charts.STRIP_SPANS)
    label = f"timeline of {plural(len(lanes), 'lane')}; the table below it has the same by worker"
    strip = charts.strip(account, subject.colors, lanes, label)
    legend = "".join(
        f'<li><svg width="12" height="12" aria-hidden="true"><rect class="t{nth}" width="12" height="12" rx="2" '
        f'fill="currentColor"/></svg> {user(name)}</li>'
        for nth, name in enumerate(_legend(subject))
    )
    more = (
        f'<p class="note">{len(lanes) - charts.STRIP_LANES:,} more lanes are not drawn here.</p>'
        if len(lanes) > charts.STRIP_LANES
        else ""
    )
    body = (
        f"<p>A lane for each worker, over {duration(subject.figures.wall_s)}; one that took the place of another has "
        "its lane. Colour is the type of task; a mark, a pattern or an outline says that an attempt did not succeed: "
        "hatched for an error or a timeout, crossed for a crash, dotted for too much memory, hollow and dashed for "
        "one that was stopped or runs still. A thin line is the wait for another attempt.</p>\n"
        f"{f'<p class=note>{note}</p>' if note else ''}"
        f'<ul class="legend">{legend}</ul>\n<div id="timeline-live" hidden></div>\n'
        '<div id="timeline-strip" class="scroll" role="group" tabindex="0" aria-label="timeline">'
        f"{strip}</div>{more}\n"
        f"<details><summary>The timeline as a table</summary>{_lane_table(subject)}</details>"
    )
    return _section("timeline", "Timeline", body)


def _legend(subject: Subject) -> list[str]:
    names = [subject.account.types[kind] for kind in subject.figures.order[:COLORS]]
    others = len(subject.figures.order) - COLORS
    return [*names, plural(others, "other type")] if others > 0 else names


def _lane_table(subject: Subject) -> str:
    account = subject.account
    attempts = account.attempts
    number = [0] * len(account.lanes)
    failed = [0] * len(account.lanes)
    run_s = [0.0] * len(account.lanes)
    for lane, start, end, outcome in zip(attempts.lane, attempts.start, attempts.end, attempts.outcome, strict=True):
        number[lane] += 1
        run_s[lane] += end - start
        failed[lane] += outcome not in BLAMELESS
    wall = subject.figures.wall_s
    rows = [
        (
            lane_name(account, lane),
            f"{number[lane]:,}",
            f"{failed[lane]:,}",
            duration(run_s[lane]),
            percent(run_s[lane] / wall if wall > 0 else None),
        )
        for lane in range(len(account.lanes))
    ]
    heads = ("lane", "attempts", "failed", "in attempts", "of the run")
    shown = table("Lanes of the timeline", heads, rows, numeric=frozenset({1, 2, 3, 4}))
    if account.worker_ends:
        ends = account.worker_ends.most_common()
        shown += table(
            "Workers that ended, by reason",
            ("reason", "workers"),
            [(user(why), f"{n:,}") for why, n in ends],
            numeric=frozenset({1}),
        )
    return shown


def lane_name(account: Account, lane: int) -> str:
    """Return how a lane is named: after its workers."""
    workers = account.lanes[lane]
    if not workers:
        return f"lane {lane + 1}"
    if len(workers) == 1:
        return f"worker {workers[0]}"
    return f"workers {', '.join(map(str, workers[:3]))}{' ...' if len(workers) > 3 else ''}"  # noqa: PLR2004


# 4. What the types took.


def types(subject: Subject) -> str:
    """Return the types, each with its counts, percentiles and histogram."""
    figures = subject.figures
    told = [figures.types[kind] for kind in figures.order]
    if not told:
        return _section("types", "Types", "<p>There were no tasks.</p>")
    low, high = decades([each.runs for each in told])
    rows = [_type_row(each, low, high) for each in told]
    heads = (
        "type", "tasks", "attempts", "succeeded", "retried", "failed", "cancelled", "p50", "p95", "p99.9", "max",
        "durations, log scale", "wait p50", "wait p95", "CPU", "peak memory",
    )  # fmt: skip
    numeric = frozenset(range(1, len(heads))) - {11}
    note = (
        "<p>Durations are of single attempts, whatever their outcome. Wait is from ready to the start. "
        "CPU is that of attempts over the time they ran: 100 % is one CPU.</p>\n"
    )
    return _section("types", "Types", note + table("Types of tasks, by time in attempts", heads, rows, numeric=numeric))


def _type_row(each: TypeFigures, low: int, high: int) -> tuple[str, ...]:
    return (
        user(each.name),
        f"{each.tasks:,}",
        f"{each.attempts:,}",
        f"{each.statuses['succeeded']:,}",
        f"{each.retried:,}",
        _count(each.statuses["failed"]),
        f"{each.statuses['cancelled']:,}",
        *(duration(percentile(each.runs, share)) for share in (0.5, 0.95, 0.999, 1.0)),
        charts.bars(histogram(each.runs, low, high), each.name) if each.runs else "-",
        duration(percentile(each.waits, 0.5)),
        duration(percentile(each.waits, 0.95)),
        percent(each.cpu_s / each.cpu_of_s if each.cpu_of_s > 0 else None),
        size(percentile(each.rss, 1.0)),
    )


def _count(number: int) -> str:
    return f'<span class="bad">{number:,}</span>' if number else "0"


# 5. What was tried again.


def retries(subject: Subject) -> str:
    """Return the attempts by outcome, and what failed ones cost."""
    figures = subject.figures
    rows = [
        (
            _outcome(name),
            f"{told.attempts:,}",
            duration(told.run_s),
            percent(told.run_s / figures.run_s if figures.run_s else None),
        )
        for name, told in figures.outcomes.items()
    ]
    words = (
        f"<p>{plural(figures.retried, 'task')} had more than one attempt; {figures.recovered:,} of them succeeded. "
        f"{duration(figures.lost_s)} went into attempts that failed, "
        f"{percent(figures.lost_s / figures.run_s if figures.run_s else None)} of all time in attempts.</p>\n"
    )
    heads = ("outcome", "attempts", "time in them", "of all")
    return _section(
        "retries", "Retries", words + table("Attempts by outcome", heads, rows, numeric=frozenset({1, 2, 3}))
    )


# 6. What it took of the machine.


def resources(subject: Subject) -> str:
    """Return memory, CPU and queue over the time of the run."""
    account, figures = subject.account, subject.figures
    if not len(account.attempts):
        return _section("resources", "Memory, CPU and queue", "<p>No attempt was begun.</p>")
    wall = account.last_t - account.first_t
    workers = busy(account)
    ready, later = waiting(account, frozenset({"ready"})), waiting(account, frozenset({"blocked", "scheduled"}))
    memory = busy(account, weights=account.attempts.rss)
    parts = [
        charts.curve(workers, title="Busy workers", most=f"{max(workers):.0f}", wall_s=wall, limit=subject.workers),
        charts.curve(ready, title="Tasks that could start (ready)", most=f"{max(ready):,.0f}", wall_s=wall),
        charts.curve(later, title="Tasks that wait for others or for a time", most=f"{max(later):,.0f}", wall_s=wall),
    ]
    if max(memory) > 0:
        told = "Memory of all workers: the peaks of what ran at once, added up"
        parts.append(charts.curve(memory, title=told, most=size(max(memory)), wall_s=wall))
    rows = [
        (
            user(each.name),
            *(size(percentile(each.rss, share)) for share in (0.5, 0.95, 1.0)),
            percent(each.cpu_s / each.cpu_of_s if each.cpu_of_s > 0 else None),
            duration(each.cpu_s),
        )
        for each in (figures.types[kind] for kind in figures.order)
    ]
    heads = ("type", "peak memory p50", "p95", "max", "CPU", "CPU time")
    numbers = table("Memory and CPU per attempt", heads, rows, numeric=frozenset({1, 2, 3, 4, 5}))
    return _section("resources", "Memory, CPU and queue", f'<div class="curves">{"".join(parts)}</div>\n{numbers}')


# 7. What depended on what.


def dependencies(subject: Subject) -> str:
    """Return the graph, and the chain that took longest."""
    account, chain = subject.account, subject.chain
    if not account.needs:
        return _section("graph", "Graph", "<p>No task depends on another.</p>")
    by_type = graph.by_type(account, subject.figures, chain)
    parts = [_chain_words(subject), _picture(by_type, "graph by type")]
    parts.append(_more(len(subject.figures.order), graph.TYPES_MAX, "types", where="the table of types"))
    if len(account.tasks) < graph.TASKS_MAX:
        picture = _picture(graph.by_task(account, chain), "graph by task")
        parts.append(f"<details><summary>Every single task</summary>{picture}</details>")
    parts.append(_edge_table(account))
    return _section("graph", "Graph", "\n".join(part for part in parts if part))


def _chain_words(subject: Subject) -> str:
    chain = subject.chain
    if chain is None:
        return ""
    tasks = subject.account.tasks
    shown = " \u2192 ".join(user(tasks.ids[index]) for index in chain.tasks[:12])
    rest = f" \u2192 {len(chain.tasks) - 12:,} more" if len(chain.tasks) > 12 else ""  # noqa: PLR2004
    share = chain.run_s / subject.figures.wall_s if subject.figures.wall_s > 0 else None
    return (
        f"<p>The critical path, drawn bold, took {duration(chain.run_s)} in attempts, {percent(share)} of the run: "
        f"with any number of workers it would have taken that long. It is {shown}{rest}</p>"
    )


def _picture(svg: str, label: str) -> str:
    return f'<div class="scroll" role="group" tabindex="0" aria-label="{label}">{svg}</div>'


def _edge_table(account: Account) -> str:
    """Return the edges between types as a table, for those who do not see the picture."""
    kinds, needs = account.tasks.type, account.needs
    edges = Counter((kinds[needs[at]], kinds[needs[at + 1]]) for at in range(0, len(needs), 2))
    rows = [
        (user(account.types[head]), user(account.types[tail]), f"{number:,}")
        for (head, tail), number in edges.most_common(_FEW)
    ]
    shown = table("Which type needs which", ("type", "needs", "dependencies"), rows, numeric=frozenset({2}))
    return (
        f"<details><summary>The graph as a table</summary>{shown}{_more(len(edges), _FEW, 'pairs of types')}</details>"
    )


# 8. All attempts.


def everything(subject: Subject) -> str:
    """Return the table of attempts, the first ones."""
    account = subject.account
    number = len(account.attempts)
    if not number:
        return _section("attempts", "All attempts", "<p>No attempt was begun.</p>")
    choices = "".join(f"<option>{name}</option>" for name in subject.figures.outcomes)
    filters = (
        '<div id="filters" class="filters" hidden>'
        '<label>Search <input id="search" type="search" autocomplete="off"></label> '
        f'<label>Outcome <select id="outcome"><option value="">all</option>{choices}</select></label> '
        '<span id="found" role="status"></span></div>\n'
    )
    rows = "\n".join(_attempt_row(account, index) for index in range(min(number, ROWS_MAX)))
    heads = (
        "task",
        "type",
        "attempt",
        "outcome",
        "worker",
        "began at",
        "waited",
        "ran",
        "CPU time",
        "peak memory",
        "error",
    )
    numeric = {2, 4, 5, 6, 7, 8, 9}
    head = "".join(f'<th scope="col"{" class=n" if at in numeric else ""}>{name}</th>' for at, name in enumerate(heads))
    body = (
        f"{filters}{_more(number, ROWS_MAX, 'attempts', where='the trace file')}"
        '<p class="note print-only">Only the first 100 rows are printed.</p>'
        '<div class="scroll tall" role="group" tabindex="0" aria-label="all attempts">\n'
        f'<table id="rows"><caption>{plural(min(number, ROWS_MAX), "attempt")}, in the order in which they began'
        "</caption>"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )
    return _section("attempts", "All attempts", body)


def _attempt_row(account: Account, index: int) -> str:
    """Return a row; without the end tags that HTML can do without, since there are thousands."""
    attempts, tasks = account.attempts, account.tasks
    task = attempts.task[index]
    name, args = tasks.ids[task], account.args.get(task, "")
    cpu = attempts.cpu[index]
    cells = (
        f"<tr><th scope=row>{user(name)}{f' <small>{user(args)}</small>' if args else ''}",
        user(account.types[tasks.type[task]]),
        f"{attempts.number[index]}",
        _outcome(OUTCOMES[attempts.outcome[index]]),
        "-" if attempts.worker[index] < 0 else f"{attempts.worker[index]}",
        duration(attempts.start[index] - account.first_t),
        duration(attempts.wait[index]),
        duration(attempts.end[index] - attempts.start[index]),
        duration(None if isnan(cpu) else cpu),
        size(attempts.rss[index]),
        user(account.attempt_errors.get(index, "")),
    )
    return "<td>".join(cells)


def _section(name: str, heading: str, body: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{heading}</h2>\n{body}</section>'
