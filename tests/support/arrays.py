"""Bytes that pickle keeps beside its stream, as it does with the arrays of numpy; and tasks on them."""

import os
from _pickle import PickleBuffer

from procq.parcel import room

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Array:
    """A buffer that travels out of band."""

    def __init__(self, data: "bytes | bytearray | memoryview") -> None:
        self.view = memoryview(data)

    def __reduce_ex__(self, protocol: int) -> "tuple[Callable[..., Array], tuple[PickleBuffer]]":  # type: ignore[override]
        return Array, (PickleBuffer(self.view),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and bytes(self.view) == bytes(other.view)

    __hash__ = None  # type: ignore[assignment]


class Kept:
    """A buffer as it was given, for the test of what it was given as."""

    def __init__(self, data: "bytes | bytearray | memoryview") -> None:
        self.data = data

    def __reduce_ex__(self, protocol: int) -> "tuple[Callable[..., Kept], tuple[PickleBuffer]]":  # type: ignore[override]
        return Kept, (PickleBuffer(self.data),)


def kind_of(kept: Kept) -> str:
    """Return what a buffer is."""
    name = type(kept.data).__name__
    return f"read-only {name}" if isinstance(kept.data, memoryview) and kept.data.readonly else name


def array(size: int, first: int = 1) -> Array:
    """Make one in which neighbours differ."""
    return Array(bytearray((first + index) % 251 for index in range(min(size, 100_003))) * (size // 100_003 + 1))


def echo(value: object) -> object:
    return value


def overwrite(*arrays: Array) -> list[bytes]:
    """Overwrite arrays, and return how they began."""
    found = []
    for each in arrays:
        found.append(bytes(each.view[:4]))
        each.view[:4] = b"gone"
    return found


def overwrite_and_fail_once(given: Array, path: str) -> list[bytes]:
    found = overwrite(given)
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is heavy
        os.mknod(path)
        raise ValueError("once")
    return found


def make(size: int, first: int = 1) -> Array:
    return array(size, first)


_kept: list[Array] = []


def keep_and_return(size: int) -> Array:
    """Return an array, and change it afterwards, in the next task."""
    _kept.append(array(size))
    return _kept[-1]


def change_kept() -> None:
    for each in _kept:
        each.view[:4] = b"gone"


def is_read_only(given: Array) -> bool:
    return given.view.readonly


def ends(given: Array) -> tuple[int, int, int]:
    """Return an array's length, and the bytes at its ends."""
    return len(given.view), given.view[0], given.view[-1]


def fail_with(given: Array) -> None:
    raise ValueError(given)


def types(*values: object) -> list[str]:
    return [type(value).__name__ for value in values]


def make_many(count: int) -> list[Array]:
    return [Array(bytearray(70_000)) for _ in range(count)]


def append_and_count(items: list[str]) -> int:
    items.append("more")
    return len(items)


_given: list[Array] = []


def keep(given: Array) -> None:
    _given.append(given)


def ends_of_last_given() -> tuple[int, int, int]:
    return ends(_given[-1])


def byte_of(given: Array, index: int) -> int:
    return given.view[index]


def call(fn: "Callable[[int], int]", number: int) -> int:
    return fn(number)


def huge(size: int) -> Array:
    """Make one of which only the ends take memory."""
    given = Array(room(size))
    given.view[0], given.view[-1] = 7, 9
    return given


class Marked(bytes):
    """Bytes that are more than that."""
