"""`procq run` as people see it through pipes: exit codes, messages, streams, and what is written where."""

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import Finished, python

from procq.cli import console

pytestmark = pytest.mark.processes

Run = Callable[..., Finished]
Write = Callable[..., Path]

JOBS = """
import os, time
from pathlib import Path
from procq import Permanent, task

HERE = Path(__file__).parent

@task
def square(x):
    return x * x

@task
def fail(x):
    raise ValueError(f"no luck with {x}")

@task(max_attempts=2)
def flaky(x):
    seen = HERE / f"seen-{x}"
    if not seen.exists():
        seen.touch()
        raise OSError("not yet")
    return x

@task
def careless(x):
    seen = HERE / f"seen-{x}"
    if not seen.exists():
        seen.touch()
        raise OSError("not yet")

@task
def total(xs):
    return sum(xs)

@task
def sleep(seconds):
    time.sleep(seconds)

@task
def begin_and_sleep(seconds):
    (HERE / "begun").touch()
    time.sleep(seconds)

@task
def fail_once_begun(x):
    while not (HERE / "begun").exists():
        time.sleep(0.01)
    raise ValueError(x)

@task
def crash():
    os._exit(3)

@task
def hold(size):
    held = b"x" * size
    while held:
        time.sleep(60)

@task
def leave(size):
    procq.held = b"x" * size
    time.sleep(0.02)
    return os.getpid()

@task(run_if="failure")
def alert(x): ...

@task
def halve(x):
    return procq.Spawn([halve.spec(x // 2), halve.spec(x - x // 2)] if x > 1 else [], value=x)

@task
def hand_on(x, option={}):
    return procq.Spawn([(careless if x == "flaky" else fail).using(**option).spec(x)], value=x)

@task
def sleep_later(seconds):
    return procq.Spawn([sleep.spec(seconds)])

@task
def spawn_wrongly():
    return procq.Spawn([square.using(depends_on=["nobody"]).spec(1)])

@task
def redo():
    return procq.Spawn([square.using(id="x").spec(5)], value="redone", on_conflict="replace")

def good(): return [total.spec([square.spec(x).out for x in range(4)])]
def retried(): return [flaky.spec(1), square.spec(2)]
def reckless(): return [careless.spec(1)]
def bad():
    first = fail.spec("x")
    return [square.spec(1), first, total.spec([first]), total.spec([total.spec([first])])]
def many_bad():
    for x in range(300):
        yield fail.spec(x)
def lazily():
    for x in range(50):
        yield square.spec(x)
def fail_first():
    yield fail.spec("x")
    for x in range(1000):
        yield sleep.spec(0.02)
def fail_beside(): return [begin_and_sleep.spec(60), fail_once_begun.spec("x"), square.spec(1)]
def long(): return [sleep.spec(60) for _ in range(4)]
def crashes(): return [crash.spec()]
def hungry(): return [hold.spec(150_000_000)]
def pids(): return [leave.spec(size) for size in [150_000_000] * 4]
def tree(): return [halve.spec(8)]
def tree_lazily():
    yield halve.spec(8)
def handed_on(): return [hand_on.spec("child")]
def handed_on_named(): return [hand_on.spec("child", {"id": "my/child"})]
def handed_on_flaky(): return [hand_on.spec("flaky")]
def sleeps_later(): return [sleep_later.spec(60)]
def spawns_wrongly(): return [spawn_wrongly.spec()]
def replaced(): return [square.using(id="x", delay=3600).spec(3), redo.spec()]
def replaced_later(): return [square.using(id="x").spec(3), redo.using(depends_on=["x"]).spec()]
def unneeded(): return [alert.spec(square.spec(1))]
def empty(): return []
def empty_too(): yield from ()
def with_parameters(day, width: int = 3): return [square.spec(width)]

def not_a_task(): return [square.spec(1), 17]
def yields_no_task():
    yield square.spec(1)
    yield square(2)
def the_function(): return [square]
def nothing(): square.spec(1)
def one(): return square.spec(1)
def raises(): raise KeyError("shop")
def raises_late():
    yield square.spec(1)
    raise KeyError("shop")
def leaves(): raise SystemExit(0)
def wrong_arguments(): return [square.spec(y=1)]
def wrong_option(): return [square.using(max_attempts=0).spec(1)]
def wrong_duration(): return [square.using(timeout="5 minuts").spec(1)]
def unpicklable(): return [square.spec(1), square.spec((x for x in ()))]
def cycle():
    return [square.using(id="a", depends_on=["b"]).spec(1), square.using(id="b", depends_on=["a"]).spec(1)]
def unknown():
    return [square.using(id="clean/ber").spec(1), square.using(id="report", depends_on=["cleen/ber"]).spec(1)]
def unknown_late():
    yield square.spec(1)
    yield square.using(id="report", depends_on=["nobody"]).spec(1)
def twice(): return [square.using(id="same").spec(1), square.using(id="same").spec(2)]
def handler():
    from procq import TaskSpec
    return [TaskSpec(type="resize", payload=1)]

import procq
@procq.jobs(limits={"sleep": 1}, workers=1)
def carried(): return [square.spec(1)]
@procq.jobs(max_failures=2, workers=1)
def carried_limit(): return [fail.spec(x) for x in range(9)]
def carried_badly(): return [square.spec(1)]
def carried_pending(): yield square.spec(1)
procq.jobs(max_pending="many")(carried_pending)
procq.jobs(limit=3)(carried_badly)
def carried_shapeless(): return [square.spec(1)]
procq.jobs(limits=["sleep"])(carried_shapeless)
def carried_wrongly(): return [square.spec(1)]
procq.jobs(limits={"sleep": 0})(carried_wrongly)
"""


@pytest.fixture
def run(write: Write, procq: Run) -> Run:
    """Run an entry of the jobs file above."""
    write(JOBS)

    def run_entry(entry: str, *flags: str, **environment: str) -> Finished:
        return procq("run", f"jobs.py:{entry}", "-j2", *flags, **environment)

    return run_entry


@pytest.fixture
def here(
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fresh_loader: None,
) -> Run:
    """Run an entry of the jobs file above in this very process, where no worker is needed: 20 times as fast."""
    assert fresh_loader is None, "a fixture for its effect"
    write(JOBS)
    monkeypatch.chdir(tmp_path)

    def run_entry(entry: str, *flags: str) -> Finished:
        code = console(["run", f"jobs.py:{entry}", "-j2", *flags])
        return Finished(code, *capsys.readouterr())

    return run_entry


def first_error(done: Finished) -> str:
    """Return what was wrong, and check that it was said as errors are said."""
    (line,) = [line for line in done.err.splitlines() if line.startswith("procq: error: ")]
    assert "Traceback" not in done.err
    return line.removeprefix("procq: error: ")


# --- the table of exit codes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "flags", "code"),
    [
        ("good", [], 0),
        ("lazily", [], 0),
        ("retried", [], 0),
        ("reckless", ["--max-attempts=2"], 0),
        ("tree", [], 0),
        ("tree_lazily", ["--lookahead=1"], 0),
        ("handed_on_flaky", ["--max-attempts=2"], 0),
        ("handed_on", [], 1),
        ("handed_on", ["-x"], 1),
        ("sleeps_later", ["--timeout=200ms", "--kill-grace=100ms"], 1),
        ("spawns_wrongly", [], 1),
        ("unneeded", [], 0),
        ("bad", [], 1),
        ("many_bad", [], 1),
        ("crashes", [], 1),
        ("fail_first", ["-x"], 1),
        ("fail_first", ["-x", "--lookahead=1"], 1),
        ("many_bad", ["--max-failures=2"], 1),
        ("bad", ["--max-failures=50%"], 1),
        ("fail_beside", ["-x", "--on-failure=kill", "--kill-grace=100ms"], 1),
        ("good", ["--max-failures=1", "--on-failure=kill"], 0),
        ("good", ["--nope"], 2),
        ("no_such_entry", [], 3),
        ("long", ["--deadline=300ms", "--kill-grace=100ms"], 4),
        ("sleeps_later", ["--deadline=1s", "--kill-grace=100ms"], 4),
        ("empty", [], 5),
    ],
)
def test_the_exit_code_is_as_documented(run: Run, entry: str, flags: list[str], code: int) -> None:
    done = run(entry, *flags)

    assert done.code == code, done.err


@pytest.mark.parametrize(
    ("entry", "flags", "code"),
    [
        ("good", ["-j0"], 2),
        ("good", ["--timeout=5 minuts"], 2),
        ("good", ["-p", "day=1"], 2),
        ("with_parameters", [], 2),
        ("with_parameters", ["-p", "day=1", "-p", "width=wide"], 2),
        ("good", ["--results=no/such/folder/r.jsonl"], 2),
        ("cycle", [], 3),
        ("unknown", [], 3),
        ("unpicklable", [], 3),
        ("not_a_task", [], 3),
        ("raises", [], 3),
        ("empty_too", [], 5),
        ("empty", ["--allow-empty"], 0),
        ("empty_too", ["--allow-empty"], 0),
    ],
)
def test_the_exit_code_where_nothing_runs_is_as_documented(here: Run, entry: str, flags: list[str], code: int) -> None:
    done = here(entry, *flags)

    assert done.code == code, done.err


def test_a_missing_command_is_code_2(procq: Run) -> None:
    assert procq().code == 2
    assert procq("rnu").code == 2


def test_a_missing_file_is_code_3(procq: Run) -> None:
    assert procq("run", "no.py").code == 3


def test_a_file_that_does_not_load_is_code_3(write: Write, procq: Run) -> None:
    write("import no_such_module_at_all")

    assert procq("run", "jobs.py").code == 3


def test_help_and_version_are_code_0_and_go_to_stdout(procq: Run) -> None:
    for arguments in (["--help"], ["run", "--help"], ["version"], ["--version"]):
        done = procq(*arguments)
        assert (done.code, done.err) == (0, "")
        assert "procq" in done.out


def test_every_exit_code_is_in_the_help(procq: Run) -> None:
    text = procq("run", "--help").out

    for code in range(6):
        assert re.search(rf"^  {code}  ", text, re.MULTILINE)


# --- streams -------------------------------------------------------------------------------------


def test_a_run_that_goes_well_says_two_lines_and_nothing_on_stdout(run: Run) -> None:
    done = run("good")

    assert done.out == ""
    first, last = done.err.splitlines()
    assert first == "procq run jobs.py:good  2 workers"
    assert re.fullmatch(r"ok in \S+: 5 ok", last)


@pytest.mark.parametrize("entry", ["good", "bad", "many_bad", "crashes", "cycle", "no_such_entry"])
def test_pipes_get_whole_lines_without_escapes(run: Run, entry: str) -> None:
    done = run(entry, "--interval=1ms")

    assert not re.search(r"[\r\x1b]", done.out + done.err)
    assert done.err.endswith("\n")


def test_colour_can_be_forced_into_a_pipe(run: Run) -> None:
    assert "\x1b[32mok\x1b[0m in" in run("good", "--color=always").err
    assert "\x1b[" in run("good", FORCE_COLOR="1").err
    assert "\x1b[" not in run("good", FORCE_COLOR="1", NO_COLOR="1").err


def test_what_a_task_raises_cannot_steer_the_terminal(write: Write, procq: Run) -> None:
    write(r"""
        from procq import task
        @task
        def nasty(x): raise ValueError("\x1b[2J" + x + "\r\nprocq: error: forged")
        def jobs(): return [nasty.spec("\x1b[31m")]
    """)

    done = procq("run", "jobs.py")

    assert done.code == 1
    assert not re.search(r"[\r\x1b]", done.err)
    assert not re.search(r"^procq: error", done.err, re.MULTILINE)


def test_plain_progress_is_a_line_now_and_then(write: Write, procq: Run) -> None:
    write("""
        import time
        from procq import task
        @task
        def sleep(): time.sleep(0.2)
        def jobs(): return [sleep.spec()]
    """)

    done = procq("run", "jobs.py", "-j1", "--interval=20ms")

    assert re.search(r"^0/1 done  1 running  \d+ms$", done.err, re.MULTILINE)


def test_progress_can_be_off(run: Run) -> None:
    assert "done" not in run("good", "--progress=off", "--interval=1ms").err


def test_quiet_says_nothing_when_all_goes_well(run: Run) -> None:
    done = run("good", "-q")

    assert (done.out, done.err) == ("", "")


def test_quiet_still_names_what_failed(run: Run) -> None:
    lines = run("bad", "-q").err.splitlines()

    assert lines[0].startswith("FAILED in ")
    assert lines[1].startswith("  failed   fail(x='x')  ValueError: no luck with x")


# --- failures ------------------------------------------------------------------------------------


def test_the_closing_block_names_each_failed_task_its_error_and_its_line(run: Run) -> None:
    done = run("bad")

    line = JOBS.splitlines().index('    raise ValueError(f"no luck with {x}")') + 1
    closing = done.err[done.err.index("FAILED in") :].splitlines()
    assert re.fullmatch(r"FAILED in \S+: 1 ok, 1 failed, 3 skipped, 0 cancelled", closing[0])
    assert closing[1:] == [
        f"  failed   fail(x='x')  ValueError: no luck with x   jobs.py:{line}",
        "  skipped  3 tasks after fail(x='x')",
    ]


def test_E6_spawned_tasks_are_counted(run: Run) -> None:
    assert re.fullmatch(r"ok in \S+: 15 ok", run("tree").err.splitlines()[-1])


@pytest.mark.parametrize(("entry", "name"), [("handed_on", r"#\d+"), ("handed_on_named", "my/child")])
def test_E6_a_spawned_task_that_failed_is_named(run: Run, entry: str, name: str) -> None:
    done = run(entry)

    line = JOBS.splitlines().index('    raise ValueError(f"no luck with {x}")') + 1
    closing = done.err[done.err.index("FAILED in") :].splitlines()
    assert re.fullmatch(r"FAILED in \S+: 1 ok, 1 failed, 0 skipped, 0 cancelled", closing[0])
    assert re.fullmatch(
        rf"  failed   {name} fail\(\.\.\.\)  ValueError: no luck with child   jobs\.py:{line}", closing[1]
    )


def test_E6_spawned_tasks_have_their_lines_among_the_results(run: Run) -> None:
    done = run("tree", "--results=-")

    rows = [json.loads(line) for line in done.out.splitlines()]
    assert sorted(row["value"] for row in rows) == sorted([8, 4, 4, *[2] * 4, *[1] * 8])


@pytest.mark.parametrize(
    ("entry", "counts", "values"),
    [("replaced", "2 ok, 1 replaced", [None, "redone", 25]), ("replaced_later", "3 ok", [9, "redone", 25])],
)
def test_C4_a_task_that_another_has_replaced_is_no_failure_and_both_are_told(
    run: Run, entry: str, counts: str, values: list[object]
) -> None:
    done = run(entry, "--results=-")

    assert done.code == 0
    assert re.fullmatch(rf"ok in \S+: {counts}", done.err.splitlines()[-1])
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert sorted(map(str, (row.get("value") for row in rows))) == sorted(map(str, values))
    assert [row["id"] for row in rows if row.get("value") != "redone"] == ["x", "x"]
    assert [row["error"] for row in rows if row["status"] == "cancelled"] == [
        "TaskCancelled: task 'x' was replaced by another task under the same id"
    ] * (entry == "replaced")


def test_a_task_that_would_end_its_program_is_told_with_one_name(write: Write, procq: Run) -> None:
    write(
        "import sys\nfrom procq import task\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "def jobs(): return [task(sys.exit).spec(3), task(interrupted).spec()]\n"
    )

    done = procq("run", "jobs.py", "-q")

    assert "  SystemExit: 3 " in done.err
    assert "  KeyboardInterrupt " in done.err


def test_a_failure_is_shown_as_it_happens_with_its_traceback(run: Run) -> None:
    lines = run("bad").err.splitlines()

    line = JOBS.splitlines().index('    raise ValueError(f"no luck with {x}")') + 1
    shown = lines.index(f"x failed  fail(x='x')  attempt 1/1  ValueError: no luck with x   jobs.py:{line}")
    assert lines[shown + 1] == "    Traceback (most recent call last):"
    assert "procq/engine" not in "".join(lines[shown + 2 : shown + 4]).replace("procq_jobs", "")


def test_one_traceback_is_enough_for_failures_that_look_alike(run: Run) -> None:
    assert run("many_bad").err.count("Traceback") == 1
    assert run("many_bad", "-v").err.count("Traceback") > 1


def test_all_attempts_are_told(run: Run) -> None:
    assert "fail(x='x')  2 attempts  ValueError" in run("bad", "--max-attempts=2").err
    assert re.search(r"ok in \S+: 2 ok \(1 after retries\)", run("retried").err)


def test_a_crash_says_how_and_where(run: Run) -> None:
    done = run("crashes")

    line = JOBS.splitlines().index("def crash():")
    assert re.search(rf"  failed   crash\(\)  WorkerCrashed: .*3.*   jobs\.py:{line}$", done.err, re.MULTILINE)


def test_D10_a_worker_that_holds_too_much_ends_its_task(run: Run) -> None:
    done = run("hungry", "--max-memory-per-worker=100MB")

    assert done.code == 1
    assert "MemoryLimitExceeded: " in done.err
    assert "more than max_memory_per_worker=100 MB" in done.err


@pytest.mark.parametrize(
    ("flag", "most"),
    [("--max-tasks-per-worker=2", 2), ("--recycle-memory=100MB", 1), ("--recycle-memory=10GB", 4)],
)
def test_D10_workers_are_replaced_when_the_flags_say_so(run: Run, flag: str, most: int) -> None:
    done = run("pids", "-j1", "--results=-", flag, "--min-free-memory=1MB")

    used = [json.loads(line)["value"] for line in done.out.splitlines()]
    assert [used.count(pid) for pid in dict.fromkeys(used)] == [most] * (4 // most)


def test_a_timeout_from_the_command_line_is_for_tasks_that_do_not_say(run: Run) -> None:
    done = run("long", "-x", "--timeout=200ms", "--kill-grace=100ms")

    assert done.code == 1
    assert "AttemptTimeout" in done.err


def test_x_stops_at_the_first_failure(run: Run) -> None:
    done = run("fail_first", "-x")

    assert re.search(r"^x failed .*^-x: (finishing|stopping; nothing is running)", done.err, re.MULTILINE | re.DOTALL)
    counts = re.search(r"FAILED in \S+: (\d+) ok, 1 failed, 0 skipped, (\d+) cancelled", done.err)
    assert counts is not None, done.err
    assert int(counts[1]) < 1000


def test_G6_after_the_failure_that_stops_it_nothing_starts(run: Run) -> None:
    done = run("fail_first", "-x", "-j1")

    assert re.search(r"^-x: stopping; nothing is running$", done.err, re.MULTILINE)
    assert ": 0 ok, 1 failed, 0 skipped, " in done.err


@pytest.mark.parametrize(
    ("flags", "failed", "said"),
    [
        (["--max-failures=3"], 3, "--max-failures=3: stopping; nothing is running"),
        (["--max-failures", "1"], 1, "--max-failures=1: stopping; nothing is running"),
        (["--max-failures=5%"], 20, "--max-failures=5%: stopping; nothing is running"),
        (["--max-failures", "4", "--on-failure", "kill"], 4, "--max-failures=4: stopping; nothing is running"),
    ],
)
def test_G6_so_many_failures_stop_a_run_and_no_more(run: Run, flags: list[str], failed: int, said: str) -> None:
    done = run("many_bad", "-j1", *flags)

    lines = done.err.splitlines()
    assert said in lines
    assert f": 0 ok, {failed} failed, 0 skipped, " in done.err
    reason = re.escape(f"stopped by {said.partition(':')[0]}")
    assert re.fullmatch(rf"  cancelled  \d+ tasks: {reason}", lines[-1])


def test_G6_what_runs_beside_the_failure_may_be_stopped(run: Run) -> None:
    done = run("fail_beside", "-x", "--on-failure=kill", "--kill-grace=100ms")

    assert "-x: stopping 1 running task" in done.err.splitlines()
    assert ": 0 ok, 1 failed, 0 skipped, 2 cancelled" in done.err
    assert sorted(done.err.splitlines()[-2:]) == [
        "  cancelled  begin_and_sleep(seconds=60): stopped by -x",
        "  cancelled  square(x=1): stopped by -x",
    ]


def test_G6_the_mark_may_carry_the_limit_and_the_flags_win(run: Run) -> None:
    done = run("carried_limit", "-j1")

    assert "max_failures: stopping; nothing is running" in done.err.splitlines()
    assert ": 0 ok, 2 failed, 0 skipped, 7 cancelled" in done.err
    assert ", 9 failed, " in run("carried_limit", "-k").err


def test_going_on_after_failures_is_the_default(run: Run) -> None:
    assert ", 300 failed," in run("many_bad").err
    assert ", 300 failed," in run("many_bad", "-k").err


def test_the_deadline_names_itself(run: Run) -> None:
    done = run("long", "--deadline=300ms", "--kill-grace=100ms")

    assert "deadline reached: stopping 2 running tasks" in done.err
    assert re.search(
        r"^stopped at the deadline after \S+: 0 ok, 0 failed, 0 skipped, 4 cancelled\n"
        r"  cancelled  4 tasks: the run's deadline had passed$",
        done.err,
        re.MULTILINE,
    )


def test_G6_tasks_that_the_deadline_ended_are_told_alike(run: Run) -> None:
    """Those that it stopped as well as those that had not begun."""
    done = run("long", "--deadline=1s", "--kill-grace=100ms", "--results=-")

    assert "deadline reached: stopping 2 running tasks" in done.err
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert {row["error"].replace(row["id"], "ID") for row in rows} == {
        "TaskCancelled: task 'ID' was cut off: the run's deadline has passed"
    }
    assert len(rows) == 4


def test_C3_a_task_that_expired_says_so(write: Write, procq: Run) -> None:
    write("""
        from procq import task

        @task(expires=0, delay=1)
        def late(x): ...

        def jobs(): return [late.using(id="report").spec(1)]
    """)

    done = procq("run", "jobs.py", "-j1")

    assert done.err.splitlines()[-1] == "  cancelled  report late(x=1): it had not started before its `expires`"


def test_G6_the_deadline_ends_a_run_whose_producer_blocks(write: Write, procq: Run) -> None:
    """No task ends then that could tell anybody."""
    write("""
        import threading
        from procq import task

        @task
        def square(x): return x * x

        def jobs():
            yield square.spec(1)
            threading.Event().wait()
    """)

    done = procq("run", "jobs.py", "--deadline=1s")

    assert done.code == 4
    assert re.search(r"^stopped at the deadline after \S+: 1 ok$", done.err, re.MULTILINE), done.err


def test_a_deadline_that_was_not_needed_changes_nothing(run: Run) -> None:
    assert run("good", "--deadline=1h").code == 0


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "error", "hint"),
    [
        ("nightly", "jobs.py has no function called 'nightly'", "candidates `good`, `retried`"),
        ("god", "jobs.py has no function called 'god'", "did you mean `good`? procq run jobs.py:good"),
        ("square", "square in jobs.py is a task function, not an entry", "square.spec(...)"),
        ("not_a_task", "not_a_task() returned int (item 2), expected a TaskSpec", "my_task.spec(x), not my_task(x)"),
        ("yields_no_task", "yields_no_task() yielded int (item 2), expected a TaskSpec", "my_task.spec(x)"),
        (
            "the_function",
            "the_function() returned the task function square (item 1), expected a TaskSpec",
            "square.spec",
        ),
        ("nothing", "nothing() returned None, expected tasks", "yield my_task.spec(x)"),
        ("one", "one() returned one TaskSpec, expected a list", "return [spec]"),
        ("raises", "raises() failed: KeyError: 'shop'", ""),
        ("raises_late", "raises_late() failed: KeyError: 'shop'", ""),
        ("leaves", "leaves() failed: SystemExit: 0", ""),
        ("wrong_arguments", "square() ", ""),
        ("wrong_option", "max_attempts=0: must be at least 1", ""),
        ("wrong_duration", "timeout='5 minuts': can't read this duration", ""),
        ("cycle", "dependency cycle: a -> b -> a", "remove one of these dependencies"),
        ("unknown", "report needs 'cleen/ber', which no task has; the closest id is 'clean/ber'", ""),
        ("unknown_late", "report needs 'nobody', which no task has", ""),
        ("twice", "id 'same' is already used", ""),
        ("handler", "no handler for type 'resize'", ""),
        ("carried_badly", "@procq.jobs of carried_badly(): ", "it takes the parameters of procq.Queue"),
        ("carried_shapeless", "@procq.jobs of carried_shapeless(): limits=['sleep']: expected numbers by type", ""),
        ("carried_wrongly", "@procq.jobs of carried_wrongly(): limits['sleep']=0", ""),
    ],
)
def test_a_mistake_in_the_file_is_one_clear_message(here: Run, entry: str, error: str, hint: str) -> None:
    done = here(entry)

    assert done.code == 3
    assert first_error(done).startswith(error)
    assert hint in done.err


@pytest.mark.parametrize("entry", ["raises", "raises_late", "wrong_arguments", "wrong_option"])
def test_a_mistake_in_the_entry_is_told_with_its_line(here: Run, entry: str) -> None:
    lines = JOBS.splitlines()
    there = next(number for number, line in enumerate(lines) if line.startswith(f"def {entry}()"))
    line = there + 3 if entry == "raises_late" else there + 1

    assert f"\n  jobs.py:{line}  " in here(entry).err


@pytest.mark.parametrize("entry", ["not_a_task", "cycle", "unknown", "unpicklable", "twice", "handler"])
def test_nothing_is_started_when_the_file_is_refused(here: Run, entry: str) -> None:
    done = here(entry)

    assert done.err.startswith("procq: error: ")


def test_a_payload_is_refused_with_its_path(here: Run) -> None:
    error = first_error(here("unpicklable"))

    assert "argument 'x' of square" in error
    assert "generator" in error


def test_what_was_yielded_before_a_mistake_is_finished_and_told(run: Run) -> None:
    done = run("raises_late")

    counts = re.search(r"^FAILED in \S+: (?:1 ok|0 ok, 0 failed, 0 skipped, (1) cancelled)$", done.err, re.MULTILINE)
    assert counts is not None, done.err
    assert done.err.count("  cancelled  square(x=1): the jobs file failed") == int(counts[1] or 0)
    assert done.err.splitlines()[-2].startswith("procq: error: raises_late() failed")


def test_a_payload_that_cannot_be_pickled_after_tasks_ran_is_a_failure(write: Write, procq: Run) -> None:
    write("""
        from procq import task
        @task
        def f(x): ...
        def jobs():
            yield f.spec(1)
            yield f.spec(x for x in ())
    """)

    assert procq("run", "jobs.py").code == 1


def test_main_reached_while_loading_is_told(write: Write, procq: Run) -> None:
    write("from procq import main\ndef jobs(): return []\nmain(jobs)\n")

    done = procq("run", "jobs.py")

    assert done.code == 3
    assert first_error(done) == "procq.main() was reached while jobs.py was being loaded"
    assert 'hint: put it under if __name__ == "__main__"' in done.err


def test_windows_is_told_at_once(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    done = here("good")

    assert done.code == 2
    assert first_error(done) == "procq does not run on Windows yet (Linux; macOS best effort)"
    assert "hint: use WSL" in done.err


def test_missing_parameters_are_told(here: Run) -> None:
    done = here("with_parameters")

    assert first_error(done) == "with_parameters needs -p day=STR"
    assert "width=INT (default 3)" in done.err


# --- queue parameters, modules, results ----------------------------------------------------------


def test_the_mark_carries_queue_parameters_and_flags_win(run: Run, procq: Run) -> None:
    assert "  1 worker\n" in procq("run", "jobs.py:carried").err
    assert "  2 workers\n" in run("carried").err


def test_a_module_is_run_by_its_name(write: Write, procq: Run) -> None:
    write("from procq import task\n@task\ndef f(): ...\ndef nightly(): return [f.spec()]\n", "shop/etl.py")

    done = procq("run", "-m", "shop.etl:nightly", "-j1")

    assert done.code == 0, done.err
    assert done.err.startswith("procq run -m shop.etl:nightly  1 worker\n")


def test_a_module_beside_the_jobs_file_is_found_by_workers(write: Write, procq: Run, tmp_path: Path) -> None:
    write("def double(x): return 2 * x", "sub/helper.py")
    write(
        "import helper\nfrom procq import task\n@task\ndef f(x): return helper.double(x)\n"
        "def jobs(): return [f.spec(3)]\n",
        "sub/jobs.py",
    )

    done = procq("run", "sub/jobs.py", "--results=out.jsonl")

    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out.jsonl").read_text())["value"] == 6


def test_a_lock_in_the_module_does_no_harm(write: Write, procq: Run) -> None:
    """By value a decorated function would drag its module's globals along."""
    write("""
        import threading
        from procq import task
        lock = threading.Lock()
        @task
        def f():
            with lock: return 1
        def jobs(): return [f.spec()]
    """)

    assert procq("run", "jobs.py").code == 0


def test_results_are_one_line_a_task(run: Run, tmp_path: Path) -> None:
    run("bad", "--results=out.jsonl")

    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(row["status"] for row in rows) == ["cancelled", "cancelled", "cancelled", "failed", "succeeded"]
    assert [row["value"] for row in rows if row["status"] == "succeeded"] == [1]
    assert [row["error"] for row in rows if row["status"] == "failed"] == ["ValueError: no luck with x"]


def test_results_on_stdout_are_the_only_thing_there(run: Run) -> None:
    done = run("lazily", "--results=-")

    assert sorted(json.loads(line)["value"] for line in done.out.splitlines()) == sorted(x * x for x in range(50))


def test_C4_ids_are_the_same_in_every_run(run: Run) -> None:
    ids = [
        sorted(json.loads(line)["id"] for line in run("lazily", "--results=-", PYTHONHASHSEED=seed).out.splitlines())
        for seed in ("1", "2")
    ]

    assert ids[0] == ids[1]
    assert all(re.fullmatch(r"square-[0-9a-f]{16}", task_id) for task_id in ids[0])


# --- flags for single types, and what bounds the whole -------------------------------------------


def test_an_option_is_set_for_all_tasks_of_a_type(run: Run) -> None:
    assert run("reckless", "--set", "careless.max_attempts=2").code == 0
    done = run("bad", "--set", "fail.max_attempts=3", "--set", "fail.backoff=0")
    assert "attempt 3/3  ValueError" in done.err


def test_E6_an_option_is_set_for_spawned_tasks_too(write: Write, procq: Run) -> None:
    write("""
        from procq import Spawn, task

        @task(max_attempts=1, backoff=0)
        def leaf(x): raise ValueError(x)

        @task
        def root(): return Spawn([leaf.spec(1)])

        def jobs(): return [root.spec()]
    """)

    assert "attempt 3/3  ValueError" in procq("run", "jobs.py", "-j1", "--set", "leaf.max_attempts=3").err


def test_E4_an_option_that_lets_a_spawned_task_wait_for_nothing_is_refused(write: Write, procq: Run) -> None:
    """It ran all the same."""
    write("""
        from procq import Spawn, task

        @task
        def leaf(x): return x

        @task
        def root(): return Spawn([leaf.spec(1)])

        def jobs(): return [root.spec()]
    """)

    done = procq("run", "jobs.py", "-j1", "--set", "leaf.run_if=failure")

    assert done.code == 1
    assert "run_if='failure' and depends on nothing that could fail" in done.err


def test_a_type_that_no_task_has_is_refused_before_anything_starts(here: Run) -> None:
    done = here("good", "--set", "sqare.timeout=5s")

    assert done.code == 2
    assert first_error(done) == "--set sqare.timeout=5s: no task has the type 'sqare'"
    assert "hint: did you mean `square`? types are " in done.err


def test_a_type_that_no_task_of_a_generator_had_is_told_at_both_ends(run: Run) -> None:
    done = run("lazily", "--limit", "sqare=1")

    assert done.code == 2
    assert done.err.startswith("warning: --limit sqare=1: no task has the type 'sqare' so far; did you mean `square`?")
    assert first_error(done) == "--limit sqare=1: no task has the type 'sqare'"


def test_B4_a_limit_holds_for_its_type(write: Write, procq: Run) -> None:
    write("""
        import time
        from pathlib import Path
        from procq import task

        @task
        def alone(x):
            lock = Path(__file__).parent / "lock"
            lock.touch(exist_ok=False)
            time.sleep(0.02)
            lock.unlink()

        def jobs(): return [alone.spec(x) for x in range(10)]
    """)

    assert procq("run", "jobs.py", "-j2", "--limit", "alone=1").code == 0


def test_B4_limits_of_the_mark_stay_but_for_those_given(write: Write, procq: Run) -> None:
    write("""
        import procq

        @procq.task
        def one(x): ...
        @procq.task
        def other(x): ...

        @procq.jobs(limits={"one": 0, "other": 1})
        def jobs(): return [one.spec(1)]
    """)

    assert procq("run", "jobs.py", "-j1", "--limit", "one=1").code == 0
    assert "limits['one']=0" in procq("run", "jobs.py", "-j1", "--limit", "other=2").err


def test_B4_limits_of_the_mark_that_are_none_are_refused_beside_the_flag_too(here: Run) -> None:
    done = here("carried_shapeless", "--limit", "square=1")

    assert done.code == 3
    assert first_error(done).startswith("@procq.jobs of carried_shapeless(): limits=['sleep']: expected numbers")


def test_C6_a_bound_of_the_mark_is_refused_beside_a_lookahead_too(here: Run) -> None:
    done = here("carried_pending", "--lookahead", "5")

    assert done.code == 3
    assert first_error(done).startswith("@procq.jobs of carried_pending(): max_pending=")


@pytest.mark.parametrize(
    ("flag", "what"),
    [
        ("square.group=heavy", "there is no group 'heavy'; this run has 'default'\n  hint: --group heavy=N gives it"),
        ("square.cpus=3", "such a task asks for 3 cpus, of which this queue has 2, so it could never start\n  hint: "),
        ("square.memory=900TB", "such a task asks for 900.0TB of memory, of which this queue has "),
    ],
)
@pytest.mark.parametrize("entry", ["good", "lazily"])
def test_B9_a_flag_that_lets_no_task_start_is_refused_before_anything_starts(
    here: Run, tmp_path: Path, entry: str, flag: str, what: str
) -> None:
    (tmp_path / "out.jsonl").write_text("the results of the run before")
    done = here(entry, "--set", flag, "--results=out.jsonl")

    assert done.code == 2
    assert done.err.startswith(f"procq: error: --set {flag}: {what}")
    assert (tmp_path / "out.jsonl").read_text() == "the results of the run before"


@pytest.mark.parametrize(("policy", "order"), [("strict", "hhhhl"), ("aging", "hhhhl"), ("fair", "hlhhh")])
def test_B6_the_policy_says_who_is_next(write: Write, procq: Run, policy: str, order: str) -> None:
    write("""
        from pathlib import Path
        from procq import Priority, task

        @task
        def note(letter):
            with (Path(__file__).parent / "log").open("a") as log:
                log.write(letter)

        def jobs():
            return [note.using(priority=Priority.NORMAL).spec("l")] + [
                note.using(priority=Priority.HIGH, id=f"h{x}").spec("h") for x in range(4)
            ]
    """)

    assert procq("run", "jobs.py", "-j1", "--policy", policy).code == 0
    log = write("", "other.py").parent / "log"
    assert log.read_text() == order


@pytest.mark.parametrize(
    ("mark", "flags"),
    [
        ("", ["--max-pending=1"]),
        ("", ["--max-pending=1", "--lookahead=5"]),
        ("", ["--lookahead=1"]),
        ("max_pending=1", []),
        ("max_pending=1", ["--lookahead=5"]),
    ],
)
def test_C6_at_most_so_many_tasks_wait(write: Write, procq: Run, mark: str, flags: list[str]) -> None:
    text = """
        import procq
        from pathlib import Path
        from procq import task

        HERE = Path(__file__).parent

        @task
        def check(x):
            (HERE / f"done-{x}").touch()

        @procq.jobs(MARK)
        def jobs():
            for x in range(20):
                # One runs, one waits, and this one is being made.
                done = len(list(HERE.glob("done-*")))
                assert x - done <= 3, f"{x} with {done} done"
                yield check.spec(x)
    """
    write(text.replace("MARK", mark))

    done = procq("run", "jobs.py", "-j1", *flags)

    assert done.code == 0, done.err


def test_a_small_lookahead_is_enough(run: Run) -> None:
    assert "50 ok" in run("lazily", "--lookahead=1").err


# --- scripts -------------------------------------------------------------------------------------

SCRIPT = """
import sys
from procq import main, task

@task
def square(x):
    return x * x

def jobs(n: int = 3):
    return [square.spec(x) for x in range(n)]

if __name__ == "__main__":
    main(jobs)
"""


def test_a_script_has_the_flags_of_run(write: Write, tmp_path: Path) -> None:
    write(SCRIPT)

    done = python(tmp_path, "jobs.py", "-j2", "-p", "n=4", "--results=-")

    assert done.code == 0, done.err
    assert sorted(json.loads(line)["value"] for line in done.out.splitlines()) == [0, 1, 4, 9]
    assert done.err.startswith("python jobs.py  n=4  2 workers\n")


def test_C4_a_script_gives_the_same_ids_as_run(write: Write, tmp_path: Path, procq: Run) -> None:
    write(SCRIPT)

    ways = [python(tmp_path, "jobs.py", "--results=-"), procq("run", "jobs.py", "--results=-")]

    assert sorted(ways[0].out.splitlines()) == sorted(ways[1].out.splitlines()) != []


@pytest.mark.parametrize(("flags", "code"), [(["--nope"], 2), (["-p", "n=x"], 2), (["-p", "n=0"], 5)])
def test_a_script_has_the_exit_codes_of_run(write: Write, tmp_path: Path, flags: list[str], code: int) -> None:
    write(SCRIPT)

    assert python(tmp_path, "jobs.py", *flags).code == code


def test_a_script_may_use_a_lambda(write: Write, tmp_path: Path) -> None:
    write(SCRIPT.replace("main(jobs)", "main(lambda: jobs(2))"))

    done = python(tmp_path, "jobs.py", "--results=-")

    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 2


def test_a_script_without_a_guard_is_told_to_use_one(write: Write, tmp_path: Path) -> None:
    write(SCRIPT.replace('if __name__ == "__main__":\n    main', "main"))

    done = python(tmp_path, "jobs.py")

    assert done.code == 3
    assert first_error(done) == "procq.main() was reached while jobs.py was being loaded"


def test_main_inside_a_worker_is_refused(write: Write, procq: Run) -> None:
    write("""
        from procq import main, task
        @task
        def f():
            main(lambda: [])
        def jobs(): return [f.spec()]
    """)

    done = procq("run", "jobs.py")

    assert done.code == 1
    assert "JobsFileError: procq.main() was reached inside a worker" in done.err


# --- nothing else --------------------------------------------------------------------------------


def test_results_that_cannot_be_written_are_told_at_once_and_fail_the_run(run: Run) -> None:
    done = run("good", "--results", "/dev/full")

    assert done.code == 1
    assert (
        done.err.count("procq: error: --results stopped: [Errno 28] No space left on device; results are missing") == 1
    )
    assert re.search(r"^FAILED in \S+: 5 ok$", done.err, re.MULTILINE)


@pytest.mark.parametrize("entry", ["good", "lazily"])
def test_an_option_by_which_no_task_could_start_is_refused_with_its_flag(run: Run, entry: str) -> None:
    done = run(entry, "--set", "square.run_if=failure")

    assert done.code == 2
    assert done.err.startswith("procq: error: --set square.run_if=failure: square(x=0) depends on nothing that could")


@pytest.mark.parametrize("entry", ["good", "lazily"])
def test_a_deadline_before_the_first_task_says_what_became_of_them(run: Run, entry: str) -> None:
    done = run(entry, "--deadline", "0")

    assert done.code == 4
    assert "  not begun  all tasks of the jobs file: the deadline came before they were accepted\n" in done.err


def test_K2_a_run_leaves_no_file_behind_but_its_state(run: Run, tmp_path: Path) -> None:
    run("good", "--no-state")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.py"]

    run("good")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".procq", "jobs.py"]


def test_a_reader_that_leaves_does_not_end_the_run(write: Write, tmp_path: Path) -> None:
    write(JOBS)
    command = "{ python -m procq run jobs.py:lazily -j2 --results=-; echo code $? >&2; } | head -n 1"

    done = python(tmp_path, "-c", SHELL, command)

    assert "code 0" in done.err
    assert "ok in" in done.err
    assert "Traceback" not in done.err


#: Runs a shell command with `python` being this interpreter, and SIGPIPE as a shell has it.
SHELL = f"""
import os, signal, subprocess, sys
signal.signal(signal.{signal.SIGPIPE.name}, signal.SIG_DFL)
folder = os.path.dirname(sys.executable)
os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]
sys.exit(subprocess.run(["bash", "-c", sys.argv[1]]).returncode)
"""
