"""`procq map`: a function called for items of the command line or of a stream, its values on standard output."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import LIMIT_S, Finished, child_environment

from procq import task
from procq.cli import printing
from procq.cli.commands.map import execute
from procq.cli.exits import CommandLineError
from procq.cli.items import Items, lines, read_target
from procq.cli.printing import Printing
from procq.core.states import Status

Run = Callable[..., Finished]
Write = Callable[..., Path]

CONV = """
import os, time
from procq import task

def up(x): return x.upper()
def size(x): return {"n": len(x)}
def effect(x): open("done-" + x, "w").close()
def name(x): return x
def text(x): return "two\\nlines"
def odd(x): return {1, 2} and object
def bad(x): raise ValueError(x)
async def later(x): ...
def two(a, b): ...
@task(max_attempts=3)
def third(x):
    open("tries", "a").write("x")
    if len(open("tries").read()) < 3:
        raise OSError
    return x
def slow(x):
    time.sleep(float(x))
    return x
"""


def feed(folder: Path, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run `procq map ARGUMENTS` with standard input."""
    return subprocess.run(
        [sys.executable, "-m", "procq", "map", *arguments],
        cwd=folder,
        env=child_environment(),
        input=data,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "out"),
    [
        (["conv.py:up", "a", "b", "c"], "A\nB\nC\n"),
        (["conv:up", "a"], "A\n"),
        (["-j", "2", "conv.py:up", "a", "-q", "b"], "A\nB\n"),
        (["conv.py:up", "--", "-a", "--"], "-A\n--\n"),
        (["conv.py:up", "-1.5"], "-1.5\n"),
        (["conv.py:size", "four"], '{"n": 4}\n'),
        (["conv.py:text", "x"], '"two\\nlines"\n'),
        (["conv.py:odd", "x"], "<class 'object'>\n"),
        (["conv.py:effect", "x"], ""),
        (["-j4", "conv.py:slow", "0.3", "0.1", "0"], "0.3\n0.1\n0\n"),
        (["-j4", "--unordered", "conv.py:slow", "1", "0"], "0\n1\n"),
    ],
)
def test_values_are_printed_a_line_an_item(write: Write, procq: Run, arguments: list[str], out: str) -> None:
    write(CONV, "conv.py")

    done = procq("map", *arguments)

    assert (done.code, done.out) == (0, out), done.err


@pytest.mark.processes
def test_a_failed_item_is_told_on_standard_error_and_makes_the_exit_code_1(write: Write, procq: Run) -> None:
    write(CONV, "conv.py")

    done = procq("map", "conv.py:bad", "a")

    assert (done.code, done.out) == (1, "")
    assert "failed   bad(x='a')  ValueError: a   conv.py:11" in done.err


@pytest.mark.processes
def test_the_options_of_a_task_function_hold(write: Write, procq: Run) -> None:
    write(CONV, "conv.py")

    done = procq("map", "conv.py:third", "a")

    assert (done.code, done.out) == (0, "a\n"), done.err


@pytest.mark.processes
def test_results_to_standard_output_take_the_place_of_the_values(write: Write, procq: Run) -> None:
    write(CONV, "conv.py")

    done = procq("map", "conv.py:up", "a", "--results", "-")

    assert done.out.count("\n") == 1
    assert '"status": "succeeded", "value": "A"' in done.out


@pytest.mark.processes
@pytest.mark.parametrize("dash", [["-"], []])
def test_lines_of_standard_input_are_items(write: Write, dash: list[str]) -> None:
    folder = write(CONV, "conv.py").parent

    done = feed(folder, b"a b\n\nn\xff.csv\nlast", "conv.py:name", *dash)

    assert (done.returncode, done.stdout) == (0, b"a b\n\nn\xff.csv\nlast\n"), done.stderr


@pytest.mark.processes
def test_items_may_end_with_a_null_byte(write: Write) -> None:
    folder = write(CONV, "conv.py").parent

    assert feed(folder, b"a\nb\0c\0", "-0", "conv.py:size").stdout == b'{"n": 3}\n{"n": 1}\n'


@pytest.mark.processes
def test_no_items_are_told(write: Write) -> None:
    folder = write(CONV, "conv.py").parent

    done = feed(folder, b"", "conv.py:up", "-")

    assert (done.returncode, done.stdout) == (5, b"")
    assert done.stderr == b"procq: error: there were no items\n  hint: --allow-empty if that is fine\n"


@pytest.mark.processes
def test_a_reader_that_leaves_ends_the_printing_and_not_the_run(write: Write) -> None:
    folder = write(CONV, "conv.py").parent
    read, wrote = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "procq", "map", "conv.py:up", "a", "b", "c"],
            cwd=folder, env=child_environment(), stdout=wrote, stderr=subprocess.PIPE, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    finally:
        os.close(wrote)

    assert done.returncode == 0
    assert done.stderr.count(b"no results are printed any more") == 1
    assert b"3 ok" in done.stderr


@pytest.mark.processes
def test_G1_items_that_are_there_are_called_before_the_stream_ends_and_ctrl_c_does_not_wait_for_more(
    write: Write,
) -> None:
    folder = write(CONV, "conv.py").parent
    with subprocess.Popen(
        [sys.executable, "-m", "procq", "map", "conv.py:up", "-"],
        cwd=folder, env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"a\n")
        process.stdin.flush()
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT_S)

    assert first == b"A\n"
    assert code == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["conv.py:upp", "a"], 3, "conv.py has no function called 'upp'\n  hint: did you mean `up`?"),
        (["conv.py:later", "a"], 3, "later is an async function"),
        (["conv.py:os", "a"], 3, "os in conv.py is no function but module"),
        (["none.py:up", "a"], 3, "no such jobs file: none.py"),
        (["no.such:up", "a"], 3, "no such module: no.such"),
        (["conv.py:two", "a"], 3, "two() missing a required argument: 'b'"),
    ],
)
@pytest.mark.processes
def test_a_target_that_cannot_be_called_is_told(
    write: Write, procq: Run, arguments: list[str], code: int, what: str
) -> None:
    write(CONV, "conv.py")

    done = procq("map", *arguments)

    assert (done.code, done.out) == (code, "")
    assert what in done.err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "no function given"),
        (["conv.py", "a"], "conv.py: name the function to call, as FILE:FUNCTION or MODULE:FUNCTION"),
        (["conv.py:up", "a", "-"], "`-` stands alone"),
        (["conv.py:up", "a", "-0"], "--null: it is for items of standard input"),
        (["conv.py:up", "a", "--unorderd"], "unknown argument: --unorderd"),
        (["conv.py:up", "a", "-p", "x=1"], "unknown argument: -p"),
    ],
)
def test_a_wrong_line_is_told(arguments: list[str], what: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        execute(arguments)

    assert caught.value.what.startswith(what)


# --- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "is_module"),
    [("conv.py:up", "conv.py", False), ("./conv:up", "./conv", False), ("pkg.mod:up", "pkg.mod", True)],
)
def test_a_target_is_a_file_or_a_module(text: str, name: str, is_module: bool) -> None:  # noqa: FBT001
    target = read_target(text)

    assert (target.name, target.is_module, target.function) == (name, is_module, "up")


@pytest.mark.parametrize("pieces", [[b"a\nbb\nc"], [b"a\nb", b"b\n", b"c"], [b"a", b"\n", b"b", b"b\nc"]])
def test_a_stream_is_cut_into_lines_however_it_comes(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    rest = iter([*pieces, b""])
    monkeypatch.setattr(os, "read", lambda *_: next(rest))

    assert list(lines(0)) == ["a", "bb", "c"]


def test_a_stream_is_not_read_further_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = iter([b"x\n", b"y\n"])  # a third read would end in a RuntimeError
    monkeypatch.setattr(os, "read", lambda *_: next(pieces))

    stream = lines(0)

    assert [next(stream), next(stream)] == ["x", "y"]


class Done:
    """A task that succeeded."""

    id = "x"
    status = Status.SUCCEEDED

    def __init__(self, value: object) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401, ARG002
        return self._value


def specs(number: int) -> list[Any]:
    return [task(str.upper).spec(str(x)) for x in range(number)]


def test_values_are_kept_until_their_turn_comes() -> None:
    out: list[bytes] = []
    printer = Printing(out.append)
    first, second, third = specs(3)
    for spec in (first, second, third):
        printer.made(spec)

    printer.add(Done("c"), third)
    printer.add(Done("a"), first)
    before = list(out)
    printer.add(Done("b"), second)

    assert before == [b"a\n"]
    assert b"".join(out) == b"a\nb\nc\n"


def test_what_waits_for_an_item_that_never_ended_is_printed_at_the_end() -> None:
    out: list[bytes] = []
    printer = Printing(out.append)
    first, second = specs(2)
    printer.made(first)
    printer.made(second)
    printer.add(Done("b"), second)

    printer.end()

    assert out == [b"b\n"]


def test_no_more_is_given_out_than_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "WINDOW", 2)
    printer = Printing(lambda _: None)
    first, second, third = specs(3)
    printer.made(first)
    printer.made(second)
    waiter = threading.Thread(target=printer.made, args=(third,))
    waiter.start()

    printer.add(Done("b"), second)
    waiter.join(0.05)
    was_held = waiter.is_alive()
    printer.add(Done("a"), first)
    waiter.join(LIMIT_S)

    assert was_held
    assert not waiter.is_alive()


def test_items_are_taken_one_by_one() -> None:
    taken: list[str] = []

    def items() -> Iterator[str]:
        for item in "ab":
            taken.append(item)
            yield item

    work = Items(str.upper, items())()
    next(work)

    assert taken == ["a"]
