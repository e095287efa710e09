"""What supervisor and worker say to each other, as bytes (DESIGN 3).

Rules: no sockets here; nothing is unpickled, because the supervisor must never run a task's
code; whatever the bytes are, a decoder returns a message or raises `WireError`.  Both sides
import this module, so it imports only `struct` and the words of an outcome.

A frame is one message.  Most travel as one packet, `head + body` in one piece.  A frame of
more than `PACKET_MAX` bytes is announced by a small packet and follows on a stream, the head
first: its body is then never joined with anything, so that a big result is copied once.

    TASK   head: numbers, task id, lengths of the inputs    body: the call, then the inputs
           (several may follow each other in one packet)
    ENDED  head: numbers, texts of the error                body: the pickled value
    HELLO  head: numbers, texts of the surroundings         body: the pickled initializer
    LOG    a log record as JSON, always one packet
"""

import struct

from procq.outcome import Ended

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final, TypeAlias


#: One message: a packet, or the pieces of a frame too big for one: the head, then the body.
Frame: "TypeAlias" = bytes | list[bytes]
#: What a decoder reads.
Data: "TypeAlias" = bytes | bytearray | memoryview

#: The biggest frame sent as one packet, in bytes.  A socket of default size (208 KiB) holds at
#: least two of them, so that a packet sent ahead fits while another is unread; above this the
#: stream's extra packet (2 us) no longer matters.
PACKET_MAX: "Final" = 64 * 1024

#: What a worker exits with when it cannot reach its supervisor any more although it lives:
#: the task closed the worker's descriptors.  An arbitrary number outside of those in common use.
EXIT_PIPES_LOST: "Final" = 84
#: What a worker exits with when it could not start; START_FAILED, sent before, says why.
EXIT_START_FAILED: "Final" = 85

# The first byte of every packet, told apart from what random bytes look like only by its range.
_HELLO, _TASK, _EXIT, _READY, _START_FAILED, _ENDED, _PROGRESS, _BULK = range(1, 9)
_DROP, _DROPPED, _LOG = 9, 10, 11

#: kind, attempt, fence, length of the id, number of inputs, seq, timeout, length of the call
_TASK_HEAD = struct.Struct("<BxxxIIIIQdQ")
#: kind, outcome (0 ok, 1 error: the others are the supervisor's verdicts), flags, fence, seq,
#: started_at, ended_at, cpu_s, peak RSS, retry_after_s, lengths of the value, of the class names, of
#: the message, of the traceback
_ENDED_HEAD = struct.Struct("<BBBxIQdddQdQIII")
#: kind, worker id, cpus, workers, counts of path, argv, jobs and loggers, what logging is disabled
#: up to, length of the initializer
_HELLO_HEAD = struct.Struct("<BxxxIIIIIIIiQ")
#: kind, fence, seq, done, total
_PROGRESS_FRAME = struct.Struct("<BxxxIQdd")
#: kind, length of the announced frame's head, of its body
_BULK_FRAME = struct.Struct("<BxxxxxxxQQ")
#: A text's length, before the text.
_LENGTH = struct.Struct("<I")
#: A logger's level.
_LEVEL = struct.Struct("<i")
#: Levels beyond this count as this: what comes up and what goes down are compared, never added.
_LEVEL_MAX: "Final" = 2**31 - 1

_TEXT, _TEXT_OR_NONE, _NUMBER_OR_NONE = (str,), (str, type(None)), (int, type(None))
#: The parts of a log record, and what each may be.
_RECORD_PARTS: "Final[Mapping[str, tuple[type, ...]]]" = {
    "name": _TEXT, "levelno": (int,), "levelname": _TEXT, "message": _TEXT, "pathname": _TEXT, "lineno": (int,),
    "funcName": _TEXT_OR_NONE, "created": (float,), "process": _NUMBER_OR_NONE, "processName": _TEXT_OR_NONE,
    "thread": _NUMBER_OR_NONE, "threadName": _TEXT_OR_NONE, "taskName": _TEXT_OR_NONE, "exc_text": _TEXT_OR_NONE,
    "stack_info": _TEXT_OR_NONE, "task_id": _TEXT_OR_NONE, "attempt": _NUMBER_OR_NONE, "extra": (dict,),
}  # fmt: skip
#: What a record takes besides its texts: a dictionary of that many parts (measured: 1.1 KB).
_RECORD_BYTES: "Final" = 1024
#: What an extra attribute of a record may be; the rest stays in the worker.
PLAIN: "Final" = (str, int, float, type(None))
#: Instants of records are seconds from 1970, and no clock shows one as far off as this (30,000 years).
_CREATED_MAX: "Final" = 1e12

# The hottest calls, bound once.
_unpack_task_head = _TASK_HEAD.unpack_from
_unpack_ended_head = _ENDED_HEAD.unpack_from
_TASK_HEAD_SIZE: "Final" = _TASK_HEAD.size
_ENDED_HEAD_SIZE: "Final" = _ENDED_HEAD.size

_INFINITY: "Final" = float("inf")
_PERMANENT, _TERMINATED, _HAS_VALUE, _HAS_RETRY_AFTER = 1, 2, 4, 8
_NO_TIMEOUT = -1.0

#: Told to a worker that shall leave.
EXIT_FRAME: "Final" = bytes([_EXIT])
#: Said by a worker that can take tasks.
READY_FRAME: "Final" = bytes([_READY])
#: Told to a worker whose unclaimed tasks were taken back: it shall forget them.
DROP_FRAME: "Final" = bytes([_DROP])
#: Said by a worker that has.
DROPPED_FRAME: "Final" = bytes([_DROPPED])


class WireError(Exception):
    """The other side sent something that is no message."""


# --- messages ----------------------------------------------------------------------------------


class Hello:
    """Surroundings for a new worker: the first message down.

    Attributes:
        levels: The levels that were set, by logger's name; "root" is the root's.
        disable: Up to which level logging is disabled altogether.
    """

    __slots__ = ("argv", "cpus", "disable", "initializer", "jobs", "levels", "path", "worker_id", "workers")

    def __init__(
        self,
        worker_id: int,
        *,
        cpus: int,
        workers: int,
        path: "Sequence[str]",
        argv: "Sequence[str]",
        jobs: "Mapping[str, str]",
        initializer: bytes = b"",
        levels: "Mapping[str, int] | None" = None,
        disable: int = 0,
    ) -> None:
        self.worker_id = worker_id
        self.cpus = cpus
        self.workers = workers
        self.path = path
        self.argv = argv
        self.jobs = jobs
        self.initializer = initializer
        self.levels = {} if levels is None else levels
        self.disable = disable


class Task:
    """One attempt to run.

    Attributes:
        seq: The task's number, the same for all its attempts.
        fence: How often the task was started; with `seq` it names this start alone.
        attempt: The attempt's number as the task sees it.
        timeout_s: The longest it may run, or None.
        task_id: Its id.
        call: The pickled call.
        inputs: The pickled results that it takes, in the order of their numbers.
    """

    __slots__ = ("attempt", "call", "fence", "inputs", "seq", "task_id", "timeout_s")

    def __init__(
        self,
        seq: int,
        fence: int,
        attempt: int,
        timeout_s: float | None,
        task_id: str,
        call: bytes,
        inputs: "Sequence[bytes]",
    ) -> None:
        self.seq = seq
        self.fence = fence
        self.attempt = attempt
        self.timeout_s = timeout_s
        self.task_id = task_id
        self.call = call
        self.inputs = inputs


class Leave:
    """The worker shall leave."""

    __slots__ = ()


class Drop:
    """The worker shall forget all tasks that it has not claimed."""

    __slots__ = ()


class Dropped:
    """The worker has forgotten all tasks that it had not claimed."""

    __slots__ = ()


class Ready:
    """The worker can take tasks."""

    __slots__ = ()


class StartFailed:
    """The worker could not start."""

    __slots__ = ("error_type", "message", "traceback")

    def __init__(self, error_type: str, message: str, traceback: str) -> None:
        self.error_type = error_type
        self.message = message
        self.traceback = traceback


class Report:
    """An attempt ended; `seq` and `fence` name it."""

    __slots__ = ("ended", "fence", "seq")

    def __init__(self, seq: int, fence: int, ended: Ended) -> None:
        self.seq = seq
        self.fence = fence
        self.ended = ended


class Progress:
    """A running attempt says how far it is."""

    __slots__ = ("done", "fence", "seq", "total")

    def __init__(self, seq: int, fence: int, done: float, total: float) -> None:
        self.seq = seq
        self.fence = fence
        self.done = done
        self.total = total


class Record:
    """Something was logged in the worker.

    Attributes:
        parts: Texts and numbers by name: all of `_RECORD_PARTS`, checked.
        size: About how much memory it takes until it is handled, in bytes.
    """

    __slots__ = ("parts", "size")

    def __init__(self, parts: "Mapping[str, object]", size: int) -> None:
        self.parts = parts
        self.size = size


class Bulk:
    """A frame too big for a packet follows on the stream."""

    __slots__ = ("body_size", "head_size")

    def __init__(self, head_size: int, body_size: int) -> None:
        self.head_size = head_size
        self.body_size = body_size


#: What goes down to a worker, and what comes up from it.
DownMessage: "TypeAlias" = Hello | list[Task] | Drop | Leave | Bulk
UpMessage: "TypeAlias" = Ready | StartFailed | Report | Progress | Record | Dropped | Bulk


# --- down --------------------------------------------------------------------------------------


def pack_hello(hello: Hello) -> Frame:
    """Pack the first message down."""
    head = _HELLO_HEAD.pack(
        _HELLO, hello.worker_id, hello.cpus, hello.workers, len(hello.path), len(hello.argv), len(hello.jobs),
        len(hello.levels), _bounded(hello.disable), len(hello.initializer),
    )  # fmt: skip
    texts = (*hello.path, *hello.argv, *hello.jobs.keys(), *hello.jobs.values(), *hello.levels.keys())
    levels = [_LEVEL.pack(_bounded(level)) for level in hello.levels.values()]
    return _frame(b"".join([head, *map(_pack_text, texts), *levels]), [hello.initializer])


def _bounded(level: int) -> int:
    return max(-_LEVEL_MAX, min(level, _LEVEL_MAX))


def pack_task(
    seq: int,
    fence: int,
    attempt: int,
    timeout_s: float | None,
    task_id: str,
    call: bytes,
    inputs: "Sequence[bytes]" = (),
) -> Frame:
    """Pack one attempt to run; see `Task` for the parts, which come one by one as an object costs 0.3 us."""
    name = task_id.encode("utf-8", "surrogatepass")
    head = (
        _TASK_HEAD.pack(
            _TASK, attempt, fence, len(name), len(inputs), seq,
            _NO_TIMEOUT if timeout_s is None else timeout_s, len(call),
        )
        + name
    )  # fmt: skip
    if inputs:
        head += struct.pack(f"<{len(inputs)}Q", *map(len, inputs))
    elif len(head) + len(call) <= PACKET_MAX:
        return head + call
    return _frame(head, [call, *inputs])


def unpack_down(head: Data, body: Data | None = None) -> DownMessage:
    """Read a message of the supervisor.

    Args:
        head: A packet, or the head of a frame from the stream.
        body: The body of a frame from the stream.  Then the payloads of the message are
            views of it, not copies.

    Raises:
        WireError: It is none.
    """
    try:
        kind = head[0]
        if kind == _TASK:
            return _unpack_tasks(head) if body is None else [_unpack_big_task(head, body)]
        if kind == _HELLO:
            return _unpack_hello(head, body)
        if body is None and kind == _EXIT and len(head) == 1:
            return Leave()
        if body is None and kind == _DROP and len(head) == 1:
            return Drop()
        if body is None and kind == _BULK:
            return Bulk(*_BULK_FRAME.unpack(head)[1:])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(head, str(error)) from error
    raise _malformed(head, "unknown kind")


def _unpack_tasks(packet: Data) -> list[Task]:
    """Read the tasks of a packet, one behind the other."""
    tasks = []
    at = 0
    while True:
        kind, attempt, fence, id_size, inputs_count, seq, timeout_s, call_size = _unpack_task_head(packet, at)
        if kind != _TASK:
            raise _malformed(packet, "no task behind a task")
        start = at + _TASK_HEAD_SIZE
        call_at = start + id_size
        lengths: tuple[int, ...] = ()
        if inputs_count:
            _need(packet, call_at + 8 * inputs_count)
            lengths = struct.unpack_from(f"<{inputs_count}Q", packet, call_at)
        task_id = str(packet[start:call_at], "utf-8", "surrogatepass")
        call_at += 8 * inputs_count
        at = call_at + call_size
        call = packet[call_at:at]
        inputs = []
        for length in lengths:
            inputs.append(packet[at : at + length])
            at += length
        tasks.append(Task(seq, fence, attempt, None if timeout_s < 0 else timeout_s, task_id, call, inputs))  # type: ignore[arg-type]  # views serve as bytes
        if at >= len(packet):
            if at > len(packet):
                raise _malformed(packet, "packet of the wrong length")
            return tasks


def _unpack_big_task(head: Data, body: Data) -> Task:
    """Read a task that came through the stream; its payloads are views of the body."""
    _, attempt, fence, id_size, inputs_count, seq, timeout_s, call_size = _unpack_task_head(head)
    start = _TASK_HEAD_SIZE + id_size
    if len(head) != start + 8 * inputs_count:
        raise _malformed(head, "head of the wrong length")
    lengths = struct.unpack_from(f"<{inputs_count}Q", head, start)
    if len(body) != call_size + sum(lengths):
        raise _malformed(head, "body of the wrong length")
    task_id = str(head[_TASK_HEAD_SIZE:start], "utf-8", "surrogatepass")
    inputs = []
    at = call_size
    for length in lengths:
        inputs.append(body[at : at + length])
        at += length
    return Task(seq, fence, attempt, None if timeout_s < 0 else timeout_s, task_id, body[:call_size], inputs)  # type: ignore[arg-type]  # views serve as bytes


def _unpack_hello(head: Data, body: Data | None) -> Hello:
    _, worker_id, cpus, workers, paths, args, jobs, loggers, disable, initializer_size = _HELLO_HEAD.unpack_from(head)
    count = paths + args + 2 * jobs + loggers
    # Each text takes at least its length, so a hostile count is seen before anything is built.
    _need(head, _HELLO_HEAD.size + _LENGTH.size * count + _LEVEL.size * loggers)
    texts, start = _unpack_texts(head, _HELLO_HEAD.size, count)
    levels = struct.unpack_from(f"<{loggers}i", head, start)
    start += _LEVEL.size * loggers
    if body is None:
        body = head[start:]
    elif len(head) != start:
        raise _malformed(head, "head of the wrong length")
    if len(body) != initializer_size:
        raise _malformed(head, "body of the wrong length")
    names = texts[paths + args :]
    return Hello(
        worker_id,
        cpus=cpus,
        workers=workers,
        path=texts[:paths],
        argv=texts[paths : paths + args],
        jobs=dict(zip(names[:jobs], names[jobs : 2 * jobs], strict=True)),
        initializer=bytes(body),
        levels=dict(zip(names[2 * jobs :], levels, strict=True)),
        disable=disable,
    )


# --- up ----------------------------------------------------------------------------------------


def pack_ended(seq: int, fence: int, ended: Ended) -> Frame:
    """Pack the report on an attempt.

    Its `pid`, `exit_code` and `signal` do not travel: the supervisor knows them.
    """
    value = ended.value
    retry_after_s = ended.retry_after_s
    flags = (
        (_PERMANENT if ended.permanent else 0)
        | (_TERMINATED if ended.terminated else 0)
        | (0 if value is None else _HAS_VALUE)
        | (0 if retry_after_s is None else _HAS_RETRY_AFTER)
    )
    names, message, traceback = b"", b"", b""
    if ended.outcome != "ok":
        names = "\n".join(ended.error_types).encode("utf-8", "backslashreplace")
        message = ended.message.encode("utf-8", "backslashreplace")
        traceback = ended.traceback.encode("utf-8", "backslashreplace")
    head = _ENDED_HEAD.pack(
        _ENDED, 0 if ended.outcome == "ok" else 1, flags, fence, seq,
        ended.started_at, ended.ended_at, ended.cpu_s, ended.peak_rss_bytes,
        0.0 if retry_after_s is None else retry_after_s,
        0 if value is None else len(value), len(names), len(message), len(traceback),
    )  # fmt: skip
    if ended.outcome != "ok":
        head += names + message + traceback
    if value is None:
        value = b""
    if len(head) + len(value) <= PACKET_MAX:
        return head + value
    return [head, value]


def pack_start_failed(failed: StartFailed) -> Frame:
    """Pack why a worker could not start."""
    texts = (failed.error_type, failed.message, failed.traceback)
    return _frame(b"".join([bytes([_START_FAILED]), *map(_pack_text, texts)]), [])


def pack_progress(seq: int, fence: int, done: float, total: float) -> bytes:
    """Pack how far an attempt is.

    Raises:
        struct.error: `done` or `total` is no number.
    """
    return _PROGRESS_FRAME.pack(_PROGRESS, fence, seq, done, total)


def pack_record(parts: "Mapping[str, object]") -> bytes:
    """Pack a log record; whoever sends it sees to it that it is no longer than `PACKET_MAX`.

    Args:
        parts: As of `Record`; `extra` holds nothing that is not `PLAIN`.
    """
    import json  # noqa: PLC0415 - only where something is logged

    return bytes([_LOG]) + json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")


def unpack_up(head: Data, body: bytes | None = None) -> UpMessage:
    """Read a message of a worker.

    Args:
        head: A packet, or the head of a frame from the stream.
        body: The body of a frame from the stream; it becomes the message's value as it is.

    Raises:
        WireError: It is none.
    """
    try:
        kind = head[0]
        if kind == _ENDED:
            return _unpack_ended(head, body)
        if kind == _START_FAILED and not body:
            (error_type, message, traceback), end = _unpack_texts(head, 1, 3)
            if len(head) == end:
                return StartFailed(error_type, message, traceback)
        elif body is None and kind == _PROGRESS:
            _, fence, seq, done, total = _PROGRESS_FRAME.unpack(head)
            return Progress(seq, fence, done, total)
        elif body is None and kind == _LOG:
            return _unpack_record(head)
        elif body is None and kind == _READY and len(head) == 1:
            return Ready()
        elif body is None and kind == _DROPPED and len(head) == 1:
            return Dropped()
        elif body is None and kind == _BULK:
            return Bulk(*_BULK_FRAME.unpack(head)[1:])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(head, str(error)) from error
    raise _malformed(head, "unknown kind")


def _unpack_ended(head: Data, body: bytes | None) -> Report:
    (
        _, outcome, flags, fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes, retry_after_s,
        value_size, names_size, message_size, traceback_size,
    ) = _unpack_ended_head(head)  # fmt: skip
    start = _ENDED_HEAD_SIZE
    names: tuple[str, ...] = ()
    message = traceback = ""
    if outcome:
        names_end = start + names_size
        message_end = names_end + message_size
        start = message_end + traceback_size
        _need(head, start)
        # A task's words may hold anything; they are for reading only, so they never fail.
        names = tuple(str(head[_ENDED_HEAD_SIZE:names_end], "utf-8", "replace").splitlines())
        message = str(head[names_end:message_end], "utf-8", "replace")
        traceback = str(head[message_end:start], "utf-8", "replace")
    if body is None:
        body = bytes(head[start:])
    elif len(head) != start:
        raise _malformed(head, "head of the wrong length")
    # Comparisons that NaN fails, for the scheduler's heaps rely on an order among numbers.
    if (
        len(body) != value_size
        or outcome > 1
        or not started_at <= ended_at
        or not 0.0 <= retry_after_s < _INFINITY
        or not (flags & _HAS_VALUE or (outcome and not body))
    ):
        raise _malformed(head, "parts that do not fit together")
    ended = Ended(
        "error" if outcome else "ok",
        started_at,
        ended_at,
        value=body if flags & _HAS_VALUE else None,
        cpu_s=cpu_s,
        peak_rss_bytes=peak_rss_bytes,
    )
    if outcome:
        ended.error_types = names
        ended.message = message
        ended.traceback = traceback
        ended.permanent = flags & _PERMANENT != 0
        if flags & _HAS_RETRY_AFTER:
            ended.retry_after_s = retry_after_s
    if flags & _TERMINATED:
        ended.terminated = True
    return Report(seq, fence, ended)


def _unpack_record(head: Data) -> Record:
    import json  # noqa: PLC0415 - only where something is logged

    try:
        parts = json.loads(str(head[1:], "utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:  # no text, no JSON, or lists in lists without end
        raise _malformed(head, str(error)) from error
    if (
        not isinstance(parts, dict)
        or parts.keys() != _RECORD_PARTS.keys()
        or not all(isinstance(parts[name], kinds) for name, kinds in _RECORD_PARTS.items())
        or not -_CREATED_MAX < parts["created"] < _CREATED_MAX
        or not all(isinstance(value, PLAIN) for value in parts["extra"].values())
    ):
        raise _malformed(head, "no log record")
    return Record(parts, len(head) + _RECORD_BYTES)


# --- both --------------------------------------------------------------------------------------


def announce(frame: "Sequence[bytes]") -> bytes:
    """Pack the packet that announces a frame on the stream."""
    head, *body = frame
    return _BULK_FRAME.pack(_BULK, len(head), sum(map(len, body)))


def _frame(head: bytes, body: "list[bytes]") -> Frame:
    """Join what fits into one packet."""
    if len(head) + sum(map(len, body)) <= PACKET_MAX:
        return b"".join([head, *body])
    return [head, *body]


def _pack_text(text: str) -> bytes:
    # `surrogatepass`: paths and arguments that are not UTF-8 hold lone surrogates.
    data = text.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


def _unpack_texts(data: Data, start: int, count: int) -> tuple[list[str], int]:
    """Read texts and return them with where they end."""
    texts = []
    for _ in range(count):
        (size,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        _need(data, start + size)
        texts.append(str(data[start : start + size], "utf-8", "surrogatepass"))
        start += size
    return texts, start


def _need(data: Data, size: int) -> None:
    """Refuse lengths that the data cannot have, before anything of such a length is made."""
    if len(data) < size:
        raise _malformed(data, f"{size} bytes announced")


def _malformed(data: Data, why: str) -> WireError:
    return WireError(f"no message: {why}; {len(data)} bytes, beginning with {bytes(data[:16])!r}")
