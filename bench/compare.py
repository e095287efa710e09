# Compares procq with `concurrent.futures.ProcessPoolExecutor` on the same work; prints a Markdown table.
#
#   python bench/compare.py [--reps 5] [--only noop,start] [--json lines.jsonl]
#
# Each measurement runs in a process of its own, procq and the peer in turn and in alternating order,
# so that what the machine does meanwhile meets both.  A run during which other processes took more
# than a tenth of the machine is repeated.  Linux only: it reads /proc.
import argparse
import ctypes
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from math import inf, isinf
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar, cast

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from bench import tasks
else:
    import tasks  # beside this script

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

PROCQ, PEER = "procq", "ProcessPoolExecutor"
WORKERS: Final = 2

# --- what is measured, each in a fresh process -----------------------------------------------------

# Numbers by name; None stands for "never".
Values = dict[str, float | None]


class Pending(Protocol[R_co]):
    def result(self) -> R_co: ...
    def exception(self) -> BaseException | None: ...


# What both have in common, which is all that is used of either where they are compared.
class Pool(Protocol):
    def submit(self, fn: Callable[..., R], /, *args: object) -> Pending[R]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> object: ...


# Imports inside, so that neither side pays for the other's modules.
def open_pool(subject: str) -> Pool:
    if subject == PROCQ:
        from procq import Queue  # noqa: PLC0415

        return cast("Pool", Queue(workers=WORKERS))
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    return cast("Pool", ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")))


# Waits until every worker has answered.
def warm(pool: Pool, nap: Callable[[float], int] = tasks.nap) -> None:
    pids: set[int] = set()
    while len(pids) < WORKERS:
        pids.update(collect([pool.submit(nap, 0.03) for _ in range(2 * WORKERS)]))


def collect(pendings: list[Pending[R]]) -> list[R]:
    return [pending.result() for pending in pendings]


NOOPS: Final = 20_000


def noop(subject: str) -> Values:
    with open_pool(subject) as pool:
        warm(pool)
        collect([pool.submit(tasks.noop) for _ in range(500)])
        cpu_s, began_at = time.process_time(), time.perf_counter()
        collect([pool.submit(tasks.noop) for _ in range(NOOPS)])
        wall_s = time.perf_counter() - began_at
        return {"per_s": NOOPS / wall_s, "cpu_us": (time.process_time() - cpu_s) / NOOPS * 1e6}


TRIPS: Final = 2000


def trip(subject: str) -> Values:
    with open_pool(subject) as pool:
        warm(pool)
        took_us = []
        for _ in range(TRIPS):
            began_at = time.perf_counter()
            pool.submit(tasks.noop).result()
            took_us.append((time.perf_counter() - began_at) * 1e6)
        return {"median_us": median(took_us), "p99_us": quantiles(took_us, n=100)[-1]}


STARTS: Final = 10
START_SCRIPTS: Final = {
    PROCQ: """\
from procq import Queue
with Queue(workers=2) as queue:
    print(queue.submit(abs, -1).result(), flush=True)
""",
    PEER: """\
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
    print(pool.submit(abs, -1).result(), flush=True)
""",
}


def start(subject: str) -> Values:
    first_ms, exit_ms = [], []
    for _ in range(STARTS):
        began_at = time.perf_counter()
        command = [sys.executable, "-c", START_SCRIPTS[subject]]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as script:
            assert script.stdout is not None
            assert script.stdout.readline() == b"1\n"
            first_ms.append((time.perf_counter() - began_at) * 1e3)
            script.wait()
            exit_ms.append((time.perf_counter() - began_at) * 1e3)
    return {"first_ms": median(first_ms), "exit_ms": median(exit_ms)}


LENGTHS_MS: Final = (1, 10, 100)
# Seconds of work for each worker.
SPIN_S: Final = 4


def efficiency(subject: str, *, length_ms: int) -> Values:
    rounds_per_s = 200_000 / min(tasks.spin(200_000) for _ in range(20))
    rounds = int(rounds_per_s * length_ms / 1000)
    with open_pool(subject) as pool:
        warm(pool)
        began_at = time.perf_counter()
        cpu_s = sum(collect([pool.submit(tasks.spin, rounds) for _ in range(SPIN_S * WORKERS * 1000 // length_ms)]))
        return {"share": cpu_s / (WORKERS * (time.perf_counter() - began_at))}


WORKS: Final = 1000
CULPRIT: Final = 500


def crash(subject: str) -> Values:
    with tempfile.TemporaryDirectory() as folder, open_pool(subject) as pool:
        log = Path(folder, "log")
        warm(pool)
        pendings = [pool.submit(tasks.work_or_die, number, CULPRIT, str(log)) for number in range(WORKS)]
        assert pendings[CULPRIT].exception() is not None
        known_at = time.monotonic()
        lost = sum(pending.exception() is not None for pending in pendings)
        runs = [(int(number), pid, float(at)) for number, pid, at in map(str.split, log.read_text().splitlines())]
    (died_at,) = [at for number, _, at in runs if number == CULPRIT]
    old_pids = {pid for _, pid, at in runs if at <= died_at}
    new_at = min((at for _, pid, at in runs if pid not in old_pids), default=None)
    return {
        "lost": lost,
        "known_ms": (known_at - died_at) * 1e3,
        "new_ms": None if new_at is None else (new_at - died_at) * 1e3,
    }


TIMEOUT_S: Final = 1.0


# procq alone: the peer cannot end a task that runs.
def timeout(_subject: str) -> Values:
    from procq import Queue, task  # noqa: PLC0415
    from procq.errors import AttemptTimeout  # noqa: PLC0415

    grace_s = 0.2
    values: Values = {}
    for name, fn, late_s in (("loop", tasks.loop_forever, 0.0), ("sum", tasks.sum_forever, grace_s)):
        with tempfile.TemporaryDirectory() as folder, Queue(workers=WORKERS, kill_grace=grace_s) as queue:
            # With a task function, or the import of what that needs would be part of the attempt.
            warm(cast("Pool", queue), task(tasks.nap))
            log = Path(folder, "log")
            error = queue.submit(task(fn, timeout=TIMEOUT_S).spec(str(log))).exception()
            known_at = time.monotonic()
            assert isinstance(error, AttemptTimeout)
            values[f"{name}_ms"] = (known_at - float(log.read_text()) - TIMEOUT_S - late_s) * 1e3
    return values


# Submits while every worker is kept, so that all of it waits.
def pending(subject: str, *, count: int) -> Values:
    with tempfile.TemporaryDirectory() as folder, open_pool(subject) as pool:
        warm(pool)
        gate = Path(folder, "gate")
        held = [pool.submit(tasks.hold, str(gate)) for _ in range(WORKERS)]
        ahead = [pool.submit(tasks.noop) for _ in range(200)]  # what a side sends ahead does not wait
        pendings: list[Pending[None] | None] = [None] * count
        gc.collect()
        before_bytes, began_at = anonymous_bytes(), time.perf_counter()
        for number in range(count):
            pendings[number] = pool.submit(tasks.noop)
        wall_s = time.perf_counter() - began_at
        gc.collect()
        each_bytes = (anonymous_bytes() - before_bytes) / count
        drop(pool, gate)
        del held, ahead
    return {"bytes": each_bytes, "per_s": count / wall_s}


# To run what waits would take long, and tell nothing.
def drop(pool: object, gate: Path) -> None:
    from procq import Queue  # noqa: PLC0415

    if isinstance(pool, Queue):
        pool.shutdown(mode="kill")
    else:
        gate.touch()  # what runs cannot be stopped
        cast("ProcessPoolExecutor", pool).shutdown(cancel_futures=True)


BIG_BYTES: Final = 100_000_000
BIGS: Final = 5


def big(subject: str) -> Values:
    data = tasks.make(BIG_BYTES)
    with open_pool(subject) as pool:
        warm(pool)
        argument_ms = [timed_ms(lambda: pool.submit(tasks.size, data).result()) for _ in range(BIGS + 1)]
        result_ms = [timed_ms(lambda: pool.submit(tasks.make, BIG_BYTES).result()) for _ in range(BIGS + 1)]
    # The first of each finds memory that nobody has touched yet.
    return {"argument_ms": median(argument_ms[1:]), "result_ms": median(result_ms[1:])}


def timed_ms(call: Callable[[], object]) -> float:
    began_at = time.perf_counter()
    call()
    return (time.perf_counter() - began_at) * 1e3


# Memory of this process and all below it that is in no file; what they share counts once.
def anonymous_bytes() -> int:
    from psutil import Process  # noqa: PLC0415 - procq brings it

    me = Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                total += int(line.split()[1]) * 1024
    return total


# --- the table -------------------------------------------------------------------------------------


# One line of the table: which value of which measurement, and what procq wants of the ratio.
@dataclass(frozen=True, slots=True)
class Row:
    value: str
    title: str
    goal: str = ""
    digits: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    run: Callable[[str], Values]
    rows: tuple[Row, ...]
    subjects: tuple[str, ...] = (PROCQ, PEER)


MEASUREMENTS: Final[Mapping[str, Measurement]] = {
    "noop": Measurement(
        noop,
        (
            Row("per_s", f"no-op tasks/s ({NOOPS:,} submits, then all results)", ">= 3"),
            Row("cpu_us", "CPU of the submitting process for each of them, µs", digits=1),
        ),
    ),
    "trip": Measurement(
        trip,
        (
            Row("median_us", f"round trip of one no-op at a time, median of {TRIPS:,}, µs", "<= 0.5"),
            Row("p99_us", "99th percentile of the same, µs"),
        ),
    ),
    "start": Measurement(
        start,
        (
            Row("first_ms", f"fresh interpreter to first result, median of {STARTS}, ms", "<= 1"),
            Row("exit_ms", "fresh interpreter to its exit, ms"),
        ),
    ),
    **{
        f"spin{length_ms}": Measurement(
            partial(efficiency, length_ms=length_ms),
            (Row("share", f"efficiency at tasks of {length_ms} ms of plain Python", digits=3),),
        )
        for length_ms in LENGTHS_MS
    },
    "crash": Measurement(
        crash,
        (
            Row("lost", f"results lost when 1 of {WORKS:,} tasks kills its worker, its own included"),
            Row("known_ms", "death of the worker to its task's error, ms", digits=1),
            Row("new_ms", "death of the worker to the first task on a new one, ms", digits=1),
        ),
    ),
    "timeout": Measurement(
        timeout,
        (
            Row("loop_ms", f"timeout of {TIMEOUT_S:g} s, tight Python loop: error late by, ms", digits=1),
            Row(
                "sum_ms",
                f"timeout of {TIMEOUT_S:g} s, C code that never returns: error after timeout + `kill_grace` by, ms",
                digits=1,
            ),
        ),
        (PROCQ,),
    ),
    **{
        name: Measurement(
            partial(pending, count=count),
            (
                Row("bytes", f"{count:,} pending no-ops: bytes each"),
                Row("per_s", f"{count:,} pending no-ops: submits/s"),
            ),
            subjects,
        )
        for name, count, subjects in (("pending", 200_000, (PROCQ, PEER)), ("million", 1_000_000, (PROCQ,)))
    },
    "big": Measurement(
        big,
        (
            Row("argument_ms", "100 MB of bytes as argument, its length back, ms"),
            Row("result_ms", "100 MB of bytes made and returned, ms"),
        ),
    ),
}


# One run of a measurement, and the share of the machine that others took meanwhile.
@dataclass(frozen=True, slots=True)
class Run:
    values: Values
    others: float


@dataclass(slots=True)
class Kept:
    runs: dict[str, list[Run]] = field(default_factory=lambda: {PROCQ: [], PEER: []})
    repeated: int = 0


def table(results: Mapping[str, Kept], limit: float) -> Iterator[str]:
    yield f"| {WORKERS} workers; median (min to max) | {PROCQ} | {PEER} | ratio | goal | disturbed |"
    yield "|---|---|---|---|---|---|"
    for name, kept in results.items():
        runs = kept.runs[PROCQ] + kept.runs[PEER]
        disturbed = f"{sum(run.others > limit for run in runs)} of {len(runs)}"
        if kept.repeated:
            disturbed += f", {kept.repeated} repeated"
        for row in MEASUREMENTS[name].rows:
            ours, theirs = (numbers(kept.runs[subject], row.value) for subject in (PROCQ, PEER))
            cells = (row.title, cell(ours, row), cell(theirs, row), ratio(ours, theirs), row.goal, disturbed)
            yield f"| {' | '.join(cells)} |"


def numbers(runs: list[Run], value: str) -> list[float]:
    found = [run.values[value] for run in runs]
    return [inf if number is None else number for number in found]


def cell(values: list[float], row: Row) -> str:
    if not values:
        return "-"
    shown = ["never" if isinf(value) else f"{value:,.{row.digits}f}" for value in (median(values), *extremes(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def extremes(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def ratio(ours: list[float], theirs: list[float]) -> str:
    if not ours or not theirs or isinf(median(theirs)) or isinf(median(ours)) or not median(theirs):
        return "-"
    return f"{median(ours) / median(theirs):.2f}"


def surroundings() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    return (
        f"{os.cpu_count()} CPUs ({model}), {platform.system()} {platform.release().partition('-')[0]}, "
        f"{platform.python_implementation()} {platform.python_version()}, procq {version('procq')}, "
        f"{time.strftime('%Y-%m-%d')}"
    )


# --- running ---------------------------------------------------------------------------------------

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
RUN_LIMIT_S: Final = 300
# Orphans, such as multiprocessing's resource tracker, end by themselves so soon.
ORPHAN_S: Final = 5


# CPU seconds that the machine has not been idle since it was started; those stolen from it included.
def machine_busy_s() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) * TICK_S


# CPU seconds of this process and of all below it that have been waited for.
def own_busy_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


# Share of the machine that others take while the block runs; use it after the block.
class Others:
    share = 0.0

    def __enter__(self) -> Self:
        self._began_at, self._busy_s, self._own_s = time.perf_counter(), machine_busy_s(), own_busy_s()
        return self

    def __exit__(self, *_error: object) -> None:
        others_s = machine_busy_s() - self._busy_s - (own_busy_s() - self._own_s)
        self.share = max(0.0, others_s / (time.perf_counter() - self._began_at) / (os.cpu_count() or 1))


# Has orphans below this process handed to it, so that all their CPU time is counted and none is left.
def adopt_orphans() -> None:
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def bury_orphans() -> None:
    from psutil import Process, wait_procs  # noqa: PLC0415 - procq brings it

    for process in wait_procs(Process().children(recursive=True), timeout=ORPHAN_S)[1]:
        process.kill()
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def run_once(name: str, subject: str) -> Run:
    command = [sys.executable, __file__, "--one", name, subject]
    with Others() as others:
        try:
            output = subprocess.run(command, stdout=subprocess.PIPE, timeout=RUN_LIMIT_S, check=True).stdout
        finally:
            bury_orphans()
    return Run(json.loads(output), others.share)


# Waits until others leave the machine alone, but no longer than so many seconds.
def wait_for_quiet(limit: float, patience_s: float) -> None:
    ends_at = time.monotonic() + patience_s
    while time.monotonic() < ends_at:
        with Others() as others:
            time.sleep(0.3)
        if others.share <= limit:
            return


# Runs until others disturb it little, a bounded number of times, and keeps the run they disturbed least.
def run_quietly(name: str, subject: str, options: argparse.Namespace, kept: Kept) -> Iterator[Run]:
    runs: list[Run] = []
    while not runs or (runs[-1].others > options.others and len(runs) < options.tries):
        wait_for_quiet(options.others, options.patience)
        runs.append(run_once(name, subject))
        yield runs[-1]
    kept.runs[subject].append(min(runs, key=lambda run: run.others))
    kept.repeated += len(runs) - 1


def compare(options: argparse.Namespace) -> dict[str, Kept]:
    adopt_orphans()
    results: dict[str, Kept] = {}
    for name in options.only:
        kept = results[name] = Kept()
        for rep in range(options.reps):
            subjects = MEASUREMENTS[name].subjects
            for subject in subjects if rep % 2 == 0 else reversed(subjects):
                for run in run_quietly(name, subject, options, kept):
                    line = {"measurement": name, "subject": subject, "rep": rep, "others": run.others, **run.values}
                    print(json.dumps(line), file=sys.stderr)
                    if options.json is not None:
                        with options.json.open("a") as file:
                            print(json.dumps(line), file=file)
    return results


def chosen(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in MEASUREMENTS:
            raise argparse.ArgumentTypeError(f"{name!r}: must be of {', '.join(MEASUREMENTS)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare procq with ProcessPoolExecutor; prints a Markdown table.")
    parser.add_argument("--reps", type=int, default=5, help="runs of each measurement and side (default 5)")
    parser.add_argument("--only", type=chosen, default=list(MEASUREMENTS), help=f"of {','.join(MEASUREMENTS)}")
    parser.add_argument("--json", type=Path, help="append each run to this file as a line of JSON")
    parser.add_argument(
        "--others", type=float, default=0.1, help="share of the machine that others may take (default 0.1)"
    )
    parser.add_argument("--tries", type=int, default=3, help="times that a disturbed run is tried at most (default 3)")
    parser.add_argument(
        "--patience", type=float, default=20, help="longest wait for quiet before a run, s (default 20)"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        name, subject = options.one
        print(json.dumps(MEASUREMENTS[name].run(subject)))
        return
    results = compare(options)
    print(f"{surroundings()}, medians of {options.reps}\n")
    for line in table(results, options.others):
        print(line)


if __name__ == "__main__":
    main()
