"""For tests of programs that use procq: a queue without processes, on a clock that the test moves.

    from procq import testing

    def test_a_reminder_is_tried_again_after_an_hour() -> None:
        clock = testing.FakeClock()
        with testing.inline(clock=clock) as queue:
            handle = queue.submit(remind.using(max_attempts=2, backoff="1h").spec("ann"))
            handle.wait()
        assert clock.now == 3600

An inline queue keeps the whole contract but what needs a process: priorities, retries, delays,
dependencies, timeouts, dead letters, shutdown.  It differs in this:

- Tasks run in the thread that waits (`result`, `wait`, `as_completed`, `map`, a `submit` that
  waits for room, `shutdown`, the end of `with`, `run_for`), one at a time, and only while it
  waits.  Done-callbacks that are due have been called when the wait returns.
- Time is the clock's.  Code takes none, however long it really runs, unless it says so with
  `spend`.  When nothing can run, whoever waits moves the clock to the next instant at which
  something is due; a wait with a timeout ends on that clock too.  Nothing sleeps.
- What a task changes in the program's own memory stays changed, as there is no other process.
  Arguments, results and errors are pickled all the same, so those are copies, and what could
  not be sent to a worker is refused here too.
- What tasks log goes straight to the program's loggers, without `task_id` and `attempt`; `capture`
  takes down what they write to `sys.stdout` and `sys.stderr`, and not what C code and child
  processes write.
- All groups share the one worker, so one group's tasks do wait for another's; the most urgent of all comes
  first.
- There is no worker to replace or to measure: `max_tasks_per_worker`, `max_memory_per_worker`,
  `recycle_memory` and `min_free_memory` are refused, as is what else only processes have.
- A wait that would never end (a paused queue, one not started) raises `UsageError`.
"""

import signal as signals
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NoReturn, TypedDict, Unpack

from procq.core.breaker import Breaker
from procq.core.policies import Aging, WeightedFair
from procq.draft import pickle_initializer
from procq.engine.inline import FakeClock, InlineContext, InlineEngine
from procq.errors import UsageError
from procq.events import OnEvent
from procq.halting import OnFailure
from procq.inside import current
from procq.queue import Queue
from procq.retry import BackoffLike
from procq.slots import DEFAULT_GROUP
from procq.units import Duration, Size, count, seconds
from procq.vetting import workers_by_group

if TYPE_CHECKING:
    from datetime import datetime
    from os import PathLike

    from procq.journal import Durability

__all__ = ["FakeClock", "crash", "inline", "run_for", "spend"]


class QueueParameters(TypedDict, total=False):
    """The parameters of `Queue` that mean the same without processes."""

    handlers: Mapping[str, Callable[..., object]] | None
    policy: Literal["strict"] | Aging | WeightedFair
    limits: Mapping[str, int] | None
    groups: Mapping[str, int] | None
    resources: Mapping[str, Size] | None
    breaker: Mapping[str, Breaker] | None
    backoff: BackoffLike
    max_pending: int | None
    max_pending_bytes: Size | None
    max_failures: int | str | None
    on_failure: OnFailure
    deadline: "Duration | datetime | None"
    retention: tuple[int, Duration]
    dead_letters: tuple[int, Duration]
    on_event: OnEvent | None
    journal: "str | PathLike[str] | None"
    durability: "Durability"


def inline(
    *,
    clock: FakeClock | None = None,
    seed: int = 0,
    kill_grace: Duration = 1,
    initializer: Callable[..., object] | None = None,
    initargs: tuple[object, ...] = (),
    capture: bool = False,
    **parameters: Unpack[QueueParameters],
) -> Queue:
    """Make a queue that runs its tasks in the thread that waits, on a fake clock.

    Args:
        clock: Its clock; None: one of its own, which waits move all the same.
        seed: Of the draws for jitter: the same seed, the same waits between attempts.
        kill_grace: As for `Queue`, on the fake clock.
        initializer: As for `Queue`: called before the first task, and again after each `crash`.
        initargs: Its arguments.
        capture: As for `Queue`, but only what is written through `sys.stdout` and `sys.stderr`.
        parameters: As for `Queue`.

    Returns:
        A `Queue` made stopped like every other, of one worker: it runs the tasks of all `groups`, and how many
        workers those have matters only to how far `map` reads ahead.

    Raises:
        UsageError: A value cannot be; the message names it.
    """
    unknown = parameters.keys() - QueueParameters.__annotations__.keys()
    if unknown:
        raise UsageError(f"inline() takes no {min(unknown)}: no parameter of Queue, or one that needs processes")
    groups = parameters.get("groups")
    known = workers_by_group(None, groups)
    engine = InlineEngine(
        clock=FakeClock() if clock is None else clock,
        seed=seed,
        kill_grace_s=seconds(kill_grace, field="kill_grace"),
        initializer=pickle_initializer(initializer, initargs),
        groups=known,
        capture=capture,
    )
    names_default = groups is not None and DEFAULT_GROUP in groups
    return Queue(workers=None if names_default else 1, engine=engine, **parameters)


def run_for(queue: Queue, duration: Duration) -> None:
    """Let a queue work for so long on its fake clock, whatever it is that it does meanwhile.

    Args:
        queue: A queue that `inline` made.
        duration: So far the clock is moved; 0: only what is due now is done.

    Raises:
        UsageError: Another kind of queue, or no duration.
    """
    supervisor = queue._supervisor  # noqa: SLF001 - part of the library itself
    if not supervisor.engine.manual:
        raise UsageError(f"run_for() got {queue!r}, whose workers go by a real clock; make it with testing.inline()")
    supervisor.wait_for(_never, _never, seconds(duration, field="run_for"))


def spend(duration: Duration) -> None:
    """Let time pass in a task of an inline queue, as if it had worked for so long.

    Meanwhile all happens that would happen beside it: other tasks expire, the deadline of a
    shutdown comes.  When the task's `timeout` is used up or it is asked to stop, this raises as
    the request to a worker would: `Terminated`, which lets `finally` run, and once `kill_grace`
    is over what cannot be survived.

    Raises:
        UsageError: Not in a task of an inline queue, or no duration.
    """
    _context("spend").spend(seconds(duration, field="spend"))


def crash(*, exit_code: int | None = None, signal: int | str | None = None) -> NoReturn:
    """End a task of an inline queue as the death of its worker would (contract D4).

    Whatever the task does after that, the outcome is a crash.

    Args:
        exit_code: The code the worker exits with; 1 if neither is given.
        signal: The signal that kills it instead, by number or by name ("SIGSEGV").

    Raises:
        UsageError: Not in a task of an inline queue, both are given, or there is no such signal.
    """
    context = _context("crash")
    if signal is None:
        context.die(1 if exit_code is None else count(exit_code, field="exit_code"))
    if exit_code is not None:
        raise UsageError("crash() got an exit code and a signal; a worker dies of one of them")
    context.die(_signal_name(signal))


def _never(*_: object) -> bool:
    return False


def _context(name: str) -> InlineContext:
    context = current()
    if not isinstance(context, InlineContext):
        raise UsageError(f"{name}() works in a task of a queue that testing.inline() made, and only there")
    return context


def _signal_name(signal: int | str) -> str:
    try:
        return signals.Signals[signal].name if isinstance(signal, str) else signals.Signals(signal).name
    except (KeyError, ValueError):
        raise UsageError(f"signal={signal!r}: no such signal") from None
