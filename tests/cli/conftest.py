"""What the command line's tests share: jobs files in a folder of their own, and the command itself."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.command import Finished, python

from procq import loader

Run = Callable[..., Finished]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a jobs file: `write(text)` or `write(text, name)`; the text may be indented."""

    def write_file(text: str, name: str = "jobs.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def procq(tmp_path: Path) -> Run:
    """Run `procq ARGUMENTS` in the folder of the jobs files, its streams in pipes, to its end."""

    def run(*arguments: str, **environment: str) -> Finished:
        return python(tmp_path, "-m", "procq", *arguments, **environment)

    return run


@pytest.fixture
def fresh_loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a process in which no jobs file was ever loaded, and clean up after it."""
    monkeypatch.setattr(loader, "_REGISTRY", loader._Registry())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("procq_jobs_", "made_here")):
            del sys.modules[name]
