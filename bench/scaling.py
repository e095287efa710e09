# How procq's cost grows with the tasks that wait and with the workers; procq alone.
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Final

from bench import tasks
from bench.machine import seconds_of
from bench.peer import WORKERS
from bench.pools import Procq
from bench.runner import Line
from bench.table import Figure, figure_of, least_disturbed
from bench.workloads import NOOPS, Values

# So many waiting at once, and how often in one run: what takes milliseconds is done many times.
WAITING: Final[Mapping[int, int]] = MappingProxyType({1000: 50, 10_000: 10, 100_000: 2, 1_000_000: 1})
WORKERS_TRIED: Final = (1, 2, 4, 16, 64)
SHORT_S: Final = 0.01
SHORTS: Final = 800


# Submits while all workers are kept, then lets them go: all of it waited at once, and all of it ran.
def waiting(count: int) -> Values:
    peer = started(WORKERS)
    walls_s = []
    for _ in range(WAITING[count]):
        with tempfile.TemporaryDirectory() as folder:
            gate = Path(folder, "gate")
            held = [peer.submit(tasks.hold, str(gate)) for _ in range(WORKERS)]
            began_at = time.perf_counter()
            pendings = [peer.submit(tasks.noop) for _ in range(count)]
            submit_s = time.perf_counter() - began_at
            gate.touch()
            peer.gather(held)  # they look for the gate now and then
            walls_s.append(submit_s + seconds_of(lambda: peer.gather(pendings)))  # noqa: B023
    return finished(peer, {"each_us": median(walls_s) / count * 1e6})


# No-ops with so many workers, once for all of them and once while all but two are in a task that sleeps.
def workers(count: int) -> Values:
    peer = started(count)
    values: Values = {"all_us": noop_us(peer)}
    for _ in range(count - WORKERS):
        peer.submit(time.sleep, 3600)
    values["two_us"] = noop_us(peer)
    return finished(peer, values)


def noop_us(peer: Procq) -> float:
    peer.each(tasks.noop, [()] * 500)
    return seconds_of(lambda: peer.each(tasks.noop, [()] * NOOPS)) / NOOPS * 1e6


# What the submitting process costs while both workers are busy with tasks of 10 ms; submitting left out.
def supervisor() -> Values:
    rounds = int(SHORT_S * 200_000 / min(tasks.spin(200_000) for _ in range(20)))
    peer = started(WORKERS)
    pendings = [peer.submit(tasks.spin, rounds) for _ in range(SHORTS)]
    cpu_s, began_at = time.process_time(), time.perf_counter()
    peer.gather(pendings)
    share = (time.process_time() - cpu_s) / (time.perf_counter() - began_at)
    return finished(peer, {"percent": share * 100})


def started(count: int) -> Procq:
    peer = Procq(count)
    peer.start()
    peer.warm()
    return peer


def finished(peer: Procq, values: Values) -> Values:
    peer.shutdown()
    return values


SCALINGS: Final[Mapping[str, Callable[[], Values]]] = MappingProxyType(
    {
        **{f"waiting_{count}": partial(waiting, count) for count in WAITING},
        **{f"workers_{count}": partial(workers, count) for count in WORKERS_TRIED},
        "supervisor": supervisor,
    }
)


# --- the table -------------------------------------------------------------------------------------


def scaling_table(lines: Sequence[Line], facts: Sequence[str]) -> Iterator[str]:
    counted = least_disturbed(lines)
    yield from facts
    yield ""
    yield "| procq alone; median (min to max) | µs a no-op | against the first | goal |"
    yield "|---|---|---|---|"
    bases = [figure_of(counted, f"waiting_{count}", "each_us") for count in WAITING]
    for count, figure in zip(WAITING, bases, strict=True):
        yield _row(f"{count:,} tasks wait at once", figure, bases[0], "<= 1.30")
    all_of = [figure_of(counted, f"workers_{count}", "all_us") for count in WORKERS_TRIED]
    for count, figure in zip(WORKERS_TRIED, all_of, strict=True):
        yield _row(f"{count} workers, all of them take part", figure, all_of[0], "")
    with_idle = [(count, figure_of(counted, f"workers_{count}", "two_us")) for count in WORKERS_TRIED if count > 1]
    for count, figure in with_idle:
        yield _row(f"{count} workers, all but 2 sleep in a task", figure, with_idle[0][1], "<= 1.20")
    share = figure_of(counted, "supervisor", "percent")
    if share is not None:
        yield ""
        yield f"CPU of the supervisor at tasks of 10 ms, of one worker's: {share.told(2)} % (goal: under 1 %)."


def _row(title: str, figure: Figure | None, first: Figure | None, goal: str) -> str:
    if figure is None or first is None:
        return f"| {title} | - | - | {goal} |"
    return f"| {title} | {figure.told(1)} | {figure.median / first.median:.2f} | {goal} |"
