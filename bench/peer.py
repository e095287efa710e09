# What a pool must be able to do to be measured, and what follows from that.
#
# A peer is one small class with the pool's own calls in it; it imports its library in `start`, so
# that nobody pays for another's modules.  What a pool has no means for stays as it is here and
# raises `Cannot`; the table then says "-".
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Final

from bench import tasks

WORKERS: Final = 2
WARM_S: Final = 0.03

# What a peer's own submit gives back, and what comes out of it: every peer has its own types for
# them, and several have none at all.
Pending = Any
Value = Any


class Cannot(Exception):  # noqa: N818 - no fault of anybody: what the pool has no means for
    pass


class Peer:
    # As it is called in options, and as it is called in the table.
    name: ClassVar[str]
    title: ClassVar[str]
    # What pip calls it; empty for what comes with Python.
    package: ClassVar[str] = ""
    # Runs `abs(-1)` in a worker and prints the result, as a user of it would write that.
    script: ClassVar[str]
    # The share of the tiny tasks that are run, for those who take over ten times as long as the others.
    pace: ClassVar[float] = 1
    # Fresh interpreters in a row in one run, for those who take seconds to start.
    starts: ClassVar[int] = 10
    # Whether a million pending tasks fit into reasonable time and memory.
    takes_million: ClassVar[bool] = False
    # Whether the system says what its processes used: it does not where a parent ignores their end.
    tells_cpu: ClassVar[bool] = True

    def __init__(self, workers: int = WORKERS) -> None:
        self.workers = workers
        # Its library's pool: with types or without, never with the same ones.
        self.pool: Any = None

    # None if it is not installed.
    @classmethod
    def version(cls) -> str | None:
        if not cls.package:
            return ""
        try:
            return version(cls.package)
        except PackageNotFoundError:
            return None

    # --- what each peer writes ----------------------------------------------------------------

    def start(self) -> None:
        raise NotImplementedError

    def submit(self, _fn: Callable[..., object], /, *_args: object) -> Pending:
        raise Cannot("no submit")

    def result(self, pending: Pending) -> Value:
        return pending.result()

    # One task and its result.
    def call(self, fn: Callable[..., object], /, *args: object) -> Value:
        return self.result(self.submit(fn, *args))

    # All results, by the fastest means the peer has.
    def gather(self, pendings: Sequence[Pending]) -> list[Value]:
        return [self.result(pending) for pending in pendings]

    # What `map` is tried with; the best one counts.
    def chunks(self) -> tuple[int | str, ...]:
        return (500, 2500, 12_500)

    def map(self, _fn: Callable[..., object], _items: Sequence[object], _chunk: int | str) -> list[Value]:
        raise Cannot("no map")

    # One big argument to many tasks, by the way the peer recommends for that.
    def each_with(self, fn: Callable[..., object], shared: object, count: int) -> list[Value]:
        return self.each(fn, [(shared,)] * count)

    # Runs a task that never ends, and comes back with the peer's error once its time was up.
    def run_limited(self, _fn: Callable[..., object], _seconds: float, /, *_args: object) -> None:
        raise Cannot("no limit on a task that runs")

    # Layers of no-ops, each of which needs two of the layer before.
    def graph(self, _layers: int, _width: int) -> None:
        raise Cannot("no dependencies")

    # The regular end.
    def shutdown(self) -> None:
        raise NotImplementedError

    # --- what follows -------------------------------------------------------------------------

    # One task for each tuple of arguments; no chunks.
    def each(self, fn: Callable[..., object], calls: Iterable[tuple[object, ...]]) -> list[Value]:
        return self.gather([self.submit(fn, *args) for args in calls])

    # Waits until every worker has answered.
    def warm(self, nap: Callable[[float], int] = tasks.nap) -> None:
        pids: set[int] = set()
        while len(pids) < self.workers:
            pids.update(self.each(nap, [(WARM_S,)] * (2 * self.workers)))

    # How many of so many tiny tasks it is given.
    def share_of(self, count: int) -> int:
        return int(count * self.pace)
