"""Pickles with what stands beside them: big buffers, which are never copied into one (contract I1), and shared memory.

Decides where memory for big buffers comes from.  What costs is not to copy but to touch fresh
pages: 100 MB take 9 ms in pages of 2 MiB and 34 ms in pages of 4 KiB, so the big ones are asked for.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Final, Protocol, TypeAlias

    class Share(Protocol):
        """Shared memory that a call refers to: a block of `procq.shared`."""

        fd: int
        key: int


#: A buffer of so many bytes stands beside its pickle.  Below, to copy it in costs less than the rest of the
#: way does; and what stands beside never fits into one packet (`wire.PACKET_MAX`).
BESIDE_BYTES: "Final" = 64 * 1024
#: From here on memory comes in huge pages; what they are on most machines.
_HUGE_BYTES: "Final" = 2 * 1024 * 1024
#: So much is copied or compared at a time, so that other threads get the interpreter in between: 1.5 ms.
_SLICE_BYTES: "Final" = 16 * 1024 * 1024
#: So much is hashed at a time: a hash of 8 bytes for each 4 MiB, and the interpreter held for 1 ms.
_MARKED_BYTES: "Final" = 4 * 1024 * 1024


#: What stands beside a pickle.
Buffer: "TypeAlias" = memoryview | bytes
#: Of the pickle and of each buffer: its length, and hashes of its parts.
Mark: "TypeAlias" = tuple[tuple[int, ...], ...]


class Parcel:
    """A pickle and the buffers that stand beside it; `len()` is all that in bytes.  Immutable.

    Attributes:
        data: The pickle.
        buffers: One-dimensional views of bytes, each of `BESIDE_BYTES` or more; or `bytes`, which nobody
            can change: those are never copied here, and arrive as `bytes`.
        shares: The shared memory that it refers to, which lives as long as this.
        mark: What tells it from others, if `marked` was asked; two that have one are compared by it alone.
    """

    __slots__ = ("buffers", "data", "mark", "shares")

    def __init__(
        self,
        data: "bytes | memoryview",
        buffers: "Sequence[Buffer]",
        shares: "Sequence[Share]" = (),
        mark: "Mark | None" = None,
    ) -> None:
        self.data = data
        self.buffers = buffers
        self.shares = shares
        self.mark = mark

    def __len__(self) -> int:
        return len(self.data) + sum(map(len, self.buffers))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parcel):
            return False
        if self.mark is not None and other.mark is not None:
            return self.mark == other.mark
        return (
            self.data == other.data
            and [len(buffer) for buffer in self.buffers] == [len(buffer) for buffer in other.buffers]
            and all(map(_is_same, self.buffers, other.buffers))
        )

    __hash__ = None  # type: ignore[assignment]  # as nothing that is compared by so many bytes

    def behind(self, head: bytes) -> "Parcel":
        """Return the same with something before the pickle."""
        return Parcel(head + self.data, self.buffers, self.shares)

    def copied(self) -> "Parcel":
        """Return the same in memory of its own."""
        return Parcel(self.data, [_copied(buffer) for buffer in self.buffers], self.shares)

    def outlined(self) -> "Parcel":
        """Return what is left of it to be compared, once nobody needs to unpickle it any more."""
        return Parcel(self.data, self.buffers) if self.mark is None else Parcel(b"", (), (), self.mark)


#: What travels between processes: a pickle, with or without buffers beside it.
Payload: "TypeAlias" = bytes | Parcel


def copied(payload: Payload) -> Payload:
    """Return the same in memory of its own, which what it was made from cannot change any more."""
    return payload.copied() if isinstance(payload, Parcel) else payload


def marked(payload: Payload) -> Payload:
    """Return the same with what tells it from others, if it is big.

    So it can be compared under a lock, and after its bytes are gone.  Takes 0.3 s a GB.
    """
    if len(payload) < BESIDE_BYTES:
        return payload
    if not isinstance(payload, Parcel):
        payload = Parcel(payload, ())
    return Parcel(payload.data, payload.buffers, payload.shares, tuple(map(_mark, (payload.data, *payload.buffers))))


def room(size: int) -> memoryview:
    """Return writable memory of so many bytes, which lives as long as anything made from it.

    Raises:
        MemoryError: There is not so much.
    """
    if size < _HUGE_BYTES:
        return memoryview(bytearray(size))
    import mmap  # noqa: PLC0415 - not for those who move nothing big

    try:
        # Not the default, which is shared: that comes in small pages nearly everywhere.
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:  # noqa: SIM105 - to import `contextlib` takes a worker 1 ms
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            pass
    return memoryview(memory)


def _copied(buffer: Buffer) -> Buffer:
    if isinstance(buffer, bytes):
        return buffer
    copy = room(len(buffer))
    for start in range(0, len(buffer), _SLICE_BYTES):
        copy[start : start + _SLICE_BYTES] = buffer[start : start + _SLICE_BYTES]
    return copy


def _mark(buffer: Buffer) -> "tuple[int, ...]":
    """Return a length, and the hash of each part.

    Python's own hash, of 64 bits with a key of the process's, 3.5 times as fast as `blake2b`: that two
    different buffers have the same is out of the question unless somebody makes them up, for himself.
    """
    view = memoryview(buffer)
    return (len(view), *[hash(bytes(view[at : at + _MARKED_BYTES])) for at in range(0, len(view), _MARKED_BYTES)])


def _is_same(one: Buffer, other: Buffer) -> bool:
    """Compare as bytes: views are compared item by item, a hundred times slower."""
    return all(
        bytes(one[start : start + _SLICE_BYTES]) == bytes(other[start : start + _SLICE_BYTES])
        for start in range(0, len(one), _SLICE_BYTES)
    )
