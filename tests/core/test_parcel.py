"""What tells a parcel from others once its bytes are gone (contract C4, F5)."""

from typing import TYPE_CHECKING

import pytest

from procq import parcel
from procq.parcel import BESIDE_BYTES, Parcel, Payload, marked

if TYPE_CHECKING:
    from collections.abc import Sequence

BIG = BESIDE_BYTES


@pytest.fixture(autouse=True)
def hashed_in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be several parts."""
    monkeypatch.setattr(parcel, "_MARKED_BYTES", BIG // 2)


def outline(data: bytes, buffers: "Sequence[bytes | memoryview]" = ()) -> Parcel:
    made = marked(Parcel(data, buffers))
    assert isinstance(made, Parcel)
    return made.outlined()


def changed(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at:][1:]


def test_C4_what_is_small_stays_as_it_is() -> None:
    for small in (b"", bytes(BIG - 1), Parcel(b"abc", ())):
        assert marked(small) is small


@pytest.mark.parametrize("payload", [bytes(BIG), Parcel(b"abc", [bytes(BIG), memoryview(bytearray(BIG))])])
def test_C4_an_outline_has_nothing_and_equals_what_it_was_made_of(payload: Payload) -> None:
    made = marked(payload)
    assert isinstance(made, Parcel)
    assert len(made) == len(payload)

    assert len(made.outlined()) == 0
    assert made.outlined() == made == marked(payload)
    assert made.outlined() != marked(bytes(BIG + 1))
    assert made.outlined() != b""


@pytest.mark.parametrize("at", [0, BIG // 2 - 1, BIG // 2, BIG, 2 * BIG - 1])
def test_C4_one_bit_makes_another(at: int) -> None:
    data = bytes(2 * BIG)

    assert outline(changed(data, at)) != outline(data)
    assert outline(b"abc", [data, changed(data, at)]) != outline(b"abc", [data, data])


def test_C4_the_same_bytes_in_other_places_are_another() -> None:
    data, other = bytes(BIG), b"x" * BIG
    all_of_them = [
        outline(data + other),
        outline(other + data),
        outline(data, [other]),
        outline(other, [data]),
        outline(b"", [data, other]),
        outline(b"", [other, data]),
        outline(b"", [data + other]),
        outline(b"", [data + other, b""]),
    ]

    for number, one in enumerate(all_of_them):
        assert all((one == two) == (number == place) for place, two in enumerate(all_of_them))


def test_F5_what_was_not_marked_keeps_its_bytes_and_lets_go_of_shared_memory() -> None:
    shared = [_Share()]
    given = Parcel(b"abc", [bytes(BIG)], shared)

    assert given.outlined() == given
    assert not given.outlined().shares


class _Share:
    fd = 0
    key = 1
