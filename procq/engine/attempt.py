"""Runs one attempt and says in plain words how it ended (contract D2, D3, D9).

Shared by the worker and the inline engine, which differ in everything around it.  Rule: no
exception of the task gets past `run`, and nothing that the supervisor would have to unpickle
is in the report.  Imports only what a worker needs for a task that succeeds.
"""

import time

from procq import payload
from procq.inside import Permanent, RetryLater, Spawn, Terminated
from procq.outcome import Ended, class_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Final

    from procq.parcel import Payload

#: Longer texts of an error lose their middle: they are kept with every attempt in the
#: supervisor, and an error that quotes its input may be as long as the input (characters).
TEXT_MAX: "Final" = 50_000

#: What the supervisor is told about a result that cannot be pickled: the names that
#: `class_names(PayloadError)` gives, written down because errors.py is no import for a worker.
_PAYLOAD_ERROR_TYPES: "Final" = (
    "procq.errors.PayloadError", "procq.errors.UsageError", "procq.errors.ProcqError",
    "TypeError", "Exception", "BaseException",
)  # fmt: skip

#: What to do about results that can never be pickled, by the name of their class.
_HINTS: "Final" = {
    "generator": "return a list instead; if it yields specs that shall run, return procq.Spawn(...) of it",
    "async_generator": "procq runs plain functions: collect it with asyncio.run() inside and return a list",
    "coroutine": "procq runs plain functions: call asyncio.run() inside",
}

#: Frames of these files at the top of a traceback are not the task's.
_OWN_FILES: "Final" = frozenset((__file__, payload.__file__))


class Gate:
    """Says whether `Terminated` may be raised now: only while the task's own code runs.

    A signal handler asks `may_fire` and raises `Terminated` if so.  It closes the gate by
    asking, so that an attempt meets one `Terminated` at most and none hits its clean-up twice.

    Attributes:
        is_asked: Set by whoever found the gate closed just before it opens: then the task ends
            before it begins.
        is_open: Whether the task's own code runs.
        has_fired: Whether `Terminated` was raised, even if the task caught it.
    """

    __slots__ = ("has_fired", "is_asked", "is_open")

    def __init__(self) -> None:
        self.is_asked = False
        self.is_open = False
        self.has_fired = False

    def may_fire(self) -> bool:
        """Return whether to raise `Terminated` now, and close the gate."""
        if not self.is_open:
            return False
        self.is_open = False
        self.has_fired = True
        return True


def run(
    call: "Payload",
    inputs: "Sequence[Payload]",
    *,
    clock: "Callable[[], float]" = time.monotonic,
    gate: Gate | None = None,
) -> Ended:
    """Run one attempt in this thread; returns when the task does.

    Args:
        call: The pickled call.
        inputs: The pickled results that it takes, by number.
        clock: Gives the instants in the report.
        gate: Open while the task's own code runs; for an engine that raises `Terminated`.

    Returns:
        The report, with outcome "ok" or "error".  Never raises.
    """
    ended = run_lean(call, inputs, clock, Gate() if gate is None else gate)
    if isinstance(ended, tuple):
        value, started_at, ended_at = ended
        return Ended("ok", started_at, ended_at, value=value)
    return ended


def run_lean(
    call: "Payload", inputs: "Sequence[Payload]", clock: "Callable[[], float]", gate: Gate
) -> "tuple[Payload, float, float] | Ended":
    """Run one attempt as `run` does, but without an object for the report that nearly all are.

    Returns:
        The pickled value, started_at and ended_at of a success in which no `Terminated` was
        raised; else the report.
    """
    fn: Callable[..., object] | None = None
    value: object = None
    error: BaseException | None = None
    started_at = clock()
    gate.has_fired = False
    try:
        try:
            gate.is_open = True
            if gate.is_asked and gate.may_fire():
                raise Terminated  # noqa: TRY301 - as if it had come a moment later
            fn, args, kwargs = payload.load_call(call, inputs)
            value = fn(*args, **kwargs)
            gate.is_open = False
        except BaseException as caught:  # noqa: BLE001 - whatever a task raises is its outcome (D3)
            gate.is_open = False
            error = caught
    except Terminated as late:
        # Raised by a signal handler in the instant between the task's last code and the closed gate.
        error = late
    ended_at = clock()
    try:
        if error is None:
            data = _result(fn, value, started_at, ended_at)
            if isinstance(data, Ended):
                ended = data
            elif not gate.has_fired:
                return data, started_at, ended_at
            else:
                ended = Ended("ok", started_at, ended_at, value=data)
        elif fn is None:
            ended = _not_loaded(error, len(call) + sum(map(len, inputs)), started_at, ended_at)
        else:
            ended = failed(error, started_at, ended_at)
    except BaseException as worse:  # noqa: BLE001 - say, a class whose name cannot be had, or no memory left
        ended = _beyond_words(worse, started_at, ended_at)
    finally:
        # An error's traceback holds this frame: a cycle that would keep the task's data alive.
        del error
    if gate.has_fired:
        ended.terminated = True
    return ended


# --- the three endings -------------------------------------------------------------------------


def _result(fn: object, value: object, started_at: float, ended_at: float) -> "Payload | Ended":
    """Pickle what a task returned; the report, if that cannot be or if there are tasks to go with it."""
    if type(value) is Spawn:
        return _spawning(fn, value, started_at, ended_at)
    try:
        return payload.dump_result(value)
    except BaseException as error:  # noqa: BLE001 - a result's __reduce__ is the task's code too (D9)
        return unsendable(fn, value, error, started_at, ended_at)


def _spawning(fn: object, spawn: Spawn, started_at: float, ended_at: float) -> Ended:
    """Report a success that brings more tasks; or that they cannot be, which another attempt would not change."""
    try:
        value = payload.dump_result(spawn.value)
    except BaseException as error:  # noqa: BLE001 - as for any result
        return unsendable(fn, spawn.value, error, started_at, ended_at)
    try:
        from procq.engine.spawning import packed  # noqa: PLC0415 - 12 ms that only those pay who spawn

        spawned = packed(spawn)
    except BaseException as error:  # noqa: BLE001 - a misuse; or what the arguments' __reduce__ raises, the task's code
        refused = failed(error, started_at, ended_at)
        refused.permanent = not isinstance(error, MemoryError)
        refused.traceback = ""  # it leads through this library alone
        return refused
    return Ended("ok", started_at, ended_at, value=value, spawned=spawned)


def unsendable(
    fn: object, value: object, error: BaseException, started_at: float = 0.0, ended_at: float = 0.0
) -> Ended:
    """Report a result that cannot be pickled (contract D9); never raises."""
    try:
        message = _unsendable(fn, value, error)
    except BaseException as worse:  # noqa: BLE001 - a name that cannot be had
        return _beyond_words(worse, started_at, ended_at)
    return Ended("error", started_at, ended_at, error_types=_PAYLOAD_ERROR_TYPES, message=message, permanent=True)


def report_no_room(size: int) -> None:
    """Fail in the place of a call that a worker has no memory for.

    Raises:
        MemoryError: Always.
    """
    raise MemoryError(f"the call is {size / 1e6:.1f} MB with its arguments, which its worker has no memory for")


def _not_loaded(error: BaseException, size: int, started_at: float, ended_at: float) -> Ended:
    """Report a call that could not be unpickled: a module is missing here, a constructor raises."""
    name, message, traceback = describe(error)
    if isinstance(error, MemoryError):  # another time, or in another worker, there may be enough
        text = f"the call of {size / 1e6:.1f} MB could not be unpickled in the worker: {message or 'no memory left'}"
        return failed(MemoryError(text).with_traceback(error.__traceback__), started_at, ended_at)
    return Ended(
        "error",
        started_at,
        ended_at,
        # No value: `result()` then shows this message, which the bare error lacks.
        error_types=class_names(type(error)),
        message=clipped(f"the call could not be unpickled in the worker: {name}: {message}"),
        traceback=traceback,
        permanent=True,
        terminated=isinstance(error, Terminated),
    )


def failed(error: BaseException, started_at: float = 0.0, ended_at: float = 0.0) -> Ended:
    """Report an error that a task raised; never raises."""
    try:
        return _failed(error, started_at, ended_at)
    except BaseException as worse:  # noqa: BLE001 - say, a class whose name cannot be had, or no memory left
        return _beyond_words(worse, started_at, ended_at)


def _beyond_words(worse: BaseException, started_at: float, ended_at: float) -> Ended:
    message = f"the attempt ended in an error that cannot be described: {type(worse).__name__}"
    return Ended("error", started_at, ended_at, error_types=("BaseException",), message=message)


def _failed(error: BaseException, started_at: float, ended_at: float) -> Ended:
    subject = error
    if isinstance(error, Permanent):
        reason = getattr(error, "reason", None)  # absent where a subclass does not call our constructor
        if isinstance(reason, BaseException):
            subject = reason
    _, message, traceback = describe(error)
    return Ended(
        "error",
        started_at,
        ended_at,
        value=_pickled(subject),
        error_types=class_names(type(subject)),
        message=message if subject is error else _message(subject),
        traceback=traceback,
        # Python's nearest to a panic is not retried (D3).
        permanent=isinstance(error, Permanent) or not isinstance(subject, Exception),
        retry_after_s=_retry_after(error) if isinstance(error, RetryLater) else None,
        terminated=isinstance(error, Terminated),
    )


def _retry_after(error: RetryLater) -> float | None:
    """Return the wait asked for; None where a subclass does not call our constructor, or spoils it."""
    delay_s = getattr(error, "delay_s", None)
    return float(delay_s) if isinstance(delay_s, (int, float)) and 0.0 <= delay_s < float("inf") else None


# --- errors as texts ---------------------------------------------------------------------------


def describe(error: BaseException) -> tuple[str, str, str]:
    """Return the name of an error's class, its message and its traceback; never raises."""
    return class_names(type(error))[0], _message(error), _traceback(error)


def _message(error: BaseException) -> str:
    try:
        text = str(error)
        if isinstance(error, Exception):
            return clipped(text)
        # The bare text of these says nothing: "3", or nothing at all.
        if isinstance(error, SystemExit):
            text = "0" if error.code is None else str(error.code)
        name = type(error).__name__
        return clipped(f"{name}: {text}" if text else name)
    except BaseException:  # noqa: BLE001 - a __str__ may raise anything
        return "(its text cannot be had: __str__ raised)"


def _traceback(error: BaseException) -> str:
    try:
        frames = _task_frames(error.__traceback__)
        if type(error) is Terminated and error.__cause__ is None and error.__context__ is None:
            return clipped("".join(_plain_traceback(frames)))
        import traceback  # noqa: PLC0415 - 6 ms that a worker without errors never pays

        return clipped("".join(traceback.format_exception(type(error), error, frames)))
    except BaseException:  # noqa: BLE001 - an error's parts are the task's code
        return "(its traceback cannot be had)"


def _plain_traceback(frames: "TracebackType | None") -> "list[str]":
    """Format the traceback of a mere `Terminated` as the module `traceback` does, its marks left aside.

    That module is an import of 6 ms, which every attempt that is stopped would pay: the first error in its
    worker is mostly the last, and somebody waits for it to be reported.
    """
    lines = ["Traceback (most recent call last):\n"]
    sources: dict[str, list[bytes]] = {}
    while frames is not None:
        code, number = frames.tb_frame.f_code, frames.tb_lineno
        name = code.co_filename
        lines.append(f'  File "{name}", line {number}, in {code.co_name}\n')
        if name not in sources:
            sources[name] = _source(name)
        text = b"".join(sources[name][number - 1 : number]).decode(errors="replace").strip()
        if text:
            lines.append(f"    {text}\n")
        frames = frames.tb_next
    lines.append(f"{class_names(Terminated)[0]}\n")
    return lines


def _source(name: str) -> "list[bytes]":
    """Return the lines of a source file; none if it cannot be read."""
    try:
        with open(name, "rb") as file:  # noqa: PTH123 - pathlib is an import more
            return file.read().split(b"\n")
    except (OSError, ValueError):
        return []


def _task_frames(frames: "TracebackType | None") -> "TracebackType | None":
    """Skip the library's own frames at the top."""
    while frames is not None and frames.tb_frame.f_code.co_filename in _OWN_FILES:
        frames = frames.tb_next
    return frames


def clipped(text: str, limit: int = TEXT_MAX) -> str:
    """Return a text, without its middle if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


# --- errors and results as bytes ---------------------------------------------------------------


def _pickled(error: BaseException) -> bytes | None:
    """Pickle an error; None if it would not come back as an error on the other side."""
    try:
        data = payload.dumps_whole(error)
        return data if isinstance(payload.loads(data), BaseException) else None
    except BaseException:  # noqa: BLE001 - an error's __reduce__ and constructor are the task's code
        return None


def _unsendable(fn: object, value: object, error: BaseException) -> str:
    """Say which result cannot be sent back, why, and what to do."""
    kind = type(value).__name__
    if kind == "coroutine":
        value.close()  # type: ignore[attr-defined]  # else Python warns that it was never awaited
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    name = getattr(fn, "__name__", None) or type(fn).__name__
    hint = f"; {_HINTS[kind]}" if kind in _HINTS else ""
    reason = _message(error) or type(error.__cause__ or error).__name__
    return f"{name} returned {article} {kind}, which cannot be sent back: {reason}{hint}"
