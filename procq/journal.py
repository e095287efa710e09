"""The journal: what a queue holds, on disk, so that the next one goes on where this one ended (contract L).

    Scheduler --Watcher--> the tasks that have changed --flush, under the lock--> SQLite
    journal_file.py <----------------------------------------------------------- rows

What is kept is not what happened but what is: a row for each known task, written anew when it has changed.
So tasks that come and go between two writes cost nothing but a note, a journal is never longer than what the
queue holds, and to open one takes as long as it takes to read that.  All that has changed is written in one
transaction at moments at which the scheduler is whole.  When that is depends on the durability:

- "full": before `submit` returns, and then the disk has it, too (`sync`); before a worker is sent an
  attempt; before anybody is told of an end.
- "process": likewise, but whether the disk has it is left to the system.  A task, a worker or this process
  may be killed at any moment; only a power failure costs the last seconds.
- "relaxed": within `_WINDOW_S` of the change, whatever happens meanwhile.

An attempt that was sent ahead to a busy worker, and began there in the last moment, is not known to have begun.

A disk that is full does not stop what runs: what could not be written is kept, and written as soon as there is
room; until then nothing new is accepted or started, and the log says so.

Everything here happens under the queue's lock, unless a method says otherwise.
"""

import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Literal, final, get_args

from procq.core import graph
from procq.core.past import Past
from procq.core.scheduler import Scheduler
from procq.core.states import TERMINAL, Status
from procq.core.task import CapturedRun, Conditions, CutCause, Run, Task
from procq.core.watching import Both
from procq.errors import EngineError, UsageError
from procq.journal_file import JournalFile, Row
from procq.log import ERROR, WARNING, Logger
from procq.outcome import Ended
from procq.parcel import Parcel, Payload, marked

if TYPE_CHECKING:
    import os

logger = Logger(__name__)

Durability = Literal["full", "process", "relaxed"]

#: With "relaxed", what happened within so long may be lost with the process, in seconds: 10 ms are enough to
#: share one transaction among thousands of brief tasks.
_WINDOW_S: Final = 0.01
#: A write that failed is tried again after so long, in seconds.
_RETRY_S: Final = 0.5
#: After so many transactions, or so many bytes of calls and results, the file is tidied up, in a thread of its
#: own; SQLite would do that in ours, after 4 MB, and a queue of small tasks writes some 4 KB at a time.
_TIDY_EVERY: Final = 1000
_TIDY_BYTES: Final = 8 * 2**20
#: Ends that a shutdown or a halt has brought about: for the journal those tasks are as they were.
_CUTS: Final = frozenset(get_args(CutCause))
_SUCCEEDED: Final = Status.SUCCEEDED
_LOST: Final = "the supervisor that ran it ended before the attempt did"


@final
class Journal:
    """Keeps a scheduler's tasks in a file.

    Args:
        path: Where; made if it is not there.
        durability: When what has changed is written.
        now: Reads the engine's clock.

    Raises:
        UsageError: That is no journal, or another process has it open.
    """

    __slots__ = (
        "_bell", "_counted", "_dirty", "_due", "_ended", "_ended_at", "_file", "_forgotten", "_gone", "_is_called",
        "_lock", "_needed", "_put", "_stored", "_sync_lock", "_synced", "_thread", "_to_tidy", "_unneeded", "_wake",
        "_writes", "durability", "is_stuck", "trouble",
    )  # fmt: skip

    def __init__(self, path: "str | os.PathLike[str]", durability: Durability, now: Callable[[], float]) -> None:
        if durability not in get_args(Durability):
            raise UsageError(f"durability={durability!r}: must be one of {', '.join(map(repr, get_args(Durability)))}")
        self.durability = durability
        self._file = JournalFile(path, offset=time.time() - now())
        #: tasks that have changed since the last write, in order of the first change
        self._dirty: dict[Task, None] = {}
        #: all and only tasks that are SCHEDULED, or were when a shutdown cut them off, with the instant
        self._due: dict[Task, float] = {}
        #: of tasks in `_dirty`: when they ended
        self._ended_at: dict[Task, float] = {}
        #: tasks in `_dirty` that the scheduler has forgotten
        self._forgotten: set[Task] = set()
        #: the numbers of all tasks that have a row
        self._stored: set[int] = set()
        #: what the tasks depend on that have a row and have not succeeded, by number
        self._counted: dict[int, tuple[int, ...]] = {}
        #: how many of those depend on a task, by its number
        self._needed: Counter[int] = Counter()
        #: the numbers of tasks that are forgotten and have a row, because another needs them
        self._gone: set[int] = set()
        #: numbers of tasks whose rows go with the next write
        self._unneeded: list[int] = []
        #: nothing can be written at present
        self.is_stuck = False
        #: why, as a sentence
        self.trouble = ""
        self._writes = self._synced = self._to_tidy = 0
        self._sync_lock = threading.Lock()
        # The thread that writes late, tidies up and tries again.
        self._bell: SimpleQueue[str | None] = SimpleQueue()
        self._is_called = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock: AbstractContextManager[object] = self._sync_lock
        self._wake: Callable[[], object] = _nothing
        self._put: Callable[[Callable[[], object]], object] = _at_once

    # --- opening and closing -------------------------------------------------------------------

    def restore(self, scheduler: Scheduler, now: float) -> int:
        """Give a scheduler that has no tasks those of the file; what ran there is lost by one attempt.

        Returns:
            The least number that no id made by us has.

        Raises:
            UsageError: A task could never start here, or the file is damaged.
        """
        tasks: dict[int, Task] = {}
        cut: list[Task] = []
        first_free = 0
        for row in self._file.rows():
            task = _task_of(row, tasks)
            tasks[row.past.seq] = task
            scheduler.restore(task, row.past, now)
            self._note_stored(task, row.past)
            if row.past.started_at is not None:
                cut.append(task)
            if task.id.startswith("#") and task.id[1:].isdecimal():
                first_free = max(first_free, int(task.id[1:]) + 1)
        scheduler.vet = self.vet
        scheduler.settled.clear()  # those have ended long ago
        scheduler.watcher = self if scheduler.watcher is None else Both(scheduler.watcher, self)
        for task in tasks.values():
            if task.seq not in self._gone and scheduler.tasks.get(task.id) is not task:
                self.forgotten(task)  # it was kept for long enough, or what is kept is less now
        for task in cut:
            assert task.started_at is not None, "it ran"
            scheduler.end(task, task.fence, Ended("lost", task.started_at, now, message=_LOST), now)
        for seq in [seq for seq in self._gone if seq not in self._needed]:
            self._drop(seq)
            self._needs_nobody(seq)
        return first_free

    def _note_stored(self, task: Task, past: Past) -> None:
        self._stored.add(past.seq)
        if past.is_forgotten:
            self._gone.add(past.seq)
        if past.due is not None:
            self._due[task] = past.due
        self._count_needs(task, past)

    def _count_needs(self, task: Task, past: Past) -> None:
        """Keep count of who needs whom: a task that has succeeded, or has no row any more, needs nobody."""
        needs = () if past.status is _SUCCEEDED else tuple(need.seq for need in task.depends_on)
        if needs and past.seq not in self._counted:
            self._counted[past.seq] = needs
            self._needed.update(needs)
        elif not needs:
            self._needs_nobody(past.seq)

    def _drop(self, seq: int) -> None:
        """Let the row of a forgotten task go with the next write."""
        self._gone.discard(seq)
        self._stored.discard(seq)
        self._unneeded.append(seq)

    def _needs_nobody(self, seq: int) -> None:
        free = [seq]
        while free:  # not by recursion: a chain may be long
            for need in self._counted.pop(free.pop(), ()):
                self._needed[need] -= 1
                if not self._needed[need]:
                    del self._needed[need]
                    if need in self._gone:
                        self._drop(need)
                        free.append(need)

    def serve(
        self,
        lock: AbstractContextManager[object],
        wake: Callable[[], object],
        put: Callable[[Callable[[], object]], object],
    ) -> None:
        """Begin to work beside the queue.

        Args:
            lock: The queue's.
            wake: Called, under it, when things can go on.
            put: Has a handler of log records called, in a thread of its own.
        """
        self._lock, self._wake, self._put = lock, wake, put
        self._thread = threading.Thread(target=self._work, name="procq-journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, and let go of the file; the last call."""
        self.flush()
        if self.is_stuck:
            self._try()
        if self._dirty:
            left = len(self._dirty)
            self._say(ERROR, f"{self.trouble}: {left} tasks changed after the last write; reopened, they are as before")
        self._ended.set()
        self._bell.put(None)
        if self._thread is None:
            self._file.close()

    def abandon(self) -> None:
        """The queue was dropped before it was started: close soon; takes no lock, so that `__del__` may call it."""
        self._bell.put("abandon")

    def join(self) -> None:
        """Wait until the file is closed; the lock is not held."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def mark_forked(self) -> None:
        """This is a forked child, which has no part in the file."""
        self._file.mark_forked()

    # --- what has changed (Watcher) ------------------------------------------------------------

    def submitted(self, task: Task, _now: float) -> None:
        """Note it, as all that follows."""
        self._dirty[task] = None

    def blocked(self, task: Task, _now: float) -> None:
        """It is noted as submitted, or as replayed."""

    def scheduled(self, task: Task, due: float, _now: float) -> None:
        """Note it, and until when it waits."""
        self._dirty[task] = None
        self._due[task] = due

    def ready(self, task: Task, _now: float) -> None:
        """To become due changes nothing that is kept: the instant has passed."""
        if self._due:
            self._due.pop(task, None)

    def returned(self, task: Task, _now: float) -> None:
        """Note it."""
        self._dirty[task] = None

    def begun(self, task: Task, _started_at: float) -> None:
        """Note it."""
        self._dirty[task] = None

    def succeeded(self, task: Task, _value: Payload | None, _run: Run | CapturedRun) -> None:
        """Its end is noted, which follows."""

    def failed(self, task: Task, _ended: Ended) -> None:
        """Note it."""
        self._dirty[task] = None

    def ended(self, task: Task, now: float) -> None:
        """Note it, and when that was; one that was cut off is kept as it was."""
        if _is_cut(task):
            if task.started_at is not None:  # it may be kept as running
                self._dirty[task] = None
            return
        self._dirty[task] = None
        self._ended_at[task] = now
        if self._due:
            self._due.pop(task, None)

    def replayed(self, task: Task, _now: float) -> None:
        """Note it."""
        self._dirty[task] = None
        self._ended_at.pop(task, None)
        self._forgotten.discard(task)
        self._gone.discard(task.seq)

    def forgotten(self, task: Task) -> None:
        """Note it."""
        if not _is_cut(task):
            self._dirty[task] = None
            self._forgotten.add(task)

    # --- writing -------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse new work while nothing can be written (contract L3).

        Raises:
            EngineError: Nothing can.
        """
        if self.is_stuck:
            raise EngineError(f"{self.trouble}; nothing new is accepted or started until that is mended")

    def vet(self, tasks: Sequence[Task]) -> None:
        """Refuse tasks that can't be kept.

        Raises:
            UsageError: One has a backoff that is a function, or refers to shared memory.
        """
        for task in tasks:
            self._file.vet(task)

    def settle(self) -> None:
        """Write what must be on disk before anybody is told of it, or have it written soon."""
        if not self._dirty:
            return
        if self.durability != "relaxed":
            self.flush()
        elif not self._is_called:
            self._is_called = True
            self._bell.put("write")

    def flush(self) -> bool:
        """Write all that has changed; return whether that went well."""
        if (self._dirty or self._unneeded) and not self.is_stuck:
            self._try()
        return not self.is_stuck

    def _try(self) -> None:
        try:
            self._write()
        except (sqlite3.Error, OSError) as error:
            if not self.is_stuck:
                self.trouble = f"the journal {self._file.path} can't be written: {error}"
                self._say(ERROR, f"{self.trouble}; nothing new is accepted or started until that is mended")
                self._bell.put("retry")
            self.is_stuck = True
            return
        if self.is_stuck:
            self.is_stuck = False
            self._say(WARNING, f"the journal {self._file.path} can be written again")
            self._wake()

    def _say(self, level: int, text: str) -> None:
        """Log something; the program's handlers run elsewhere, without the lock."""
        self._put(partial(logger.log, level, "%s", text))

    def _write(self) -> None:
        """Write all that has changed in one transaction."""
        new: dict[Task, Past] = {}
        changed: dict[Task, Past] = {}
        gone = self._unneeded.copy()
        dirty, forgotten, stored, needed = self._dirty, self._forgotten, self._stored, self._needed
        pending = [task for task in dirty if task not in forgotten or task.seq in needed]
        for task in pending:  # grows while it is walked
            if task in new or task in changed:
                continue
            # One that has neither a row nor changed has come and gone unwritten.
            past = self._past_of(task, is_forgotten=task in forgotten or task not in dirty)
            if task.seq in stored:
                changed[task] = past
                continue
            new[task] = past
            if past.status is not _SUCCEEDED:  # what it depends on is kept, though it may be forgotten
                pending += [need for need in task.depends_on if need.seq not in stored or need in forgotten]
        if forgotten:
            gone += [task.seq for task in forgotten if task.seq in stored and task not in changed]
        self._file.write(sorted(new.items(), key=_by_seq), list(changed.items()), gone)
        # From here on nothing goes wrong.
        self._unneeded.clear()
        stored.difference_update(gone)
        stored.update(task.seq for task in new)
        for tasks in (new, changed):
            for task, past in tasks.items():
                if past.status is not _SUCCEEDED:
                    self._count_needs(task, past)
                if past.is_forgotten:
                    self._gone.add(past.seq)
        for tasks in (new, changed):  # only now: what they needed may be forgotten with the same write
            for task, past in tasks.items():
                if past.status is _SUCCEEDED:
                    self._needs_nobody(task.seq)
        for seq in gone:
            self._needs_nobody(seq)
        self._dirty.clear()
        self._ended_at.clear()
        self._forgotten.clear()
        self._writes += 1
        self._to_tidy += 1
        is_time = self._to_tidy >= _TIDY_EVERY or self._file.unmoved_bytes >= _TIDY_BYTES
        if is_time and self._thread is not None:
            self._to_tidy = self._file.unmoved_bytes = 0
            self._bell.put("tidy")

    def _past_of(self, task: Task, *, is_forgotten: bool) -> Past:
        """Return what a task is, for whoever restores it."""
        status = task.status
        if status not in TERMINAL or _is_cut(task):
            is_running = status is Status.RUNNING
            return Past(
                task.seq, task.submitted_at, Status.READY, is_forgotten, task.fence, task.failures,
                task.first_started_at, task.started_at if is_running else None, self._due.get(task),
                history=task.history,
            )  # fmt: skip
        return Past(
            task.seq, task.submitted_at, status, is_forgotten, task.fence, task.failures, task.first_started_at,
            ended_at=self._ended_at.get(task, task.submitted_at), cause=task.cause, origin=task.origin,
            cut_by=graph.cut_by(task),
            history=task.history, ran=task.ran, value=task.value,
        )  # fmt: skip

    def sync(self) -> None:
        """Wait until the disk has what was written; one wait for all who come at once.  The lock is not held.

        Raises:
            EngineError: It cannot be had on disk.
        """
        if self.durability != "full":
            return
        due = self._writes
        with self._sync_lock:
            if self._synced >= due:
                return
            due = self._writes
            try:
                self._file.sync()
            except OSError as error:
                raise EngineError(f"the journal {self._file.path} can't be written: {error}") from error
            self._synced = due

    # --- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        """Write late, tidy up, and try again what failed; until the end."""
        tidy = _Tidier(self._file)
        while (order := self._bell.get()) is not None:
            match order:
                case "tidy":
                    tidy()
                case "abandon":
                    with self._lock:
                        self.close()
                case "retry":
                    self._ended.wait(_RETRY_S)
                    with self._lock:
                        if self.is_stuck:
                            self._try()
                        if self.is_stuck and not self._ended.is_set():
                            self._bell.put("retry")
                case _:
                    self._ended.wait(_WINDOW_S)
                    with self._lock:
                        self._is_called = False
                        self.flush()
        tidy.close()
        with self._sync_lock:  # a thread may wait for the disk
            self._file.close()


def opened(
    path: "str | os.PathLike[str]",
    durability: Durability,
    scheduler: Scheduler,
    now: Callable[[], float],
) -> tuple[Journal, int]:
    """Open a journal and give a new scheduler what it holds.

    Args:
        path: The file.
        durability: As `Journal`.
        scheduler: It has no tasks yet.  Who watches it already is told of the tasks that are open.
        now: Reads the engine's clock.

    Returns:
        The journal, and the least number that no id made by us has.

    Raises:
        UsageError: As `Journal`, and as `Journal.restore`.
    """
    journal = Journal(path, durability, now)
    try:
        return journal, journal.restore(scheduler, now())
    except BaseException:
        journal.close()
        raise


@final
class _Tidier:
    """Moves what was written from SQLite's log into the file, by a connection of its own, without the queue's lock."""

    __slots__ = ("_connection", "_file")

    def __init__(self, file: JournalFile) -> None:
        self._file = file
        self._connection: sqlite3.Connection | None = None

    def __call__(self) -> None:
        """Do it as far as it can be done now."""
        with suppress(sqlite3.Error):  # the next one does it
            if self._connection is None:
                self._connection = sqlite3.connect(self._file.path, isolation_level=None)
            # Most of it without holding anybody up; then what has come meanwhile, with writers kept waiting for
            # those milliseconds: else one that never pauses would have the log grow without end.
            for how in ("PASSIVE", "RESTART"):
                self._connection.execute(f"PRAGMA wal_checkpoint({how})").fetchall()

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()


def _nothing() -> None:
    """Wake nobody."""


def _at_once(call: Callable[[], object]) -> None:
    """Make a call here and now: nobody else knows the journal yet."""
    call()


def _is_cut(task: Task) -> bool:
    """Whether a shutdown or a halt has cut a task off."""
    return task.trouble is not None and task.trouble.cause in _CUTS


def _by_seq(item: tuple[Task, Past]) -> int:
    return item[1].seq


def _task_of(row: Row, tasks: dict[int, Task]) -> Task:
    """Make the task of a row; what it depends on has been made."""
    past = row.past
    needs = [tasks[seq] for seq in row.needs if seq in tasks]
    is_open = past.status not in TERMINAL
    task = Task(
        row.id, row.type, row.payload, row.options,
        depends_on=needs,
        inputs=[tasks[seq] for seq in row.inputs] if past.status is not _SUCCEEDED else (),
        due=row.due if is_open else None,
        expires_at=row.expires_at if is_open else None,
        explicit=row.explicit,
    )  # fmt: skip
    if row.explicit:
        task.payload = marked(task.payload)  # what comes again under the same id is compared with it (C4)
        if past.status is _SUCCEEDED and isinstance(task.payload, Parcel):
            task.payload = task.payload.outlined()
        if task.conditions is None and row.need_ids:
            task.conditions = Conditions((), None, None, row.need_ids)
        elif task.conditions is not None:
            task.conditions.needs = row.need_ids
    elif past.status is _SUCCEEDED:
        task.payload = b""
    return task
