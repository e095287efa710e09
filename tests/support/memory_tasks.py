"""Tasks that take memory, for the tests of its limits.  Workers import this module."""

import os
import sys
import time

from tests.support.arrays import Array
from tests.support.process_tasks import announced_sleep, pass_gate, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal  # the C module has no stubs
else:
    import _signal as signal  # without the enums

#: What leaky tasks keep.
_kept: list[bytearray] = []


def _taken(size: int) -> bytearray:
    """Take memory and touch every page of it."""
    taken = bytearray(size)
    taken[::4096] = b"x" * len(range(0, size, 4096))
    return taken


def limit_address_space(size: int) -> None:
    """Let this process take no more than so much memory besides what it has; for an initializer."""
    import resource  # noqa: PLC0415 - not for the other tasks

    with open("/proc/self/statm") as file:  # noqa: PTH123 - pathlib is heavy
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + size, resource.RLIM_INFINITY))


def die_of_big_buffers() -> None:
    """Be killed as soon as memory for a big buffer is wanted; for an initializer."""
    from procq.engine.local import transport  # noqa: PLC0415 - the worker's innards

    transport.room = _die  # type: ignore[attr-defined,assignment]


def _die(_size: int) -> memoryview:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def read_big_buffers_slowly() -> None:
    """Take the memory for a big buffer, and never come to read it; for an initializer."""
    from procq.engine.local import transport  # noqa: PLC0415

    transport.room = hold  # type: ignore[attr-defined,assignment]


def hold(size: int) -> None:
    """Hold memory and never end."""
    taken = _taken(size)
    while taken:
        time.sleep(3600)  # noqa: TID251


def hold_or_pid(size: int) -> int:
    """Hold memory and never end; return the pid if it is none."""
    if size:
        hold(size)
    return os.getpid()


def hold_first(path: str, size: int) -> str:
    """Hold memory and never end the first time; later return at once."""
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is heavy
        say(path, "first")
        hold(size)
    return "light"


def hold_against_sigterm(path: str, size: int) -> None:
    """Take memory only once it was asked to stop, and go on for ever."""
    try:
        announced_sleep(path)
    finally:
        hold(size)


def hold_in_child(path: str, size: int) -> None:
    """Have a child hold memory, tell its pid, and never end."""
    import subprocess  # noqa: PLC0415 - heavy

    code = f"import time\ntaken = b'x' * {size}\nprint(flush=True)\ntime.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    say(path, child.pid)
    child.wait()


def share_with_children(path: str, size: int, children: int) -> str:
    """Hold memory, fork children that share it, and wait at the gate."""
    taken = _taken(size)
    end, keep_open = os.pipe()
    pids = []
    for _ in range(children):
        pid = os.fork()
        if not pid:
            os.close(keep_open)
            os.read(end, 1)
            os._exit(0)
        pids.append(pid)
    pass_gate(path)
    os.close(keep_open)
    for pid in pids:
        os.waitpid(pid, 0)
    os.close(end)
    return f"{len(taken)}"


def leak(size: int, seconds: float = 0.0) -> int:
    """Keep memory for good, and return the pid."""
    _kept.append(_taken(size))
    time.sleep(seconds)  # noqa: TID251
    return os.getpid()


def borrow(path: str, size: int) -> int:
    """Hold memory at the gate, give it back, and return the pid."""
    taken = _taken(size)
    pass_gate(path)
    del taken
    return os.getpid()


def read_through(path: str, data: Array) -> int:
    """Read every page, wait at the gate, and return how many bytes there are."""
    assert sum(data.view[::4096])
    pass_gate(path)
    return len(data.view)


def pid_after(seconds: float) -> int:
    time.sleep(seconds)  # noqa: TID251
    return os.getpid()


def leave_child(path: str, size: int) -> int:
    """Leave a child behind that holds memory, and return the pid."""
    import subprocess  # noqa: PLC0415 - heavy

    code = f"import time\ntaken = b'x' * {size}\nprint(flush=True)\ntime.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    say(path, child.pid)
    child.returncode = 0  # it is waited for by nobody
    return os.getpid()
