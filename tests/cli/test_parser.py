"""Flags mean what the documents say, and a wrong one is told with what would be right."""

import dataclasses
import inspect
from datetime import datetime

import pytest

from procq import Queue
from procq.cli import elsewhere
from procq.cli.exits import CommandLineError
from procq.cli.parser import COMMANDS, check_command, run_parser
from procq.cli.settings import AT_FIRST, KEEP_GOING, RunSettings, Workers, deadline_s, settings_from
from procq.spec import OptionArguments


def settings(*flags: str) -> RunSettings:
    """Return the settings that flags stand for."""
    return settings_from(run_parser().parse_args(["jobs.py", *flags]))


def refusal(*flags: str) -> CommandLineError:
    """Give wrong flags, and return the error."""
    with pytest.raises(CommandLineError) as caught:
        settings(*flags)
    return caught.value


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ([], "workers", Workers()),
        (["-j", "3"], "workers", Workers(count=3)),
        (["--workers=50%"], "workers", Workers(percent=50)),
        (["-j", "auto"], "workers", Workers()),
        (["-p", "a=1", "-p", "b=x=y"], "params", ("a=1", "b=x=y")),
        ([], "params_file", None),
        (["--params-file", "p.toml"], "params_file", "p.toml"),
        ([], "first", None),
        (["--first", "10"], "first", 10),
        ([], "dry_run", False),
        (["-n"], "dry_run", True),
        (["--dry-run"], "dry_run", True),
        ([], "nice", None),
        (["--nice", "19"], "nice", 19),
        ([], "max_attempts", None),
        (["--max-attempts", "3"], "max_attempts", 3),
        ([], "timeout_s", None),
        (["--timeout", "1m30s"], "timeout_s", 90.0),
        (["--deadline", "2h"], "deadline_s", 7200.0),
        ([], "max_failures", None),
        (["-x"], "max_failures", AT_FIRST),
        (["--max-failures", "1"], "max_failures", 1),
        (["-k"], "max_failures", KEEP_GOING),
        (["--max-failures", "3"], "max_failures", 3),
        (["--max-failures=2.5%"], "max_failures", "2.5%"),
        ([], "on_failure", None),
        (["--on-failure", "kill"], "on_failure", "kill"),
        ([], "stop_timeout_s", None),
        (["--stop-timeout", "0"], "stop_timeout_s", 0.0),
        ([], "kill_grace_s", None),
        (["--kill-grace", "250ms"], "kill_grace_s", 0.25),
        ([], "max_tasks_per_worker", None),
        (["--max-tasks-per-worker", "3"], "max_tasks_per_worker", 3),
        ([], "max_memory_per_worker", None),
        (["--max-memory-per-worker", "4GB"], "max_memory_per_worker", 4 * 10**9),
        ([], "groups", ()),
        (["--group", "heavy=2", "--group=light=6"], "groups", (("heavy", 2), ("light", 6))),
        ([], "recycle_memory", None),
        (["--recycle-memory", "512MiB"], "recycle_memory", 2**29),
        ([], "min_free_memory", None),
        (["--min-free-memory=1000"], "min_free_memory", 1000),
        ([], "verbosity", 0),
        (["-q"], "verbosity", -1),
        (["-v"], "verbosity", 1),
        ([], "color", "auto"),
        (["--color", "never"], "color", "never"),
        (["--progress", "off"], "progress", "off"),
        (["--interval", "5s"], "interval_s", 5.0),
        (["--allow-empty"], "allow_empty", True),
        (["--lookahead", "10"], "lookahead", 10),
        ([], "limits", ()),
        (["--limit", "fetch=4", "--limit=Photo.shrink=1"], "limits", (("fetch", 4), ("Photo.shrink", 1))),
        (["--max-pending", "10"], "max_pending", 10),
        ([], "policy", None),
        (["--policy", "aging"], "policy", "aging"),
        (["--set", "a.cpus=2", "--set=b.timeout=5s"], "sets", ("a.cpus=2", "b.timeout=5s")),
        (["--results", "out.jsonl"], "results", "out.jsonl"),
    ],
)
def test_a_flag_sets_its_setting(flags: list[str], name: str, value: object) -> None:
    assert getattr(settings(*flags), name) == value


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["-j", "0"], "-j 0: expected a number of at least 1, a share like 50%, or auto"),
        (["-j", "many"], "-j many: expected a number of at least 1, a share like 50%, or auto"),
        (["-j", "0%"], "-j 0%: expected a number of at least 1, a share like 50%, or auto"),
        (["--nice", "0"], "--nice=0: must be a whole number from 1 to 19"),
        (["--nice", "20"], "--nice=20: must be a whole number from 1 to 19"),
        (["--first", "0"], "--first=0: must be a whole number of at least 1"),
        (["--max-attempts", "0"], "--max-attempts=0: must be a whole number of at least 1"),
        (["--lookahead", "-3"], "--lookahead=-3: must be a whole number of at least 1"),
        (["--timeout", "5 minuts"], '--timeout="5 minuts": can\'t read this duration'),
        (["--timeout", "0"], "--timeout=0: must be longer than 0"),
        (["--kill-grace", "soon"], '--kill-grace="soon": can\'t read this duration'),
        (["--max-tasks-per-worker", "0"], "--max-tasks-per-worker=0: must be a whole number of at least 1"),
        (["--max-memory-per-worker", "much"], '--max-memory-per-worker="much": can\'t read this size'),
        (["--group", "heavy"], "--group heavy: expected NAME=N, such as heavy=2"),
        (["--group", "=2"], "--group =2: expected NAME=N, such as heavy=2"),
        (["-j2", "--group", "default=3"], "--group default=3: --workers says how many workers that group has"),
        (["--group", "heavy=0"], "--group heavy=0: must be a whole number of at least 1"),
        (["--group", "heavy=many"], "--group heavy=many: must be a whole number of at least 1"),
        (["--recycle-memory", "0"], '--recycle-memory="0": can\'t read this size'),
        (["--min-free-memory", "-1GB"], "--min-free-memory: expected one argument"),
        (["--deadline", "25:00"], '--deadline="25:00": neither a duration nor a time of day'),
        (["-x", "-k"], "-k: not allowed with argument -x"),
        (["-x", "--max-failures=3"], "--max-failures: not allowed with argument -x"),
        (["--max-failures=3", "-k"], "-k: not allowed with argument --max-failures"),
        (["--max-failures=0"], "--max-failures=0: expected a number of at least 1, or a share of at most 100% like 5%"),
        (
            ["--max-failures=1%%"],
            "--max-failures=1%%: expected a number of at least 1, or a share of at most 100% like 5%",
        ),
        (
            ["--max-failures=200%"],
            "--max-failures=200%: expected a number of at least 1, or a share of at most 100% like 5%",
        ),
        (["-p"], "-p: expected one argument"),
        (["--group=a=1", "--group=b=1", "--group=a=2"], "--group a is given twice: a=1 and a=2"),
        (["--limit", "fetch=4", "--limit", "fetch=4"], "--limit fetch is given twice: fetch=4 and fetch=4"),
        (["--limit", "fetch"], "--limit fetch: expected TYPE=N"),
        (["--limit", "fetch=0"], "--limit fetch=0: must be a whole number of at least 1"),
        (["--max-pending", "0"], "--max-pending=0: must be a whole number of at least 1"),
        (["--nope"], "unknown argument: --nope"),
        (["more.py"], "unknown argument: more.py"),
        (["--time", "3"], "unknown argument: --time"),
    ],
)
def test_a_wrong_flag_is_named_with_its_value(flags: list[str], what: str) -> None:
    assert refusal(*flags).what == what


def test_a_misspelt_flag_is_told_the_closest() -> None:
    assert refusal("--timeot=3").hint.startswith("did you mean `--timeout`?")


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--max_failures=3", "did you mean `--max-failures`?"),
        ("--limits", "did you mean `--limit`?"),
        ("--groups", "did you mean `--group`?"),
        ("--hepl", "did you mean `--help`?"),
        ("--retries=3", "did you mean `--max-attempts`? it counts the first try too;"),
        (
            "--priority=high",
            "priority is an option of tasks: --set TYPE.priority=VALUE, or my_task.using(priority=...);",
        ),
        ("--retry-on", "retry_on is an option of tasks: --set TYPE.retry_on=VALUE, or my_task.using(retry_on=...);"),
        ("--prioritie", "priority is an option of tasks: --set TYPE.priority=VALUE, "),
        ("--backoff", "backoff is an option of tasks: --set TYPE.backoff=VALUE, "),
        ("--id=a", "id is one task's own: my_task.using(id=...);"),
        ("--capture", "did you mean `--output`?"),
        ("--max-pending-bytes=1GB", "max_pending_bytes has no flag: @procq.jobs(max_pending_bytes=...);"),
        ("--start-timeuot", "start_timeout has no flag: @procq.jobs(start_timeout=...);"),
    ],
)
def test_what_has_no_flag_is_told_its_place(flag: str, hint: str) -> None:
    error = refusal(flag)

    assert error.what == f"unknown argument: {flag}"
    assert error.hint.startswith(hint)
    assert error.hint.endswith(" all flags: procq run --help")


def test_every_parameter_of_a_queue_has_a_flag_or_is_known_to_have_none() -> None:
    by_flag = {one.metadata["queue"] for one in dataclasses.fields(RunSettings)} | elsewhere._READ_APART.keys()

    assert not by_flag & elsewhere.WITHOUT_FLAG
    assert (by_flag | elsewhere.WITHOUT_FLAG) - {""} == inspect.signature(Queue).parameters.keys()


def test_a_flag_that_is_read_apart_is_one() -> None:
    flags = run_parser()._option_string_actions

    assert {text.split()[0] for text in elsewhere._READ_APART.values()} <= flags.keys()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["-x"], "-x"),
        (["--max-failures", "1"], "--max-failures=1"),
        (["--max-failures=5%"], "--max-failures=5%"),
        ([], "max_failures"),
    ],
)
def test_the_bound_on_failures_is_named_as_it_was_given(flags: list[str], named: str) -> None:
    assert settings(*flags).failure_limit() == named


def test_a_script_needs_no_target() -> None:
    parsed = run_parser("python jobs.py", with_target=False).parse_args(["-j", "2"])

    assert settings_from(parsed).workers == Workers(count=2)


@pytest.mark.parametrize(
    ("workers", "usable", "number"),
    [
        (Workers(), 8, 8),
        (Workers(count=20), 8, 20),
        (Workers(percent=50), 8, 4),
        (Workers(percent=150), 8, 12),
        (Workers(percent=1), 8, 1),
    ],
)
def test_workers_are_a_number_or_a_share_of_the_cpus(workers: Workers, usable: int, number: int) -> None:
    assert workers.resolve(usable) == number


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("12", 12.0), ("06:30", 1800.0), ("6:30", 1800.0), ("06:00", 86400.0), ("05:59", 86340.0)],
)
def test_a_deadline_is_a_duration_or_the_next_time_the_clock_shows_it(text: str, seconds: float) -> None:
    six = datetime.fromisoformat("2026-07-15T06:00:00").astimezone()

    assert deadline_s(text, six) == seconds


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("rnu", "did you mean `procq run`?"),
        ("vershon", "did you mean `procq version`?"),
        ("jobs.py", "did you mean `procq run jobs.py`?"),
        ("etl.py:nightly", "did you mean `procq run etl.py:nightly`?"),
        ("zzz", f"commands are {', '.join(COMMANDS)}"),
    ],
)
def test_a_misspelt_command_is_told_the_closest(command: str, hint: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        check_command(command)

    assert (caught.value.what, caught.value.hint) == (f"no such command: {command}", hint)


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_known_command_is_none_of_that(command: str) -> None:
    check_command(command)


def test_K1_what_a_queue_or_a_task_is_given_is_what_the_flags_said() -> None:
    given = settings("--kill-grace", "250ms", "--recycle-memory", "1GB", "--timeout", "2s", "-x", "-j", "3")

    assert given.for_queue() == {"kill_grace": 0.25, "recycle_memory": 10**9, "max_failures": 1}
    assert given.for_tasks() == {"timeout": 2.0}
    assert settings("-k").for_queue() == {"max_failures": None}, "whatever the jobs file says"
    assert settings().for_queue() == settings().for_tasks() == {}


def test_K1_each_parameter_that_a_flag_sets_is_one_of_the_queue_or_an_option_of_a_task() -> None:
    declared = [one.metadata for one in dataclasses.fields(RunSettings)]

    of_queue = {one["queue"] for one in declared if one["queue"]}
    of_task = {one["task"] for one in declared if one["task"]}
    assert of_queue
    assert of_queue <= inspect.signature(Queue).parameters.keys()
    assert of_task
    assert of_task <= OptionArguments.__optional_keys__
