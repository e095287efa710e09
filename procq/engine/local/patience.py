"""Ends workers that keep their supervisor waiting, whatever a task did to them (contract H5).

An attempt may take as long as its timeout says.  Here is what no honest worker is long about: to go on
with a message that it has begun, to answer when it has nothing else to do, to die once its pipes are shut.

Who touches what: everything under the host's lock only; what is set for a worker is a timer of its
(`Lookout`), and `speaking` says whether one is set for a message.
"""

import time
from functools import partial
from typing import Final, final

from procq.engine.local.crew import Crew
from procq.engine.local.lookout import Lookout
from procq.engine.local.roster import State, Worker

#: How long a worker may take to read a big payload, to move on with a big result, or to answer when
#: it has nothing else to do; far more than any honest one needs.
TRANSFER_S: Final = 10.0
#: From the end of a worker's pipes to its death: some milliseconds while it frees its memory.
_HANG_UP_S: Final = 1.0


@final
class Patience:
    """Waits for workers, but not for ever."""

    __slots__ = ("_crew", "_lookout")

    def __init__(self, crew: Crew, lookout: Lookout) -> None:
        self._crew = crew
        self._lookout = lookout

    def mind_message(self, worker: Worker) -> None:
        """A message has begun to come, or is whole: one that does not move on ends its worker."""
        channel = worker.channel
        worker.speaking = channel.receiving
        if worker.speaking:
            listen = partial(self._listen, moves_before=channel.moves)
            self._lookout.set_timer(worker, "message", time.monotonic() + TRANSFER_S, listen)
        else:
            self._lookout.drop_timer(worker, "message")

    def _listen(self, worker: Worker, moves_before: int) -> None:
        """See whether a message that has begun to come has moved on."""
        has_timeout = worker.running is not None and worker.running.timeout_s is not None  # which ends it in its time
        if worker.channel.moves == moves_before and not worker.log_held and not has_timeout:
            self._crew.condemn(worker, "it began a message and did not go on with it")
        else:
            self.mind_message(worker)

    def await_answer(self, worker: Worker) -> None:
        """A worker has nothing to do but to say that it has forgotten what was taken back."""
        self._lookout.set_timer(worker, "dropped", time.monotonic() + TRANSFER_S, self._deaf)

    def answered(self, worker: Worker) -> None:
        """It has, whether that was awaited or not."""
        self._lookout.drop_timer(worker, "dropped")

    def _deaf(self, worker: Worker) -> None:
        self._crew.condemn(worker, "it did not answer")

    def hung_up(self, worker: Worker) -> None:
        """A worker has closed its end: its death follows at once, or it is a cheat."""
        self._lookout.unwatch_stream(worker)
        if worker.state is not State.DYING and not self._lookout.has_timer(worker, "hang-up"):
            self._lookout.set_timer(worker, "hang-up", time.monotonic() + _HANG_UP_S, self._still_there)

    def _still_there(self, worker: Worker) -> None:
        self._crew.condemn(worker, "it closed the pipes to its supervisor")
