"""The examples run as their first lines say, and what they find is what a plain loop finds."""

import ast
import contextlib
import gc
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STDLIB = Path(sysconfig.get_path("stdlib"))
LIMIT_S = 120

pytestmark = pytest.mark.processes


def run(cwd: Path, *arguments: str) -> str:
    """Run this interpreter, and return what it wrote to standard output."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> str:
    return str(ROOT / "examples" / name)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Keep the collector from walking, again and again, over trees that have no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@without_collections()
def count_in_one_loop(library: Path) -> tuple[Counter[str], list[tuple[int, str, str]], int, int]:
    """Count nodes, the longest function of each file, files and files that are no Python, plainly."""
    nodes: Counter[str] = Counter()
    longest: list[tuple[int, str, str]] = []
    files = skipped = 0
    for path in library.rglob("*.py"):
        if "site-packages" in path.parts:
            continue
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            skipped += 1
            continue
        files += 1
        name = path.relative_to(library).as_posix()
        found = list(ast.walk(tree))
        nodes.update(type(node).__name__ for node in found)
        functions = [
            (node.lineno - (node.end_lineno or 0) - 1, name, node.name)
            for node in found
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        longest += sorted(functions)[:1]
    return nodes, [(-lines, name, function) for lines, name, function in sorted(longest)], files, skipped


def read_table(text: str) -> tuple[Counter[str], list[tuple[int, str, str]], str]:
    """Return what the census wrote: nodes by kind, the longest functions, and the first line."""
    first, counts, functions = text.split("\n\n")
    rows = [line.split() for line in counts.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    found = re.findall(r"^ *\d+ +(\d+)  (.+): (\w+)$", functions, re.MULTILINE)
    return Counter({row[3]: int(row[1]) for row in rows}), [(int(n), file, name) for n, file, name in found], first


def check_census(tmp_path: Path, library: Path) -> None:
    """Run the census over a folder and compare its table with a plain loop's, which runs meanwhile."""
    command = ("-m", "procq", "run", example("stdlib_census.py"), "-p", f"library={library}", "-p", "out=reports")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run, tmp_path, *command)
        nodes, longest, files, skipped = count_in_one_loop(library)
        printed = running.result()
    table = (tmp_path / "reports" / "census.txt").read_text(encoding="utf-8")

    found, functions, first = read_table(table)

    assert found == nodes
    assert functions == longest[:20]
    assert first == f"{nodes.total()} nodes of {len(nodes)} kinds in {files} files, {skipped} files skipped"
    assert printed.splitlines() == table.splitlines()[:12]


def test_the_census_of_a_package_equals_a_plain_loop(tmp_path: Path) -> None:
    check_census(tmp_path, STDLIB / "asyncio")


@pytest.mark.slow
def test_the_census_of_many_files_some_of_them_no_python_equals_a_plain_loop(tmp_path: Path) -> None:
    """Enough for three layers of merges and for a batch that is long; the whole library would take half a minute."""
    library = tmp_path / "library"
    for folder in (STDLIB, STDLIB / "pydoc_data"):
        (library / folder.name).mkdir(parents=True)
        for path in folder.glob("*.py"):
            shutil.copy(path, library / folder.name)
    (library / "no_python.py").write_text("def :", encoding="utf-8")
    (library / "no_text.py").write_bytes(b"\0\xff")
    (library / "site-packages").mkdir()
    (library / "site-packages" / "installed.py").write_text("not_of_the_library = 1", encoding="utf-8")

    check_census(tmp_path, library)


def test_the_census_writes_no_file_unless_told(tmp_path: Path) -> None:
    printed = run(
        tmp_path,
        "-m",
        "procq",
        "run",
        example("stdlib_census.py"),
        "-p",
        f"library={STDLIB / 'json'}",
        "--progress=off",
        "--no-state",
    )

    assert " nodes of " in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("way", [["-m", "procq", "run"], []], ids=["procq run", "python"])
def test_the_word_count_is_right_both_ways(tmp_path: Path, way: list[str]) -> None:
    texts = tmp_path / "texts"
    (texts / "inner").mkdir(parents=True)
    (texts / "a.txt").write_text("The cat and the dog.\n", encoding="utf-8")
    (texts / "inner" / "b.txt").write_text("the Bär, the cat", encoding="utf-8")
    (texts / "c.md").write_text("dog dog dog dog", encoding="utf-8")

    printed = run(tmp_path, *way, example("wordcount.py"), "-p", "folder=texts", "-p", "top=2", "-j", "2")

    assert [line.split() for line in printed.splitlines()] == [["4", "the"], ["2", "cat"]]


def test_a_tree_of_folders_is_looked_into_whole(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a" / "deep" / "deeper").mkdir(parents=True)
    (root / "b").mkdir()
    (root / "a" / "one").write_bytes(b"twin" * 25)
    (root / "a" / "deep" / "two").write_bytes(b"x" * 30)
    (root / "a" / "deep" / "deeper" / "three").write_bytes(b"twin" * 25)
    (root / "b" / "four").write_bytes(b"")
    (root / "loop").symlink_to(root)

    printed = run(tmp_path, example("spawn_tree.py"), "root")

    sizes, twins = printed.split("\n\n")
    found = {line.split()[4]: (int(line.split()[0]), int(line.split()[2])) for line in sizes.splitlines()}
    assert found == {
        "root": (230, 4), "root/a": (230, 3), "root/a/deep": (130, 2), "root/a/deep/deeper": (100, 1), "root/b": (0, 1),
    }  # fmt: skip
    assert twins.splitlines() == [
        "5 folders, 2 files that are there more than once", "root/a/deep/deeper/three", "  = root/a/one",
    ]  # fmt: skip


def test_the_tree_of_a_package_equals_a_plain_loop(tmp_path: Path) -> None:
    printed = run(tmp_path, example("spawn_tree.py"), str(STDLIB / "email"), "1")

    files = [path for path in (STDLIB / "email").rglob("*") if path.is_file() and not path.is_symlink()]
    assert printed.split()[0] == str(sum(path.stat().st_size for path in files))
    assert printed.split()[2] == str(len(files))


def test_a_plain_script_uses_a_queue_without_a_guard(tmp_path: Path) -> None:
    printed = run(tmp_path, example("use_queue.py"))

    counts = [int(line.split()[0]) for line in printed.splitlines()]
    assert counts == [4, 25, 168, 1229, 9592, 78498, 89516]
