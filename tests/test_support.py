"""What the tests themselves promise each other."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: Each takes a worker a millisecond or more to import, `pytest` two hundred; and a session starts two thousand.
HEAVY = {"contextlib", "enum", "pathlib", "procq.spec", "pytest", "re", "subprocess", "threading", "typing"}


@pytest.mark.parametrize(
    "name",
    [
        "tests.contract.tasks",
        *(f"tests.support.{kind}" for kind in ("arrays", "log_tasks", "memory_tasks", "output_tasks", "process_tasks")),
        *(f"tests.support.{kind}" for kind in ("sharing_tasks", "surrounding_tasks", "tasks")),
    ],
)
def test_what_workers_import_of_the_tests_is_light(name: str) -> None:
    program = f"import sys; before = set(sys.modules); import {name}; print(*set(sys.modules) - before)"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert name in done.stdout.split()
    assert not HEAVY & set(done.stdout.split())
