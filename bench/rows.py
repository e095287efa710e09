# The rows of the table: which number of which workload, what is better, and what procq wants of it.
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from bench import workloads
from bench.pools import Futures


# What the ratio to a peer, and the figure itself, are meant to be; both, if both are given.
@dataclass(frozen=True, slots=True)
class Goal:
    times: float | None = None
    figure: float | None = None
    # Whom the ratio is to; None: the best of all.
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    value: str
    title: str
    better: Literal["more", "less"]
    goal: Goal = Goal()
    digits: int = 0
    # As short as a picture wants it; None: it is not in the picture.
    short: str | None = None


def _efficiency(length_ms: int, figure: float) -> Row:
    title = f"efficiency at tasks of {length_ms} ms of plain Python"
    return Row(f"share_{length_ms}", title, "more", Goal(1, figure), 3)


def _waiting(count: int, goals: tuple[Goal, Goal], short: str | None = None) -> tuple[Row, ...]:
    return (
        Row("per_s", f"{count:,} pending no-ops: submits/s", "more", goals[0]),
        Row("bytes", f"{count:,} pending no-ops: bytes each", "less", goals[1], short=short),
    )


ROWS: Final[Mapping[str, tuple[Row, ...]]] = MappingProxyType({
    "noop": (
        Row(
            "per_s", f"no-op tasks/s ({workloads.NOOPS:,} submits, then all results)", "more", Goal(3, 100_000),
            short="no-op tasks/s",
        ),
        Row("cpu_us", "CPU of the submitting process for each of them, µs", "less", digits=1),
    ),
    "mapped": (
        Row(
            "per_s", f"`map` over {workloads.MAPPED:,} no-ops, best chunk size, items/s", "more",
            Goal(1, peer=Futures.name), short="map, items/s",
        ),
    ),
    "trip": (
        Row(
            "median_us", "one no-op at a time, submit to result, median, µs", "less", Goal(0.5), short="round trip, µs",
        ),
        Row("p99_us", "99th percentile of the same, µs", "less"),
    ),
    "big": (
        Row(
            "argument_ms", "100 MB array as argument, each time a new one, its sum back, ms", "less",
            Goal(figure=30), 1, "100 MB in, ms",
        ),
        Row("again_ms", "the same array once more, ms", "less", Goal(figure=30), 1),
        Row("result_ms", "100 MB array made and returned, ms", "less", Goal(figure=30), 1, "100 MB out, ms"),
        Row(
            "shared_ms", f"one 100 MB array to {workloads.SHARERS} tasks, ms", "less", Goal(figure=80),
            short="100 MB to 20 tasks, ms",
        ),
    ),
    "medium": (
        Row(
            "per_s", f"{workloads.MEDIUMS:,} x 100 KB echoed, tasks/s", "more", Goal(2), short="100 KB echoed, tasks/s",
        ),
    ),
    "start": (
        Row(
            "first_ms", "fresh interpreter to first result, ms", "less", Goal(0.7), short="start to first result, ms",
        ),
        Row("exit_ms", "fresh interpreter to its exit, ms", "less", Goal(0.7), short="start to exit, ms"),
    ),
    "efficiency": (_efficiency(1, 0.95), _efficiency(10, 0.985), _efficiency(100, 0.99)),
    "pending": _waiting(workloads.PENDINGS, (Goal(2), Goal(figure=600)), "memory per pending task, bytes"),
    "million": _waiting(workloads.MILLION, (Goal(), Goal())),
    "graph": (
        Row(
            "wall_s", f"graph of {workloads.LAYERS * workloads.WIDTH:,} no-ops, two dependencies each, s", "less",
            Goal(figure=0.3), 2, "graph of 10,000 nodes, s",
        ),
    ),
    "crash": (
        Row(
            "lost", f"results lost when 1 of {workloads.WORKS:,} tasks kills its worker, its own included", "less",
            Goal(figure=1), short="results lost by a crash",
        ),
        Row("known_ms", "death of the worker to its task's error, ms", "less", Goal(figure=5), 1),
        Row("new_ms", "death of the worker to the first task on a new one, ms", "less", Goal(figure=40), 1),
    ),
    "timeout": (
        Row(
            "late_ms", f"timeout of {workloads.TIMEOUT_S:g} s, tight Python loop: error late by, ms", "less",
            Goal(figure=10), 1, "timeout late by, ms",
        ),
    ),
    "deaf": (
        Row(
            "late_ms", "the same, C code that never returns: error known and process gone late by, after any grace, ms",
            "less", Goal(figure=10), 1,
        ),
    ),
    "orphans": (
        Row(
            "left", f"program killed, workers busy: processes left after {workloads.ORPHANED_S} s", "less",
            Goal(figure=0),
        ),
        Row("gone_ms", "the same: until all are gone, ms", "less", Goal(figure=50)),
    ),
})  # fmt: skip
