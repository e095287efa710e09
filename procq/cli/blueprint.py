"""The graph of what an entry lists, read without running it: its tasks, or its types with their numbers.

Types take no memory for their tasks, so a generator of any length can be looked at by type.
"""

import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, final

from procq import drawing
from procq.cli import preview
from procq.cli.intake import needs_of, with_needs
from procq.spec import TaskSpec

Spec = TaskSpec[Any]
By = Literal["type", "task"]

#: Of what is needed by a name that no task has.
_UNLISTED: Final = "not listed"


class Node(NamedTuple):
    """A task, or a type."""

    key: str
    label: str
    type: str
    number: int  #: how many tasks it is
    note: str = ""  #: what else is to be said of it


class Edge(NamedTuple):
    """That one is needed by another."""

    source: str
    target: str
    number: int


@final
class Blueprint:
    """Collects tasks.

    Args:
        by: What the nodes are.
    """

    __slots__ = ("_by", "_edges", "_keys", "_nodes", "_numbers", "_texts", "_total", "by_id")

    def __init__(self, by: By) -> None:
        self._by = by
        self._nodes: dict[str, Node] = {}
        self._numbers: Counter[str] = Counter()
        self._edges: Counter[tuple[str, str]] = Counter()
        #: the node of each spec, as long as the entry holds on to that
        self._keys: weakref.WeakKeyDictionary[Spec, str] = weakref.WeakKeyDictionary()
        #: the node of each task that has an id of its own
        self.by_id: dict[str, str] = {}
        #: needs that are named by an id, until all are known
        self._texts: Counter[tuple[str, str]] = Counter()
        self._total = 0

    def add(self, spec: Spec) -> None:
        """Take a task and all that it needs."""
        for one in with_needs([spec], self._keys.__contains__):
            key = self._key(one)
            self._keys[one] = key
            self._total += 1
            self._numbers[key] += 1
            if one.options.id is not None:
                self.by_id[one.options.id] = key
            for need in dict.fromkeys(needs_of(one)):
                self._edges[self._keys[need], key] += 1
            for name in one.options.depends_on:
                if isinstance(name, str):
                    self._texts[name, key] += 1

    def _key(self, spec: Spec) -> str:
        """Return the node of a task, made if it is new."""
        if self._by == "type":
            self._nodes.setdefault(spec.type, Node(spec.type, spec.type, spec.type, 0))
            return spec.type
        key = str(self._total)
        self._nodes[key] = Node(key, preview.label(spec), spec.type, 1)
        return key

    @property
    def total(self) -> int:
        """How many tasks there are so far."""
        return self._total

    def nodes(self) -> list[Node]:
        """Return the nodes, in the order in which they came; then what is needed and not listed."""
        known = [node._replace(number=self._numbers[node.key]) for node in self._nodes.values()]
        unlisted = dict.fromkeys(name for name, _ in self._texts if name not in self.by_id)
        return known + [Node(f"?{name}", name, "", 0, _UNLISTED) for name in unlisted]

    def edges(self) -> list[Edge]:
        """Return the edges, in the order in which they came."""
        edges = Counter(self._edges)
        for (name, key), count in self._texts.items():
            edges[self.by_id.get(name, f"?{name}"), key] += count
        return [Edge(source, target, count) for (source, target), count in edges.items()]


# --- formats -------------------------------------------------------------------------------------


def _shown(node: Node, by: By) -> str:
    """Return a node as the formats name it that have one text for it."""
    counted = f"{node.label} \u00d7{node.number}" if by == "type" and node.number else node.label
    return f"{counted} ({node.note})" if node.note else counted


def _numbered(nodes: Sequence[Node]) -> dict[str, str]:
    """Return a name for each node that every format takes."""
    return {node.key: f"n{number}" for number, node in enumerate(nodes)}


def _mermaid(nodes: Sequence[Node], edges: Sequence[Edge], by: By, title: str) -> Iterator[str]:
    """Yield a flow chart as Mermaid has it; what means something there is written as its number."""
    names = _numbered(nodes)
    yield f"%% {' '.join(title.split())}"
    yield "flowchart LR"
    for node in nodes:
        text = "".join(char if char.isalnum() or char in " _.,=-/" else f"#{ord(char)};" for char in _shown(node, by))
        yield f'  {names[node.key]}["{text}"]'
    for edge in edges:
        count = f"|{edge.number}|" if edge.number > 1 else ""
        yield f"  {names[edge.source]} -->{count} {names[edge.target]}"


def _dot(nodes: Sequence[Node], edges: Sequence[Edge], by: By, title: str) -> Iterator[str]:
    """Yield a graph as Graphviz has it."""
    names = _numbered(nodes)
    yield f"digraph {_quoted(title)} {{"
    yield "  rankdir=LR;"
    yield "  node [shape=box];"
    for node in nodes:
        yield f"  {names[node.key]} [label={_quoted(_shown(node, by))}{', style=dashed' if node.note else ''}];"
    for edge in edges:
        count = f" [label={_quoted(str(edge.number))}]" if edge.number > 1 else ""
        yield f"  {names[edge.source]} -> {names[edge.target]}{count};"
    yield "}"


def _quoted(text: str) -> str:
    """Return a text as Graphviz reads it: a backslash would begin one of its own escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def _json(nodes: Sequence[Node], edges: Sequence[Edge], by: By, title: str) -> Iterator[str]:
    """Yield one JSON object."""
    names = _numbered(nodes)
    yield json.dumps({
        "title": title,
        "by": by,
        "nodes": [
            {"node": names[node.key], "label": node.label, "type": node.type, "count": node.number, "note": node.note}
            for node in nodes
        ],
        "edges": [
            {"source": names[edge.source], "target": names[edge.target], "count": edge.number} for edge in edges
        ],
    })  # fmt: skip


def _svg(nodes: Sequence[Node], edges: Sequence[Edge], by: By, title: str) -> Iterator[str]:
    """Yield a drawing."""
    boxes = [
        drawing.Node(
            key=node.key,
            label=node.label,
            count=node.number if by == "type" and node.number else None,
            words=[node.note] if node.note else [],
        )
        for node in nodes
    ]
    arrows = [drawing.Edge(source=edge.source, target=edge.target, count=edge.number) for edge in edges]
    yield drawing.draw(boxes, arrows, title=title).rstrip("\n")


#: How a graph is written, by the name of the format.
FORMATS: Final[Mapping[str, Callable[[Sequence[Node], Sequence[Edge], By, str], Iterator[str]]]] = {
    "mermaid": _mermaid,
    "dot": _dot,
    "svg": _svg,
    "json": _json,
}
#: Formats that are pictures, or are only made to become some.
PICTURES: Final = frozenset({"mermaid", "svg"})
