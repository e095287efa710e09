# The picture: how many times better than the best peer procq is, workload by workload.
from collections.abc import Sequence
from math import isinf
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.peers import BARE, OURS, PEERS
from bench.runner import Line
from bench.table import Finding, findings, told

# On a card of its own, so that it reads the same on a light and on a dark page.
PAPER: Final = "#fbfbf9"
INK: Final = "#22272e"
FAINT: Final = "#8b949e"
AHEAD: Final = "#1a7f5a"
BEHIND: Final = "#c4561b"
ROW_INCHES: Final = 0.4
# Who is further behind than this is drawn at the edge.
FURTHEST: Final = 1 / 30


def draw(lines: Sequence[Line], facts: Sequence[str], path: Path) -> None:
    shown = [finding for finding in findings(lines) if finding.row.short and times_better(finding, OURS)]
    if not shown:
        raise SystemExit("no picture: procq and a peer have no figures for the same work")
    mpl.rcParams["svg.hashsalt"] = "bench"  # or two pictures of the same figures would differ
    canvas = Canvas(figsize=(12.6, 1.9 + ROW_INCHES * len(shown)), facecolor=PAPER, layout="constrained")
    axes = canvas.subplots()
    for place, finding in enumerate(shown):
        draw_row(axes, place, finding)
    frame(axes, shown)
    canvas.suptitle("procq against the best other pool at each work", color=INK, fontsize=13, x=0.02, ha="left")
    canvas.supxlabel(facts[0] if facts else "", color=FAINT, fontsize=8, x=0.02, ha="left")
    canvas.savefig(path, facecolor=PAPER, metadata={"Date": None} if path.suffix == ".svg" else None)


# How many times better than the best peer; None if there is no figure, or none that can be compared.
def times_better(finding: Finding, subject: str) -> float | None:
    figure = finding.figures.get(subject)
    if figure is None or finding.best is None:
        return None
    best, own = finding.figures[finding.best].median, figure.median
    if isinf(own) or own <= 0 or best <= 0:
        return None
    return own / best if finding.row.better == "more" else best / own


def draw_row(axes: Axes, place: int, finding: Finding) -> None:
    ours, bare = times_better(finding, OURS), times_better(finding, BARE)
    assert ours is not None
    assert finding.best is not None
    color = AHEAD if ours >= 1 else BEHIND
    axes.barh(place, ours - 1, left=1, height=0.56, color=color, zorder=2)
    if ours < FURTHEST:
        axes.plot(FURTHEST, place, "<", color=color, markersize=12, zorder=2, clip_on=False)
    for peer in PEERS:
        times = times_better(finding, peer)
        if peer != OURS and times is not None:
            marker = "o" if times > FURTHEST else "<"
            axes.plot(max(times, FURTHEST), place, marker, color=FAINT, markersize=4.5, zorder=3, clip_on=False)
    if bare is not None:
        axes.plot(bare, place, "|", color=INK, markersize=13, markeredgewidth=1.6, zorder=4)
    # Said in words, because a bar that is hardly there is a figure, too.
    digits = finding.row.digits
    figures = [told(finding.figures[subject].median, digits) for subject in (OURS, finding.best)]
    times_text = f"{ours:,.2g} x" if ours < 100 else f"{ours:,.0f} x"  # noqa: PLR2004
    write(axes, (1.01, place), times_text, color=color, weight="bold")
    write(axes, (1.13, place), f"{figures[0]}  against  {figures[1]}  {PEERS[finding.best].title}", color=INK)


def write(axes: Axes, at: tuple[float, float], text: str, *, color: str, weight: str = "normal") -> None:
    right_of_it = axes.get_yaxis_transform()
    axes.text(*at, text, color=color, weight=weight, fontsize=8.5, va="center", transform=right_of_it)


def frame(axes: Axes, shown: Sequence[Finding]) -> None:
    axes.set_facecolor(PAPER)
    axes.set_xscale("log")
    axes.set_ylim(len(shown) - 0.4, -0.6)
    marks = [times_better(finding, subject) for finding in shown for subject in (OURS, BARE)]
    axes.set_xlim(FURTHEST, max(2.0, *(times for times in marks if times)) * 1.15)
    axes.axvline(1, color=INK, linewidth=1, zorder=1)
    axes.set_yticks(range(len(shown)), [finding.row.short or "" for finding in shown], color=INK, fontsize=9.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda times, _place: f"{times:g} x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="both", which="both", colors=INK, length=0)
    axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.7)
    axes.set_xlabel("times as good as the best peer, log scale (right is better)", color=INK, fontsize=9)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.legend(
        handles=[
            Line2D([], [], color=AHEAD, linewidth=8, label="procq, ahead"),
            Line2D([], [], color=BEHIND, linewidth=8, label="procq, behind"),
            Line2D([], [], color=FAINT, linestyle="", marker="o", label="each other pool (arrow: further back)"),
            Line2D([], [], color=INK, linestyle="", marker="|", markersize=11, label="the bare system, no pool"),
        ],
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False, fontsize=8.5, labelcolor=INK,
    )  # fmt: skip
