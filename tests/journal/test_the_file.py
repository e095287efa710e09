"""Who may have a journal, what is refused, and what becomes of it on a disk that is full (contract L2, L3)."""

import gc
import itertools
import logging
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import arrays
from tests.support.leaks import wait_until
from tests.support.looking import PATIENCE_S

from procq import Handle, Queue, Status, errors, share, task
from procq.journal import Journal
from procq.testing import inline


@task
def doubled(value: int) -> int:
    return 2 * value


def test_L2_a_second_queue_is_refused_a_journal_that_is_open(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j"), pytest.raises(errors.UsageError, match="another queue has it open"):
        inline(journal=tmp_path / "j")

    inline(journal=tmp_path / "j").shutdown()


def test_L2_a_queue_that_was_dropped_without_work_gives_its_journal_back(tmp_path: Path) -> None:
    queue = inline(journal=tmp_path / "j")
    thread = journal_of(queue)._thread
    assert thread is not None

    del queue
    gc.collect()
    thread.join(10)

    inline(journal=tmp_path / "j").shutdown()


def test_L2_a_queue_that_was_refused_gives_its_journal_back(tmp_path: Path) -> None:
    for wrong in ({"max_pending": -1}, {"max_failures": "x"}):
        with pytest.raises(errors.ProcqError):
            inline(journal=tmp_path / "j", **wrong)

    inline(journal=tmp_path / "j").shutdown()


def test_L2_a_queue_that_was_refused_the_file_takes_no_lock_from_the_one_that_has_it(tmp_path: Path) -> None:
    look = f"import sqlite3; sqlite3.connect({str(tmp_path / 'j')!r}).execute('SELECT * FROM task').fetchall()"
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(doubled.using(id="id").spec(1)).result()
        with pytest.raises(errors.UsageError, match="another queue has it open"):
            inline(journal=tmp_path / "j")

        subprocess.run([sys.executable, "-c", look], check=True)

        assert (tmp_path / "j-wal").exists()


def test_L1_an_id_that_is_no_unicode_is_refused_and_breaks_nothing(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j") as queue:
        with pytest.raises(errors.UsageError, match="can't be kept in the journal"):
            queue.submit(doubled.using(id="\udc80").spec(1))

        assert queue.submit(doubled.using(id="\u00e9").spec(1)).result() == 2


def test_L1_a_submit_that_a_shutdown_overtakes_need_not_wait_for_the_disk(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(doubled, 1).result()
        journal = journal_of(queue)

    journal._writes += 1  # as if it had come before `sync`
    journal.sync()


def journal_of(queue: Queue) -> Journal:
    journal = queue._supervisor._journal
    assert journal is not None
    return journal


def test_L2_a_second_process_is_refused_a_journal_that_is_open(tmp_path: Path) -> None:
    program = f"import procq; procq.Queue(journal={str(tmp_path / 'j')!r})"

    with inline(journal=tmp_path / "j"):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "another queue has it open" in done.stderr


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(doubled, 1)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}

    assert set(modes) == {"j", "j-wal", "j-shm"}
    assert set(modes.values()) == {0o600}
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    inline(journal=tmp_path / "j").shutdown()
    (tmp_path / "j").chmod(0o666)

    with pytest.raises(errors.UsageError, match="can be written by others"):
        inline(journal=tmp_path / "j")


def test_what_is_no_journal_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_text("a diary " * 100)
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    other.chmod(0o600)
    text.chmod(0o600)

    with pytest.raises(errors.UsageError, match="can't be opened: file is not a database"):
        inline(journal=text)
    with pytest.raises(errors.UsageError, match="no journal of procq"):
        inline(journal=other)
    with pytest.raises(errors.UsageError, match="can't be opened: No such file"):
        inline(journal=tmp_path / "missing" / "j")

    assert text.read_text().startswith("a diary")


def test_tasks_that_cannot_outlive_the_process_are_refused_at_submit(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j") as queue:
        with pytest.raises(errors.UsageError, match="can't be kept in the journal: a backoff that is a function"):
            queue.submit(doubled.using(backoff=float).spec(1))
        with pytest.raises(errors.UsageError, match=r"refers to what share\(\) holds"):
            queue.submit(repr, share(b"x" * 100))

        assert queue.stats().counts[Status.READY] == 0


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match="durability='fast': must be one of 'full', 'process', 'relaxed'"):
        inline(journal=tmp_path / "j", durability="fast")  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("durability", ["full", "process"])
def test_L3_a_full_disk_stops_new_starts_and_loses_nothing_that_was_accepted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, durability: str
) -> None:
    queue = inline(journal=tmp_path / "j", durability=durability)  # type: ignore[arg-type]  # both are
    accepted = [queue.submit(doubled.using(id=f"id{number}").spec(number)) for number in range(3)]
    journal = queue._supervisor._journal
    assert journal is not None
    connection = journal._file._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")

    with caplog.at_level(logging.ERROR), pytest.raises(errors.EngineError, match="disk is full; nothing new"):
        _submit_until_refused(queue, accepted)
    refused = f"more{len(accepted) - 3}"
    with pytest.raises(errors.UnknownTaskError):
        queue.handle(refused)
    queue.start()
    started = queue.stats().counts[Status.RUNNING]
    explained = queue.explain("id0")
    connection.execute("PRAGMA max_page_count = 1000000")
    with queue._supervisor.lock:
        journal._try()

    values = [handle.result() for handle in accepted]
    queue.shutdown()

    assert started == 0
    assert "can't be written: database or disk is full" in explained
    assert values == [0, 2, 4, *(2 * number for number in range(len(accepted) - 3))]
    assert "can't be written" in caplog.text


def _submit_until_refused(queue: Queue, accepted: list[Handle[int]]) -> None:
    for number in itertools.count():
        accepted.append(queue.submit(doubled.using(id=f"more{number}").spec(number)))  # noqa: PERF401 - it ends by an error


@pytest.mark.processes
def test_L1_a_forked_child_has_no_part_in_the_journal(tmp_path: Path) -> None:
    with Queue(1, journal=tmp_path / "j") as queue:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if queue._supervisor.forked else 1)
        _, status = os.waitpid(pid, 0)
        value = queue.submit(os.getpid)

        assert value.result() != os.getpid()
    assert os.waitstatus_to_exitcode(status) == 0


def test_bytes_that_are_too_big_for_one_field_are_kept_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("procq.journal_file._PART_BYTES", 1000)
    with inline(journal=tmp_path / "j") as queue:
        queue.submit(task(arrays.make).using(id="made").spec(200_000))
        queue.submit(task(str.upper).using(id="long").spec("x" * 5000))

    with inline(journal=tmp_path / "j") as again:
        made, long = again.wait("made").value, again.wait("long").value

    assert long == "X" * 5000
    assert made is not None
    assert arrays.ends(made) == arrays.ends(arrays.make(200_000))


def test_the_log_is_moved_into_the_file_once_it_has_grown(tmp_path: Path) -> None:
    with inline(journal=tmp_path / "j", durability="process", retention=(1, "1h")) as queue:
        for number in range(6):  # of 2 MB each, but none of them many transactions
            queue.submit(task(str.upper).using(id=f"id{number}").spec("x" * 2**20)).result()

        assert wait_until(lambda: (tmp_path / "j").stat().st_size > 2**20, PATIENCE_S)
