"""Which function of a jobs file is its entry, and what is said when none or several could be."""

from collections.abc import Callable
from pathlib import Path

import pytest

from procq import loader
from procq.cli.entry import Target, load_entry
from procq.errors import JobsFileError

pytestmark = pytest.mark.usefixtures("fresh_loader")

Write = Callable[..., Path]


def chosen(path: Path, function: str | None = None) -> str:
    """Return the name of the entry."""
    return load_entry(Target(name=str(path), function=function)).__name__


def refusal(path: Path, function: str | None = None) -> JobsFileError:
    """Look for an entry where there is none, and return the error."""
    with pytest.raises(JobsFileError) as caught:
        load_entry(Target(name=str(path), function=function))
    return caught.value


@pytest.mark.parametrize(
    ("text", "name", "function"),
    [
        ("etl.py", "etl.py", None),
        ("etl.py:nightly", "etl.py", "nightly"),
        ("a/b:c/etl.py", "a/b:c/etl.py", None),
        ("etl.py:", "etl.py:", None),
        ("etl.py:not-a-name", "etl.py:not-a-name", None),
    ],
)
def test_a_target_is_a_file_and_perhaps_a_function(text: str, name: str, function: str | None) -> None:
    target = Target.read(text)

    assert (target.name, target.function) == (name, function)


def test_a_file_with_a_colon_in_its_name_wins(write: Write) -> None:
    path = write("", "odd:name")

    assert Target.read(str(path)) == Target(name=str(path))


def test_a_module_target_has_a_function_too() -> None:
    assert Target.read("pkg.mod:nightly", is_module=True) == Target(name="pkg.mod", is_module=True, function="nightly")


def test_the_function_called_jobs_is_the_entry(write: Write) -> None:
    assert chosen(write("def other(): ...\ndef jobs(): ...")) == "jobs"


def test_the_marked_function_wins_over_jobs(write: Write) -> None:
    path = write("from procq.loader import jobs as mark\ndef jobs(): ...\n@mark\ndef nightly(): ...\n")

    assert chosen(path) == "nightly"


def test_the_named_function_wins_over_the_marked_one(write: Write) -> None:
    path = write("from procq.loader import jobs\n@jobs\ndef nightly(): ...\ndef weekly(): ...\n")

    assert chosen(path, "weekly") == "weekly"


def test_a_marked_function_that_was_imported_is_not_this_files_entry(write: Write) -> None:
    write("from procq.loader import jobs\n@jobs\ndef theirs(): ...\n", "made_here_theirs.py")

    assert chosen(write("from made_here_theirs import theirs\ndef jobs(): ...")) == "jobs"


def test_no_entry_lists_the_candidates(write: Write) -> None:
    path = write("def nightly(): ...\ndef weekly(): ...\ndef _hidden(): ...\nclass Thing: ...\nx = 1", "etl.py")

    error = refusal(path)

    assert error.what == "etl.py has no function called 'jobs' and none marked @procq.jobs"
    assert error.hint == f"candidates `nightly`, `weekly`: procq run {path}:nightly"


def test_a_task_function_is_no_candidate(write: Write) -> None:
    path = write("from procq.spec import task\n@task\ndef clean(): ...\ndef nightly(): ...")

    assert refusal(path).hint.startswith("candidates `nightly`:")


def test_no_functions_at_all_tells_how_one_looks(write: Write) -> None:
    assert "def jobs():" in refusal(write("x = 1")).hint


def test_the_decorator_alone_is_no_entry(write: Write) -> None:
    assert refusal(write("from procq.loader import jobs")).what.startswith("jobs.py has no function called 'jobs'")


def test_two_marked_functions_need_a_choice(write: Write) -> None:
    path = write("from procq.loader import jobs\n@jobs\ndef a(): ...\n@jobs\ndef b(): ...\n")

    error = refusal(path)

    assert error.what == "jobs.py has 2 functions marked @procq.jobs: a, b"
    assert error.hint == f"say which: procq run {path}:a"


def test_a_misspelt_entry_is_told_the_closest(write: Write) -> None:
    path = write("def nightly(): ...\ndef weekly(): ...", "etl.py")

    error = refusal(path, "nigthly")

    assert error.what == "etl.py has no function called 'nigthly'"
    assert error.hint == f"did you mean `nightly`? procq run {path}:nightly"


def test_an_entry_like_no_other_is_told_the_candidates(write: Write) -> None:
    assert refusal(write("def nightly(): ..."), "zzz").hint.startswith("candidates `nightly`")


@pytest.mark.parametrize(("text", "kind"), [("jobs = [1]", "list"), ("class jobs: ...", "a class")])
def test_an_entry_must_be_a_function(write: Write, text: str, kind: str) -> None:
    assert refusal(write(text)).what == f"jobs in jobs.py is no function but {kind}"


def test_a_task_function_is_no_entry(write: Write) -> None:
    error = refusal(write("from procq.spec import task\n@task\ndef jobs(): ..."))

    assert error.what == "jobs in jobs.py is a task function, not an entry"
    assert "jobs.spec(...)" in error.hint


@pytest.mark.parametrize("body", ["...", "yield 1"])
def test_an_async_entry_is_refused(write: Write, body: str) -> None:
    error = refusal(write(f"async def jobs():\n    {body}\n"))

    assert error.what == "jobs is an async function; procq runs plain functions"
    assert error.hint == "asyncio.run inside it"


def test_a_modules_entry_is_found_by_its_dotted_name(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("def weekly(): ...", "made_here_jobs/etl.py")

    entry = load_entry(Target.read("made_here_jobs.etl:weekly", is_module=True))

    assert (entry.__module__, entry.__name__) == ("made_here_jobs.etl", "weekly")
    assert loader.known() == {}
