# What each promise of the scheduler costs where it is used: no-ops with it beside no-ops without it; procq alone.
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from bench import tasks
from bench.peer import WORKERS
from bench.runner import Line
from bench.table import figure_of, least_disturbed
from bench.workloads import Values

NOOPS: Final = 5000
# Both kinds take turns in one process, so that what the machine does meets both.
ROUNDS: Final = 5
# Tasks that wait while one of them is explained.
WAITING: Final = 100_000


@dataclass(frozen=True, slots=True)
class Feature:
    title: str
    # Parameters of the queue, made anew for each, and options of its tasks.
    parameters: Callable[[], Mapping[str, Any]] = dict
    options: Mapping[str, Any] = field(default_factory=dict)


def aging() -> Mapping[str, Any]:
    from procq import Aging  # noqa: PLC0415

    return {"policy": Aging()}


def fair() -> Mapping[str, Any]:
    from procq import Priority, WeightedFair  # noqa: PLC0415

    return {"policy": WeightedFair({Priority.CRITICAL: 8, Priority.HIGH: 4, Priority.NORMAL: 2, Priority.LOW: 1})}


def breaker() -> Mapping[str, Any]:
    from procq import Breaker  # noqa: PLC0415

    return {"breaker": {"noop": Breaker()}}


def listener() -> Mapping[str, Any]:
    return {"on_event": [].append}


FEATURES: Final[Mapping[str, Feature]] = MappingProxyType(
    {
        "aging": Feature("`policy=Aging()`", aging),
        "fair": Feature("`policy=WeightedFair(...)`, four levels", fair),
        "limits": Feature("`limits` of a thousand other types", lambda: {"limits": {f"t{n}": 1 for n in range(1000)}}),
        "limit": Feature("a limit of its own type, as many as workers", lambda: {"limits": {"noop": WORKERS}}),
        "breaker": Feature("a breaker of its own type", breaker),
        "groups": Feature("`groups`, one more", lambda: {"groups": {"other": 1}}),
        "slots": Feature("`memory=` of `resources`", lambda: {"resources": {"memory": "1GB"}}, {"memory": "1MB"}),
        "expires": Feature("`expires=`", options={"expires": 3600}),
        "max_failures": Feature("`max_failures` and `deadline`", lambda: {"max_failures": 10, "deadline": "1h"}),
        "on_event": Feature("`on_event`, a list's `append`", listener),
    }
)


# No-ops by specs, which is how options travel: one submit each, then all results.
def feature(name: str) -> Values:
    from procq import Queue, task  # noqa: PLC0415

    chosen = FEATURES[name]
    queues = [Queue(workers=WORKERS).start(), Queue(workers=WORKERS, **chosen.parameters()).start()]
    functions = [task(tasks.noop, type="noop"), task(tasks.noop, type="noop", **chosen.options)]
    taken: list[list[float]] = [[], []]
    for number in range(ROUNDS + 1):
        for queue, noop, times in zip(queues, functions, taken, strict=True):
            began_at = time.perf_counter()
            for handle in [queue.submit(noop.spec()) for _ in range(NOOPS)]:
                handle.result()
            if number:  # the first one warms up
                times.append((time.perf_counter() - began_at) / NOOPS * 1e6)
    for queue in queues:
        queue.shutdown(mode="kill")
    return {"without_us": median(taken[0]), "with_us": median(taken[1])}


# How long it takes to say why one of many is not running.
def explain() -> Values:
    from procq import Queue  # noqa: PLC0415

    queue = Queue(workers=WORKERS)
    last = [queue.submit(tasks.noop) for _ in range(WAITING)][-1]
    queue.start().pause()
    times = []
    for _ in range(ROUNDS):
        began_at = time.perf_counter()
        queue.explain(last)
        times.append((time.perf_counter() - began_at) * 1e3)
    queue.shutdown(mode="kill")
    return {"explain_ms": median(times)}


MEASURED: Final[Mapping[str, Callable[[], Values]]] = MappingProxyType(
    {**{f"with_{name}": partial(feature, name) for name in FEATURES}, "explain": explain}
)


# --- the table -------------------------------------------------------------------------------------


def feature_table(lines: Sequence[Line], facts: Sequence[str]) -> Iterator[str]:
    counted = least_disturbed(lines)
    yield from facts
    yield ""
    yield "| procq alone, no-ops by specs; median (min to max) | µs each without | with | ratio |"
    yield "|---|---|---|---|"
    for name, chosen in FEATURES.items():
        figures = [figure_of(counted, f"with_{name}", value) for value in ("without_us", "with_us")]
        without, with_it = figures
        if without is None or with_it is None:
            yield f"| {chosen.title} | - | - | - |"
        else:
            ratio = with_it.median / without.median
            yield f"| {chosen.title} | {without.told(1)} | {with_it.told(1)} | {ratio:.2f} |"
    explained = figure_of(counted, "explain", "explain_ms")
    if explained is not None:
        yield ""
        yield f"To `explain` the last of {WAITING:,} READY tasks takes {explained.told(1)} ms."
