"""What the graph of a run shows: its types, or its tasks where they are few, and the chain that took longest."""

from collections import Counter
from itertools import pairwise
from typing import Final

from procq.report.account import OUTCOMES, STATUSES, Account
from procq.report.figures import Chain, Figures
from procq.report.layered import Edge, Node, drawing
from procq.report.markup import duration, plural

#: Single tasks are drawn only below so many of them.
TASKS_MAX: Final = 150
#: More types than that are no picture any more.
TYPES_MAX: Final = 60

#: The sign of each status beside its word; the colour only repeats it.
SIGNS: Final = {
    "succeeded": "\u2713", "failed": "\u2717", "cancelled": "\u2298", "running": "\u25b6", "ready": "\u25cb",
    "scheduled": "\u23f2", "blocked": "\u25ef", "": "\u2026",
}  # fmt: skip


def words(status: str) -> str:
    """Return how a status is named to people."""
    return status or "between attempts"


def by_type(account: Account, figures: Figures, chain: Chain | None) -> str:
    """Return the SVG of the types."""
    shown = figures.order[:TYPES_MAX]
    place = {kind: nth for nth, kind in enumerate(shown)}
    kinds, needs = account.tasks.type, account.needs
    edges: Counter[Edge] = Counter()
    for at in range(0, len(needs), 2):
        tail, head = place.get(kinds[needs[at + 1]]), place.get(kinds[needs[at]])
        if tail is not None and head is not None:
            edges[tail, head] += 1
    on_chain = [place[kinds[task]] for task in chain.tasks if kinds[task] in place] if chain is not None else []
    nodes = [_type_node(figures, kind, bold=place[kind] in on_chain) for kind in shown]
    return drawing(
        nodes,
        {edge: f"{number:,}" if number > 1 else "" for edge, number in edges.items()},
        bold=frozenset(pairwise(on_chain)),
        label=f"the types of tasks and what depends on what: {plural(len(nodes), 'type')}",
    )


def _type_node(figures: Figures, kind: int, *, bold: bool) -> Node:
    told = figures.types[kind]
    counts = [f"{told.statuses[name]:,} {words(name)}" for name in reversed(STATUSES) if told.statuses[name]]
    signs = [f"{SIGNS[name]} {told.statuses[name]:,}" for name in reversed(STATUSES) if told.statuses[name]]
    return Node(
        lines=(told.name, "  ".join(signs), f"{plural(told.tasks, 'task')}, {duration(told.run_s)}"),
        title=f"{told.name}: {', '.join(counts)}; {duration(told.run_s)} in attempts",
        kind=_look(told.statuses),
        bold=bold,
    )


def _look(statuses: Counter[str]) -> str:
    """Return the class of a node: that of the worst that there is."""
    for name in ("failed", "cancelled"):
        if statuses[name]:
            return name
    return "succeeded" if statuses["succeeded"] == statuses.total() else "open"


def by_task(account: Account, chain: Chain | None) -> str:
    """Return the SVG of all tasks."""
    tasks, needs = account.tasks, account.needs
    on_chain = chain.tasks if chain is not None else []
    last: dict[int, str] = {}
    for task, outcome in zip(account.attempts.task, account.attempts.outcome, strict=True):
        last[task] = OUTCOMES[outcome]
    nodes = []
    for index, task_id in enumerate(tasks.ids):
        status = STATUSES[tasks.status[index]]
        told = f"{SIGNS[status]} {words(status)}"
        if tasks.tries[index]:
            told += f", {duration(tasks.run_s[index])}"
        title = (
            f"{task_id} ({account.types[tasks.type[index]]}): {words(status)}, {plural(tasks.tries[index], 'attempt')}"
        )
        if last.get(index, "ok") != "ok":
            title += f", the last one {last[index]}"
        look = status if status in {"succeeded", "failed", "cancelled"} else "open"
        nodes.append(Node(lines=(task_id, told), title=title, kind=look, bold=index in on_chain))
    edges = {(needs[at + 1], needs[at]): "" for at in range(0, len(needs), 2)}
    return drawing(
        nodes,
        edges,
        bold=frozenset(pairwise(on_chain)),
        label=f"the tasks and what depends on what: {plural(len(nodes), 'task')}",
    )
