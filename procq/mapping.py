"""`Results`: what `Queue.map` returns (contract F2).

Puts items into tasks, and their results back in their places.  A tiny item would cost more to send
than to run, so brief ones travel in chunks, of which each is one task, as big as source.py says; what
cannot be shared goes alone: an item that stands for a result, one that is big, one that cannot be
pickled, and whatever must be tried again.  Knows of workers only how many there may be;
all of it happens in the thread that makes the map or reads from it.

The life of an item: read from the input, part of a unit (a chunk, or a task of its own) that is
submitted, part of what came of the unit when that has ended, taken.  Once submitted it counts as in
flight until it is taken.

Rule: an interrupt may end any call here, and the next one goes on where it stood.  So each step is
looked at where it stands and done in one row that cannot be parted (see interrupts.py); no item
and no result is ever in a local variable alone.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, cast, final

from procq.change import Change
from procq.core.states import Status
from procq.core.task import Task
from procq.engine import chunk
from procq.errors import EngineError, InternalError, QueueClosedError, UsageError
from procq.handle import Arrivals, Handle, error_of_attempt, task_of, warn_if_not_started
from procq.interrupts import WATCH, finalizes
from procq.outcome import Ended
from procq.parcel import Parcel, Payload
from procq.payload import PLAIN, NotPicklable, dump_part, dumps_whole, loads, loads_once
from procq.source import BYTES_MAX, Size, Source
from procq.spec import Options, TaskFunction, call_spec, called, type_of
from procq.supervisor import Supervisor

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: An item of so many bytes travels alone.
BIG_BYTES: Final = BYTES_MAX // 8
#: So many items are pickled before their bytes are looked at.
BLOCK: Final = 256
#: Tasks in flight for each worker unless the user says otherwise: one that runs, one that waits
#: behind it, and two whose results are being read.
AHEAD: Final = 4

#: What a submit raises once the queue is over, whatever the item.
_OVER: Final = (QueueClosedError, EngineError, InternalError)

#: Options that a chunk of items can have as well as one item; any other asks for a task for each.
_SHARED: Final = frozenset({
    "backoff", "cpus", "group", "max_attempts", "memory", "never_retry", "priority", "retry_for", "retry_on", "type",
})  # fmt: skip
#: Those of them that say when and where a chunk runs; the others are for its items.
_OF_CHUNKS: Final = frozenset({"cpus", "group", "memory", "priority"})


class Submitter(Protocol):
    """What `Results` asks of a queue."""

    def submit(self, what: Any, /, *args: Any) -> Handle[Any]:  # noqa: ANN401 - as `Queue.submit`
        """Submit a task."""

    def _submit_begun(self, fn: Callable[..., Any], args: tuple[Any, ...], ended: Ended) -> Handle[Any]:
        """Submit a task whose first attempt was made in a chunk."""

    def purge(self, which: Handle[Any], /) -> int:
        """Drop the dead letter of a task, if there is one."""


# --- what was submitted ------------------------------------------------------------------------

#: Items as they are sent: a pickle of many, or pickles of one each.
Blocks: TypeAlias = "list[bytes | list[bytes]]"


@final
class Unit:
    """What was submitted as one task, or is to come of it."""

    __slots__ = ("again", "blocks", "handle", "items", "parts")

    def __init__(self, handle: Handle[Any], items: int, blocks: "Blocks | None" = None) -> None:
        self.handle = handle
        #: how many items; 0 for one that was part of a chunk before
        self.items = items
        #: of a chunk, the items as they were sent: should it end badly, they are sent again
        self.blocks = blocks
        #: of a chunk, the units that were made of single items since it ended, by position
        self.again: dict[int, Unit] = {}
        #: what came of it, in order: results, an error in the place of one, or a unit that is yet to end
        self.parts: list[Part] | None = None


#: What is to be taken: results, an error in the place of one, or what a unit is yet to give.
Part: TypeAlias = "list[Any] | BaseException | Unit"


@final
class Results(Generic[R]):
    """The results of a `map`, one by one; an error is raised in its place and does not end it.

    Once the queue takes nothing more, that is raised once, after what was accepted, and it is over.

    Made by `Queue.map`.  For one thread at a time.
    """

    def __init__(
        self,
        queue: Submitter,
        supervisor: Supervisor,
        fn: "Callable[..., R] | TaskFunction[..., R]",
        source: Source,
        size: Size,
        *,
        ordered: bool,
        window: int | None,
        workers: int,
        timeout_s: float | None,
        chunks: "tuple[Payload, Options] | None",
    ) -> None:
        self._queue = queue
        self._supervisor = supervisor
        self._fn = fn
        self._source = source
        self._size = size
        self._ordered = ordered
        #: items in flight at most; None: `AHEAD` tasks for each worker
        self._window = window
        self._workers = workers
        self._timeout_s = timeout_s
        #: the pickled function and the options of chunks; None: each item is a task
        self._chunks = chunks
        #: the results being taken, and how many there were
        self._page: Iterator[R] = iter(())
        self._page_items = 0
        #: items read and not submitted yet, but for so many at their beginning that are
        self._unsent: list[Any] = []
        self._sent = 0
        #: items submitted and not yet taken; the whole of a page until its end
        self._in_flight = 0
        #: what is to be taken next, in order; where the order is that of the ends, no unit
        self._line: deque[Part] = deque()
        #: all and only units that have not ended, or of whose end nothing is known here
        self._pending: dict[Task, Unit] = {}
        self._arrivals = Arrivals()
        #: what the input raised, or the queue that takes no more of it; until it is told nothing more is read
        self._input_error: Exception | None = None
        #: open while a unit is submitted; an interrupt that ends one leaves nothing that has to be whole
        self._change = Change()
        self._fill()

    def __iter__(self) -> "Results[R]":
        return self

    def __next__(self) -> R:
        for value in self._page:  # as quick as can be: most results come by here
            return value
        return self._turn()

    def _turn(self) -> R:
        """Go on to the next page; return its first result, or raise the error that stands there."""
        self._in_flight -= self._page_items
        self._page_items = 0
        self._fill()
        part = self._next_part()
        if part is None:
            raise StopIteration
        if isinstance(part, list):
            page, items = iter(part), len(part)
            del self._line[0]
            self._page, self._page_items = page, items
            for value in page:  # not `next`, after which an interrupt could lose it
                return value
        error = cast("BaseException", part)
        # A StopIteration would read as the end of all (as in PEP 479).
        stand_in = RuntimeError("an item of the map raised StopIteration") if isinstance(part, StopIteration) else None
        if part is self._input_error:
            self._input_error = None
        else:
            del self._line[0]
        self._in_flight -= 1
        try:
            if stand_in is not None:
                raise stand_in from error
            raise error
        finally:
            del part, error, stand_in  # the traceback holds this frame: a cycle

    def _next_part(self) -> "list[R] | BaseException | None":
        """Wait for what is to be taken next and return it, which stays in its place; None at the end of all.

        Raises:
            TimeoutError: It did not come in time; it can be had later.
        """
        clock = self._supervisor.engine.now
        ends_at = None if self._timeout_s is None else clock() + self._timeout_s
        line = self._line
        while True:
            if line:
                first = line[0]
                if not isinstance(first, Unit):
                    return first
                if first.parts is not None:
                    parts = first.parts[::-1]
                    del line[0]
                    line.extendleft(parts)
                    continue
            if not self._pending:
                return self._input_error
            self._take_arrival(ends_at)

    def _take_arrival(self, ends_at: float | None) -> None:
        """Wait until any unit has ended, and open it."""
        supervisor = self._supervisor
        supervisor.settle_if_abandoned()
        warn_if_not_started(supervisor, self._timeout_s)
        arrivals = self._arrivals
        task = arrivals.first(supervisor, ends_at)
        if task is None:
            hint = "" if supervisor.opened else "; the queue was not started"
            raise TimeoutError(f"no result of the map within {self._timeout_s:g} s of waiting{hint}")
        unit = self._pending[task]
        parts = self._parts_of(unit)
        came = () if self._ordered else tuple([part for part in parts if not isinstance(part, Unit)])
        unit.parts = parts
        unit.blocks = None
        self._line += came
        del self._pending[task], arrivals.ended[0]

    # --- submitting ----------------------------------------------------------------------------

    def _fill(self) -> None:
        """Read items and submit them while there is room in flight."""
        self._send()  # what an interrupt has left
        while self._input_error is None:
            size = 1
            if self._chunks is not None:
                size = self._size.near_end(self._source.left, self._workers)
            window = AHEAD * self._workers * size if self._window is None else self._window
            if self._in_flight and self._in_flight + size > window:
                return
            if not self._submit_next(size):
                return

    def _submit_next(self, size: int) -> bool:
        """Read so many items and submit them; return whether there may be more.

        What is no `Exception` comes out at once, a Ctrl-C or a `SystemExit` of the input's; what was
        read before it is kept, and goes on in the next call.
        """
        items = self._unsent
        clock = self._supervisor.engine.now
        began_at = clock()
        try:
            more = self._source.read(items, size)
        except Exception as error:  # noqa: BLE001 - the input's own: raised after what was read before
            self._input_error = error
            self._in_flight += 1
            more = False
        if items:
            if self._input_error is None:
                self._size.note_read(len(items), clock() - began_at)
            self._send()
        return more

    def _send(self) -> None:
        """Submit what was read, each item alone or many together, and note it in its order."""
        if not self._unsent:
            return
        try:
            self._send_all()
        except _OVER as error:
            self._end_input(error)
            return
        self._unsent = []
        self._sent = 0

    def _send_all(self) -> None:
        if len(self._unsent) - self._sent == 1 or self._chunks is None:
            while self._sent < len(self._unsent):
                self._submit_alone(self._args_of(self._unsent[self._sent]))
        else:
            self._send_together(self._unsent)

    def _end_input(self, error: Exception) -> None:
        """The queue takes nothing more, and what is left of the input would be refused item by item, perhaps for ever.

        The error is told once, after all that was accepted.
        """
        self._source.close()
        is_new = self._input_error is None
        if not is_new:
            error.__context__ = self._input_error
        self._in_flight += is_new
        self._input_error = error
        self._unsent = []
        self._sent = 0

    def _send_together(self, items: list[Any]) -> None:
        """Submit what was read in chunks, but for what has to go alone."""
        blocks: Blocks = []
        held = size_bytes = 0

        def send() -> None:
            nonlocal blocks, held, size_bytes
            self._submit_chunk(blocks, held)
            blocks, held, size_bytes = [], 0, 0

        for start in range(self._sent, len(items), BLOCK):
            block = items[start : start + BLOCK]
            data = self._plain(block)
            if data is not None:
                blocks.append(data)
                held += len(block)
                size_bytes += len(data)
                if size_bytes >= BYTES_MAX:
                    send()
                continue
            for item in block:
                sealed = self._sealed(item)
                if sealed is None:
                    send()
                    self._submit_alone(self._args_of(item))
                    continue
                if not blocks or isinstance(blocks[-1], bytes):
                    blocks.append([])
                cast("list[bytes]", blocks[-1]).append(sealed)
                held += 1
                size_bytes += len(sealed)
                if size_bytes >= BYTES_MAX:
                    send()
        send()

    def _args_of(self, item: Any) -> tuple[Any, ...]:  # noqa: ANN401 - the user's
        return (item,) if self._source.is_bare else item

    def _plain(self, items: list[Any]) -> bytes | None:
        """Pickle items together; None if there are any that the function, or whoever made them, could change."""
        values = items if self._source.is_bare else chain.from_iterable(items)
        if not PLAIN.issuperset(map(type, values)):
            return None
        data = dumps_whole(items)
        return data if len(data) <= BYTES_MAX else None  # else each is looked at by itself

    def _sealed(self, item: Any) -> bytes | None:  # noqa: ANN401
        """Pickle an item by itself; None if it has to go alone."""
        try:
            data, inputs = dump_part(self._args_of(item))
        except NotPicklable:  # whoever submits it says why
            return None
        return None if inputs or not isinstance(data, bytes) or len(data) > BIG_BYTES else data

    def _submit_chunk(self, blocks: "Blocks", items: int) -> None:
        if not items:
            return
        assert self._chunks is not None
        fn_data, options = self._chunks
        spec = call_spec(chunk.run, (fn_data, blocks, self._source.is_bare), {}, options)
        try:
            self._submit(partial(self._queue.submit, spec), items, blocks)
        except _OVER:
            raise
        except Exception as error:  # noqa: BLE001 - a refusal: raised in the place of each item
            self._add_error(error)
            for _ in range(items - 1):
                self._add_error(_again(error))

    def _submit_alone(self, args: tuple[Any, ...]) -> None:
        try:
            self._submit(partial(self._queue.submit, self._fn, *args), 1)
        except _OVER:
            raise
        except Exception as error:  # noqa: BLE001 - a refusal: raised in its place
            self._add_error(error)

    def _submit(self, submit: Callable[[], Handle[Any]], items: int, blocks: "Blocks | None" = None) -> None:
        """Submit a unit and note it in its order."""
        self._change.make(self._submit_and, (submit, items, blocks, self._note))

    def _submit_again(self, submit: Callable[[], Handle[Any]], of: Unit, position: int) -> Unit:
        """Submit an item of a chunk once more, as a unit of its own, and note it with the chunk."""
        return self._change.make(self._submit_and, (submit, 0, None, partial(of.again.__setitem__, position)))

    def _submit_and(
        self,
        what: "tuple[Callable[[], Handle[Any]], int, Blocks | None, Callable[[Unit], object]]",
    ) -> Unit:
        """Submit a unit and note it: neither happens without the other.

        Ctrl-C comes after both, or before, where the submit waits for room.
        """
        submit, items, blocks, note = what
        unit = Unit(submit(), items, blocks)
        self._arrivals.expect(unit.handle)
        self._pending[task_of(unit.handle)] = unit
        note(unit)
        return unit

    def _note(self, unit: Unit) -> None:
        self._sent += unit.items
        self._in_flight += unit.items
        if self._ordered:
            self._line.append(unit)

    def _add_error(self, error: Exception) -> None:
        """Put an error in the place of an item."""
        self._sent += 1
        self._in_flight += 1
        self._line.append(error)

    # --- what came of it -----------------------------------------------------------------------

    def _parts_of(self, unit: Unit) -> list[Part]:
        """Say what came of a unit that has ended."""
        handle = unit.handle
        task = task_of(handle)
        if unit.items and handle.status is Status.SUCCEEDED:
            self._size.note(unit.items, handle.history[-1].run_s, len(task.value or b""))
        if unit.blocks is None:
            raised = WATCH.raised
            try:
                return [[handle.result()]]
            except BaseException as error:  # noqa: BLE001 - the task's, or a constructor of the user's
                _let_ctrl_c_out(error, raised)
                return [error]
        if handle.status is Status.SUCCEEDED:
            values, sealed, failures = cast("tuple[list[Any], list[int], dict[int, Ended]]", handle.result())
            if len(values) == unit.items:
                return self._pages(unit, values, sealed, failures)
        if handle.status is Status.CANCELLED:
            return [cast("Exception", handle.error) for _ in range(unit.items)]
        return self._alone_again(unit)

    def _pages(self, unit: Unit, values: list[Any], sealed: list[int], failures: dict[int, Ended]) -> list[Part]:
        """Take the results of a chunk apart where an item failed."""
        instead: dict[int, BaseException | Unit] = {}
        for position in sealed:
            raised = WATCH.raised
            try:
                values[position] = loads_once(values[position])
            except BaseException as error:  # noqa: BLE001 - a constructor of the user's
                _let_ctrl_c_out(error, raised)
                instead[position] = error
        if failures:
            items = self._items_of(unit)
            for position, ended in failures.items():
                instead[position] = self._go_on(unit, position, items[position], ended)
        if not instead:
            return [values]
        parts: list[Part] = []
        start = 0
        for position in sorted(instead):
            if start < position:
                parts.append(values[start:position])
            parts.append(instead[position])
            start = position + 1
        if start < len(values):
            parts.append(values[start:])
        return parts

    def _go_on(
        self, unit: Unit, position: int, item: "bytes | tuple[Any, ...]", ended: Ended
    ) -> BaseException | Unit:  # fmt: skip
        """Make a task of an item that failed in a chunk, which was its first attempt."""
        if position in unit.again:  # an interrupt came after it
            return unit.again[position]
        record = unit.handle.history[-1]
        ended.started_at, ended.ended_at = record.started_at, record.ended_at
        ended.pid, ended.peak_rss_bytes = record.pid, record.peak_rss_bytes
        try:
            args = self._loaded(item)
            submit = partial(self._queue._submit_begun, self._fn, args, ended)  # noqa: SLF001 - its own
            return self._submit_again(submit, unit, position)
        except _OVER:  # it is not tried again, and ended as it did
            task = Task(unit.handle.id, unit.handle.type, b"", Options({}))
            task.failures = 1
            return error_of_attempt(task, ended)
        except Exception as error:  # noqa: BLE001 - a refusal
            return error

    def _alone_again(self, unit: Unit) -> list[Part]:
        """Make a task of each item of a chunk that ended badly: nobody knows which was to blame."""
        # Not a dead letter: none of the items is given up.
        self._queue.purge(unit.handle)
        parts: list[Part] = []
        for position, item in enumerate(self._items_of(unit)):
            if position in unit.again:  # an interrupt came after it
                parts.append(unit.again[position])
                continue
            try:
                submit = partial(self._queue.submit, self._fn, *self._loaded(item))
                parts.append(self._submit_again(submit, unit, position))
            except _OVER:
                parts.append(cast("Exception", unit.handle.error))
            except Exception as error:  # noqa: BLE001 - a refusal
                parts.append(error)
        return parts

    def _items_of(self, unit: Unit) -> list[Any]:
        """Return the items of a chunk as they were sent: one that was pickled by itself as its pickle in a list."""
        items: list[Any] = []
        for block in unit.blocks or ():
            items += map(self._args_of, loads(block)) if isinstance(block, bytes) else block
        return items

    @staticmethod
    def _loaded(item: "bytes | tuple[Any, ...]") -> tuple[Any, ...]:
        return cast("tuple[Any, ...]", loads(item)) if isinstance(item, bytes) else item

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel what was not taken, and read no more items."""
        self._source.close()
        self._page = iter(())
        self._page_items = self._in_flight = self._sent = 0
        self._unsent = []
        self._line.clear()
        self._input_error = None
        for unit in reversed(self._pending.values()):
            self._arrivals.forget(unit.handle)
            unit.handle.cancel()
        self._pending.clear()

    @finalizes
    def __del__(self) -> None:
        pending = getattr(self, "_pending", None)
        if pending:
            # Not here: this may run anywhere, even while the lock is held by this thread.
            self._supervisor.cancel_later(list(pending))


def _let_ctrl_c_out(error: BaseException, raised: int) -> None:
    """Raise an error that befell the rebuilding of a result, if it is an interrupt: it will be done once more.

    Anything else, though it be no `Exception`, is what came of the item, and would come each time.

    Args:
        error: What was raised.
        raised: How many interrupts there had been before.
    """
    if WATCH.raised != raised and not isinstance(error, Exception):
        raise error


def _again(error: Exception) -> Exception:
    """Return an error like another, for one that is raised several times needs several tracebacks."""
    try:
        return cast("Exception", loads(dumps_whole(error)))
    except Exception:  # noqa: BLE001 - the user's; then the same one has to do
        return error


# --- what may be chunked -----------------------------------------------------------------------


def alone_because(fn: object, supervisor: Supervisor) -> str:
    """Say what asks for a task for each item; an empty text if nothing does."""
    if not isinstance(fn, TaskFunction):
        type_name = type_of(fn) if callable(fn) else ""
    else:
        type_name = fn.type
        others = sorted(fn.options.given.keys() - _SHARED)
        if others:
            return f"the option {others[0]}= of {type_name} is for one item"
    if type_name in supervisor.scheduler.gates:
        return f"the type {type_name!r} has a limit or a breaker"
    return ""


def chunks_of(fn: Any) -> "tuple[Payload, Options] | None":  # noqa: ANN401 - a function or a task function
    """Pickle the function for chunks, and make their options; None if it has to go with each item."""
    is_task = isinstance(fn, TaskFunction)
    try:
        type_name = fn.type if is_task else type_of(fn)
        data, inputs = dump_part(called(fn))
    except (NotPicklable, UsageError):  # whoever submits it says why
        return None
    if isinstance(data, Parcel) and data.buffers:  # each chunk would take them along
        return None
    shared = {name: fn.options.given[name] for name in _OF_CHUNKS & fn.options.given.keys()} if is_task else {}
    return None if inputs else (data, Options({**shared, "type": type_name}))
