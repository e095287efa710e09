"""Makes the completion scripts that ship as `procq/cli/completion/procq.*`, from the parsers themselves.

`python -m procq.cli.completing` writes them anew; a test tells when that is due.  They are shipped and
not made when they are asked for, since a shell that starts should not wait for thirty imports.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from procq.cli import parser

FOLDER: Final = Path(__file__).parent / "completion"
#: What a value is called that is a file's name.
_FILE: Final = re.compile(r"\b(F|FILE|DIR|PATH)\b")


class Flag(NamedTuple):
    """A flag as a shell sees it."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]  #: the values that it takes, if they are known
    is_file: bool  #: whether its value is a file's name


class Command(NamedTuple):
    """A command, or a command of one: ("dlq", "list")."""

    path: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]  #: what it takes that is no flag, if that is known; else files
    is_group: bool  #: whether commands of its own follow


# --- what there is -------------------------------------------------------------------------------


class _Found(BaseException):
    """Carries the parser of a command out of it."""

    def __init__(self, found: argparse.ArgumentParser) -> None:
        self.parser = found
        super().__init__()


def _give_away(self: argparse.ArgumentParser, *_: object) -> Any:  # noqa: ANN401 - stands for argparse's method
    """Stand in for the parsing itself."""
    raise _Found(self)


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of a command: each begins by parsing its arguments, so it is caught there."""
    execute: Callable[[list[str]], int] = import_module(f"procq.cli.commands.{command}").execute
    parser.CommandParser.parse_known_args = _give_away  # type: ignore[method-assign,assignment]  # taken back below
    try:
        execute([])
    except _Found as found:
        return found.parser
    finally:
        del parser.CommandParser.parse_known_args
    raise AssertionError(f"procq {command} parses nothing")


def commands() -> list[Command]:
    """Return all commands, those of commands after them."""
    return [one for name, what in parser.COMMANDS.items() for one in _commands((name,), what, parser_of(name))]


def _commands(path: tuple[str, ...], what: str, of: argparse.ArgumentParser) -> Iterator[Command]:
    """Yield a command and those of it."""
    inner: Mapping[str, argparse.ArgumentParser] = {}
    helps: dict[str, str] = {}
    flags: list[Flag] = []
    words: tuple[str, ...] = ()
    for action in of._actions:  # noqa: SLF001 - argparse has no other way to see them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            inner = action.choices
            helps = {one.dest: one.help or "" for one in action._choices_actions}  # noqa: SLF001
            words = tuple(inner)
        elif action.option_strings:
            flags.append(_flag(action))
        elif action.choices is not None:
            words = tuple(map(str, action.choices))
    yield Command(path, what, tuple(flags), words, bool(inner))
    for name, one in inner.items():
        yield from _commands((*path, name), helps.get(name, ""), one)


def _flag(action: argparse.Action) -> Flag:
    """Return a flag."""
    choices = tuple(map(str, action.choices)) if action.choices is not None else ()
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    return Flag(
        names=tuple(action.option_strings),
        help=" ".join((action.help or "").split()),
        takes_value=action.nargs != 0,
        choices=choices,
        is_file=_FILE.search(metavar) is not None,
    )


# --- the scripts ---------------------------------------------------------------------------------

_NOTE: Final = "Made by `python -m procq.cli.completing`; do not edit."


def _quoted(text: str) -> str:
    """Return a text as a word of bash and of zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_quoted(text: str) -> str:
    """Return a text as a word of fish, where a backslash means something between quotes, too."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def bash(all_commands: Sequence[Command]) -> Iterator[str]:
    """Yield the lines of the script for bash; where it offers nothing, bash offers files."""
    yield f"# bash completion for procq.  {_NOTE}"
    yield "_procq() {"
    yield "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} name=${COMP_WORDS[1]} index"
    yield "    COMPREPLY=()"
    # No mapfile, which the bash of macOS has not; no word that is offered has a space in it.
    # bash takes `--flag=value` apart at the sign.
    yield "    if [[ $current == = ]]; then current="
    yield "    elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi"
    yield "    if ((COMP_CWORD == 1)); then"
    top = [one.path[0] for one in all_commands if len(one.path) == 1]
    yield f'        COMPREPLY=($(compgen -W "{" ".join([*top, "--help", "--version"])}" -- "$current"))'
    yield "        return"
    yield "    fi"
    groups = [one.path[0] for one in all_commands if one.is_group]
    if groups:
        yield f"    case $name in {'|'.join(groups)})"
        yield "        for ((index = 2; index < COMP_CWORD; index++)); do"
        yield '            if [[ ${COMP_WORDS[index]} != -* ]]; then name+=" ${COMP_WORDS[index]}"; break; fi'
        yield "        done;;"
        yield "    esac"
    yield "    case $name in"
    for one in all_commands:
        yield f"    {_quoted(' '.join(one.path))})"
        yield from _bash_values(one)
        names = " ".join(name for flag in one.flags for name in flag.names)
        yield f"        if [[ $current == -* ]]; then COMPREPLY=($(compgen -W '{names}' -- \"$current\"))"
        if one.words:
            yield f"        else COMPREPLY=($(compgen -W '{' '.join(one.words)}' -- \"$current\"))"
        yield "        fi;;"
    yield "    esac"
    yield "}"
    yield "complete -o bashdefault -o default -F _procq procq"


def _bash_values(command: Command) -> Iterator[str]:
    """Yield what offers the values of a command's flags."""
    known = [flag for flag in command.flags if flag.choices]
    free = [name for flag in command.flags if flag.takes_value and not flag.choices for name in flag.names]
    if not known and not free:
        return
    yield "        case $before in"
    for flag in known:
        words = f"compgen -W '{' '.join(flag.choices)}' -- \"$current\""
        yield f"        {'|'.join(flag.names)}) COMPREPLY=($({words})); return;;"
    if free:
        yield f"        {'|'.join(free)}) return;;"
    yield "        esac"


def zsh(all_commands: Sequence[Command]) -> Iterator[str]:
    """Yield the lines of the script for zsh."""
    yield "#compdef procq"
    yield f"# zsh completion for procq.  {_NOTE}"
    yield from _zsh_level(all_commands, ())
    yield 'if [ "$funcstack[1]" = _procq ]; then _procq "$@"; else compdef _procq procq; fi'


def _zsh_name(path: Sequence[str]) -> str:
    """Return the function of a command."""
    return "_".join(["_procq", *(part.replace("-", "_") for part in path)])


def _zsh_level(all_commands: Sequence[Command], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the functions of the commands under a path, and the one that chooses among them."""
    here = [one for one in all_commands if one.path[:-1] == path]
    for one in here:
        if one.is_group:
            yield from _zsh_level(all_commands, one.path)
            continue
        yield f"{_zsh_name(one.path)}() {{"
        yield "    _arguments -s \\"
        for flag in one.flags:
            yield f"        {_zsh_flag(flag)} \\"
        yield f"        {_quoted('*: :' + ('(' + ' '.join(one.words) + ')' if one.words else '_files'))}"
        yield "}"
    yield f"{_zsh_name(path)}() {{"
    yield "    local -a known=("
    for one in here:
        yield f"        {_quoted(one.path[-1] + ':' + one.help)}"
    yield "    )"
    yield "    if ((CURRENT == 2)); then _describe command known; return; fi"
    yield "    shift words; ((CURRENT--))"
    yield "    case $words[1] in"
    for one in here:
        yield f"    {one.path[-1]}) {_zsh_name(one.path)};;"
    yield "    esac"
    yield "}"


def _zsh_flag(flag: Flag) -> str:
    """Return a flag as `_arguments` has it."""
    text = re.sub(r"([\[\]:])", r"\\\1", flag.help)
    value = ""
    joint = {True: "", False: ""}  # how a value may follow, of a long name and of a short one
    if flag.takes_value:
        joint = {True: "=", False: "+"}
        offered = f"({' '.join(flag.choices)})" if flag.choices else "_files" if flag.is_file else " "
        value = f":value:{offered}"
    return " ".join(_quoted(f"*{name}{joint[name.startswith('--')]}[{text}]{value}") for name in flag.names)


def fish(all_commands: Sequence[Command]) -> Iterator[str]:
    """Yield the lines of the script for fish."""
    yield f"# fish completion for procq.  {_NOTE}"
    top = [one for one in all_commands if len(one.path) == 1]
    for one in top:
        yield f"complete -c procq -f -n __fish_use_subcommand -a {one.path[0]} -d {_fish_quoted(one.help)}"
    for one in all_commands:
        inner = [other.path[-1] for other in all_commands if other.path[:-1] == one.path]
        seen = " && ".join(f"__fish_seen_subcommand_from {name}" for name in one.path)
        condition = _fish_quoted(seen)
        if one.words:
            not_yet = f" && not __fish_seen_subcommand_from {' '.join(inner)}" if inner else ""
            yield f"complete -c procq -f -n {_fish_quoted(seen + not_yet)} -a {_fish_quoted(' '.join(one.words))}"
        for flag in one.flags:
            yield f"complete -c procq -n {condition} {_fish_flag(flag)}"


def _fish_flag(flag: Flag) -> str:
    """Return a flag as `complete` has it."""
    parts = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
    if flag.choices:
        parts.append(f"-x -a {_fish_quoted(' '.join(flag.choices))}")
    elif flag.takes_value:
        parts.append("-r" if flag.is_file else "-x")
    return " ".join([*parts, f"-d {_fish_quoted(flag.help)}"])


#: How a script is made, by the name of its shell.
SHELLS: Final[Mapping[str, Callable[[Sequence[Command]], Iterator[str]]]] = {"bash": bash, "zsh": zsh, "fish": fish}


def script(shell: str) -> str:
    """Return the script for a shell, made anew."""
    return "\n".join(SHELLS[shell](commands())) + "\n"


def path_of(shell: str) -> Path:
    """Return where the script for a shell is shipped."""
    return FOLDER / f"procq.{shell}"


def write_all() -> None:
    """Make all scripts anew."""
    FOLDER.mkdir(exist_ok=True)
    for shell in SHELLS:
        path_of(shell).write_text(script(shell), encoding="utf-8")


if __name__ == "__main__":
    write_all()
