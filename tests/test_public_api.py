"""What `procq` exports is what its reference page says, and importing it stays cheap (contract M, H2)."""

import ast
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from enum import EnumType
from pathlib import Path
from typing import Any, Final, NamedTuple, get_overloads

import pytest
from tests.support.pages import blocks, codes, prose, rows

import procq
from procq import errors
from procq.spec import OptionArguments

ROOT: Final = Path(__file__).parents[1]
#: Classes that programs make themselves; the others they are given.
MADE_BY_HAND: Final = {
    "Aging", "Breaker", "FaultTolerantQueue", "Permanent", "Queue", "RetryLater", "Spawn", "TaskSpec", "WeightedFair",
}  # fmt: skip
CLASSES: Final = [name for name in procq.__all__ if isinstance(getattr(procq, name), type)]
LIMIT_S: Final = 30


# --- names -----------------------------------------------------------------------------------------


def test_the_public_names_are_sorted_and_each_is_there() -> None:
    assert procq.__all__ == sorted(set(procq.__all__))
    assert all(getattr(procq, name) is not None for name in procq.__all__)
    assert set(procq.__all__) <= set(dir(procq))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'procq' has no attribute 'Quue'"):
        procq.Quue  # noqa: B018 - looking it up is what is tested


@pytest.mark.parametrize("name", procq.__all__)
def test_every_public_thing_has_a_docstring_of_its_own(name: str) -> None:
    assert vars(procq)[name].__doc__


def loaded_after(code: str) -> set[str]:
    """Run code in a fresh interpreter, and return the modules that are then loaded."""
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{code}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return set(done.stdout.split())


#: What costs every program and every worker time, and only some need (contract H2).
HEAVY: Final = {
    "asyncio", "cloudpickle", "concurrent.futures", "datetime", "inspect", "logging", "multiprocessing", "psutil",
    "traceback",
}  # fmt: skip


@pytest.mark.parametrize(
    "code",
    [
        "import procq",
        "from procq import task, TaskSpec",
        "from procq import *",
        "from procq import Queue; Queue()",
        "from procq import Queue\nwith Queue(1) as queue: queue.submit(abs, -1).result()",
    ],
)
def test_H2_importing_procq_and_running_a_task_loads_nothing_heavy(code: str) -> None:
    loaded = loaded_after(code)

    assert "procq" in loaded
    assert not loaded & HEAVY


def test_H2_importing_procq_alone_loads_no_other_module_of_it() -> None:
    assert {name for name in loaded_after("import procq") if name.partition(".")[0] == "procq"} == {"procq"}


def test_errors_are_public_by_their_module() -> None:
    assert "errors" not in procq.__all__
    assert errors.ProcqError.__module__ == "procq.errors"


# --- the reference page ----------------------------------------------------------------------------


class Entry(NamedTuple):
    """A public name on the page: its signatures, and what is said of it."""

    signatures: str
    told: str


@functools.cache
def page() -> str:
    return (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")


@functools.cache
def entries() -> dict[str, Entry]:
    """Read the page: a heading of the third level for each name."""
    found = re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", page(), re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found)), "a name is listed twice"
    return {name: Entry("".join(block.text for block in blocks(body)), prose(body)) for name, body in found}


def test_M_the_page_lists_the_public_names_and_no_others() -> None:
    assert sorted(entries()) == procq.__all__


@pytest.mark.parametrize("name", procq.__all__)
def test_M_each_name_has_its_signature_and_two_lines_or_more(name: str) -> None:
    entry = entries()[name]

    assert entry.signatures
    assert len([line for line in entry.told.splitlines() if line]) >= 2


class Shown(NamedTuple):
    """A line of a signature block: "Owner", "Owner.part", "Owner.part(a, b=1) -> X" or "Owner.part = 1"."""

    owner: str
    part: str | None
    parameters: ast.arguments | None
    value: str | None

    @classmethod
    def read(cls, line: str) -> "Shown":
        found = re.fullmatch(r"(\w+)(?:\.(\w+))?(?:(\(.*\))(?: -> .+)?| = (.+))?", line)
        assert found is not None, f"cannot read {line!r}"
        owner, part, parameters, value = found.groups()
        return cls(owner, part, None if parameters is None else _arguments(parameters), value)


def _arguments(parameters: str) -> ast.arguments:
    (function,) = ast.parse(f"def shown{parameters}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return function.args


def shown(name: str) -> list[Shown]:
    return [Shown.read(line) for line in entries()[name].signatures.splitlines() if line]


#: Names and kinds of parameters: what a caller goes by.
Words = tuple[tuple[str, str], ...]


def words_of_the_code(function: Callable[..., object], *, bound: bool) -> Words:
    return tuple((one.name, one.kind.description) for one in parameters(function, bound=bound))


def parameters(function: Callable[..., object], *, bound: bool) -> list[inspect.Parameter]:
    found = list(inspect.signature(function).parameters.values())
    return found[1:] if bound else found


def words_of_the_page(arguments: ast.arguments) -> Words:
    kinds = inspect.Parameter
    listed = [
        *((one, kinds.POSITIONAL_ONLY) for one in arguments.posonlyargs),
        *((one, kinds.POSITIONAL_OR_KEYWORD) for one in arguments.args),
        *((one, kinds.VAR_POSITIONAL) for one in [arguments.vararg] if one is not None),
        *((one, kinds.KEYWORD_ONLY) for one in arguments.kwonlyargs),
        *((one, kinds.VAR_KEYWORD) for one in [arguments.kwarg] if one is not None),
    ]
    return tuple((one.arg, kind.description) for one, kind in listed)


def defaults_of_the_page(arguments: ast.arguments) -> dict[str, ast.expr]:
    positional = [*arguments.posonlyargs, *arguments.args]
    optional = positional[len(positional) - len(arguments.defaults) :]
    found = {one.arg: default for one, default in zip(optional, arguments.defaults, strict=True)}
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return found | {one.arg: default for one, default in keywords if default is not None}


def check_signature(function: Callable[..., object], arguments: ast.arguments, *, bound: bool) -> None:
    """Compare a shown signature with that of a function, or with one of its overloads."""
    candidates = [function, *(get_overloads(function) if inspect.isfunction(function) else [])]
    by_words = {words_of_the_code(one, bound=bound): one for one in candidates}
    words = words_of_the_page(arguments)
    assert words in by_words, f"{words} is none of {list(by_words)}"
    empty = inspect.Parameter.empty
    actual = {one.name: one.default for one in parameters(by_words[words], bound=bound) if one.default is not empty}
    told = defaults_of_the_page(arguments)
    assert set(told) == set(actual)
    # A call, and "..." for what is told in words, are not compared.
    plain = {key: ast.literal_eval(value) for key, value in told.items() if isinstance(value, ast.Constant | ast.Tuple)}
    for key, value in plain.items():
        assert value is ... or actual[key] == value, f"the default of {key} is {actual[key]!r}"


@pytest.mark.parametrize("name", procq.__all__)
def test_M_each_signature_is_that_of_the_code(name: str) -> None:
    thing: Any = getattr(procq, name)

    for line in shown(name):
        assert line.owner == name
        if line.part is None:
            is_class = isinstance(thing, type)
            assert line.parameters is not None
            check_signature(thing.__init__ if is_class else thing, line.parameters, bound=is_class)
        elif line.value is not None:
            assert getattr(thing, line.part) == ast.literal_eval(line.value)
        elif line.parameters is not None:
            check_signature(vars(thing)[line.part], line.parameters, bound=True)
        else:
            assert not inspect.isroutine(vars(thing)[line.part]), f"{line.part} is called"


def public_parts(thing: type) -> set[str]:
    """Return the public attributes that a class itself has, the members of an enumeration included."""
    if isinstance(thing, EnumType):
        return {name for name, value in vars(thing).items() if isinstance(value, property)} | set(thing.__members__)
    return {name for name in vars(thing) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_M_each_part_of_a_class_is_shown(name: str) -> None:
    lines = shown(name)

    assert {line.part for line in lines if line.part is not None} == public_parts(getattr(procq, name))
    assert any(line.part is None for line in lines) == (name in MADE_BY_HAND)


def test_C3_the_table_of_options_is_complete() -> None:
    found = [codes(row[0])[0] for row in rows(page(), "Options of a task")]

    assert sorted(found) == sorted(OptionArguments.__annotations__)
