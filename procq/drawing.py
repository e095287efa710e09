"""Draws a graph as SVG: layers from left to right, each node right of all that lead to it.

Decides where nodes and edges stand and how they look.  Takes nodes and edges and returns text; knows
nothing of tasks, files or pages.  The same input gives the same text, to the byte: no hash order,
no randomness, no clock.  All text is escaped; no scripts, no inline styles and no links, so a page
with a strict policy may hold it; what is not emphasised has the colour of the text around it.

The method is that of Sugiyama, Tagawa and Toda (1981): turn round what closes a cycle, layer by the
longest path, let long edges bend at a point in each layer that they pass, order the layers by the
means of the neighbours, then move nodes towards these means as far as their order allows.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, final
from xml.sax.saxutils import escape, quoteattr

_FONT_PX: Final = 12
#: Width of a character of a monospaced font: 0.6 of its size, in all that are common.
_CHAR_PX: Final = 7.25
_LABEL_CHARS: Final = 44
_LINE_PX: Final = 16
_PAD_PX: Final = 10
_ROW_GAP_PX: Final = 18
_LAYER_GAP_PX: Final = 64
#: How high the point is at which a long edge passes a layer.
_BEND_PX: Final = 10
_MARGIN_PX: Final = 12
#: Sweeps over the layers, there and back; the order hardly changes after four (seen with random graphs).
_SWEEPS: Final = 6
#: How text and arrow heads are filled.
_INK: Final = 'fill="currentColor" stroke="none"'
_ARROW: Final = (
    '<defs><marker id={name} viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" {_INK}/></marker></defs>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box.

    Attributes:
        key: Names it among the nodes.
        label: Its first line.
        count: How many it stands for; shown unless it is None.
        words: What else is said of it, a line each: "3 failed".
        is_critical: Whether it is emphasised, as those of the critical path.
    """

    key: str
    label: str
    count: int | None = None
    words: Sequence[str] = ()
    is_critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """An arrow.

    Attributes:
        source: The key of the node at its tail: what is needed.
        target: That of the node at its head.
        count: How many it stands for; shown if it is more than 1.
        is_critical: Whether it is emphasised.
    """

    source: str
    target: str
    count: int = 1
    is_critical: bool = False


@final
class _Place:
    """A node, or a bend of a long edge, and where it stands."""

    __slots__ = ("after", "before", "height", "layer", "node", "number", "width", "x", "y")

    def __init__(self, number: int, layer: int, node: Node | None) -> None:
        self.number = number  #: settles ties
        self.layer = layer
        self.node = node  #: None: a bend
        lines = [] if node is None else _lines(node)
        #: neighbours in the layer before and in the one after
        self.before: list[_Place] = []
        self.after: list[_Place] = []
        self.width = max(map(_width, lines)) + 2 * _PAD_PX if lines else 0.0
        self.height = len(lines) * _LINE_PX + _PAD_PX if lines else _BEND_PX
        self.x = 0.0  #: the left edge
        self.y = 0.0  #: the middle


def draw(nodes: Iterable[Node], edges: Iterable[Edge], *, title: str, prefix: str = "graph") -> str:
    """Return a graph as an SVG element.

    Args:
        nodes: Its nodes; the order in which they are given settles what the edges leave open.
        edges: Its edges; cycles and edges from a node to itself are fine, and two of the same nodes
            count as one.
        title: What it shows, for those who hear it.
        prefix: Begins the ids in it, for a page that holds several.

    Raises:
        KeyError: An edge names a node that is not there.
    """
    by_key = {node.key: node for node in nodes}
    merged, loops = _merged(edges, by_key)
    drawn = [_with_loop(node, loops[node.key]) for node in by_key.values()]
    layer_of = _layers([node.key for node in drawn], _acyclic(list(by_key), merged))
    places = {node.key: _Place(number, layer_of[node.key], node) for number, node in enumerate(drawn)}
    routes = {ends: _route(places[ends[0]], places[ends[1]], places) for ends in merged}
    columns = _columns(places.values())
    _order(columns)
    _set_out(columns)
    return _svg(columns, [(merged[ends], route) for ends, route in routes.items()], title=title, prefix=prefix)


# --- the graph -----------------------------------------------------------------------------------


def _merged(edges: Iterable[Edge], by_key: Mapping[str, Node]) -> tuple[dict[tuple[str, str], Edge], Counter[str]]:
    """Return the edges by their ends, and how many there are from each node to itself."""
    merged: dict[tuple[str, str], Edge] = {}
    loops: Counter[str] = Counter()
    for edge in edges:
        source, target = by_key[edge.source].key, by_key[edge.target].key
        if source == target:
            loops[source] += edge.count
            continue
        known = merged.get((source, target))
        merged[source, target] = Edge(
            source=source,
            target=target,
            count=edge.count + (0 if known is None else known.count),
            is_critical=edge.is_critical or (known is not None and known.is_critical),
        )
    return merged, loops


def _with_loop(node: Node, count: int) -> Node:
    """Return a node that says in words how many edges lead from it to itself."""
    if not count:
        return node
    words = (*node.words, f"{count} among themselves")
    return Node(key=node.key, label=node.label, count=node.count, words=words, is_critical=node.is_critical)


def _acyclic(keys: Sequence[str], edges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the edges, those turned round that lead back to where a walk in the order of the nodes came from."""
    following: dict[str, list[str]] = {key: [] for key in keys}
    for source, target in edges:
        following[source].append(target)
    forward: list[tuple[str, str]] = []
    on_the_way: set[str] = set()
    seen: set[str] = set()
    for root in keys:
        if root in seen:
            continue
        seen.add(root)
        on_the_way.add(root)
        walk = [(root, iter(following[root]))]
        while walk:
            key, rest = walk[-1]
            further = next(rest, None)
            if further is None:
                on_the_way.discard(key)
                walk.pop()
            elif further in on_the_way:
                forward.append((further, key))
            else:
                forward.append((key, further))
                if further not in seen:
                    seen.add(further)
                    on_the_way.add(further)
                    walk.append((further, iter(following[further])))
    return forward


def _layers(keys: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each node: one more than the last of those that lead to it."""
    following: dict[str, list[str]] = {key: [] for key in keys}
    missing = Counter(target for _, target in edges)
    for source, target in edges:
        following[source].append(target)
    layer = dict.fromkeys(keys, 0)
    ready = [key for key in keys if not missing[key]]
    for key in ready:
        for target in following[key]:
            layer[target] = max(layer[target], layer[key] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)  # the list is the queue, too
    return layer


def _route(source: _Place, target: _Place, places: dict[str, _Place]) -> list[_Place]:
    """Return the places that an edge passes, from its tail to its head, and make them neighbours."""
    step = 1 if source.layer < target.layer else -1
    route = [source]
    for layer in range(source.layer + step, target.layer, step):
        number = len(places)
        route.append(places.setdefault(f"\0{number}", _Place(number, layer, None)))
    route.append(target)
    ascending = route[::step]
    for first, second in pairwise(ascending):
        first.after.append(second)
        second.before.append(first)
    return route


def _columns(places: Iterable[_Place]) -> list[list[_Place]]:
    """Return the places by layer."""
    found: list[list[_Place]] = []
    for place in places:
        while len(found) <= place.layer:
            found.append([])
        found[place.layer].append(place)
    return found


# --- where things stand --------------------------------------------------------------------------


def _order(columns: list[list[_Place]]) -> None:
    """Order each layer so that few edges cross."""
    _number(columns)
    best, fewest = [list(column) for column in columns], _crossings(columns)
    for sweep in range(_SWEEPS):
        there = sweep % 2 == 0
        for column in columns if there else reversed(columns):
            column.sort(key=partial(_mean_rank, there=there))
            _number([column])
        crossings = _crossings(columns)
        if crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
    columns[:] = best


def _number(columns: Iterable[Sequence[_Place]]) -> None:
    """Note the rank of each place in its layer, as its height for now."""
    for column in columns:
        for rank, place in enumerate(column):
            place.y = rank


def _mean_rank(place: _Place, *, there: bool) -> float:
    """Return the mean of the ranks of the neighbours on one side; the own one if there are none."""
    near = place.before if there else place.after
    return sum(other.y for other in near) / len(near) if near else place.y


def _crossings(columns: Sequence[Sequence[_Place]]) -> int:
    """Count the crossings between neighbouring layers."""
    rank = {place: number for column in columns for number, place in enumerate(column)}
    total = 0
    for column in columns:
        ends = [number for place in column for number in sorted(rank[other] for other in place.after)]
        total += _inversions(ends)
    return total


def _inversions(numbers: list[int]) -> int:
    """Count the pairs that stand the wrong way round, by merging."""
    if len(numbers) < 2:  # noqa: PLR2004
        return 0
    half = len(numbers) // 2
    left, right = numbers[:half], numbers[half:]
    total = _inversions(left) + _inversions(right)
    left.sort()
    right.sort()
    passed = 0
    for number in left:
        while passed < len(right) and right[passed] < number:
            passed += 1
        total += passed
    return total


def _set_out(columns: Sequence[Sequence[_Place]]) -> None:
    """Give each place its coordinates."""
    x = float(_MARGIN_PX)
    for column in columns:
        width = max(place.width for place in column)
        y = 0.0
        for place in column:
            if place.node is None:
                place.width = width  # straight past the boxes of the layer, or it would cross their corners
            place.x = x + (width - place.width) / 2
            y += place.height / 2
            place.y = y
            y += place.height / 2 + _ROW_GAP_PX
        x += width + _LAYER_GAP_PX
    for sweep in range(_SWEEPS * 2):
        there = sweep % 2 == 0
        for column in columns if there else reversed(columns):
            _draw_near(column, [_mean_rank(place, there=there) for place in column])
    top = min(place.y - place.height / 2 for column in columns for place in column) if columns else 0.0
    for column in columns:
        for place in column:
            place.y += _MARGIN_PX - top


def _draw_near(column: Sequence[_Place], wanted: Sequence[float]) -> None:
    """Move the places of a layer to where they are wanted, in their order and without touching.

    The best such heights, by least squares, are those of isotonic regression: neighbours that want to
    stand the wrong way round become one block, which stands where its members want it on average.
    """
    offsets = [0.0]
    for first, second in pairwise(column):
        offsets.append(offsets[-1] + (first.height + second.height) / 2 + _ROW_GAP_PX)
    blocks: list[tuple[float, int]] = []  # the sum of what its members want, less their offsets, and their number
    for want, offset in zip(wanted, offsets, strict=True):
        total, number = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / number:
            more, others = blocks.pop()
            total, number = total + more, number + others
        blocks.append((total, number))
    heights = [total / number for total, number in blocks for _ in range(number)]
    for place, height, offset in zip(column, heights, offsets, strict=True):
        place.y = height + offset


# --- how they look -------------------------------------------------------------------------------


def _lines(node: Node) -> list[str]:
    """Return what stands in a box."""
    label = node.label if len(node.label) <= _LABEL_CHARS else f"{node.label[: _LABEL_CHARS - 1]}\u2026"
    return [f"{label} \u00d7{node.count}" if node.count is not None else label, *node.words]


def _width(text: str) -> float:
    """Return how wide a text is, about."""
    return sum(_CHAR_PX * (2 if unicodedata.east_asian_width(char) in "WF" else 1) for char in text)


def _text(text: str) -> str:
    """Return a text as XML has it; what XML cannot have is replaced."""
    return escape("".join(char if _is_xml(char) else "\ufffd" for char in text))


def _is_xml(char: str) -> bool:
    """Return whether XML can hold a character (XML 1.0, 2.2 Characters), lone surrogates being none."""
    return char in "\t\n" or " " <= char < "\ud800" or "\ue000" <= char < "\ufffe" or char > "\uffff"


def _svg(
    columns: Sequence[Sequence[_Place]], routes: Sequence[tuple[Edge, Sequence[_Place]]], *, title: str, prefix: str
) -> str:
    """Return the whole element."""
    places = [place for column in columns for place in column]
    width = max((place.x + place.width for place in places), default=0) + _MARGIN_PX
    height = max((place.y + place.height / 2 for place in places), default=0) + _MARGIN_PX
    named = quoteattr(f"{prefix}-title")
    arrow = f"{prefix}-arrow"
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    look = f'font-family="ui-monospace, monospace" font-size="{_FONT_PX}" fill="none" stroke="currentColor"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" role="img" aria-labelledby={named} {size} {look}>'
    out = [head, f"<title id={named}>{_text(title)}</title>", _ARROW.format(name=quoteattr(arrow))]
    out += [_edge(edge, route, arrow) for edge, route in routes]
    out += [_box(place.node, place) for place in places if place.node is not None]
    return "\n".join([*out, "</svg>", ""])


def _edge(edge: Edge, route: Sequence[_Place], arrow: str) -> str:
    """Return an arrow, through the bends of its route, and its count."""
    is_back = route[0].layer > route[-1].layer
    points: list[tuple[float, float]] = []
    for number, place in enumerate(route):
        near, far = (place.x, place.x + place.width)[:: -1 if is_back else 1]
        if number:
            points.append((near, place.y))
        if number < len(route) - 1:
            points.append((far, place.y))
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        path.append(f"C{middle:.1f} {y0:.1f} {middle:.1f} {y1:.1f} {x1:.1f} {y1:.1f}")
    look = ' stroke-width="2.5"' if edge.is_critical else ' stroke-opacity="0.7"'
    kind = "edge critical" if edge.is_critical else "edge"
    drawn = f'<path class="{kind}" d="{"".join(path)}" marker-end={quoteattr(f"url(#{arrow})")}{look}/>'
    if edge.count <= 1:
        return drawn
    (x0, y0), (x1, y1) = points[:2]
    x, y = (x0 + x1) / 2, (y0 + y1) / 2 - 4
    return f'{drawn}<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {_INK}>{edge.count}</text>'


def _box(node: Node, place: _Place) -> str:
    """Return a node: its box, its lines, and its whole label for who points at it."""
    top = place.y - place.height / 2
    kind, look, bold = ("node", "", "")
    if node.is_critical:
        kind, look, bold = "node critical", ' stroke-width="2.5"', ' font-weight="bold"'
    x = place.x + _PAD_PX
    lines = "".join(
        f'<text x="{x:.1f}" y="{top + _PAD_PX / 2 + (number + 0.75) * _LINE_PX:.1f}" {_INK}{bold}>{_text(line)}</text>'
        for number, line in enumerate(_lines(node))
    )
    return (
        f'<g class="{kind}"><title>{_text(node.label)}</title>'
        f'<rect x="{place.x:.1f}" y="{top:.1f}" width="{place.width:.1f}" height="{place.height:.1f}" rx="4"{look}/>'
        f"{lines}</g>"
    )
