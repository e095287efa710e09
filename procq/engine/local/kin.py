"""Finds the processes below a worker, and kills one of them and no other (DESIGN 5).

By hand and not with psutil, whose import would take 10 to 20 ms in the supervisor's thread, in front
of the first attempt that is stopped; and a pidfd names a process for certain, which a number does not.
Linux only, as all of the local engine.
"""

import os
import signal

#: A process: its number, and when it began, in the kernel's ticks since the machine started.  Both
#: together are no other process's, ever.
Process = tuple[int, int]


def descendants(pid: int) -> list[Process]:
    """Return all processes below one, dead ones that nobody has waited for included.

    Reads the whole process table, some 8 us each: only there the kernel tells of all children.

    Raises:
        OSError: The table cannot be read, say for want of a descriptor.
    """
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names, not paths
        if name.isdigit() and (found := _look_up(int(name))) is not None:
            parent, began_at = found
            children.setdefault(parent, []).append((int(name), began_at))
    below = list(children.get(pid, ()))
    for process in below:  # grows while it is walked
        below += children.get(process[0], ())
    return below


def kill(process: Process) -> None:
    """Kill a process, if it still lives.

    Raises:
        OSError: It cannot be reached, say for want of a descriptor, or because it is another user's now.
    """
    pid, began_at = process
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # Asked after it was opened: if this is the process, then so is what the pidfd names.
        found = _look_up(pid)
        if found is not None and found[1] == began_at:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:  # dead, and waited for, in this very moment
        pass
    finally:
        os.close(pidfd)


def _look_up(pid: int) -> tuple[int, int] | None:
    """Return a process's parent and when it began; None if there is none (any more).

    Format: proc(5), /proc/pid/stat.  The name, in parentheses, may hold anything; behind it stand the
    state, the parent, and as the 20th field the start.
    """
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(stat, 4096)
        finally:
            os.close(stat)
        fields = text[text.rindex(b")") + 1 :].split()
        return int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
