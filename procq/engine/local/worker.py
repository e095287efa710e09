"""The worker: a fresh interpreter that runs one attempt after the other (contract H, DESIGN 5).

Decides nothing: it runs what it is sent and reports how that ended.  Two rules.  Whatever a
task does, either its report or this process's death reaches the supervisor, never neither.
And start-up is lean (H2): C modules instead of their Python wrappers (`_signal` for `signal`
saves 3 ms, `_socket` for `socket` 5), nothing of the supervisor's side, heavy imports when a task needs
them.
"""

import os
import select
import sys
import time
from functools import partial

from procq import payload
from procq.engine import attempt
from procq.engine.local import wire
from procq.engine.local.transport import WorkerEnd
from procq.inside import Context, Terminated, current, enter_lazily
from procq.outcome import Ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal  # the C module has no stubs
    from collections.abc import Callable, Collection, Mapping, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType
    from typing import Final

    from procq.engine.local.capture import Redirection
    from procq.engine.local.relay import Relay
    from procq.inside import Token
else:
    import _signal

#: Seconds between two progress reports of an attempt; what is said in between is dropped.
#: A display is redrawn at about this pace, and a loop that reports each step costs nobody much.
PROGRESS_EVERY_S: "Final" = 0.1
#: Of attempts shorter than this (seconds) the wall time passes for the CPU time: a reading costs
#: 0.5 us, a noticeable part of a tiny task, and nobody can read so small an error off a report.
BRIEF_S: "Final" = 0.001
#: After attempts shorter than this (seconds) the peak of memory is not read again: it costs 12 us.
MEMORY_BRIEF_S: "Final" = 0.010
STANDARD_STREAMS: "Final" = (0, 1, 2)

# What each attempt needs, bound once.
_clock = time.monotonic
_getsignal = _signal.getsignal
_SIGTERM: "Final" = _signal.SIGTERM
_SIGINT: "Final" = _signal.SIGINT
_SIG_IGN: "Final" = _signal.SIG_IGN


def main(argv: "Sequence[str]") -> None:
    """Be a worker until told to leave.

    Args:
        argv: The descriptors: tasks, stream, claims, dead man's switch; and where attempts shall write
            to instead of standard output and standard error, if that is captured.
    """
    tasks_fd, stream_fd, claims_fd, switch_fd, *capture_fds = map(int, argv)
    arm(switch_fd)
    close_inherited({tasks_fd, stream_fd, claims_fd, switch_fd, *capture_fds})
    end = WorkerEnd(tasks_fd, stream_fd, claims_fd)
    worker = Worker(end)
    if capture_fds:
        worker.capture(*capture_fds)
    worker.take_signals()
    status = 0
    try:
        if worker.start():
            worker.serve()
        else:
            status = wire.EXIT_START_FAILED
    except OSError:
        # Without its pipes a worker is of no use, and its supervisor must not wait for it.
        os._exit(wire.EXIT_PIPES_LOST)
    finally:
        # From here on the interpreter ends: a SIGTERM simply ends it sooner.
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        end.let_go()
    sys.exit(status)


# --- the dead man's switch ---------------------------------------------------------------------


def arm(switch_fd: int) -> None:
    """Let this process group be killed when the supervisor is gone (contract G5).

    The descriptor is the read end of a pipe whose only write end is in the supervisor.  The
    kernel closes that with the supervisor, whatever ended it, and then sends the signal that
    is asked for here: no code of ours has to run, so it works under C code that never returns.
    """
    import fcntl  # noqa: PLC0415 - not needed again

    os.set_inheritable(switch_fd, False)  # noqa: FBT003 - positional only
    if hasattr(fcntl, "F_SETSIG"):
        # The whole group, which is this process's own: it leads its session.
        fcntl.fcntl(switch_fd, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(switch_fd, fcntl.F_SETSIG, _signal.SIGKILL)
        fcntl.fcntl(switch_fd, fcntl.F_SETFL, fcntl.fcntl(switch_fd, fcntl.F_GETFL) | os.O_ASYNC)
        # The supervisor may have died before the switch was armed: then nothing is signalled any more.
        poll = select.poll()
        poll.register(switch_fd, 0)
        if poll.poll(0):
            os._exit(wire.EXIT_PIPES_LOST)
    else:
        import _thread  # noqa: PLC0415 - only where the kernel cannot do it

        _thread.start_new_thread(watch, (switch_fd,))


def watch(switch_fd: int) -> None:
    """Wait for the supervisor's end, and kill this process group: where the kernel does not.

    Weaker: C code that holds the interpreter lock stops it.
    """
    os.read(switch_fd, 1)  # nobody ever writes: it returns when the write end is closed
    os.killpg(0, _signal.SIGKILL)


# --- what the supervisor's program has left open -------------------------------------------------


def close_inherited(ours: "Collection[int]") -> None:
    """Close descriptors that the program meant for others: a pipe of theirs would never end while we hold it.

    What this process has opened itself, for a site's `.pth` file say, closes on exec, as all that
    Python opens.  Without `/proc` they stay.
    """
    import fcntl  # noqa: PLC0415 - not needed again

    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - pathlib is heavy
    except OSError:
        return
    for fd in {int(name) for name in names}.difference(STANDARD_STREAMS, ours):
        try:
            if not fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                os.close(fd)
        except OSError:  # it was what the names were read from
            pass


# --- the worker --------------------------------------------------------------------------------


class Worker:
    """What this process knows of itself."""

    __slots__ = (
        "_busy", "_cpu_s", "_end", "_gate", "_on_sigterm", "_peak_rss_bytes", "_place", "_progress_due", "_redirection",
        "_relay",
    )  # fmt: skip

    def __init__(self, end: WorkerEnd) -> None:
        self._end = end
        self._gate = attempt.Gate()
        #: One object for good: `self._terminate` is a new one each time, and could not be recognised.
        self._on_sigterm = self._terminate
        #: Its `token` says who runs; None between attempts.
        self._place = enter_lazily(self._context)
        #: CPU seconds used when the last attempt ended, and the highest resident memory until then.
        self._cpu_s = 0.0
        self._peak_rss_bytes = 0
        #: From just before an attempt is claimed until its report is sent.
        self._busy = False
        #: When the running attempt may report progress again.
        self._progress_due = 0.0
        #: Sends what is logged to the supervisor; None until somebody imports `logging`.
        self._relay: Relay | None = None
        #: Captures what attempts write; None: nothing does.
        self._redirection: Redirection | None = None

    def capture(self, stdout_fd: int, stderr_fd: int) -> None:
        """Have what attempts write to the standard streams go to these descriptors."""
        from procq.engine.local.capture import Redirection  # noqa: PLC0415 - for few queues only

        self._redirection = Redirection(stdout_fd, stderr_fd)

    def take_signals(self) -> None:
        """Ignore SIGINT (it is the supervisor's), answer SIGTERM, and let nothing be blocked."""
        # The thread that started us may have had signals blocked, which a new program inherits.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
        _signal.signal(_signal.SIGTERM, self._on_sigterm)

    def _terminate(self, signum: int, frame: "FrameType | None") -> None:  # noqa: ARG002 - a signal handler's
        if self._gate.may_fire():
            raise Terminated
        if not self._busy:
            raise SystemExit
        # Either the attempt is about to begin, and this holds it; or its report is being made, which
        # is quick and more welcome than an exit.
        self._gate.is_asked = True

    # --- start-up ---

    def start(self) -> bool:
        """Take over the supervisor's surroundings and say READY.

        Returns:
            False if that failed; the supervisor knows why.
        """
        hello = self._end.receive()
        if not isinstance(hello, wire.Hello):
            return False  # told to leave before the first word
        # A task may fork, and its child come home like the task: only the parent must report.
        os.register_at_fork(after_in_child=self._note_fork)
        payload.fetch_shared = self._end.fetch
        sys.path[:] = hello.path
        sys.argv[:] = hello.argv
        self._relay_logs(hello)
        try:
            # Always: it is also how the rest of procq knows that this process is a worker.
            from procq import loader  # noqa: PLC0415 - after sys.path is the supervisor's

            loader.install(hello.jobs)
            if hello.initializer:
                fn, args, kwargs = payload.load_call(hello.initializer, ())
                fn(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - an initializer is the user's code (D11)
            flush_streams()
            self._end.send(wire.pack_start_failed(wire.StartFailed(*attempt.describe(error))))
            return False
        if self._relay is not None:
            self._relay.mark_threads()  # those of the initializer are no attempt's
        self._cpu_s, self._peak_rss_bytes = time.process_time(), peak_rss_bytes()
        self._end.send(wire.READY_FRAME)
        flush_streams()  # what the initializer printed is no attempt's
        return True

    def _note_fork(self) -> None:
        self._end.is_child = True

    def _relay_logs(self, hello: wire.Hello) -> None:
        """Have what is logged sent to the supervisor, from the moment on in which somebody can log."""
        install = partial(self._install_relay, hello.levels, hello.disable)
        if "logging" in sys.modules:  # a site's `.pth` file may have imported it, say
            install()
        else:
            sys.meta_path.insert(0, LoggingWatch(install))

    def _install_relay(self, levels: "Mapping[str, int]", disable: int) -> None:
        from procq.engine.local import relay  # noqa: PLC0415 - it imports `logging`

        self._relay = relay.install(self._end, current, levels, disable)

    # --- attempts ---

    def serve(self) -> None:
        """Run attempts until told to leave, or until the supervisor closes the pipe."""
        claim = self._end.claim
        send = self._end.send
        gate = self._gate
        #: Tasks that were sent and not begun, the next one last.
        waiting: list[wire.Task] = []
        while True:
            if waiting:
                # Before the claim, for what is claimed must be reported: a SIGTERM amid this is kept for the task.
                gate.is_asked = False
                self._busy = True
                if claim():
                    # Popped for good: its inputs must not stay in memory while the worker waits.
                    send(self._run(waiting.pop()))
                    self._busy = False
                    continue
                self._busy = False
                if gate.is_asked:  # there is no task to tell
                    raise SystemExit
            message = self._end.receive()
            if isinstance(message, list):
                message.reverse()
                message += waiting
                waiting = message
                del message  # else its inputs stay in memory all the same
            elif isinstance(message, wire.Unread):
                waiting.append(too_big(message))
            elif isinstance(message, wire.Forget):
                forget_shared(message.keys)
                send(wire.FORGOTTEN_FRAME)
            elif isinstance(message, wire.Drop):
                waiting.clear()
                send(wire.DROPPED_FRAME)
            else:
                return

    def _run(self, task: wire.Task) -> wire.Frame:
        """Run one attempt and pack the report."""
        seq, fence, number, timeout_s, name, call, inputs = task
        place = self._place
        self._progress_due = 0.0
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        redirection = self._redirection
        if redirection is not None:
            redirection.begin()
        place.token = (seq, fence, number, deadline, name)
        ended = attempt.run_lean(call, inputs, _clock, self._gate)
        place.inner = None
        if self._relay is not None:
            self._relay.mark_threads()
        place.token = None
        if self._end.is_child:
            # The task forked, and this is the child coming home: the report is its parent's.
            os._exit(0)
        if _getsignal(_SIGTERM) is not self._on_sigterm:
            _signal.signal(_SIGTERM, self._on_sigterm)
        if _getsignal(_SIGINT) is not _SIG_IGN:
            _signal.signal(_SIGINT, _SIG_IGN)
        flush_streams()
        if redirection is not None:
            redirection.end(flush_streams)
            if isinstance(ended, tuple):  # the lean report has no room for what the supervisor adds
                value, started_at, ended_at = ended
                ended = Ended("ok", started_at, ended_at, value=value)
        if isinstance(ended, tuple):
            value, started_at, ended_at = ended
            cpu_s = self._meter(ended_at - started_at)
            return wire.pack_success(seq, fence, value, started_at, ended_at, cpu_s, self._peak_rss_bytes)
        ended.cpu_s = self._meter(ended.ended_at - ended.started_at)
        ended.peak_rss_bytes = self._peak_rss_bytes
        return wire.pack_ended(seq, fence, ended)

    def _meter(self, took_s: float) -> float:
        """Return the CPU seconds that an attempt used, and keep the peak of memory up to date."""
        if took_s < BRIEF_S:
            self._cpu_s += took_s
            return took_s
        cpu_s = time.process_time()
        # Brief attempts before may have been charged more than they used.
        used_s = max(0.0, cpu_s - self._cpu_s)
        self._cpu_s = cpu_s
        if took_s >= MEMORY_BRIEF_S:
            self._peak_rss_bytes = peak_rss_bytes()
        return used_s

    def _context(self, token: "Token") -> Context:
        """Make what `current()` returns in an attempt."""
        _, _, number, deadline, name = token
        return Context(wire.id_text(name), number, deadline, partial(self._progress, token))

    def _progress(self, token: "Token", done: float, total: float) -> None:
        """Tell the supervisor how far the attempt is, unless it just was told."""
        done, total = float(done), float(total)  # a mistake shows each time, not only when it is due
        # By identity, as a thread may outlive its attempt and then speaks for nobody.  Should it be
        # caught between this check and the frame, the frame still names the attempt that it was.
        if self._place.token is not token:
            return
        now = time.monotonic()
        if now < self._progress_due:
            return
        self._progress_due = now + PROGRESS_EVERY_S
        self._end.send_if_room(wire.pack_progress(token[0], token[1], done, total))


def too_big(unread: wire.Unread) -> wire.Task:
    """Put something in the place of a call that there was no memory for: an attempt that says so, and fails."""
    call, _ = payload.dump_call(attempt.report_no_room, (unread.size,), {})
    return (*unread.task[:5], call, [])


def forget_shared(keys: "Sequence[int]") -> None:
    """Let go of shared memory; in an initializer or a task that imported `procq.shared`, nobody else did."""
    shared = sys.modules.get("procq.shared")
    if shared is not None:
        for key in keys:
            shared.forget(key)


class LoggingWatch:
    """A finder of modules that finds none, and calls `install` once `logging` has been imported.

    So a worker whose tasks log nothing never imports `logging` (3 ms), and one whose tasks do
    misses not even the first record.
    """

    __slots__ = ("_install",)

    def __init__(self, install: "Callable[[], None]") -> None:
        self._install = install

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return what the other finders say of `logging`; of any other module nothing."""
        if name != "logging":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                loader = spec.loader
                # An attribute, gone once it was used: a loader of our own would be seen by whoever looks at
                # the module.  No instance is the loader of frozen modules, which `logging` is nowhere yet.
                if loader is not None and hasattr(loader, "__dict__") and not isinstance(loader, type):
                    vars(loader)["exec_module"] = partial(self._load, loader)
                return spec
        return None

    def _load(self, loader: "Loader", module: "ModuleType") -> None:
        vars(loader).pop("exec_module", None)
        loader.exec_module(module)
        # Another one's if `logging` was only looked for, and its loader (of a zip file) serves for all.
        if module.__name__ == "logging":
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._install()


def peak_rss_bytes() -> int:
    """Return the highest resident memory of this process so far.

    Not `ru_maxrss`, which a new program inherits from the one that started it: under a big
    supervisor every worker would look as big.
    """
    try:
        status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(status, 4096)
        finally:
            os.close(status)
        start = text.index(b"VmHWM:") + 6
        return int(text[start : text.index(b"kB", start)]) * 1024
    except (OSError, ValueError):  # no /proc here, or none left of descriptors
        import resource  # noqa: PLC0415

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def flush_streams() -> None:
    """Let what the task printed appear before its outcome does, and give the next one streams if it closed them."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - none, closed, its reader gone, or a task's own object
        _flush_each()


def _flush_each() -> None:
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001 - as above
            if _is_closed(stream):
                _open_again(name, fd)


def _is_closed(stream: object) -> bool:
    try:
        return bool(stream.closed)  # type: ignore[attr-defined]
    except ValueError:  # it was detached from its buffer
        return True
    except BaseException:  # noqa: BLE001 - None, or a task's own object
        return False


def _open_again(name: str, fd: int) -> None:
    """Set a standard stream anew; its descriptor stays open when Python's own stream is closed."""
    stream = getattr(sys, f"__{name}__")
    if stream is None or _is_closed(stream):
        errors = "backslashreplace" if fd == 2 else None  # noqa: PLR2004 - as Python sets them up
        try:
            stream = open(fd, "w", buffering=1, errors=errors, closefd=False)  # noqa: SIM115 - no path
        except OSError:  # the task has closed that as well
            return
        setattr(sys, f"__{name}__", stream)
    setattr(sys, name, stream)
