"""What flags say that were not typed: by variables, and by a file near the jobs file.

A flag wins over its variable, that over the file, and the file over `@procq.jobs(...)`.  Which keys and
variables there are, and how their values are read, comes from the flags themselves (`settings.py`): the key
of `--max-attempts` is `max-attempts`, its variable PROCQ_MAX_ATTEMPTS.

The file is `procq.toml`, or the table `[tool.procq]` of `pyproject.toml`, whichever is met first on the way
up from the folder of the jobs file: what a jobs file needs belongs to it, from wherever it is called.  In
one folder `procq.toml` wins.  Only one file counts, so that one place says it all.
"""

import argparse
import difflib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from procq.cli.exits import CommandLineError
from procq.cli.parser import CommandParser
from procq.cli.settings import RunSettings, add_flags, settings_from

_PREFIX: Final = "PROCQ_"
#: What one run is asked for; to say it for all would say something else.
_OF_ONE_RUN: Final = frozenset({"params", "params_file", "first", "dry_run"})
#: Settings of pairs: what is before the sign is set once by whoever comes first.
_BY_NAME: Final[Mapping[str, Callable[[Any], object]]] = {
    "groups": lambda pair: pair[0],
    "limits": lambda pair: pair[0],
    "sets": lambda text: text.partition("=")[0],
}
_BOOLS: Final[Mapping[str, bool]] = {
    "1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip


class Key(NamedTuple):
    """A setting that has a key."""

    setting: str  #: its name in `RunSettings`
    flag: str  #: "--max-attempts"
    kind: str  #: "store", "append", or "store_const" for what is on or off
    default: object


@final
class _Untouched(list[Any]):
    """Stands in the place of a setting until its flag is met; argparse appends to a copy of it."""

    __slots__ = ()


def keys() -> dict[str, Key]:
    """Return every key, as a file has it."""
    found: dict[str, Key] = {}
    for setting in fields(RunSettings):
        if setting.name in _OF_ONE_RUN:
            continue
        for names, how in setting.metadata["flags"]:
            for name in names:
                if name.startswith("--"):
                    key = Key(setting.name, name, how.get("action", "store"), how.get("default"))
                    found[name.removeprefix("--")] = key
    return found


def read(
    parser: argparse.ArgumentParser, arguments: Sequence[str], *, near: Callable[[Any], Path]
) -> tuple[Any, RunSettings]:
    """Parse arguments, and add what was not typed.

    Args:
        parser: Has the flags of runs, all or some of them.
        arguments: What was typed.
        near: Gives the folder from which the file is looked for, of what was parsed.

    Returns:
        What was parsed, and the settings.

    Raises:
        CommandLineError: Something is wrong, wherever it was said.
    """
    names = [setting.name for setting in fields(RunSettings)]
    parsed = parser.parse_args(arguments, argparse.Namespace(**{name: _Untouched() for name in names}))
    typed = {name: getattr(parsed, name) for name in names if not _is_untouched(getattr(parsed, name))}
    for name, value in _defaults().items():
        setattr(parsed, name, typed.get(name, value))
    settings_from(parsed)  # what is wrong with flags is told as such, before others are added
    for name, value in _merged(_of_file(near(parsed)), _of_variables(os.environ), typed).items():
        setattr(parsed, name, value)
    return parsed, settings_from(parsed)


def _is_untouched(value: object) -> bool:
    return isinstance(value, _Untouched) and not value


def _defaults() -> dict[str, Any]:
    """Return what each setting is when nobody says anything."""
    return {setting.name: setting.metadata["flags"][0][1].get("default") for setting in fields(RunSettings)}


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the layers say together; the last wins, name by name where there are names."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            name_of = _BY_NAME.get(name)
            if name_of is None:
                merged[name] = value
            else:
                said = {name_of(one) for one in value}
                merged[name] = [*(one for one in merged.get(name, ()) if name_of(one) not in said), *value]
    return merged


# --- variables -----------------------------------------------------------------------------------


def _of_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the variables say; an empty one says nothing.

    Raises:
        CommandLineError: A value cannot be, or a name is close to one that is known.
    """
    known = {_variable(name): key for name, key in keys().items()}
    found: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(_PREFIX) or not text:
            continue
        if name in known:
            # Of several values none has a space in it.
            texts = text.split() if known[name].kind == "append" else [text]
            found[known[name].setting] = _value(known[name], texts, where=name)
        else:  # it may be somebody else's, unless it looks like a slip
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            if close:
                raise CommandLineError(f"unknown variable: {name}", hint=f"did you mean `{close[0]}`?")
    return found


def _variable(key: str) -> str:
    """Return the variable of a key."""
    return _PREFIX + key.upper().replace("-", "_")


# --- the file ------------------------------------------------------------------------------------


def _of_file(folder: Path) -> dict[str, Any]:
    """Return what the nearest file says.

    Raises:
        CommandLineError: It cannot be read, or has a key that is none, or a value that cannot be.
    """
    path, table = _nearest(folder)
    known = keys()
    found: dict[str, Any] = {}
    for name, value in table.items():
        key = known.get(name.replace("_", "-"))
        if key is None:
            close = difflib.get_close_matches(name.replace("_", "-"), known, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"they are long flags of procq run: {', '.join(known)}"
            raise CommandLineError(f"{path}: unknown key {name!r}", hint=hint)
        texts = list(_texts(value, f"{path}: {name}", in_lists=key.kind == "append"))
        found[key.setting] = _value(key, texts, where=str(path))
    return found


def _nearest(folder: Path) -> tuple[Path | None, Mapping[str, object]]:
    """Return the nearest file and what it says; None and nothing if there is none."""
    absolute = folder.absolute()
    for place in (absolute, *absolute.parents):
        path = place / "procq.toml"
        if path.is_file():
            return path, _toml(path)
        path = place / "pyproject.toml"
        if path.is_file():
            table = _toml(path, containing="procq").get("tool", {})
            ours = table.get("procq") if isinstance(table, dict) else None
            if isinstance(ours, dict):
                return path, ours
    return None, {}


def _toml(path: Path, *, containing: str = "") -> Mapping[str, object]:
    """Return what a file holds, empty where it does not speak of something: so it is not parsed in vain.

    Raises:
        CommandLineError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if containing not in text:
            return {}
        import tomllib  # noqa: PLC0415 - 5 ms, for those who have such a file

        return tomllib.loads(text)
    except OSError as error:
        raise CommandLineError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # what is no TOML, and what is no UTF-8
        raise CommandLineError(f"{path}: {error}") from None


def _texts(value: object, where: str, *, in_lists: bool) -> Iterator[str]:
    """Yield a value as the flag would be given it: of a table each name with its value, at any depth.

    Raises:
        CommandLineError: No flag takes such a value.
    """
    if isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, str | int | float):
        yield str(value)
    elif in_lists and isinstance(value, list):
        for item in value:
            yield from _texts(item, where, in_lists=False)
    elif in_lists and isinstance(value, dict):
        for name, inner in value.items():
            joint = "." if isinstance(inner, dict) else "="
            yield from (f"{name}{joint}{text}" for text in _texts(inner, where, in_lists=isinstance(inner, dict)))
    else:
        raise CommandLineError(f"{where}: expected {'texts, or a table' if in_lists else 'a text or a number'}")


# --- values --------------------------------------------------------------------------------------


def _value(key: Key, texts: Sequence[str], *, where: str) -> object:
    """Return a value as its flag makes it.

    Raises:
        CommandLineError: With where it was said, if it cannot be.
    """
    if key.kind == "store_const":
        (text,) = texts
        if text.lower() not in _BOOLS:
            raise CommandLineError(f"{where}: {key.flag}={text}: expected true or false")
        arguments = [key.flag] if _BOOLS[text.lower()] else []
    elif key.kind == "append":
        arguments = [f"{key.flag}={text}" for text in texts]
    else:
        arguments = [f"{key.flag}={texts[0]}"]
    parser = CommandParser(prog="procq run", add_help=False)
    add_flags(parser)
    try:
        parsed = parser.parse_args(arguments)
        settings_from(parsed)
    except CommandLineError as error:
        raise CommandLineError(f"{where}: {error.what}", hint=error.hint) from None
    return getattr(parsed, key.setting)
