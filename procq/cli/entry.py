"""Chooses the entry: the function of a jobs file that lists the tasks to run.

Reads the target as it was typed, has the loader load it, and picks the function; what the
function returns is none of its business.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from procq import loader
from procq.errors import JobsFileError

Entry = Callable[..., object]

_DEFAULT: Final = "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What `procq run` was pointed at."""

    name: str  #: the file's path, or the module's dotted name
    is_module: bool = False  #: whether `name` is a module's, from -m
    function: str | None = None  #: the function after the colon, if one was named

    @classmethod
    def read(cls, text: str, *, is_module: bool = False) -> "Target":
        """Read FILE[:ENTRY]; a file whose own name has a colon wins."""
        name, colon, function = text.rpartition(":")
        if not colon or not function.isidentifier() or (not is_module and Path(text).exists()):
            return cls(name=text, is_module=is_module)
        return cls(name=name, is_module=is_module, function=function)

    @property
    def shown(self) -> str:
        """The file or module as messages name it."""
        return self.name if self.is_module else Path(self.name).name

    @property
    def command(self) -> str:
        """What to type to run it."""
        return f"procq run {'-m ' if self.is_module else ''}{self.name}"


def load_entry(target: Target) -> Entry:
    """Load the target and choose its entry.

    Raises:
        JobsFileError: It cannot be loaded, or no function or more than one could be meant.
    """
    module = loader.load_module(target.name) if target.is_module else loader.load(target.name)
    return find_entry(module, target)


def find_entry(module: ModuleType, target: Target) -> Entry:
    """Choose the named function, else the one marked `@procq.jobs`, else `jobs`.

    Raises:
        JobsFileError: There is no such function, or more than one could be meant.
    """
    if target.function is not None:
        return _named(module, target.function, target)
    marked = [name for name, function in _own_functions(module) if loader.is_marked(function)]
    if len(marked) > 1:
        raise JobsFileError(
            f"{target.shown} has {len(marked)} functions marked @procq.jobs: {', '.join(marked)}",
            hint=f"say which: {target.command}:{marked[0]}",
        )
    if marked:
        return _checked(module, marked[0], target)
    # `from procq import jobs` puts the decorator itself under that name.
    if getattr(module, _DEFAULT, loader.jobs) is not loader.jobs:
        return _checked(module, _DEFAULT, target)
    raise JobsFileError(
        f"{target.shown} has no function called {_DEFAULT!r} and none marked @procq.jobs",
        hint=_candidates(module, target),
    )


def _named(module: ModuleType, name: str, target: Target) -> Entry:
    """Return the function the user named."""
    if hasattr(module, name):
        return _checked(module, name, target)
    close = difflib.get_close_matches(name, [known for known, _ in _own_functions(module)], n=1)
    raise JobsFileError(
        f"{target.shown} has no function called {name!r}",
        hint=f"did you mean `{close[0]}`? {target.command}:{close[0]}" if close else _candidates(module, target),
    )


def _checked(module: ModuleType, name: str, target: Target) -> Entry:
    """Return the function of that name if it can be an entry.

    Raises:
        JobsFileError: It is no function, a task function, or an async one.
    """
    entry: object = getattr(module, name)
    if _is_task_function(entry):
        raise JobsFileError(
            f"{name} in {target.shown} is a task function, not an entry",
            hint=f"an entry is a plain function that returns tasks: def jobs(): return [{name}.spec(...)]",
        )
    if isinstance(entry, type):
        raise JobsFileError(f"{name} in {target.shown} is no function but {_kind(entry)}")
    return _plain(entry, name, target)


def callable_in(module: ModuleType, name: str, target: Target) -> Callable[..., object]:
    """Return what a module has under a name, if tasks can be calls of it: a function, a task function or a class.

    Raises:
        JobsFileError: There is nothing of that name, or it cannot be called.
    """
    if hasattr(module, name):
        return _plain(getattr(module, name), name, target)
    known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
    close = difflib.get_close_matches(name, known, n=1)
    raise JobsFileError(
        f"{target.shown} has no function called {name!r}",
        hint=f"did you mean `{close[0]}`?" if close else f"it has {', '.join(known) or 'none'}",
    )


def _plain(value: object, name: str, target: Target) -> Callable[..., object]:
    """Return a value if a call of it does what it says.

    Raises:
        JobsFileError: It cannot be called, or a call would only make a coroutine.
    """
    if not callable(value):
        raise JobsFileError(f"{name} in {target.shown} is no function but {_kind(value)}")
    bare = inspect.unwrap(value)
    if inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare):
        raise JobsFileError(f"{name} is an async function; procq runs plain functions", hint="asyncio.run inside it")
    return value


def _kind(value: object) -> str:
    """Say what a thing is that is no function."""
    return "a class" if isinstance(value, type) else type(value).__name__


def _is_task_function(value: object) -> bool:
    """Return whether `@procq.task` made it, told by `.spec` so that no queue module is loaded for it."""
    return callable(value) and callable(getattr(value, "spec", None))


def _own_functions(module: ModuleType) -> Iterator[tuple[str, Entry]]:
    """Yield the plain functions that the module itself defines, in their order."""
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        if own and callable(value) and not isinstance(value, type) and not _is_task_function(value):
            yield name, value


def entries_in(module: ModuleType) -> Iterator[tuple[str, Entry]]:
    """Yield the functions of a module that may be entries, in their order."""
    for name, function in _own_functions(module):
        bare = inspect.unwrap(function)
        if not name.startswith("_") and not inspect.iscoroutinefunction(bare) and not inspect.isasyncgenfunction(bare):
            yield name, function


def _candidates(module: ModuleType, target: Target) -> str:
    """List the functions that might be entries, with what to type for the first."""
    names = [name for name, _ in _own_functions(module) if not name.startswith("_")]
    if not names:
        return "add one: def jobs(): return [my_task.spec(...), ...]"
    return f"candidates {', '.join(f'`{name}`' for name in names)}: {target.command}:{names[0]}"
