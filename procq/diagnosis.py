"""Finds out what in a call cannot be pickled, and says it in a user's words (contract C5).

Runs only after pickling has failed, so it may take its time; it tries the parts of the call one
by one and goes down into the one that fails.
"""

from collections.abc import Callable, Iterator, Mapping

from procq.payload import NotPicklable, dump_call

#: How deep the search goes; a path longer than this helps nobody.
_DEEPEST = 8
#: How many parts of one object are tried.
_WIDEST = 1000


def explain_unpicklable(
    fn: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object], name: str, cause: BaseException
) -> str:
    """Say which argument of a call cannot be sent to a worker, and what in it is the culprit."""
    for argument, value in _arguments(fn, args, kwargs):
        if _fails(value):
            path, culprit = _descend(argument, value)
            kind = _type_name(culprit)
            inside = "" if culprit is value else f" inside {_type_name(value)} at {path}"
            return (
                f"argument {argument!r} of {name}(...) can't be sent to a worker: {kind}{inside} "
                f"({cause}); {_advice(culprit)}"
            )
    if _fails(fn):
        path, culprit = _descend(name, fn)
        inside = "" if culprit is fn else f": {_type_name(culprit)} at {path}"
        return f"the function {name} can't be sent to a worker{inside} ({cause}); {_advice(culprit)}"
    return f"the call of {name}(...) can't be sent to a worker ({cause})"


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
        for number, (key, part) in enumerate(value.items()):
            if number >= _WIDEST:
                return
            yield f"[{key!r}]", part
    elif isinstance(value, list | tuple | set | frozenset):
        for number, part in enumerate(value):
            if number >= _WIDEST:
                return
            yield f"[{number}]", part
    else:
        yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())
        closure = getattr(value, "__closure__", None)
        names = getattr(getattr(value, "__code__", None), "co_freevars", ())
        for name, cell in zip(names, closure or (), strict=False):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:  # a cell that is still empty
                continue
        receiver = getattr(value, "__self__", None)
        if receiver is not None and not isinstance(receiver, type(value)):
            yield ".__self__", receiver


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _advice(culprit: object) -> str:
    """Say what to do about it."""
    if type(culprit).__name__ in {"Queue", "Handle"}:
        return "a queue can't be sent to a worker; open one inside the task, or submit from outside"
    return "open it inside the task, or pass what it is made from"
