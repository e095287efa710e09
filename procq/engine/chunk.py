"""Runs many items of a `map` as one task, and each as if it were its own (contract F2).

A chunk is what spares tiny items the price of a task.  Rules: an item that raises disturbs no
other; no item sees an object of another, so what is not of a plain type is pickled by itself, an
argument before the chunk is sent and a result the moment it is there.  A chunk that ends in an
error has begun no item.  Imported by a worker when its first chunk comes, so it imports nothing
that a worker does not have.
"""

import os

from procq.engine import attempt
from procq.inside import Spawn
from procq.outcome import Ended
from procq.parcel import copied
from procq.payload import PLAIN, dumps, loads, loads_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Final

    from procq.parcel import Payload


#: What becomes of an item that returns a `Spawn`.
_MUST_BE_ALONE: "Final" = "it returned a Spawn amid other items of a map, and has to run again as a task of its own"


class Done:
    """What became of the items of a chunk, by their positions.

    Attributes:
        values: What they returned; None where one failed.
        sealed: Where the value stands as a pickle of its own.
        failures: The reports on those that failed; their instants and pid are for `Results` to fill in,
            from the chunk's own record.
    """

    __slots__ = ("failures", "sealed", "values")

    def __init__(self) -> None:
        self.values: list[object] = []
        self.sealed: list[int] = []
        self.failures: dict[int, Ended] = {}

    def seal(self, fn: object, value: object) -> None:
        """Take in a value that is pickled by itself, here and now: the function may change it later."""
        if type(value) is Spawn:
            # What it spawns comes with the success of a task; so it gets one of its own, and nothing is charged.
            self.fail(Ended("interrupted", 0.0, 0.0, message=_MUST_BE_ALONE))
            return
        try:
            data = copied(dumps(value))
        except BaseException as error:  # a result's __reduce__ is the task's code too (D9)
            if hasattr(type(error), "ends_attempt"):
                raise
            self.fail(attempt.unsendable(fn, value, error))
        else:
            self.sealed.append(len(self.values))
            self.values.append(data)

    def fail(self, ended: "Ended") -> None:
        """Take in the report on the next item."""
        self.failures[len(self.values)] = ended
        self.values.append(None)


def run(fn_data: "Payload", blocks: "list[bytes | list[bytes]]", is_bare: bool) -> tuple[object, ...]:  # noqa: FBT001 - pickled
    """Call a function with each item of a chunk; this is the call of the chunk's task.

    Args:
        fn_data: The pickled function.
        blocks: The items in order: a pickled list of items of plain types, or a list of items each
            of which is pickled by itself, as the tuple of its arguments.
        is_bare: Whether items of plain types are arguments, rather than tuples of them.

    Returns:
        The parts of a `Done`.

    Raises:
        Exception: Something cannot be unpickled; then no item has begun.
    """
    fn: Callable[..., object] = loads_once(fn_data)
    loaded = [_loaded(block) for block in blocks]
    done = Done()
    _hook_fork()
    _at_home[id(loaded)] = loaded
    try:
        for block, items in zip(blocks, loaded, strict=False):
            _run_each(fn, zip(items) if is_bare and isinstance(block, bytes) else iter(items), done)
    finally:
        del _at_home[id(loaded)]
    return done.values, done.sealed, done.failures


def _loaded(block: "bytes | list[bytes]") -> "list[object]":
    return loads(block) if isinstance(block, bytes) else [loads(data) for data in block]


def _run_each(fn: "Callable[..., object]", calls: "Iterable[object]", done: Done) -> None:
    """Call a function with each of the tuples of arguments that an iterator gives."""
    append = done.values.append
    plain = PLAIN
    while True:
        try:
            for args in calls:
                value = fn(*args)  # type: ignore[misc]  # a tuple, as it was pickled
                if type(value) in plain:
                    append(value)
                else:
                    done.seal(fn, value)
        except BaseException as error:  # whatever an item raises is its outcome (D3)
            if hasattr(type(error), "ends_attempt"):
                raise
            frames = error.__traceback__
            # Without this frame, which is not the task's.
            done.fail(attempt.failed(error.with_traceback(None if frames is None else frames.tb_next)))
        else:
            return


# --- forks -------------------------------------------------------------------------------------

#: The items of the chunks that run in this process, so that a forked child can drop them: one
#: chunk at a time in a worker, one for each thread that runs an inline queue.
_at_home: "dict[int, list[list[object]]]" = {}


def _drop_items() -> None:
    """Leave a forked child no item but the one that forked: the others are its parent's."""
    for loaded in _at_home.values():
        for items in loaded:
            items.clear()


def _hook_fork() -> None:
    """Have that done in every forked child, once a process."""
    if not hasattr(_hook_fork, "done"):
        os.register_at_fork(after_in_child=_drop_items)
        _hook_fork.done = True  # type: ignore[attr-defined]  # register_at_fork cannot be undone or asked
