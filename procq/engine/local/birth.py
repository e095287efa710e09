"""Starts workers, ends them and buries them: the supervisor's side (DESIGN 5, contract G5, H1).

Decides how a process comes to life and what must not outlive it; when that happens is the
engine's.  Rule: once `spawn` has returned, whatever befalls supervisor or worker, `kill`, `reap`
and `close` leave no process of the worker's group and no descriptor.
"""

import contextlib
import functools
import os
import resource
import signal
import sys
import threading
import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, final

from procq.engine.local import kin, record, wire
from procq.engine.local.capture import Output
from procq.engine.local.transport import Channel, above_standard_streams
from procq.errors import UsageError, WorkerStartError
from procq.parcel import Payload
from procq.payload import is_loading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: What a worker's interpreter runs.  Its arguments: where procq lies, and the descriptors.
#: `-c` puts the current directory first on `sys.path` and procq's own place may hold anything,
#: so the standard modules are imported before either could stand in for them.
_BOOT: Final = """\
import sys
sys.path[:] = [place for place in sys.path if place]
import _pickle, _socket, fcntl, functools, select, struct
sys.path.insert(0, sys.argv[1])
from procq.engine.local import worker
worker.main(sys.argv[2:])
"""
_ROOT: Final = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))  # noqa: PTH100, PTH118, PTH120

#: How many threads numeric libraries start.  Each takes all CPUs otherwise, and workers together
#: would use the machine several times over (contract H4).
_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "BLIS_NUM_THREADS",
)  # fmt: skip

#: What Python ignores and a new program should not: ignored signals stay ignored in it.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
#: Flags that are set without an option, or by -X, which is looked at apart.
_USUAL_FLAGS: Final = frozenset(
    {"hash_randomization", "utf8_mode", "int_max_str_digits", "gil", "thread_inherit_context", "context_aware_warnings"}
)

#: Held while a worker is born and while this process forks, so that a fork meets either all of
#: a worker's descriptors in `_WORKERS` or none open.  Re-entrant: a signal handler may fork.
_BIRTH: Final = threading.RLock()
#: The workers whose descriptors are open.  Global because a fork is the whole process's.
_WORKERS: "Final[weakref.WeakSet[WorkerProcess]]" = weakref.WeakSet()


# Named tuples and no `pathlib`: with `dataclasses` that would be 7 ms more for whoever starts a queue.
class WorkerConfig(NamedTuple):
    """What a worker is told at its birth, besides the supervisor's `sys.path` and `sys.argv`."""

    worker_id: int
    #: How many workers share the machine, and its usable CPUs.
    workers: int
    cpus: int
    #: Paths of jobs files by module name (`loader.known()`).
    jobs: "Mapping[str, str]" = MappingProxyType({})
    #: The pickled call of the initializer, or empty.
    initializer: Payload = b""
    #: Whether what its attempts write to the standard streams is captured.
    capture: bool = False


class Exit(NamedTuple):
    """How a worker ended; all None if somebody else reaped it."""

    exit_code: int | None = None
    #: The name of the signal that ended it.
    signal: str | None = None
    #: Highest resident memory of the worker or a child it had waited for; 0 if unknown, which it
    #: also is when it stayed below the supervisor's own.
    max_rss_bytes: int = 0


def check_platform() -> None:
    """Refuse a system that lacks what the local engine is built on.

    Raises:
        WorkerStartError: This is not Linux.
    """
    if not hasattr(os, "pidfd_open") or not hasattr(os, "eventfd"):
        raise WorkerStartError(f"the local engine needs Linux for now; this is {sys.platform}")


def prepare() -> None:
    """Import, in the thread that opens the queue, what `spawn` needs in another one, where it might have to wait."""
    _interpreter_options()


def check_not_imported() -> None:
    """Refuse a queue that is started by a module as it is imported for a task: its workers would import it, too.

    Raises:
        UsageError: This one is.
    """
    if is_loading():
        raise UsageError(
            "a Queue is started as this worker imports the module of a task, and its workers would do the same without "
            'end; start it in a function, or under `if __name__ == "__main__":`'
        )


def spawn(config: WorkerConfig) -> "WorkerProcess":
    """Start a worker and send it its HELLO; it answers READY or START_FAILED.

    Takes 1-2 ms, until the new program is loaded.  If the initializer is big,
    `channel.sending` is true afterwards.

    Raises:
        WorkerStartError: The system gives no process or no descriptor.
    """
    if not sys.executable:
        raise WorkerStartError("cannot start a worker: sys.executable does not name a Python interpreter")
    _close_in_forks()
    hello = wire.Hello(
        config.worker_id,
        cpus=config.cpus,
        workers=config.workers,
        path=_texts(sys.path),
        argv=_texts(getattr(sys, "argv", ())),
        jobs=config.jobs,
        initializer=config.initializer,
        levels=record.levels(),
        disable=record.disabled_up_to(),
    )
    worker = WorkerProcess()
    try:
        with _BIRTH:
            worker.start(config)
        with contextlib.suppress(wire.WireError):  # dead already, which its death will tell
            worker.channel.send(wire.pack_hello(hello))
    except OSError as error:
        worker.abandon()
        raise WorkerStartError(f"cannot start a worker: {error}") from error
    except BaseException:
        worker.abandon()
        raise
    return worker


@final
class WorkerProcess:
    """A worker as the supervisor sees it.  Not thread-safe.

    Attributes:
        pid: Its process id, also the id of its group and session.
        pidfd: Readable once it is dead.
        channel: The sockets to it.
        output: What its attempts write, if that is captured.
    """

    __slots__ = (
        "__weakref__", "_channel", "_descendants", "_exit", "_inherited_rss", "_switch", "output", "pid", "pidfd",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pid = 0
        self.pidfd = -1
        self._channel: Channel | None = None
        self.output: Output | None = None
        #: The only write end of the dead man's switch; -1 once closed.
        self._switch = -1
        #: Known processes below the worker, which may have left its group; as keys.
        self._descendants: dict[kin.Process, None] = {}
        self._exit: Exit | None = None
        #: Any peak of memory up to this is not the worker's but was inherited; unit of `ru_maxrss`.
        self._inherited_rss = 0

    @property
    def channel(self) -> Channel:
        """The sockets to the worker."""
        assert self._channel is not None, "set by start"
        return self._channel

    def start(self, config: WorkerConfig) -> None:
        """Make the process; called once, by `spawn`.

        Raises:
            OSError: The system gives no process or no descriptor; then `close` cleans up.
        """
        _WORKERS.add(self)
        self._channel = Channel()
        switch_end, self._switch = map(above_standard_streams, os.pipe())
        try:
            if config.capture:
                self.output = Output()
            fds = (*self._channel.worker_fds, switch_end, *(() if self.output is None else self.output.worker_fds))
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *_interpreter_options(), "-c", _BOOT, _ROOT, *map(str, fds)],
                _environment(config),
                file_actions=_hand_over(fds),
                setsid=True,
                setsigdef=_IGNORED_BY_PYTHON,
            )
        finally:
            os.close(switch_end)
        # A new program starts with the peak of the one that started it.
        self._inherited_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._channel.close_worker_ends()
        if self.output is not None:
            self.output.close_worker_ends()
        self.pidfd = _sentinel(self.pid)

    def ask(self) -> None:
        """Ask the worker's task to stop: SIGTERM to the worker itself, not to what it started."""
        if self._is_ours():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def descendants(self) -> int:
        """Take note of every process below the worker, for `kill`.

        Needed for those that left the worker's group.  To be called while the worker lives,
        as its death makes them nobody's.  Reads the process table: a millisecond or two.

        Returns:
            How many are known.
        """
        if self._is_ours():  # else the number may be another's by now, and with it the children
            with contextlib.suppress(OSError):  # no descriptor is left for it: then the group alone is killed
                self._descendants |= dict.fromkeys(kin.descendants(self.pid))
        return len(self._descendants)

    def kill(self) -> None:
        """Kill the worker, its group, and the known descendants that left it."""
        if self._is_ours():
            self._kill_group()
        for process in self._descendants:
            with contextlib.suppress(OSError):
                kin.kill(process)

    def reap(self) -> Exit | None:
        """Bury the worker if it is dead, after killing what is left of its group; never blocks.

        Returns:
            How it ended, the same again if asked again; None while it lives.
        """
        if self._exit is None:
            self._exit = self._bury()
        return self._exit

    def close(self) -> None:
        """Close every descriptor; may be called twice.  Kills the worker if it still lives."""
        self.pidfd = _closed(self.pidfd)
        self._switch = _closed(self._switch)
        if self._channel is not None:
            self._channel.close()
        if self.output is not None:
            self.output.close()
        _WORKERS.discard(self)

    def abandon(self) -> None:
        """Kill and bury it on the spot, as after half a birth; waits the milliseconds that a SIGKILL takes."""
        if self._is_ours():
            self._kill_group()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        self.close()

    def _bury(self) -> Exit | None:
        try:
            # Look first: as long as the zombie is there its number is nobody else's, and the
            # group can be killed by it.
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if found is None:
                return None
            self._kill_group()
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            # SIGCHLD is ignored, or a handler of the program's waited for everything.
            return Exit()
        code = os.waitstatus_to_exitcode(status)
        max_rss_bytes = usage.ru_maxrss * 1024 if usage.ru_maxrss > self._inherited_rss else 0
        if code < 0:
            return Exit(signal=_signal_name(-code), max_rss_bytes=max_rss_bytes)
        return Exit(exit_code=code, max_rss_bytes=max_rss_bytes)

    def _is_ours(self) -> bool:
        """Whether the pid still names our worker, alive or a zombie."""
        if self._exit is not None or not self.pid:
            return False
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return False
        return True

    def _kill_group(self) -> None:
        # A group of zombies only is EPERM on some systems.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def _hand_over(fds: "Iterable[int]") -> list[tuple[object, ...]]:
    """Return what makes a child keep these descriptors, by way of standard input, which ends up empty.

    To duplicate one onto itself would do, but only with a C library from 2019 on.
    """
    actions: list[tuple[object, ...]] = []
    for fd in fds:
        actions += (os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_DUP2, 0, fd)
    actions.append((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
    return actions


def _interpreter_options() -> "list[str]":
    """Return the options of this interpreter that a worker's must have too: -W, -X, -O and their like."""
    flags = {name for name in sys.flags.__match_args__ if getattr(sys.flags, name)}
    if not (flags - _USUAL_FLAGS or sys.warnoptions or sys._xoptions):  # noqa: SLF001 - documented, for CPython
        return []
    import subprocess  # noqa: PLC0415 - 3 ms, a twentieth of what a queue takes to its first result

    # Private, but what multiprocessing uses for the same.
    options: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001
    return options


def _texts(values: "Iterable[object]") -> tuple[str, ...]:
    """Return the texts among the values; on `sys.path` the import system skips all else too."""
    return tuple(value for value in values if isinstance(value, str))


def _environment(config: WorkerConfig) -> dict[str, str]:
    """Return the supervisor's environment, with thread counts that the user did not set."""
    threads = str(max(1, config.cpus // max(1, config.workers)))
    environment = dict.fromkeys(_THREAD_VARIABLES, threads)
    for name in list(os.environ):  # another thread may be changing it: so not all at once, and by `get`
        value = os.environ.get(name)
        if value is not None:
            environment[name] = value
    return environment


def _sentinel(pid: int) -> int:
    """Return a descriptor that is readable once the process is dead."""
    try:
        return above_standard_streams(os.pidfd_open(pid))
    except ProcessLookupError:
        # Dead and reaped by somebody else already: a pipe at its end is readable at once.
        end, writing_end = os.pipe()
        os.close(writing_end)
        return above_standard_streams(end)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name of its own
        return f"SIG{number}"


def _closed(fd: int) -> int:
    """Close a descriptor if it is one, and return -1."""
    if fd >= 0:
        os.close(fd)
    return -1


# --- forks of the supervisor's process -----------------------------------------------------------


@functools.cache
def _close_in_forks() -> None:
    """Let a fork of this process give up the workers; registered once, it cannot be undone.

    A forked child would hold the write ends of the dead man's switches: the workers would
    outlive the supervisor.
    """
    os.register_at_fork(before=_BIRTH.acquire, after_in_parent=_BIRTH.release, after_in_child=_give_up_workers)


def _give_up_workers() -> None:
    for worker in list(_WORKERS):
        worker.close()
    _BIRTH.release()
