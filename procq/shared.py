"""Objects that many tasks read, put into anonymous shared memory once (contract I2).

    Shared --pickled as an argument--> its key, and the call keeps the Shared alive
    worker --WANTED, key--> supervisor --descriptor--> worker, which maps it and keeps it mapped
    Shared gone --FORGET, keys--> workers that have it

The memory is a sealed `memfd`: it has no name that could be left behind, and nobody can write to
it.  It holds a pickle and the buffers that stand beside it; each attempt unpickles anew, so that it
gets objects of its own around buffers that are everybody's.
"""

import mmap
import os
import struct
import sys
from collections.abc import Iterator
from io import FileIO
from itertools import count
from typing import Final, Generic, TypeVar, cast, final
from weakref import WeakValueDictionary

from procq import payload
from procq.parcel import Parcel

T = TypeVar("T")

#: Buffers begin at multiples of this many bytes, as arrays like it: a cache line.
_ALIGNED_BYTES: Final = 64
#: Written at a time: other threads get the interpreter anyway, but Ctrl-C has to wait for so much.
_SLICE_BYTES: Final = 64 * 1024 * 1024
_COUNT: Final = struct.Struct("<Q")


@final
class Shared(Generic[T]):
    """The grip on an object in shared memory; made by `share`.

    Thread-safe.  The memory is freed when this, every task that was given it, and what those have kept
    of its buffers are gone.
    """

    __slots__ = ("_block", "_name")

    def __init__(self, obj: T) -> None:
        self._name = type(obj).__name__
        self._block = _written(obj, self._name)

    @property
    def value(self) -> T:
        """The object, rebuilt from the shared memory, anew each time; its buffers are read-only."""
        return cast("T", self._block.load())

    @property
    def out(self) -> T:
        """This, typed as the object that a task gets in its place."""
        return cast("T", self)

    @property
    def nbytes(self) -> int:
        """How many bytes it takes, once for all."""
        return os.fstat(self._block.fd).st_size

    def __reduce__(self) -> tuple[object, ...]:
        """Become the key while a call is pickled, which then keeps the memory alive."""
        from procq.errors import UsageError  # noqa: PLC0415 - a worker that reads needs it not

        if not payload.take_along(self._block):
            raise UsageError(f"{self!r} can't be pickled by itself; pass it as an argument to a task, or its .value")
        return _value_of, (self._block.key,)

    def __repr__(self) -> str:
        return f"<Shared {self._name}, {self.nbytes} bytes>"


def share(obj: T) -> Shared[T]:
    """Put an object into shared memory, once for all tasks that read it (contract I2).

    Pass what this returns to tasks, at any depth of their arguments: each gets the object in its
    place.  Its big buffers (arrays, say) are read-only there and take no memory of the worker's; the
    rest is unpickled for each attempt.  Blocks for about 0.4 ms a MB.

    Args:
        obj: Anything that can be pickled; what is changed in it later is not seen by tasks.

    Raises:
        PayloadError: It cannot be pickled.
        UsageError: It holds a handle or another shared object; or this system has no `memfd_create`.
        OSError: There is no memory or descriptor for it.
    """
    return Shared(obj)


# --- the memory --------------------------------------------------------------------------------


def _written(obj: object, name: str) -> "_Block":
    """Write an object into new memory and seal that."""
    from procq.errors import PayloadError, UsageError  # noqa: PLC0415 - as above

    if not hasattr(os, "memfd_create"):
        raise UsageError("share() needs memfd_create, which this system lacks; pass the object itself")
    try:
        data = payload.dumps(obj)
    except payload.NotPicklable as error:
        raise PayloadError(f"share(): the {name} can't be pickled: {error}") from error
    pieces = (
        [memoryview(data)] if isinstance(data, bytes) else [memoryview(piece) for piece in (data.data, *data.buffers)]
    )
    sizes = [len(piece) for piece in pieces]
    block = _Block()
    for piece, (start, _) in zip(pieces, _places(sizes), strict=True):
        _write(block.fd, piece, start)
    _write(block.fd, memoryview(struct.pack(f"<{len(sizes)}Q", *sizes) + _COUNT.pack(len(sizes))), _end(sizes))
    _seal(block.fd)
    return block


def _places(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield where each piece begins and ends."""
    start = 0
    for size in sizes:
        yield start, start + size
        start += -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _end(sizes: list[int]) -> int:
    """Return where the sizes themselves are written."""
    return sum(-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in sizes)


def _write(fd: int, data: memoryview, start: int) -> None:
    while data:
        written = os.pwrite(fd, data[:_SLICE_BYTES], start)
        data = data[written:]
        start += written


def _seal(fd: int) -> None:
    import fcntl  # noqa: PLC0415 - not for those who read

    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


_numbers = count(1)


class _Descriptor(FileIO):
    """A descriptor that is closed with its last user, as it should be, and so without the warning for files."""

    __slots__ = ()

    #: Hides what the finalizer sets to have `close` warn.  No code of Python's runs there, which Ctrl-C could hit.
    _finalizing = False


class _Block:
    """Shared memory that was made in this process, for as long as anything refers to it.

    Attributes:
        fd: Its descriptor, closed with this.
        key: What tells it from every other of this process and of those that it works for.
    """

    __slots__ = ("__weakref__", "_file", "_memory", "fd", "key")

    def __init__(self) -> None:
        # In one call of C code from the system to an object that closes it: Ctrl-C may come after any step of
        # Python's, and a bare number that it hits is lost.
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._file = next(map(_Descriptor, map(os.memfd_create, ("procq-shared",), (flags,)), ("r+",)))
        self.fd = self._file.fileno()
        self.key = os.getpid() << 32 | next(_numbers)
        self._memory: _Memory | None = None
        _made_here[self.key] = self

    def load(self) -> object:
        """Unpickle what it holds; it is mapped here only once somebody asks."""
        if self._memory is None:
            self._memory = _Memory(self.fd)
        return self._memory.load()


_made_here: "WeakValueDictionary[int, _Block]" = WeakValueDictionary()


class _Memory:
    """Shared memory, mapped here."""

    __slots__ = ("_parcel",)

    def __init__(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        # All at once: page by page, the first reading would take a third longer.
        # Private, though nobody writes: before Linux 6.7 what is sealed against writing cannot be mapped shared.
        flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_POPULATE", 0)
        view = memoryview(_mapped(fd, size, flags))
        (number,) = _COUNT.unpack_from(view, size - _COUNT.size)
        sizes = list(struct.unpack_from(f"<{number}Q", view, size - _COUNT.size * (number + 1)))
        data, *buffers = (view[start:end] for start, end in _places(sizes))
        self._parcel = Parcel(data, buffers)

    def load(self) -> object:
        """Unpickle what it holds."""
        return payload.loads_once(self._parcel)


def _mapped(fd: int, size: int, flags: int) -> mmap.mmap:
    """Map memory for reading; before Python 3.13 a mapping keeps a duplicate of the descriptor."""
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ, trackfd=False)
    return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ)


# --- in a worker -------------------------------------------------------------------------------

#: What was fetched from the supervisor.
_fetched: dict[int, _Memory] = {}


def _value_of(key: int) -> object:
    """Rebuild what is shared; called by pickle where the task runs."""
    block = _made_here.get(key)
    if block is not None:
        return block.load()
    memory = _fetched.get(key)
    if memory is None:
        memory = _fetched[key] = _fetch(key)
    return memory.load()


def _fetch(key: int) -> _Memory:
    """Get shared memory from the supervisor.

    Raises:
        LookupError: This is neither the process that made it nor the main thread of a worker.
        OSError: There is no memory or descriptor for it.
    """
    if payload.fetch_shared is None:
        raise LookupError("a shared object can only be had in the process that shared it, and in its workers")
    if sys.version_info < (3, 13) and 0 < os.sysconf("SC_OPEN_MAX") // 2 <= len(_fetched):
        # The other half is the tasks' own.  What goes is fetched anew when it is wanted again.
        del _fetched[next(iter(_fetched))]
    try:
        fd = payload.fetch_shared(key)
        try:
            return _Memory(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(
            f"shared memory cannot be mapped ({error}); with Python before 3.13 each shared object that a task reads "
            "takes a descriptor: raise their limit (ulimit -n), or share fewer and bigger objects"
        ) from error


def forget(key: int) -> None:
    """Let go of shared memory; what still holds its buffers keeps it until that is gone."""
    _fetched.pop(key, None)
