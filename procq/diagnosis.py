"""Finds out what in a call cannot be pickled, and says it in a user's words (contract C5).

Runs only after pickling has failed, so it may take its time; it tries the parts of the call one
by one and goes down into the one that fails.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import FunctionType

from procq.payload import NotPicklable, dump_call

#: How deep the search goes; a path longer than this helps nobody.
_DEEPEST = 8
#: How many parts of one object are tried.
_WIDEST = 1000
_ADVICE = "open it inside the task, or pass what it is made from"
#: How much of a key is shown.
_LONGEST = 60


def explain_unpicklable(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], name: str, cause: BaseException
) -> str:
    """Say which argument of a call cannot be sent to a worker, and what in it is the culprit."""
    for argument, value in _arguments(fn, args, kwargs):
        if _fails(value):
            path, culprit = _descend(argument, value)
            kind = _type_name(culprit)
            inside = "" if culprit is value else f" inside {_type_name(value)} at {path}"
            what = f"{kind}{inside} ({_reason(cause)})"
            return f"argument {argument!r} of {name}(...) can't be sent to a worker: {what}; {_ADVICE}"
    if _fails(fn):
        path, culprit = _descend(name, fn)
        inside = "" if culprit is fn else f": {_type_name(culprit)} at {path}"
        return f"the function {name} can't be sent to a worker{inside} ({_reason(cause)}); {_ADVICE}"
    return f"the call of {name}(...) can't be sent to a worker ({_reason(cause)})"


def _arguments(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """Yield arguments with their names in the signature, or their positions."""
    from inspect import signature  # noqa: PLC0415 - only for an error's text

    try:
        bound = signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError):
        yield from ((str(number), value) for number, value in enumerate(args))
        yield from kwargs.items()
    else:
        yield from bound.arguments.items()


def _fails(value: object) -> bool:
    """Whether a value cannot be pickled as an argument; what stands for a result can."""
    try:
        dump_call(len, (value,), {})
    except NotPicklable:
        return True
    return False


def _descend(path: str, value: object) -> tuple[str, object]:
    """Return the deepest part that cannot be pickled, and the way to it."""
    for _ in range(_DEEPEST):
        for step, part in _parts(value):
            if _fails(part):
                path, value = path + step, part
                break
        else:
            break
    return path, value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield what an object is made of, with how to get there."""
    if isinstance(value, Mapping):
        for key, part in islice(value.items(), _WIDEST):
            yield f"[{_shown(key)}]", part
        for key in islice(value, _WIDEST):
            yield f".keys()[{_shown(key)}]", key
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{number}]", part) for number, part in enumerate(islice(value, _WIDEST)))
    elif isinstance(value, functools.partial):
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, FunctionType):
        yield from ((f".{name}", part) for name, part in _seen_from(value))
    else:
        yield from ((f".{name}", part) for name, part in _attributes(value))
        receiver = getattr(value, "__self__", None)
        if receiver is not None and not isinstance(receiver, type(value)):
            yield ".__self__", receiver


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """Yield an object's attributes, also those in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)


def _seen_from(fn: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what travels along with a function that travels by value: variables around it, defaults."""
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        with suppress(ValueError):  # a cell that is still empty
            yield name, cell.cell_contents
    yield from ((name, fn.__globals__[name]) for name in fn.__code__.co_names if name in fn.__globals__)
    yield from ((f"__defaults__[{number}]", part) for number, part in enumerate(fn.__defaults__ or ()))
    yield from (fn.__kwdefaults__ or {}).items()
    yield from vars(fn).items()


def _shown(key: object) -> str:
    """Return a key as it is written, if it can be and is short."""
    try:
        text = repr(key)
    except Exception:  # noqa: BLE001 - a user's __repr__; this is about another error
        return type(key).__qualname__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _reason(cause: BaseException) -> str:
    """Say what an error says; its class's name if it says nothing, as `MemoryError` does."""
    return str(cause) or type(cause).__name__
