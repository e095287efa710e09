"""Drives one real worker by hand: the least that can stand in for the engine's loop."""

import select
import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from tests.support.frames import as_object

from procq import payload
from procq.engine.local import wire
from procq.engine.local.birth import Exit, WorkerConfig, WorkerProcess, spawn
from procq.outcome import Ended
from procq.parcel import Payload

#: How long to wait for any one thing: a safety bound, not a promise.
PATIENCE_S: Final = 20.0


class Driver:
    """A worker, and what it said."""

    def __init__(self, *, initializer: Payload = b"", await_ready: bool = True, **config: object) -> None:
        surroundings = {"worker_id": 1, "workers": 1, "cpus": 1} | config
        self.worker: WorkerProcess = spawn(WorkerConfig(initializer=initializer, **surroundings))  # type: ignore[arg-type]
        self.channel = self.worker.channel
        self.seq = 0
        #: read and not looked at yet
        self.inbox: deque[wire.UpMessage] = deque()
        if await_ready:
            assert isinstance(self.message(), wire.Ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.worker.descendants()
        self.worker.kill()
        try:
            self.death()
        finally:
            self.worker.close()

    def send(self, fn: object, *args: object, timeout_s: float | None = None, inputs: tuple[Payload, ...] = ()) -> int:
        """Send an attempt and return its seq."""
        self.seq += 1
        call, _ = payload.dump_call(fn, args, {})  # type: ignore[arg-type]
        self.send_call(call, timeout_s=timeout_s, inputs=inputs)
        return self.seq

    def send_call(self, call: Payload, *, timeout_s: float | None = None, inputs: tuple[Payload, ...] = ()) -> None:
        frame = wire.pack_task(self.seq, 1, 1, timeout_s, f"task-{self.seq}", call, inputs)
        assert self.channel.send_tasks([frame])

    def pack(self, fn: object, *args: object) -> wire.Frame:
        """Pack an attempt that is to be sent with others."""
        self.seq += 1
        call, _ = payload.dump_call(fn, args, {})  # type: ignore[arg-type]
        return wire.pack_task(self.seq, 1, 1, None, f"task-{self.seq}", call)

    def run(self, fn: object, *args: object, timeout_s: float | None = None, inputs: tuple[Payload, ...] = ()) -> Ended:
        """Send an attempt and wait for its report, skipping progress."""
        self.send(fn, *args, timeout_s=timeout_s, inputs=inputs)
        return self.report()

    def result(self, fn: object, *args: object) -> object:
        """Run an attempt that must succeed and return what it returned."""
        ended = self.run(fn, *args)
        assert ended.outcome == "ok", (ended.message, ended.traceback)
        assert ended.value is not None
        return payload.loads(ended.value)

    def report(self) -> Ended:
        """Wait for the report on the last attempt sent."""
        message = self.message()
        while isinstance(message, wire.Progress):
            message = self.message()
        assert isinstance(message, wire.Report), message
        assert (message.seq, message.fence) == (self.seq, 1)
        return message.ended

    def message(self) -> wire.OtherMessage:
        """Wait for the worker's next message; a success comes as a `Report` too."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.inbox:
            self.inbox += self.channel.receive()
            if not self.inbox:
                assert not self.channel.hung_up, f"the worker hung up: {self.worker.reap()}"
                self.channel.flush()
                self.wait(deadline)
        return as_object(self.inbox.popleft())

    def rest(self) -> list[wire.OtherMessage]:
        """Return what a dead worker had said."""
        while said := self.channel.receive():
            self.inbox += said
        messages = [as_object(message) for message in self.inbox]
        self.inbox.clear()
        return messages

    def death(self) -> Exit:
        """Wait for the worker's end, dropping what it says."""
        deadline = time.monotonic() + PATIENCE_S
        while (leave := self.worker.reap()) is None:
            self.wait(deadline, only_death=True)
        return leave

    def leave(self) -> Exit:
        """Tell the worker to leave and wait for its end."""
        assert self.channel.send(wire.EXIT_FRAME)
        return self.death()

    def wait(self, deadline: float, *, only_death: bool = False) -> None:
        """Wait until something can be done."""
        poll = select.poll()
        poll.register(self.worker.pidfd, select.POLLIN)
        if not only_death:
            poll.register(self.channel.stream_fd, select.POLLIN | (select.POLLOUT if self.channel.sending else 0))
        assert poll.poll(max(0.0, deadline - time.monotonic()) * 1000), "the worker says nothing and lives on"
