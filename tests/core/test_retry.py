"""How long to wait between attempts: within its band, over the whole of it, and the same for one seed (D6)."""

import math
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from procq.errors import UsageError
from procq.retry import BackoffLike, Exponential, Jitter, as_backoff, constant, exponential
from procq.units import UnitError


def shown(value: object) -> str:
    """Name a parameter by what it looks like."""
    return f"{value!r:.30}"


#: The part of the bound that a jitter draws from: [low, high).
BANDS: dict[Jitter, tuple[float, float]] = {"full": (0.0, 1.0), "equal": (0.5, 1.0)}


@pytest.mark.parametrize(
    ("attempt", "bound"), [(1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (10, 51.2), (11, 60.0), (5000, 60.0)]
)
def test_D6_the_bound_doubles_up_to_the_cap(attempt: int, bound: float) -> None:
    assert exponential().bound(attempt) == pytest.approx(bound)


@pytest.mark.parametrize("attempt", [1, 2, 7, 1000, 10**6])
def test_D6_without_jitter_the_bound_itself_is_waited(attempt: int) -> None:
    backoff = exponential("1s", factor=3, cap="1m", jitter="none")

    assert {backoff.delay(attempt, draw) for draw in (0.0, 0.3, 0.999)} == {backoff.bound(attempt)}


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        (exponential(2, factor=1, jitter="none"), [2, 2, 2]),
        (exponential(5, cap=3, jitter="none"), [3, 3, 3]),
        (exponential(0, jitter="none"), [0, 0, 0]),
        (exponential(1, factor=1.5, jitter="none"), [1, 1.5, 2.25]),
    ],
)
def test_D6_base_factor_and_cap_at_their_limits(backoff: Exponential, waits: list[float]) -> None:
    assert [backoff.delay(attempt, 0.5) for attempt in (1, 2, 3)] == waits


@pytest.mark.parametrize(("base", "waited"), [(0, 0.0), (1, 60.0)])
def test_D6_a_power_beyond_all_floats_is_no_error(base: float, waited: float) -> None:
    assert exponential(base, factor=1e300, jitter="none").delay(10**9, 0.0) == waited


@pytest.mark.parametrize("jitter", BANDS)
@given(
    base=st.floats(0.001, 100),
    factor=st.floats(1, 10),
    cap=st.floats(0.001, 1000),
    attempt=st.integers(1, 2000),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_D6_jitter_stays_in_its_band(
    jitter: Jitter, base: float, factor: float, cap: float, attempt: int, draw: float
) -> None:
    backoff = exponential(base, factor=factor, cap=cap, jitter=jitter)
    bound = backoff.bound(attempt)
    low, high = BANDS[jitter]

    assert bound <= cap
    assert low * bound <= backoff.delay(attempt, draw) <= high * bound


@pytest.mark.parametrize("attempt", [1, 3, 50])
@pytest.mark.parametrize("jitter", BANDS)
def test_D6_jitter_covers_its_band_evenly(jitter: Jitter, attempt: int) -> None:
    """A spread with a hole in it, or with all draws at one end, would bring callers back together."""
    backoff = exponential(2, cap=30, jitter=jitter)
    low, high = (part * backoff.bound(attempt) for part in BANDS[jitter])
    random = Random(20)
    bins = [0] * 20

    for _ in range(20_000):
        place = (backoff.delay(attempt, random.random()) - low) / (high - low)
        bins[min(int(place * 20), 19)] += 1

    # 1,000 are expected in each; the standard deviation is 31.
    assert all(800 < filled < 1200 for filled in bins)


def test_D6_the_same_seed_waits_the_same() -> None:
    def waits(seed: int) -> list[float]:
        random = Random(seed)
        return [exponential().delay(attempt, random.random()) for attempt in range(1, 20)]

    assert waits(1) == waits(1)
    assert waits(1) != waits(2)


def test_D6_a_constant_wait() -> None:
    assert [constant("1.5s").delay(attempt, 0.9) for attempt in (1, 2, 100)] == [1.5, 1.5, 1.5]


@pytest.mark.parametrize(
    ("given_value", "waits"),
    [
        (3, [3, 3, 3, 3]),
        ("1m", [60, 60, 60, 60]),
        (timedelta(seconds=2), [2, 2, 2, 2]),
        ([1, "2s", timedelta(seconds=3)], [1, 2, 3, 3]),
        ((0,), [0, 0, 0, 0]),
        (lambda attempt: 10.0 * attempt, [10, 20, 30, 40]),
        (constant(7), [7, 7, 7, 7]),
    ],
)
def test_D6_what_the_option_accepts(given_value: BackoffLike, waits: list[float]) -> None:
    backoff = as_backoff(given_value)

    assert [backoff.delay(attempt, 0.5) for attempt in (1, 2, 3, 4)] == waits


@pytest.mark.parametrize("value", [[], (), None, -1, "soon", [1, -1], [[1]], math.nan, True, {"a": 1}])
def test_D6_what_is_no_backoff_is_refused_by_name(value: BackoffLike) -> None:
    with pytest.raises(UsageError, match="backoff="):
        as_backoff(value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base", -1),
        ("base", "x"),
        ("cap", -1),
        ("cap", math.inf),
        ("factor", 0.99),
        ("factor", math.nan),
        ("factor", math.inf),
        ("factor", 10**400),
        ("factor", True),
        ("factor", "2"),
        ("jitter", "some"),
        ("jitter", []),
        ("constant", -1),
    ],
    ids=shown,
)
def test_D6_bad_values_are_refused_by_name(field: str, value: Any) -> None:  # noqa: ANN401 - anything is what is given
    with pytest.raises(UsageError, match=f"^{field}="):
        constant(value) if field == "constant" else exponential(**{field: value})


@pytest.mark.parametrize("returned", [None, -1, "soon", math.inf])
def test_D6_a_function_that_returns_no_duration_raises_when_it_is_asked(returned: float) -> None:
    backoff = as_backoff(lambda _: returned)

    with pytest.raises(UnitError, match="backoff="):
        backoff.delay(1, 0.0)


def test_C4_equal_backoffs_are_equal_so_that_equal_specs_are_one_task() -> None:
    def growing(attempt: int) -> float:
        return attempt

    def backoffs() -> list[object]:
        return [
            exponential(1, factor=3, cap=5, jitter="equal"),
            constant(3),
            as_backoff([1, 2]),
            as_backoff(growing),
        ]

    assert backoffs() == backoffs()
    assert list(map(hash, backoffs())) == list(map(hash, backoffs()))
    assert exponential(1) != exponential(2)
    assert exponential() != exponential(jitter="none")
    assert constant(1) != as_backoff([1, 1])
    assert as_backoff(growing) != as_backoff(lambda attempt: attempt)
    assert exponential() != constant(1)


def test_a_backoff_shows_what_it_does() -> None:
    assert repr(exponential(1)) == "exponential(1.0, factor=2.0, cap=60.0, jitter='full')"
    assert repr(constant(3)) == "constant(3.0)"
    assert repr(as_backoff([1, 2])) == "[1.0, 2.0]"
