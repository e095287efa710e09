"""Turns `-p NAME=VALUE` into the arguments of an entry, by the annotations of its signature.

What is wrong with a value is a `CommandLineError` (the user mistyped); an annotation that no
value can be made for is a `JobsFileError` (the file asks for what cannot be given).
"""

import difflib
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal

from procq import units
from procq.cli.exits import CommandLineError
from procq.errors import JobsFileError

_BOOLS: Final[Mapping[str, bool]] = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _Unreadable(ValueError):  # noqa: N818 - becomes a CommandLineError where the parameter is known
    """A text is no value of the type; the message says what would be: "not a date (YYYY-MM-DD)"."""


class _Unsupported(ValueError):  # noqa: N818 - becomes a JobsFileError where the parameter is known
    """No text can be made a value of this annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The arguments of one call of an entry."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    given: Mapping[str, str]  #: what was typed, by parameter, for the start line


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What may be known of a parameter before it is set.

    Attributes:
        name: Its name.
        kind: The kind of its values, as help texts have it: "DATE", "red|green".
        is_list: Whether `-p` may be repeated for it.
        is_required: Whether it has no default.
        default: That, as one would type it; None where there is none, or where it is None.
    """

    name: str
    kind: str
    is_list: bool
    is_required: bool
    default: str | None


def parameters_of(entry: Callable[..., object]) -> list[Parameter]:
    """Return the parameters of an entry that `-p` sets, in their order."""
    found: list[Parameter] = []
    for name, param in _signature(entry).parameters.items():
        if param.kind in _VARIABLE:
            continue
        annotation = _annotation(entry, param)
        is_required = param.default is param.empty
        found.append(
            Parameter(
                name=name,
                kind=_placeholder(annotation),
                is_list=_item_of_list(annotation) is not None,
                is_required=is_required,
                default=None if is_required or param.default is None else _default(param.default),
            )
        )
    return found


def bind(entry: Callable[..., object], assignments: Sequence[str], *, file: str | None = None) -> Bound:
    """Make the arguments of `entry` from what `-p` and `--params-file` were given.

    Args:
        entry: The entry function.
        assignments: Each "NAME=VALUE"; a name comes again only for a `list[...]`.
        file: The path of a file with values for parameters that no assignment names.

    Raises:
        CommandLineError: A name or a value is wrong, or a parameter without default is missing.
        JobsFileError: A given parameter's annotation is none that a text can be read for.
    """
    name = getattr(entry, "__name__", "the entry")
    signature = _signature(entry)
    takes = {key: param for key, param in signature.parameters.items() if param.kind not in _VARIABLE}
    texts = _grouped(assignments, takes, entry_name=name)
    where = {key: f"-p {key}" for key in texts}
    if file is not None:
        from procq.cli import paramsfile  # noqa: PLC0415 - json, which most runs don't need

        for key, values in paramsfile.read(file).items():
            if key not in takes:
                raise CommandLineError(f"{file}: {name} has no parameter {key!r}", hint=_known(key, list(takes)))
            if key not in texts:
                texts[key], where[key] = values, f"{file}: {key}"
    missing = [key for key, param in takes.items() if key not in texts and param.default is param.empty]
    if missing:
        wanted = " ".join(f"-p {key}={_placeholder(_annotation(entry, takes[key]))}" for key in missing)
        raise CommandLineError(f"{name} needs {wanted}", hint=_usage(entry, takes))
    arguments = inspect.BoundArguments(signature, {})
    for key, param in takes.items():
        if key in texts:
            arguments.arguments[key] = _value(entry, param, texts[key], where=where[key])
    arguments.apply_defaults()
    given = {key: ",".join(values) for key, values in texts.items()}
    return Bound(args=arguments.args, kwargs=arguments.kwargs, given=given)


def _signature(entry: Callable[..., object]) -> inspect.Signature:
    """Return the signature without evaluating annotations that only a type checker can."""
    if sys.version_info >= (3, 14):
        import annotationlib  # noqa: PLC0415 - does not exist before

        return inspect.signature(entry, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(entry)


def _grouped(
    assignments: Sequence[str], takes: Mapping[str, inspect.Parameter], *, entry_name: str
) -> dict[str, list[str]]:
    """Return the texts by parameter, in the order they were typed."""
    texts: dict[str, list[str]] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise CommandLineError(f"-p {assignment}: expected NAME=VALUE", hint="write -p day=2026-11-29")
        if key not in takes:
            raise CommandLineError(
                f"-p {assignment}: {entry_name} has no parameter {key!r}", hint=_known(key, list(takes))
            )
        texts.setdefault(key, []).append(value)
    return texts


def _known(key: str, names: list[str]) -> str:
    """Say which parameters there are, the closest first."""
    if not names:
        return "it takes none"
    close = difflib.get_close_matches(key, names, n=1)
    listed = ", ".join(names)
    return f"did you mean `{close[0]}`? known are {listed}" if close else f"known are {listed}"


def _usage(entry: Callable[..., object], takes: Mapping[str, inspect.Parameter]) -> str:
    """List all parameters with the kind of their values."""
    parts = [
        f"{key}={_placeholder(_annotation(entry, param))}"
        + ("" if param.default is param.empty else f" (default {_default(param.default)})")
        for key, param in takes.items()
    ]
    return "parameters: " + ", ".join(parts)


def _default(value: object) -> str:
    """Return a default as a user would type it."""
    if isinstance(value, Enum):
        return value.name
    return str(value)


def _value(entry: Callable[..., object], param: inspect.Parameter, texts: list[str], *, where: str) -> object:
    """Read the value of one parameter.

    Args:
        entry: Whose parameter.
        param: The parameter.
        texts: What was given.
        where: How messages name what was given: "-p day".

    Raises:
        CommandLineError: A text is no such value.
        JobsFileError: The annotation cannot be served.
    """
    annotation = _annotation(entry, param)
    item = _item_of_list(annotation)
    if item is None and len(texts) != 1:
        raise CommandLineError(
            f"{where}: given {len(texts)} times", hint="only a list[...] parameter takes several values"
        )
    values: list[object] = []
    for text in texts:
        try:
            values.append(_read(annotation if item is None else item, text))
        except _Unreadable as error:
            raise CommandLineError(f"{where}={text}: {error}") from None
        except _Unsupported as error:
            raise JobsFileError(
                f"parameter {param.name!r} of {getattr(entry, '__name__', 'the entry')}: {error}",
                hint="parameters can be str, int, float, bool, Path, date, datetime, timedelta, an Enum, "
                "a Literal, Optional or list of these",
            ) from None
    return values[0] if item is None else values


def _annotation(entry: Callable[..., object], param: inspect.Parameter) -> object:
    """Return the type a parameter's text is read as; without an annotation that of its default."""
    annotation: object = param.annotation
    if annotation is param.empty:
        plain = type(param.default)
        return plain if plain in _READERS or isinstance(param.default, Enum) else str
    if isinstance(annotation, str):
        try:
            # The file's own text, evaluated where it was written, as typing.get_type_hints does;
            # one by one, since another annotation may name what only a type checker imports.
            annotation = eval(annotation, getattr(inspect.unwrap(entry), "__globals__", {}))  # noqa: S307
        except Exception:  # noqa: BLE001 - any error there means the same: no type to be had
            return annotation
    if typing.get_origin(annotation) is typing.Annotated:
        return typing.get_args(annotation)[0]
    return annotation


def _item_of_list(annotation: object) -> object | None:
    """Return X of `list[X]` and of `list[X] | None`; None for anything else."""
    if annotation is list:
        return str
    for member in _members(annotation):
        if member is list or typing.get_origin(member) is list:
            items: tuple[object, ...] = typing.get_args(member)
            return items[0] if items else str
    return None


def _members(annotation: object) -> tuple[object, ...]:
    """Return the members of a union, or the annotation alone."""
    if typing.get_origin(annotation) in {typing.Union, types.UnionType}:
        return typing.get_args(annotation)
    return (annotation,)


def _read(annotation: object, text: str) -> object:
    """Read `text` as a value of the annotation.

    Raises:
        _Unreadable: It is none.
        _Unsupported: The annotation is none that texts are read for.
    """
    members = _members(annotation)
    if len(members) > 1:
        return _read_union(members, text)
    if typing.get_origin(annotation) is Literal:
        return _read_choice({str(value): value for value in typing.get_args(annotation)}, text)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        by_value = {str(member.value): member for member in annotation}
        return _read_choice(by_value | dict(annotation.__members__), text, listed=list(annotation.__members__))
    reader = _READERS.get(annotation)
    if reader is None:
        raise _Unsupported(f"no value can be read for {_type_name(annotation)}")
    return reader(text)


def _read_union(members: tuple[object, ...], text: str) -> object:
    """Read what the first fitting member reads; an empty text is None where None is allowed."""
    if type(None) in members and not text:
        return None
    wanted: list[str] = []
    for member in members:
        if member is not type(None):
            try:
                return _read(member, text)
            except _Unreadable as error:
                wanted.append(str(error))
    raise _Unreadable("; ".join(wanted))


def _read_choice(choices: Mapping[str, object], text: str, *, listed: list[str] | None = None) -> object:
    """Read one of a fixed set of values."""
    if text not in choices:
        raise _Unreadable(f"not one of {', '.join(list(choices) if listed is None else listed)}")
    return choices[text]


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _Unreadable("not a whole number") from None


def _read_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _Unreadable("not a number") from None


def _read_bool(text: str) -> bool:
    try:
        return _BOOLS[text.lower()]
    except KeyError:
        raise _Unreadable("not a yes or no (true, false, yes, no, on, off, 1, 0)") from None


def _read_date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise _Unreadable("not a date (YYYY-MM-DD)") from None


def _read_datetime(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise _Unreadable("not a date and time (YYYY-MM-DDTHH:MM:SS)") from None


def _read_timedelta(text: str) -> timedelta:
    try:
        return timedelta(seconds=units.seconds(text, field="duration"))
    except (units.UnitError, OverflowError):
        raise _Unreadable("not a duration (250ms, 1.5s, 5m, 1h30m)") from None


#: How a text becomes a value, by annotation.
_READERS: Final[Mapping[object, Callable[[str], object]]] = {
    str: str,
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    Path: Path,
    date: _read_date,
    datetime: _read_datetime,
    timedelta: _read_timedelta,
    # What says nothing is a text.
    object: str,
    Any: str,
}


def _placeholder(annotation: object) -> str:
    """Return the kind of value in capitals, as help texts have it: "DATE", "red|green"."""
    if typing.get_origin(annotation) is Literal:
        return "|".join(str(value) for value in typing.get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(annotation.__members__)
    item = _item_of_list(annotation)
    return _type_name(annotation if item is None else item).upper()


def _type_name(annotation: object) -> str:
    """Return an annotation as it was written."""
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
