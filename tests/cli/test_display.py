"""What a run writes for people: previews, failures, the closing block, progress, colour and hygiene."""

import io
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import NamedTuple

import pytest

from procq.cli import ending, preview, progress, summary
from procq.cli.ending import Ending
from procq.cli.stopping import Ladder
from procq.cli.tally import Tally
from procq.cli.terminal import ColorChoice, Part, Terminal, printable, wants_color
from procq.core.records import AttemptRecord
from procq.core.states import Status
from procq.core.task import Cause
from procq.errors import DependencyFailed, TaskCancelled, WorkerCrashed
from procq.halting import Halt, Halted, OnFailure
from procq.spec import TaskSpec, task


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A stream whose reader has left."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError


def text_of(lines: "Sequence[Sequence[Part]]") -> list[str]:
    """Return lines without their styles."""
    return ["".join(part if isinstance(part, str) else part[1] for part in line) for line in lines]


@task(max_attempts=2)
def clean(raw: Path, day: object = None, *rest: object, **more: object) -> None: ...


@task
def fetch() -> Path:
    return Path()


LINE_OF_CLEAN = clean.fn.__code__.co_firstlineno


# --- previews ----------------------------------------------------------------------------------


def test_a_preview_names_the_arguments() -> None:
    spec = clean.spec(Path("ber/4.csv"), "mon", 3, deep=True)

    assert preview.label(spec) == "clean(raw=ber/4.csv, day='mon', 3, deep=True)"


def test_a_preview_starts_with_the_users_own_id() -> None:
    assert preview.label(clean.using(id="clean/4").spec(Path("a"))) == "clean/4 clean(raw=a)"


def test_a_result_is_previewed_by_its_task() -> None:
    raw = fetch.using(id="fetch/1").spec()

    assert preview.label(clean.spec(raw.out, [raw.out])) == "clean(raw=fetch/1, day=[fetch/1])"


def test_a_preview_is_short_whatever_the_arguments() -> None:
    spec = clean.spec(Path("a" * 5000), "x" * 10**6, *range(1000), *[list(range(10**5))] * 50)

    assert len(preview.label(spec)) <= 120


def test_a_preview_survives_a_repr_that_raises() -> None:
    class Nasty:
        def __repr__(self) -> str:
            raise ValueError

    assert preview.label(clean.spec(Path("a"), Nasty())).startswith("clean(raw=a, day=<Nasty")


def test_a_handlers_task_is_previewed_by_its_payload() -> None:
    assert preview.label(TaskSpec(type="resize", payload=(3, 4))) == "resize(payload=(3, 4))"


def test_a_task_of_a_builtin_is_previewed() -> None:
    assert preview.label(task(divmod).spec(7, 2)).startswith("divmod(")


def test_the_place_of_a_task_is_its_functions() -> None:
    assert preview.place(clean.spec(Path("a"))).endswith(f"test_display.py:{LINE_OF_CLEAN}")
    assert preview.place(TaskSpec(type="resize")) == ""
    assert preview.place(task(divmod).spec(7, 2)) == ""


# --- how a task ended --------------------------------------------------------------------------


class FakeHandle(NamedTuple):
    """What `ending.read` reads of a handle."""

    status: Status
    error: BaseException | None
    history: tuple[AttemptRecord, ...] = ()
    attempts: int = 1
    id: str = "clean-1"


def record(error_type: str | None, message: str | None, trace: str | None) -> AttemptRecord:
    """Return the record of a failed attempt."""
    return AttemptRecord(1, "error", 0.0, 1.0, 1, None, None, 0.0, 0, error_type, message, trace)


TRACE = """Traceback (most recent call last):
  File "/home/me/etl.py", line 19, in clean
    return json.loads(text)
           ^^^^^^^^^^^^^^^^
  File "{library}/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: nothing
    to decode
"""


@pytest.fixture
def trace() -> str:
    """Return a traceback whose last frame is the standard library's."""
    return TRACE.format(library=Path(traceback.__file__).parent)


def test_a_failure_is_told_in_the_workers_words(trace: str) -> None:
    handle = FakeHandle(
        Status.FAILED, ValueError("x"), (record("json.JSONDecodeError", "nothing\n    to decode", trace),)
    )

    read = ending.read(handle, clean.spec(Path("a")), max_attempts=3)

    assert read.error == "JSONDecodeError: nothing to decode"
    assert read.where == "/home/me/etl.py:19"
    assert (read.attempts, read.max_attempts) == (1, 3)


def test_a_crash_is_told_at_the_function_since_there_is_no_traceback() -> None:
    handle = FakeHandle(Status.FAILED, WorkerCrashed("worker killed by SIGSEGV"), (record(None, None, None),))

    read = ending.read(handle, clean.spec(Path("a")), max_attempts=2)

    assert read.error == "WorkerCrashed: worker killed by SIGSEGV"
    assert read.where.endswith(f"test_display.py:{LINE_OF_CLEAN}")


def test_a_task_that_was_stopped_is_told_as_one_that_had_not_begun() -> None:
    error = TaskCancelled("task 'clean-1' was cut off: the run's deadline has passed")
    handle = FakeHandle(Status.CANCELLED, error, (record("procq.inside.Terminated", "", TRACE),))

    read = ending.read(handle, clean.spec(Path("a")), max_attempts=2)

    assert read.error == "TaskCancelled: task 'clean-1' was cut off: the run's deadline has passed"
    assert read.traceback == ""


def test_a_skipped_task_knows_its_origin() -> None:
    handle = FakeHandle(Status.CANCELLED, DependencyFailed("clean-0"))

    assert ending.read(handle, clean.spec(Path("a")), max_attempts=2).origin == "clean-0"


def test_a_traceback_is_trimmed_to_the_users_frames(trace: str) -> None:
    assert ending.trimmed(trace) == [
        "Traceback (most recent call last):",
        '  File "/home/me/etl.py", line 19, in clean',
        "    return json.loads(text)",
        "           ^^^^^^^^^^^^^^^^",
        "ValueError: nothing",
        "    to decode",
    ]


# --- the closing block -------------------------------------------------------------------------


def failed(task_id: str, label: str, attempts: int = 1) -> Ending:
    """Return a failure."""
    return Ending(task_id, label, Status.FAILED, attempts, 2, "ValueError: no", "etl.py:19", "Traceback ...")


def skipped(origin: str) -> Ending:
    """Return a task that was skipped because of another."""
    return Ending("x", "x()", Status.CANCELLED, 0, 1, "DependencyFailed: ...", origin=origin)


def cancelled(label: str, reason: str) -> Ending:
    """Return a task that was cancelled for another reason."""
    return Ending("c", label, Status.CANCELLED, 0, 1, "TaskCancelled: ...", reason=reason)


def test_all_went_well_is_one_line() -> None:
    tally = Tally()
    for attempts in (1, 1, 2):
        tally.succeeded(attempts)

    lines = text_of(list(summary.closing_lines(tally, verdict="ok", elapsed_s=4.1)))

    assert lines == ["ok in 4.1s: 3 ok (1 after retries)"]


def test_the_closing_block_names_what_failed_and_what_was_skipped() -> None:
    tally = Tally()
    tally.succeeded(1)
    tally.went_badly(failed("clean-1", "clean(raw=ber/4.csv)", attempts=2))
    tally.went_badly(failed("train-1", "train(table=...)"))
    for _ in range(3):
        tally.went_badly(skipped("clean-1"))
    tally.went_badly(skipped("gone"))
    tally.went_badly(cancelled("c()", "interrupted by Ctrl-C"))
    tally.was_unneeded()

    lines = text_of(list(summary.closing_lines(tally, verdict="FAILED", elapsed_s=151)))

    assert lines == [
        "FAILED in 2m31s: 1 ok, 2 failed, 4 skipped, 1 cancelled, 1 not needed",
        "  failed   clean(raw=ber/4.csv)  2 attempts  ValueError: no   etl.py:19",
        "  failed   train(table=...)  ValueError: no   etl.py:19",
        "  skipped  3 tasks after clean(raw=ber/4.csv)",
        "  skipped  1 task after gone",
        "  cancelled  c(): interrupted by Ctrl-C",
    ]
    assert (tally.ended, tally.went_wrong) == (9, 7)


def test_why_tasks_were_cancelled_is_told_of_many_together() -> None:
    tally = Tally()
    for number in range(3):
        tally.went_badly(cancelled(f"late({number})", "it had not started before its `expires`"))
    for number in range(4):
        tally.went_badly(cancelled(f"c({number})", "stopped by -x"))

    lines = text_of(list(summary.closing_lines(tally, verdict="FAILED", elapsed_s=1)))

    assert lines == [
        "FAILED in 1.0s: 0 ok, 0 failed, 0 skipped, 7 cancelled",
        "  cancelled  4 tasks: stopped by -x",
        "  cancelled  late(0): it had not started before its `expires`",
        "  cancelled  late(1): it had not started before its `expires`",
        "  cancelled  late(2): it had not started before its `expires`",
    ]


def interrupted(number: Signals) -> Ladder:
    ladder = Ladder()
    ladder.signalled(number, 1.0)
    return ladder


def broken() -> Ladder:
    ladder = Ladder()
    ladder.broken()
    return ladder


@pytest.mark.parametrize(
    ("cause", "ladder", "reason"),
    [
        ("max_failures", Ladder(), "stopped by --max-failures=2"),
        ("deadline", Ladder(), "the run's deadline had passed"),
        ("expired", Ladder(), "it had not started before its `expires`"),
        ("shutdown", interrupted(SIGINT), "interrupted by Ctrl-C"),
        ("shutdown", interrupted(SIGTERM), "interrupted by SIGTERM"),
        ("shutdown", broken(), "the jobs file failed"),
        ("cancelled", Ladder(), "cancelled"),
    ],
)
def test_every_cancellation_has_its_reason(cause: Cause, ladder: Ladder, reason: str) -> None:
    assert summary.reason_of(cause, ladder, limit="--max-failures=2") == reason


def test_what_ctrl_c_stops_after_the_jobs_file_failed_was_interrupted() -> None:
    ladder = broken()
    ladder.signalled(SIGINT, 1.0)

    assert summary.reason_of("shutdown", ladder, limit="") == "interrupted by Ctrl-C"


def halted(why: Halt, how: OnFailure) -> Ladder:
    ladder = Ladder()
    ladder.halted(Halted(why, how, 0))
    return ladder


@pytest.mark.parametrize(
    ("ladder", "running", "line"),
    [
        (halted("max_failures", "finish"), 0, "-x: stopping; nothing is running"),
        (halted("max_failures", "kill"), 0, "-x: stopping; nothing is running"),
        (halted("deadline", "kill"), 0, "deadline reached: stopping; nothing is running"),
        (interrupted(SIGINT), 0, "stopping; nothing is running"),
        (interrupted(SIGTERM), 0, "SIGTERM: stopping; nothing is running"),
        (halted("max_failures", "finish"), 2, "-x: finishing 2 running tasks; Ctrl-C kills them"),
        (halted("max_failures", "kill"), 1, "-x: stopping 1 running task"),
        (halted("deadline", "kill"), 2, "deadline reached: stopping 2 running tasks"),
        (interrupted(SIGINT), 2, "finishing 2 running tasks; Ctrl-C again kills them"),
        (interrupted(SIGTERM), 2, "SIGTERM: finishing 2 running tasks; Ctrl-C kills them"),
        (broken(), 2, ""),
    ],
)
def test_a_run_that_stops_says_why_and_what_of_that_which_runs(ladder: Ladder, running: int, line: str) -> None:
    assert summary.stopping_line(ladder.step, ladder, running=running, limit="-x") == line


def test_a_flood_of_failures_is_cut_with_its_number() -> None:
    tally = Tally()
    for number in range(210):
        tally.went_badly(failed(f"t-{number}", f"t({number})"))
        tally.went_badly(skipped(f"t-{number}"))

    lines = text_of(list(summary.closing_lines(tally, verdict="FAILED", elapsed_s=1)))

    assert len(lines) == 1 + 201 + 201
    assert lines[201] == "  failed   and 10 more tasks; --results lists all"
    assert lines[-1] == "  skipped  10 tasks after others"


def test_a_failure_is_shown_as_it_happens_with_its_traceback(trace: str) -> None:
    one = failed("clean-1", "clean(raw=a)")._replace(traceback=trace)

    short = text_of(list(summary.failure_lines(one, full=False)))
    full = text_of(list(summary.failure_lines(one, full=True)))

    assert short[0] == "x failed  clean(raw=a)  attempt 1/2  ValueError: no   etl.py:19"
    assert not any("json/__init__" in line for line in short)
    assert any("json/__init__" in line for line in full)


def test_memory_does_not_grow_with_tracebacks(trace: str) -> None:
    tally = Tally()

    tally.went_badly(failed("clean-1", "clean(raw=a)")._replace(traceback=trace))

    assert tally.failures[0].traceback == ""


def test_the_first_line_tells_what_runs() -> None:
    line = summary.start_line("procq run etl.py:nightly", given={"day": "2026-11-29"}, workers=8)

    assert text_of([line]) == ["procq run etl.py:nightly  day=2026-11-29  8 workers"]


# --- progress ----------------------------------------------------------------------------------

NOWHERE = progress.Snapshot(812, 1204, False, 8, 3, 1, 2, 102.0)  # noqa: FBT003 - as short as its meaning is plain


def test_progress_says_when_the_total_is_not_known_yet() -> None:
    assert progress.text(NOWHERE) == "812/>=1204 done  8 running  3 scheduled  1 failed  2 skipped  1m42s"
    done = NOWHERE._replace(all_known=True, delayed=0, failed=0, skipped=0)
    assert progress.text(done) == "812/1204 done  8 running  1m42s"


def test_plain_progress_is_whole_lines_every_30_seconds() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream, environment={})
    shown = progress.Progress(terminal, interval_s=None, now=100.0, look=lambda _now: NOWHERE)
    assert shown.due == 130.0

    shown.show(131.0)

    assert stream.getvalue() == progress.text(NOWHERE) + "\n"
    assert shown.due == 161.0


def test_plain_progress_can_be_had_on_a_terminal() -> None:
    stream = Screen()
    shown = progress.Progress(Terminal(stream, environment={}), interval_s=5.0, now=0.0, look=lambda _now: NOWHERE)

    shown.show(5.0)

    assert stream.getvalue() == progress.text(NOWHERE) + "\n"


# --- the terminal ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "is_terminal", "environment", "colored"),
    [
        ("auto", True, {}, True),
        ("auto", False, {}, False),
        ("auto", True, {"NO_COLOR": "1"}, False),
        ("auto", True, {"NO_COLOR": ""}, True),
        ("auto", False, {"FORCE_COLOR": "1"}, True),
        ("auto", False, {"CLICOLOR_FORCE": "1"}, True),
        ("auto", False, {"FORCE_COLOR": "0"}, False),
        ("auto", False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("auto", True, {"TERM": "dumb"}, False),
        ("always", False, {"NO_COLOR": "1", "TERM": "dumb"}, True),
        ("never", True, {"FORCE_COLOR": "1"}, False),
    ],
)
def test_when_there_is_colour(
    choice: ColorChoice,
    is_terminal: bool,  # noqa: FBT001 - a column of the table
    environment: Mapping[str, str],
    colored: bool,  # noqa: FBT001
) -> None:
    assert wants_color(choice, is_terminal=is_terminal, environment=environment) is colored


def test_colour_only_repeats_the_words() -> None:
    plain, colored = io.StringIO(), io.StringIO()

    Terminal(plain, environment={}).line(("bad", "failed"), " x")
    Terminal(colored, color="always", environment={}).line(("bad", "failed"), " x")

    assert plain.getvalue() == "failed x\n"
    assert colored.getvalue() == "\x1b[1;31mfailed\x1b[0m x\n"


def test_control_characters_from_outside_are_shown_not_sent() -> None:
    assert printable("a\x1b[2Jb\rc\nd\u202ee") == "a\\x1b[2Jb\\rc\\nd\\u202ee"
    assert printable("größe \u2192 4") == "größe \u2192 4"


def test_a_dumb_terminal_is_not_redrawn() -> None:
    assert not Terminal(Screen(), environment={"TERM": "dumb"}).is_live


def test_a_stream_that_breaks_ends_its_own_output_only() -> None:
    terminal = Terminal(Broken(), environment={})

    terminal.line("one")
    terminal.line("two")


def test_a_cancelled_task_has_no_origin() -> None:
    handle = FakeHandle(Status.CANCELLED, TaskCancelled("cancelled by shutdown"))

    assert ending.read(handle, clean.spec(Path("a")), max_attempts=2).origin is None
