"""`procq show`: what a jobs file has."""

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from procq.cli.exits import Exit
from procq.cli.parser import CommandParser, add_target

if TYPE_CHECKING:
    from procq.cli.census import EntryFacts, TaskFacts
    from procq.cli.parameters import Parameter


def show_parser() -> argparse.ArgumentParser:
    """Return the parser of `procq show`."""
    parser = CommandParser(
        prog="procq show",
        description="List the entries of a jobs file with their parameters, and its task functions with their options.",
    )
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    return parser


def execute(arguments: list[str]) -> int:
    """Show what a jobs file has; calls nothing of it."""
    parsed = show_parser().parse_args(arguments)
    from procq import loader  # noqa: PLC0415 - after the flags are known to be right
    from procq.cli import census  # noqa: PLC0415
    from procq.cli.data import write_lines, write_text  # noqa: PLC0415
    from procq.cli.entry import Target  # noqa: PLC0415

    target = Target.read(parsed.target, is_module=parsed.is_module)
    module = loader.load_module(target.name) if target.is_module else loader.load(target.name)
    entries, tasks = census.entries(module, target), census.tasks(module)
    if parsed.json:
        write_text(_json(target.shown, entries, tasks))
    else:
        write_lines((target.shown, *_entry_lines(entries), *_task_lines(tasks)))
    return Exit.OK


def _entry_lines(entries: "list[EntryFacts]") -> Iterator[str]:
    """Yield the entries and their parameters."""
    yield "entries" if entries else "entries: none"
    for entry in entries:
        marks = [f"@procq.jobs({_options(entry.options)})"] if entry.is_marked else []
        marks += ["runs if none is named"] if entry.is_default else []
        marks += [entry.summary] if entry.summary else []
        yield f"  {'  '.join([entry.name, *marks])}"
        for parameter in entry.parameters:
            yield f"    -p {parameter.name}={parameter.kind}  {_default(parameter)}"


def _default(parameter: "Parameter") -> str:
    """Say what a parameter is when it is not given, and whether it may come again."""
    again = ", again for more" if parameter.is_list else ""
    if parameter.is_required:
        return f"required{again}"
    return f"default {'none' if parameter.default is None else parameter.default}{again}"


def _task_lines(tasks: "list[TaskFacts]") -> Iterator[str]:
    """Yield the task functions and their options."""
    yield "task functions" if tasks else "task functions: none"
    for task in tasks:
        yield f"  {'  '.join(part for part in (task.name + task.signature, task.place, task.summary) if part)}"
        if task.type != task.name:
            yield f"    type={task.type!r}"
        if task.options:
            yield f"    {_options(task.options)}"


def _options(options: Mapping[str, object]) -> str:
    """Return options as they are written in Python."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in options.items())


def _shown(value: object) -> str:
    """Return a value as it is written, classes and functions by their names."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, type):
        return value.__qualname__
    from enum import Enum  # noqa: PLC0415

    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def _json(shown: str, entries: "list[EntryFacts]", tasks: "list[TaskFacts]") -> str:
    """Return what programs read."""
    from dataclasses import asdict  # noqa: PLC0415

    from procq.cli.results import json_text  # noqa: PLC0415

    return json_text({
        "file": shown,
        "entries": [
            {
                "name": entry.name,
                "default": entry.is_default,
                "marked": entry.is_marked,
                "summary": entry.summary,
                "parameters": [_parameter(asdict(one)) for one in entry.parameters],
                "options": _values(entry.options),
            }
            for entry in entries
        ],
        "tasks": [
            {
                "name": task.name,
                "type": task.type,
                "signature": task.signature,
                "summary": task.summary,
                "place": task.place,
                "options": _values(task.options),
            }
            for task in tasks
        ],
    }) + "\n"  # fmt: skip


def _parameter(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a parameter with the names that JSON has for what it is."""
    return {key.removeprefix("is_"): value for key, value in facts.items()}


def _values(options: Mapping[str, object]) -> dict[str, object]:
    """Return options as JSON has them: what it has not, as Python writes it."""
    return {name: _value(value) for name, value in options.items()}


def _value(value: object) -> object:
    """Return one value as JSON has it."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _value(item) for key, item in value.items()}
    return _shown(value)
