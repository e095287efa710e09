"""Shows a task as people recognise it: "clean(raw=ber/4.csv)", and where its function stands.

Previews are made when something went wrong, so they must be short, quick and never raise,
whatever an argument's `__repr__` does.
"""

import inspect
import reprlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Final, final

from procq import loader
from procq.spec import Output, TaskSpec, describe

#: Characters of the longest preview of one argument, and of all of them.
_ARGUMENT_CHARS: Final = 40
_CALL_CHARS: Final = 120
#: Types whose texts are short anyway.
_BRIEF: Final = frozenset({bool, float, type(None)})


@final
class _Short(reprlib.Repr):
    """`reprlib` with paths as people type them and results by their task."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = _ARGUMENT_CHARS

    def repr1(self, x: Any, level: int) -> str:  # noqa: ANN401 - reprlib's signature
        """Return a short text for anything."""
        if isinstance(x, PurePath):
            return self._cut(str(x))
        if isinstance(x, Output | TaskSpec):
            return self._cut(describe(x.source if isinstance(x, Output) else x))
        return super().repr1(x, level)

    def _cut(self, text: str) -> str:
        """Leave out the middle: the ends of a path say most."""
        if len(text) <= _ARGUMENT_CHARS:
            return text
        half = (_ARGUMENT_CHARS - 3) // 2
        return f"{text[:half]}...{text[-half:]}"


_SHORT: Final = _Short()


def label(spec: TaskSpec[Any]) -> str:
    """Return "clean(raw=ber/4.csv)", after the id if the user chose one: "clean/4 clean(raw=...)"."""
    return call(spec) if spec.options.id is None else f"{spec.options.id} {call(spec)}"


def call(spec: TaskSpec[Any]) -> str:
    """Return "clean(raw=ber/4.csv)"."""
    text = f"{spec.type}({', '.join(_arguments(spec))})"
    return text if len(text) <= _CALL_CHARS else text[: _CALL_CHARS - 4] + "...)"


def arguments(spec: TaskSpec[Any]) -> str:
    """Return "raw=ber/4.csv", cut to what a line can hold."""
    text = ", ".join(_arguments(spec))
    return text if len(text) <= _CALL_CHARS else text[: _CALL_CHARS - 3] + "..."


def _arguments(spec: TaskSpec[Any]) -> Iterator[str]:
    """Yield "name=preview" for each argument."""
    names = _positional_names(spec)
    for position, value in enumerate(spec.args):
        name = names[position] if position < len(names) else None
        yield _preview(value) if name is None else f"{name}={_preview(value)}"
    for name, value in spec.kwargs.items():
        yield f"{name}={_preview(value)}"


def _positional_names(spec: TaskSpec[Any]) -> list[str]:
    """Return the names of the parameters that positional arguments go to, as far as they are known."""
    if spec.fn is None:
        return ["payload"]
    bare = _bare(spec)
    try:
        return _names_of(bare)
    except TypeError:  # it cannot be hashed
        return _names_of.__wrapped__(bare)


@lru_cache(maxsize=64)  # a run has many tasks of few functions, and a signature takes 10 µs
def _names_of(function: Callable[..., object]) -> list[str]:
    """Return the names of the parameters of a function that may be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins without a signature
        return []
    return [param.name for param in parameters if param.kind <= param.POSITIONAL_OR_KEYWORD]


def _preview(value: object) -> str:
    """Return a short text for one argument."""
    if type(value) in _BRIEF:
        return repr(value)
    try:
        return _SHORT.repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def _bare(spec: TaskSpec[Any]) -> Any:  # noqa: ANN401 - any callable
    """Return the user's own function behind a spec."""
    return inspect.unwrap(getattr(spec.fn, "fn", spec.fn))  # type: ignore[arg-type]  # callers checked for None


def place(spec: TaskSpec[Any]) -> str:
    """Return "etl.py:19": where the task's function is defined; empty if that is unknown."""
    code = getattr(_bare(spec), "__code__", None) if spec.fn is not None else None
    return "" if code is None else f"{loader.shown_path(code.co_filename)}:{code.co_firstlineno}"
