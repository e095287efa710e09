"""Calls the entry and feeds what it produces to the queue, in a thread of its own.

A generator may take its time, or block in the user's code; the main thread must stay free for
signals meanwhile.  What goes wrong here is told in terms of the jobs file.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, final

from procq import loader
from procq.cli import preview
from procq.cli.entry import Entry
from procq.cli.exits import CommandLineError
from procq.cli.intake import Intake
from procq.cli.parameters import Bound
from procq.errors import EngineError, InternalError, JobsFileError, ProcqError, QueueClosedError, UsageError
from procq.spec import TaskFunction, TaskSpec

#: How long a stopped producer gets to leave the user's generator, whose `finally` may clean up.
_LEAVE_S: Final = 1.0

_CALLING_HINT: Final = "{name}.spec(x), not {name}(x): calling a task function runs it"


class Begun(NamedTuple):
    """The message that the first tasks were accepted."""


class Produced(NamedTuple):
    """The message that the producer has ended."""

    error: ProcqError | None  #: what ended it, None if it came to its end or was stopped
    complete: bool  #: whether everything the entry lists was submitted


def call(entry: Entry, bound: Bound) -> object:
    """Call the entry.

    Returns:
        What it returns; a generator has not begun to run.

    Raises:
        JobsFileError: It raised something.
    """
    try:
        return entry(*bound.args, **bound.kwargs)
    except (Exception, SystemExit) as error:
        raise _blamed(entry, error) from error


def _blamed(entry: Entry, error: BaseException) -> JobsFileError:
    """Say that the entry raised, and where; what procq itself refused there speaks for itself."""
    if isinstance(error, JobsFileError):
        return error
    what = str(error) if isinstance(error, UsageError) else f"{_name(entry)} failed: {loader.describe(error)}"
    return JobsFileError(what, where=loader.shown_frames(error))


def _name(entry: Entry) -> str:
    """Return the entry as messages name it."""
    return f"{getattr(entry, '__name__', 'the entry')}()"


def checked_iterator(entry: Entry, produced: object) -> Iterator[object] | list[TaskSpec[Any]]:
    """Return what the entry produced as a list that is checked, or as an iterator to be pulled.

    Raises:
        JobsFileError: It is neither, or something in the list is no task.
    """
    if isinstance(produced, list | tuple):
        return [_checked(entry, item, number, verb="returned") for number, item in enumerate(produced, 1)]
    if isinstance(produced, TaskSpec):
        raise JobsFileError(f"{_name(entry)} returned one TaskSpec, expected a list", hint="return [spec]")
    try:
        return iter(produced)  # type: ignore[call-overload,no-any-return]  # refused in words below
    except TypeError:
        raise JobsFileError(
            f"{_name(entry)} returned {_kind(produced)}, expected tasks",
            hint="return a list of specs, or yield them: yield my_task.spec(x)",
        ) from None


def first(work: Iterator[object] | list[TaskSpec[Any]], number: int) -> Iterator[object] | list[TaskSpec[Any]]:
    """Return the first so many of what an entry produced; of a generator no more are asked for."""
    return work[:number] if isinstance(work, list) else _first(work, number)


def _first(work: Iterator[object], number: int) -> Iterator[object]:
    """Yield the first so many, and let the generator clean up after them."""
    try:
        yield from itertools.islice(work, number)
    finally:
        _close(work)


def specs(entry: Entry, work: Iterator[object] | list[TaskSpec[Any]]) -> Iterator[TaskSpec[Any]]:
    """Yield what an entry produced, for a command that submits none of it.

    Raises:
        JobsFileError: Its generator raised, or yielded what is no task.
    """
    items = iter(work)
    for number in itertools.count(1):
        try:
            item = next(items)
        except StopIteration:
            return
        except (Exception, SystemExit) as error:
            raise _blamed(entry, error) from error
        yield _checked(entry, item, number, verb="yielded")


def _checked(entry: Entry, item: object, number: int, *, verb: str) -> TaskSpec[Any]:
    """Return the item if it is a spec.

    Raises:
        JobsFileError: It is none.
    """
    if isinstance(item, TaskSpec):
        return item
    if isinstance(item, TaskFunction):
        what, hint = f"the task function {item.type}", f"{item.type}.spec(...) describes a task"
    else:
        what, hint = _kind(item), _CALLING_HINT.format(name="my_task")
    raise JobsFileError(f"{_name(entry)} {verb} {what} (item {number}), expected a TaskSpec", hint=hint)


def _close(items: Iterator[object]) -> None:
    """Let the user's generator clean up; what it raises then interests nobody any more."""
    close = getattr(items, "close", None)
    if close is not None:
        with suppress(Exception):  # no more is wanted of it
            close()


def _kind(value: object) -> str:
    """Return the kind of a value as messages name it."""
    return "None" if value is None else type(value).__name__


@final
class Producer:
    """Feeds a queue until the entry has nothing more, or until it is stopped.

    Args:
        entry: The entry, for messages.
        work: What `checked_iterator` returned.
        intake: Where the specs go.
        inbox: Gets `Begun` and, at the end, `Produced`.
    """

    __slots__ = ("_entry", "_inbox", "_intake", "_stopped", "_thread", "_work")

    def __init__(
        self,
        entry: Entry,
        work: Iterator[object] | list[TaskSpec[Any]],
        intake: Intake,
        inbox: SimpleQueue[Any],
    ) -> None:
        self._entry = entry
        self._work: Iterator[object] | list[TaskSpec[Any]] | None = work
        self._intake = intake
        self._inbox = inbox
        self._stopped = False
        # A daemon: the user's generator may block for ever, and the run must be able to end.
        self._thread = threading.Thread(target=self._run, name="procq-producer", daemon=True)

    def start(self) -> None:
        """Begin to feed."""
        self._thread.start()

    def feed_here(self) -> None:
        """Feed in the calling thread, in place of starting.

        Raises:
            UsageError: Something is wrong with what the entry produces.
        """
        work, self._work = self._work, None
        assert work is not None, "done once"
        if isinstance(work, list):
            self._feed_all(work)
            return
        for spec in specs(self._entry, work):
            self._take(spec)
        self._intake.finish()

    def stop(self) -> None:
        """Take no further item; one that is being made or submitted is not waited for."""
        self._stopped = True

    def leave(self) -> None:
        """Give a stopped producer a moment to leave the user's generator."""
        self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        """Feed, and tell how it ended."""
        work, self._work = self._work, None  # so that what was submitted can be forgotten
        assert work is not None, "started once"
        try:
            complete = self._feed_all(work) if isinstance(work, list) else self._feed_each(work)
        except QueueClosedError:
            self._inbox.put(Produced(None, complete=False))
        except (UsageError, EngineError, InternalError) as error:
            self._inbox.put(Produced(error, complete=False))
        except BaseException as error:  # noqa: BLE001 - a thread's end must be told, whatever it was
            bug = InternalError(f"the producer broke: {loader.describe(error)}")
            bug.__cause__ = error
            self._inbox.put(Produced(bug, complete=False))
        else:
            self._inbox.put(Produced(None, complete=complete))

    def _feed_all(self, specs: Sequence[TaskSpec[Any]]) -> bool:
        """Submit a whole list."""
        if specs:
            self._intake.take_all(specs)
            self._inbox.put(Begun())
        return True

    def _feed_each(self, items: Iterator[object]) -> bool:
        """Pull and submit one item after the other; return whether all were."""
        for number in itertools.count(1):
            if self._stopped:
                _close(items)
                return False
            try:
                item = next(items)
            except StopIteration:
                break
            except BaseException as error:
                raise _blamed(self._entry, error) from error
            self._take(_checked(self._entry, item, number, verb="yielded"))
            if number == 1:
                self._inbox.put(Begun())
        self._intake.finish()
        return True

    def _take(self, spec: TaskSpec[Any]) -> None:
        """Submit one item; a refusal is told with the task it is about."""
        try:
            self._intake.take(spec)
        except (QueueClosedError, CommandLineError):
            raise
        except UsageError as error:
            raise JobsFileError(str(error), where=f"{preview.label(spec)}  {preview.place(spec)}".rstrip()) from error
