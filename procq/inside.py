"""What a task can say and ask while it runs (contract D3, D7, E6, H3).

`Permanent` and `RetryLater` are raised by tasks, `Spawn` is returned by them, `Terminated` is raised
in them, and `current()` tells a task who it is.  Workers import this module at start-up, so it imports
nothing from procq and only what an interpreter has loaded anyway.
"""

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta
    from typing import Final, Literal, TypeAlias

    OnConflict = Literal["raise", "same", "replace"]
    #: What a worker knows an attempt by: seq, fence, the attempt's number, its deadline, its id in UTF-8.
    Token: TypeAlias = tuple[int, int, int, float | None, bytes]


#: What may become of a spec whose id another task has (contract C4).
ON_CONFLICT: "Final[tuple[OnConflict, ...]]" = ("raise", "same", "replace")


class Permanent(Exception):  # noqa: N818 - a directive, not a misuse
    """Raise this in a task to end it for good, whatever attempts are left (contract D3).

    Args:
        reason: The error that `result()` shall raise, or a text (then `result()` raises
            this `Permanent` itself).
    """

    def __init__(self, reason: BaseException | str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Exception):  # noqa: N818
    """Raise this in a task to put it back without using an attempt (contract D7).

    Args:
        delay: How long to wait: seconds, a `timedelta` or a text such as "5m"; at least 0.

    Raises:
        UnitError: `delay` is no duration.
    """

    def __init__(self, delay: "float | str | timedelta") -> None:
        from procq.units import seconds  # noqa: PLC0415 - not on a worker's way until it is needed

        self.delay_s = seconds(delay, field="RetryLater")
        super().__init__(self.delay_s)


class Spawn:
    """Return this from a task to have more tasks accepted together with its success (contract E6).

    They are accepted with the success of the attempt, or, if one of them is refused, the attempt fails for
    good and none is.  An attempt that fails, is cancelled or exceeds its timeout spawns nothing.  Type checkers
    take it for the value, so that a task function is annotated with what its handle gives.

    Args:
        specs: What to run: task functions' `.spec(...)` or a `TaskSpec`.  They may depend on each other in any
            order, on tasks known by their ids, and on the task that spawns them (`procq.current().id`).  Specs
            that they depend on come with them.  The iterable is read at once.
        value: What the task itself returns.
        on_conflict: As for `submit` (contract C4), what happens if the id of a spec belongs to another task:
            "raise": all are refused; "same": the spec is ignored; "replace": that task, if it waits, ends
            CANCELLED, if it has ended, is forgotten, and the new one takes its id.  One that runs cannot be
            replaced, and the task that spawns still does.

    Raises:
        UsageError: `specs` is no iterable, a single spec say, or `on_conflict` is none of the three.
    """

    __slots__ = ("on_conflict", "specs", "value")

    def __init__(self, specs: "Iterable[object]", value: object = None, *, on_conflict: "OnConflict" = "raise") -> None:
        check_on_conflict(on_conflict)
        if not hasattr(specs, "__iter__") and not hasattr(specs, "__getitem__"):
            from procq.errors import UsageError  # noqa: PLC0415 - not on a worker's way until it is needed

            raise UsageError(f"Spawn got {specs!r:.100}: expected a list of specs; write Spawn([spec]) for one")
        self.specs = tuple(specs)
        self.value = value
        self.on_conflict = on_conflict

    def __reduce__(self) -> str:
        from procq.errors import UsageError  # noqa: PLC0415 - not on a worker's way until it is needed

        raise UsageError("a Spawn can only be what a task returns; return it alone, not inside of something else")

    def __repr__(self) -> str:
        return f"<Spawn of {len(self.specs)} tasks>"


def check_on_conflict(value: object) -> None:
    """Refuse what does not say what becomes of a spec whose id another task has.

    Raises:
        UsageError: It is none of `ON_CONFLICT`.
    """
    if value not in ON_CONFLICT:
        from procq.errors import UsageError  # noqa: PLC0415 - not on a worker's way until it is needed

        *others, last = map(repr, ON_CONFLICT)
        raise UsageError(f"on_conflict={value!r}: must be {', '.join(others)} or {last}")


class Terminated(BaseException):
    """Raised in a task that is asked to stop: its time is up, it was cancelled, or shutdown.

    No `Exception`, so that `except Exception` in a task lets it pass and `finally` runs
    (contract D5).
    """

    #: not an item's own error, and so the end of a whole chunk; also on what inline engines raise
    ends_attempt = True


class Context:
    """Who the running attempt is; outside of one, all None (contract H3).

    Attributes:
        id: The task's id.
        attempt: The attempt's number, from 1.
        deadline: When the attempt's `timeout` ends it, on the clock of `time.monotonic()`.
    """

    __slots__ = ("_report", "attempt", "deadline", "id")

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the contract's name
        attempt: int | None = None,
        deadline: float | None = None,
        report: "Callable[[float, float], None] | None" = None,
    ) -> None:
        self.id = id
        self.attempt = attempt
        self.deadline = deadline
        self._report = report

    @property
    def remaining(self) -> float | None:
        """Seconds until `deadline`, at least 0; None without a timeout."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def progress(self, done: float, total: float) -> None:
        """Say how far the attempt is; does nothing outside of one.  Never blocks for long."""
        if self._report is not None:
            self._report(done, total)


class _Place:
    """Holds who the attempt is that runs in this process, one at a time."""

    __slots__ = ("inner", "made", "make", "nobody", "token")

    def __init__(self) -> None:
        self.nobody = Context()
        #: the context that was entered last; above a worker's attempt, in which an inline queue may run
        self.inner: Context | None = None
        #: what a worker's attempt is known by, and how its context is made of that
        self.token: Token | None = None
        self.make: Callable[[Token], Context] | None = None
        #: the last token that a context was made of, and the context
        self.made: tuple[Token | None, Context] = (None, self.nobody)


#: Written by `enter` and by a worker alone.  The one mutable global: a process runs one attempt at a time.
_PLACE = _Place()


def current() -> Context:
    """Return who the running attempt is; outside of one, an empty `Context`.  Never blocks."""
    inner, token = _PLACE.inner, _PLACE.token
    if inner is not None:
        return inner
    if token is None:
        return _PLACE.nobody
    # By identity: a thread that outlives its attempt may come here with the token of the one before.
    made_of, context = _PLACE.made
    if made_of is not token:
        assert _PLACE.make is not None, "set with the token"
        context = _PLACE.make(token)
        _PLACE.made = (token, context)
    return context


def enter(context: Context | None) -> Context | None:
    """Make `context` what `current()` returns and return what was entered before; for engines."""
    before = _PLACE.inner
    _PLACE.inner = context
    return before


def enter_lazily(make: "Callable[[Token], Context]") -> _Place:
    """Let `current()` make a context of `token`, which the caller sets on what this returns.

    For a worker: most of its attempts never ask, and to make a context costs 1 us.  It also
    clears `inner` there, since a task may be cut short in an inline queue of its own.
    """
    _PLACE.make = make
    return _PLACE
