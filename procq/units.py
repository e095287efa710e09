"""Turns what people write for durations and sizes into numbers, and back.

Durations are seconds as `int` or `float`, a `timedelta`, or a text such as "250ms", "1.5s",
"5m", "1h30m", "7d".  Sizes are bytes as `int`, or a text such as "512MB" (10^6 bytes) or
"512MiB" (2^20 bytes).  Every reader takes the name of the field, so that its error can name
the field and the value (contract C3).  Pure functions; no clock.
"""

import math
import re
import sys
from typing import TYPE_CHECKING, Final, Protocol, TypeGuard, runtime_checkable

from procq.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime


@runtime_checkable
class _HasTotalSeconds(Protocol):
    """A `timedelta`, known by its method so that `datetime` need not be imported."""

    def total_seconds(self) -> float: ...


Duration = float | str | _HasTotalSeconds  #: what a parameter that is a time accepts
Size = int | str  #: what a parameter that is a size accepts

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "us": 1e-6}
# Patterns as texts: to compile them takes 1 ms, and `re` keeps what it has compiled.
#: As many digits as any use of it has, so that what is read is always finite.
_NUMBER: Final = r"(\d{1,20}(?:\.\d{1,20})?)"
_PART: Final = rf"{_NUMBER}\s*(us|ms|s|m|h|d)"
_DURATION: Final = rf"({_PART}\s*)+"
_BYTES: Final = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE: Final = rf"{_NUMBER}\s*([a-z]*)"


class UnitError(UsageError, ValueError):
    """A duration, a size or another number that cannot be."""


def seconds(value: Duration, *, field: str) -> float:
    """Read a duration.

    Args:
        value: Seconds, a `timedelta`, or a text such as "1h30m".
        field: The name of the parameter, for the error.

    Returns:
        Finite seconds, at least 0.

    Raises:
        UnitError: `value` is no duration, negative, infinite or not a number.
    """
    if isinstance(value, str):
        return _seconds_of_text(value, field)
    if isinstance(value, bool):
        raise UnitError(f"{field}={value!r}: expected a duration, not a bool")
    if isinstance(value, int | float):
        result = _as_float(value)
    elif isinstance(value, _HasTotalSeconds):
        result = value.total_seconds()
    else:
        raise UnitError(
            f"{field}={value!r}: expected seconds, a timedelta or a text like '1h30m', not {type(value).__name__}"
        )
    if not math.isfinite(result) or result < 0:
        raise UnitError(f"{field}={value!r}: a duration must be finite and at least 0")
    return result


def is_datetime(value: object) -> "TypeGuard[datetime]":
    """Return whether a value is a `datetime`, which it can be only where that module has been imported (1 ms)."""
    module = sys.modules.get("datetime")
    return module is not None and isinstance(value, module.datetime)


def _seconds_of_text(text: str, field: str) -> float:
    """Read "1h30m" and its like; a bare number is seconds."""
    plain = text.strip().lower()
    if re.fullmatch(_NUMBER, plain) is not None:
        return float(plain)
    if re.fullmatch(_DURATION, plain) is None:
        raise UnitError(f"{field}={text!r}: can't read this duration; write 250ms, 1.5s, 5m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_PART, plain))


def _as_float(value: float) -> float:
    """Turn a number into a float; a whole one that is too large becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def size_bytes(value: Size, *, field: str) -> int:
    """Read a size.

    Args:
        value: Bytes, or a text such as "512MB" (10^6) or "512MiB" (2^20).
        field: The name of the parameter, for the error.

    Returns:
        Whole bytes, at least 1.

    Raises:
        UnitError: `value` is no size, or less than one byte.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UnitError(f"{field}={value!r}: expected bytes or a text like '512MiB', not {type(value).__name__}")
    result = value if isinstance(value, int) else _bytes_of_text(value, field)
    if result < 1:
        raise UnitError(f"{field}={value!r}: a size must be at least 1 byte")
    return result


def _bytes_of_text(text: str, field: str) -> int:
    """Read "512MB", "1.5GiB"; a bare number is bytes."""
    match = re.fullmatch(_SIZE, text.strip(), re.IGNORECASE)
    if match is None or match[2].lower() not in _BYTES:
        raise UnitError(f"{field}={text!r}: can't read this size; write 512MB (10^6) or 512MiB (2^20)")
    whole, _, decimals = match[1].partition(".")
    # Without floats: 2**63 bytes are not one byte less or more.
    divisor: int = 10 ** len(decimals)
    return int(whole + decimals) * _BYTES[match[2].lower()] // divisor


def count(value: object, *, field: str, least: int = 0) -> int:
    """Read a whole number that must be at least `least`.

    Raises:
        UnitError: `value` is no `int` (a `bool` is none either), or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UnitError(f"{field}={value!r}: expected a whole number, not {type(value).__name__}")
    if value < least:
        raise UnitError(f"{field}={value!r}: must be at least {least}")
    return value


def format_seconds(value: float) -> str:
    """Write a duration for people: "12ms", "4.1s", "2m31s", "1h02m"."""
    if value < 0.9995:  # noqa: PLR2004 - what is not rounded to a second
        return f"{value * 1000:.0f}ms"
    if value < 59.95:  # noqa: PLR2004 - what is not rounded to a minute
        return f"{value:.1f}s"
    whole = round(value)
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{secs:02d}s"


def format_bytes(value: float) -> str:
    """Write a size for people in powers of ten: "410MB", "4.2GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:  # noqa: PLR2004 - what is not rounded to the next unit
            return f"{value:.0f}{unit}" if value >= 9.95 or unit == "B" else f"{value:.1f}{unit}"  # noqa: PLR2004
        value /= 1000
    return f"{value:.1f}TB"
