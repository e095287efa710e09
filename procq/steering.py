"""What `procq run` needs of a queue beyond what programs are given: to see more of it, and to stop it in steps.

The one door for that.  Of a task the command line knows more by `handle.task_of`.
"""

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, final

from procq.core.capacity import Capacity
from procq.core.task import Task
from procq.halting import Halted
from procq.handle import Handle, handle_of
from procq.queue import Queue


@final
class Steering:
    """Steers a queue that belongs to somebody else.

    Args:
        queue: The queue.
    """

    __slots__ = ("_supervisor",)

    def __init__(self, queue: Queue) -> None:
        self._supervisor = queue._supervisor  # noqa: SLF001 - see the head of the module

    @property
    def capacity(self) -> Capacity | None:
        """What attempts share while they run; None: nobody asks for anything."""
        return self._supervisor.scheduler.capacity

    def on_halt(self, tell: Callable[[Halted], object]) -> None:
        """Have somebody told when the queue has halted by itself, in the thread of callbacks; before it is started."""
        self._supervisor.halt_listeners.append(tell)

    def on_spawn(self, tell: Callable[[list[Handle[Any]]], object]) -> None:
        """Have somebody told of the tasks that are spawned, before any of them can end; before the queue is started.

        Called under the lock, in any thread: so it must be quick, and call nothing of the queue.
        """

        def tell_handles(tasks: Iterable[Task]) -> None:
            tell([handle_of(self._supervisor, task) for task in tasks])

        self._supervisor.offspring.tell = tell_handles

    def give_spawned(self, defaults: Mapping[str, object], overrides: Mapping[str, Mapping[str, object]]) -> None:
        """Give options to the tasks that are spawned; before the queue is started.

        Args:
            defaults: For tasks that don't say.
            overrides: By type, for tasks whatever they say.
        """
        self._supervisor.offspring.defaults = defaults
        self._supervisor.offspring.overrides = overrides

    def keep_all_events(self) -> None:
        """Drop no event however many wait: for a queue that is given all its tasks at once, and keeps those too."""
        events = self._supervisor._events  # noqa: SLF001 - see the head of the module
        if events is not None:
            events.waiting_max = inf

    def check_alive(self) -> None:
        """Refuse to go by a queue that has broken.

        Raises:
            EngineError, InternalError: Its own thread has failed.
        """
        self._supervisor.check_alive()

    def hold(self) -> None:
        """Start nothing new, also amid a shutdown, which is then to be made a harsher one; may block briefly."""
        with self._supervisor.entry:
            self._supervisor.pause()
