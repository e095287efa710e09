"""A flag wins over a variable, that over a file, and the file over the jobs file; what is unknown is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.command import Finished
from tests.support.pages import blocks

from procq.cli import configuration
from procq.cli.exits import CommandLineError
from procq.cli.parser import run_parser
from procq.cli.settings import RunSettings, Workers

Run = Callable[..., Finished]
Write = Callable[..., Path]


def settings(folder: Path, *flags: str, **variables: str) -> RunSettings:
    """Return what flags, variables and the files near a folder say together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.environ", variables)
        return configuration.read(run_parser(), ["jobs.py", *flags], near=lambda _: folder)[1]


def refusal(folder: Path, *flags: str, **variables: str) -> str:
    """Return how all that is refused."""
    with pytest.raises(CommandLineError) as caught:
        settings(folder, *flags, **variables)
    return str(caught.value)


# --- precedence ----------------------------------------------------------------------------------


def test_without_anything_all_is_as_the_flags_have_it(tmp_path: Path) -> None:
    assert settings(tmp_path) == settings_of_nothing()


def settings_of_nothing() -> RunSettings:
    from procq.cli.settings import settings_from  # noqa: PLC0415 - the other way to the same

    return settings_from(run_parser().parse_args(["jobs.py"]))


def test_a_flag_wins_over_a_variable_and_that_over_the_file(write: Write) -> None:
    folder = write('workers = 3\nmax-attempts = 3\ntimeout = "3s"\n', "procq.toml").parent

    found = settings(folder, "--workers=1", PROCQ_WORKERS="2", PROCQ_MAX_ATTEMPTS="2")

    assert (found.workers, found.max_attempts, found.timeout_s) == (Workers(count=1), 2, 3.0)


def test_a_flag_that_says_what_is_the_default_wins_too(write: Write) -> None:
    folder = write('workers = 3\nprogress = "off"\n', "procq.toml").parent

    found = settings(folder, "-j", "auto", "--progress=auto")

    assert (found.workers, found.progress) == (Workers(), "auto")


def test_another_flag_for_the_same_thing_wins_over_the_file(write: Write) -> None:
    folder = write("max-failures = 3\n", "procq.toml").parent

    assert settings(folder, "-k").for_queue() == {"max_failures": None}


def test_what_has_names_is_taken_name_by_name(write: Write) -> None:
    folder = write("[limit]\na = 1\nb = 1\nc = 1\n[set.a]\ncpus = 1\ntimeout = '1s'\n", "procq.toml").parent

    found = settings(folder, "--limit", "a=3", "--set=a.cpus=3", PROCQ_LIMIT="a=2 b=2")

    assert dict(found.limits) == {"a": 3, "b": 2, "c": 1}
    assert sorted(found.sets) == ["a.cpus=3", "a.timeout=1s"]


@pytest.mark.processes
def test_the_file_wins_over_the_jobs_file_and_stands_near_that(write: Write, procq: Run) -> None:
    write("workers = 3\n", "sub/procq.toml")
    write("workers = 4\n", "procq.toml")
    write(
        """
        import procq
        @procq.jobs(workers=5, max_failures=2)
        def jobs(): return [procq.task(abs).spec(1)]
        """,
        "sub/deep/jobs.py",
    )

    assert "3 workers" in procq("run", "sub/deep/jobs.py").err
    assert "2 workers" in procq("run", "sub/deep/jobs.py", PROCQ_WORKERS="2").err
    assert "1 worker\n" in procq("run", "sub/deep/jobs.py", "-j1", PROCQ_WORKERS="2").err


@pytest.mark.processes
def test_a_script_and_map_go_by_the_file_near_them_too(write: Write, procq: Run, tmp_path: Path) -> None:
    from tests.support.command import python  # noqa: PLC0415

    write("workers = 3\n", "sub/procq.toml")
    write(
        """
        import procq
        @procq.task
        def work(x): return x
        def jobs(): return [work.spec(1)]
        if __name__ == "__main__":
            procq.main(jobs)
        """,
        "sub/jobs.py",
    )

    assert "3 workers" in python(tmp_path, "sub/jobs.py").err
    assert "3 workers" in procq("map", "sub/jobs.py:work", "a").err


# --- the file ------------------------------------------------------------------------------------


def test_pyproject_counts_if_it_speaks_of_procq(write: Write) -> None:
    write("[tool.procq]\nworkers = 3\n", "pyproject.toml")
    folder = write("[tool.other]\nprocq = 1\n", "sub/pyproject.toml").parent

    assert settings(folder).workers == Workers(count=3)


def test_in_one_folder_procq_toml_wins(write: Write) -> None:
    write("[tool.procq]\nworkers = 3\n", "pyproject.toml")
    folder = write("workers = 2\n", "procq.toml").parent

    assert settings(folder).workers == Workers(count=2)


def test_only_the_nearest_file_counts(write: Write) -> None:
    write("workers = 3\nmax_attempts = 2\n", "procq.toml")
    folder = write("workers = 2\n", "sub/procq.toml").parent

    found = settings(folder)

    assert (found.workers, found.max_attempts) == (Workers(count=2), None)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('workers = "50%"', "workers", Workers(percent=50)),
        ("max_attempts = 2", "max_attempts", 2),
        ("timeout = 1.5", "timeout_s", 1.5),
        ('max-memory-per-worker = "1GB"', "max_memory_per_worker", 10**9),
        ("allow-empty = true", "allow_empty", True),
        ("allow-empty = false", "allow_empty", False),
        ("group = {heavy = 2}", "groups", (("heavy", 2),)),
        ('limit = ["a=1", "b.c=2"]', "limits", (("a", 1), ("b.c", 2))),
        ('set = {"Photo.shrink.cpus" = 2}', "sets", ("Photo.shrink.cpus=2",)),
        ("[set.Photo.shrink]\ncpus = 2", "sets", ("Photo.shrink.cpus=2",)),
    ],
)
def test_values_are_read_as_those_of_the_flags(write: Write, text: str, name: str, value: object) -> None:
    assert getattr(settings(write(text, "procq.toml").parent), name) == value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("wrokers = 3", "procq.toml: unknown key 'wrokers'\n  hint: did you mean `workers`?"),
        ("zzz = 3", "procq.toml: unknown key 'zzz'\n  hint: they are long flags of procq run: workers, "),
        ("dry-run = true", "procq.toml: unknown key 'dry-run'"),
        ("max-attempts = 0", "procq.toml: --max-attempts=0: must be a whole number of at least 1"),
        ('policy = "fare"', "procq.toml: --policy: invalid choice: 'fare'"),
        ("timeout = [1]", "procq.toml: timeout: expected a text or a number"),
        ('allow-empty = "perhaps"', "procq.toml: --allow-empty=perhaps: expected true or false"),
        ("limit = {a = [1]}", "procq.toml: limit: expected a text or a number"),
        ('limit = ["a=1", "a=2"]', "procq.toml: --limit a is given twice"),
        ("workers = ", "procq.toml: Invalid value"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_name(write: Write, text: str, what: str) -> None:
    path = write(text, "procq.toml")

    told = refusal(path.parent)

    assert told.startswith(str(path))
    assert what in told


def test_a_wrong_flag_is_told_as_one_whatever_the_file_says(write: Write) -> None:
    folder = write("[limit]\na = 1\n", "procq.toml").parent

    assert refusal(folder, "--limit=a=2", "--limit=a=3").startswith("--limit a is given twice: a=2 and a=3")


def test_the_example_of_the_page_is_read(write: Write) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text(encoding="utf-8")
    (example,) = [block.text for block in blocks(page) if block.language == "toml"]

    found = settings(write(example, "procq.toml").parent)

    assert (found.workers, found.max_failures) == (Workers(percent=50), 10)
    assert (found.limits, found.sets) == ((("fetch", 4),), ("clean.timeout=5m",))


# --- variables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "setting", "value"),
    [
        ("PROCQ_WORKERS", "3", "workers", Workers(count=3)),
        ("PROCQ_WORKERS", "", "workers", Workers()),
        ("PROCQ_MAX_TASKS_PER_WORKER", "3", "max_tasks_per_worker", 3),
        ("PROCQ_ALLOW_EMPTY", "1", "allow_empty", True),
        ("PROCQ_LIMIT", "a=1  b=2", "limits", (("a", 1), ("b", 2))),
        ("PROCQ_SET", "a.backoff=1,5,30", "sets", ("a.backoff=1,5,30",)),
        ("PROCQ_RESULTS", "my file.jsonl", "results", "my file.jsonl"),
        ("PROCQ_TEST_SESSION", "x", "workers", Workers()),
    ],
)
def test_a_variable_sets_its_setting(tmp_path: Path, name: str, text: str, setting: str, value: object) -> None:
    assert getattr(settings(tmp_path, **{name: text}), setting) == value


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("PROCQ_WORKERS", "many", "PROCQ_WORKERS: -j many: expected a number of at least 1"),
        ("PROCQ_ALLOW_EMPTY", "2", "PROCQ_ALLOW_EMPTY: --allow-empty=2: expected true or false"),
        ("PROCQ_WORKER", "3", "unknown variable: PROCQ_WORKER\n  hint: did you mean `PROCQ_WORKERS`?"),
    ],
)
def test_what_is_wrong_in_a_variable_is_told_with_its_name(tmp_path: Path, name: str, text: str, what: str) -> None:
    assert what in refusal(tmp_path, **{name: text})


def test_a_file_turned_on_is_turned_off_by_a_variable(write: Write) -> None:
    folder = write("allow-empty = true\n", "procq.toml").parent

    assert settings(folder, PROCQ_ALLOW_EMPTY="no").allow_empty is False
