"""What the supervisor's thread waits in: one selector, the timers and an alarm (DESIGN 2).

Nothing here knows workers or attempts.  Everything but `poll` and `alarm` is called under the
queue's one lock; `poll` is the only place where the thread sleeps, and it sleeps without the lock.
"""

import contextlib
import os
import select
from collections.abc import Callable, Hashable, Iterable
from typing import Final, final

from procq.core.heaps import TimerHeap
from procq.engine.local.transport import above_standard_streams

#: What a descriptor is watched for.
READ: Final = getattr(select, "EPOLLIN", 1)
WRITE: Final = getattr(select, "EPOLLOUT", 4)

#: No sleep is longer, so that a clock that jumps in a suspended machine is noticed some day; an
#: idle queue wakes for nothing else.
_LONGEST_SLEEP_S: Final = 3600.0

Events = list[tuple[int, int]]


@final
class Loop:
    """Two epolls, the urgent one within the other, the timers, and an eventfd to wake it.

    Attributes:
        turns: How often it has woken; an idle queue's must not.
    """

    __slots__ = (
        "_alarm_fd", "_asleep", "_handlers", "_planned", "_poller", "_timers", "_urgent", "_urgent_fd", "turns",
    )  # fmt: skip

    def __init__(self) -> None:
        #: what everything is watched with, and within it what must not wait: the alarm and what `watch` was
        #: told is urgent.  Made by `open`, as is the next: an unused queue holds no descriptor
        self._poller: select.epoll
        self._urgent: select.epoll
        self._urgent_fd = -1
        #: an eventfd: written to wake the loop
        self._alarm_fd = -1
        self._handlers: dict[int, Callable[[], object]] = {}
        self._timers: TimerHeap[Callable[[], object]] = TimerHeap()
        #: whether the thread sleeps, or is about to: then it must be woken to notice anything
        self._asleep = False
        #: when it wakes by itself
        self._planned = 0.0
        self.turns = 0

    def open(self) -> None:
        """Get the descriptors.

        Raises:
            OSError: The system has none to spare.
        """
        self._poller = self._urgent = select.epoll()
        try:
            self._urgent = select.epoll()
            self._urgent_fd = self._urgent.fileno()
            self._poller.register(self._urgent_fd, READ)
            self._alarm_fd = above_standard_streams(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            self._urgent.register(self._alarm_fd, READ)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the descriptors back; may be called twice."""
        self._asleep = False
        self._poller.close()
        self._urgent.close()
        alarm_fd, self._alarm_fd = self._alarm_fd, -1
        if alarm_fd >= 0:
            os.close(alarm_fd)

    # --- descriptors ---------------------------------------------------------------------------

    def watch(self, fd: int, mask: int, call: Callable[[], object], *, urgent: bool = False) -> None:
        """Have `call()` made in each turn in which the descriptor is ready; an urgent one ends a nap."""
        self._handlers[fd] = call
        (self._urgent if urgent else self._poller).register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        """Watch a watched descriptor for something else."""
        self._poller.modify(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Watch a descriptor no more; not watched is fine."""
        if self._handlers.pop(fd, None) is not None:
            for poller in (self._poller, self._urgent):
                with contextlib.suppress(OSError, ValueError):  # in the other, or closed already
                    poller.unregister(fd)

    # --- timers --------------------------------------------------------------------------------

    def set_timer(self, key: Hashable, at: float, call: Callable[[], object]) -> None:
        """Have `call()` made once at `at`, instead of what is set under the same key."""
        self._timers.set(key, at, call)
        self.wake(at)

    def has_timer(self, key: Hashable) -> bool:
        """Whether something is set under the key."""
        return key in self._timers

    def drop_timer(self, key: Hashable) -> None:
        """Forget what is set under the key; nothing is fine."""
        self._timers.discard(key)

    # --- turns ---------------------------------------------------------------------------------

    def plan(self, instants: Iterable[float | None], now: float) -> float:
        """Decide how long to sleep: until the earliest instant or timer.  `wake` counts from here on."""
        known = [at for at in (*instants, self._timers.next_at()) if at is not None]
        self._planned = min(known, default=now + _LONGEST_SLEEP_S)
        self._asleep = True
        return min(max(0.0, self._planned - now), _LONGEST_SLEEP_S)

    def poll(self, wait_s: float, nap_s: float = 0.0) -> Events:
        """Sleep, at most so long; without the lock.

        Args:
            wait_s: The longest sleep; anything ends it.
            nap_s: For the first so many seconds of that only what is urgent does.
        """
        if nap_s:
            wait_s = 0.0 if self._urgent.poll(nap_s) else max(0.0, wait_s - nap_s)
        events: Events = self._poller.poll(wait_s)
        if any(fd == self._urgent_fd for fd, _ in events):
            events += self._urgent.poll(0)
        self.turns += 1
        return events

    def ready(self) -> list[int]:
        """Return the descriptors that are ready now; in any thread, under the lock."""
        return [fd for fd, _ in self._poller.poll(0)]

    def handle(self, events: Events) -> None:
        """Make the calls that descriptors have asked for."""
        self._asleep = False
        for fd, _ in events:
            if fd == self._alarm_fd:
                os.eventfd_read(fd)
                continue
            call = self._handlers.get(fd)  # gone if a call before has unwatched it; the urgent epoll has none
            if call is not None:
                call()

    def ring_timers(self, now: float) -> None:
        """Make the calls whose instants have come."""
        while (call := self._timers.pop_due(now)) is not None:
            call()

    def wake(self, by: float | None = None) -> None:
        """Have a turn begin soon, or at the latest at the instant `by`."""
        if self._asleep and (by is None or by < self._planned):
            self._asleep = False
            self.alarm()

    def alarm(self) -> None:
        """Have a turn begin soon; may be called without the lock, at any moment."""
        fd = self._alarm_fd
        if fd >= 0:
            with contextlib.suppress(OSError):  # closed meanwhile, or full: then it wakes anyway
                os.eventfd_write(fd, 1)
