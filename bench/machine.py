# What the machine does, and what others do with it meanwhile.  Linux only: it reads /proc.
import ctypes
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from psutil import Error, Process, wait_procs  # procq brings it

TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
CPUS: Final = os.cpu_count() or 1
# Orphans, such as multiprocessing's resource tracker, end by themselves so soon.
ORPHAN_S: Final = 5


def describe() -> str:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    return (
        f"{CPUS} CPUs ({model}), {platform.system()} {platform.release().partition('-')[0]}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


# --- CPU time --------------------------------------------------------------------------------------


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


# The same of all below it that live, too.
def tree_busy_s() -> float:
    total = own_busy_s()
    for process in Process().children(recursive=True):
        with suppress(Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


# What others do while a block runs; filled in when it ends.
@dataclass(slots=True)
class Others:
    cpu_s: float = 0.0
    wall_s: float = 0.0

    # Of the whole machine.
    @property
    def share(self) -> float:
        return self.cpu_s / self.wall_s / CPUS


# To know what others did takes longer while processes of this run live: they have to be looked at.
@contextmanager
def watched(*, alive: bool = False) -> Iterator[Others]:
    own = tree_busy_s if alive else own_busy_s
    others = Others()
    own_s, busy_s, began_at = own(), machine_busy_s(), time.perf_counter()
    try:
        yield others
    finally:
        others.wall_s = time.perf_counter() - began_at
        busy_s = machine_busy_s() - busy_s
        others.cpu_s = max(0.0, busy_s - (own() - own_s))


# Waits until others leave the machine alone, but no longer than so many seconds.
def wait_for_quiet(limit: float, patience_s: float) -> None:
    ends_at = time.monotonic() + patience_s
    while time.monotonic() < ends_at:
        with watched() as others:
            time.sleep(0.3)
        if others.share <= limit:
            return


def seconds_of(call: Callable[[], object]) -> float:
    began_at = time.perf_counter()
    call()
    return time.perf_counter() - began_at


# --- memory ----------------------------------------------------------------------------------------


# Memory of this process and all below it that is in no file; what they share counts once.
def anonymous_bytes() -> int:
    me = Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                total += int(line.split()[1]) * 1024
    return total


# --- processes -------------------------------------------------------------------------------------


# Has orphans below this process handed to it, so that all their CPU time is counted and none is left.
def adopt_orphans() -> None:
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


# Waits for all that is below this process, and kills what does not go.
def bury_orphans() -> None:
    kill_workers(ORPHAN_S)
    for process in wait_procs(Process().children(recursive=True), timeout=ORPHAN_S)[1]:
        process.kill()
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


# Kills what is left below this process after so long, except who cleans up when this process has gone.
def kill_workers(patience_s: float) -> None:
    others = [process for process in Process().children(recursive=True) if not _is_tracker(process)]
    for process in wait_procs(others, timeout=patience_s)[1]:
        process.kill()


# It removes semaphores and files once all have gone that could use them.
def _is_tracker(process: Process) -> bool:
    try:
        return any("resource_tracker" in word for word in process.cmdline())
    except Error:
        return False


def descendants() -> list[int]:
    return [process.pid for process in Process().children(recursive=True)]


# Neither gone nor dead and only not yet waited for.
def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
