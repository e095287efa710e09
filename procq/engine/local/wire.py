"""What supervisor and worker say to each other, as bytes (DESIGN 3).

Rules: no sockets here; nothing is unpickled, because the supervisor must never run a task's
code; whatever the bytes are, a decoder returns a message or raises `WireError`.  Both sides
import this module, so it imports only `struct` and the words of an outcome.

Down, a frame is one message.  Most travel as one packet, `head + body` in one piece.  A frame
of more than `PACKET_MAX` bytes is announced by a small packet and follows on a stream, the head
first: its body is then never joined with anything, so that a big payload is copied once.  Then come
the buffers that stand beside its pickles, each read into memory of its own.

    TASK   head: numbers, task id, lengths of the inputs    body: the call, then the inputs
           (several may follow each other in one packet)
    HELLO  head: numbers, texts of the surroundings         body: the pickled initializer

Up, everything is a stream of frames, so that one read takes many.  A frame begins with its kind
and says how long it is.

    OK     head: numbers of an attempt that succeeded       body: the pickled value
           (nearly all that a worker says, hence a head of its own)
    others head: kind, number of buffers, length of the rest of the head, length of the body;
           then the rest; then the lengths of the buffers, which follow the body
    BIG_OK rest: numbers of an attempt that succeeded       body: the pickled value; and buffers
    ENDED  rest: numbers, texts of the error                body: the pickled error, or value and buffers
    SPAWNED rest: numbers, lengths, a list of tasks         body: the pickled value and calls, and all their buffers
    LOG    rest: a log record as JSON, always one piece     no body
"""

import struct
from itertools import islice

from procq.outcome import Ended, Spawned
from procq.parcel import BESIDE_BYTES, Buffer, Parcel, Payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Final, TypeAlias


#: A frame too big for one piece: head, body, buffers; down before them the packet that announces it.
Pieces: "TypeAlias" = list[bytes | memoryview]
#: One message.
Frame: "TypeAlias" = bytes | Pieces
#: The buffers beside one payload.
Buffers: "TypeAlias" = list[Buffer]
#: What a decoder reads.
Data: "TypeAlias" = bytes | bytearray | memoryview

#: The biggest frame sent as one packet, in bytes.  A socket of default size (208 KiB) holds at
#: least two of them, so that a packet sent ahead fits while another is unread; above this the
#: stream's extra packet (2 us) no longer matters.
PACKET_MAX: "Final" = 64 * 1024

#: The biggest frame that a worker sends in one piece, in bytes.  A frame up to this size is one
#: buffer in the kernel (at least 32 KiB since Linux 3.18), so that it is sent whole or not at all
#: and nothing gets between its parts; a bigger one is not worth a copy more to be joined.
PIECE_MAX: "Final" = 32 * 1024

#: What a worker exits with when it cannot reach its supervisor any more although it lives:
#: the task closed the worker's descriptors.  An arbitrary number outside of those in common use.
EXIT_PIPES_LOST: "Final" = 84
#: What a worker exits with when it could not start; START_FAILED, sent before, says why.
EXIT_START_FAILED: "Final" = 85
#: What a worker exits with when it was interrupted while it waited for an answer.
EXIT_ASKED: "Final" = 86

# The first byte of every packet and frame, told apart from what random bytes look like only by its range.
_HELLO, _TASK, _EXIT, _READY, _START_FAILED, _ENDED, _PROGRESS, _BULK = range(1, 9)
_DROP, _DROPPED, _LOG, _OK, _BIG_OK, _WANTED, _FORGET, _FORGOTTEN, _SPAWNED = 9, 10, 11, 12, 13, 14, 15, 16, 17

#: kind, attempt, fence, length of the id, number of inputs, seq, timeout, length of the call
_TASK_HEAD = struct.Struct("<BxxxIIIIQdQ")
#: kind, fence, seq, started_at, ended_at, cpu_s, peak RSS, length of the value
_OK_HEAD = struct.Struct("<IIQdddQQ")
#: kind with the number of buffers above it, lengths of the rest of the head without theirs, and of the body
_UP_HEAD = struct.Struct("<IIQ")
_KIND_BITS: "Final" = 8
#: fence, seq, started_at, ended_at, cpu_s, peak RSS
_BIG_OK_HEAD = struct.Struct("<IQdddQ")
#: outcome (0 ok, 1 error: the others are the supervisor's verdicts), flags, fence, seq, started_at,
#: ended_at, cpu_s, peak RSS, retry_after_s, lengths of the class names, of the message, of the traceback
_ENDED_HEAD = struct.Struct("<BBxxIQdddQdIII")
#: fence, seq, started_at, ended_at, cpu_s, peak RSS, flags, number of payloads; then of each the length of its
#: pickle and its number of buffers
_SPAWNED_HEAD = struct.Struct("<IQdddQII")
_SPAWNED_PART = struct.Struct("<QI")
#: kind, worker id, cpus, workers, counts of path, argv, jobs and loggers, what logging is disabled
#: up to, length of the initializer's pickle
_HELLO_HEAD = struct.Struct("<BxxxIIIIIIIiQ")
#: fence, seq, done, total
_PROGRESS_HEAD = struct.Struct("<IQdd")
#: kind, numbers of payloads and of buffers, lengths of the announced frame's head and of its body.
#: The head ends with the number of each payload's buffers, and their lengths, marked if they are bytes.
_BULK_FRAME = struct.Struct("<BxxxIIQQ")
#: the key of shared memory
_WANTED_HEAD = struct.Struct("<Q")
#: kind; the keys of shared memory follow
_FORGET_HEAD = struct.Struct("<Bxxxxxxx")
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
_unpack_ok_head = _OK_HEAD.unpack_from
_pack_ok_head = _OK_HEAD.pack
_TASK_HEAD_SIZE: "Final" = _TASK_HEAD.size
_OK_HEAD_SIZE: "Final" = _OK_HEAD.size
_UP_HEAD_SIZE: "Final" = _UP_HEAD.size

#: Lengths that no frame of a worker has, in bytes: of what a head names, as texts are cut to some
#: 100 KB, and of a body, which a process must be able to hold.  Who announces them sent garbage.
_REST_MAX: "Final" = 2**26
_BODY_MAX: "Final" = 2**47
#: Nor so many buffers, which would be 64 GB at least.
_BUFFERS_MAX: "Final" = 2**20

#: Marks the length of a buffer that shall be read as `bytes`.
IS_BYTES: "Final" = 2**63

_INFINITY: "Final" = float("inf")
_PERMANENT, _TERMINATED, _HAS_VALUE, _HAS_RETRY_AFTER = 1, 2, 4, 8
_NO_TIMEOUT = -1.0

#: Told to a worker that shall leave.
EXIT_FRAME: "Final" = bytes([_EXIT])
#: Said by a worker that can take tasks.
READY_FRAME: "Final" = _UP_HEAD.pack(_READY, 0, 0)
#: Told to a worker whose unclaimed tasks were taken back: it shall forget them.
DROP_FRAME: "Final" = bytes([_DROP])
#: Said by a worker that has.
DROPPED_FRAME: "Final" = _UP_HEAD.pack(_DROPPED, 0, 0)
#: Said by a worker that has let go of shared memory.
FORGOTTEN_FRAME: "Final" = _UP_HEAD.pack(_FORGOTTEN, 0, 0)


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
        initializer: Payload = b"",
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
    """An attempt ended otherwise than by a plain success; `seq` and `fence` name it."""

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


class Wanted:
    """An attempt needs shared memory that its call refers to, and waits for the descriptor."""

    __slots__ = ("key",)

    def __init__(self, key: int) -> None:
        self.key = key


class Forget:
    """Shared memory will not be referred to again."""

    __slots__ = ("keys",)

    def __init__(self, keys: "Sequence[int]") -> None:
        self.keys = keys


class Forgotten:
    """The worker has let go of that."""

    __slots__ = ()


class Bulk:
    """A frame too big for a packet follows on the stream."""

    __slots__ = ("body_size", "buffers", "head_size", "payloads")

    def __init__(self, payloads: int, buffers: int, head_size: int, body_size: int) -> None:
        self.payloads = payloads
        self.buffers = buffers
        self.head_size = head_size
        self.body_size = body_size


class Unread:
    """There was no memory for an attempt that was sent; all of it but the payloads is known.

    Attributes:
        task: The attempt, its payloads empty.
        size: How long those are, in bytes.
    """

    __slots__ = ("size", "task")

    def __init__(self, task: "Task", size: int) -> None:
        self.task = task
        self.size = size


#: One attempt to run, a plain tuple since each task comes as one: seq (the task's number, the same
#: for all its attempts), fence (how often the task was started; with seq it names this start alone),
#: the attempt's number as the task sees it, timeout_s or None, the task's id in UTF-8 (`id_text`
#: reads it), the pickled call, and the pickled results that it takes in the order of their numbers.
Task: "TypeAlias" = tuple[int, int, int, float | None, bytes, Payload, list[Payload]]
#: An attempt that succeeded: seq, fence, pickled value, started_at, ended_at, cpu_s, peak RSS in bytes.
Success: "TypeAlias" = tuple[int, int, Payload, float, float, float, int]
#: What goes down to a worker, and what comes up from it.
DownMessage: "TypeAlias" = Hello | list[Task] | Drop | Leave | Bulk | Forget | Unread
OtherMessage: "TypeAlias" = Ready | StartFailed | Report | Progress | Record | Dropped | Wanted | Forgotten
UpMessage: "TypeAlias" = Success | OtherMessage


# --- down --------------------------------------------------------------------------------------


def pack_hello(hello: Hello) -> Frame:
    """Pack the first message down."""
    pickle = hello.initializer.data if isinstance(hello.initializer, Parcel) else hello.initializer
    head = _HELLO_HEAD.pack(
        _HELLO, hello.worker_id, hello.cpus, hello.workers, len(hello.path), len(hello.argv), len(hello.jobs),
        len(hello.levels), _bounded(hello.disable), len(pickle),
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
    call: Payload,
    inputs: "Sequence[Payload]" = (),
) -> Frame:
    """Pack one attempt to run; see `Task` for the parts."""
    name = task_id.encode("utf-8", "surrogatepass")
    pickle = call.data if isinstance(call, Parcel) else call
    head = (
        _TASK_HEAD.pack(
            _TASK, attempt, fence, len(name), len(inputs), seq,
            _NO_TIMEOUT if timeout_s is None else timeout_s, len(pickle),
        )
        + name
    )  # fmt: skip
    if inputs:
        head += struct.pack(
            f"<{len(inputs)}Q", *[len(given.data if isinstance(given, Parcel) else given) for given in inputs]
        )
    elif pickle is call and len(head) + len(pickle) <= PACKET_MAX:
        return head + pickle
    return _frame(head, [call, *inputs])


def pack_forget(keys: "Sequence[int]") -> bytes:
    """Pack that shared memory will not be referred to again; together with its head no more than a packet."""
    return _FORGET_HEAD.pack(_FORGET) + struct.pack(f"<{len(keys)}Q", *keys)


def unpack_down(head: Data, body: Data | None = None, buffers: "Sequence[Buffers]" = ()) -> DownMessage:
    """Read a message of the supervisor.

    Args:
        head: A packet, or the head of a frame from the stream, as `split_head` leaves it.
        body: The body of a frame from the stream.  Then the payloads of the message are
            views of it, not copies.
        buffers: The buffers that followed, for each payload.

    Raises:
        WireError: It is none.
    """
    try:
        kind = head[0]
        if kind == _TASK:
            return _unpack_tasks(head) if body is None else [_unpack_big_task(head, body, buffers)]
        if kind == _HELLO:
            return _unpack_hello(head, body, buffers)
        if body is None and kind == _EXIT and len(head) == 1:
            return Leave()
        if body is None and kind == _DROP and len(head) == 1:
            return Drop()
        if body is None and kind == _FORGET:
            return Forget(struct.unpack(f"<{(len(head) - _FORGET_HEAD.size) // 8}Q", head[_FORGET_HEAD.size :]))
        if body is None and kind == _BULK:
            return Bulk(*_BULK_FRAME.unpack(head)[1:])
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(head, str(error)) from error
    raise _malformed(head, "unknown kind")


def split_head(bulk: Bulk, head: Data) -> "tuple[Data, list[list[tuple[int, bool]]]]":
    """Split the head of a frame from the stream from the lengths of its buffers, for each payload.

    Each length comes with whether the buffer shall be read as `bytes`.

    Raises:
        WireError: It has none, or others.
    """
    counts_at = len(head) - 4 * bulk.payloads - 8 * bulk.buffers
    if counts_at < 0:
        raise _malformed(head, "head of the wrong length")
    counts = struct.unpack_from(f"<{bulk.payloads}I", head, counts_at)
    marked = struct.unpack_from(f"<{bulk.buffers}Q", head, counts_at + 4 * bulk.payloads)
    sizes = iter([(unmarked(size), is_marked(size)) for size in marked])
    if sum(counts) != bulk.buffers:
        raise _malformed(head, "buffers that belong to nothing")
    return head[:counts_at], [list(islice(sizes, count)) for count in counts]


def unpack_unread(head: Data, size: int) -> Unread:
    """Read what is known of a task that came through the stream and did not fit into memory.

    Raises:
        WireError: It is no task.
    """
    try:
        kind, attempt, fence, id_size, _, seq, timeout_s, _ = _unpack_task_head(head)
    except struct.error as error:
        raise _malformed(head, str(error)) from error
    if kind != _TASK:
        raise _malformed(head, "too big for this process, and no task")
    name = bytes(head[_TASK_HEAD_SIZE : _TASK_HEAD_SIZE + id_size])
    return Unread((seq, fence, attempt, None if timeout_s < 0 else timeout_s, name, b"", []), size)


def id_text(data: Data) -> str:
    """Return the id in a `Task`."""
    return str(data, "utf-8", "surrogatepass")


def _unpack_tasks(packet: Data) -> "list[Task]":
    """Read the tasks of a packet, one behind the other."""
    tasks: list[Task] = []
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
        name: bytes = packet[start:call_at]  # type: ignore[assignment]  # views serve as bytes
        call_at += 8 * inputs_count
        at = call_at + call_size
        call: bytes = packet[call_at:at]  # type: ignore[assignment]
        inputs: list[Payload] = []
        for length in lengths:
            inputs.append(packet[at : at + length])  # type: ignore[arg-type]
            at += length
        tasks.append((seq, fence, attempt, None if timeout_s < 0 else timeout_s, name, call, inputs))
        if at >= len(packet):
            if at > len(packet):
                raise _malformed(packet, "packet of the wrong length")
            return tasks


def _unpack_big_task(head: Data, body: Data, buffers: "Sequence[Buffers]") -> "Task":
    """Read a task that came through the stream; its pickles are views of the body."""
    _, attempt, fence, id_size, inputs_count, seq, timeout_s, call_size = _unpack_task_head(head)
    start = _TASK_HEAD_SIZE + id_size
    if len(head) != start + 8 * inputs_count or len(buffers) != 1 + inputs_count:
        raise _malformed(head, "head of the wrong length")
    lengths = struct.unpack_from(f"<{inputs_count}Q", head, start)
    if len(body) != call_size + sum(lengths):
        raise _malformed(head, "body of the wrong length")
    name: bytes = head[_TASK_HEAD_SIZE:start]  # type: ignore[assignment]  # views serve as bytes
    inputs: list[Payload] = []
    at = call_size
    for length, beside in zip(lengths, buffers[1:], strict=True):
        inputs.append(_payload(body[at : at + length], beside))
        at += length
    return (
        seq,
        fence,
        attempt,
        None if timeout_s < 0 else timeout_s,
        name,
        _payload(body[:call_size], buffers[0]),
        inputs,
    )


def _payload(data: Data, beside: "Sequence[Buffer]") -> Payload:
    return Parcel(data, beside) if beside else data  # type: ignore[arg-type,return-value]  # views serve as bytes


def _unpack_hello(head: Data, body: Data | None, buffers: "Sequence[Buffers]") -> Hello:
    _, worker_id, cpus, workers, paths, args, jobs, loggers, disable, initializer_size = _HELLO_HEAD.unpack_from(head)
    count = paths + args + 2 * jobs + loggers
    # Each text takes at least its length, so a hostile count is seen before anything is built.
    _need(head, _HELLO_HEAD.size + _LENGTH.size * count + _LEVEL.size * loggers)
    texts, start = _unpack_texts(head, _HELLO_HEAD.size, count)
    levels = struct.unpack_from(f"<{loggers}i", head, start)
    start += _LEVEL.size * loggers
    if body is None:
        body, buffers = head[start:], ((),)  # type: ignore[assignment]  # none, for the one payload
    elif len(head) != start or len(buffers) != 1:
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
        initializer=_payload(bytes(body), buffers[0]),
        levels=dict(zip(names[2 * jobs :], levels, strict=True)),
        disable=disable,
    )


# --- up ----------------------------------------------------------------------------------------


def pack_success(
    seq: int, fence: int, value: Payload, started_at: float, ended_at: float, cpu_s: float, peak_rss_bytes: int
) -> Frame:
    """Pack the report on an attempt that succeeded; see `Success` for the parts."""
    if isinstance(value, Parcel):
        numbers = _BIG_OK_HEAD.pack(fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes)
        return _up_frame(_BIG_OK, numbers, value)
    size = len(value)
    head = _pack_ok_head(_OK, fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes, size)
    return head + value if size <= PIECE_MAX - _OK_HEAD_SIZE else [head, value]


def pack_ended(seq: int, fence: int, ended: Ended) -> Frame:
    """Pack the report on an attempt that ended otherwise; also one that succeeded though it was asked to stop.

    Its `pid`, `exit_code` and `signal` do not travel: the supervisor knows them.
    """
    if ended.spawned is not None:
        return _pack_spawned(seq, fence, ended, ended.spawned)
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
    numbers = _ENDED_HEAD.pack(
        0 if ended.outcome == "ok" else 1, flags, fence, seq,
        ended.started_at, ended.ended_at, ended.cpu_s, ended.peak_rss_bytes,
        0.0 if retry_after_s is None else retry_after_s, len(names), len(message), len(traceback),
    )  # fmt: skip
    return _up_frame(_ENDED, numbers + names + message + traceback, b"" if value is None else value)


def _pack_spawned(seq: int, fence: int, ended: Ended, spawned: Spawned) -> Frame:
    """Pack a success with the tasks that it brings; unlike a pickle, nobody joins theirs."""
    assert ended.value is not None, "a success has a value"
    payloads = [ended.value, *spawned.payloads]
    pickles = [payload.data if isinstance(payload, Parcel) else payload for payload in payloads]
    beside = [payload.buffers if isinstance(payload, Parcel) else () for payload in payloads]
    buffers = [buffer for several in beside for buffer in several]
    numbers = _SPAWNED_HEAD.pack(
        fence, seq, ended.started_at, ended.ended_at, ended.cpu_s, ended.peak_rss_bytes,
        _TERMINATED if ended.terminated else 0, len(payloads),
    )  # fmt: skip
    parts = b"".join(map(_SPAWNED_PART.pack, map(len, pickles), map(len, beside)))
    rest_size, size = len(numbers) + len(parts) + len(spawned.text), sum(map(len, pickles))
    sizes = struct.pack(f"<{len(buffers)}Q", *map(_marked_size, buffers))
    head = (
        _UP_HEAD.pack(_SPAWNED | len(buffers) << _KIND_BITS, rest_size, size) + numbers + parts + spawned.text + sizes
    )
    body = b"".join(pickles)
    if not buffers and len(head) + size <= PIECE_MAX:
        return head + body
    return [head, body, *buffers]


def pack_start_failed(failed: StartFailed) -> Frame:
    """Pack why a worker could not start."""
    texts = (failed.error_type, failed.message, failed.traceback)
    return _up_frame(_START_FAILED, b"".join(map(_pack_text, texts)))


def pack_progress(seq: int, fence: int, done: float, total: float) -> bytes:
    """Pack how far an attempt is.

    Raises:
        struct.error: `done` or `total` is no number.
    """
    rest = _PROGRESS_HEAD.pack(fence, seq, done, total)
    return _UP_HEAD.pack(_PROGRESS, len(rest), 0) + rest


def pack_wanted(key: int) -> bytes:
    """Pack that an attempt waits for shared memory."""
    return _UP_HEAD.pack(_WANTED, _WANTED_HEAD.size, 0) + _WANTED_HEAD.pack(key)


def pack_record(parts: "Mapping[str, object]") -> bytes:
    """Pack a log record; whoever sends it sees to it that it is no longer than `PIECE_MAX`.

    Args:
        parts: As of `Record`; `extra` holds nothing that is not `PLAIN`.
    """
    import json  # noqa: PLC0415 - only where something is logged

    rest = json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _UP_HEAD.pack(_LOG, len(rest), 0) + rest


def _up_frame(kind: int, rest: bytes, body: Payload = b"") -> Frame:
    if isinstance(body, Parcel):
        count = len(body.buffers)
        sizes = struct.pack(f"<{count}Q", *map(_marked_size, body.buffers))
        return [
            _UP_HEAD.pack(kind | count << _KIND_BITS, len(rest), len(body.data)) + rest + sizes,
            body.data,
            *body.buffers,
        ]
    head = _UP_HEAD.pack(kind, len(rest), len(body)) + rest
    return head + body if len(head) + len(body) <= PIECE_MAX else [head, body]


def unpack_up(data: bytes, messages: "list[UpMessage]") -> int:
    """Read what a worker has said; whole messages only.

    Args:
        data: Frames, one behind the other; the last one may not be whole.
        messages: What they say is appended to this.

    Returns:
        How many bytes those messages took.

    Raises:
        WireError: What comes next is no message; those before it have been appended.
    """
    unpack, append, ok, head_size = _unpack_ok_head, messages.append, _OK, _OK_HEAD_SIZE
    at, end = 0, len(data)
    while at < end:
        if data[at] == ok:
            body_at = at + head_size
            if body_at > end:
                break
            kind, fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes, size = unpack(data, at)
            # Comparisons that NaN fails, for the scheduler's heaps rely on an order among numbers.
            if kind != ok or not started_at <= ended_at or size > _BODY_MAX:
                raise _malformed(data[at:body_at], "parts that do not fit together")
            next_at = body_at + size
            if next_at > end:
                break
            append((seq, fence, data[body_at:next_at], started_at, ended_at, cpu_s, peak_rss_bytes))
        else:
            sizes = frame_sizes(data, at)
            if sizes is None:
                break
            next_at = at + length_of(sizes)
            if next_at > end:
                break
            append(unpack_frame(*_cut(data, at, sizes)))
        at = next_at
    return at


def frame_sizes(data: bytes, at: int = 0) -> list[int] | None:
    """Return the lengths of the frame that begins there, in bytes: of its head, its body, and each of its buffers.

    Returns:
        None if too little of it has come to tell.  Those of buffers that shall be read as `bytes` are marked
        (`is_marked`, `unmarked`).

    Raises:
        WireError: It is no frame.
    """
    kind = data[at]
    if kind == _OK:
        return [_OK_HEAD_SIZE, _unpack_ok_head(data, at)[-1]] if len(data) - at >= _OK_HEAD_SIZE else None
    if kind not in _UP_MOST:
        raise _malformed(data[at : at + _UP_HEAD_SIZE], "unknown kind")
    if len(data) - at < _UP_HEAD_SIZE:
        return None
    word, rest_size, body_size = _UP_HEAD.unpack_from(data, at)
    rest_max, body_max = _UP_MOST[kind]
    count = word >> _KIND_BITS
    if rest_size > rest_max or body_size > body_max or count > _BUFFERS_MAX or (count and not body_size):
        raise _malformed(data[at : at + _UP_HEAD_SIZE], "parts that do not fit together")
    head_size = _UP_HEAD_SIZE + rest_size + 8 * count
    if not count:
        return [head_size, body_size]
    if len(data) - at < head_size:
        return None
    sizes = struct.unpack_from(f"<{count}Q", data, at + head_size - 8 * count)
    lengths = list(map(unmarked, sizes))
    # What is smaller is part of the pickle; a million of nothing would be taken apart under the lock.
    if min(lengths) < BESIDE_BYTES or max(lengths) > _BODY_MAX:
        raise _malformed(data[at : at + _UP_HEAD_SIZE], "buffers of lengths that none has")
    return [head_size, body_size, *sizes]


def _cut(data: bytes, at: int, sizes: list[int]) -> tuple[bytes, bytes, Buffers]:
    """Cut a frame that is whole into its head, body and buffers."""
    head_size, body_size, *buffer_sizes = sizes
    body_at = at + head_size
    buffer_at = body_at + body_size
    head, body = data[at:body_at], data[body_at:buffer_at]
    buffers: Buffers = []
    for size in buffer_sizes:
        buffer = data[buffer_at : buffer_at + unmarked(size)]
        buffers.append(buffer if is_marked(size) else memoryview(bytearray(buffer)))
        buffer_at += len(buffer)
    return head, body, buffers


def unpack_frame(head: Data, body: bytes, buffers: "Sequence[Buffer]" = ()) -> "UpMessage":
    """Read one whole frame of a worker; the body becomes the message's value as it is.

    Raises:
        WireError: It is none.
    """
    try:
        if head[0] == _OK:
            kind, fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes, size = _OK_HEAD.unpack(head)
            if kind == _OK and started_at <= ended_at and size == len(body):
                return seq, fence, body, started_at, ended_at, cpu_s, peak_rss_bytes
            raise _malformed(head, "parts that do not fit together")
        sizes = frame_sizes(bytes(head))
        if sizes is None or list(map(unmarked, sizes)) != [len(head), len(body), *map(len, buffers)]:
            raise _malformed(head, "parts of the wrong length")
        rest = memoryview(head)[_UP_HEAD_SIZE : len(head) - 8 * len(buffers)]
        return _UP_READERS[head[0]](rest, _payload(body, buffers))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _malformed(head, str(error)) from error


def _unpack_ended(rest: Data, body: Payload) -> Report:
    (
        outcome, flags, fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes, retry_after_s,
        names_size, message_size, traceback_size,
    ) = _ENDED_HEAD.unpack_from(rest)  # fmt: skip
    names_at = _ENDED_HEAD.size
    message_at = names_at + names_size
    traceback_at = message_at + message_size
    # Comparisons that NaN fails, for the scheduler's heaps rely on an order among numbers.
    if (
        len(rest) != traceback_at + traceback_size
        or outcome > 1
        or not started_at <= ended_at
        or not 0.0 <= retry_after_s < _INFINITY
        or not (flags & _HAS_VALUE or (outcome and not body))
    ):
        raise _malformed(rest, "parts that do not fit together")
    ended = Ended(
        "error" if outcome else "ok",
        started_at,
        ended_at,
        value=body if flags & _HAS_VALUE else None,
        cpu_s=cpu_s,
        peak_rss_bytes=peak_rss_bytes,
    )
    if outcome:
        # A task's words may hold anything; they are for reading only, so they never fail.
        ended.error_types = tuple(str(rest[names_at:message_at], "utf-8", "replace").splitlines())
        ended.message = str(rest[message_at:traceback_at], "utf-8", "replace")
        ended.traceback = str(rest[traceback_at:], "utf-8", "replace")
        ended.permanent = flags & _PERMANENT != 0
        if flags & _HAS_RETRY_AFTER:
            ended.retry_after_s = retry_after_s
    if flags & _TERMINATED:
        ended.terminated = True
    return Report(seq, fence, ended)


def _unpack_spawned(rest: Data, body: Payload) -> Report:
    fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes, flags, count = _SPAWNED_HEAD.unpack_from(rest)
    text_at = _SPAWNED_HEAD.size + _SPAWNED_PART.size * count
    _need(rest, text_at)
    if not started_at <= ended_at or not count:  # as a plain OK, and at least its value
        raise _malformed(rest, "parts that do not fit together")
    value, *payloads = _unpack_payloads(rest[_SPAWNED_HEAD.size : text_at], body)
    ended = Ended(
        "ok",
        started_at,
        ended_at,
        value=value,
        cpu_s=cpu_s,
        peak_rss_bytes=peak_rss_bytes,
        terminated=flags & _TERMINATED != 0,
        spawned=Spawned(bytes(rest[text_at:]), payloads),
    )
    return Report(seq, fence, ended)


def _unpack_payloads(parts: Data, body: Payload) -> "list[Payload]":
    """Cut a body into the payloads it is made of, with the buffers of each."""
    pickles, buffers = (body.data, body.buffers) if isinstance(body, Parcel) else (body, ())
    payloads: list[Payload] = []
    at = buffer_at = 0
    for size, count in _SPAWNED_PART.iter_unpack(parts):
        data = bytes(pickles[at : at + size])
        beside = buffers[buffer_at : buffer_at + count]
        if not size or len(data) != size or len(beside) != count:
            break
        payloads.append(_payload(data, beside))
        at += size
        buffer_at += count
    if at != len(pickles) or buffer_at != len(buffers) or len(payloads) * _SPAWNED_PART.size != len(parts):
        raise _malformed(parts, "payloads of the wrong length")
    return payloads


def _unpack_big_ok(rest: Data, body: Payload) -> "Success":
    fence, seq, started_at, ended_at, cpu_s, peak_rss_bytes = _BIG_OK_HEAD.unpack(rest)
    if not started_at <= ended_at:  # as a plain OK
        raise _malformed(rest, "parts that do not fit together")
    return seq, fence, body, started_at, ended_at, cpu_s, peak_rss_bytes


def _unpack_start_failed(rest: Data, _body: Payload) -> StartFailed:
    (error_type, message, traceback), end = _unpack_texts(rest, 0, 3)
    if end != len(rest):
        raise _malformed(rest, "parts of the wrong length")
    return StartFailed(error_type, message, traceback)


def _unpack_progress(rest: Data, _body: Payload) -> Progress:
    fence, seq, done, total = _PROGRESS_HEAD.unpack(rest)
    return Progress(seq, fence, done, total)


def _unpack_record(rest: Data, _body: Payload) -> Record:
    import json  # noqa: PLC0415 - only where something is logged

    try:
        parts = json.loads(str(rest, "utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:  # no text, no JSON, or lists in lists without end
        raise _malformed(rest, str(error)) from error
    if (
        not isinstance(parts, dict)
        or parts.keys() != _RECORD_PARTS.keys()
        or not all(isinstance(parts[name], kinds) for name, kinds in _RECORD_PARTS.items())
        or not -_CREATED_MAX < parts["created"] < _CREATED_MAX
        or not all(isinstance(value, PLAIN) for value in parts["extra"].values())
    ):
        raise _malformed(rest, "no log record")
    return Record(parts, len(rest) + _RECORD_BYTES)


def _unpack_wanted(rest: Data, _body: Payload) -> Wanted:
    return Wanted(*_WANTED_HEAD.unpack(rest))


def _unpack_ready(_rest: Data, _body: Payload) -> Ready:
    return Ready()


def _unpack_dropped(_rest: Data, _body: Payload) -> Dropped:
    return Dropped()


def _unpack_forgotten(_rest: Data, _body: Payload) -> Forgotten:
    return Forgotten()


#: What reads a whole frame from a worker, by kind; an OK has its own way.
_UP_READERS: "Final[Mapping[int, Callable[[Data, Payload], UpMessage]]]" = {
    _ENDED: _unpack_ended,
    _BIG_OK: _unpack_big_ok,
    _SPAWNED: _unpack_spawned,
    _START_FAILED: _unpack_start_failed,
    _PROGRESS: _unpack_progress,
    _LOG: _unpack_record,
    _WANTED: _unpack_wanted,
    _READY: _unpack_ready,
    _DROPPED: _unpack_dropped,
    _FORGOTTEN: _unpack_forgotten,
}

#: The most that the rest of the head and the body of each take, in bytes: nobody waits for more, nor are
#: they read, which takes its time with JSON.
_UP_MOST: "Final[Mapping[int, tuple[int, int]]]" = {
    _ENDED: (_REST_MAX, _BODY_MAX),
    _BIG_OK: (_BIG_OK_HEAD.size, _BODY_MAX),
    _SPAWNED: (_REST_MAX, _BODY_MAX),
    _START_FAILED: (_REST_MAX, 0),
    _PROGRESS: (_PROGRESS_HEAD.size, 0),
    _WANTED: (_WANTED_HEAD.size, 0),
    _LOG: (PIECE_MAX - _UP_HEAD_SIZE, 0),
    _READY: (0, 0),
    _DROPPED: (0, 0),
    _FORGOTTEN: (0, 0),
}


# --- both --------------------------------------------------------------------------------------


def _marked_size(buffer: Buffer) -> int:
    return len(buffer) | IS_BYTES if isinstance(buffer, bytes) else len(buffer)


def is_marked(size: int) -> bool:
    """Whether a buffer of this length shall be read as `bytes`."""
    return size >= IS_BYTES


def unmarked(size: int) -> int:
    """Return a length without its mark."""
    return size & ~IS_BYTES


def length_of(sizes: "Sequence[int]") -> int:
    """Return how many bytes a frame has whose parts are so long, marked or not."""
    return sum(map(unmarked, sizes))


def _frame(head: bytes, payloads: "Sequence[Payload]") -> Frame:
    """Join what fits into one packet; what does not is announced and comes in pieces."""
    pickles = [payload.data if isinstance(payload, Parcel) else payload for payload in payloads]
    beside = [payload.buffers if isinstance(payload, Parcel) else () for payload in payloads]
    size = sum(map(len, pickles))
    if not any(beside) and len(head) + size <= PACKET_MAX:
        return b"".join([head, *pickles])
    buffers = [buffer for several in beside for buffer in several]
    counts = struct.pack(f"<{len(beside)}I", *map(len, beside))
    head = b"".join([head, counts, struct.pack(f"<{len(buffers)}Q", *map(_marked_size, buffers))])
    announcement = _BULK_FRAME.pack(_BULK, len(payloads), len(buffers), len(head), size)
    return [announcement, head, *pickles, *buffers]


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
