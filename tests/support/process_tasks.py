"""Task functions for the tests of the local engine, and the means by which a test and a task meet.

Workers import this module: nothing heavy here.  A test never sleeps: a task tells by a pipe with
a name that it has begun, and waits by another until the test lets it go on.
"""

import os
import sys
import time

from procq.inside import Permanent, RetryLater, Terminated

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal  # the C module has no stubs
    from pathlib import Path
    from typing import Any
else:
    import _signal as signal  # without the enums


class Gate:
    """A place at which a task waits until the test opens it."""

    def __init__(self, folder: "Path", name: str = "gate") -> None:
        self.path = str(folder / name)
        os.mkfifo(f"{self.path}.began")
        os.mkfifo(f"{self.path}.open")

    def wait_begun(self) -> int:
        """Wait until a task is at the gate, and return its process id."""
        with open(f"{self.path}.began", encoding="ascii") as pipe:  # noqa: PTH123 - pathlib is heavy
            return int(pipe.read())

    def open(self) -> None:
        """Let the task that waits, or the next one, go on."""
        with open(f"{self.path}.open", "wb"):  # noqa: PTH123
            pass


# --- meeting the test ---


def announce(path: str) -> None:
    with open(f"{path}.began", "w", encoding="ascii") as pipe:  # noqa: PTH123
        pipe.write(str(os.getpid()))


def pass_gate(path: str, value: object = None) -> object:
    """Say that this has begun, and wait until the test opens the gate."""
    announce(path)
    with open(f"{path}.open", "rb") as pipe:  # noqa: PTH123
        pipe.read()
    return value


def say(path: str, text: object, value: object = None) -> object:
    """Append a line to a file, in one piece even among processes."""
    line = f"{text}\n".encode()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)
    return value


def nothing() -> None:
    pass


def pid() -> int:
    return os.getpid()


def echo(value: object) -> object:
    return value


def sleep(seconds: float, value: object = None) -> object:
    time.sleep(seconds)  # noqa: TID251 - a task that takes long
    return value


def sleep_forever() -> None:
    time.sleep(3600)  # noqa: TID251


# --- deaths ---


def die_by(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)
    sleep_forever()


def exit_at_once(code: int) -> None:
    os._exit(code)


def announce_and_exit(path: str, code: int) -> None:
    announce(path)
    os._exit(code)


def say_and_die(path: str, text: object) -> None:
    say(path, text)
    die_by(signal.SIGKILL)


# --- being asked to stop ---


def announced_loop(path: str) -> None:
    announce(path)
    while True:
        pass


def announced_sleep(path: str) -> None:
    announce(path)
    sleep_forever()


def clean_up(gate: str, log: str) -> None:
    try:
        announced_sleep(gate)
    finally:
        say(log, "finally")


def swallow(gate: str, log: str) -> str:
    try:
        announced_sleep(gate)
    except BaseException as error:  # noqa: BLE001 - what tasks do
        say(log, f"caught {type(error).__name__}")
    return "as if nothing had happened"


def swallow_terminated_and_go_on(path: str) -> None:
    announce(path)
    while True:
        try:  # noqa: SIM105 - `contextlib` is heavy
            sleep_forever()
        except Terminated:
            pass


def ignore_sigterm(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    announced_sleep(path)


def block_all_signals(path: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    announced_sleep(path)


def stuck_in_c(path: str) -> None:
    """Hold the interpreter lock in C code for longer than anybody can wait."""
    import re  # noqa: PLC0415

    announce(path)
    re.match(r"(a+)+$", "a" * 64 + "b")


def with_family(path: str, *, in_c: bool = False, own_session: bool = False) -> None:
    """Start a shell that starts a sleeper, tell their pids and never end."""
    import subprocess  # noqa: PLC0415 - heavy

    shell = subprocess.Popen(
        ["sh", "-c", "sleep 3600 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=own_session
    )
    assert shell.stdout is not None
    sleeper = int(shell.stdout.readline())
    say(f"{path}.family", f"{os.getpid()} {shell.pid} {sleeper}")
    if in_c:
        stuck_in_c(path)
    announced_sleep(path)


def family(path: str) -> list[int]:
    """Return what `with_family` told: worker, shell, sleeper."""
    with open(f"{path}.family", encoding="ascii") as file:  # noqa: PTH123
        return [int(number) for number in file.read().split()]


# --- sizes ---


def big(size: int) -> bytes:
    return b"x" * size


def announced_big(path: str, size: int) -> bytes:
    data = b"x" * size
    announce(path)
    return data


def gated_big(path: str, size: int) -> bytes:
    """Return bytes that are there already when the gate opens."""
    data = b"x" * size
    pass_gate(path)
    return data


def length(data: bytes) -> int:
    return len(data)


# --- surroundings ---


def modules() -> list[str]:
    return sorted(sys.modules)


# --- order ---


def pass_gate_or_not(path: str) -> None:
    """Be brief, or wait at a gate: of one type all the same."""
    if path:
        pass_gate(path)


def say_and_fail(path: str, text: object) -> None:
    say(path, text)
    raise ValueError(text)


def say_and_sleep(path: str, text: object, seconds: float) -> None:
    say(path, text)
    sleep(seconds)


def say_instant(path: str, text: object) -> None:
    say(path, f"{text} {time.monotonic()}")


def say_span(path: str, text: object, seconds: float) -> None:
    say(path, f"begin {text}")
    sleep(seconds)
    say(path, f"end {text}")


# --- more deaths ---


def say_or_die(path: str, text: object) -> None:
    say(path, text)
    if text == "death":
        os._exit(9)


def exit_if(condition: bool, code: int) -> None:  # noqa: FBT001
    if condition:
        os._exit(code)


def die_soon(is_to_die: bool, after: float, value: object) -> object:  # noqa: FBT001
    """Have this process killed in a moment, be it amid this attempt, its report or the next attempt."""
    if is_to_die:
        import threading  # noqa: PLC0415

        threading.Timer(after, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return value


def exit_call(code: object) -> None:
    sys.exit(code)  # type: ignore[arg-type]  # as wild as tasks are


def exit_in_handler() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    os.kill(os.getpid(), signal.SIGTERM)
    sleep_forever()


def interrupt() -> None:
    raise KeyboardInterrupt


# --- cheats ---


def worker_end() -> "Any":  # noqa: ANN401 - the worker's innards
    """Find the worker's end of the sockets to its supervisor."""
    import gc  # noqa: PLC0415

    from procq.engine.local.transport import WorkerEnd  # noqa: PLC0415

    (end,) = (found for found in gc.get_objects() if isinstance(found, WorkerEnd))
    return end


def announce_big() -> None:
    """Send the beginning of a big report."""
    from procq.engine.local import wire  # noqa: PLC0415

    frame = wire.pack_success(0, 1, bytes(1_000_000), 0.0, 1.0, 0.0, 0)
    assert isinstance(frame, list)
    worker_end()._stream.sendall(bytes(frame[0]) + b"a part")


def announce_big_and_leave_a_child(path: str) -> None:
    announce_big()
    if os.fork() == 0:
        os.setsid()
        say(path, os.getpid())
        sleep_forever()
    while not os.path.exists(path):  # noqa: PTH110
        sleep(0.001)
    os._exit(3)


def announce_big_and_hang_up(*, half: bool = False) -> None:
    """Send the beginning of a big report and close the stream, or that half of it."""
    import socket  # noqa: PLC0415

    announce_big()
    stream = worker_end()._stream
    if half:
        stream.shutdown(socket.SHUT_WR)
    else:
        os.close(stream.fileno())
    sleep_forever()


def close_descriptors(seconds: float) -> None:
    os.closerange(3, 64)
    sleep(seconds)


def fork_and_return(path: str) -> int:
    parent = os.getpid()
    child = os.fork()
    say(path, os.getpid())
    if child:
        os.waitpid(child, 0)
    return parent


def leave_a_forked_child() -> int:
    child = os.fork()
    if child == 0:
        sleep_forever()
    return child


def flood(size: int) -> None:
    for _ in range(size // 1000):
        print("x" * 999)  # noqa: T201


def send_up(data: bytes) -> None:
    worker_end()._stream.sendall(data)
    sleep_forever()


def send_up_slowly(data: bytes, piece: int, pause_s: float) -> None:
    for at in range(0, len(data), piece):
        worker_end()._stream.sendall(data[at : at + piece])
        time.sleep(pause_s)  # noqa: TID251 - slow on purpose


def report_another() -> None:
    from procq.engine.local import wire  # noqa: PLC0415

    worker_end().send(wire.pack_success(12345, 1, b"N.", 0.0, 1.0, 0.0, 0))
    sleep_forever()


def swallow_tasks(path: str) -> None:
    """Read what was sent ahead, and drop it."""
    import socket  # noqa: PLC0415

    pass_gate(path)
    end = worker_end()
    try:
        while end._tasks.recv(70_000, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        pass


# --- timeouts ---


def fail_first(path: str, value: object) -> object:
    """Fail the first time this is run with the path."""
    first = not os.path.exists(path)  # noqa: PTH110
    say(path, "run")
    if first:
        raise ValueError("the first time")
    return value


def stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    sleep_forever()


def fail(text: str) -> None:
    raise ValueError(text)


# --- leaving ---


def pass_gate_and_fail(path: str) -> None:
    pass_gate(path)
    raise ValueError("after the gate")


def leave_a_thread() -> None:
    """Leave a thread that keeps the interpreter from ending."""
    import threading  # noqa: PLC0415

    threading.Thread(target=sleep_forever).start()


def register_exit_hook(path: str) -> None:
    import atexit  # noqa: PLC0415

    atexit.register(say, path, "left")


# --- life ---


def say_pid(path: str) -> None:
    say(path, os.getpid())


_MEMORY: list[bytes] = []


def remember(data: bytes) -> None:
    _MEMORY.append(data)


def remembered() -> int:
    return len(_MEMORY[0])


def fail_two_of_three(path: str) -> None:
    say(path, "start")
    with open(path, encoding="ascii") as file:  # noqa: PTH123
        times = len(file.readlines())
    if times % 3:
        raise ValueError(times)


def fail_after_first(path: str, times: int = 1) -> None:
    """Fail but for so many times that this is run with the path."""
    say(path, "start")
    with open(path, encoding="ascii") as file:  # noqa: PTH123
        if len(file.readlines()) > times:
            raise ValueError("too late")


def sleep_and_fail(seconds: float) -> None:
    sleep(seconds)
    raise ValueError("no start")


def shout(text: str) -> str:
    print(text)  # noqa: T201
    print(text, file=sys.stderr)  # noqa: T201
    if sys.stdout is not None:
        sys.stdout.flush()
    return text


def read_stdin() -> str:
    return sys.stdin.read()


def print_without_newline(text: str) -> None:
    print(text, end="")  # noqa: T201


def surroundings(variable: str) -> dict[str, object]:
    return {
        "cwd": os.getcwd(),  # noqa: PTH109
        "variable": os.environ.get(variable),
        "leads its session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "ignores SIGINT": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
    }


def draw_slowly() -> float:
    import random  # noqa: PLC0415

    sleep(0.02)
    return random.random()


def square(number: int) -> int:
    return number * number


def sum_in_pool(numbers: list[int]) -> int:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    with ProcessPoolExecutor(2) as pool:
        return sum(pool.map(square, numbers))


def sum_in_queue(numbers: list[int]) -> int:
    from procq import Queue  # noqa: PLC0415

    with Queue(workers=2) as queue:
        return sum(queue.map(int, numbers))


def hold_inner_processes(path: str) -> None:
    """Start a pool and a queue, tell the pids of their processes and never end."""
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    from procq import Queue  # noqa: PLC0415

    with Queue(workers=1) as queue, ProcessPoolExecutor(1) as pool:
        inner = [queue.submit(pid).result(), pool.submit(pid).result()]
        say(f"{path}.family", " ".join(map(str, [os.getpid(), *inner])))
        announced_sleep(path)


# --- threads ---


def say_and_maybe_fail(path: str, number: int) -> int:
    say(path, number)
    if time.monotonic_ns() % 3 == 0:
        raise ValueError(number)
    return number


def say_pid_and_sleep(path: str) -> None:
    say_pid(path)
    sleep_forever()


# --- payloads and errors ---


def reverse(data: bytes) -> bytes:
    return data[::-1]


def join(parts: list[bytes]) -> bytes:
    return b"".join(parts)


def fail_with(value: object) -> None:
    raise ValueError(value)


def change_and_fail_first(path: str, data: bytearray) -> tuple[int, int]:
    """Return length and sum of what was given, after spoiling it and failing the first time."""
    total = sum(data)
    data[0] = 255
    fail_first(path, None)
    return len(data), total


class NeedsAnObjectError(Exception):
    """Its constructor reads an attribute of its argument."""

    def __init__(self, source: object) -> None:
        super().__init__(f"told by an {source.kind}")  # type: ignore[attr-defined]  # as wild as errors are


class _Source:
    kind = "object"


def fail_with_attribute_error() -> None:
    raise NeedsAnObjectError(_Source())


class _BadResult:
    def __reduce__(self) -> tuple[object, ...]:
        return _refuse, ()


def _refuse() -> object:
    raise LookupError("no rebuilding")


def bad_result() -> object:
    return _BadResult()


def fail_from_another(depth: int) -> None:
    if depth > 1:
        return fail_from_another(depth - 1)
    try:
        raise KeyError("A")  # noqa: TRY301 - the line that a traceback must show
    except KeyError as error:
        raise ValueError("B") from error


def fail_permanently(reason: BaseException | str) -> None:
    raise Permanent(reason)


def later_twice(path: str) -> int:
    say(path, "run")
    with open(path, encoding="ascii") as file:  # noqa: PTH123
        times = len(file.readlines())
    if times < 3:
        raise RetryLater(0.01)
    return times


class _SlowToPickle:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[object, ...]:
        sleep(self.seconds)
        return str, ("done",)


def slow_to_pickle(seconds: float) -> object:
    return _SlowToPickle(seconds)


def get_pid(_number: int) -> int:
    return os.getpid()
