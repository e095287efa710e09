"""The outermost layer: what is raised becomes words and a code, and help costs nothing it need not."""

import subprocess
import sys
from pathlib import Path

import pytest

from procq.cli import command, console, run
from procq.cli.exits import CommandLineError, Exit
from procq.errors import InternalError, JobsFileError, QueueClosedError


def broken(error: Exception) -> int:
    """Raise instead of running a command."""
    raise error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandLineError("what"), Exit.USAGE),
        (JobsFileError("what"), Exit.JOBS_FILE),
        (QueueClosedError("what"), Exit.JOBS_FILE),
        (InternalError("what"), Exit.BUG),
        (ValueError("what"), Exit.BUG),
    ],
)
def test_whose_fault_an_error_is_decides_the_code(
    error: Exception, code: Exit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command._shielded(lambda: broken(error)) == code
    assert "what" in capsys.readouterr().err


def test_a_bug_shows_its_traceback_and_how_to_report_it(capsys: pytest.CaptureFixture[str]) -> None:
    command._shielded(lambda: broken(ValueError("what")))

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "procq: error: this is a bug in procq; please report it with the lines above"


def test_an_error_shows_what_where_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    command._shielded(lambda: broken(JobsFileError("it broke", where="etl.py:3", hint="mend it")))

    assert capsys.readouterr().err == "procq: error: it broke\n  etl.py:3\n  hint: mend it\n"


@pytest.mark.usefixtures("fresh_loader")
def test_a_slow_import_is_worth_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs.py").write_text("def jobs(): return []")
    monkeypatch.setattr(run, "_SLOW_IMPORT_S", 0.0)

    console(["run", str(tmp_path / "jobs.py")])

    assert capsys.readouterr().err.startswith("warning: loading took ")


def test_help_imports_nothing_that_runs_tasks() -> None:
    code = (
        "import sys\nfrom procq.cli import console\n"
        "try: console(['run', '--help'])\nexcept SystemExit: pass\n"
        "print('\\n' + ' '.join(sys.modules))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)

    loaded = set(done.stdout.splitlines()[-1].split())
    heavy = {"procq.queue", "procq.spec", "procq.supervisor", "procq.cli.run", "cloudpickle", "psutil", "asyncio"}
    assert "procq.cli.parser" in loaded
    assert not loaded & heavy
