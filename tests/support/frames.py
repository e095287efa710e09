"""Puts names to the plain tuples that the two sides pass on."""

from typing import NamedTuple

from procq.engine.local import wire
from procq.outcome import Ended
from procq.parcel import Parcel, Payload


class TaskParts(NamedTuple):
    """A `wire.Task`."""

    seq: int
    fence: int
    attempt: int
    timeout_s: float | None
    name: bytes
    call: Payload
    inputs: list[Payload]

    @property
    def task_id(self) -> str:
        return wire.id_text(self.name)


def the_tasks(message: wire.DownMessage) -> list[TaskParts]:
    """Return the tasks of a message."""
    assert isinstance(message, list)
    return [TaskParts(*task) for task in message]


def the_task(message: wire.DownMessage) -> TaskParts:
    """Return the only task of a message."""
    (task,) = the_tasks(message)
    return task


def as_object(message: wire.UpMessage) -> wire.OtherMessage:
    """Return a message as an object, also a success."""
    if not isinstance(message, tuple):
        return message
    seq, fence, value, started_at, ended_at, cpu_s, peak_rss_bytes = message
    ended = Ended("ok", started_at, ended_at, value=value, cpu_s=cpu_s, peak_rss_bytes=peak_rss_bytes)
    return wire.Report(seq, fence, ended)


def as_bytes(payload: Payload) -> bytes:
    """Return a payload that came in one piece, which may be a view."""
    assert not isinstance(payload, Parcel)
    return bytes(payload)


def pack_result(seq: int, value: Payload = b"value", fence: int = 1) -> wire.Frame:
    """Pack a success of which only the value matters."""
    return wire.pack_success(seq, fence, value, 1.0, 2.0, 0.5, 7)


def in_one(frame: wire.Frame) -> bytes:
    """Join a frame as a stream does."""
    return frame if isinstance(frame, bytes) else b"".join(frame)


def read_up(data: bytes) -> list[wire.OtherMessage]:
    """Read frames of a worker, all of which must be whole."""
    messages: list[wire.UpMessage] = []
    assert wire.unpack_up(data, messages) == len(data)
    return [as_object(message) for message in messages]
