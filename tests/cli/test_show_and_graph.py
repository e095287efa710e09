"""`procq show` and `procq graph`: what a jobs file has and would run, read without running it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from procq.cli import console
from procq.cli.commands.graph import MOST_TASKS

pytestmark = pytest.mark.usefixtures("fresh_loader")

Write = Callable[..., Path]

ETL = '''
    """A graph."""
    from enum import Enum
    from pathlib import Path
    import procq
    from procq import Priority, exponential, task

    class Size(Enum):
        SMALL = 1
        BIG = 2

    @task(type="get", max_attempts=6, timeout="20s", retry_on=(OSError,), priority=Priority.HIGH)
    def fetch(shop: str, day: int = 1) -> Path:
        """Fetch one.

        More.
        """
        raise AssertionError("ran")

    @task
    def clean(raw): raise AssertionError("ran")

    @task
    def merge(parts): raise AssertionError("ran")

    def helper(x): ...
    def _private(): ...
    async def later(): ...

    @procq.jobs(limits={"get": 4})
    def nightly(size: Size, shops: list[str] = ["ams", "ber"], out: Path = Path("o.json"), quick: bool | None = None):
        """Do it all."""
        cleaned = [clean.spec(fetch.using(id=f"get/{shop}").spec(shop).out) for shop in shops]
        yield merge.spec([cleaned[0], {"more": cleaned[1:]}])
        yield merge.using(depends_on=["get/ams", "get/none"]).spec([])
'''


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must succeed, and return what it wrote."""
    code = console(arguments)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that must fail, and return its code and what it said."""
    code = console(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


# --- show ----------------------------------------------------------------------------------------


def test_show_lists_entries_and_task_functions(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(ETL, "etl.py")

    out = shown(capsys, "show", str(path)).replace(str(path), "etl.py")

    assert out.splitlines() == [
        "etl.py",
        "entries",
        "  helper",
        "    -p x=STR  required",
        "  nightly  @procq.jobs(limits={'get': 4})  runs if none is named  Do it all.",
        "    -p size=SMALL|BIG  required",
        "    -p shops=STR  default ['ams', 'ber'], again for more",
        "    -p out=PATH  default o.json",
        "    -p quick=BOOL | NONE  default none",
        "task functions",
        "  fetch(shop: str, day: int = 1) -> pathlib.Path  etl.py:12  Fetch one.",
        "    type='get'",
        "    max_attempts=6, timeout='20s', retry_on=(OSError,), priority=Priority.HIGH",
        "  clean(raw)  etl.py:20",
        "  merge(parts)  etl.py:23",
    ]


def test_show_as_json_says_the_same(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(shown(capsys, "show", str(write(ETL, "etl.py")), "--json"))

    assert facts["file"] == "etl.py"
    assert [(entry["name"], entry["default"], entry["marked"]) for entry in facts["entries"]] == [
        ("helper", False, False),
        ("nightly", True, True),
    ]
    assert facts["entries"][1]["options"] == {"limits": {"get": 4}}
    assert facts["entries"][1]["parameters"][0] == {
        "name": "size", "kind": "SMALL|BIG", "list": False, "required": True, "default": None,
    }  # fmt: skip
    assert facts["tasks"][0]["options"] == {
        "max_attempts": 6, "timeout": "20s", "retry_on": ["OSError"], "priority": 10,
    }  # fmt: skip


def test_show_of_one_entry_shows_that(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "show", f"{write(ETL, 'etl.py')}:helper", "--json")

    assert [entry["name"] for entry in json.loads(out)["entries"]] == ["helper"]


def test_show_of_a_file_without_anything_says_so(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "show", str(write("")))

    assert out.splitlines()[1:] == ["entries: none", "task functions: none"]


def test_an_entry_that_is_none_is_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = refused(capsys, "show", f"{write(ETL, 'etl.py')}:nihgtly")

    assert code == 3
    assert "did you mean `nightly`?" in err


# --- graph ---------------------------------------------------------------------------------------


def test_a_graph_by_type_has_the_numbers_of_tasks_and_needs(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "graph", str(write(ETL, "etl.py")), "-p", "size=BIG", "--format", "json")

    graph = json.loads(out)
    names = {node["node"]: node["label"] for node in graph["nodes"]}
    assert {(node["label"], node["count"], node["note"]) for node in graph["nodes"]} == {
        ("get", 2, ""), ("clean", 2, ""), ("merge", 2, ""), ("get/none", 0, "not listed"),
    }  # fmt: skip
    assert {(names[edge["source"]], names[edge["target"]], edge["count"]) for edge in graph["edges"]} == {
        ("get", "clean", 2), ("clean", "merge", 2), ("get", "merge", 1), ("get/none", "merge", 1),
    }  # fmt: skip


def test_a_graph_by_task_has_each_of_them(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "graph", str(write(ETL, "etl.py")), "-p", "size=BIG", "--by", "task", "--format", "dot")

    assert re.findall(r'label="(.*?)"', out) == [
        "get/ams get(shop='ams')",
        "clean(raw=get/ams)",
        "get/ber get(shop='ber')",
        "clean(raw=get/ber)",
        "merge(parts=[clean(…), {'more': [clean(…)]}])",
        "merge(parts=[])",
        "get/none (not listed)",
    ]
    assert out.count("->") == 6


def test_a_drawing_is_xml_and_has_the_types(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "graph", str(write(ETL, "etl.py")), "-p", "size=BIG", "--format", "svg")

    labels = {one.text for one in ET.fromstring(out).iter("{http://www.w3.org/2000/svg}text")}
    assert {"get \u00d72", "clean \u00d72", "merge \u00d72", "get/none"} <= labels


HOSTILE = """
    from procq import task

    @task(type='a"];<script>%%{}|b')
    def work(x): ...

    def jobs(): return [work.using(id='"]\\n--> \\\\"').spec(1)]
"""


def test_mermaid_gets_no_character_that_means_something(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "graph", str(write(HOSTILE)), "--by", "task")

    head, *lines = out.splitlines()
    assert head == "%% jobs.py:jobs"
    assert lines[0] == "flowchart LR"
    assert len(lines) == 2
    assert re.fullmatch(r'  n0\["[\w .,=\-/#;]*"\]', lines[1])


def test_dot_gets_quotes_and_backslashes_escaped(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "graph", str(write(HOSTILE)), "--by", "task", "--format", "dot")

    (node,) = [line for line in out.splitlines() if line.startswith("  n0")]
    text = node.removeprefix('  n0 [label="').removesuffix('"];')
    assert not re.search(r'(?<!\\)(\\\\)*"', text)


@pytest.mark.parametrize("form", ["svg", "mermaid"])
def test_too_many_tasks_for_a_drawing_are_refused_with_what_shows_them(
    write: Write, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    path = str(
        write("""
        from procq import task
        @task
        def one(x): ...
        def jobs():
            while True:
                yield one.spec(1)
    """)
    )

    code, err = refused(capsys, "graph", path, "--by", "task", "--format", form)

    assert code == 2
    assert f"more than {MOST_TASKS} tasks" in err
    assert "--by type counts them; --first N" in err
    assert shown(capsys, "graph", path, "--by", "task", "--format", form, "--first", str(MOST_TASKS))


def test_an_entry_that_fails_is_told_as_run_does(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("""
        def jobs():
            yield 1
        def broken():
            yield 1 / 0
    """)

    assert "yielded int (item 1), expected a TaskSpec" in refused(capsys, "graph", str(path))[1]
    assert "broken() failed: ZeroDivisionError" in refused(capsys, "graph", f"{path}:broken")[1]
