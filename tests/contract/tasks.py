"""Task functions of the contract suite; each does the same in a worker and inline.

Workers import this module: nothing heavy here, which a thousand of them would load.
"""

import io
import os
import sys
import time

import procq
from procq.inside import Terminated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: What an inline task does at a meeting, by the place's name; workers never see any of it.
MEETINGS: "dict[str, Callable[[], object]]" = {}


def is_inline() -> bool:
    """Whether this task runs in an inline queue: in a process, then, that has imported one."""
    inline = sys.modules.get("procq.engine.inline")
    return inline is not None and isinstance(procq.current(), inline.InlineContext)


# --- values ---


def add(left: int, right: int) -> int:
    return left + right


def echo(value: object = None) -> object:
    return value


def keywords(**given: object) -> dict[str, object]:
    return given


def total(*groups: object) -> int:
    """Add up all whole numbers at any depth."""
    return sum(value if isinstance(value, int) else total(*_members(value)) for value in groups)


def _members(value: object) -> "list[object]":
    if isinstance(value, dict):
        return list(value.values())
    assert isinstance(value, list | tuple), f"{value!r} has no members"
    return list(value)


def generator() -> object:
    return (number for number in range(3))


def note(path: str, text: str = "ran") -> str:
    """Append a line to a file, so that a test can see what ran in which order."""
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - pathlib is heavy
        file.write(f"{text}\n")
    return text


def whoami() -> tuple[str | None, int | None, float | None]:
    """Return id and attempt, and how much of the timeout is left."""
    current = procq.current()
    return current.id, current.attempt, current.remaining


# --- output ---


def write(stdout: str, stderr: str) -> None:
    """Write both streams, and leave others in their place."""
    sys.stdout.write(stdout)
    sys.stderr.write(stderr)
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()


def write_attempt() -> None:
    """Write the attempt's number; the first one fails."""
    sys.stdout.write(f"attempt {procq.current().attempt}")
    if procq.current().attempt == 1:
        raise ValueError


def write_much(number: int) -> None:
    sys.stdout.write("x" * number)
    sys.stdout.buffer.write(b"\xff")


# --- time ---


def work(duration: float) -> float:
    """Take so long, on whichever clock the queue goes by."""
    if is_inline():
        from procq import testing  # noqa: PLC0415 - heavy

        testing.spend(duration)
    else:
        time.sleep(duration)  # noqa: TID251 - a task that takes long
    return duration


def work_and_note(path: str, duration: float) -> None:
    """Take long, and note whether `finally` ran."""
    try:
        work(duration)
    finally:
        note(path, "finally")


def work_and_swallow(duration: float) -> str:
    """Take long, and pretend that nothing stopped it."""
    try:
        work(duration)
    except BaseException:  # noqa: BLE001 - as bad as tasks can be
        return "as if nothing had happened"
    return "nothing happened"


def work_and_swallow_again(duration: float) -> None:
    """Take long, whatever is asked."""
    for _ in range(100):
        work_and_swallow(duration)


def meet(place: str) -> str:
    """Let the test do something while the first attempt runs."""
    if procq.current().attempt != 1:
        return "not the first"
    meeting = MEETINGS.get(place)
    if meeting is not None:
        from procq import testing  # noqa: PLC0415 - heavy

        meeting()
        testing.spend(0)  # a request to stop is heard here
    else:
        with open(f"{place}/began", "wb") as began:  # noqa: PTH123 - pathlib is heavy
            began.write(b"!")  # returns once the test reads
        wait_to_go(place)
    return "met"


def meet_to_the_end(place: str) -> str:
    """Stay until the test lets go, asked to stop or not."""
    try:
        return meet(place)
    except Terminated:
        if place not in MEETINGS:
            wait_to_go(place)
        return "asked"


def wait_to_go(place: str) -> None:
    with open(f"{place}/go", "rb", buffering=0) as go:  # noqa: PTH123
        go.read(1)


def meet_and_fail(place: str) -> str:
    raise ValueError(meet(place))


def progress(times: int) -> None:
    """Say so many times how far this is."""
    for done in range(1, times + 1):
        procq.current().progress(done, times)


def progress_without_end() -> None:
    procq.current().progress(0, float("inf"))


# --- errors ---


class OwnError(ValueError):
    """Has parts of its own and survives pickling."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.text = text
        self.code = code


class StubbornError(Exception):
    """Pickles, but cannot be rebuilt: its constructor takes two arguments and `args` has one."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left}-{right}")


def fail(text: str = "bad input") -> None:
    raise ValueError(text)


def fail_at_three(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


def fail_own(text: str, code: int) -> None:
    raise OwnError(text, code)


def fail_stubbornly() -> None:
    raise StubbornError("a", "b")


def fail_before(attempt: int, value: object = "done") -> object:
    """Fail in every attempt before this one."""
    number = procq.current().attempt or 0
    if number < attempt:
        raise ValueError(f"attempt {number} fails")
    return value


def fail_for_good(reason: object) -> None:
    raise procq.Permanent(reason)  # type: ignore[arg-type]  # an error or a text


def later_once(path: str, delay: float) -> int | None:
    """Ask once to be called later; return the number of the attempt that went on."""
    if not os.path.exists(path):  # noqa: PTH110
        note(path)
        raise procq.RetryLater(delay)
    return procq.current().attempt


def leave(code: int) -> None:
    sys.exit(code)


def interrupt() -> None:
    raise KeyboardInterrupt


def die(exit_code: int | None = None, signal_name: str | None = None) -> None:
    """End as the death of the worker does."""
    if is_inline():
        from procq import testing  # noqa: PLC0415 - heavy

        testing.crash(exit_code=exit_code, signal=signal_name)
    if signal_name is not None:
        import signal  # noqa: PLC0415

        os.kill(os.getpid(), signal.Signals[signal_name])
    os._exit(exit_code or 0)


def die_before(attempt: int) -> str:
    """Die in every attempt before this one."""
    if (procq.current().attempt or 0) < attempt:
        die(exit_code=3)
    return "alive"


def work_before(attempt: int, duration: float) -> str:
    """Take long in every attempt before this one."""
    if (procq.current().attempt or 0) < attempt:
        work(duration)
    return "quick"


def raise_stop_iteration_if_odd(number: int) -> int:
    if number % 2:
        raise StopIteration
    return number


# --- of one test or two, apart from it: a worker that imports a module of tests imports pytest ---


def fail_times(path: str, times: int) -> str:
    """Fail so many times, over all attempts and replays."""
    note(path)
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        if len(file.readlines()) <= times:
            raise ValueError
    return "done"


def sort(values: object) -> None:
    assert isinstance(values, list)
    values.sort()


def spawn_two() -> object:
    """Bring two tasks."""
    return procq.Spawn([procq.task(echo).spec("brought"), procq.task(total).spec([])], value=7)


def later() -> None:
    raise procq.RetryLater(1000)


def report_and_meet(place: str) -> str:
    procq.current().progress(3, 10)
    return meet(place)


def fail_to_begin() -> None:
    raise OSError("no such device")


def spawn_into(group: str) -> object:
    return procq.Spawn([procq.task(echo, group=group).spec(1)])


def invert(number: int) -> float:
    return 1 / number


def need_file(path: str) -> None:
    assert os.path.exists(path)  # noqa: PTH110


class Unloadable:
    """Pickles, and cannot be rebuilt."""

    def __reduce__(self) -> tuple[object, ...]:
        return refuse, ()


def refuse() -> None:
    raise RuntimeError("cannot be rebuilt")


class Ending:
    """A result that raises what is no `Exception` when it is rebuilt."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[object, ...]:
        return end, (self.kind,)


def end(kind: type[BaseException]) -> None:
    raise kind


def fail_first(item: list[int]) -> list[int]:
    if item[0] and procq.current().attempt == 1:
        raise ValueError(item)
    return item


def die_at(number: int) -> tuple[int, int | None]:
    if number == 3:
        die(exit_code=3)
    return number, procq.current().attempt


def note_attempt_and_fail_once(path: str, text: str) -> str:
    attempt = procq.current().attempt
    note(path, f"{text}/{attempt}")
    if attempt == 1:
        raise ValueError
    return "done"


def double(payload: int) -> int:
    return 2 * payload


class Unpicklable:
    """A handler that cannot be sent to a worker."""

    def __call__(self, payload: object) -> object:
        return payload

    def __reduce__(self) -> str:
        raise TypeError("never leaves home")


def raise_timeout_error() -> None:
    raise TimeoutError("the task's own")


def fail_the_first(number: int) -> int:
    if number == 0 and procq.current().attempt == 1:
        raise ValueError
    return number


def only_the_first(number: int) -> int:
    if number > 0:
        raise procq.RetryLater("1h")
    return number
