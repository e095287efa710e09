"""Durations, sizes and counts: what people write, and what is refused (contract, "Words"; C3)."""

import math
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from procq.errors import UsageError
from procq.units import Duration, Size, UnitError, count, format_bytes, format_seconds, seconds, size_bytes


def shown(value: object) -> str:
    """Name a parameter by what it looks like."""
    return f"{value!r:.30}"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (0, 0.0),
        (5, 5.0),
        (0.25, 0.25),
        (timedelta(minutes=2, milliseconds=5), 120.005),
        ("0", 0.0),
        ("5", 5.0),
        ("2.5", 2.5),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("7d", 604_800.0),
        ("20us", 2e-5),
        ("  1h 30m  ", 5400.0),
        ("1H30M", 5400.0),
        ("1h 2m 3s 4ms", 3723.004),
    ],
    ids=shown,
)
def test_a_duration_is_read(written: Duration, read: float) -> None:
    assert seconds(written, field="f") == pytest.approx(read, rel=1e-12)
    assert isinstance(seconds(written, field="f"), float)


@pytest.mark.parametrize(
    "written",
    [
        *(-1, -0.001, math.nan, math.inf, -math.inf, 10**400, timedelta(seconds=-1)),
        *(True, None, [1], b"5s", Fraction(1, 2)),
        *("", " ", "s", "5 parsecs", "m5", "1h30", "1,5s", "-5s", "5s-", "1e3", "inf", "nan", "1.s", ".5s", "9" * 400),
    ],
    ids=shown,
)
def test_what_is_no_duration_is_refused_with_the_name_of_the_field(written: Duration) -> None:
    with pytest.raises(UnitError, match="kill_grace="):
        seconds(written, field="kill_grace")


def test_the_refusal_is_a_usage_error_and_a_ValueError_and_shows_the_value() -> None:
    with pytest.raises(UsageError, match=r"delay='soon': can't read this duration; write 250ms, 1.5s, 5m or 1h30m"):
        seconds("soon", field="delay")
    assert issubclass(UnitError, ValueError)


@given(st.floats(0, 1e18))
def test_seconds_are_read_as_they_are(value: float) -> None:
    assert seconds(value, field="f") == value


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (1, 1),
        (10**30, 10**30),
        ("1", 1),
        ("10b", 10),
        ("512MB", 512_000_000),
        ("512MiB", 536_870_912),
        ("512 mib", 536_870_912),
        ("1.5GB", 1_500_000_000),
        ("1.5KiB", 1536),
        ("2tb", 2 * 10**12),
        ("2TiB", 2**41),
        ("9007199254740993", 2**53 + 1),  # no float holds it
        ("9223372036854775807", 2**63 - 1),
        ("0.9KiB", 921),  # down to whole bytes
    ],
    ids=shown,
)
def test_a_size_is_read_to_the_byte(written: Size, read: int) -> None:
    assert size_bytes(written, field="f") == read


@pytest.mark.parametrize(
    "written",
    [0, -1, 1.5, True, None, b"1", "", "0", "0.5b", "MB", "5 XB", "-5MB", "5M B", "1e9", "1.5.2MB", "9" * 400],
    ids=shown,
)
def test_what_is_no_size_is_refused_with_the_name_of_the_field(written: Size) -> None:
    with pytest.raises(UnitError, match="max_pending_bytes="):
        size_bytes(written, field="max_pending_bytes")


@pytest.mark.parametrize("written", [3, 10**30])
def test_a_count_is_a_whole_number(written: int) -> None:
    assert count(written, field="f", least=3) == written


@pytest.mark.parametrize("written", [2, -1, 3.0, "3", None, True, math.nan], ids=shown)
def test_what_is_no_count_is_refused_with_the_name_of_the_field(written: object) -> None:
    with pytest.raises(UnitError, match=r"workers="):
        count(written, field="workers", least=3)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0ms"),
        (0.0124, "12ms"),
        (0.9994, "999ms"),
        (0.9996, "1.0s"),
        (4.06, "4.1s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (151, "2m31s"),
        (3599.4, "59m59s"),
        (3599.6, "1h00m"),
        (3720, "1h02m"),
        (400_000, "111h06m"),
    ],
    ids=shown,
)
def test_a_duration_is_written_for_people(value: float, written: str) -> None:
    assert format_seconds(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0B"),
        (999, "999B"),
        (1000, "1.0kB"),
        (9940, "9.9kB"),
        (9960, "10kB"),
        (999_400, "999kB"),
        (999_600, "1.0MB"),
        (410e6, "410MB"),
        (4.2e9, "4.2GB"),
        (5.25e13, "52.5TB"),
    ],
    ids=shown,
)
def test_a_size_is_written_for_people(value: float, written: str) -> None:
    assert format_bytes(value) == written
