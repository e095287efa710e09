"""A drawing holds every node and edge, in layers, without touching, escaped, and always the same."""

import random
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, strategies as st

from procq import drawing
from procq.drawing import Edge, Node, draw

SVG = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[1]


def graph(seed: int, *, number: int = 40, edges: int = 70) -> tuple[list[Node], list[Edge]]:
    """Make a graph, cycles and loops included."""
    chance = random.Random(seed)
    names = [str(one) for one in range(number)]
    return (
        [Node(key=name, label=f"task {name}", count=chance.choice([None, 3])) for name in names],
        [Edge(source=chance.choice(names), target=chance.choice(names)) for _ in range(edges)],
    )


def boxes(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """Return left, top, right and bottom of each box, by the label of its node."""
    found = {}
    for group in ET.fromstring(svg).iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        x, y, width, height = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        found[str(group.findtext(f"{SVG}title"))] = (x, y, x + width, y + height)
    return found


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(svg).iter(f"{SVG}text")]


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 60))
def test_boxes_do_not_touch_and_stand_within_the_picture(seed: int, number: int, edges: int) -> None:
    svg = draw(*graph(seed, number=number, edges=edges), title="x")

    root = ET.fromstring(svg)
    found = list(boxes(svg).values())
    assert len(found) == number
    for index, (left, top, right, bottom) in enumerate(found):
        assert left >= 0
        assert top >= 0
        assert right <= float(root.attrib["width"])
        assert bottom <= float(root.attrib["height"])
        for left2, top2, right2, bottom2 in found[:index]:
            assert left >= right2 or left2 >= right or top >= bottom2 or top2 >= bottom


@given(st.integers(0, 10_000))
def test_what_is_needed_stands_left_of_what_needs_it(seed: int) -> None:
    nodes, edges = graph(seed)
    forward = [edge for edge in edges if int(edge.source) < int(edge.target)]

    found = boxes(draw(nodes, forward, title="x"))

    assert all(found[f"task {edge.source}"][2] < found[f"task {edge.target}"][0] for edge in forward)


def test_a_cycle_is_drawn_with_one_arrow_back() -> None:
    nodes = [Node(key=name, label=name) for name in "abc"]
    edges = [Edge(source=one, target=other) for one, other in ("ab", "bc", "ca")]

    found = boxes(draw(nodes, edges, title="x"))

    assert found["a"][2] < found["b"][0]
    assert found["b"][2] < found["c"][0]


def test_edges_of_the_same_nodes_count_as_one_and_loops_are_told_in_words() -> None:
    edges = [Edge(source="a", target="b"), Edge(source="a", target="b", count=2), Edge(source="b", target="b", count=4)]

    svg = draw([Node(key="a", label="a", count=3), Node(key="b", label="b", words=["1 failed"])], edges, title="x")

    assert svg.count('class="edge"') == 1
    assert texts(svg) == ["3", "a \u00d73", "b", "1 failed", "4 among themselves"]


def test_what_is_critical_is_bold() -> None:
    nodes = [Node(key="a", label="a", is_critical=True), Node(key="b", label="b")]

    svg = draw(nodes, [Edge(source="a", target="b", is_critical=True)], title="x")

    assert svg.count('font-weight="bold"') == 1
    assert svg.count('class="edge critical"') == svg.count('class="node critical"') == 1


@pytest.mark.parametrize(
    "hostile", ["</svg><script>alert(1)</script>", "\"'&<>", "\x00\x1b[31m", "\ud800", "\u202egnp"]
)
def test_every_text_is_inert(hostile: str) -> None:
    node = Node(key=hostile, label=hostile, words=[hostile])

    svg = draw([node], [], title=hostile, prefix="a")

    kinds = {one.tag.removeprefix(SVG) for one in ET.fromstring(svg.encode()).iter()}
    assert kinds == {"svg", "title", "defs", "marker", "path", "g", "rect", "text"}


def test_a_long_label_is_cut_and_stands_whole_in_the_title() -> None:
    label = "x" * 1000

    svg = draw([Node(key="a", label=label)], [], title="x")

    assert list(boxes(svg)) == [label]
    assert len(texts(svg)[0]) < 50


def test_nothing_is_a_picture_too() -> None:
    assert ET.fromstring(draw([], [], title="x")).tag == f"{SVG}svg"


def test_the_same_graph_gives_the_same_text_whatever_the_hashes() -> None:
    code = "import sys; from tests.test_drawing import graph; from procq.drawing import draw; "
    code += "sys.stdout.write(draw(*graph(7), title='x'))"
    drawn = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT, env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip

    assert drawn == {draw(*graph(7), title="x")}


def test_few_edges_cross() -> None:
    """Two rows that are given in opposite orders cross everywhere; put in order they do not."""
    rows = 8
    nodes = [Node(key=f"a{n}", label=f"a{n}") for n in range(rows)]
    nodes += [Node(key=f"b{n}", label=f"b{n}") for n in reversed(range(rows))]

    found = boxes(draw(nodes, [Edge(source=f"a{n}", target=f"b{n}") for n in range(rows)], title="x"))

    left, right = ([found[f"{side}{n}"][1] for n in range(rows)] for side in "ab")
    assert sorted(range(rows), key=left.__getitem__) == sorted(range(rows), key=right.__getitem__)


@given(st.lists(st.integers(0, 30), max_size=40))
def test_crossings_are_counted(numbers: list[int]) -> None:
    pairs = [(one, two) for index, one in enumerate(numbers) for two in numbers[index + 1 :]]

    assert drawing._inversions(numbers) == sum(one > two for one, two in pairs)


def test_it_has_no_inline_style_and_no_script() -> None:
    assert not re.search(r"style=|<script|<style|href", draw(*graph(1), title="x"))
