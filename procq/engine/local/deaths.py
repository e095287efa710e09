"""Puts into words how a worker died (contract D4): exit code or signal, memory, the OOM killer.

Knows nothing of attempts and blame: the engine decides whose death it was.
"""

from typing import final

from procq.engine.local import wire
from procq.engine.local.birth import Exit
from procq.engine.local.machine import read_text


@final
class OomWatch:
    """Tells whether the kernel's OOM killer has been at work since it was last asked."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen = oom_kills()

    def has_struck(self) -> bool | None:
        """Return whether it has killed any process since; None where the kernel does not count."""
        before, self._seen = self._seen, oom_kills()
        return None if before is None or self._seen is None else self._seen > before


def oom_kills(vmstat: str = "/proc/vmstat") -> int | None:
    """Return how many processes the OOM killer has killed on this machine since it started.

    The counter `oom_kill` of /proc/vmstat covers the whole machine and every cgroup (Linux 4.13
    and later); None elsewhere.
    """
    try:
        for line in read_text(vmstat).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def crash_text(pid: int, leave: Exit, *, fault: str | None, oom_struck: bool | None, unread_bytes: int = 0) -> str:
    """Say how the worker that ran an attempt died.

    Args:
        pid: The worker's process id.
        leave: How its process ended.
        fault: Why procq killed it, if it did.
        oom_struck: Whether the OOM killer was at work; None if that is not known.
        unread_bytes: How long the call is if it had not read all of that; else 0.
    """
    if fault is not None:
        text = f"the worker (pid {pid}) was killed because {fault}"
    elif leave.exit_code == wire.EXIT_PIPES_LOST:
        text = f"the worker (pid {pid}) lost its pipes: the task closed descriptors that are not its own"
    else:
        amid = f"was sent the {unread_bytes / 1e6:.1f} MB of this task" if unread_bytes else "ran this task"
        text = f"the worker (pid {pid}) {how_it_ended(leave)} while it {amid}"
        if leave.signal == "SIGKILL" and oom_struck is not False:
            text += "; procq did not kill it, so it was likely the OOM killer"
    if leave.max_rss_bytes:
        text += f"; its memory peaked at {leave.max_rss_bytes / 2**20:.0f} MiB"
    return text


def start_failure_text(leave: Exit, *, error: wire.StartFailed | None, fault: str | None) -> str:
    """Say why a worker never became ready."""
    if error is not None:
        return f"{error.error_type}: {error.message}\n{error.traceback}".rstrip()
    return fault or f"a worker {how_it_ended(leave)} before it was ready"


def how_it_ended(leave: Exit) -> str:
    """Say how a process ended, as the rest of a sentence."""
    if leave.signal is not None:
        return f"was killed by {leave.signal}"
    if leave.exit_code is not None:
        return f"exited with code {leave.exit_code}"
    return "ended in an unknown way (another part of this program reaped it)"
