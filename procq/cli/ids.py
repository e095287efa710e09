"""Names tasks that have no id of their own, the same in every run (contract C4).

An id is the task's type and a digest of its arguments, when all of them are plain values; what
a digest is made of is an encoding in which different arguments never look alike.  It depends on
nothing but the values: not on hash seeds, addresses, or the order in which tasks are made,
except that equal tasks are numbered (`/2`, `/3`, ...).
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import PosixPath, PurePosixPath
from typing import Any, Final, final

from procq.spec import Output, TaskSpec

#: Hexadecimal digits of a digest.  64 bits: among a million tasks of one type two share a digest
#: once in some 40 million runs (n²/2⁶⁵); those would get numbers, as equal tasks do.
_DIGITS: Final = 16

#: Gives the id of what a task depends on, or None if that has no stable id.
IdOf = Callable[[object], str | None]


@final
class Namer:
    """Gives ids to the tasks of one run.

    Holds every id it gave, about 100 bytes each: that is what numbering repeats costs.
    """

    __slots__ = ("_seen", "unstable_types")

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        #: types of which a task could not be named; each deserves one warning
        self.unstable_types: set[str] = set()

    def name(self, spec: TaskSpec[Any], id_of: IdOf) -> str | None:
        """Return the id of a spec: its own, else a derived one, else None.

        Args:
            spec: The task.
            id_of: Gives the id of each spec or handle that stands in its arguments.
        """
        if spec.options.id is not None:
            return spec.options.id
        base = stable_id(spec, id_of)
        if base is None:
            self.unstable_types.add(spec.type)
            return None
        self._seen[base] += 1
        number = self._seen[base]
        return base if number == 1 else f"{base}/{number}"


def stable_id(spec: TaskSpec[Any], id_of: IdOf) -> str | None:
    """Return "type-0123456789abcdef" for plain arguments, None for others."""
    try:
        encoded = _encoded((*spec.args, dict(spec.kwargs)), id_of)
    except (_NotPlainError, RecursionError):
        return None
    return f"{spec.type}-{hashlib.sha256(encoded).hexdigest()[:_DIGITS]}"


class _NotPlainError(Exception):
    """A value has no encoding."""


def _encoded(value: Any, id_of: IdOf) -> bytes:  # noqa: ANN401 - whatever stands in arguments
    """Return a value as a letter for its type, its length, and itself: no two values look alike.

    Raises:
        _NotPlainError: It is no plain value.
    """
    kind = type(value)
    if kind in _ENCODERS:
        letter, encode = _ENCODERS[kind]
        return _sized(letter, encode(value))
    if kind is tuple or kind is list:
        return _sized(b"(" if kind is tuple else b"[", b"".join(_encoded(item, id_of) for item in value))
    if kind is dict:
        # Sorted, since equal dicts may differ in order.
        items = sorted(_encoded(key, id_of) + _encoded(item, id_of) for key, item in value.items())
        return _sized(b"{", b"".join(items))
    if isinstance(value, Enum):
        return _sized(b"e", f"{kind.__qualname__}.{value.name}".encode())
    source = value.source if kind is Output else value
    task_id = id_of(source)
    if task_id is None:
        raise _NotPlainError
    return _sized(b"r", task_id.encode())


def _sized(letter: bytes, content: bytes) -> bytes:
    """Put the letter and the length in front."""
    return b"%b%d:%b" % (letter, len(content), content)


#: Letter and content by exact type: a subclass may mean anything, so it is not plain.
_ENCODERS: Final[dict[type, tuple[bytes, Callable[[Any], bytes]]]] = {
    # surrogatepass: file names that are not UTF-8 reach Python as lone surrogates
    str: (b"s", lambda text: text.encode("utf-8", "surrogatepass")),
    bytes: (b"b", bytes),
    bool: (b"t", lambda flag: b"1" if flag else b"0"),
    int: (b"i", lambda number: b"%x" % number),
    float: (b"f", lambda number: number.hex().encode()),
    type(None): (b"n", lambda _: b""),
    PosixPath: (b"p", os.fsencode),
    PurePosixPath: (b"p", os.fsencode),
    date: (b"d", lambda day: day.isoformat().encode()),
    datetime: (b"D", lambda instant: f"{instant.isoformat()} {instant.fold}".encode()),
    timedelta: (b"l", lambda span: repr(span).encode()),
}
