"""The documents say what is so: their code runs, their output is what comes out, their lists are complete.

The reference of the API is compared with the code in test_public_api.py.
"""

import builtins
import functools
import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import pytest
from tests.support.pages import anchors, blocks, codes, headings, links, prose, rows, section

import procq
from procq import errors, outcome
from procq.cli import elsewhere, parser
from procq.cli.exits import Exit
from procq.cli.signals import STOP_SIGNALS
from procq.closing import Mode
from procq.core.facts import Hold
from procq.core.states import MOVES, REVIVALS, TERMINAL, Status
from procq.core.task import Cause
from procq.engine.protocol import Departure
from procq.events import OPT_IN
from procq.spec import OptionArguments

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
PAGES: Final = [README, *sorted(DOCS.rglob("*.md"))]
#: The pages whose code is run; all the others only show signatures and diagrams.
RUNNABLE: Final = [README, DOCS / "quickstart.md", *sorted((DOCS / "howto").glob("*.md"))]
#: Far beyond what the longest command of a page takes.
LIMIT_S: Final = 60


def title(page: Path) -> str:
    """Name a page as the ids of the tests do."""
    return page.relative_to(ROOT).as_posix()


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


# --- code that runs ------------------------------------------------------------------------------


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A plain shell's surroundings, in which `procq` and `python` are of this tree and interpreter."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, arguments in (("procq", "-m procq"), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    hidden = {"FORCE_COLOR", "CLICOLOR_FORCE", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    return kept | {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


class Command(NamedTuple):
    """What is typed after "$ ", and what a page says comes out."""

    typed: str
    output: str


def commands(console: str) -> list[Command]:
    """Return the commands of a console block."""
    first, *rest = re.split(r"^\$ ", console, flags=re.MULTILINE)
    assert not first, "a console block begins with a command"
    return [Command(typed, output) for typed, _, output in (part.partition("\n") for part in rest)]


def comparable(output: str) -> str:
    """Take out of an output what differs from run to run, and from one Python to the next."""
    output = re.sub(r"^[ ^~]+\n", "", output, flags=re.MULTILINE)  # the marks under a traceback's line
    output = re.sub(r'File "[^"]*/', 'File "', output)
    output = re.sub(r"\b(?:\d+h\d\dm|\d+m\d\ds|\d+(?:\.\d+)?(?:ms|s))\b", "<time>", output)
    output = re.sub(r"\bpid \d+", "pid <number>", output)
    return re.sub(r"\b\d+ workers?\b", "<workers>", output).strip()


def save(code: str, folder: Path, where: str) -> None:
    """Save a Python block under the name in its first line."""
    name = re.match(r"# ([\w.]+\.py)\n", code)
    assert name is not None, f"{where}: the first line must name the file: # name.py"
    (folder / name[1]).write_text(code, encoding="utf-8")


def run(command: Command, folder: Path, environment: dict[str, str]) -> str | None:
    """Run a command; return what is wrong with the output that the page shows, or None."""
    done = subprocess.run(
        ["bash", "-c", command.typed],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if comparable(done.stdout) == comparable(command.output):
        return None
    return f"$ {command.typed}\n--- what comes out:\n{done.stdout}--- what the page shows:\n{command.output}"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", RUNNABLE, ids=title)
def test_what_a_page_shows_is_what_comes_out(page: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "work"
    folder.mkdir()

    wrong: list[str] = []
    for block in blocks(page.read_text(encoding="utf-8")):
        where = f"{title(page)}:{block.line}"
        if block.language == "python":
            save(block.text, folder, where)
        elif block.language == "console":
            found = [run(command, folder, environment) for command in commands(block.text)]
            wrong += [f"{where}: {one}" for one in found if one is not None]

    assert not wrong, "\n\n".join(wrong)


def test_outputs_are_compared_without_what_differs_from_run_to_run() -> None:
    one = 'ok in 2.2s: 3 ok  2 workers\n  File "/home/ann/a.py", line 3\n    x\n    ~^~\n'
    other = 'ok in 61ms: 3 ok  16 workers\n  File "a.py", line 3\n    x\n'

    assert comparable(one) == comparable(other)
    assert comparable(one) != comparable(other.replace("3 ok", "4 ok"))


@pytest.mark.parametrize("page", [page for page in PAGES if page not in RUNNABLE], ids=title)
def test_where_code_is_not_run_no_output_is_shown(page: Path) -> None:
    languages = {block.language for block in blocks(page.read_text(encoding="utf-8"))}

    assert languages <= {"python", "mermaid", "sh", "toml"}


# --- links and prose -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert "://" not in link, f"{link}: links are relative"
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link}: leads out of the project"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {README}
    waiting = [README]
    while waiting:
        page = waiting.pop()
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)} & set(PAGES)
        waiting += targets - reached
        reached |= targets

    assert reached == set(PAGES)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_prose_has_one_sentence_a_line(page: Path) -> None:
    for number, line in enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), 1):
        sentence = "" if line.startswith("|") else re.sub(r"^ *\d+\. ", "", line)
        assert not re.search(r"[\w`)*\"][.!?] +[A-Z*`\[]", sentence), f"line {number}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_no_page_names_the_machine_it_was_written_on(page: Path) -> None:
    assert not re.search(r"/(?:tmp|work|root)\b", page.read_text(encoding="utf-8"))


# --- explanation -----------------------------------------------------------------------------------


def arrows(text: str) -> set[tuple[str, str]]:
    """Return the arrows of the one diagram of a page."""
    (diagram,) = [block.text for block in blocks(text) if block.language == "mermaid"]
    found = re.findall(r"^ *(\S+) --> (\w+|\[\*\])(?:: .+)?$", diagram, re.MULTILINE)
    assert len(found) == diagram.count("-->"), "an arrow cannot be read"
    assert len(found) == len(set(found)), "an arrow is drawn twice"
    return set(found)


def moves_of_the_code() -> set[tuple[str, str]]:
    """Return every legal move by the names of its states."""
    tables = [*MOVES.items(), *REVIVALS.items()]
    return {(before.name, after.name) for before, onward in tables for after in onward}


def test_A3_the_diagram_shows_the_legal_moves_and_no_others() -> None:
    ends = {("[*]", Status.BLOCKED.name), ("[*]", Status.READY.name)} | {(status.name, "[*]") for status in TERMINAL}

    assert arrows(text_of("explanation/states.md")) == moves_of_the_code() | ends


def test_A3_the_table_of_moves_tells_the_cause_of_each() -> None:
    found = rows(text_of("explanation/states.md"), "Moves")

    moves = [(codes(before)[0], codes(after)[0]) for before, after, _ in found]
    assert sorted(moves) == sorted(moves_of_the_code())
    assert all(cause for _, _, cause in found)


def test_A2_the_table_of_states_says_what_holds_each() -> None:
    found = rows(text_of("explanation/states.md"), "Where a task is held")

    assert [codes(state) for state, _, _ in found] == [[status.name] for status in Status]
    assert all(is_known(codes(held_by)[0]) for _, _, held_by in found)


def test_D2_the_page_on_failures_tells_every_outcome() -> None:
    told = headings(text_of("explanation/failures.md"), 3)

    assert told == [f"`{name}`" for name in outcome.OUTCOMES]


@functools.cache
def names_of_the_package() -> dict[str, list[object]]:
    """Return every module of procq, and every class and function at the top of one, by its name."""
    found: dict[str, list[object]] = {}
    for info in pkgutil.walk_packages(procq.__path__, "procq."):
        if info.name == "procq.__main__":  # runs the command line
            continue
        module = importlib.import_module(info.name)
        found.setdefault(info.name.rpartition(".")[2], []).append(module)
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == info.name and callable(value):
                found.setdefault(name, []).append(value)
    return found


def has(owner: object, name: str) -> bool:
    """Whether a module or class has an attribute, be it one that only its methods set."""
    if hasattr(owner, name):
        return True
    return isinstance(owner, type) and re.search(rf"\bself\.{name}\b", inspect.getsource(owner)) is not None


def is_known(reference: str) -> bool:
    """Whether "Owner.name", a class, a function, a public method or "module.py" is in the package."""
    if reference.endswith(".py"):
        return any((ROOT / "procq").rglob(reference))
    first, _, rest = reference.partition(".")
    owners = names_of_the_package().get(first, [])
    if rest:
        return any(has(owner, rest) for owner in owners)
    return bool(owners) or any(hasattr(one, first) for one in (procq, procq.errors, procq.Queue, procq.Handle))


def references(text: str) -> set[str]:
    """Return what a text's code names: "Owner.name", "function()", "ClassName"."""
    pattern = r"_?[A-Za-z]\w*\.\w+(?:\(\))?|\w+\(\)|[A-Z]\w*[a-z]\w*"
    return {code.removesuffix("()") for code in codes(prose(text)) if re.fullmatch(pattern, code)}


@pytest.mark.parametrize("name", ["architecture", "states", "failures"])
def test_what_an_explanation_names_is_in_the_code(name: str) -> None:
    named = references(text_of(f"explanation/{name}.md"))

    elsewhere = {one for one in named if one.partition(".")[0] in sys.stdlib_module_names or hasattr(builtins, one)}
    unknown = {one for one in named - elsewhere if not is_known(one.removeprefix("procq."))}

    assert len(named) > 5, "or this looks at nothing"
    assert not unknown


# --- reference: errors ---------------------------------------------------------------------------


class Listed(NamedTuple):
    """An error, as a page or the code has it."""

    parent: str | None
    also: frozenset[str]  #: the standard classes that it is one of and its parent is not


def errors_of_the_page(text: str) -> dict[str, Listed]:
    """Read a nested list of errors."""
    path: list[str] = []
    found: dict[str, Listed] = {}
    for indent, name, also in re.findall(r"^( *)- `(\w+)`(?: \(also (.+?)\))?:", text, re.MULTILINE):
        depth = len(indent) // 2
        path[depth:] = [name]
        found[name] = Listed(path[depth - 1] if depth else None, frozenset(codes(also)))
    return found


def errors_of_the_code() -> dict[str, Listed]:
    """Read `procq.errors`."""
    public = [
        value
        for name in dir(errors)
        for value in (getattr(errors, name),)
        if isinstance(value, type) and value.__module__ == errors.__name__ and not name.startswith("_")
    ]
    found: dict[str, Listed] = {}
    for one in public:
        parent = next((base for base in one.__mro__[1:] if base in public), None)
        known = Exception.__mro__ if parent is None else parent.__mro__
        foreign = [base for base in one.__mro__ if base.__module__ != errors.__name__ and base not in known]
        # Only the nearest: that a KeyError is a LookupError everyone can look up.
        also = {base.__name__ for base in foreign if not any(base in other.__mro__[1:] for other in foreign)}
        found[one.__name__] = Listed(None if parent is None else parent.__name__, frozenset(also))
    return found


def test_M_the_tree_of_errors_is_that_of_the_code() -> None:
    assert errors_of_the_page(text_of("reference/errors.md")) == errors_of_the_code()


# --- reference: events ---------------------------------------------------------------------------

EVENTS: Final = "reference/events.md"
SCHEMA: Final = json.loads((ROOT / "procq" / "events.schema.json").read_text(encoding="utf-8"))


def fields_of_the_schema(part: Any) -> list[str]:  # noqa: ANN401 - JSON
    return [name for name in part["properties"] if name != "ev" and name in part["required"]]


def words_of_the_schema(kind: str, field: str) -> set[str]:
    return set(SCHEMA["$defs"][kind]["properties"][field]["enum"]) - {None}


def test_the_schema_of_events_knows_every_word_of_the_code() -> None:
    assert words_of_the_schema("attempt.ended", "outcome") == set(outcome.OUTCOMES)
    assert words_of_the_schema("task.ended", "cause") == set(get_args(Cause))
    assert words_of_the_schema("task.ended", "status") == {str(status) for status in TERMINAL}
    assert words_of_the_schema("task.held", "reason") == set(get_args(Hold))
    assert words_of_the_schema("worker.ended", "reason") == set(get_args(Departure))
    assert words_of_the_schema("run.stopping", "mode") == set(get_args(Mode))
    assert set(SCHEMA["$defs"]["status"]["enum"]) == {str(status) for status in Status}


def test_every_kind_of_event_is_told_with_its_fields() -> None:
    found = {codes(kind)[0]: codes(fields) for kind, fields, _ in rows(text_of(EVENTS), "Kinds")}

    assert found == {kind: fields_of_the_schema(SCHEMA["$defs"][kind]) for kind in SCHEMA["properties"]["ev"]["enum"]}
    assert [codes(row[0])[0] for row in rows(text_of(EVENTS), "In every event")] == list(SCHEMA["properties"])


def test_the_fields_that_procq_run_alone_tells_are_named() -> None:
    (line,) = [line for line in text_of(EVENTS).splitlines() if line.startswith("Under `procq run` some have more")]
    kinds = SCHEMA["$defs"].items()
    optional = {kind: set(part["properties"]) - set(part["required"]) for kind, part in kinds if "properties" in part}

    named = set(codes(line)) - {"procq run"}
    assert named == {
        name for kind, fields in optional.items() if fields and kind != "error" for name in (kind, *fields)
    }


def test_every_word_that_a_field_of_an_event_may_be_is_told() -> None:
    told = {codes(kind)[0]: set(re.findall(r'"(\w+)"', when)) for kind, _, when in rows(text_of(EVENTS), "Kinds")}

    for kind in ("task.scheduled", "task.held", "task.ready", "worker.ended"):
        assert told[kind] == words_of_the_schema(kind, "reason")
    assert {kind for kind, _, when in rows(text_of(EVENTS), "Kinds") if when.startswith("opt-in")} == {
        f"`{kind}`" for kind in OPT_IN
    }


def test_every_cause_for_which_a_task_is_cancelled_is_told() -> None:
    """That the code can name each of them, and no other, is seen in tests/contract/test_events.py."""
    told = rows(text_of(EVENTS), "Causes")

    assert sorted(cause for cause, _ in told) == sorted(f'"{cause}"' for cause in get_args(Cause))
    assert all(why for _, why in told)


# --- reference: the command line -------------------------------------------------------------------

CLI: Final = "reference/cli.md"


def flags(of: ArgumentParser) -> set[frozenset[str]]:
    """Return the flags of a parser, those that mean the same together."""
    return {frozenset(action.option_strings) for action in of._actions if action.option_strings}


def test_K1_the_page_lists_the_flags_of_run() -> None:
    cells = [row[0] for row in rows(text_of(CLI), "Flags of `procq run`")]

    assert {frozenset(code.split()[0] for code in codes(cell)) for cell in cells} == flags(parser.run_parser())


def test_K1_the_page_lists_what_has_no_flag() -> None:
    cells = [row[0] for row in rows(text_of(CLI), "What has no flag")]

    assert {name for cell in cells for name in codes(cell)} == elsewhere.WITHOUT_FLAG


def test_K1_the_page_lists_the_commands() -> None:
    assert [codes(row[0])[0].split()[1] for row in rows(text_of(CLI), "Commands")] == list(parser.COMMANDS)


def test_K1_the_page_lists_the_exit_codes() -> None:
    assert [row[0] for row in rows(text_of(CLI), "Exit codes")] == [str(int(code)) for code in Exit]


def test_K1_the_page_lists_the_signals() -> None:
    found = {name for row in rows(text_of(CLI), "Signals") for name in re.findall(r"SIG[A-Z0-9]+", row[0])}

    assert found == {number.name for number in STOP_SIGNALS} | {"SIGUSR1", "SIGINFO"}


# --- reference: the promises -----------------------------------------------------------------------

PROMISES: Final = "reference/promises.md"


def test_each_promise_cites_a_clause_and_tests_that_are_there() -> None:
    written = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    headings = re.findall(r"^## (.+)$", text_of(PROMISES), re.MULTILINE)
    promised = [row for heading in headings for row in rows(text_of(PROMISES), heading)]

    assert len(promised) > 20
    for feature, promise, cost, proof in promised:
        assert promise and cost  # noqa: PT018
        assert set(re.findall(r"[A-M]\d+", feature)) <= clauses().keys()
        assert codes(proof), f"nothing proves {feature}"
        for name in codes(proof):
            assert re.search(rf"^(def {name}\(|{name} = )", written, re.MULTILINE), f"{name} is no test"


# --- reference: the contract -----------------------------------------------------------------------

CONTRACT: Final = "reference/contract.md"


def clauses() -> dict[str, str]:
    """Return the clauses of the contract by their numbers."""
    found = re.findall(r"^- \*\*([A-M]\d+)\*\* (.*\n(?:  .*\n)*)", text_of(CONTRACT), re.MULTILINE)
    assert len(found) == len(dict(found)), "a number is given twice"
    return dict(found)


def sources() -> list[Path]:
    """Return every Python file of the tree that may cite a clause."""
    return [path for folder in ("procq", "tests", "examples", "bench") for path in (ROOT / folder).rglob("*.py")]


def cited(path: Path) -> set[str]:
    """Return the clauses that a file names: in the names of tests, in brackets, and as "contract D5, D6".

    H with two digits is no clause but a failure of other pools.
    """
    text = path.read_text(encoding="utf-8")
    lists = re.findall(r"(?:\bcontract |\()([A-M]\d+(?:(?:, | and )[A-M]\d+)*)\b", text)
    found = set(re.findall(r"\btest_([A-M]\d+)_", text)).union(*(re.findall(r"[A-M]\d+", one) for one in lists))
    return {one for one in found if not re.fullmatch(r"H\d\d", one)}


def test_every_clause_that_is_cited_is_in_the_contract() -> None:
    unknown = {path: found for path in sources() if (found := cited(path) - clauses().keys())}

    assert not unknown


def is_built(name: str) -> bool:
    """Whether a name of the contract is public: of procq, of a queue or its parameters, an option, or a flag."""
    if name.startswith("--"):
        return frozenset({name}) in flags(parser.run_parser())
    made = (*inspect.signature(procq.Queue).parameters, *dir(procq.Queue), *OptionArguments.__optional_keys__)
    return name in {*procq.__all__, *made} or f"--{name}" in {
        one for names in flags(parser.run_parser()) for one in names
    }


def test_what_the_contract_says_is_not_built_is_not() -> None:
    """Whoever builds it takes the mark away."""
    missing = {row[0]: codes(row[1]) for row in rows(text_of(CONTRACT), "What is not built yet")}

    assert [name for names in missing.values() for name in names if is_built(name)] == []
    marked = {number for number, text in clauses().items() if "*Not built yet" in text}
    assert marked | {"M"} == missing.keys()


@pytest.mark.parametrize("name", ["Queue", "limits", "retry_for", "shutdown", "--timeout"])
def test_what_is_built_is_known_to_be(name: str) -> None:
    """Or the test above would find nothing."""
    assert is_built(name)


# --- glossary --------------------------------------------------------------------------------------


def test_each_term_is_defined_once_and_in_alphabetical_order() -> None:
    terms = headings(section(text_of("glossary.md"), "Terms"), 3)

    assert terms == sorted(set(terms), key=str.casefold)


def test_A2_each_state_is_defined_once() -> None:
    text = text_of("glossary.md")

    assert headings(section(text, "States"), 3) == [status.name for status in Status]
    assert len(headings(text, 3)) == len({heading.casefold() for heading in headings(text, 3)})
