"""The engines that the contract suite runs against, and what each of them cannot do."""

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Unpack, final
from uuid import uuid4

import pytest
from tests.contract import tasks

import procq
from procq import testing
from procq.spec import OptionArguments
from procq.testing import QueueParameters
from procq.units import Duration

#: What a test needs beyond the calls that every engine answers.
PARALLEL = "several attempts at once"
BACKGROUND = "attempts run while nobody waits"
NOTHING_AHEAD = "what runs next is decided only when an attempt has ended"


class Parameters(QueueParameters, total=False):
    """The parameters of a queue that every engine takes."""

    kill_grace: Duration
    initializer: Callable[..., object] | None
    initargs: tuple[object, ...]
    capture: bool


class Driver(ABC):
    """Makes queues on one engine, and ends them."""

    #: what the engine cannot do, and why
    lacks: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._queues: list[procq.Queue] = []

    def needs(self, ability: str) -> None:
        """Skip the test on an engine that cannot do this."""
        if ability in self.lacks:
            pytest.skip(f"needs {ability}: {self.lacks[ability]}")

    def queue(self, *, workers: int = 1, **parameters: Unpack[Parameters]) -> procq.Queue:
        """Make a stopped queue that is ended with the test."""
        if workers > 1:
            self.needs(PARALLEL)
        queue = self._make(workers, parameters)
        self._queues.append(queue)
        return queue

    def started(self, *, workers: int = 1, **parameters: Unpack[Parameters]) -> procq.Queue:
        """Make a started queue that is ended with the test."""
        return self.queue(workers=workers, **parameters).start()

    def close(self) -> None:
        """End what the test left, and look whether all the books are in order."""
        for queue in self._queues:
            self.check(queue)
            queue.shutdown(0, mode="kill")
            self.check(queue)
        self._queues.clear()

    def check(self, queue: procq.Queue) -> None:
        """Look whether every task is where its status says."""
        with queue._supervisor.lock:
            queue._supervisor.scheduler.check_invariants()

    def forget(self, queue: procq.Queue) -> None:
        """Leave the end of a queue to the test."""
        self._queues.remove(queue)

    @abstractmethod
    def _make(self, workers: int, parameters: Parameters) -> procq.Queue: ...

    @abstractmethod
    def now(self) -> float:
        """Read the clock that the engine goes by."""

    @abstractmethod
    def pass_a_millisecond(self) -> None:
        """Return when that clock shows a millisecond more."""

    @abstractmethod
    def during(
        self,
        queue: procq.Queue,
        action: "Callable[[procq.Handle[str]], object]",
        *,
        fn: Callable[[str], str] = tasks.meet,
        **options: Unpack[OptionArguments],
    ) -> "procq.Handle[str]":
        """Submit a task and do something in the middle of its first attempt; return when it has ended.

        Args:
            queue: Where; started, and with a worker that is free or will be.
            action: What to do; given the task's handle.
            fn: `meet`, or what calls it with its argument.
            options: Of the task.
        """


@final
class InlineDriver(Driver):
    """Attempts in the test's own thread, on a fake clock."""

    lacks: ClassVar[Mapping[str, str]] = {
        PARALLEL: "an inline queue runs one at a time",
        BACKGROUND: "an inline queue runs only in the thread that waits",
    }

    def __init__(self) -> None:
        super().__init__()
        self._clock = testing.FakeClock()

    def _make(self, workers: int, parameters: Parameters) -> procq.Queue:
        assert workers == 1
        return testing.inline(clock=self._clock, **parameters)

    def now(self) -> float:
        return self._clock.now

    def pass_a_millisecond(self) -> None:
        self._clock.advance(0.001)

    def during(
        self,
        queue: procq.Queue,
        action: "Callable[[procq.Handle[str]], object]",
        *,
        fn: Callable[[str], str] = tasks.meet,
        **options: Unpack[OptionArguments],
    ) -> "procq.Handle[str]":
        place = uuid4().hex
        handle = queue.submit(procq.task(fn, **options).spec(place))
        tasks.MEETINGS[place] = lambda: action(handle)
        try:
            handle.wait()
        finally:
            del tasks.MEETINGS[place]
        return handle


@final
class LocalDriver(Driver):
    """Attempts in spawned workers, on the real clock."""

    lacks: ClassVar[Mapping[str, str]] = {
        NOTHING_AHEAD: "what was sent ahead to a worker begins in the very instant in which the attempt before it ends",
    }

    def _make(self, workers: int, parameters: Parameters) -> procq.Queue:
        return procq.Queue(workers=workers, **parameters)

    def now(self) -> float:
        return time.monotonic()

    def pass_a_millisecond(self) -> None:
        began = time.monotonic()
        while time.monotonic() < began + 0.001:
            """It passes by itself."""

    def during(
        self,
        queue: procq.Queue,
        action: "Callable[[procq.Handle[str]], object]",
        *,
        fn: Callable[[str], str] = tasks.meet,
        **options: Unpack[OptionArguments],
    ) -> "procq.Handle[str]":
        with tempfile.TemporaryDirectory() as place:
            began, go = Path(place) / "began", Path(place) / "go"
            os.mkfifo(began)
            os.mkfifo(go)
            # For reading too, so that this blocks nowhere and a task that has gone disturbs nobody.
            release = os.open(go, os.O_RDWR)
            try:
                handle = queue.submit(procq.task(fn, **options).spec(place))
                began.read_bytes()  # returns once the task has written
                action(handle)
                # A byte more than one: the request to stop may come when the task has read one, and it wants another.
                os.write(release, b"!!")
                handle.wait()
            finally:
                os.close(release)
        return handle
