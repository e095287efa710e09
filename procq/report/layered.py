"""Draws a graph as SVG, left to right in layers, each node behind what it depends on.

Knows nodes with lines of text, and edges; not what they stand for.  The usual four steps, each kept
small: edges that close a circle are turned round, a node's layer is its longest way from a source, long
edges get a bend in every layer, and a few sweeps put each layer in the order of its neighbours' middle.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from procq.report.markup import safe

_WIDTH: Final = 190
_LINE: Final = 17
_PAD: Final = 9
_GAP_X: Final = 64
_GAP_Y: Final = 16
_BEND: Final = 4  #: height of the place that an edge takes as it passes a layer
_SWEEPS: Final = 6
_CHARS: Final = 25  #: of a line; what is longer is cut, and stands whole in the node's title

Edge = tuple[int, int]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box."""

    lines: tuple[str, ...]  #: the first is its name
    title: str  #: all there is to say, for the mouse and for those who do not see it
    kind: str  #: class names
    bold: bool = False


@dataclass(slots=True)
class _Spot:
    """Where a node or a bend stands."""

    layer: int
    height: float
    y: float = 0.0


def drawing(nodes: Sequence[Node], edges: Mapping[Edge, str], *, bold: frozenset[Edge], label: str) -> str:
    """Return the SVG of a graph.

    Args:
        nodes: By index.
        edges: From what is needed to what needs it, by index, each with a text that may be empty.
        bold: Edges to emphasise.
        label: What the picture shows, in words.
    """
    loose = [edge for edge in edges if edge[0] != edge[1]]
    turned = _circular(len(nodes), loose)
    forward = {edge: (edge[1], edge[0]) if edge in turned else edge for edge in loose}
    layers = _layers(len(nodes), forward.values())
    spots = [_Spot(layers[i], _LINE * len(node.lines) + 2 * _PAD) for i, node in enumerate(nodes)]
    ways = {edge: _way(spots, *ahead) for edge, ahead in forward.items()}
    height = _place(spots, ways.values())
    width = (max(layers, default=0) + 1) * (_WIDTH + _GAP_X) - _GAP_X
    begin = (
        f'<svg class="graph" role="img" aria-label="{safe(label)}" width="{width + 4}" height="{height + 4:.0f}" '
        f'viewBox="-2 -2 {width + 4} {height + 4:.0f}" font-size="12">'
    )
    parts = [begin]
    parts += [
        _edge(spots, ways[edge], text, turned=edge in turned, bold=edge in bold)
        for edge, text in edges.items()
        if edge in ways
    ]
    parts += [_node(spots[i], node, own=edges.get((i, i))) for i, node in enumerate(nodes)]
    return "\n".join([*parts, "</svg>"])


def _circular(count: int, edges: Sequence[Edge]) -> set[Edge]:
    """Return edges without which there is no circle: those that a depth-first walk finds leading back."""
    out: list[list[int]] = [[] for _ in range(count)]
    for tail, head in edges:
        out[tail].append(head)
    back: set[Edge] = set()
    seen, on_way = [False] * count, [False] * count
    for root in range(count):
        if seen[root]:
            continue
        seen[root] = on_way[root] = True
        stack = [(root, iter(out[root]))]
        while stack:
            node, rest = stack[-1]
            after = next(rest, None)
            if after is None:
                on_way[node] = False
                stack.pop()
            elif on_way[after]:
                back.add((node, after))
            elif not seen[after]:
                seen[after] = on_way[after] = True
                stack.append((after, iter(out[after])))
    return back


def _layers(count: int, edges: Iterable[Edge]) -> list[int]:
    """Return each node's layer: how many edges its longest way from a source has."""
    pairs = set(edges)
    out: list[list[int]] = [[] for _ in range(count)]
    unmet = Counter(head for _tail, head in pairs)
    for tail, head in pairs:
        out[tail].append(head)
    layer = [0] * count
    ready = deque(node for node in range(count) if not unmet[node])
    while ready:
        node = ready.popleft()
        for head in out[node]:
            layer[head] = max(layer[head], layer[node] + 1)
            unmet[head] -= 1
            if not unmet[head]:
                ready.append(head)
    return layer


def _way(spots: list[_Spot], tail: int, head: int) -> list[int]:
    """Return the spots that an edge goes through; those in the layers between are made."""
    way = [tail]
    for layer in range(spots[tail].layer + 1, spots[head].layer):
        way.append(len(spots))
        spots.append(_Spot(layer, _BEND))
    return [*way, head]


def _place(spots: list[_Spot], ways: Iterable[list[int]]) -> float:
    """Give each spot its height above the bottom of the picture, and return how high that is."""
    near: list[tuple[list[int], list[int]]] = [([], []) for _ in spots]
    for way in ways:
        for before, after in pairwise(way):
            near[before][1].append(after)
            near[after][0].append(before)
    layers: list[list[int]] = [[] for _ in range(max((spot.layer for spot in spots), default=-1) + 1)]
    for index, spot in enumerate(spots):
        layers[spot.layer].append(index)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        for layer in layers if forth else reversed(layers):
            _stack(spots, layer)
            middle = {
                index: sum(_middle(spots[one]) for one in neighbours) / len(neighbours)
                if neighbours
                else _middle(spots[index])
                for index in layer
                for neighbours in [near[index][0 if forth else 1]]
            }
            layer.sort(key=middle.__getitem__)
            _stack(spots, layer)
    highest = max((_stack(spots, layer) for layer in layers), default=0.0)
    for layer in layers:
        shift = (highest - _stack(spots, layer)) / 2
        for index in layer:
            spots[index].y += shift
    return highest


def _stack(spots: list[_Spot], layer: Sequence[int]) -> float:
    """Put the spots of a layer below each other, and return how high they are together."""
    y = 0.0
    for index in layer:
        spots[index].y = y
        y += spots[index].height + _GAP_Y
    return max(0.0, y - _GAP_Y)


def _middle(spot: _Spot) -> float:
    return spot.y + spot.height / 2


def _edge(spots: Sequence[_Spot], way: Sequence[int], text: str, *, turned: bool, bold: bool) -> str:
    """Return the line of an edge with its arrow; one that was turned has the arrow at its beginning."""
    points = []
    for index in way:
        x = spots[index].layer * (_WIDTH + _GAP_X)
        points.append((x, x + _WIDTH, _middle(spots[index])))
    path = [f"M{points[0][1]} {points[0][2]:.1f}"]
    for (_, x, y), (next_x, next_end, next_y) in pairwise(points):
        half = (x + next_x) / 2
        path.append(f"C{half:.0f} {y:.1f} {half:.0f} {next_y:.1f} {next_x} {next_y:.1f}")
        if next_x != points[-1][0]:
            path.append(f"H{next_end}")
    x, y, side = (points[0][1], points[0][2], 1) if turned else (points[-1][0], points[-1][2], -1)
    arrow = f"M{x} {y:.1f}l{7 * side} -4v8z"
    weight = 3 if bold else 1.2
    told = ""
    if text:
        (_, x1, y1), (x2, _, y2) = points[-2], points[-1]
        at = f'x="{(x1 + x2) / 2:.0f}" y="{(y1 + y2) / 2 - 4:.1f}"'
        told = f'<text class="small" {at} text-anchor="middle">{safe(text)}</text>'
    return (
        f'<g class="{"edge bold" if bold else "edge"}"><path d="{"".join(path)}" fill="none" stroke="currentColor" '
        f'stroke-width="{weight}"/><path d="{arrow}" fill="currentColor"/>{told}</g>'
    )


def _node(spot: _Spot, node: Node, *, own: str | None) -> str:
    """Return a box; `own` is the text of an edge that leads from it to itself."""
    x, y = spot.layer * (_WIDTH + _GAP_X), spot.y
    lines = "".join(
        f'<text{"" if nth else " class=name"} x="{x + 10}" y="{y + _PAD + _LINE * (nth + 1) - 4:.1f}">'
        f"{safe(_short(line))}</text>"
        for nth, line in enumerate(node.lines)
    )
    loop = (
        ""
        if own is None
        else f'<text x="{x + _WIDTH - 10}" y="{y + _PAD + _LINE - 4:.1f}" text-anchor="end">&#8635;</text>'
    )
    title = node.title if own is None else f"{node.title}; needs others of its own type"
    return (
        f'<g class="node {node.kind}{" bold" if node.bold else ""}"><title>{safe(title)}</title>'
        f'<rect x="{x}" y="{y:.1f}" width="{_WIDTH}" height="{spot.height}" rx="6" fill="none" stroke="currentColor" '
        f'stroke-width="{3 if node.bold else 1.2}"/>{lines}{loop}</g>'
    )


def _short(line: str) -> str:
    return line if len(line) <= _CHARS else f"{line[: _CHARS - 9]}...{line[-6:]}"
