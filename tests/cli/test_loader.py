"""A jobs file is the same module everywhere, and what is wrong with it is said in the user's terms."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from procq import loader
from procq.errors import JobsFileError

pytestmark = pytest.mark.usefixtures("fresh_loader")

Write = Callable[..., Path]


def refusal(path: Path | str) -> JobsFileError:
    """Load what cannot be loaded, and return the error."""
    with pytest.raises(JobsFileError) as caught:
        loader.load(str(path))
    return caught.value


def test_a_jobs_file_gets_a_stable_name_whatever_its_own(write: Write) -> None:
    module = loader.load(str(write("x = 1", "my-jobs 2.py")))

    assert module.__name__ == "procq_jobs_my_jobs_2"
    assert sys.modules["procq_jobs_my_jobs_2"] is module
    assert module.x == 1


def test_a_jobs_file_is_loaded_once(write: Write) -> None:
    path = write("made = object()")

    first = loader.load(str(path))
    second = loader.load(str(path))

    assert second.made is first.made


def test_two_files_of_one_name_are_two_modules(write: Write) -> None:
    one = loader.load(str(write("x = 1", "a/jobs.py")))
    other = loader.load(str(write("x = 2", "b/jobs.py")))

    assert (one.x, other.x) == (1, 2)
    assert sorted(loader.known()) == ["procq_jobs_jobs", "procq_jobs_jobs_2"]


def test_the_folder_of_the_file_is_first_on_the_path(write: Write, tmp_path: Path) -> None:
    write("value = 7", "made_here_beside.py")

    module = loader.load(str(write("from made_here_beside import value")))

    assert module.value == 7
    assert sys.path[0] == str(tmp_path)


def test_a_file_need_not_end_in_py(write: Write) -> None:
    assert loader.load(str(write("x = 1", "worklist"))).x == 1


def test_a_worker_finds_what_the_supervisor_loaded(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("def f(): return 42")
    loader.load(str(path))
    sent = loader.known()
    # From here on this process plays the worker.
    monkeypatch.setattr(loader, "_REGISTRY", loader._Registry())
    del sys.modules["procq_jobs_jobs"]

    loader.install(sent)

    assert importlib.import_module("procq_jobs_jobs").f() == 42
    assert loader.in_worker()


def test_installing_twice_adds_to_what_was_installed(write: Write) -> None:
    one, other = write("x = 1", "one.py"), write("x = 2", "other.py")

    loader.install({"procq_jobs_one": str(one)})
    loader.install({"procq_jobs_other": str(other)})

    assert importlib.import_module("procq_jobs_one").x == 1
    assert importlib.import_module("procq_jobs_other").x == 2
    assert sum(type(finder).__module__ == "procq.loader" for finder in sys.meta_path) == 1


def test_only_a_worker_is_one(write: Write) -> None:
    loader.load(str(write("x = 1")))

    assert not loader.in_worker()


def test_a_missing_file_is_named_with_the_closest_one(write: Write, tmp_path: Path) -> None:
    write("", "jobs.py")

    error = refusal(tmp_path / "job.py")

    assert error.what == f"no such jobs file: {tmp_path}/job.py"
    assert error.hint == f"did you mean `{tmp_path}/jobs.py`?"


def test_a_missing_file_with_nothing_like_it_has_no_hint(tmp_path: Path) -> None:
    assert refusal(tmp_path / "zebra.py").hint == ""


def test_a_missing_folder_is_no_other_error(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no" / "such" / "jobs.py").what.startswith("no such jobs file")


def test_a_folder_is_no_jobs_file(tmp_path: Path) -> None:
    assert refusal(tmp_path).what == f"{tmp_path} is a directory, not a jobs file"


def test_a_failing_import_is_told_with_its_line(write: Write) -> None:
    error = refusal(write("import os\n\nimport no_such_module_at_all\n", "etl.py"))

    assert error.what == (
        "etl.py failed while loading: ModuleNotFoundError: No module named 'no_such_module_at_all' (line 3)"
    )


def test_only_frames_of_the_user_are_shown(write: Write, tmp_path: Path) -> None:
    write("import json\njson.loads('{')", "made_here_helper.py")

    error = refusal(write("x = 1\nimport made_here_helper\n"))

    assert error.where == (
        f"{tmp_path}/jobs.py:2  import made_here_helper\n  {tmp_path}/made_here_helper.py:2  json.loads('{{')"
    )
    assert "(line 2)" in error.what


def test_frames_under_the_current_directory_are_relative(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert refusal(write("1 / 0")).where == "jobs.py:1  1 / 0"


def test_a_syntax_error_is_told_where_it_is(write: Write, tmp_path: Path) -> None:
    error = refusal(write("x = 1\ndef jobs(:\n    pass\n"))

    assert error.what == "jobs.py failed while loading: SyntaxError: invalid syntax (line 2)"
    assert error.where == f"{tmp_path}/jobs.py:2  def jobs(:"


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "jobs.py"
    path.write_bytes(b"\x00\xff\x00")

    assert refusal(path).what.startswith("jobs.py failed while loading: ")


def test_a_file_that_exits_is_told_to_use_a_guard(write: Write) -> None:
    error = refusal(write("import sys\nsys.exit(0)\n"))

    assert error.what == "jobs.py ended the program while loading: SystemExit: 0"
    assert "__main__" in error.hint


def test_an_error_whose_text_cannot_be_had_is_told_all_the_same(write: Write) -> None:
    error = refusal(write("class E(Exception):\n    def __str__(self): raise ValueError\nraise E"))

    assert error.what.startswith("jobs.py failed while loading: E: (its text cannot be had")


def test_what_procq_refuses_while_loading_speaks_for_itself(write: Write, tmp_path: Path) -> None:
    error = refusal(write("from procq.spec import task\n\n@task(max_attempts=0)\ndef f(): ...\n"))

    assert error.what == "max_attempts=0: must be at least 1"
    assert error.where == f"{tmp_path}/jobs.py:3  @task(max_attempts=0)"


def test_an_async_task_is_refused_while_loading(write: Write) -> None:
    error = refusal(write("from procq.spec import task\n@task\nasync def fetch(): ...\n"))

    assert error.what.startswith("fetch is an async function; procq runs plain functions")


def test_a_failed_load_leaves_no_trace(write: Write) -> None:
    path = write("raise ValueError('not yet')")
    refusal(path)
    assert "procq_jobs_jobs" not in sys.modules
    assert loader.known() == {}
    assert loader.loading() is None

    path.write_text("x = 1")

    assert loader.load(str(path)).x == 1


def test_ctrl_c_while_loading_is_no_error_of_the_file(write: Write) -> None:
    with pytest.raises(KeyboardInterrupt):
        loader.load(str(write("raise KeyboardInterrupt")))


def test_a_module_is_imported_by_its_own_name(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("x = 5", "made_here_package/inner.py")

    module = loader.load_module("made_here_package.inner")

    assert (module.__name__, module.x) == ("made_here_package.inner", 5)
    assert loader.known() == {}


@pytest.mark.parametrize("name", ["made_here_not_there", "made_here_not_there.inner"])
def test_a_missing_module_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(JobsFileError, match=f"no such module: {name}"):
        loader.load_module(name)


def test_what_a_module_fails_to_import_is_not_the_module(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write("import no_such_module_at_all", "made_here_broken.py")

    with pytest.raises(JobsFileError, match="made_here_broken failed while loading: ModuleNotFoundError"):
        loader.load_module("made_here_broken")


def test_a_mark_carries_queue_parameters() -> None:
    def nightly() -> None: ...

    marked = loader.jobs(limits={"fetch": 4})(nightly)

    assert marked is nightly
    assert loader.queue_options(nightly) == {"limits": {"fetch": 4}}


def test_a_bare_mark_carries_nothing() -> None:
    @loader.jobs
    def nightly() -> None: ...

    assert loader.is_marked(nightly)
    assert loader.queue_options(nightly) == {}


@pytest.mark.parametrize("thing", [3, int])
def test_only_functions_are_marked(thing: object) -> None:
    with pytest.raises(JobsFileError, match="marks a function"):
        loader.jobs()(thing)  # type: ignore[type-var]  # the mistake that is tested


def test_importing_the_loader_is_light() -> None:
    """A worker imports it at start-up, so it must bring in nothing an interpreter has not loaded."""
    import subprocess  # noqa: PLC0415

    code = "import sys; before = set(sys.modules); import procq.loader; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)

    assert eval(done.stdout) == ["procq", "procq.loader"]
