"""What the two sides say to each other survives the way, and nothing else gets through."""

import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.support.frames import as_object, in_one, read_up, the_task, the_tasks

from procq.engine.local import wire
from procq.outcome import Ended, Spawned
from procq.parcel import BESIDE_BYTES, Buffer, Parcel, Payload

PAIRS = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
#: With lone surrogates, which paths that are not UTF-8 are full of.
TEXTS = st.text(st.characters(codec=None), max_size=20)
#: Texts of errors lose lone surrogates and the line ends that Python alone knows.
PLAIN = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=20)
BIG = bytes(wire.PACKET_MAX + 1)
PARCEL = Parcel(b"pickle", [memoryview(bytes(range(256)) * 300), memoryview(bytearray(70_000)), bytes(65_536)])
RECORD: dict[str, object] = {
    "name": "a.b", "levelno": 30, "levelname": "WARNING", "message": "m", "pathname": "/a.py", "lineno": 3,
    "funcName": "f", "created": 1.5, "process": 7, "processName": "P", "thread": 8, "threadName": "T", "taskName": None,
    "exc_text": None, "stack_info": None, "task_id": "id", "attempt": 1,
    "extra": {"text": "x", "number": 1, "part": 0.5, "flag": True, "nothing": None},
}  # fmt: skip
#: A success that brings two tasks.
SPAWNING = Ended("ok", 1.0, 2.0, value=b"value", spawned=Spawned(b"text", [b"one", b"call two"]))
#: What a frame with a log record begins with.
LOG_KIND = wire.pack_record(RECORD)[0]


def packed(*args: Any, **kwargs: Any) -> bytes:  # noqa: ANN401 - those of `pack_task`
    """Pack a task that fits into a packet."""
    frame = wire.pack_task(*args, **kwargs)
    assert isinstance(frame, bytes)
    return frame


def joined(frame: wire.Frame) -> tuple[Any, ...]:
    """Bring a frame down to where its decoder is: a packet, or head, body and buffers."""
    if isinstance(frame, bytes):
        return (frame,)
    announcement, head, *pieces = frame
    bulk = wire.unpack_down(announcement)
    assert isinstance(bulk, wire.Bulk)
    assert bulk.head_size == len(head)
    rest, sizes = wire.split_head(bulk, head)
    stream = memoryview(b"".join(pieces))
    body, stream = stream[: bulk.body_size], stream[bulk.body_size :]
    buffers: list[list[Buffer]] = []
    for several in sizes:
        buffers.append([])
        for size, as_bytes in several:
            buffers[-1].append(bytes(stream[:size]) if as_bytes else stream[:size])
            stream = stream[size:]
    assert not stream
    return rest, body, buffers


def unpacked(data: bytes) -> list[wire.UpMessage]:
    """Read frames of a worker, all of which must be whole."""
    messages: list[wire.UpMessage] = []
    assert wire.unpack_up(data, messages) == len(data)
    return messages


def the_message(frame: wire.Frame) -> wire.OtherMessage:
    """Read one frame of a worker, in the stream; a big one also as it is read apart from it."""
    (message,) = read_up(in_one(frame))
    if isinstance(frame, list):
        head, body, *buffers = frame
        assert type(as_object(wire.unpack_frame(head, bytes(body), list(map(memoryview, buffers))))) is type(message)  # type: ignore[arg-type]
    return message


# --- round trips ---


@given(
    pair=PAIRS, attempt=st.integers(0, 2**32 - 1), timeout_s=st.none() | st.floats(0, 1e9), task_id=TEXTS,
    call=st.binary(max_size=99), inputs=st.lists(st.binary(max_size=9), max_size=4), big=st.booleans(),
)  # fmt: skip
def test_a_task_survives(
    *, pair: tuple[int, int], attempt: int, timeout_s: float | None, task_id: str, call: bytes, inputs: list[bytes],
    big: bool,
) -> None:  # fmt: skip
    if big:
        inputs = [*inputs, BIG]

    frame = wire.pack_task(*pair, attempt, timeout_s, task_id, call, inputs)
    task = the_task(wire.unpack_down(*joined(frame)))

    assert isinstance(frame, list) is big
    assert (task.seq, task.fence) == pair
    assert (task.attempt, task.timeout_s, task.task_id) == (attempt, timeout_s, task_id)
    assert (task.call, list(task.inputs)) == (call, inputs)


@given(
    st.lists(
        st.tuples(
            PAIRS, st.integers(0, 2**32 - 1), st.none() | st.floats(0, 1e9), TEXTS, st.binary(max_size=99),
            st.lists(st.binary(max_size=9), max_size=3),
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_several_tasks_in_one_packet_survive_in_their_order(
    parts: list[tuple[tuple[int, int], int, float | None, str, bytes, list[bytes]]],
) -> None:
    tasks = the_tasks(wire.unpack_down(b"".join(packed(*pair, *others) for pair, *others in parts)))

    assert [
        ((task.seq, task.fence), task.attempt, task.timeout_s, task.task_id, task.call, list(task.inputs))
        for task in tasks
    ] == parts


@given(
    path=st.lists(TEXTS, max_size=4),
    argv=st.lists(TEXTS, max_size=4),
    jobs=st.dictionaries(TEXTS, TEXTS),
    levels=st.dictionaries(TEXTS, st.integers(-(2**31) + 1, 2**31 - 1)),
    big=st.booleans(),
)
def test_a_hello_survives(
    *, path: list[str], argv: list[str], jobs: dict[str, str], levels: dict[str, int], big: bool
) -> None:
    initializer = BIG if big else b"call"
    hello = wire.Hello(
        3, cpus=8, workers=4, path=path, argv=argv, jobs=jobs, initializer=initializer, levels=levels, disable=50
    )

    again = wire.unpack_down(*joined(wire.pack_hello(hello)))

    assert isinstance(again, wire.Hello)
    for part in wire.Hello.__slots__:
        assert getattr(again, part) == getattr(hello, part)


@given(
    pair=PAIRS, started_at=st.floats(0, 1e6), took=st.floats(0, 1e6), value=st.none() | st.binary(max_size=99),
    types=st.lists(PLAIN.filter(bool), min_size=1), message=PLAIN, traceback=PLAIN, permanent=st.booleans(),
    retry_after_s=st.none() | st.floats(0, 1e9), terminated=st.booleans(), rss=st.integers(0, 2**40), big=st.booleans(),
)  # fmt: skip
def test_a_report_on_an_error_survives(
    *, pair: tuple[int, int], started_at: float, took: float, value: bytes | None, types: list[str], message: str,
    traceback: str, permanent: bool, retry_after_s: float | None, terminated: bool, rss: int, big: bool,
) -> None:  # fmt: skip
    if big:
        value = BIG
    ended = Ended(
        "error", started_at, started_at + took, value=value, error_types=tuple(types), message=message,
        traceback=traceback, permanent=permanent, retry_after_s=retry_after_s, terminated=terminated, cpu_s=took,
        peak_rss_bytes=rss,
    )  # fmt: skip

    report = the_message(wire.pack_ended(*pair, ended))

    assert isinstance(report, wire.Report)
    assert (report.seq, report.fence) == pair
    for part in Ended.__slots__:
        assert getattr(report.ended, part) == getattr(ended, part), part


@pytest.mark.parametrize("value", [b"", b"value", BIG], ids=["empty", "small", "big"])
def test_a_success_in_spite_of_being_asked_to_stop_survives(value: bytes) -> None:
    ended = Ended("ok", 1.0, 2.5, value=value, terminated=True, cpu_s=0.5, peak_rss_bytes=7)

    report = the_message(wire.pack_ended(1, 2, ended))

    assert isinstance(report, wire.Report)
    for part in Ended.__slots__:
        assert getattr(report.ended, part) == getattr(ended, part), part


@given(
    pair=PAIRS, value=st.binary(max_size=99), started_at=st.floats(0, 1e6), took=st.floats(0, 1e6),
    cpu_s=st.floats(0, 1e6), rss=st.integers(0, 2**40), big=st.booleans(),
)  # fmt: skip
def test_a_success_survives(
    *, pair: tuple[int, int], value: bytes, started_at: float, took: float, cpu_s: float, rss: int, big: bool
) -> None:
    success = (*pair, BIG if big else value, started_at, started_at + took, cpu_s, rss)

    frame = wire.pack_success(*success)

    assert isinstance(frame, list) is big
    assert unpacked(in_one(frame)) == [success]
    if isinstance(frame, list):
        message = wire.unpack_frame(*frame)  # type: ignore[arg-type]
        assert message == success
        assert message[2] is frame[1], "the value is not copied"


def test_what_stands_beside_a_pickle_survives() -> None:
    small = Parcel(b"p", [memoryview(b"x")])
    tasks: list[tuple[Payload, list[Payload]]] = [
        (PARCEL, []), (b"call", [PARCEL, b"", small]), (small, [b"one", PARCEL, PARCEL]),
    ]  # fmt: skip
    for call, inputs in tasks:
        task = the_task(wire.unpack_down(*joined(wire.pack_task(1, 2, 3, None, "id", call, inputs))))
        assert (task.call, task.inputs) == (call, inputs)

    frame = wire.pack_hello(wire.Hello(1, cpus=1, workers=1, path=["a"], argv=[], jobs={}, initializer=PARCEL))
    hello = wire.unpack_down(*joined(frame))
    assert isinstance(hello, wire.Hello)
    assert (hello.initializer, hello.path) == (PARCEL, ["a"])

    success = (1, 2, PARCEL, 1.0, 2.0, 0.5, 7)
    assert unpacked(in_one(wire.pack_success(*success))) == [success]
    report = the_message(wire.pack_ended(1, 2, Ended("ok", 1.0, 2.0, value=PARCEL)))
    assert isinstance(report, wire.Report)
    assert report.ended.value == PARCEL


def the_spawning(frame: wire.Frame) -> tuple[wire.Report, Spawned]:
    message = the_message(frame)
    assert isinstance(message, wire.Report)
    assert message.ended.spawned is not None
    return message, message.ended.spawned


@given(
    seq=st.integers(0, 2**64 - 1), fence=st.integers(0, 2**32 - 1), value=st.binary(min_size=1, max_size=99),
    text=st.binary(max_size=99), calls=st.lists(st.binary(min_size=1, max_size=9), max_size=5),
    terminated=st.booleans(), big=st.booleans(),
)  # fmt: skip
def test_E6_tasks_that_come_with_a_success_survive(
    *, seq: int, fence: int, value: bytes, text: bytes, calls: list[bytes], terminated: bool, big: bool
) -> None:
    if big:
        calls = [*calls, bytes(wire.PIECE_MAX)]
    ended = Ended(
        "ok", 1.5, 2.5, value=value, cpu_s=0.5, peak_rss_bytes=9, terminated=terminated, spawned=Spawned(text, calls)
    )

    report, spawned = the_spawning(wire.pack_ended(seq, fence, ended))

    assert (report.seq, report.fence, spawned.text, spawned.payloads) == (seq, fence, text, calls)
    came = report.ended
    assert (came.outcome, came.started_at, came.ended_at, came.value) == ("ok", 1.5, 2.5, value)
    assert (came.cpu_s, came.peak_rss_bytes, came.terminated) == (0.5, 9, terminated)


def test_I1_what_stands_beside_the_calls_of_spawned_tasks_survives() -> None:
    other = Parcel(b"other", [bytes(70_000)])
    ended = Ended("ok", 1.0, 2.0, value=PARCEL, spawned=Spawned(b"text", [b"plain", other, PARCEL]))

    report, spawned = the_spawning(wire.pack_ended(1, 2, ended))

    assert report.ended.value == PARCEL
    assert spawned.payloads == [b"plain", other, PARCEL]
    assert isinstance(spawned.payloads[1], Parcel)
    assert type(spawned.payloads[1].buffers[0]) is bytes


def test_H5_payloads_that_do_not_fit_the_body_are_refused() -> None:
    frame = in_one(wire.pack_ended(1, 2, SPAWNING))
    first = 16 + wire._SPAWNED_HEAD.size

    for at, code, number in (
        (first, "<Q", 6), (first, "<Q", 0), (first, "<Q", 2**64 - 1), (first + 8, "<I", 1), (first + 24, "<Q", 9),
        (first - 4, "<I", 0), (first - 4, "<I", 2), (first - 4, "<I", 4), (first - 4, "<I", 2**32 - 1),
    ):  # fmt: skip
        damaged = bytearray(frame)
        struct.pack_into(code, damaged, at, number)
        with pytest.raises(wire.WireError):
            wire.unpack_up(bytes(damaged), [])


def test_of_a_task_that_was_not_read_all_but_its_payloads_is_known() -> None:
    frame = wire.pack_task(1, 2, 3, 4.5, "id", PARCEL, [PARCEL])
    rest, _, _ = joined(frame)

    unread = wire.unpack_unread(rest, 1234)

    assert (unread.task, unread.size) == ((1, 2, 3, 4.5, b"id", b"", []), 1234)
    with pytest.raises(wire.WireError, match="no task"):
        wire.unpack_unread(joined(wire.pack_hello(wire.Hello(1, cpus=1, workers=1, path=[], argv=[], jobs={})))[0], 1)
    with pytest.raises(wire.WireError):
        wire.unpack_unread(rest[:20], 1234)


def test_buffers_that_belong_to_nothing_are_refused() -> None:
    frame = wire.pack_task(1, 2, 3, None, "id", PARCEL, [PARCEL])
    assert isinstance(frame, list)
    announcement, head, *_ = frame
    bulk = wire.unpack_down(announcement)
    assert isinstance(bulk, wire.Bulk)
    spoilt = bytearray(head)
    counts_at = len(spoilt) - 4 * 2 - 8 * 6
    spoilt[counts_at] += 1
    with pytest.raises(wire.WireError):
        wire.split_head(bulk, spoilt)
    with pytest.raises(wire.WireError):
        wire.split_head(wire.Bulk(2**32 - 1, 2**32 - 1, 1, 1), bytes(100))
    with pytest.raises(wire.WireError):  # buffers, and no pickle that they could belong to
        wire.frame_sizes(struct.pack("<IIQ", wire._BIG_OK | 1 << 8, 40, 0))


@pytest.mark.parametrize("size", [0, wire.IS_BYTES, BESIDE_BYTES - 1])
def test_H5_buffers_too_small_to_stand_beside_are_no_frame(size: int) -> None:
    """A million of nothing in one frame would hold the lock for seconds."""
    frame = b"".join(wire.pack_success(1, 2, PARCEL, 1.0, 2.0, 0.5, 7))  # type: ignore[arg-type]
    at = frame.index(struct.pack("<Q", len(PARCEL.buffers[0])))
    with pytest.raises(wire.WireError, match="buffers"):
        wire.frame_sizes(frame[:at] + struct.pack("<Q", size) + frame[at + 8 :])


def test_texts_of_an_error_that_are_no_text_arrive_readable() -> None:
    ended = Ended("error", 0, 0, error_types=("E",), message="lone \udc80", traceback="\ud800")

    report = the_message(wire.pack_ended(1, 1, ended))

    assert isinstance(report, wire.Report)
    assert report.ended.message == "lone \\udc80"
    assert report.ended.traceback == "\\ud800"


def test_the_small_messages_survive() -> None:
    failed = the_message(wire.pack_start_failed(wire.StartFailed("OSError", "no disk", "Traceback")))
    assert isinstance(failed, wire.StartFailed)
    assert (failed.error_type, failed.message, failed.traceback) == ("OSError", "no disk", "Traceback")

    progress = the_message(wire.pack_progress(5, 6, 0.5, 2.0))
    assert isinstance(progress, wire.Progress)
    assert (progress.seq, progress.fence, progress.done, progress.total) == (5, 6, 0.5, 2.0)

    assert isinstance(the_message(wire.READY_FRAME), wire.Ready)
    assert isinstance(the_message(wire.DROPPED_FRAME), wire.Dropped)
    assert isinstance(the_message(wire.FORGOTTEN_FRAME), wire.Forgotten)
    assert isinstance(wire.unpack_down(wire.DROP_FRAME), wire.Drop)
    assert isinstance(wire.unpack_down(wire.EXIT_FRAME), wire.Leave)


@given(
    texts=st.lists(TEXTS, min_size=4, max_size=4), level=st.integers(), created=st.floats(-1e9, 1e11),
    exc_text=st.none() | TEXTS, attempt=st.none() | st.integers(),
    extra=st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False)),
)  # fmt: skip
def test_a_log_record_survives(
    *, texts: list[str], level: int, created: float, exc_text: str | None, attempt: int | None,
    extra: dict[str, object],
) -> None:  # fmt: skip
    parts = RECORD | dict(zip(("name", "message", "pathname", "task_id"), texts, strict=True))
    parts |= {"levelno": level, "created": created, "exc_text": exc_text, "attempt": attempt, "extra": extra}

    record = the_message(wire.pack_record(parts))

    assert isinstance(record, wire.Record)
    assert record.parts == parts
    assert record.size > len("".join(texts))


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_the_keys_to_forget_survive(keys: list[int]) -> None:
    frame = wire.pack_forget(keys)

    message = wire.unpack_down(frame)

    assert isinstance(message, wire.Forget)
    assert list(message.keys) == keys
    with pytest.raises(wire.WireError):
        wire.unpack_down(frame + b"x")


def test_levels_beyond_all_that_is_used_are_as_good_as_the_highest() -> None:
    levels = {"no": 10**12, "all": -(10**12)}
    hello = wire.Hello(1, cpus=1, workers=1, path=[], argv=[], jobs={}, levels=levels, disable=10**12)

    again = wire.unpack_down(*joined(wire.pack_hello(hello)))

    assert isinstance(again, wire.Hello)
    assert again.levels == {"no": 2**31 - 1, "all": -(2**31) + 1}
    assert again.disable == 2**31 - 1


def test_a_big_failure_to_start_survives() -> None:
    frame = wire.pack_start_failed(wire.StartFailed("OSError", "x" * wire.PACKET_MAX, ""))
    assert isinstance(frame, list)

    failed = the_message(frame)

    assert isinstance(failed, wire.StartFailed)
    assert len(failed.message) == wire.PACKET_MAX


def test_a_buffer_of_bytes_comes_as_bytes_and_another_as_memory_to_be_written_to() -> None:
    size = BESIDE_BYTES
    frame = wire.pack_success(1, 2, Parcel(b"pickle", [bytes(size), memoryview(bytearray(size))]), 1.0, 2.0, 0.5, 7)

    (message,) = unpacked(in_one(frame))

    assert isinstance(message, tuple)
    assert isinstance(message[2], Parcel)
    assert list(map(type, message[2].buffers)) == [bytes, memoryview]
    assert list(map(bytes, message[2].buffers)) == [bytes(size)] * 2
    assert not message[2].buffers[1].readonly  # type: ignore[union-attr]


@given(st.lists(st.sampled_from(range(9)), max_size=12), st.data())
def test_frames_behind_each_other_are_read_in_their_order_wherever_they_are_cut(
    kinds: list[int], data: st.DataObject
) -> None:
    """A read of the stream may end anywhere; what is not whole waits for the next."""
    stream = b"".join(VALID_UP[kind] for kind in kinds)
    expected = [type(as_object(unpacked(VALID_UP[kind])[0])) for kind in kinds]
    cut = data.draw(st.integers(0, len(stream)))

    messages: list[wire.UpMessage] = []
    read = wire.unpack_up(stream[:cut], messages)
    rest = stream[read:]

    assert read <= cut
    assert not messages or read == len(b"".join(VALID_UP[kind] for kind in kinds[: len(messages)]))
    assert [type(as_object(message)) for message in messages + unpacked(rest)] == expected
    if read < cut:
        sizes = wire.frame_sizes(stream[read:cut])
        assert sizes is None or sum(map(wire.unmarked, sizes)) == len(VALID_UP[kinds[len(messages)]])


@pytest.mark.parametrize(
    "kind", [wire._READY, wire._DROPPED, wire._FORGOTTEN, wire._PROGRESS, wire._LOG, wire._START_FAILED]
)
def test_nobody_waits_for_what_a_message_never_has(kind: int) -> None:
    with pytest.raises(wire.WireError):
        wire.frame_sizes(wire._UP_HEAD.pack(kind, 28, 1))
    with pytest.raises(wire.WireError):
        wire.frame_sizes(wire._UP_HEAD.pack(kind, 2**27, 0))


def test_an_announcement_tells_what_follows() -> None:
    frame = wire.pack_task(7, 8, 1, None, "id", b"call", [BIG, PARCEL])
    assert isinstance(frame, list)

    bulk = wire.unpack_down(frame[0])

    assert isinstance(bulk, wire.Bulk)
    assert (bulk.head_size, bulk.body_size) == (len(frame[1]), len(BIG) + 4 + len(PARCEL.data))
    assert wire.split_head(bulk, frame[1])[1] == [[], [], [(76_800, False), (70_000, False), (65_536, True)]]


# --- nothing else gets through ---

VALID_DOWN = [
    packed(1, 2, 3, 4.0, "id", b"call"),
    packed(1, 2, 3, None, "id", b"call", [b"one", b"", b"three"]),
    wire.pack_hello(wire.Hello(1, cpus=1, workers=1, path=["a", "b"], argv=["c"], jobs={"m": "p"}, initializer=b"i")),
    wire.pack_hello(
        wire.Hello(1, cpus=1, workers=1, path=["a"], argv=[], jobs={}, levels={"x": 10, "y": 0}, disable=9)
    ),
    wire.EXIT_FRAME,
    wire.DROP_FRAME,
    wire.pack_task(1, 2, 3, 4.0, "id", bytes(wire.PACKET_MAX))[0],
]
VALID_UP = [
    in_one(wire.pack_success(1, 2, b"value", 1.0, 2.0, 0.5, 7)),
    in_one(
        wire.pack_ended(
            1, 2, Ended("error", 1.0, 2.0, error_types=("A", "B"), message="m", traceback="t", retry_after_s=1)
        )
    ),
    in_one(wire.pack_start_failed(wire.StartFailed("a", "b", "c"))),
    in_one(wire.pack_success(1, 2, PARCEL, 1.0, 2.0, 0.5, 7)),
    wire.pack_progress(1, 2, 3.0, 4.0),
    wire.READY_FRAME,
    wire.DROPPED_FRAME,
    wire.FORGOTTEN_FRAME,
    wire.pack_record(RECORD),
    in_one(wire.pack_ended(1, 2, SPAWNING)),
]
#: Several in one packet; cut where one ends it is a message of those before.
TOGETHER = [
    packed(1, 2, 3, 4.0, "first", b"call", [b"one", b"two"]),
    packed(5, 6, 7, None, "", b""),
    packed(8, 9, 10, None, "last", b"call", [b""]),
]
HEAD_SIZE = len(packed(1, 1, 1, None, "", b""))


def decode_both(head: bytes, body: bytes | None) -> None:
    """Any other error than `WireError` fails the test that calls this."""
    try:
        wire.unpack_down(head, body)
    except wire.WireError as error:
        assert str(error)  # noqa: PT017 - whether it is raised is the decoder's choice here
    messages: list[wire.UpMessage] = []
    try:
        read = wire.unpack_up(head, messages)
        assert 0 <= read <= len(head)
        assert messages or not read
    except wire.WireError as error:
        assert str(error)  # noqa: PT017
    try:
        wire.unpack_frame(head, body or b"")
    except wire.WireError as error:
        assert str(error)  # noqa: PT017


@given(st.binary(max_size=200), st.none() | st.binary(max_size=50))
def test_random_bytes_are_a_message_or_a_wire_error(head: bytes, body: bytes | None) -> None:
    decode_both(head, body)


@given(st.integers(0, 255), st.binary(max_size=200), st.none() | st.binary(max_size=50))
def test_random_bytes_of_a_known_kind_are_a_message_or_a_wire_error(kind: int, rest: bytes, body: bytes | None) -> None:
    decode_both(bytes([kind % 18]) + rest, body)
    decode_both(bytes([kind % 13, 0, 0, 0]) + rest, body)


@given(st.sampled_from([*VALID_DOWN, *VALID_UP, b"".join(TOGETHER)]), st.data())
def test_a_damaged_message_is_a_message_or_a_wire_error(frame: wire.Frame, data: st.DataObject) -> None:
    assert isinstance(frame, bytes)
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))

    decode_both(bytes(damaged), None)
    decode_both(bytes(damaged[:cut]), None)
    decode_both(bytes(damaged[:cut]), bytes(damaged[cut:]))
    decode_both(bytes(damaged) + b"tail", None)


def truncations(frame: bytes) -> set[int]:
    """Return where to cut a frame: anywhere, but within the big buffers of one only now and then."""
    near = 1000
    return {*range(min(near, len(frame))), *range(near, len(frame), 61), *range(max(0, len(frame) - near), len(frame))}


@pytest.mark.parametrize("frame", VALID_DOWN)
def test_every_truncation_is_refused(frame: bytes) -> None:
    for size in range(len(frame)):
        with pytest.raises(wire.WireError):
            wire.unpack_down(frame[:size])


@pytest.mark.parametrize("frame", VALID_UP)
def test_every_truncation_of_what_a_worker_says_waits_for_the_rest(frame: bytes) -> None:
    for size in truncations(frame):
        messages: list[wire.UpMessage] = []
        assert wire.unpack_up(frame[:size], messages) == 0
        assert not messages
        with pytest.raises(wire.WireError):
            wire.unpack_frame(frame[:size], b"")


@given(st.lists(st.sampled_from(VALID_UP), max_size=4), st.integers(0, 255), st.binary(max_size=80))
def test_what_comes_before_no_message_is_read_all_the_same(good: list[bytes], kind: int, rest: bytes) -> None:
    bad = bytes([kind, 255, 255, 255]) + rest + bytes(80)
    messages: list[wire.UpMessage] = []

    with pytest.raises(wire.WireError):
        wire.unpack_up(b"".join(good) + bad, messages)

    assert len(messages) == len(good)


def test_several_tasks_that_are_cut_short_are_refused_or_those_that_are_whole() -> None:
    packet = b"".join(TOGETHER)
    whole = [len(b"".join(TOGETHER[:count])) for count in range(len(TOGETHER) + 1)]

    for size in range(1, len(packet) + 1):
        if size in whole:
            tasks = the_tasks(wire.unpack_down(packet[:size]))
            assert [task.seq for task in tasks] == [1, 5, 8][: whole.index(size)]
        else:
            with pytest.raises(wire.WireError):
                wire.unpack_down(packet[:size])


@given(st.sampled_from([TOGETHER[:1], TOGETHER]), st.binary(min_size=1, max_size=HEAD_SIZE - 1))
def test_garbage_behind_a_task_is_refused(frames: list[bytes], garbage: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_down(b"".join(frames) + garbage)


@given(st.integers(0, 255).filter(lambda kind: kind != TOGETHER[0][0]), st.binary(max_size=200))
def test_what_is_no_task_behind_a_task_is_refused(kind: int, rest: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_down(TOGETHER[0] + bytes([kind]) + rest)


@given(st.integers(0, len(TOGETHER) - 1), st.sampled_from([(12, "<I"), (16, "<I"), (36, "<Q")]), st.data())
def test_a_length_that_lies_about_one_of_several_tasks_gives_no_other_error(
    index: int, field: tuple[int, str], data: st.DataObject
) -> None:
    """Those of the id, the inputs and the call say where the next task begins."""
    at, code = field
    frames = [bytearray(frame) for frame in TOGETHER]
    struct.pack_into(code, frames[index], at, data.draw(st.integers(0, 2 ** (8 * struct.calcsize(code)) - 1)))

    decode_both(b"".join(frames), None)


def test_a_big_task_comes_alone() -> None:
    head, body, buffers = joined(wire.pack_task(1, 1, 1, None, "id", BIG))

    with pytest.raises(wire.WireError, match="head of the wrong length"):
        wire.unpack_down(head + packed(2, 1, 1, None, "id", b""), body, buffers)
    with pytest.raises(wire.WireError, match="body of the wrong length"):
        wire.unpack_down(head, bytes(body) + b"x", buffers)


@pytest.mark.parametrize(
    ("started_at", "ended_at", "retry_after_s"),
    [(2.0, 1.0, 0.0), (float("nan"), 1.0, 0.0), (1.0, 2.0, float("nan")), (1.0, 2.0, float("inf")), (1.0, 2.0, -1.0)],
)
def test_times_that_would_upset_a_heap_are_refused(started_at: float, ended_at: float, retry_after_s: float) -> None:
    ended = Ended("error", started_at, ended_at, error_types=("E",), retry_after_s=retry_after_s)

    with pytest.raises(wire.WireError, match="fit together"):
        the_message(wire.pack_ended(1, 1, ended))


@pytest.mark.parametrize(("started_at", "ended_at"), [(2.0, 1.0), (float("nan"), 1.0), (1.0, float("nan"))])
@pytest.mark.parametrize("value", [b"", BIG], ids=["small", "big"])
def test_times_of_a_success_that_would_upset_a_heap_are_refused(
    started_at: float, ended_at: float, value: bytes
) -> None:
    frame = wire.pack_success(1, 1, value, started_at, ended_at, 0.0, 0)

    with pytest.raises(wire.WireError, match="fit together"):
        unpacked(in_one(frame))
    with pytest.raises(wire.WireError, match="fit together"):
        wire.unpack_frame(in_one(frame)[:56], value)


#: Anything that JSON can hold.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(TEXTS, parts, max_size=3),
    max_leaves=4,
)


@given(part=st.sampled_from(sorted(RECORD)), value=JSON, more=st.booleans())
def test_a_record_with_a_part_of_any_kind_is_a_record_or_a_wire_error(*, part: str, value: object, more: bool) -> None:
    decode_both(wire.pack_record(RECORD | {part: value} | ({"more": value} if more else {})), None)
    decode_both(wire.pack_record({name: value for name, value in RECORD.items() if name != part}), None)
    decode_both(wire.pack_record(value), None)  # type: ignore[arg-type]  # a cheat's


@pytest.mark.parametrize(
    "changed",
    [
        {"name": 1}, {"levelno": "30"}, {"levelno": None}, {"message": None}, {"created": 1}, {"created": float("nan")},
        {"created": float("inf")}, {"created": 1e300}, {"thread": "x"}, {"task_id": 5}, {"attempt": "1"}, {"extra": []},
        {"extra": {"x": []}}, {"extra": {"x": {}}}, {"more": 1},
    ],
)  # fmt: skip
def test_a_record_whose_parts_are_not_what_they_must_be_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(wire.WireError, match="no log record"):
        unpacked(wire.pack_record(RECORD | changed))


@pytest.mark.parametrize(
    "text", [b"", b"[" * 60_000, b'{"a":' * 10_000, b"9" * 60_000, b"\xff", b"null", b"[]", b"{}", b"{} {}"]
)
def test_what_is_no_record_at_all_is_refused(text: bytes) -> None:
    with pytest.raises(wire.WireError):
        unpacked(struct.pack("<IIQ", LOG_KIND, len(text), 0) + text)


def test_a_record_longer_than_a_piece_or_with_a_body_is_refused() -> None:
    """To read JSON takes its time, so only as much of it is read as an honest worker sends."""
    frame = wire.pack_record(RECORD | {"message": "x" * wire.PIECE_MAX})
    with pytest.raises(wire.WireError, match="do not fit together"):
        unpacked(frame)
    with pytest.raises(wire.WireError, match="do not fit together"):
        wire.unpack_frame(bytearray(frame), b"")
    with pytest.raises(wire.WireError, match="do not fit together"):
        unpacked(struct.pack("<IIQ", LOG_KIND, 2, 1) + b"{}x")


def test_absurd_counts_and_lengths_are_refused_without_making_anything() -> None:
    """Each of these announces more than any machine has; a decoder that believed it would raise MemoryError."""
    task = bytearray(packed(1, 1, 1, None, "id", b"call"))
    struct.pack_into("<I", task, 16, 2**32 - 1)  # the number of inputs
    hello = bytearray(wire.pack_hello(wire.Hello(1, cpus=1, workers=1, path=[], argv=[], jobs={})))  # type: ignore[arg-type]
    struct.pack_into("<I", hello, 16, 2**32 - 1)  # the number of paths
    loggers = bytearray(hello)
    struct.pack_into("<I", loggers, 16, 0)
    struct.pack_into("<I", loggers, 28, 2**32 - 1)  # the number of loggers

    for data in (task, hello, loggers):
        with pytest.raises(wire.WireError):
            wire.unpack_down(bytes(data))


@pytest.mark.parametrize(
    ("frame", "at", "code"),
    [(0, 48, "<Q"), (1, 4, "<I"), (1, 8, "<Q"), (3, 4, "<I"), (4, 8, "<Q"), (6, 4, "<I"), (6, 8, "<Q")],
)
def test_absurd_lengths_of_what_a_worker_says_are_refused(frame: int, at: int, code: str) -> None:
    """Nobody must wait for more than any machine has."""
    data = bytearray(VALID_UP[frame])
    struct.pack_into(code, data, at, 2 ** (8 * struct.calcsize(code)) - 1)

    with pytest.raises(wire.WireError):
        wire.unpack_up(bytes(data), [])
