"""What a jobs file has: the functions that may be its entry, their parameters, its task functions.

Reads a loaded module; calls nothing of it.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from procq import loader
from procq.cli.entry import Entry, Target, entries_in, find_entry
from procq.cli.parameters import Parameter, parameters_of
from procq.errors import JobsFileError
from procq.spec import TaskFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFacts:
    """A function that may be the entry.

    Attributes:
        name: Its name.
        is_default: Whether it is the one that runs if none is named.
        is_marked: Whether it has `@procq.jobs`.
        summary: The first line of its docstring.
        parameters: What `-p` sets.
        options: What `@procq.jobs` carries for the queue.
    """

    name: str
    is_default: bool
    is_marked: bool
    summary: str
    parameters: list[Parameter]
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """A task function.

    Attributes:
        name: Its name in the file.
        type: The type of its tasks.
        signature: What it takes and returns, as it is written.
        summary: The first line of its docstring.
        place: "etl.py:19".
        options: Those that it sets.
    """

    name: str
    type: str
    signature: str
    summary: str
    place: str
    options: Mapping[str, object]


def entries(module: ModuleType, target: Target) -> list[EntryFacts]:
    """Return the functions that may be entries, or the one that the target names.

    Raises:
        JobsFileError: The one that it names is not there, or is no entry.
    """
    if target.function is not None:
        return [_entry(find_entry(module, target), target.function, is_default=False)]
    try:
        default: Entry | None = find_entry(module, target)
    except JobsFileError:  # none, or more than one could be meant: that is what is to be seen
        default = None
    found = dict(entries_in(module))
    if default is not None and default not in found.values():  # imported from elsewhere
        found[getattr(default, "__name__", "jobs")] = default
    return [_entry(function, name, is_default=function is default) for name, function in found.items()]


def _entry(function: Entry, name: str, *, is_default: bool) -> EntryFacts:
    """Return what is to be said of one entry."""
    return EntryFacts(
        name=name,
        is_default=is_default,
        is_marked=loader.is_marked(function),
        summary=_summary(function),
        parameters=parameters_of(function),
        options=loader.queue_options(function),
    )


def tasks(module: ModuleType) -> list[TaskFacts]:
    """Return the task functions that a module has, its own and those it imports, in their order."""
    return [_task(function, name) for name, function in vars(module).items() if isinstance(function, TaskFunction)]


def _task(function: TaskFunction[..., Any], name: str) -> TaskFacts:
    """Return what is to be said of one task function."""
    code = getattr(inspect.unwrap(function.fn), "__code__", None)
    try:
        # From 3.13 on paths name the private module that they are made in.
        signature = str(inspect.signature(function.fn)).replace("pathlib._local.", "pathlib.")
    except (TypeError, ValueError):  # builtins without one
        signature = "(...)"
    return TaskFacts(
        name=name,
        type=function.type,
        signature=signature,
        summary=_summary(function.fn),
        place="" if code is None else f"{loader.shown_path(code.co_filename)}:{code.co_firstlineno}",
        options={key: value for key, value in function.options.given.items() if key != "type"},
    )


def _summary(function: object) -> str:
    """Return the first line of a docstring; empty without one."""
    doc = getattr(function, "__doc__", None)
    return inspect.cleandoc(doc).partition("\n")[0] if isinstance(doc, str) else ""
