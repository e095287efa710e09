"""Shared memory that workers have: who was lent what, and who is to let go of it (contract I2).

    worker --WANTED, key--> lend --descriptor--> worker, which maps it and keeps it
    last user gone, in any thread --> `_unshared` --alarm--> forget --FORGET, keys--> workers that have it
    worker --FORGOTTEN--> tell, if more has gone since

Decides when a worker is told.  A busy one reads nothing, and what it has not read takes up room in its
pipe, which its next task needs.  So all that has gone by then is told in one frame, and no more until
the worker has answered: one frame that lies unread is all that shares ever put into a pipe.

Who touches what: all of this under the host's lock only, but for `_unshared`.  That runs wherever and
whenever the last user goes, so it takes no lock: it appends to a deque, and alarms.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from procq.engine.local import wire
from procq.interrupts import finalizes
from procq.parcel import Parcel

if TYPE_CHECKING:
    from procq.engine.local.roster import Worker
    from procq.parcel import Payload, Share

#: So many keys go in one frame: 8 KB, which leaves room for the biggest packet in a pipe of default size.
KEYS_MAX: Final = 1000


@final
class Lending:
    """What is lent to any worker, and what is referred to no more.

    Args:
        alarm: Has the loop take a turn; may be called in any thread, at any moment.
    """

    __slots__ = ("_alarm", "_gone", "_has_more", "_lent")

    def __init__(self, alarm: Callable[[], object]) -> None:
        self._alarm = alarm
        #: what some worker was lent, by its key, until `forget` has found that nobody refers to it; who is still
        #: to be told is in `Worker.outdated`
        self._lent: dict[int, weakref.ref[Share]] = {}
        #: the keys of what is referred to no more, and still in `_lent`
        self._gone: deque[int] = deque()
        #: whether some worker's pipe was full when it was to be told
        self._has_more = False

    @property
    def is_due(self) -> bool:
        """Whether `forget` has something to do."""
        return bool(self._gone) or self._has_more

    def lend(self, worker: "Worker", call: "Payload", key: int) -> None:
        """Send a worker the memory that it waits for, if the call that it runs refers to it.

        Raises:
            WireError: The call does not; or the worker does not wait, or has shut its end.
        """
        for share in call.shares if isinstance(call, Parcel) else ():
            if share.key == key:
                worker.channel.send_descriptor(share.fd)
                worker.shares.add(key)
                if key not in self._lent:
                    self._lent[key] = weakref.ref(share, partial(self._unshared, key))
                return
        raise wire.WireError("it asked for shared memory that its task was not given")

    @finalizes
    def _unshared(self, key: int, _reference: object) -> None:
        """Take note that shared memory is referred to no more."""
        self._gone.append(key)
        self._alarm()

    def forget(self, workers: Collection["Worker"]) -> None:
        """Have workers let go of what is referred to no more."""
        gone = set()
        while self._gone:  # grows while this runs
            key = self._gone.popleft()
            del self._lent[key]
            gone.add(key)
        self._has_more = False
        for worker in workers:
            outdated = worker.shares & gone
            worker.shares -= outdated
            worker.outdated |= outdated
            self.tell(worker)

    def tell(self, worker: "Worker") -> None:
        """Tell a worker what to forget, unless it has not answered yet when it was told before."""
        if not worker.outdated or worker.is_forgetting:
            return
        keys = list(islice(worker.outdated, KEYS_MAX))
        with contextlib.suppress(wire.WireError):  # the pipe is shut: its death frees all
            if worker.channel.send(wire.pack_forget(keys)):
                worker.is_forgetting = True
                worker.outdated.difference_update(keys)
            else:  # of tasks that were sent ahead
                self._has_more = True

    def answered(self, worker: "Worker") -> None:
        """Take note that a worker has let go of what it was told."""
        worker.is_forgetting = False
        self.tell(worker)
