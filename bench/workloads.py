# What is measured: each workload runs one peer in a fresh process and returns numbers by name.
#
# Both workers have answered before the clock starts, unless the workload is about starting.
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median, quantiles
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TextIO

from bench import limits, tasks
from bench.machine import CPUS, adopt_orphans, anonymous_bytes, descendants, is_alive, kill_workers, seconds_of, watched
from bench.peer import WORKERS, Cannot, Peer
from bench.peers import BARE, PEERS

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

# Numbers by name; None stands for "never".
Values = dict[str, float | None]

NOOPS: Final = 20_000
MAPPED: Final = 100_000
TRIPS: Final = 2000
FLOATS: Final = 12_500_000  # 100 MB
BIGS: Final = 3
SHARERS: Final = 20
MEDIUMS: Final = 10_000
MEDIUM_BYTES: Final = 100_000
# Seconds of work for each worker, by the length of a task in ms; of the longest more, or the last
# task of all, beside an idle worker, would be what is measured.
SPIN_S: Final[Mapping[int, int]] = MappingProxyType({1: 2, 10: 2, 100: 4})
WORKS: Final = 1000
CULPRIT: Final = 500
CRASH_LIMIT_S: Final = 15
TIMEOUT_S: Final = 1.0
NEVER_S: Final = 5
PENDINGS: Final = 200_000
MILLION: Final = 1_000_000
LAYERS: Final = 100
WIDTH: Final = 100
ORPHANED_S: Final = 3


# --- tiny tasks ------------------------------------------------------------------------------------


def noop(peer: Peer) -> Values:
    count = peer.share_of(NOOPS)
    peer.warm()
    peer.each(tasks.noop, [()] * 500)
    cpu_s = time.process_time()
    wall_s = seconds_of(lambda: peer.each(tasks.noop, [()] * count))
    return {"per_s": count / wall_s, "cpu_us": (time.process_time() - cpu_s) / count * 1e6}


def mapped(peer: Peer) -> Values:
    count = peer.share_of(MAPPED)
    items, wanted = list(range(count)), list(range(1, count + 1))
    peer.warm()
    peer.map(tasks.add, items[:2000], peer.chunks()[0])
    rates = []
    for chunk in peer.chunks():
        began_at = time.perf_counter()
        found = peer.map(tasks.add, items, chunk)
        rates.append(count / (time.perf_counter() - began_at))
        assert found == wanted
    return {"per_s": max(rates)}


def trip(peer: Peer) -> Values:
    peer.warm()
    took_us: list[float] = []
    ends_at = time.perf_counter() + 4  # for those who take ten milliseconds
    while len(took_us) < TRIPS and (len(took_us) < TRIPS / 10 or time.perf_counter() < ends_at):
        took_us.append(seconds_of(lambda: peer.call(tasks.noop)) * 1e6)
    return {"median_us": median(took_us), "p99_us": quantiles(took_us, n=100)[-1]}


def graph(peer: Peer) -> Values:
    peer.warm()
    peer.graph(3, 20)
    return {"wall_s": seconds_of(lambda: peer.graph(LAYERS, WIDTH))}


# --- data ------------------------------------------------------------------------------------------


def big(peer: Peer) -> Values:
    import numpy as np  # noqa: PLC0415 - of the extra; without it this workload is left out

    peer.warm(tasks.warm_numpy)
    base: NDArray[float64] = np.arange(FLOATS, dtype=np.float64)
    wanted = float(base.sum())
    first_ms, again_ms, result_ms = [], [], []
    # The first of all finds memory that nobody has touched yet, and does not count.
    for _ in range(BIGS + 1):
        array = base.copy()  # an object that the peer has not seen
        first_ms.append(seconds_of(lambda: check(peer.call(tasks.total, array), wanted)) * 1e3)  # noqa: B023
        again_ms.append(seconds_of(lambda: check(peer.call(tasks.total, array), wanted)) * 1e3)  # noqa: B023
        result_ms.append(seconds_of(lambda: check(len(peer.call(tasks.make, FLOATS)), FLOATS)) * 1e3)
    array = base.copy()
    shared_s = seconds_of(lambda: check(peer.each_with(tasks.total, array, SHARERS), [wanted] * SHARERS))
    return {
        "argument_ms": median(first_ms[1:]),
        "again_ms": median(again_ms[1:]),
        "result_ms": median(result_ms[1:]),
        "shared_ms": shared_s * 1e3,
    }


def check(found: object, wanted: object) -> None:
    assert found == wanted


def medium(peer: Peer) -> Values:
    count = peer.share_of(MEDIUMS)
    data = os.urandom(MEDIUM_BYTES)
    peer.warm()
    peer.each(tasks.echo, [(data,)] * 50)
    wall_s = seconds_of(lambda: check(peer.each(tasks.echo, [(data,)] * count), [data] * count))
    return {"per_s": count / wall_s}


# --- life ------------------------------------------------------------------------------------------


# Here the peer is not started: its script starts it.
def start(peer: Peer) -> Values:
    return limits.time_script(peer.script, peer.starts)


def efficiency(peer: Peer) -> Values:
    rounds_per_s = 200_000 / min(tasks.spin(200_000) for _ in range(20))
    peer.warm()
    values: Values = {}
    for length_ms, spin_s in SPIN_S.items():
        rounds = int(rounds_per_s * length_ms / 1000)
        with watched(alive=True) as others:
            cpu_s = sum(peer.each(tasks.spin, [(rounds,)] * (spin_s * WORKERS * 1000 // length_ms)))
        # With more CPUs than workers, others may have used one that nobody wanted.
        taken_s = others.cpu_s if CPUS <= WORKERS else 0.0
        values[f"share_{length_ms}"] = cpu_s / (WORKERS * others.wall_s - taken_s)
    return values


def pending(peer: Peer) -> Values:
    return wait_in_line(peer, peer.share_of(PENDINGS))


def million(peer: Peer) -> Values:
    if not peer.takes_million:
        raise Cannot("not tried: too slow or too large")
    return wait_in_line(peer, MILLION)


# Submits while every worker is kept, so that all of it waits.
def wait_in_line(peer: Peer, count: int) -> Values:
    with tempfile.TemporaryDirectory() as folder:
        peer.warm()
        held = [peer.submit(tasks.hold, str(Path(folder, "gate"))) for _ in range(WORKERS)]
        ahead = [peer.submit(tasks.noop) for _ in range(200)]  # what a side sends ahead does not wait
        pendings: list[object] = [None] * count
        gc.collect()
        before_bytes, began_at = anonymous_bytes(), time.perf_counter()
        for number in range(count):
            pendings[number] = peer.submit(tasks.noop)
        wall_s = time.perf_counter() - began_at
        time.sleep(0.5)  # threads of the peer may still be at it
        gc.collect()
        each_bytes = (anonymous_bytes() - before_bytes) / count
        del held, ahead
    # What waits is never run: that would take long, and tell nothing.
    return {"bytes": each_bytes, "per_s": count / wall_s}


# --- trouble ---------------------------------------------------------------------------------------


# What became of the tasks of which one kills its worker.  Two threads look: pools may hang here.
class Fate:
    def __init__(self, peer: Peer, log: str) -> None:
        self.kept = 0
        self.known_at: float | None = None
        self._peer, self._log = peer, log

    def watch(self, limit_s: float) -> None:
        watchers = [threading.Thread(target=self._run, daemon=True)]
        watchers[0].start()
        watchers[0].join(limit_s)

    def _run(self) -> None:
        calls = [(number, CULPRIT, self._log) for number in range(WORKS)]
        try:
            pendings = [self._peer.submit(tasks.work_or_die, *call) for call in calls]
        except Cannot:
            self._run_at_once(calls)
            return
        culprit = threading.Thread(target=self._await_error, args=(pendings[CULPRIT],), daemon=True)
        culprit.start()
        for number, pending in enumerate(pendings):
            if number != CULPRIT:
                with suppress(Exception):
                    self._peer.result(pending)
                    self.kept += 1
        culprit.join()

    def _run_at_once(self, calls: list[tuple[int, int, str]]) -> None:
        try:
            self.kept = len(self._peer.each(tasks.work_or_die, calls))
        except Exception:  # noqa: BLE001 - every peer has its own
            self.known_at = time.monotonic()

    def _await_error(self, pending: object) -> None:
        try:
            self._peer.result(pending)
        except Exception:  # noqa: BLE001
            self.known_at = time.monotonic()


def crash(peer: Peer) -> Values:
    peer.warm()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        fate = Fate(peer, str(log))
        fate.watch(CRASH_LIMIT_S)
        runs = [(int(number), int(pid), float(at)) for number, pid, at in map(str.split, log.read_text().splitlines())]
    died_at = min(at for number, _, at in runs if number == CULPRIT)  # some try it again
    old_pids = {pid for _, pid, at in runs if at <= died_at}
    new_at = min((at for _, pid, at in runs if pid not in old_pids), default=None)
    return {
        "lost": WORKS - fate.kept,
        "known_ms": None if fate.known_at is None else (fate.known_at - died_at) * 1e3,
        "new_ms": None if new_at is None else (new_at - died_at) * 1e3,
    }


def timeout(peer: Peer) -> Values:
    return {"late_ms": late_ms(peer, tasks.loop_forever, grace_s=0)}


# C code must be killed: an error while it goes on and on is not the end of it.


def deaf(peer: Peer) -> Values:
    return {"late_ms": late_ms(peer, tasks.sum_forever, grace_s=getattr(peer, "kill_grace_s", 0), dead=True)}


# From the limit, counted from the task's own first act, to the error, and to the end of its process if that is asked.
def late_ms(peer: Peer, fn: Callable[[str], None], *, grace_s: float, dead: bool = False) -> float | None:
    peer.warm()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        ended: list[tuple[float, BaseException]] = []
        watcher = threading.Thread(target=await_limit, args=(peer, fn, str(log), ended), daemon=True)
        watcher.start()
        watcher.join(TIMEOUT_S + grace_s + NEVER_S)
        if not ended:
            return None
        (known_at, error), *_ = ended
        if isinstance(error, Cannot):
            raise error
        began, pid, *_ = log.read_text().split()
        began_at = float(began)
    gives_up_at = known_at + NEVER_S
    while dead and is_alive(int(pid)):
        if time.monotonic() > gives_up_at:
            return None
        time.sleep(0.001)
        known_at = time.monotonic()
    return (known_at - began_at - TIMEOUT_S - grace_s) * 1e3


def await_limit(peer: Peer, fn: Callable[[str], None], log: str, ended: list[tuple[float, BaseException]]) -> None:
    try:
        peer.run_limited(fn, TIMEOUT_S, log)
    except BaseException as error:  # noqa: BLE001 - every peer has its own, and some no Exception
        ended.append((time.monotonic(), error))


# The program that uses the peer is killed while both workers are busy.
def orphans(peer: Peer) -> Values:
    adopt_orphans()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with subprocess.Popen([sys.executable, "-m", "bench.measure", "keep_busy", peer.name, str(log)]) as program:
            try:
                await_lines(log, WORKERS)
                pids = descendants()
            finally:
                killed_at = time.monotonic()
                program.kill()
            program.wait()
            gone_at = None
            while time.monotonic() < killed_at + ORPHANED_S:
                if not any(map(is_alive, pids)):
                    gone_at = time.monotonic()
                    break
                time.sleep(0.001)
    left = sum(map(is_alive, descendants()))
    return {"left": left, "gone_ms": None if gone_at is None else (gone_at - killed_at) * 1e3}


def await_lines(log: Path, count: int) -> None:
    ends_at = time.monotonic() + 30
    while not log.exists() or len(log.read_text().splitlines()) < count:
        if time.monotonic() > ends_at:
            raise TimeoutError("the tasks did not start")
        time.sleep(0.01)


def keep_busy(peer: Peer, log: str) -> None:
    peer.start()
    peer.warm()
    peer.each(tasks.loop_forever, [(log,)] * WORKERS)


# --- running one of them ---------------------------------------------------------------------------

RUNS: Final[Mapping[str, Callable[[Peer], Values]]] = MappingProxyType(
    {
        run.__name__: run
        for run in (
            noop, mapped, trip, big, medium, start, efficiency, pending, million, graph, crash, timeout, deaf, orphans,
        )
    }
)  # fmt: skip
# These start the peer themselves, in a process below.
NOT_STARTED: Final = (start, orphans)
SHUTDOWN_S: Final = 3


def run(workload: str, peer: Peer) -> Values:
    measured = RUNS[workload]
    if measured not in NOT_STARTED:
        peer.start()
    return measured(peer)


# Prints one line of JSON: the numbers, or why there are none.  Peers print, too: that goes to standard error.
def main(workload: str, subject: str, *arguments: str) -> None:
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        measure(workload, subject, *arguments, output=output)


def measure(workload: str, subject: str, *arguments: str, output: TextIO) -> None:
    if workload == keep_busy.__name__:
        keep_busy(PEERS[subject](), *arguments)
        return
    if workload not in RUNS:
        from bench.alone import ALONE  # noqa: PLC0415 - it uses this module

        print(json.dumps(ALONE[workload]()), file=output)
        return
    if subject == BARE:
        print(json.dumps(limits.LIMITS[workload]()), file=output)
        return
    peer = PEERS[subject]()
    try:
        answer: Mapping[str, object] = run(workload, peer)
    except Cannot as reason:
        answer = {"cannot": str(reason)}
    except ModuleNotFoundError as missing:
        answer = {"cannot": f"{missing.name} is not installed"}
    print(json.dumps(answer), file=output, flush=True)
    leave(peer)


# Properly if the peer still can, and at once with all its processes if not.
def leave(peer: Peer) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody needs to read how it breaks down
    ending = threading.Thread(target=end, args=(peer,), daemon=True)
    ending.start()
    ending.join(SHUTDOWN_S)
    kill_workers(1)
    os._exit(0)


def end(peer: Peer) -> None:
    with suppress(BaseException):
        peer.shutdown()
