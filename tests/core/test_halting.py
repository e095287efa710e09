"""How many failures are too many, and when a run is over (contract G6): numbers, shares and instants."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from procq import errors
from procq.halting import SHARE_FROM, FailureLimit, RunDeadline


@pytest.mark.parametrize(
    ("value", "failed", "succeeded", "reached"),
    [
        (1, 0, 100, False),
        (1, 1, 0, True),
        (3, 2, 100, False),
        (3, 3, 100, True),
        (3, 4, 0, True),
        ("50%", 19, 0, False),
        ("50%", 10, 10, True),
        ("50%", 9, 11, False),
        ("5%", 1, 19, True),
        ("5%", 1, 20, False),
        ("100%", 20, 0, True),
        ("100%", 20, 1, False),
        ("0.1%", 1, 999, True),
        ("0.1%", 1, 1000, False),
        ("2.5 %", 1, 39, True),
        ("2.5 %", 1, 40, False),
    ],
)
def test_G6_a_number_is_reached_at_once_and_a_share_from_twenty_on(
    value: int | str, failed: int, succeeded: int, *, reached: bool
) -> None:
    assert FailureLimit(value).reached(failed, succeeded) is reached


@pytest.mark.parametrize(
    ("value", "failed", "succeeded", "reached"),
    [("50%", 1, 1, True), ("50%", 1, 2, False), ("1%", 0, 0, False), ("1%", 0, 5, False), ("100%", 1, 0, True)],
)
def test_G6_at_the_end_a_share_of_few_is_judged_too(value: str, failed: int, succeeded: int, *, reached: bool) -> None:
    assert FailureLimit(value).reached(failed, succeeded, at_end=True) is reached


@given(
    hundredths=st.integers(1, 10_000), failed=st.integers(0, 500), succeeded=st.integers(0, 500), at_end=st.booleans()
)
def test_G6_a_share_is_exact(hundredths: int, failed: int, succeeded: int, *, at_end: bool) -> None:
    limit = FailureLimit(f"{hundredths // 100}.{hundredths % 100:02}%")

    ended = failed + succeeded
    is_due = at_end or ended >= SHARE_FROM
    expected = failed > 0 and is_due and Fraction(failed, ended) >= Fraction(hundredths, 10_000)
    assert limit.reached(failed, succeeded, at_end=at_end) is expected


@pytest.mark.parametrize(
    "value", [0, -1, True, 1.5, "5", "0%", "0.0%", "100.1%", "101%", "-5%", "%", "five%", "5%%", "", b"5%", None]
)
def test_C3_what_is_neither_a_number_nor_a_share_is_named(value: Any) -> None:  # noqa: ANN401 - anything
    with pytest.raises(errors.UsageError, match="max_failures="):
        FailureLimit(value)


def test_G6_it_is_told_in_words() -> None:
    assert FailureLimit(1).told(1, 5) == "halted: 1 task failed (max_failures=1)"
    assert FailureLimit(3).told(3, 5) == "halted: 3 tasks failed (max_failures=3)"
    assert FailureLimit("5%").told(2, 38) == "halted: 2 of 40 tasks failed (max_failures='5%')"


def test_G6_a_deadline_is_a_duration_or_an_instant_of_the_wall_clock() -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)

    assert RunDeadline("1h30m").remaining_s() == 5400
    assert 3590 < RunDeadline(soon).remaining_s() <= 3600
    assert 3590 < RunDeadline(soon.astimezone().replace(tzinfo=None)).remaining_s() <= 3600
    assert RunDeadline(soon - timedelta(days=1)).remaining_s() == 0


@pytest.mark.parametrize("value", ["soon", -1, True, float("nan"), b"1s"])
def test_C3_what_is_no_deadline_is_named(value: Any) -> None:  # noqa: ANN401 - anything
    with pytest.raises(errors.UsageError, match="deadline="):
        RunDeadline(value)
