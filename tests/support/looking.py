"""Looks into a queue whose workers are real: what the public interface does not show."""

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

from tests.support.leaks import wait_until

from procq import Queue
from procq.engine.local.engine import LocalEngine

#: How long to wait for any one thing: a safety bound, not a promise.
PATIENCE_S: Final = 20.0
_ROOT: Final = Path(__file__).resolve().parents[2]


def engine_of(queue: Queue) -> LocalEngine:
    engine = queue._supervisor.engine
    assert isinstance(engine, LocalEngine)
    return engine


def pids(queue: Queue) -> set[int]:
    with queue._supervisor.lock:
        return set(engine_of(queue).pids())


def states(queue: Queue) -> dict[str, int]:
    """Count the workers by what they do; states that none is in are left out."""
    with queue._supervisor.lock:
        return {state: number for state, number in engine_of(queue).states().items() if number}


def wait_idle(queue: Queue, workers: int) -> None:
    """Wait until there are so many workers and all of them are idle."""
    assert wait_until(lambda: states(queue) == {"idle": workers}, PATIENCE_S), states(queue)


def check_invariants(queue: Queue) -> None:
    with queue._supervisor.lock:
        queue._supervisor.scheduler.check_invariants()


def run_script(text: str, *args: object, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Run a program of its own that can import procq and tests.support."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, args)],
        check=False, capture_output=True, text=True, timeout=timeout_s, cwd=_ROOT,
    )  # fmt: skip


def run_file(path: Path, text: str, *args: object, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Run a script from a file elsewhere, as users do."""
    path.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, path, *map(str, args)],
        check=False, capture_output=True, text=True, timeout=timeout_s, env=script_environment(),
    )  # fmt: skip


def script_environment() -> dict[str, str]:
    import os  # noqa: PLC0415 - for this alone

    return os.environ | {"PYTHONPATH": str(_ROOT)}
