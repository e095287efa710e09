"""Weighs workers: how much memory each holds, and whether that is too much (contract D10).

What counts is the anonymous resident memory of the worker's process and of every process below it:
what they have for themselves, and what is free again when they are killed.  Files that are mapped
the kernel gives up by itself, and what `share` hands out is there once for all, and stays.  Decides
how it is measured and how often; what becomes of a worker is the engine's.  Nothing is measured
but while attempts run, and for one look after.

Measured 2026-11, a process with 4 threads and 300 MB: its line in /proc/PID/statm 5 us, the same by
psutil 9 to 23 us; to find its children in /proc/PID/task/*/children 23 us, by psutil 930 us, since
that reads the whole process table; exact shares (smaps_rollup) 4 ms, by psutil as much.  So /proc
is read directly, and shares only where they decide.
"""

import os
import time
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias, final

from procq.engine.local.roster import State, Worker
from procq.engine.protocol import Attempt

#: From one look at all workers to the next while anything runs, in seconds.  Fresh memory comes at
#: 3 to 10 GB a second at most, so a worker can overshoot by some hundred MB, and 8 workers cost 0.4 % of a
#: processor; ten times as often would cost ten times as much and still not stop a single big request.
LOOK_EVERY_S: Final = 0.05
#: Looks are so many times as far apart as they take, so that they never take more than 2 % of a processor.
_COST_FACTOR: Final = 50
#: After shorter attempts (seconds) a worker is not weighed at once but only in the next look.
BRIEF_S: Final = 0.010
#: At most so many processes of a worker are counted: a task that forks without end must not hold up the loop.
_PROCESSES_MAX: Final = 200
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


#: A worker, the attempt that it runs, if any, and its fence: what the weight will be that of.
InQuestion: TypeAlias = tuple[Worker, Attempt | None, int]


class Load(NamedTuple):
    """What a worker holds."""

    used_bytes: int
    #: How many processes that is, its own included.
    processes: int
    #: What its own process holds.
    own_bytes: int


class Weighed(NamedTuple):
    """What a worker held while an attempt ran, or none."""

    worker: Worker
    attempt: Attempt | None
    fence: int
    load: Load


@final
class MemoryWatch:
    """The limits of every worker, and when to look next.

    Args:
        hard_bytes: Who holds more is killed; None: nobody is.
        recycle_bytes: Who holds more after an attempt is replaced; None: as `hard_bytes`, for an attempt
            must not be charged with what those before it left.

    Attributes:
        is_awaited: Whether a look is due some day, or under way.
        is_due: Whether it is due now.
    """

    __slots__ = ("_hard_bytes", "_pause_s", "_recycle_bytes", "is_awaited", "is_due")

    def __init__(self, *, hard_bytes: int | None, recycle_bytes: int | None) -> None:
        unlimited = float("inf")
        self._hard_bytes = unlimited if hard_bytes is None else hard_bytes
        self._recycle_bytes = min(self._hard_bytes, unlimited if recycle_bytes is None else recycle_bytes)
        self._pause_s = LOOK_EVERY_S
        self.is_awaited = False
        self.is_due = False

    def next_look(self, now: float) -> float:
        """Note that a look is awaited, and return when it is due."""
        self.is_awaited = True
        return now + self._pause_s

    def fall_due(self) -> None:
        """Note that it is time to look."""
        self.is_due = True

    def to_weigh(self, workers: Iterable[Worker]) -> list[InQuestion]:
        """Begin a look: return the workers that run something, or did since they were last weighed."""
        self.is_due = False
        in_question = [(worker, worker.running, worker.fence) for worker in workers if is_in_question(worker)]
        for worker, attempt, _ in in_question:
            worker.weighed = attempt is None  # until it runs something again
        return in_question

    def weigh(self, workers: list[InQuestion]) -> list[Weighed]:
        """Weigh workers; may take milliseconds, so without the lock."""
        began_at = time.monotonic()
        weighed = [
            Weighed(worker, attempt, fence, load_of(worker.pid, exact_above=self._recycle_bytes))
            for worker, attempt, fence in workers
        ]
        self._pause_s = max(LOOK_EVERY_S, _COST_FACTOR * (time.monotonic() - began_at))
        return weighed

    def is_too_much(self, load: Load) -> bool:
        """Whether a worker with so much has to be killed."""
        return load.used_bytes > self._hard_bytes

    def is_heavy(self, load: Load) -> bool:
        """Whether a worker that holds so much after an attempt has to be replaced."""
        return load.used_bytes > self._recycle_bytes

    def has_stayed_heavy(self, worker: Worker) -> bool:
        """Whether a worker that has just ended an attempt has to be replaced.

        With the lock held, so only its own process is looked at, in 5 us: the processes below it are
        for the next look.  If that was what found it too heavy they count here too, and in full even
        what they share, as telling that apart takes too long: at worst a worker too many is replaced.
        """
        if worker.heavy:
            worker.heavy = False
            return self.is_heavy(load_of(worker.pid))
        if time.monotonic() - worker.begun_at < BRIEF_S:
            return False
        return _anonymous_bytes(worker.pid) > self._recycle_bytes

    def fault(self, load: Load) -> str:
        """Say what is wrong with a worker that holds too much."""
        below = load.processes - 1
        family = f"it and {below} {'process' if below == 1 else 'processes'} below it" if below else "it"
        # Rounded up, so that what is too much is never the limit itself.
        used, limit = -(-load.used_bytes // 10**6), int(self._hard_bytes) / 10**6
        return f"{family} used {used} MB, more than max_memory_per_worker={limit:.10g} MB"


def is_in_question(worker: Worker) -> bool:
    """Whether a worker is to be weighed in the next look."""
    return worker.state in {State.BUSY, State.STOPPING} or (worker.state is State.IDLE and not worker.weighed)


def load_of(pid: int, *, exact_above: float = float("inf")) -> Load:
    """Return what a process and all below it hold; 0 bytes if it is gone.

    Args:
        pid: The process.
        exact_above: Processes that were forked share memory.  Only if the plain sum, in which that
            counts for each of them, is more than this, they are counted by their shares.
    """
    family = _family(pid)
    own_bytes, *below_bytes = map(_anonymous_bytes, family)
    used_bytes = own_bytes + sum(below_bytes)
    if below_bytes and used_bytes > exact_above:
        used_bytes = sum(map(_share_bytes, family))
    return Load(used_bytes, len(family), own_bytes)


def _family(pid: int) -> list[int]:
    """Return a process and those below it, as far as they have not been orphaned."""
    family = [pid]
    for member in family:  # grows while it is walked
        if len(family) >= _PROCESSES_MAX:
            break
        family += _children(member)
    return family[:_PROCESSES_MAX]


def _children(pid: int) -> list[int]:
    """Return the children of a process, which the kernel lists by the thread that started them."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - twice as fast
            children += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it is gone, or the kernel was built without the list
        pass
    return children


def _anonymous_bytes(pid: int) -> int:
    """Return the resident memory of a process that is no file's; takes no lock of its, so it never waits for it.

    The kernel counts by processor and sums up roughly: with many of them it may be some MB more or less.
    """
    try:
        _, resident, shared, *_ = map(int, _read(f"/proc/{pid}/statm").split())
    except (OSError, ValueError):  # it is gone
        return 0
    return (resident - shared) * _PAGE_BYTES


def _share_bytes(pid: int) -> int:
    """Return the same, each page divided by the number of processes that share it."""
    try:
        text = _read(f"/proc/{pid}/smaps_rollup")
        start = text.index(b"\nPss_Anon:") + 10
        return int(text[start : text.index(b"kB", start)]) * 1024
    except (OSError, ValueError):  # it is gone, or not ours to look into; or Linux before 5.3
        return _anonymous_bytes(pid)


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
