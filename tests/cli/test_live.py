"""The live display: what people see of it, replayed into a model of a screen."""

import fcntl
import io
import itertools
import os
import pty
import re
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.command import Terminal as Command
from tests.support.screen import Screen

from procq.cli.board import Board
from procq.cli.live import Live
from procq.cli.picture import Look, clock, picture, shortened
from procq.cli.terminal import Line, Terminal, columns_of, cut
from procq.events import Event

Write = Callable[..., Path]


def text_of(line: Line) -> str:
    return "".join(part if isinstance(part, str) else part[1] for part in line)


# --- what there is to see --------------------------------------------------------------------------


def look(*, columns: int = 100, lines: int = 12, is_unicode: bool = False, notice: str = "") -> Look:
    return Look(
        now=102.0, columns=columns, lines=lines, is_unicode=is_unicode, heading="procq run etl.py", notice=notice
    )


def an_event(kind: str, t: float = 0.0, **fields: object) -> Event:
    return {"ev": kind, "t": t, **fields}


def a_board(*, types: int = 2, running: int = 3, all_known: bool = True) -> Board:
    """Return a board of a run that began at 0: a task of each type has ended after 4 s, one has failed."""
    board = Board()
    board.take(an_event("run.started", workers=4))
    for number in range(types):
        for state in ("done", "wait"):
            name = f"type{number}/{state}"
            board.take(an_event("task.submitted", id=name, type=f"type{number}", max_attempts=2))
        name = f"type{number}/done"
        board.take(an_event("attempt.ended", 4.0, id=name, outcome="ok", run_s=4.0, peak_rss=80_000_000))
        board.take(an_event("task.ended", 4.0, id=name, status="succeeded", attempts=1))
    board.take(an_event("task.submitted", id="b", type="type0", max_attempts=2, args="type0(raw=größe)"))
    error = {"type": "ValueError", "message": "could not convert string to float: 'n/a'"}
    board.take(an_event("attempt.ended", 5.0, id="b", outcome="error", error=error))
    board.take(an_event("task.ended", 5.0, id="b", status="failed", attempts=2))
    for number in range(running):
        board.take(an_event("task.submitted", id=f"r{number}", type="type0", max_attempts=2, timeout=30))
        board.take(an_event("attempt.started", 99.0, id=f"r{number}", attempt=1, worker=number, pid=number))
    if all_known:
        board.take(an_event("run.stopping", 6.0, mode="drain", cause="shutdown"))
    return board


def test_the_picture_shows_what_runs_and_what_failed() -> None:
    assert [text_of(line) for line in picture(a_board(), look())] == [
        "procq run etl.py  01:42 elapsed, ~00:03 left",
        "[###########-------------------]  3/8 done   1 failed",
        " type      blocked  sched  ready   run      ok  failed     p50     p95    peak",
        " type0           0      0      1     3       1       1    4.0s    4.0s    80MB",
        " type1           0      0      1     0       1       0    4.0s    4.0s    80MB",
        " running  type0 r0 3.0s/30.0s | type0 r1 3.0s/30.0s | type0 r2 3.0s/30.0s",
        "x failed  type0(raw=größe)   attempt 2/2  ValueError: could not convert string to float: 'n/a'",
    ]


def test_the_total_is_a_bound_while_more_may_come() -> None:
    board = a_board(all_known=False)

    assert "3/>=8 done" in text_of(picture(board, look())[1])
    assert "3/≥8 done" in text_of(picture(board, look(is_unicode=True))[1])
    assert text_of(picture(board, look())[0]).endswith(", >=00:03 left")


def test_what_a_run_that_is_stopped_does_takes_the_place_of_its_heading() -> None:
    title = text_of(picture(a_board(), look(notice="finishing 3 running tasks (oldest 12s)"))[0])

    assert title.startswith("finishing 3 running tasks (oldest 12s)  01:42 elapsed")


@pytest.mark.parametrize("columns", [1, 5, 10, 20, 40, 60, 80, 120, 300])
def test_the_picture_is_as_high_and_as_wide_as_there_is_room(columns: int) -> None:
    """Only its last resort is wider: numbers nobody wants to see half of; the terminal cuts those."""
    for types, lines in itertools.product([0, 1, 5, 6, 30], [0, 1, 2, 3, 5, 7, 12]):
        shown = [text_of(line) for line in picture(a_board(types=types), look(columns=columns, lines=lines))]

        assert len(shown) <= lines
        if columns >= 40:
            assert max(map(columns_of, shown), default=0) <= columns


def test_what_is_dispensable_goes_first() -> None:
    narrow = [text_of(line) for line in picture(a_board(), look(columns=40))]

    assert narrow[0].endswith("01:42 elapsed, ~00:03 left")
    assert narrow[2].split() == ["type", "run", "ok", "failed", "p50"]
    assert narrow[-2].endswith(" | +2")


def test_many_types_leave_those_that_have_something_to_do() -> None:
    board = a_board(types=9)
    for number in range(6):
        board.take(an_event("task.ended", 5.0, id=f"type{number}/wait", status="succeeded", attempts=1))

    shown = [text_of(line) for line in picture(board, look())]

    assert [line.split()[0] for line in shown[3:9]] == ["type0", "type1", "type6", "type7", "type8", "+4"]


def test_text_is_measured_as_terminals_show_it() -> None:
    assert columns_of("größe") == 5
    assert columns_of("日本") == 4
    assert columns_of("e\N{COMBINING ACUTE ACCENT}") == 1
    assert cut("日本語", 5) == "日本"
    assert cut("e\N{COMBINING ACUTE ACCENT}x", 1) == "e\N{COMBINING ACUTE ACCENT}"
    assert shortened("日本語" * 9, 10, look()) == "日本語..."
    assert shortened("日本語" * 9, 10, look(is_unicode=True)) == "日本語日…"


@pytest.mark.parametrize(("seconds", "shown"), [(0, "00:00"), (59.6, "01:00"), (102, "01:42"), (3723, "1:02:03")])
def test_times_are_shown_as_clocks_do(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


# --- lines in place ----------------------------------------------------------------------------------


class Pair:
    """A terminal that is written to, and the screen that shows it, both of one size."""

    def __init__(self, columns: int, lines: int, *, reflows: bool = False, **how: object) -> None:
        self._master, self._slave = pty.openpty()
        self.screen = Screen(columns, lines, reflows=reflows)
        self._stream = os.fdopen(os.dup(self._slave), "w", encoding=str(how.pop("encoding", "utf-8")))
        self.terminal = Terminal(self._stream, environment={}, **how)  # type: ignore[arg-type]
        self.sent = ""
        self._tell_size(columns, lines)

    def _tell_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def become(self, columns: int, lines: int) -> None:
        self.look()
        self._tell_size(columns, lines)
        self.screen.become(columns, lines)

    def look(self) -> list[str]:
        """Return what stands on the screen, without empty lines."""
        os.set_blocking(self._master, False)
        try:
            while data := os.read(self._master, 65536):
                text = data.decode()
                self.sent += text
                self.screen.feed(text)
        except BlockingIOError:
            pass
        return [row for row in self.screen.rows if row]

    def foreign(self, text: str) -> None:
        """Write to the terminal as a task does."""
        os.write(self._slave, text.encode())

    def close(self) -> None:
        self._stream.close()
        os.close(self._slave)
        os.close(self._master)


@pytest.fixture
def pair() -> Iterator[Callable[..., Pair]]:
    opened: list[Pair] = []

    def make(columns: int = 40, lines: int = 10, *, reflows: bool = False, **how: object) -> Pair:
        opened.append(Pair(columns, lines, reflows=reflows, **how))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def lines_of(*texts: str) -> list[Line]:
    return [(text,) for text in texts]


def test_lines_in_place_are_redrawn_where_they_stand(pair: Callable[..., Pair]) -> None:
    one = pair()
    one.terminal.in_place(lines_of("title", "1/2 done", "running"))
    assert one.look() == ["title", "1/2 done", "running"]

    one.terminal.in_place(lines_of("title", "2/2"))
    assert one.look() == ["title", "2/2"]

    one.terminal.clear()
    assert one.look() == []


def test_a_redraw_is_one_write_that_clears_no_screen_and_shows_nothing_twice(pair: Callable[..., Pair]) -> None:
    one = pair()
    one.terminal.in_place(lines_of("title", "1/2 done"))
    one.look()
    one.sent = ""

    one.terminal.in_place(lines_of("title", "1/2 done"))
    assert one.look()
    assert one.sent == ""

    one.terminal.in_place(lines_of("title", "2/2 done"))
    one.look()
    assert "\x1b[2J" not in one.sent
    assert "\x1b[H" not in one.sent
    assert one.sent.count("\x1b[J") == 1
    assert one.sent.index("\x1b[J") > one.sent.index("2/2 done")  # nothing is gone before it is drawn again


def test_whole_lines_scroll_above_those_in_place(pair: Callable[..., Pair]) -> None:
    one = pair(lines=6)
    one.terminal.in_place(lines_of("title", "bar"))
    for number in range(20):
        one.terminal.line(f"failure {number}")
        one.terminal.in_place(lines_of("title", f"bar {number}"))

    assert one.look() == ["failure 17", "failure 18", "failure 19", "title", "bar 19"]
    assert [row for row in one.screen.all_rows if "failure" in row] == [f"failure {number}" for number in range(20)]
    assert sum("title" in row for row in one.screen.all_rows) == 1


def test_what_a_task_writes_stands_above_too(pair: Callable[..., Pair]) -> None:
    one = pair()
    one.terminal.in_place(lines_of("title", "bar"))
    for number in range(3):
        one.foreign(f"print {number}\n")
        one.terminal.in_place(lines_of("title", f"bar {number}"))

    assert one.look() == ["print 0", "print 1", "print 2", "title", "bar 2"]


def test_no_more_lines_are_shown_than_there_is_room_for(pair: Callable[..., Pair]) -> None:
    one = pair(columns=10, lines=4)
    for number in range(5):
        one.terminal.in_place(lines_of(f"title {number}", "x" * 30, "日本語日本語", "four", "five"))

    assert one.look() == ["title 4", "x" * 9, "日 本 語 日".replace(" ", "")]
    assert sum("title" in row for row in one.screen.all_rows) == 1


def test_a_terminal_of_one_line_shows_nothing_in_place(pair: Callable[..., Pair]) -> None:
    one = pair(columns=10, lines=1)

    one.terminal.in_place(lines_of("title"))

    assert one.look() == []


@pytest.mark.parametrize("reflows", [True, False])
@pytest.mark.parametrize("size", [(20, 10), (80, 10), (40, 4), (40, 20), (13, 5), (100, 30)])
def test_a_resize_leaves_nothing_behind(pair: Callable[..., Pair], size: tuple[int, int], *, reflows: bool) -> None:
    one = pair(reflows=reflows)
    one.terminal.line("x failed")
    full = lines_of("title " + "t" * 60, "bar " + "b" * 60, "row " + "r" * 60)
    one.terminal.in_place(full)

    one.become(*size)
    one.terminal.in_place(full)

    rows = one.look()
    assert rows[-3:] == [text_of(line)[: size[0] - 1] for line in full]
    everything = "\n".join(one.screen.all_rows)
    assert (everything.count("title"), everything.count("bar"), everything.count("row")) == (1, 1, 1)
    if size[1] > 5:
        assert rows[0] == "x failed"


def test_a_stream_that_is_not_utf8_gets_escapes_that_count(pair: Callable[..., Pair]) -> None:
    plain = pair(columns=16, ascii_only=True)
    plain.terminal.in_place(lines_of("größe größe"))
    assert plain.look() == ["gr\\xf6\\xdfe gr\\"]

    latin = pair(encoding="latin-1")
    assert not latin.terminal.is_unicode


def test_styles_colour_what_they_should_and_take_no_room(pair: Callable[..., Pair]) -> None:
    one = pair(columns=12, color="always")
    one.terminal.in_place([[("bad", "x failed"), "  and more of it"]])
    assert one.look() == ["x failed  a"]
    assert one.screen.style_of("x failed") == "red"

    other = pair(columns=12, color="never")
    other.terminal.in_place([[("bad", "x failed")]])
    other.look()
    assert "\x1b[1;31m" not in other.sent


# --- when it looks -------------------------------------------------------------------------------------


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_it_looks_again_after_the_interval_at_the_soonest() -> None:
    live = Live(Terminal(Tty(), environment={}), interval_s=5.0, now=10.0)
    assert live.due == 15.0

    live.show(15.5)

    assert live.due is not None
    assert live.due >= 20.5


def test_it_shows_what_it_was_told_and_then_goes_away() -> None:
    stream = Tty()
    live = Live(Terminal(stream, environment={}), interval_s=None, now=0.0)
    live.heading = "procq run jobs.py"
    live.take(an_event("task.submitted", time.time(), id="a", type="clean"))
    live.notice = lambda running, oldest_s: f"finishing {running} ({oldest_s:.0f}s)"

    live.show(time.monotonic())
    live.end()

    assert "finishing 0 (0s)" in stream.getvalue()
    assert "0/>=1 done" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[J")


# --- a run on a terminal -----------------------------------------------------------------------------------

JOBS = """
import os, time
from pathlib import Path
import procq
from procq import task

HERE = Path(__file__).parent

@task
def wait(number):
    with open(HERE / "go", "rb", buffering=0) as pipe:
        pipe.read(1)

@task
def broken(name):
    raise ValueError(name)

def jobs():
    return [broken.spec("größe"), *(wait.spec(number) for number in range(4))]

@procq.jobs(on_event=lambda event: os.write(1, b"<told>\\n") if event["ev"] == "run.ended" else None)
def heard():
    return [broken.spec("a")]
"""


class Watched:
    """A command on a terminal of a given size, and the screen that shows it."""

    def __init__(self, folder: Path, *arguments: str, columns: int, lines: int, **environment: str) -> None:
        self.command = Command(folder, "-m", "procq", "run", *arguments, size=(columns, lines), environment=environment)
        self.screen = Screen(columns, lines, reflows=True)
        self._seen = 0

    def look(self) -> list[str]:
        text = self.command.text
        self.screen.feed(text[self._seen :])
        self._seen = len(text)
        return [row for row in self.screen.rows if row]

    def become(self, columns: int, lines: int) -> None:
        with self.command.held():  # or what was drawn for the size before would come after
            self.look()
            self.command.resize(columns, lines)
            self.screen.become(columns, lines)


@pytest.fixture
def watch(write: Write, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    write(JOBS)
    os.mkfifo(tmp_path / "go")
    opened: list[Watched] = []

    def start(entry: str, *flags: str, columns: int = 100, lines: int = 24, **environment: str) -> Watched:
        one = Watched(tmp_path, f"jobs.py:{entry}", "-j2", *flags, columns=columns, lines=lines, **environment)
        opened.append(one)
        return one

    yield start
    for one in opened:
        one.command.close()


@pytest.mark.processes
@pytest.mark.parametrize(("columns", "lines"), [(40, 24), (80, 10), (200, 50), (100, 5)])
def test_a_run_is_seen_and_leaves_nothing_but_its_end(
    watch: Callable[..., Watched], tmp_path: Path, columns: int, lines: int
) -> None:
    run = watch("jobs", "--interval=20ms", columns=columns, lines=lines)
    run.command.wait_for("/5 done")
    run.command.wait_for(" running  wait", times=2)

    seen = run.look()
    assert len(seen) < lines
    assert any(row.endswith(("left", "elapsed")) for row in seen)

    run.become(columns // 2, lines)
    run.command.wait_for(" running  wait", times=run.command.text.count(" running  wait") + 3)
    title = [row for row in run.look() if "elapsed" in row]
    assert len(title) == 1

    pipe = os.open(tmp_path / "go", os.O_RDWR)
    os.write(pipe, b"gogo")
    assert run.command.end() == 1
    os.close(pipe)
    everything = "\n".join([*run.look(), *run.screen.all_rows])
    assert "FAILED in " in everything
    assert "elapsed" not in everything
    assert " running " not in everything


@pytest.mark.processes
@pytest.mark.parametrize(
    ("flags", "environment", "is_colored"),
    [
        ((), {}, True),
        ((), {"NO_COLOR": "1"}, False),
        ((), {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (("--color=never",), {"FORCE_COLOR": "1"}, False),
        (("--color=always",), {"NO_COLOR": "1"}, True),
    ],
)
def test_the_display_is_coloured_as_all_else_is(
    watch: Callable[..., Watched], flags: tuple[str, ...], environment: dict[str, str], *, is_colored: bool
) -> None:
    run = watch("jobs", "--interval=20ms", *flags, **environment)
    run.command.wait_for(" running  wait")
    run.command.wait_for("x failed", times=2)

    assert ("\x1b[1;31mx failed" in run.command.text) is is_colored
    assert bool(re.search(r"\x1b\[[0-9;]*m", run.command.text)) is is_colored


@pytest.mark.processes
@pytest.mark.parametrize(
    ("flags", "environment"), [(["--ascii"], {}), ([], {"PYTHONIOENCODING": "ascii"})], ids=["flag", "encoding"]
)
def test_nothing_but_ascii_where_that_is_wanted(
    watch: Callable[..., Watched], flags: list[str], environment: dict[str, str]
) -> None:
    run = watch("jobs", "--interval=20ms", *flags, **environment)
    run.command.wait_for(" running  wait", times=3)

    drawn = [line for line in run.command.text.split("\n") if "\x1b[K" in line]
    assert drawn
    assert all(line.isascii() for line in drawn)


@pytest.mark.processes
def test_the_first_line_says_what_is_finished_after_ctrl_c(watch: Callable[..., Watched], tmp_path: Path) -> None:
    run = watch("jobs", "--interval=20ms", "--color=never")
    run.command.wait_for("| wait")

    run.command.press_ctrl_c()
    run.command.wait_for("(oldest ")

    # One, if the second worker was not up yet: what it has not begun is taken back.
    title = r"finishing [12] running tasks? \(oldest .*\); Ctrl-C again kills them  00:"
    assert any(re.match(title, row) for row in run.look())
    pipe = os.open(tmp_path / "go", os.O_RDWR)
    os.write(pipe, b"gogo")
    assert run.command.end() == -signal.SIGINT
    os.close(pipe)
    assert not any("oldest" in row for row in run.look())


@pytest.mark.processes
@pytest.mark.parametrize("how", ["plain", "off"])
def test_nothing_is_redrawn_where_that_is_not_wanted(watch: Callable[..., Watched], tmp_path: Path, how: str) -> None:
    run = watch("jobs", f"--progress={how}", "--color=never", "--interval=20ms")
    run.command.wait_for("x failed")
    pipe = os.open(tmp_path / "go", os.O_RDWR)
    os.write(pipe, b"gogo")

    assert run.command.end() == 1
    os.close(pipe)
    assert "\x1b" not in run.command.text


@pytest.mark.processes
def test_a_listener_of_the_jobs_file_is_told_as_well(watch: Callable[..., Watched]) -> None:
    run = watch("heard")

    assert run.command.end() == 1
    assert run.command.text.count("<told>") == 1


@pytest.mark.processes
def test_a_live_display_needs_a_terminal(write: Write, procq: Callable[..., object]) -> None:
    write(JOBS)

    done = procq("run", "jobs.py:heard", "--progress=live")

    assert done.code == 2  # type: ignore[attr-defined]
    assert "--progress=live: standard error is no terminal" in done.err  # type: ignore[attr-defined]
