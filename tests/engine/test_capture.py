"""What attempts write is captured, each for itself, and a flood of it harms nobody (contract H4, H5)."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.support import output_tasks as tasks
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, pids, script_environment, states
from tests.support.process_tasks import echo, pid

from procq import Handle, Queue, task
from procq.engine.tail import KEPT_BYTES
from procq.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

CUT: Final = "[... {} bytes left out ...]\n"


def written(handle: Handle[object]) -> list[tuple[str | None, str | None]]:
    """Wait for a task's end and return what each of its attempts wrote."""
    handle.wait(PATIENCE_S)
    return [(record.stdout, record.stderr) for record in handle.history]


# --- what is captured ---


def test_H4_all_that_an_attempt_writes_is_kept_with_it(capfd: pytest.CaptureFixture[str]) -> None:
    with Queue(workers=1, capture=True) as queue:
        assert written(queue.submit(tasks.write_in_every_way)) == [("python\nchild\ndescriptor\nC\n", "error\n")]

    assert capfd.readouterr() == ("", "")


def test_H4_nothing_is_captured_unless_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    with Queue(workers=1) as queue:
        assert written(queue.submit(tasks.write, "out", "err")) == [(None, None)]

    assert capfd.readouterr() == ("out", "err")


def test_H4_each_attempt_has_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with Queue(workers=1, capture=True) as queue:
        retried = queue.submit(task(tasks.write_attempt, max_attempts=3, backoff=0).spec())
        assert written(retried) == [("attempt 1", ""), ("attempt 2", ""), ("attempt 3", "")]
        handles = [queue.submit(tasks.write, f"out {number}", f"err {number}") for number in range(200)]
        silent = queue.submit(echo, "nothing")
        assert [written(handle) for handle in handles] == [
            [(f"out {number}", f"err {number}")] for number in range(200)
        ]
        assert written(silent) == [("", "")]

    assert capfd.readouterr() == ("", "")


def test_H4_what_the_initializer_writes_is_no_attempts(capfd: pytest.CaptureFixture[str]) -> None:
    with Queue(workers=1, capture=True, initializer=tasks.write, initargs=("begin", "to begin")) as queue:
        assert written(queue.submit(tasks.write, "go")) == [("go", "")]

    assert capfd.readouterr() == ("begin", "to begin")


@pytest.mark.parametrize(
    ("end", "outcome"), [("exit", "crash"), ("signal", "crash"), ("error", "error"), ("sleep", "timeout")]
)
def test_H4_what_was_written_is_kept_however_the_attempt_ends(end: str, outcome: str) -> None:
    with Queue(workers=1, capture=True, kill_grace=0) as queue:
        spec = task(tasks.write_and, timeout=0.5 if end == "sleep" else None).spec(end)
        handle = queue.submit(spec)
        assert written(handle) == [(f"before {end}\n", "last words\n")]
        (letter,) = queue.dead_letters()

    assert handle.history[0].outcome == outcome
    assert letter.history[0].stderr == "last words\n"


def test_H4_what_is_written_in_the_grace_is_kept() -> None:
    with Queue(workers=1, capture=True) as queue:
        handle = queue.submit(task(tasks.write_when_asked_to_stop, timeout=0.3).spec())
        assert written(handle) == [("tidied up", "")]


def test_H4_a_result_of_any_size_comes_with_what_was_written() -> None:
    value = os.urandom(3_000_000)
    with Queue(workers=1, capture=True) as queue:
        handle = queue.submit(tasks.write, "beside it", value=value)
        assert handle.result(PATIENCE_S) == value
        assert written(handle) == [("beside it", "")]


# --- how much ---


def test_H4_the_last_64_KiB_of_each_stream_are_kept() -> None:
    data = bytes(range(32, 127)) * 20_000
    with Queue(workers=1, capture=True) as queue:
        (kept, nothing), *others = written(queue.submit(tasks.write_raw, data))
        (whole, _), *_ = written(queue.submit(tasks.write_raw, data[:KEPT_BYTES]))
        (_, error), *_ = written(queue.submit(tasks.write_raw, data[: KEPT_BYTES + 1], 2))

    assert kept == CUT.format(len(data) - KEPT_BYTES) + data[-KEPT_BYTES:].decode()
    assert nothing == ""
    assert others == []
    assert whole == data[:KEPT_BYTES].decode()
    assert error == CUT.format(1) + data[1 : KEPT_BYTES + 1].decode()


def test_H4_a_character_that_was_cut_in_two_is_left_out() -> None:
    text = "€" * KEPT_BYTES
    with Queue(workers=1, capture=True) as queue:
        ((kept, _),) = written(queue.submit(tasks.write_raw, text.encode()))

    left_out = 3 * KEPT_BYTES - KEPT_BYTES // 3 * 3
    assert kept == CUT.format(left_out) + "€" * (KEPT_BYTES // 3)


def test_H4_bytes_that_are_no_text_are_shown_as_escapes() -> None:
    with Queue(workers=1, capture=True) as queue:
        assert written(queue.submit(tasks.write_raw, b"\xff\x00ok\xe2\x82")) == [("\\xff\x00ok\\xe2\\x82", "")]


# --- what tasks do to their streams ---


@pytest.mark.parametrize("how", ["replace", "none", "dup2", "close", "close streams", "detach", "redirect"])
def test_H4_the_next_attempt_finds_the_streams_as_they_were(how: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Queue(workers=1, capture=True) as queue:
        before = queue.submit(pid).result(PATIENCE_S)
        meddled = queue.submit(tasks.meddle, how)
        assert written(meddled) == [("before after" if how == "redirect" else "before ", "")]
        assert written(queue.submit(tasks.write, "next", "err")) == [("next", "err")]
        assert queue.submit(pid).result(PATIENCE_S) == before

    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("how", ["close streams", "detach"])
def test_H4_so_it_does_where_nothing_is_captured(how: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Queue(workers=1) as queue:
        before = queue.submit(pid).result(PATIENCE_S)
        queue.submit(tasks.meddle, how).result(PATIENCE_S)
        queue.submit(tasks.write, "next", "err").result(PATIENCE_S)
        assert queue.submit(pid).result(PATIENCE_S) == before

    assert capfd.readouterr() == ("before next", "err")


def test_H4_a_task_that_closes_every_descriptor_is_charged_alone() -> None:
    with Queue(workers=1, capture=True) as queue:
        handle = queue.submit(tasks.close_all_descriptors)
        assert written(handle) == [("closing", "")]
        assert handle.history[0].outcome == "crash"
        assert written(queue.submit(tasks.write, "next")) == [("next", "")]


def test_H4_a_forked_child_writes_for_its_attempt() -> None:
    with Queue(workers=1, capture=True) as queue:
        assert written(queue.submit(tasks.fork_and_write)) == [("child parent", "")]


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_H4_a_program_without_standard_streams_can_capture(closed: str, tmp_path: Path) -> None:
    script = """
import sys
from procq import Queue
from tests.support import output_tasks as tasks
with Queue(workers=1, capture=True) as queue:
    handles = [queue.submit(tasks.write_raw, b"out"), queue.submit(tasks.write_raw, b"err", 2)]
    [handle.wait() for handle in handles]
    with open(sys.argv[1], "w") as file:
        file.write(repr([(handle.history[0].stdout, handle.history[0].stderr) for handle in handles]))
"""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, script, tmp_path / "out"],
        check=False, timeout=PATIENCE_S, env=script_environment(),
    )  # fmt: skip

    assert done.returncode == 0
    assert (tmp_path / "out").read_text() == "[('out', ''), ('', 'err')]"


# --- floods (H5) ---


def test_H5_a_flood_is_bounded_and_disturbs_nobody() -> None:
    with Queue(workers=2, capture=True, kill_grace=0) as queue:
        flooding = queue.submit(task(tasks.flood, timeout=1).spec())
        for number in range(50):
            assert queue.submit(tasks.write, str(number), value=number).result(PATIENCE_S) == number
        ((kept, _),) = written(flooding)

    assert flooding.history[0].outcome == "timeout"
    assert kept is not None
    assert kept.startswith("[... ")
    assert kept.count("and on\n") > KEPT_BYTES // 8
    assert len(kept) < KEPT_BYTES + 100


def test_H5_C_code_that_holds_the_interpreter_lock_can_write_much() -> None:
    with Queue(workers=1, capture=True) as queue:
        ((kept, _),) = written(queue.submit(task(tasks.flood_holding_the_interpreter, timeout=PATIENCE_S).spec()))

    assert kept is not None
    assert kept.endswith("line 19998\nline 19999\n")


def test_H5_a_program_left_behind_that_writes_on_holds_nothing_up() -> None:
    with Queue(workers=1, capture=True) as queue:
        left = queue.submit(tasks.leave_a_writer)
        program = left.result(PATIENCE_S)
        assert queue.submit(echo, "next").result(PATIENCE_S) == "next"
        os.kill(program, signal.SIGKILL)
        ((kept, _),) = written(left)

    assert kept is not None
    assert "left behind\n" in kept


def test_H5_a_flood_does_not_delay_a_shutdown() -> None:
    with Queue(workers=2, capture=True) as queue:
        queue.submit(tasks.flood)
        queue.submit(tasks.flood)
        assert wait_until(lambda: len(pids(queue)) == 2, PATIENCE_S)
        assert wait_until(lambda: states(queue) == {"busy": 2}, PATIENCE_S)
        assert queue.shutdown(0, mode="kill").cancelled == 2


# --- parameters ---


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_H4_capture_is_yes_or_no(value: object) -> None:
    with pytest.raises(UsageError, match="capture="):
        Queue(capture=value)  # type: ignore[arg-type]
