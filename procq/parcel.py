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


class Parcel:
    """A pickle and the buffers that stand beside it; `len()` is all that in bytes.  Immutable.

    Attributes:
        data: The pickle.
        buffers: One-dimensional views of bytes, each of `BESIDE_BYTES` or more.
        shares: The shared memory that it refers to, which lives as long as this.
    """

    __slots__ = ("buffers", "data", "shares")

    def __init__(
        self, data: "bytes | memoryview", buffers: "Sequence[memoryview]", shares: "Sequence[Share]" = ()
    ) -> None:
        self.data = data
        self.buffers = buffers
        self.shares = shares

    def __len__(self) -> int:
        return len(self.data) + sum(map(len, self.buffers))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Parcel)
            and self.data == other.data
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


#: What travels between processes: a pickle, with or without buffers beside it.
Payload: "TypeAlias" = bytes | Parcel


def copied(payload: Payload) -> Payload:
    """Return the same in memory of its own, which what it was made from cannot change any more."""
    return payload.copied() if isinstance(payload, Parcel) else payload


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


def _copied(buffer: memoryview) -> memoryview:
    copy = room(len(buffer))
    for start in range(0, len(buffer), _SLICE_BYTES):
        copy[start : start + _SLICE_BYTES] = buffer[start : start + _SLICE_BYTES]
    return copy


def _is_same(one: memoryview, other: memoryview) -> bool:
    """Compare as bytes: views are compared item by item, a hundred times slower."""
    return all(
        bytes(one[start : start + _SLICE_BYTES]) == bytes(other[start : start + _SLICE_BYTES])
        for start in range(0, len(one), _SLICE_BYTES)
    )
