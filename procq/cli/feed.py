"""Takes the events of a queue, adds what only the command line knows, and gives them to all who asked.

    queue --> Feed --> the jobs file's own on_event | events.jsonl and --events | --trace | live display

Works in the events' thread of the queue, but for the last event: `run.ended` waits for the exit code,
which the main thread knows later.  A taker that raises harms no other; that is logged once.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast, final

from procq.cli import preview
from procq.events import OPT_IN, Event, OnEvent, as_listener
from procq.log import ERROR, Logger
from procq.spec import TaskSpec

logger = Logger(__name__)

Take = Callable[[Event], object]

#: How long the end of a run waits for the queue to tell of its own: only after a kill is that not told already.
_END_WAIT_S: Final = 2.0
#: How long the telling of a task waits for a submit that is under way to say what the task's arguments are.
_NAME_WAIT_S: Final = 0.02


class _Taker(NamedTuple):
    """Who is told, and of what."""

    take: Take
    what: str  #: for messages
    kinds: frozenset[str] | None  #: None: all
    opt_in: frozenset[str]


@final
class Feed:
    """Gives the events of one run to its takers.

    All takers are added before the queue is made.

    Attributes:
        previews: What the arguments of the tasks are that are being submitted.
        run: How the events name the run; None: as the queue does.
        about: What `run.started` says beyond what the queue knows.
    """

    __slots__ = ("_end", "_failed", "_is_closed", "_lock", "_takers", "_told", "about", "previews", "run")

    def __init__(self) -> None:
        self.previews = Previews()
        self.run: str | None = None
        self.about: Mapping[str, object] = {}
        self._takers: list[_Taker] = []
        #: who is told of a kind, found out with its first event
        self._told: dict[str, list[_Taker]] = {}
        #: what raised already
        self._failed: set[str] = set()
        self._end: Event | None = None
        self._lock = threading.Condition()
        self._is_closed = False

    def add(self, take: Take, *, what: str, kinds: Iterable[str] | None = None, opt_in: Iterable[str] = ()) -> None:
        """Have somebody told, in the order in which they were added.

        Args:
            take: Called with each event, which it must not change.
            what: Names it in messages.
            kinds: Of which alone it is told; None: of all.
            opt_in: Kinds that are told only where somebody asks for them.
        """
        self._takers.append(_Taker(take, what, None if kinds is None else frozenset(kinds), frozenset(opt_in)))

    def listener(self, own: OnEvent | None) -> OnEvent | None:
        """Return what the queue is to tell; None if nobody wants to know.

        Args:
            own: The `on_event` of the jobs file, which is told last: it may take its time, or end the process.

        Raises:
            UsageError: That is none.
        """
        if own is not None:
            listen, wanted = as_listener(own)
            of_all = frozenset().union(*(taker.opt_in for taker in self._takers))
            self._takers.append(_Taker(_Apart(listen, of_all - wanted).take, "on_event", None, wanted))
        if not self._takers:
            return None
        return self.take, frozenset().union(*(taker.opt_in for taker in self._takers))

    def take(self, event: Event) -> None:
        """Take an event of the queue."""
        kind = cast("str", event["ev"])
        if kind == "task.submitted":
            event["args"] = self.previews.take(cast("str", event["id"]))
        elif kind == "run.started":
            event.update(self.about)
        if self.run is not None:
            event["run"] = self.run
        if kind == "run.ended":
            with self._lock:
                self._end = event
                self._lock.notify_all()
            return
        if not self._is_closed:  # else the thread is far behind, after a kill
            self._give(kind, event)

    def end(self, exit_code: int) -> Event | None:
        """Tell that the run has ended; called once the queue has, in the main thread.

        Returns:
            The last event; None if the queue has not told of its end.
        """
        if not self._takers:
            return None
        with self._lock:
            self._lock.wait_for(lambda: self._end is not None, _END_WAIT_S)
            event, self._is_closed = self._end, True
        if event is not None:
            event["exit_code"] = exit_code
            self._give("run.ended", event)
        return event

    def _give(self, kind: str, event: Event) -> None:
        takers = self._told.get(kind)
        if takers is None:
            takers = self._told[kind] = [taker for taker in self._takers if _wants(taker, kind)]
        for taker in takers:
            try:
                taker.take(event)
            except BaseException:  # noqa: BLE001 - a callback (F4): whatever it raises harms no other
                self._raised(taker.what)

    def _raised(self, what: str) -> None:
        """Log the error being handled, the first time: what is wrong with one event is mostly wrong with all."""
        if what not in self._failed:
            self._failed.add(what)
            with contextlib.suppress(BaseException):  # a handler of the jobs file's may raise too
                logger.log(ERROR, "%s raised; from now on that is passed over", what, exc_info=True)


def _wants(taker: _Taker, kind: str) -> bool:
    """Return whether to tell a taker of a kind: of an opt-in one whether it or anybody else asked."""
    return taker.kinds is None or kind in taker.kinds or (kind in OPT_IN and kind in taker.opt_in)


@final
class _Apart:
    """Tells the jobs file's own listener what it asked for, numbered without gaps, in dicts of its own."""

    __slots__ = ("_left_out", "_listen", "_unwanted")

    def __init__(self, listen: Take, unwanted: frozenset[str]) -> None:
        self._listen = listen
        self._unwanted = unwanted
        #: how many events it was not told of
        self._left_out = 0

    def take(self, event: Event) -> None:
        """Tell of an event."""
        if event["ev"] in self._unwanted:
            self._left_out += 1
        else:
            self._listen({**event, "seq": cast("int", event["seq"]) - self._left_out})


@final
class Previews:
    """Knows how the arguments of a task look, from its submission until it is told of.

    A task with an id is entered before it is submitted.  The id of one without is known only when it is
    accepted, and by then its event may be on its way: so that waits a moment for the submit to be over.
    """

    __slots__ = ("_entered", "_is_open", "_lock", "is_wanted")

    def __init__(self) -> None:
        #: whether anybody looks; else none are made
        self.is_wanted = False
        self._entered: dict[str, str] = {}
        #: whether tasks without an id are being submitted
        self._is_open = False
        self._lock = threading.Condition()

    def enter(self, task_id: str, spec: TaskSpec[Any]) -> None:
        """Note the arguments of a task."""
        self._entered[task_id] = preview.arguments(spec)

    def leave(self, task_id: str) -> None:
        """Forget a task that was refused."""
        self._entered.pop(task_id, None)

    def open(self) -> None:
        """Tasks without an id are about to be submitted."""
        self._is_open = True

    def close(self) -> None:
        """They were entered, or refused."""
        if self._is_open:
            with self._lock:
                self._is_open = False
                self._lock.notify_all()

    def take(self, task_id: str) -> str | None:
        """Return how the arguments of a task look that is told of now; None if nobody knows."""
        found = self._entered.pop(task_id, None)
        if found is None and self._is_open:
            with self._lock:
                # Once for each submit: one that waits for room holds up no more than that.
                self._lock.wait_for(lambda: not self._is_open, _NAME_WAIT_S)
                self._is_open = False
            found = self._entered.pop(task_id, None)
        return found
