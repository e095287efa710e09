"""Draws numbers as SVG: histograms, curves, the strip that stands for the timeline without a script.

Colours come from the style sheet by class; without one everything is drawn in the colour of the text.
"""

from collections.abc import Sequence
from typing import Final

from procq.report.account import BLAMELESS, Account
from procq.report.figures import BARS_PER_DECADE, Histogram
from procq.report.markup import duration, safe

_BAR_WIDTH: Final = 8
_BARS_HEIGHT: Final = 34
_CURVE_WIDTH: Final = 600
_CURVE_HEIGHT: Final = 90
STRIP_SPANS: Final = 400
_STRIP_LANE: Final = 12
STRIP_LANES: Final = 100


def bars(drawn: Histogram, what: str) -> str:
    """Return a histogram small enough for a table's cell, its scale beneath it."""
    width, most = len(drawn.bars) * _BAR_WIDTH, max(drawn.bars)
    rects = "".join(
        f'<rect x="{nth * _BAR_WIDTH}" y="{_BARS_HEIGHT - height:.1f}" width="{_BAR_WIDTH - 1}" height="{height:.1f}"/>'
        for nth, number in enumerate(drawn.bars)
        if number
        for height in [max(1.5, number / most * _BARS_HEIGHT)]  # what is rare can be seen too
    )
    ticks = "".join(
        f'<path d="M{x + 0.5} {_BARS_HEIGHT}v4" stroke="currentColor"/>'
        for x in range(0, width + 1, BARS_PER_DECADE * _BAR_WIDTH)
    )
    peak = drawn.bars.index(most)
    span = f"{duration(drawn.edge(peak))} to {duration(drawn.edge(peak + 1))}"
    told = f"{what}: {sum(drawn.bars):,} durations, most of them from {span}"
    return (
        f'<svg class="bars" role="img" aria-label="{safe(told)}" width="{width + 1}" height="{_BARS_HEIGHT + 18}" '
        f'viewBox="0 0 {width + 1} {_BARS_HEIGHT + 18}" font-size="10"><title>{safe(told)}</title>'
        f'<g fill="currentColor" class="bar">{rects}</g>'
        f'<path d="M0 {_BARS_HEIGHT + 0.5}H{width}" stroke="currentColor"/>{ticks}'
        f'<text x="0" y="{_BARS_HEIGHT + 15}" fill="currentColor">{duration(10**drawn.low)}</text>'
        f'<text x="{width}" y="{_BARS_HEIGHT + 15}" text-anchor="end" fill="currentColor">{duration(10**drawn.high)}'
        "</text></svg>"
    )


def curve(points: Sequence[float], *, title: str, most: str, wall_s: float, limit: float = 0.0) -> str:
    """Return a curve over the time of the run, filled beneath.

    Args:
        points: From its beginning to its end.
        title: What it shows, in words.
        most: Its highest value, in words.
        wall_s: How long the run took.
        limit: Where a line is drawn across; 0: nowhere.
    """
    top = max(*points, limit) or 1.0
    step = _CURVE_WIDTH / len(points)
    line = "".join(
        f"H{nth * step:.4g}V{_CURVE_HEIGHT * (1 - value / top) + 2:.4g}"
        for nth, value in enumerate(points)
        if not nth or value != points[nth - 1]
    )
    height = _CURVE_HEIGHT * (1 - limit / top) + 2
    across = f'<path class="limit" d="M0 {height:.1f}H{_CURVE_WIDTH}" stroke="currentColor" stroke-dasharray="4 4"/>'
    told = f"{title}: at most {most}"
    base = _CURVE_HEIGHT + 2
    return (
        f'<figure class="curve"><figcaption>{safe(title)}<b>at most {safe(most)}</b></figcaption>'
        f'<svg role="img" aria-label="{safe(told)}" viewBox="0 0 {_CURVE_WIDTH} {base + 18}" width="100%" '
        f'font-size="12"><path class="area" d="M0 {base}{line}H{_CURVE_WIDTH}V{base}Z" fill="currentColor" '
        f'fill-opacity=".25" stroke="currentColor"/>'
        f'{across if limit else ""}<path d="M0 {base}H{_CURVE_WIDTH}" stroke="currentColor"/>'
        f'<text x="0" y="{base + 14}" fill="currentColor">0</text>'
        f'<text x="{_CURVE_WIDTH}" y="{base + 14}" text-anchor="end" fill="currentColor">{duration(wall_s)}</text>'
        "</svg></figure>"
    )


def occupancy(account: Account, spans: int) -> list[dict[tuple[int, int], float]]:
    """Return for each lane, by span of time and type, how much of the span attempts of the type took."""
    lanes: list[dict[tuple[int, int], float]] = [{} for _ in account.lanes]
    attempts, kinds, first = account.attempts, account.tasks.type, account.first_t
    span = (account.last_t - first) / spans or 1.0
    for task, start, end, lane in zip(attempts.task, attempts.start, attempts.end, attempts.lane, strict=True):
        cells, kind = lanes[lane], kinds[task]
        low, high = (start - first) / span, (end - first) / span
        here, last = min(max(int(low), 0), spans - 1), min(max(int(high), 0), spans - 1)
        if here == last:
            key = (here, kind)
            cells[key] = cells.get(key, 0.0) + high - low
            continue
        for cell in range(here, last + 1):
            key = (cell, kind)
            cells[key] = cells.get(key, 0.0) + min(high, cell + 1) - max(low, cell)
    return lanes


def strip(account: Account, colors: Sequence[int], lanes: Sequence[dict[tuple[int, int], float]], label: str) -> str:
    """Return the timeline as a picture: what kept each lane busy, by colour, and where attempts failed.

    Args:
        account: The run.
        colors: The number of each type's colour.
        lanes: As `occupancy` has it, for `STRIP_SPANS` spans.
        label: What it shows, in words.
    """
    height = min(len(lanes), STRIP_LANES) * _STRIP_LANE
    begin = (
        f'<svg class="strip" role="img" aria-label="{safe(label)}" viewBox="0 0 {STRIP_SPANS} {height}" width="100%" '
        f'height="{height * 1.5:.0f}" preserveAspectRatio="none">'
    )
    parts = [begin]
    for row, cells in enumerate(lanes[:STRIP_LANES]):
        parts += _lane_rects(row, cells, colors)
    parts += [*_marks(account), "</svg>"]
    return "".join(parts)


def _lane_rects(row: int, cells: dict[tuple[int, int], float], colors: Sequence[int]) -> list[str]:
    """Return the rectangles of a lane: each span has the colour of the type that took most of it."""
    strongest: dict[int, tuple[float, int]] = {}
    busy: dict[int, float] = {}
    for (span, kind), share in cells.items():
        busy[span] = busy.get(span, 0.0) + share
        if share >= strongest.get(span, (0.0, 0))[0]:
            strongest[span] = (share, colors[kind])
    rects: list[str] = []
    begin, before, look = 0, -2, (-1, -1)
    for span in [*sorted(strongest), STRIP_SPANS + 2]:
        now = (strongest[span][1], min(3, int(busy[span] * 4))) if span in strongest else (-2, -2)
        if span != before + 1 or now != look:
            if look[0] >= 0:
                rects.append(
                    f'<rect class="t{look[0]} d{look[1]}" x="{begin}" y="{row * _STRIP_LANE + 1}" '
                    f'width="{before + 1 - begin}" height="{_STRIP_LANE - 2}"/>'
                )
            begin, look = span, now
        before = span
    return rects


def _marks(account: Account) -> list[str]:
    """Return a mark for each place where an attempt failed, one for those that fall together."""
    attempts = account.attempts
    span = (account.last_t - account.first_t) / STRIP_SPANS or 1.0
    places = {
        (attempts.lane[index], min(int((attempts.end[index] - account.first_t) / span), STRIP_SPANS - 1))
        for index, outcome in enumerate(attempts.outcome)
        if outcome not in BLAMELESS
    }
    return [
        f'<path class="mark" d="M{span - 1} {lane * _STRIP_LANE}h2l-1 5z" fill="currentColor"/>'
        for lane, span in sorted(places)
        if lane < STRIP_LANES
    ]
