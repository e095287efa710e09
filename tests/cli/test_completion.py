"""The completion scripts that ship are those that the parsers give, and offer what the parsers take."""

import shutil
import subprocess
from pathlib import Path

import pytest

from procq.cli import completing, console
from procq.cli.completing import SHELLS, Command, Flag
from procq.cli.parser import COMMANDS, CommandParser, run_parser

AGAIN = "run: python -m procq.cli.completing"


@pytest.mark.parametrize("shell", SHELLS)
def test_regenerated_is_shipped(shell: str) -> None:
    assert completing.path_of(shell).read_text(encoding="utf-8") == completing.script(shell), AGAIN


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_prints_what_is_shipped(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert console(["completion", shell]) == 0

    assert capsys.readouterr().out == completing.path_of(shell).read_text(encoding="utf-8")


def test_a_shell_that_has_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert console(["completion", "tcsh"]) == 2

    assert "invalid choice: 'tcsh'" in capsys.readouterr().err


def test_every_command_and_every_flag_of_run_is_known() -> None:
    found = {one.path: one for one in completing.commands()}

    assert [path[0] for path in found if len(path) == 1] == list(COMMANDS)
    flags = {name for flag in found["run",].flags for name in flag.names}
    assert flags == set(run_parser()._option_string_actions)


def test_looking_at_a_parser_leaves_parsing_as_it_was() -> None:
    completing.parser_of("version")

    assert run_parser().parse_args(["jobs.py", "-x"]).target == "jobs.py"


def test_a_command_of_a_command_is_found() -> None:
    outer = CommandParser(prog="procq dlq")
    inner = outer.add_subparsers()
    inner.add_parser("list", help="list them").add_argument("--since", metavar="D", help="not older")

    group, one = completing._commands(("dlq",), "dead letters", outer)

    assert (group.is_group, group.words) == (True, ("list",))
    assert (one.path, one.help, one.flags[1].names) == (("dlq", "list"), "list them", ("--since",))


GROUPED = [
    Command(("run",), "run", (Flag(("--color",), "it's [x]: y", True, ("auto", "never"), False),), (), False),  # noqa: FBT003
    Command(("dlq",), "dead letters", (), ("list", "show"), True),  # noqa: FBT003
    Command(("dlq", "list"), "list", (Flag(("--since",), "not older", True, (), False),), (), False),  # noqa: FBT003
    Command(("dlq", "show"), "show", (Flag(("--all",), "all", False, (), False),), (), False),  # noqa: FBT003
]


def bash_offers(script: str, *words: str, folder: Path) -> list[str]:
    """Return what bash offers for the last of some words, as it takes them apart."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    typed = " ".join(f"'{word}'" for word in words)
    ask = f'COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _procq; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\n{ask}"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["procq", "gr"], ["graph"]),
        (["procq", "run", "--pol"], ["--policy"]),
        (["procq", "run", "--policy", ""], ["strict", "aging", "fair"]),
        (["procq", "run", "--policy", "=", "a"], ["aging"]),
        (["procq", "run", "jobs.py", "--policy", "="], ["strict", "aging", "fair"]),
        (["procq", "run", "jo"], []),
        (["procq", "run", "--results", "--po"], []),
        (["procq", "completion", ""], ["bash", "zsh", "fish"]),
        (["procq", "nothing", ""], []),
    ],
)
def test_bash_is_offered_what_the_parsers_take(words: list[str], offered: list[str], tmp_path: Path) -> None:
    assert bash_offers(completing.script("bash"), *words, folder=tmp_path) == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["procq", "dlq", ""], ["list", "show"]),
        (["procq", "dlq", "list", "--"], ["--since"]),
        (["procq", "dlq", "show", "--"], ["--all"]),
    ],
)
def test_bash_is_offered_the_commands_of_a_command(words: list[str], offered: list[str], tmp_path: Path) -> None:
    script = "\n".join(completing.bash(GROUPED))

    assert bash_offers(script, *words, folder=tmp_path) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_itself_can_read_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    for text in (completing.script(shell), "\n".join(SHELLS[shell](GROUPED))):
        path = tmp_path / "script"
        path.write_text(text, encoding="utf-8")

        done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)

        assert (done.returncode, done.stderr) == (0, "")


def test_help_texts_are_quoted_for_each_shell() -> None:
    assert r"'*--color=[it'\''s \[x\]\: y]:value:(auto never)'" in "\n".join(completing.zsh(GROUPED))
    assert r"-d 'it\'s [x]: y'" in "\n".join(completing.fish(GROUPED))
