"""Reads `--params-file`: TOML or JSON, a table of names and values, as the texts that `-p` would have."""

import json
from collections.abc import Mapping
from datetime import date, time
from pathlib import Path

from procq.cli.exits import CommandLineError


def read(path: str) -> dict[str, list[str]]:
    """Return the texts for each parameter.

    Raises:
        CommandLineError: The file cannot be read, or holds what no parameter can be.
    """
    return {name: _texts(value, f"{path}: {name}") for name, value in _table(path).items()}


def _table(path: str) -> Mapping[str, object]:
    """Return the file's one table."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".json"):
            table = json.loads(text)
        elif path.endswith(".toml"):
            import tomllib  # noqa: PLC0415 - 5 ms, for a file of the other kind in vain

            table = tomllib.loads(text)
        else:
            raise CommandLineError(f"--params-file {path}: its name says neither .toml nor .json")
    except OSError as error:
        raise CommandLineError(f"--params-file {path}: {error.strerror}") from None
    except ValueError as error:  # JSON, TOML and UTF-8 alike
        raise CommandLineError(f"--params-file {path}: {error}") from None
    if not isinstance(table, dict):
        raise CommandLineError(f"--params-file {path}: expected an object of names and values")
    return table


def _texts(value: object, where: str) -> list[str]:
    """Return a value as `-p` would be given it, once for each item of a list."""
    if isinstance(value, list):
        return [_text(item, where) for item in value]
    return [_text(value, where)]


def _text(value: object, where: str) -> str:
    """Return one value as it is typed."""
    if value is None:  # JSON's null: an empty text is None where that may be
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, str | int | float):
        return str(value)
    raise CommandLineError(f"{where}: no parameter can be a table", hint="values are texts, numbers, dates and lists")
