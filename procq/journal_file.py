"""The file behind a journal: rows of tasks in an SQLite database (contract L).

Knows what a row holds and how it is written and read, nothing of when: that is for journal.py.  Instants are
kept as seconds since 1970, because the engine's clock begins anew with each process.  Calls, results and
errors are bytes that nobody unpickles here; all else is numbers and texts.

Who can write the file can have its owner run any code, as it holds pickles: it is 0600, and one that belongs to
somebody else, or that others may write, is refused.
"""

import base64
import contextlib
import fcntl
import json
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast, final

from procq.core.past import Past
from procq.core.states import Status
from procq.core.task import CapturedRun, Cause, Run, Task
from procq.errors import UsageError
from procq.outcome import Ended
from procq.parcel import Buffer, Parcel, Payload, room
from procq.plain import MalformedError, plain_options, read_options
from procq.spec import Options

#: What this file says it is; "prcq" in ASCII.
_APPLICATION_ID: Final = 0x70726371
#: Goes up when an older procq could not read the file any more.
_VERSION: Final = 1
#: A part of a big payload holds so many bytes at most; SQLite takes a little less than 10^9 in one.
_PART_BYTES: Final = 256 * 2**20
#: The number of the parts of a payload that is but bytes; those of a pickle with buffers beside begin with 0.
_PLAIN: Final = -1
#: SQLite's log of what is not in the file yet is cut down to so many bytes when it begins anew.
_LOG_BYTES: Final = 16 * 2**20
#: Options are written once for all tasks that share them; so many are known by the object at a time.
_KNOWN_OPTIONS: Final = 10_000
#: The files that queues of this process have open, by device and inode.  Such a one is not opened again even for a
#: look: with that descriptor SQLite's own locks would go, and whoever reads the file would take its log away.
_CLAIMS: Final[set[tuple[int, int]]] = set()

_SCHEMA: Final = """
CREATE TABLE options (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE task (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL, type TEXT NOT NULL, options INTEGER NOT NULL,
    is_explicit INTEGER NOT NULL, submitted_at REAL NOT NULL, due REAL, expires_at REAL, needs TEXT, inputs TEXT,
    payload BLOB
);
CREATE TABLE state (
    seq INTEGER PRIMARY KEY, status TEXT NOT NULL, is_forgotten INTEGER NOT NULL, fence INTEGER NOT NULL,
    failures INTEGER NOT NULL, first_started_at REAL, started_at REAL, due REAL, ended_at REAL, cause TEXT, origin TEXT,
    cut_by TEXT, history TEXT, ran TEXT, value BLOB
);
CREATE TABLE part (seq INTEGER, kind TEXT, number INTEGER, piece INTEGER, is_bytes INTEGER, data BLOB,
    PRIMARY KEY (seq, kind, number, piece)) WITHOUT ROWID;
"""


class Row(NamedTuple):
    """A task as the file has it."""

    id: str
    type: str
    options: Options
    explicit: bool  #: whether the user chose the id
    due: float | None  #: the instant before which it does not start
    expires_at: float | None  #: it must have started before
    needs: Sequence[int]  #: the numbers of what it depends on
    need_ids: tuple[str, ...]  #: their ids
    inputs: Sequence[int]  #: of those whose results are arguments, in the order of these
    payload: Payload
    past: Past


@final
class JournalFile:
    """An open journal; one process has it at a time.

    Args:
        path: Where; made if it is not there.
        offset: What makes seconds since 1970 of an instant.

    Raises:
        UsageError: It is no journal, cannot be opened, is not this user's own, or another process has it open.
    """

    __slots__ = ("_connection", "_known_options", "_offset", "_options", "_own", "_wal", "path", "unmoved_bytes")

    def __init__(self, path: "str | os.PathLike[str]", *, offset: float) -> None:
        self.path = os.path.abspath(os.fspath(path))  # noqa: PTH100 - pathlib is 5 ms that most programs don't pay
        self._offset = offset
        self._wal: int | None = None
        #: about how much was written since somebody last tidied up
        self.unmoved_bytes = 0
        #: what the claim hangs on; None: it is given up
        self._own: int | None = _claimed(self.path)
        try:
            self._connection = _opened(self.path)
            #: the number of each text of options
            self._options: dict[str, int] = dict(self._connection.execute("SELECT text, id FROM options"))
        except BaseException as error:
            self._give_up()
            if isinstance(error, sqlite3.Error):
                raise UsageError(f"journal={self.path!r}: can't be opened: {error}") from error
            raise
        #: options whose text is known, by `id`, with themselves so that no other gets that
        self._known_options: dict[int, tuple[Options, int]] = {}

    def vet(self, task: Task) -> None:
        """Refuse a task that can't be kept.

        Raises:
            UsageError: Its backoff is a function, its id is no text that can be encoded, or it refers to shared
                memory, which ends with this process.
        """
        if not task.id.isascii():
            try:
                task.id.encode()
            except UnicodeEncodeError as error:
                raise UsageError(f"id={task.id!r} can't be kept in the journal: {error.reason}") from None
        if id(task.rules) not in self._known_options:
            try:
                text_of(cast("Options", task.rules))
            except UsageError as error:
                raise UsageError(f"{task.type} can't be kept in the journal: {error}") from None
        if isinstance(task.payload, Parcel) and task.payload.shares:
            raise UsageError(
                f"{task.type} can't be kept in the journal: it refers to what share() holds, which ends with this "
                "process; pass the object itself, or a path to it"
            )

    # --- writing -------------------------------------------------------------------------------

    def write(
        self, new: Sequence[tuple[Task, Past]], changed: Sequence[tuple[Task, Past]], gone: Sequence[int]
    ) -> None:
        """Write a transaction: all of it is there afterwards, or nothing.

        Args:
            new: Tasks that have no row.
            changed: Tasks that have one.
            gone: Numbers of those whose rows go.

        Raises:
            sqlite3.Error: It could not be written.
            UsageError: A task can't be kept; `vet` finds that out before.
        """
        connection = self._connection
        known = self._options
        self._options = known.copy() if any(id(task.rules) not in self._known_options for task, _ in new) else known
        connection.execute("BEGIN IMMEDIATE")
        try:
            if gone:
                numbers = [(seq,) for seq in gone]
                for table in ("task", "state", "part"):
                    connection.executemany(f"DELETE FROM {table} WHERE seq = ?", numbers)  # noqa: S608 - our own names
            connection.executemany(
                "INSERT INTO task VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [self._task_row(task, past) for task, past in new],
            )
            states = [self._state_row(past) for _, past in (*new, *changed) if not _is_fresh(past)]
            connection.executemany(
                "INSERT OR REPLACE INTO state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", states
            )
            connection.execute("COMMIT")
        except BaseException:
            self._options = known
            self._known_options.clear()
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _task_row(self, task: Task, past: Past) -> tuple[object, ...]:
        conditions = task.conditions
        needs = inputs = due = expires_at = None
        if conditions is not None:
            due, expires_at = self._wall(conditions.due), self._wall(conditions.expires_at)
            if conditions.depends_on or conditions.needs:
                ids = conditions.needs or [need.id for need in conditions.depends_on]
                needs = json.dumps([[need.seq for need in conditions.depends_on], list(ids)])
            if task.inputs:
                inputs = json.dumps([need.seq for need in task.inputs])
        return (
            past.seq, task.id, task.type, self._options_of(task), task.explicit, self._wall(past.submitted_at), due,
            expires_at, needs, inputs, self._kept(past.seq, "call", task.payload),
        )  # fmt: skip

    def _state_row(self, past: Past) -> tuple[object, ...]:
        wall = self._wall
        history = None
        if past.history:
            history = json.dumps([[number, *self._plain_end(ended)] for number, ended in past.history])
        ran = None
        if past.ran is not None:
            started_at, ended_at, *rest = past.ran
            ran = json.dumps([wall(started_at), wall(ended_at), *rest])
        return (
            past.seq, past.status.value, past.is_forgotten, past.fence, past.failures, wall(past.first_started_at),
            wall(past.started_at), wall(past.due), wall(past.ended_at), past.cause, past.origin,
            json.dumps(past.cut_by) if past.cut_by else None, history, ran,
            None if past.value is None else self._kept(past.seq, "value", past.value),
        )  # fmt: skip

    def _wall(self, instant: float | None) -> float | None:
        return None if instant is None else instant + self._offset

    def _options_of(self, task: Task) -> int:
        """Return the number of a task's options, which are written if they are new."""
        options = cast("Options", task.rules)
        known = self._known_options.get(id(options))
        if known is not None:
            return known[1]
        text = text_of(options)
        number = self._options.get(text)
        if number is None:
            number = len(self._options) + 1
            self._connection.execute("INSERT INTO options VALUES (?, ?)", (number, text))
            self._options[text] = number
        if len(self._known_options) >= _KNOWN_OPTIONS:
            self._known_options.clear()
        self._known_options[id(options)] = (options, number)
        return number

    def _kept(self, seq: int, kind: str, payload: Payload) -> bytes | None:
        """Return what stands for a payload in its row: itself, or None if it is written in parts."""
        self.unmoved_bytes += len(payload)
        if not isinstance(payload, Parcel):
            if len(payload) <= _PART_BYTES:
                return payload
            numbered: Iterable[tuple[int, Buffer]] = [(_PLAIN, payload)]
        else:
            numbered = enumerate((payload.data, *payload.buffers))
        for number, buffer in numbered:
            view = memoryview(buffer)
            for piece, start in enumerate(range(0, max(len(view), 1), _PART_BYTES)):
                self._connection.execute(
                    "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?)",
                    (seq, kind, number, piece, isinstance(buffer, bytes), view[start : start + _PART_BYTES]),
                )
        return None

    def _plain_end(self, ended: Ended) -> list[object]:
        """Return the report on an attempt without success as JSON has it."""
        error = ended.value
        return [
            ended.outcome, self._wall(ended.started_at), self._wall(ended.ended_at),
            # One with big buffers is known by its texts alone.
            base64.b64encode(error).decode() if isinstance(error, bytes) else None,
            ended.error_types, ended.message, ended.traceback, ended.permanent, ended.retry_after_s, ended.terminated,
            ended.pid, ended.exit_code, ended.signal, ended.cpu_s, ended.peak_rss_bytes, ended.stdout, ended.stderr,
        ]  # fmt: skip

    # --- reading -------------------------------------------------------------------------------

    def rows(self) -> Iterator[Row]:
        """Yield all tasks in order of submission.

        Raises:
            UsageError: The file is damaged.
        """
        options = {number: _options_in(text, self.path) for text, number in self._options.items()}
        query = "SELECT * FROM task LEFT JOIN state USING (seq) ORDER BY seq"
        try:
            for row in self._connection.execute(query):
                yield self._row(row, options)
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"journal={self.path!r}: is damaged: {error}") from error

    def _row(self, row: tuple[Any, ...], options: dict[int, Options]) -> Row:
        seq, task_id, type_name, number, explicit, submitted_at, due, expires_at, needs, inputs, payload, *state = row
        clock = self._clock
        past = Past(seq, submitted_at - self._offset, Status.READY)
        if state[0] is not None:
            status, gone, fence, failures, first, started, retry, ended_at, cause, origin, cut, history, ran, value = (
                state
            )
            past = Past(
                seq, submitted_at - self._offset, Status(status), bool(gone), fence, failures, clock(first),
                clock(started), clock(retry), ended_at - self._offset,
                cast("Cause | None", cause), origin, json.loads(cut) if cut else (),
                [self._end_in(one) for one in json.loads(history)] if history else (),
                self._run_in(ran), self._payload(seq, "value", value) if status == "succeeded" else None,
            )  # fmt: skip
        need_seqs, need_ids = json.loads(needs) if needs else ((), ())
        return Row(
            task_id, type_name, options[number], bool(explicit), clock(due), clock(expires_at), need_seqs,
            tuple(need_ids) if explicit else (), json.loads(inputs) if inputs else (),
            self._payload(seq, "call", payload), past,
        )  # fmt: skip

    def _clock(self, at: float | None) -> float | None:
        return None if at is None else at - self._offset

    def _run_in(self, text: str | None) -> Run | CapturedRun | None:
        if text is None:
            return None
        started_at, ended_at, *rest = json.loads(text)
        return cast("Run", (started_at - self._offset, ended_at - self._offset, *rest))

    def _end_in(self, plain: list[Any]) -> tuple[int, Ended]:
        number, outcome, started_at, ended_at, error, types, message, traceback, permanent, retry_after_s, *rest = plain
        terminated, pid, exit_code, signal, cpu_s, peak_rss_bytes, stdout, stderr = rest
        return number, Ended(
            outcome, started_at - self._offset, ended_at - self._offset,
            value=None if error is None else base64.b64decode(error),
            error_types=tuple(types), message=message, traceback=traceback, permanent=permanent,
            retry_after_s=retry_after_s, terminated=terminated, pid=pid, exit_code=exit_code, signal=signal,
            cpu_s=cpu_s, peak_rss_bytes=peak_rss_bytes, stdout=stdout, stderr=stderr,
        )  # fmt: skip

    def _payload(self, seq: int, kind: str, inline: bytes | None) -> Payload:
        if inline is not None:
            return inline
        query = "SELECT number, is_bytes, data FROM part WHERE seq = ? AND kind = ? ORDER BY number, piece"
        parts: dict[int, list[bytes]] = {}
        whole: dict[int, bool] = {}
        for number, is_bytes, data in self._connection.execute(query, (seq, kind)):
            parts.setdefault(number, []).append(data)
            whole[number] = bool(is_bytes)
        if _PLAIN in parts:
            return b"".join(parts[_PLAIN])
        if 0 not in parts:
            raise ValueError(f"the {kind} of task {seq} is missing")
        joined = [b"".join(parts[number]) if whole[number] else _filled(parts[number]) for number in sorted(parts)[1:]]
        return Parcel(b"".join(parts[0]), joined)

    # --- the file ------------------------------------------------------------------------------

    def sync(self) -> None:
        """Wait until the disk has all that was written, as it has once this is closed; in any thread.

        Raises:
            OSError: It cannot be had there.
        """
        if self._own is None:
            return
        if self._wal is None:
            # SQLite syncs what it moves into the file by itself; what it has not moved is here, until it is closed.
            self._wal = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        os.fsync(self._wal)

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        if self._wal is not None:
            os.close(self._wal)
        self._give_up()  # last: SQLite's own locks go with any descriptor of the file

    def _give_up(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            _CLAIMS.discard(_identity(os.fstat(own)))
            os.close(own)

    def mark_forked(self) -> None:
        """This is a forked child: the claim is its parent's alone; the connection is left as it is, unused."""
        self._give_up()


def text_of(options: Options) -> str:
    """Return options as text.

    Raises:
        UsageError: The backoff is a function.
    """
    plain = plain_options(options)
    plain.pop("id", None)
    plain.pop("derived", None)
    return json.dumps(plain, sort_keys=True)


def _options_in(text: str, path: str) -> Options:
    try:
        return read_options(json.loads(text))
    except (MalformedError, ValueError) as error:
        raise UsageError(f"journal={path!r}: is damaged: {error}") from error


def _filled(pieces: Sequence[bytes]) -> memoryview:
    """Return writable memory that holds the pieces."""
    memory = room(sum(map(len, pieces)))
    at = 0
    for piece in pieces:
        memory[at : at + len(piece)] = piece
        at += len(piece)
    return memory


def _is_fresh(past: Past) -> bool:
    """Whether a task is as it was accepted: then the row of what it is says all."""
    return past.status is Status.READY and not (past.fence or past.is_forgotten or past.due is not None)


def _claimed(path: str) -> int:
    """Open a file for this process alone; it is made if it is not there.

    Raises:
        UsageError: It cannot be opened or trusted, or another process has it.
    """
    taken = "another queue has it open; shut that down, or take another file"
    with contextlib.suppress(OSError):
        if _identity(os.stat(path)) in _CLAIMS:  # noqa: PTH116 - see above
            raise UsageError(f"journal={path!r}: {taken}")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"journal={path!r}: can't be opened: {error.strerror}") from error
    try:
        # Not `lockf`: SQLite uses those, and the two kinds know nothing of each other.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        wrong = _distrust(os.fstat(fd))
    except OSError:
        wrong = taken
    if wrong:
        os.close(fd)
        raise UsageError(f"journal={path!r}: {wrong}")
    _CLAIMS.add(_identity(os.fstat(fd)))
    return fd


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _distrust(about: os.stat_result) -> str:
    """Say why a file is not to be read; empty if nothing speaks against it."""
    if not stat.S_ISREG(about.st_mode):
        return "is no file"
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        return "belongs to somebody else or can be written by others, and to load it runs code; take one of your own"
    return ""


def _opened(path: str) -> sqlite3.Connection:
    """Connect to a journal, which is made if the file is empty.

    Raises:
        UsageError: It is something else.
        sqlite3.Error: It cannot be opened.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}").fetchall()
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # see `Journal`
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not tables and not application:
            connection.executescript(
                f"BEGIN; PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_VERSION}; {_SCHEMA} COMMIT;"
            )
            application, version = _APPLICATION_ID, _VERSION
        _check_kind(application, version, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_kind(application: int, version: int, path: str) -> None:
    """Refuse what we cannot read.

    Raises:
        UsageError: We cannot.
    """
    if application != _APPLICATION_ID:
        raise UsageError(f"journal={path!r}: is an SQLite database, but no journal of procq")
    if version > _VERSION:
        raise UsageError(f"journal={path!r}: was written by a newer procq; open it with that, or take another file")
