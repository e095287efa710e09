# What Python's standard library is made of: parses every file of it, counts the kinds of syntax
# nodes, finds the longest functions, and merges the counts as a tree.
#
#   procq run examples/stdlib_census.py                     prints the top of the table
#   procq run examples/stdlib_census.py -p out=reports      also writes reports/census.txt, all of it
#   procq run examples/stdlib_census.py -p library=src      counts another folder
import ast
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from procq import Priority, TaskSpec, task

STDLIB = Path(sysconfig.get_path("stdlib"))
BATCH_BYTES = 400_000  # source for about 80 ms of work: far more than a task costs, far less than the whole
FAN_IN = 8  # counts merged by one task
LONGEST = 20  # functions kept


@dataclass
class Census:
    files: int = 0
    skipped: list[str] = field(default_factory=list)  # files that are no valid Python, such as tests of the parser
    nodes: Counter[str] = field(default_factory=Counter)
    longest: list[tuple[int, str, str]] = field(default_factory=list)  # lines, file, function; longest first


def longest_first(functions: Iterable[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
    return sorted(functions, key=lambda found: (-found[0], found[1:]))[:LONGEST]


# A second try, because a file on a network disk may be unreadable for a moment; a time limit,
# because no batch of this size takes a minute unless something is wrong.
@task(max_attempts=2, timeout="1m")
def parse(root: Path, files: list[Path]) -> Census:
    census = Census()
    functions: list[tuple[int, str, str]] = []
    for path in files:
        name = path.relative_to(root).as_posix()
        try:
            with warnings.catch_warnings(action="ignore"):  # old files use escapes that Python now warns of
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            census.skipped.append(name)
            continue
        census.files += 1
        found = [(0, "", "")]
        for node in ast.walk(tree):
            census.nodes[type(node).__name__] += 1
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append(((node.end_lineno or node.lineno) - node.lineno + 1, name, node.name))
        functions.append(longest_first(found)[0])
    census.longest = longest_first(function for function in functions if function[0])
    return census


@task
def merge(parts: list[Census]) -> Census:
    return Census(
        files=sum(part.files for part in parts),
        skipped=sorted(name for part in parts for name in part.skipped),
        nodes=sum((part.nodes for part in parts), Counter[str]()),
        longest=longest_first(function for part in parts for function in part.longest),
    )


@task
def report(census: Census, out: Path | None) -> None:
    lines = list(table(census))
    print(*lines[:12], sep="\n", flush=True)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "census.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(census: Census) -> Iterator[str]:
    total = census.nodes.total()
    yield f"{total} nodes of {len(census.nodes)} kinds in {census.files} files, {len(census.skipped)} files skipped"
    yield ""
    for rank, (kind, count) in enumerate(sorted(census.nodes.items(), key=lambda item: (-item[1], item[0])), 1):
        yield f"{rank:4} {count:10} {count / total:7.2%}  {kind}"
    yield ""
    yield "longest function of a file, in lines:"
    yield from (
        f"{rank:4} {lines:10}  {name}: {function}" for rank, (lines, name, function) in enumerate(census.longest, 1)
    )


def batches(files: Iterable[Path]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for path in files:
        batch.append(path)
        size += path.stat().st_size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def sources(library: Path) -> list[Path]:
    return sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts and path.is_file())


def jobs(library: Path = STDLIB, out: Path | None = None) -> list[TaskSpec[None]]:
    layer: list[TaskSpec[Census]] = []
    for batch in batches(sources(library)):
        # A batch that one big file makes much longer than the others starts first, so that nobody
        # waits for it alone at the end.
        is_long = sum(path.stat().st_size for path in batch) > 1.5 * BATCH_BYTES
        layer.append(parse.using(priority=Priority.HIGH if is_long else Priority.NORMAL).spec(library, batch))
    while len(layer) > 1:
        layer = [merge.spec([part.out for part in layer[i : i + FAN_IN]]) for i in range(0, len(layer), FAN_IN)]
    return [report.spec(census.out, out) for census in layer]
