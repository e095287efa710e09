"""What this process may use of the machine: processors and memory."""

import os


def usable_cpus() -> int:
    """Count the processors this process may use: affinity, cut down by a cgroup's quota (H1)."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cpus = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, cpus if quota is None else min(cpus, int(quota)))


def _cgroup_quota(root: str = "/sys/fs/cgroup") -> float | None:
    """Return how many processors' worth of time the cgroup grants, or None for no bound.

    Format: `cpu.max` of cgroup v2 holds "quota period" in microseconds or "max period"
    (Linux, Documentation/admin-guide/cgroup-v2.rst); v1 has the two in files of their own.
    """
    try:
        quota, period = read_text(f"{root}/cpu.max").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int(read_text(f"{root}/cpu/cpu.cfs_quota_us"))
        period_us = int(read_text(f"{root}/cpu/cpu.cfs_period_us"))
    except (OSError, ValueError):
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def read_text(path: str) -> str:
    """Read one of the kernel's files.

    Raises:
        OSError: It is not there.
    """
    # As UTF-8, which ASCII is: Python has loaded that, and would have to load the other.
    with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is 2 ms more for everybody
        return file.read()


def quarter_of_memory() -> int:
    """Return a quarter of the memory that is available now, in bytes (contract C6)."""
    import psutil  # noqa: PLC0415 - 20 ms that most queues never need

    return int(psutil.virtual_memory().available) // 4
