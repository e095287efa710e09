"""Whether two pickled calls say the same, though their bytes differ (contract C4).

Pickle writes a text that comes again as a reference to the first one, if it is the same object; and
which texts are one object differs from process to process: those of a module are, mostly, and those
that were unpickled are not.  So the same call of a script's function has other bytes when a program
submits it and when a task spawns it.

Pickles are read here and never run.
"""

from pickletools import genops
from typing import Final

from procq.payload import pickles_of

#: What pushes a text or bytes, of which nobody can tell one object from two.
_TEXTS: Final = frozenset({
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8",
})  # fmt: skip
_READS: Final = frozenset({"BINGET", "LONG_BINGET"})
#: How a pickle is cut, which its meaning does not depend on.
_CUTS: Final = frozenset({"FRAME", "PROTO"})


def is_same_call(one: bytes, other: bytes) -> bool:
    """Whether two calls are the same but for which of their texts are one object."""
    try:
        (kind, pickles), (other_kind, other_pickles) = pickles_of(one), pickles_of(other)
        return kind == other_kind and list(map(_told, pickles)) == list(map(_told, other_pickles))
    except (ValueError, IndexError):  # no pickles at all: a task of a cheat's
        return False


def _told(pickle: bytes) -> list[tuple[str, object]]:
    """Return what a pickle does, with each text in full wherever it stands."""
    told: list[tuple[str, object]] = []
    #: what can be referred to: a text, or the number of any other object
    memo: list[str | bytes | int] = []
    others = 0
    text: str | bytes | None = None
    for operation, argument, _ in genops(pickle):
        name = operation.name
        if name in _CUTS:
            continue
        if name == "MEMOIZE":
            memo.append(others if text is None else text)
            others += text is None
            continue
        text = argument if name in _TEXTS else None
        if name in _READS:
            told.append(("read", memo[argument]))  # type: ignore[index]  # which is a number then
            continue
        told.append((name if text is None else "read", argument))
    return told
