"""Task functions that tests run in workers.

Workers import this module, and tests look at what they have imported: so nothing heavy here.
"""

import os
import sys
import time

from procq import inside as procq_inside
from procq.inside import Permanent, RetryLater, Terminated

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal  # the C module has no stubs
else:
    import _signal as signal  # without the enums

# --- values ---


def add(left: int, right: int) -> int:
    return left + right


def echo(value: object) -> object:
    return value


def pid() -> int:
    return os.getpid()


def modules() -> list[str]:
    return sorted(sys.modules)


def surroundings() -> dict[str, object]:
    return {
        "path": sys.path,
        "argv": sys.argv,
        "cwd": os.getcwd(),  # noqa: PTH109 - pathlib is heavy
        "environ": dict(os.environ),
        "pgid": os.getpgid(0),
        "sid": os.getsid(0),
        "sigint_ignored": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "stdin": os.readlink("/proc/self/fd/0"),  # noqa: PTH115
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),  # noqa: PTH208
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    }


def context() -> tuple[object, ...]:
    current = procq_inside.current()
    return current.id, current.attempt, current.deadline, current.remaining


def inline_context() -> tuple[object, ...]:
    """Tell who runs: here, in a task of an inline queue, and here again."""
    from procq.testing import inline  # noqa: PLC0415

    outer = procq_inside.current()
    with inline() as queue:
        inner = queue.submit(context).result()
    return outer.id, inner[0], procq_inside.current() is outer


def inline_cut_short() -> None:
    """End amid a task of an inline queue, as if nothing could be cleaned up."""
    procq_inside.enter(procq_inside.Context("somebody else"))


def generator() -> object:
    return (number for number in range(3))


async def _answer() -> int:
    return 42


def coroutine() -> object:
    return _answer()


def lock_in_dict() -> object:
    import threading  # noqa: PLC0415

    return {"lock": threading.Lock()}


class UnpicklableOnPurpose:
    def __reduce__(self) -> tuple[object, ...]:
        raise SystemExit(9)


def exits_while_pickled() -> object:
    return UnpicklableOnPurpose()


# --- errors ---


class TwoPartError(Exception):
    """Pickles, but cannot be rebuilt: its constructor takes two arguments and `args` has one."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left}-{right}")


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class OwnBaseError(BaseException):
    pass


class UnloadableError(Exception):
    """Loading it raises; so does every call that has one as an argument."""

    def __reduce__(self) -> tuple[object, ...]:
        return _refuse, ("no rebuilding",)


def _refuse(text: str) -> object:
    raise LookupError(text)


def fail(text: str = "bad input") -> None:
    raise ValueError(text)


def fail_chained() -> None:
    try:
        _deeper()
    except KeyError as error:
        raise ValueError("outer") from error


def _deeper() -> None:
    raise KeyError("inner")


def fail_two_parts() -> None:
    raise TwoPartError("a", "b")


def fail_silently() -> None:
    raise SilentError


def fail_with_lock() -> None:
    import threading  # noqa: PLC0415

    raise ValueError(threading.Lock())


def fail_deeply(depth: int = 100_000) -> int:
    return fail_deeply(depth - 1) + 1


def fail_permanently(text: str) -> None:
    raise Permanent(text)


def fail_permanently_with_error() -> None:
    try:
        fail("for good")
    except ValueError as error:
        raise Permanent(error) from error


def fail_base() -> None:
    raise OwnBaseError("mine")


def later(delay: float) -> None:
    raise RetryLater(delay)


def leave(code: object = None) -> None:
    sys.exit(code)  # type: ignore[arg-type]  # as wild as tasks are


def leave_at_once(code: int) -> None:
    os._exit(code)


def interrupt() -> None:
    raise KeyboardInterrupt


# --- stopping ---


def say(path: str, text: str) -> None:
    """Append a line to a file: tests watch it."""
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f"{text}\n")


def sleep_with_finally(path: str, seconds: float = 60.0) -> None:
    try:
        say(path, "began")
        time.sleep(seconds)  # noqa: TID251 - a task that takes long
    finally:
        say(path, "finally")


def sleep_and_swallow(path: str, seconds: float = 60.0) -> str:
    try:
        say(path, "began")
        time.sleep(seconds)  # noqa: TID251
    except Terminated:
        say(path, "caught")
    return "as if nothing had happened"


def terminate_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)  # noqa: TID251


def change_signal_handlers() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def kill_self(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)
    time.sleep(60)  # noqa: TID251


def interrupt_self() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def stuck_in_c() -> None:
    """Hold the interpreter lock in C code for longer than anybody can wait."""
    import re  # noqa: PLC0415

    re.match(r"(a+)+$", "a" * 64 + "b")


def stuck_with_grandchild(path: str) -> None:
    say(path, f"{os.getpid()} {start_sleeper()}")
    stuck_in_c()


def start_sleeper(*, own_session: bool = False) -> int:
    """Start a program that outlives this task; return its pid."""
    import subprocess  # noqa: PLC0415

    process = subprocess.Popen(["sleep", "60"], start_new_session=own_session, stdout=subprocess.DEVNULL)
    process.returncode = 0  # nobody waits for it here, and Popen shall not say so
    return process.pid


def descriptors_of_a_program() -> list[str]:
    import subprocess  # noqa: PLC0415

    done = subprocess.run(["ls", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True)
    return done.stdout.split()


# --- cheats ---


def fork_and_come_home(path: str) -> int:
    """Fork; both return into the worker's code."""
    child = os.fork()
    if child == 0:
        say(path, str(os.getpid()))
        return 0
    os.waitpid(child, 0)
    return child


def fork_and_speak() -> None:
    """Let only the child say how far it is."""
    child = os.fork()
    if child == 0:
        procq_inside.current().progress(6, 6)
        os._exit(0)
    os.waitpid(child, 0)


def fork_and_raise() -> int:
    child = os.fork()
    if child == 0:
        raise ValueError("the child's own error")
    os.waitpid(child, 0)
    return child


def close_descriptors() -> str:
    os.closerange(3, 64)
    return "closed"


def close_standard_streams() -> str:
    sys.stdout.close()
    sys.stderr = None
    os.close(0)
    return "closed"


def write_garbage_to(fd: int, data: bytes) -> None:
    os.write(fd, data)


def shout(text: str) -> None:
    print(text)  # noqa: T201
    print(text, file=sys.stderr)  # noqa: T201


# --- progress ---


def progress(times: int) -> None:
    current = procq_inside.current()
    for done in range(times):
        current.progress(done, times)


def progress_from_afterlife() -> None:
    """Keep the context in a thread that reports after the attempt's end, for as long as the worker lives."""
    import threading  # noqa: PLC0415

    current = procq_inside.current()
    threading.Thread(target=_report_for_ever, args=(current,), daemon=True).start()


def _report_for_ever(current: procq_inside.Context) -> None:
    while True:
        current.progress(666, 666)
        time.sleep(0.001)  # noqa: TID251


def progress_wrongly() -> None:
    procq_inside.current().progress("half", "all")  # type: ignore[arg-type]  # a mistake


# --- initializers ---


def initialize(path: str) -> object:
    say(path, "initialized")
    return (number for number in range(3))  # what it returns is nobody's business


def initialize_badly() -> None:
    raise RuntimeError("no database here")


def initialize_and_exit() -> None:
    sys.exit(3)


def use_memory(size: int) -> int:
    return len(bytearray(b"x") * size)


def burn_cpu(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def close(fd: int) -> None:
    os.close(fd)


def pipes_of_the_worker() -> list[int]:
    """Return tasks, stream and claims as the worker's command line names them."""
    from pathlib import Path  # noqa: PLC0415

    return [int(argument) for argument in Path("/proc/self/cmdline").read_bytes().split(b"\0")[-5:-2]]


def register_at_exit(path: str) -> None:
    import atexit  # noqa: PLC0415

    atexit.register(say, path, "at exit")
