"""What flags say of the tasks of one type: how it is read, and what is refused."""

import types
from datetime import datetime

import pytest

from procq import Priority, task
from procq.cli.exits import CommandLineError
from procq.cli.pertype import PerType, types_in
from procq.core.capacity import Capacity
from procq.errors import UsageError
from procq.spec import OptionArguments, Options


@task
def clean() -> None: ...


@task(type="rotate")
def turn() -> None: ...


HELPERS = types.ModuleType("helpers")
HELPERS.shrink = clean.using(type="shrink")  # type: ignore[attr-defined]


def jobs() -> None: ...


def refusal(*sets: str) -> CommandLineError:
    with pytest.raises(CommandLineError) as caught:
        PerType(sets)
    return caught.value


@pytest.mark.parametrize(
    ("text", "option", "value"),
    [
        ("priority=high", "priority", Priority.HIGH),
        ("priority=-7", "priority", -7),
        ("max_attempts=3", "max_attempts", 3),
        ("cpus=4", "cpus", 4),
        ("memory=2GB", "memory", "2GB"),
        ("memory=none", "memory", None),
        ("timeout=1m30s", "timeout", "1m30s"),
        ("timeout=none", "timeout", None),
        ("delay=5s", "delay", "5s"),
        ("expires=1h", "expires", "1h"),
        ("retry_for=none", "retry_for", None),
        ("run_at=2026-11-29T06:00", "run_at", datetime(2026, 11, 29, 6)),  # noqa: DTZ001 - as it is typed
        ("run_if=done", "run_if", "done"),
        ("group=heavy", "group", "heavy"),
        ("backoff=5s", "backoff", "5s"),
        ("backoff=1s,5s,1m", "backoff", ["1s", "5s", "1m"]),
        ("never_retry=crash,ValueError", "never_retry", ["crash", ValueError]),
        ("never_retry=", "never_retry", []),
        ("retry_on=OSError", "retry_on", [OSError]),
    ],
)
def test_a_value_is_read_as_its_option_wants_it(text: str, option: str, value: object) -> None:
    assert PerType([f"clean.{text}"]).options == {"clean": {option: value}}


def test_a_type_may_have_dots() -> None:
    assert PerType(["Photo.<locals>.clean.cpus=2"]).options == {"Photo.<locals>.clean": {"cpus": 2}}


def test_backoff_may_grow_as_it_does_by_default() -> None:
    backoff = Options(PerType(["clean.backoff=exponential"]).options["clean"]).backoff

    assert backoff is not None
    assert backoff.delay(100, 0.5) == 30


def test_several_flags_add_up() -> None:
    given = PerType(["a.cpus=2", "a.timeout=5s", "b.cpus=3"])

    assert given.options == {"a": {"cpus": 2, "timeout": "5s"}, "b": {"cpus": 3}}


def test_an_option_of_a_type_is_set_once() -> None:
    error = refusal("a.cpus=2", "b.cpus=2", "a.cpus=4")

    assert (error.what, error.hint) == ("--set a.cpus is given twice: a.cpus=2 and a.cpus=4", "leave one of them out")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("clean", "--set clean: expected TYPE.OPTION=VALUE"),
        ("clean.cpus", "--set clean.cpus: expected TYPE.OPTION=VALUE"),
        ("cpus=3", "--set cpus=3: expected TYPE.OPTION=VALUE"),
        ("clean.tiemout=5s", "--set clean.tiemout=5s: no such option"),
        ("clean.id=x", "--set clean.id=x: no such option"),
        ("clean.depends_on=x", "--set clean.depends_on=x: no such option"),
        ("clean.max_attempts=many", "--set clean.max_attempts=many: expected a whole number"),
        ("clean.max_attempts=0", "--set clean.max_attempts=0: max_attempts=0: must be at least 1"),
        ("clean.priority=urgent", "--set clean.priority=urgent: expected a whole number"),
        ("clean.run_at=soon", "--set clean.run_at=soon: expected a time such as 2026-11-29T06:00"),
    ],
)
def test_what_cannot_be_is_told_with_what_was_typed(text: str, what: str) -> None:
    assert refusal(text).what == what


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("timeout=soon", "timeout"),
        ("run_if=always", "run_if"),
        ("never_retry=explosion", "never_retry"),
        ("retry_on=int", "retry_on"),
        ("memory=much", "memory"),
    ],
)
def test_C3_what_the_option_refuses_is_told_in_its_words(text: str, field: str) -> None:
    error = refusal(f"clean.{text}")

    assert error.what.startswith(f"--set clean.{text}: {field}=")


def test_options_that_exclude_each_other_are_refused() -> None:
    assert "delay and run_at" in refusal("clean.delay=5s", "clean.run_at=2026-11-29").what


def test_an_unknown_option_is_told_the_closest_and_all() -> None:
    hint = refusal("clean.tiemout=5s").hint

    assert hint.startswith("did you mean `timeout`? options are backoff, cpus, delay, ")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("clean.limits=4", "the flag for that is --limit clean=N"),
        ("clean.groups=heavy", "groups is not of single tasks but of the whole run: --group NAME=N"),
        ("clean.max_failures=4", "max_failures is not of single tasks but of the whole run: --max-failures N|N%"),
        ("max_failures=4", "max_failures is not of single tasks but of the whole run: --max-failures N|N%"),
        ("clean.workers=4", "workers is not of single tasks but of the whole run: --workers N"),
        ("clean.lookahead=4", "lookahead is not of single tasks but of the whole run: --lookahead N"),
        ("clean.on_failure=kill", "on_failure is not of single tasks but of the whole run: --on-failure finish|kill"),
        ("clean.capture=1", "capture is not of single tasks but of the whole run: --output HOW"),
        ("resources=1", "resources is not of single tasks but of the whole run: @procq.jobs(resources=...)"),
        ("clean.id=4", "id is one task's own: clean.using(id=...)"),
        ("clean.retries=4", "did you mean `--set clean.max_attempts`? it counts the first try too"),
        ("timeout=4", "such as --set TYPE.timeout=VALUE"),
        ("clean.timeout", "such as --set clean.timeout=VALUE"),
        ("clean", "such as --set clean.timeout=5m"),
    ],
)
def test_what_is_no_option_of_tasks_is_told_its_place(text: str, hint: str) -> None:
    assert refusal(text).hint == hint


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        (
            "clean.group=haevy",
            "there is no group 'haevy'; this run has 'default', 'heavy'",
            "did you mean `heavy`? --group haevy=N gives it N workers",
        ),
        (
            "clean.group=gpu",
            "there is no group 'gpu'; this run has 'default', 'heavy'",
            "--group gpu=N gives it N workers",
        ),
        (
            "clean.cpus=3",
            "such a task asks for 3 cpus, of which this queue has 2, so it could never start",
            'a run has as many as it has workers (-j N), or as @procq.jobs(resources={"cpu": N}) says',
        ),
        (
            "clean.memory=2kB",
            "such a task asks for 2.0kB of memory, of which this queue has 1.0kB, so it could never start",
            'a run has all of this machine, or as much as @procq.jobs(resources={"memory": SIZE}) says',
        ),
    ],
)
def test_B9_what_could_never_start_is_refused_with_the_flag(text: str, what: str, hint: str) -> None:
    given = PerType(["clean.timeout=5s", text])

    with pytest.raises(CommandLineError) as caught:
        given.check_places(["default", "heavy"], Capacity(2, 1000))

    assert (caught.value.what, caught.value.hint) == (f"--set {text}: {what}", hint)


def test_B9_what_fits_is_no_trouble() -> None:
    given = PerType(["clean.group=heavy", "clean.cpus=2", "clean.memory=1000", "turn.memory=none"])

    given.check_places(["default", "heavy"], Capacity(2, 1000))


def test_every_option_can_be_set_but_what_is_one_task_s_own() -> None:
    listed = refusal("clean.nope=1").hint.removeprefix("options are ").split(", ")

    assert set(listed) == OptionArguments.__optional_keys__ - {"id", "type", "depends_on"}


def test_a_type_that_nothing_has_is_refused_with_those_there_are() -> None:
    given = PerType(["claen.cpus=2"], {"rotate": 3})
    given.know(["clean", "rotate"])

    with pytest.raises(UsageError) as caught:
        given.check()

    assert str(caught.value) == (
        "--set claen.cpus=2: no task has the type 'claen'\n  hint: did you mean `clean`? types are clean, rotate"
    )
    given.know(["claen"])
    given.check()


def test_a_limit_names_a_type_too() -> None:
    given = PerType((), {"fetch": 3})

    assert given.doubt() == "--limit fetch=3: no task has the type 'fetch'"
    assert given.hint() == "types are none"


def test_the_types_of_a_file_are_those_of_its_functions_its_modules_and_its_handlers() -> None:
    assert types_in(jobs, {"handlers": {"resize": clean}}) >= {"clean", "rotate", "shrink", "resize"}
    assert types_in(print, {}) == set(), "an entry may be anything that can be called"
