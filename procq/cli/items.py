"""What `procq map` runs: one task for each item, an item being a text from the command line or a line of a stream.

Decides which function is meant, where items come from and how they are cut apart.  Knows nothing of
queues: the run pulls specs from here as from the generator of any jobs file.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, final

from procq import loader
from procq.cli.entry import Target, callable_in
from procq.cli.exits import CommandLineError
from procq.spec import TaskFunction, TaskSpec, task

#: What is read of a stream at once: what a pipe holds.
_CHUNK_BYTES: Final = 65536


def read_target(text: str) -> Target:
    """Read FILE:FUNCTION or MODULE:FUNCTION.

    A name with a slash or with ".py" at its end is a file's, and so is that of a file that is there;
    any other is a module's, as for `python -m`.

    Raises:
        CommandLineError: No function is named.
    """
    target = Target.read(text)
    if target.function is None:
        is_module = not _is_file(text) and text.replace(".", "").isidentifier()
        hint = f"such as {text}:main" if is_module or _is_file(text) else "such as conv.py:to_parquet"
        raise CommandLineError(f"{text}: name the function to call, as FILE:FUNCTION or MODULE:FUNCTION", hint=hint)
    return Target(name=target.name, is_module=not _is_file(target.name), function=target.function)


def _is_file(name: str) -> bool:
    """Return whether a name is meant as a file's."""
    return os.sep in name or name.endswith(".py") or Path(name).is_file()


@final
class Items:
    """The entry of `procq map`: calling it gives the tasks, one for each item.

    Args:
        fn: The function; a task function keeps its options.
        items: The items.
        made: Told of each task before it is given out, and may hold it back.
    """

    #: what is said when there were no items
    nothing: Final = "there were no items"

    def __init__(
        self,
        fn: Callable[..., object],
        items: Iterable[str],
        made: Callable[[TaskSpec[Any]], object] | None = None,
    ) -> None:
        self._fn: TaskFunction[..., Any] = fn if isinstance(fn, TaskFunction) else task(fn)
        self._items = items
        self._made = made
        self.__name__ = self._fn.type
        #: where the types are looked for that flags name: the target's is known before its first task
        self.__globals__ = {self._fn.type: self._fn}

    def __call__(self) -> Iterator[TaskSpec[Any]]:
        """Describe a task for each item, as they come."""
        for item in self._items:
            spec = self._fn.spec(item)
            if self._made is not None:
                self._made(spec)
            yield spec


def load_function(target: Target) -> Callable[..., object]:
    """Load the function that is named.

    Raises:
        JobsFileError: It cannot be loaded, or it is none that could be called.
    """
    module = loader.load_module(target.name) if target.is_module else loader.load(target.name)
    assert target.function is not None, "read_target saw to it"
    return callable_in(module, target.function, target)


def lines(descriptor: int, *, separator: bytes = b"\n") -> Iterator[str]:
    """Yield what stands between separators, as it comes; memory is that of the longest.

    As file names are: UTF-8, and what is none of it comes as lone surrogates.  Read past Python's own
    file object: a thread that waits in that holds its lock, and an interpreter that ends then aborts.

    Args:
        descriptor: What to read.
        separator: One byte.
    """
    rest: list[bytes] = []  # joined once: a long line that comes in many pieces must not cost their square
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        first, *others = chunk.split(separator)
        rest.append(first)
        if not others:
            continue
        yield _text(b"".join(rest))
        *whole, last = others
        yield from map(_text, whole)
        rest = [last]
    last = b"".join(rest)
    if last:
        yield _text(last)


def _text(raw: bytes) -> str:
    """Return an item as the function gets it."""
    return raw.decode("utf-8", "surrogateescape")
