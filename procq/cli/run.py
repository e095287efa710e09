"""One run: the queue, the producer, the signals and the display, joined in one loop.

The main thread waits on one `SimpleQueue` into which everything that happens is put: signals by
their handlers, tasks that ended by their done-callbacks, the producer's end, the end of a
shutdown.  It decides and writes; it never blocks elsewhere, so a signal is acted on at once.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never, final

from procq import loader
from procq.cli import ending, parameters, preview, producer, progress, summary
from procq.cli.entry import Entry
from procq.cli.exits import CommandLineError, Exit
from procq.cli.feed import Feed
from procq.cli.intake import Intake
from procq.cli.outputs import Outputs, about_entry
from procq.cli.pertype import PerType, types_in
from procq.cli.producer import Begun, Produced, Producer
from procq.cli.progress import Progress, Snapshot
from procq.cli.settings import RunSettings
from procq.cli.signals import Asked, Signalled, StopSignals, die_by
from procq.cli.stopping import Ladder, Step
from procq.cli.tally import Tally
from procq.cli.terminal import Terminal, standard_error
from procq.closing import Mode, ShutdownReport
from procq.core.policies import Aging, WeightedFair
from procq.core.states import Priority, Status
from procq.engine.local.machine import usable_cpus
from procq.errors import InternalError, JobsFileError, PayloadError, ProcqError, UsageError
from procq.halting import Halted
from procq.handle import Handle, task_of
from procq.queue import Queue
from procq.slots import DEFAULT_GROUP
from procq.spec import TaskSpec
from procq.steering import Steering
from procq.units import format_seconds
from procq.vetting import workers_by_group

if TYPE_CHECKING:
    from procq.cli.live import Live
    from procq.cli.printing import Printing
    from procq.cli.results import Results
    from procq.core.task import Task

#: Importing a jobs file costs every worker the same; beyond this it is worth a word.
_SLOW_IMPORT_S: Final = 2.0
#: What `--policy` stands for: named levels share as the contract has it (B6).
_POLICIES: Final[Mapping[str, Callable[[], object]]] = {
    "strict": lambda: "strict",
    "aging": Aging,
    "fair": lambda: WeightedFair(
        {
            Priority.CRITICAL: 8,
            Priority.HIGH: 4,
            Priority.NORMAL: 2,
            Priority.LOW: 1,
        }
    ),
}
#: Whoever waits so long for a run may want to know what took the time; `--durations` tells it of any.
_LONG_RUN_S: Final = 10.0
#: Failures shown as they happen; the closing block names some again, the numbers are all there.
_FAILURES_SHOWN: Final = 200
#: Running tasks named to somebody who asks.
_RUNNING_SHOWN: Final = 50


class Stopped(NamedTuple):
    """The message that a shutdown has ended."""

    report: ShutdownReport | None
    error: BaseException | None = None  #: a bug: a shutdown raises nothing


class Spawned(NamedTuple):
    """The message that a task has spawned others."""

    handles: list[Handle[Any]]


class Warned(NamedTuple):
    """The message that something could not be written."""

    text: str


def run(load: Callable[[], Entry], settings: RunSettings, *, command: str, printing: "Printing | None" = None) -> int:
    """Run what an entry lists.

    Args:
        load: Finds the entry.
        settings: What the flags say.
        command: How the run is named in its first line.
        printing: Gets the tasks that end, to print their values.

    Returns:
        The exit code.  An interrupted run does not return: the process dies by the signal.

    Raises:
        CommandLineError: A flag or parameter is wrong; nothing was started.
        JobsFileError: The jobs file cannot be used; nothing was started.
        KeyboardInterrupt: Ctrl-C before anything was started.
    """
    if sys.platform == "win32":
        raise CommandLineError("procq does not run on Windows yet (Linux; macOS best effort)", hint="use WSL")
    began_at = time.monotonic()
    terminal = standard_error(settings.color, ascii_only=settings.ascii_only)
    terminal.is_mute = settings.as_json
    pertype = PerType(settings.sets, dict(settings.limits))
    entry = load()
    took_s = time.monotonic() - began_at
    if took_s > _SLOW_IMPORT_S:
        terminal.line(("warn", "warning:"), f" loading took {format_seconds(took_s)}, and every worker does it too")
    bound = parameters.bind(entry, settings.params, file=settings.params_file)
    with ExitStack() as stack:
        # The entry is called first: its mistakes must not cost the results of the run before.
        work = producer.checked_iterator(entry, producer.call(entry, bound))
        if settings.first is not None:
            work = producer.first(work, settings.first)
        is_list = isinstance(work, list)
        options = _queue_options(entry, settings)
        feed = Feed()
        live = _live(settings, terminal, began_at)
        if live is not None:
            feed.add(live.take, what="the display")
        outputs = stack.enter_context(Outputs(settings, feed))
        queue = _queue(entry, settings, options, feed, is_list=is_list, began_at=began_at)
        steering = Steering(queue)
        if is_list:
            steering.keep_all_events()
        pertype.check_places(options["groups"], steering.capacity)
        if settings.dry_run:
            pertype.know(types_in(entry, options))
            return _dry_run(entry, work, queue, settings, terminal, pertype=pertype)
        if settings.nice is not None:  # here, as what is wrong so far should be told at once; workers inherit it
            os.nice(settings.nice)
        results = None
        if settings.results is not None:
            from procq.cli.results import Results  # noqa: PLC0415 - json, which most runs don't need

            results = stack.enter_context(Results(settings.results))
        pertype.know(types_in(entry, options))
        if not is_list and pertype.doubt():  # it may still be right, but to know that only hours later helps nobody
            terminal.line(("warn", "warning:"), f" {pertype.doubt()} so far; {pertype.hint()}")
        one = _Run(queue, steering, settings, terminal, began_at=began_at, results=results, outputs=outputs, live=live)
        one.printing = printing
        steering.on_spawn(one.spawned)
        steering.give_spawned(settings.for_tasks(), pertype.options)
        one.first_line = summary.start_line(command, given=bound.given, workers=queue.workers)
        if live is not None:
            live.heading, one.first_line = "".join(map(str, one.first_line)), ()
        intake = Intake(
            queue, defaults=settings.for_tasks(), pertype=pertype, accepted=one.accepted, previews=feed.previews
        )
        about = {"command": command, **about_entry(entry), "params": dict(bound.given), "workers": queue.workers}
        outputs.open(about, warn=one.warn)
        made = Producer(entry, work, intake, one.inbox)
        del work
        code = one.execute(made)
        if code is None:
            code = _no_tasks(entry, settings, terminal)
            outputs.end(code, "no tasks", warn=one.warn)
        one.say_warnings()
    return code


def _live(settings: RunSettings, terminal: Terminal, began_at: float) -> "Live | None":
    """Return the live display, if there is to be one.

    Raises:
        CommandLineError: It was asked for, and standard error is no terminal.
    """
    is_wanted = settings.progress == "live" or (settings.progress == "auto" and settings.verbosity >= 0)
    if settings.progress == "live" and not terminal.is_live:
        raise CommandLineError("--progress=live: standard error is no terminal", hint="--progress=plain, or auto")
    if not is_wanted or not terminal.is_live or settings.as_json:
        return None
    from procq.cli.live import Live  # noqa: PLC0415 - what most runs in a pipe don't need

    return Live(terminal, interval_s=settings.interval_s, now=began_at)


def _dry_run(
    entry: Entry,
    work: Iterator[object] | list[TaskSpec[Any]],
    queue: Queue,
    settings: RunSettings,
    terminal: Terminal,
    *,
    pertype: PerType,
) -> int:
    """List what would run; run nothing."""
    from procq.cli.data import Output  # noqa: PLC0415 - only for this
    from procq.cli.dryrun import Listing, UnreadError  # noqa: PLC0415

    with Output() as output:
        listing = Listing(output)
        listing.intake = Intake(queue, defaults=settings.for_tasks(), pertype=pertype, accepted=listing.accepted)
        try:
            Producer(entry, work, listing.intake, SimpleQueue()).feed_here()
        except UnreadError:
            return Exit.OK
        finally:
            queue.shutdown(timeout=0, mode="kill")
    if not listing.total:
        return _no_tasks(entry, settings, terminal)
    if settings.verbosity >= 0:
        terminal.line(listing.closing_line())
    return Exit.OK


def _no_tasks(entry: Entry, settings: RunSettings, terminal: Terminal) -> int:
    """Say that there was nothing to do."""
    if settings.allow_empty:
        return Exit.OK
    nothing = getattr(entry, "nothing", f"{getattr(entry, '__name__', 'the entry')}() produced no tasks")
    terminal.error(f"{nothing}\n  hint: --allow-empty if that is fine")
    return Exit.NO_TASKS


def _queue_options(entry: Entry, settings: RunSettings) -> dict[str, Any]:
    """Return the parameters of the queue of a run; flags win over what `@procq.jobs` carries."""
    options: dict[str, Any] = loader.queue_options(entry) | settings.for_queue()
    limits = options.get("limits")
    if settings.limits and (limits is None or isinstance(limits, Mapping)):  # else the queue refuses it
        options["limits"] = {**(limits or {}), **dict(settings.limits)}
    if settings.policy is not None:
        options["policy"] = _POLICIES[settings.policy]()
    return options


def _queue(
    entry: Entry, settings: RunSettings, options: dict[str, Any], feed: Feed, *, is_list: bool, began_at: float
) -> Queue:
    """Make the queue of a run, which tells the feed.

    Raises:
        JobsFileError: `@procq.jobs` carries what a queue does not take.
    """
    if settings.deadline_s is not None:  # counted from where the user waits, the queue counts from its start
        options["deadline"] = max(0.0, began_at + settings.deadline_s - time.monotonic())
    name = getattr(entry, "__name__", "the entry")
    try:
        options["groups"] = workers_of(settings, options.pop("workers", None), options.get("groups"))
        if settings.dry_run:  # nothing ever makes room in it
            options.pop("max_pending", None)
        elif not is_list and (settings.lookahead is not None or "max_pending" not in options):
            workers = sum(options["groups"].values())
            ahead = max(1000, 20 * workers) if settings.lookahead is None else settings.lookahead
            bound = options.get("max_pending")
            if bound is None or isinstance(bound, int):  # anything else is left for the queue to refuse
                options["max_pending"] = ahead if bound is None else min(ahead, bound)
        options["on_event"] = feed.listener(options.get("on_event"))
        return Queue(**options)
    except TypeError as error:
        raise JobsFileError(
            f"@procq.jobs of {name}(): {error}", hint="it takes the parameters of procq.Queue"
        ) from None
    except UsageError as error:
        raise JobsFileError(f"@procq.jobs of {name}(): {error}") from error


def workers_of(settings: RunSettings, workers: int | None, groups: Mapping[str, int] | None) -> dict[str, int]:
    """Return how many workers each group of a run has: what a flag says of a group wins over the jobs file.

    Args:
        settings: What the flags say.
        workers: Those of the default group, as `@procq.jobs` has it; None: it says nothing.
        groups: Likewise, of any group.

    Raises:
        UsageError: What `@procq.jobs` carries cannot be.
    """
    by_group = workers_by_group(workers, groups)
    is_said = workers is not None or (groups is not None and DEFAULT_GROUP in groups)
    flags = dict(settings.groups)
    if settings.workers.is_given:
        flags[DEFAULT_GROUP] = settings.workers.resolve(usable_cpus())
    if is_said or DEFAULT_GROUP in flags:
        return by_group | flags
    further = {**by_group, **flags}
    del further[DEFAULT_GROUP]
    return workers_by_group(None, further)


@final
class _Run:
    """The state of a run; the main thread's, but `accepted` is called by the producer's, and `spawned` by any."""

    def __init__(
        self,
        queue: Queue,
        steering: Steering,
        settings: RunSettings,
        terminal: Terminal,
        *,
        began_at: float,
        results: "Results | None",
        outputs: Outputs,
        live: "Live | None",
    ) -> None:
        self._queue = queue
        self._steering = steering
        self._settings = settings
        self._terminal = terminal
        self._results = results
        self._outputs = outputs
        #: prints values, for a run that does
        self.printing: Printing | None = None
        #: whether results that were asked for could not be written, which fails the run
        self._results_failed = False
        self._began_at = began_at
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        #: what to say once the first task was accepted; empty when it was said
        self.first_line: summary.Line = ()
        #: tasks that have not been told as ended yet, not by id, which another may take from one that is replaced,
        #: with their specs; None: another task has spawned it
        self._open: dict[Task, tuple[Handle[Any], TaskSpec[Any] | None]] = {}
        #: how many tasks of the jobs file were accepted, and how many of those that they spawned
        self._known = self._spawned = 0
        #: groups of which `--group` speaks and no task so far
        self._idle_groups = {name for name, _ in settings.groups if name != DEFAULT_GROUP}
        self._produced: Produced | None = None
        self._tally = Tally()
        #: failures whose traceback was shown: one is enough for all that look alike
        self._shown: set[tuple[str, str]] = set()
        self._producer: Producer | None = None
        self._ladder = Ladder(stop_timeout_s=settings.stop_timeout_s)
        steering.on_halt(self.inbox.put)
        self._live = live
        #: shows that the run goes on; None: nothing does
        self._progress: Live | Progress | None = live
        if live is None and settings.progress != "off" and settings.verbosity >= 0:
            self._progress = Progress(terminal, interval_s=settings.interval_s, now=began_at, look=self._snapshot)

    def accepted(self, handle: Handle[Any], spec: TaskSpec[Any]) -> None:
        """Note a task; called in the producer's thread."""
        if self._note(handle, spec):
            self._known += 1

    def warn(self, text: str) -> None:
        """Have something said that could not be written; called in any thread."""
        self.inbox.put(Warned(text))

    def spawned(self, handles: list[Handle[Any]]) -> None:
        """Note tasks that a task has spawned; called in any thread, under the queue's lock."""
        self.inbox.put(Spawned(handles))

    def _note(self, handle: Handle[Any], spec: TaskSpec[Any] | None) -> bool:
        """Have the end of a task told; return whether it was not before."""
        entry = (handle, spec)
        task = task_of(handle)
        is_new = self._open.setdefault(task, entry) is entry  # in one step: two threads may tell of one
        if is_new:
            if self._idle_groups:
                self._idle_groups.discard(task.rules.group)
            handle.add_done_callback(self.inbox.put)
        return is_new

    def execute(self, made: Producer) -> int | None:
        """Run to the end.

        Returns:
            The exit code, or None if there were no tasks at all.  When the run was interrupted
            the process dies by the signal instead.
        """
        self._producer = made
        with StopSignals(self.inbox):
            try:
                self._queue.start()
                made.start()
                report = self._loop()
            finally:
                # At once, if the loop itself broke; otherwise all has ended already.
                self._queue.shutdown(timeout=0, mode="kill")
            made.stop()
            self._steering.check_alive()  # else a run whose queue broke under it would be judged
            self._collect()
            if self._progress is not None:
                self._progress.end()
            code = self._close(report)
            made.leave()
        return code

    # --- the loop ------------------------------------------------------------------------------

    def _loop(self) -> ShutdownReport:
        """Act on what happens until a shutdown has ended."""
        while True:
            message = self._next()
            match message:
                case None:
                    pass
                case Handle():
                    self._ended(message)
                case Halted():
                    self._halted(message)
                case Signalled():
                    self._take(self._ladder.signalled(message.number, time.monotonic()))
                case Asked():
                    self._say_status()
                case Spawned():
                    self._spawned += sum(self._note(handle, None) for handle in message.handles)
                case Begun():
                    self._say_first_line()
                case Warned():
                    self._say_warning(message.text)
                case Produced():
                    self._producer_ended(message)
                case Stopped(report=ShutdownReport() as report):
                    return report
                case Stopped(error=error):
                    assert error is not None, "a shutdown returns a report or raises"
                    raise error
                case _:
                    raise AssertionError(message)
            now = time.monotonic()
            self._take(self._ladder.passed(now))
            if self._progress is not None and self._progress.due is not None and now >= self._progress.due:
                self._progress.show(now)

    def _next(self) -> object:
        """Wait for the next message; None: an instant has come at which something is due."""
        shown_at = None if self._progress is None else self._progress.due
        instants = [instant for instant in (self._ladder.next_due(), shown_at) if instant is not None]
        try:
            if not instants:
                return self.inbox.get()
            return self.inbox.get(timeout=max(0.0, min(instants) - time.monotonic()))
        except Empty:
            return None

    def _say_first_line(self) -> None:
        """Tell what runs, once, and not before the jobs file has proved usable."""
        if self.first_line and self._settings.verbosity >= 0:
            self._terminal.line(*self.first_line)
        self.first_line = ()

    def _producer_ended(self, message: Produced) -> None:
        """Everything was submitted, or something was wrong: bring the run to its end."""
        self._produced = message
        if message.error is not None:
            self._take(self._ladder.broken())
        elif self._ladder.step is Step.NONE:
            self._shut_down(mode="drain")

    def _take(self, step: Step | None) -> None:
        """Stop as hard as the ladder says."""
        if step is None or step is Step.NONE:
            return
        if self._producer is not None:
            self._producer.stop()
        # What is said must be true at once, and the shutdown below begins in another thread.
        self._steering.hold()
        self._say_stopping(step, running=self._queue.stats().counts[Status.RUNNING])
        match step:
            case Step.FINISH:
                self._shut_down(mode="finish")
            case Step.KILL:
                self._shut_down(mode="kill")
            case Step.KILL_NOW:
                self._shut_down(mode="kill", timeout=0)
            case _:
                assert_never(step)

    def _halted(self, news: Halted) -> None:
        """The queue has halted by itself: say so, and wait for its end."""
        step = self._ladder.halted(news)
        if step is None:
            return
        if self._producer is not None:
            self._producer.stop()
        self._say_stopping(step, running=news.running)
        self._shut_down(mode="drain")

    def _shut_down(self, *, mode: Mode, timeout: float | None = None) -> None:
        """Begin a shutdown, or make the one under way harsher, in a thread that waits for its end."""
        waiter = threading.Thread(
            target=self._wait_for_shutdown, args=(mode, timeout), name=f"procq-{mode}", daemon=True
        )
        waiter.start()

    def _wait_for_shutdown(self, mode: Mode, timeout: float | None) -> None:
        """Shut the queue down and tell when that is done."""
        try:
            report = self._queue.shutdown(timeout, mode)
        except BaseException as error:  # noqa: BLE001 - passed on to the main thread, which raises it
            self.inbox.put(Stopped(None, error))
        else:
            self.inbox.put(Stopped(report))

    # --- tasks that ended ----------------------------------------------------------------------

    def _collect(self) -> None:
        """Read the ends of tasks whose messages have not come."""
        for handle, _ in list(self._open.values()):
            self._ended(handle)

    def _ended(self, handle: Handle[Any]) -> None:
        """Count a task that has ended, and show it if it failed."""
        task = task_of(handle)
        found = self._open.pop(task, None)
        if found is None:  # counted by `_collect`
            return
        error = ""
        if handle.status is Status.SUCCEEDED:
            self._tally.succeeded(handle.attempts)
        elif task.cause == "not needed":
            self._tally.was_unneeded()
        else:
            end = self._read_end(handle, found[1])
            error = end.error
            if end.status is Status.FAILED:
                self._say_failure(end)
            if task.cause == "replaced":
                self._tally.was_replaced()
            else:
                self._tally.went_badly(end)
        if self._settings.output is not None:
            self._tell_output(handle)
        if self._results is not None:
            self._results.add(handle, error)
            self._say_results_error()
        if self.printing is not None:
            self._terminal.clear()  # both may be the same terminal
            self.printing.add(handle, found[1])

    def _tell_output(self, handle: Handle[Any]) -> None:
        """Keep what the attempts of a task wrote, and show it as `--output` says."""
        from procq.cli import captured  # noqa: PLC0415 - for runs that capture

        how, attempts = self._settings.output, handle.history
        if how != "none":
            self._outputs.keep_output(handle.id, attempts, warn=self.warn)
        if how == "all":
            for line in captured.shown(attempts):
                self._terminal.line(("dim", f"{handle.id} | "), line)
        elif how == "failed" and handle.status is Status.FAILED and self._settings.verbosity >= 0:
            for line in captured.shown(attempts[-1:], most=captured.SHOWN_LINES):
                self._terminal.line(("dim", "    | "), line)

    def _read_end(self, handle: Handle[Any], spec: TaskSpec[Any] | None) -> ending.Ending:
        """Return how a task ended that did not succeed."""
        task = task_of(handle)
        if spec is None:
            end = ending.read_spawned(handle)
        else:
            end = ending.read(handle, spec, max_attempts=task.rules.max_attempts)
        if end.status is not Status.CANCELLED or end.origin is not None:
            return end
        # Now, as the ladder may climb for another cause later.
        limit = self._settings.failure_limit()
        return end._replace(reason=summary.reason_of(task.cause, self._ladder, limit=limit))

    # --- what is said --------------------------------------------------------------------------

    def _say_failure(self, end: ending.Ending) -> None:
        """Show a failure as it happens."""
        self._say_first_line()
        if self._settings.verbosity < 0 or len(self._tally.failures) >= _FAILURES_SHOWN:
            return
        alike = end.error.partition(":")[0], end.where
        full = self._settings.verbosity > 0
        if alike in self._shown and not full:
            end = end._replace(traceback="")
        self._shown.add(alike)
        for line in summary.failure_lines(end, full=full):
            self._terminal.line(*line)

    def _say_stopping(self, step: Step, *, running: int) -> None:
        """Say that the run is being stopped, and what comes next."""
        limit = self._settings.failure_limit()
        words = summary.stopping_line(step, self._ladder, running=running, limit=limit)
        if words:
            self._terminal.line(("warn", words))
            if self._live is not None:
                self._live.notice = lambda running, oldest_s: summary.stopping_line(
                    step, self._ladder, running=running, limit=limit, oldest_s=oldest_s
                )

    def _say_warning(self, text: str) -> None:
        """Say what could not be written."""
        self._terminal.line(("warn", "warning:"), f" {text}")

    def say_warnings(self) -> None:
        """Say what was not said before the end."""
        while True:
            try:
                message = self.inbox.get_nowait()
            except Empty:
                return
            if isinstance(message, Warned):
                self._say_warning(message.text)

    def _say_idle_groups(self) -> None:
        """Say which groups have got workers for nothing: most likely a name is misspelt."""
        for name, number in self._settings.groups:
            if name in self._idle_groups:
                self._terminal.line(
                    ("warn", "warning:"),
                    f" --group {name}={number}: no task named the group {name!r}; "
                    f"tasks name it by their option: group={name!r}",
                )

    def _say_status(self) -> None:
        """Say where the run stands and what runs, for somebody who asks with a signal."""
        self._terminal.line(progress.text(self._snapshot(time.monotonic())))
        # A copy, as the producer's thread adds to it.
        running = [entry for entry in list(self._open.values()) if entry[0].status is Status.RUNNING]
        for handle, spec in running[:_RUNNING_SHOWN]:
            self._terminal.line(f"  running  {handle.id if spec is None else preview.label(spec)}")
        if len(running) > _RUNNING_SHOWN:
            self._terminal.line(f"  running  and {len(running) - _RUNNING_SHOWN} more")

    def _snapshot(self, now: float) -> Snapshot:
        """Return where the run stands."""
        counts = self._queue.stats().counts
        return Snapshot(
            ended=self._tally.ended,
            known=self._known + self._spawned,
            all_known=self._produced is not None,
            running=counts[Status.RUNNING],
            delayed=counts[Status.SCHEDULED],
            failed=len(self._tally.failures),
            skipped=self._tally.skipped.total(),
            elapsed_s=now - self._began_at,
        )

    # --- the end -------------------------------------------------------------------------------

    def _close(self, report: ShutdownReport) -> int | None:
        """Say how the run ended, and return the exit code; die by the signal if it was interrupted."""
        produced = self._produced
        error = None if produced is None else produced.error
        whole = produced is not None and produced.complete and report.drained
        if not self._known and (whole or error is not None) and self._ladder.signal is None:
            if error is not None:
                raise error
            return None
        self._close_results()
        verdict, code = self._verdict(whole=whole, error=error, at_deadline=report.halted == "deadline")
        quiet = self._settings.verbosity < 0 and verdict == "ok"
        if not quiet:
            self._say_first_line()
            elapsed_s = time.monotonic() - self._began_at
            for line in summary.closing_lines(self._tally, verdict=verdict, elapsed_s=elapsed_s):
                self._terminal.line(*line)
            if report.halted == "deadline" and (produced is None or not produced.complete):
                self._terminal.line(*summary.unread_line(self._known))
            for line in self._further_lines(elapsed_s):
                self._terminal.line(*line)
        if produced is not None and produced.complete:
            self._say_idle_groups()
        if error is not None:
            self._terminal.error(error)
        number = self._ladder.signal if verdict == "interrupted" else None
        # As a shell has it: a run that dies by a signal has no code of its own.
        self._outputs.end(code if number is None else 128 + number, verdict, warn=self.warn)
        self.say_warnings()
        if isinstance(error, InternalError):
            raise error
        if verdict == "interrupted":
            assert self._ladder.signal is not None, "what interrupted it"
            # Here, where further signals still do nothing: what is left to do is to die.
            return die_by(self._ladder.signal)
        return code

    def _further_lines(self, elapsed_s: float) -> Iterator[summary.Line]:
        """Yield what the closing block says last; what can be done next would come here."""
        if self._settings.durations is not None or elapsed_s >= _LONG_RUN_S:
            slowest = self._outputs.slowest.named()
            if slowest:
                yield summary.slowest_line(slowest)

    def _close_results(self) -> None:
        """Put the results where they belong to the last one, and say so if that did not work."""
        if self.printing is not None:
            self.printing.end()
            if self.printing.warning is not None:
                self._terminal.line(("warn", self.printing.warning))
        if self._results is not None:
            self._results.close()
            if self._results.warning is not None:
                self._terminal.line(("warn", self._results.warning))
            self._say_results_error()

    def _say_results_error(self) -> None:
        """Say at once, and once, that results cannot be written."""
        assert self._results is not None, "asked for"
        if self._results.error is not None and not self._results_failed:
            self._results_failed = True
            self._say_first_line()
            self._terminal.error(self._results.error)

    def _verdict(self, *, whole: bool, error: ProcqError | None, at_deadline: bool) -> tuple[summary.Verdict, Exit]:
        """Judge the run.

        Args:
            whole: Whether everything was submitted and ran to its end.
            error: What was wrong with the jobs file, if something was.
            at_deadline: Whether it was the deadline that ended the run.
        """
        if not whole and self._ladder.signal is not None:
            return "interrupted", Exit.FAILED
        if error is not None:
            if isinstance(error, CommandLineError):  # it names a type of which no task came
                return "FAILED", Exit.USAGE
            # A payload that cannot be pickled is a mistake of the file while nothing has run, and
            # a task that could not be done afterwards.
            unsent = isinstance(error.__cause__, PayloadError) or not isinstance(error, UsageError)
            return "FAILED", Exit.FAILED if unsent else Exit.JOBS_FILE
        if not whole and at_deadline:
            return "stopped at the deadline", Exit.DEADLINE
        if not whole or self._tally.went_wrong or self._results_failed:
            return "FAILED", Exit.FAILED
        return "ok", Exit.OK
