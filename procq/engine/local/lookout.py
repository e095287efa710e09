"""What the loop looks out for of each worker: what it says, its death, and the timers set for it.

    stream readable, or room in it --> `read`, `transferred`
    captured output readable --------> taken down (`capture.Output`), with a pause after each flood
    pidfd readable ------------------> `died`
    an instant has come -------------> what was set for it

Decides which descriptors are watched, and for what; what follows from it is the engine's.

Who touches what: everything here under the host's lock only, the loop's handlers included.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, final, get_args

from procq.engine.local import capture
from procq.engine.local.loop import READ, WRITE, Loop
from procq.engine.local.roster import Worker

#: What a worker may have a timer for.
Kind = Literal["start", "grace", "deadline", "message", "hang-up", "dropped", "stdout", "stderr"]
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
#: Those of captured streams, by the streams' numbers.
_OUTPUTS: Final[tuple[Kind, Kind]] = ("stdout", "stderr")


@final
class Lookout:
    """Watches workers in a loop.

    Args:
        loop: The loop.
        read: Called with a worker that has said something, or has closed its end.
        transferred: Called with a worker once what is too big for a packet was written.
        died: Called with a worker whose process has ended.
    """

    __slots__ = ("_died", "_loop", "_read", "_speakers", "_transferred")

    def __init__(
        self,
        loop: Loop,
        *,
        read: Callable[[Worker], object],
        transferred: Callable[[Worker], object],
        died: Callable[[Worker], object],
    ) -> None:
        self._loop = loop
        self._read = read
        self._transferred = transferred
        self._died = died
        #: all workers that are watched, by the descriptor on which they speak
        self._speakers: dict[int, Worker] = {}

    def add(self, worker: Worker) -> None:
        """Watch a new worker."""
        self._speakers[worker.channel.stream_fd] = worker
        self._loop.watch(worker.process.pidfd, READ, partial(self._died, worker), urgent=True)
        self.watch_stream(worker)
        if worker.output is not None:
            for number in range(len(worker.output.fds)):
                self._watch_output(worker, number)

    def remove(self, worker: Worker) -> None:
        """Watch a dead worker no more, and forget its timers; what it has written last is taken down."""
        for kind in _KINDS:
            self.drop_timer(worker, kind)
        self._loop.unwatch(worker.process.pidfd)
        self.unwatch_stream(worker)
        del self._speakers[worker.channel.stream_fd]
        if worker.output is not None:
            worker.output.drain()  # the report on its attempt still wants it
            for fd in worker.output.fds:
                self._loop.unwatch(fd)

    def speakers(self) -> list[Worker]:
        """Return the workers that have said something by now; in any thread."""
        found = map(self._speakers.get, self._loop.ready())
        return [worker for worker in found if worker is not None]

    # --- timers --------------------------------------------------------------------------------

    def set_timer(self, worker: Worker, kind: Kind, at: float, call: Callable[[Worker], object]) -> None:
        """Have `call(worker)` made at an instant, instead of what is set for it under the same kind."""
        self._loop.set_timer((worker.id, kind), at, partial(call, worker))

    def has_timer(self, worker: Worker, kind: Kind) -> bool:
        """Whether something is set for a worker under the kind."""
        return self._loop.has_timer((worker.id, kind))

    def drop_timer(self, worker: Worker, kind: Kind) -> None:
        """Forget what is set for a worker under the kind; nothing is fine."""
        self._loop.drop_timer((worker.id, kind))

    # --- the stream ----------------------------------------------------------------------------

    def watch_stream(self, worker: Worker) -> None:
        """Watch a worker's stream: for what it says, and for room while something big is sent down.

        To be called whenever one of both has changed; after `unwatch_stream` it does nothing.
        """
        channel = worker.channel
        mask = (0 if worker.log_held else READ) | (WRITE if channel.sending else 0)
        if worker.stream_mask in {0, mask}:  # 0: nothing can be read from it any more
            return
        if worker.stream_mask is None:
            if not mask:
                return
            self._loop.watch(channel.stream_fd, mask, partial(self._stream_moves, worker))
        elif mask:
            self._loop.change(channel.stream_fd, mask)
        else:  # for now: a descriptor that is watched for nothing would still report its end, again and again
            self._loop.unwatch(channel.stream_fd)
        worker.stream_mask = mask or None

    def unwatch_stream(self, worker: Worker) -> None:
        """Watch a worker's stream no more, for good: its end would be reported again and again."""
        worker.stream_mask = 0
        self._loop.unwatch(worker.channel.stream_fd)

    def _stream_moves(self, worker: Worker) -> None:
        """A worker's stream can be read, or written."""
        channel = worker.channel
        if channel.sending and channel.flush():
            self._transferred(worker)
            self.watch_stream(worker)
        if not worker.log_held:
            self._read(worker)

    # --- captured output -----------------------------------------------------------------------

    def _watch_output(self, worker: Worker, number: int) -> None:
        """Read a stream of a worker's attempts whenever something is written to it."""
        assert worker.output is not None, "only where it is captured"
        self._loop.watch(worker.output.fds[number], READ, partial(self._read_output, worker, number))

    def _read_output(self, worker: Worker, number: int) -> None:
        assert worker.output is not None, "only where it is captured"
        read = worker.output.read(number)
        if read is not None and read < capture.FLOOD_BYTES:
            return
        self._loop.unwatch(worker.output.fds[number])
        if read is not None:
            watch = partial(self._watch_output, number=number)
            self.set_timer(worker, _OUTPUTS[number], time.monotonic() + capture.FLOOD_PAUSE_S, watch)
