"""Who is below a worker, and that none but he is killed (PAIN H16)."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from procq.engine.local import kin

#: Starts a process in a session of its own, which it names, and waits for the end of its input.
PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
child.wait()
"""


@pytest.fixture
def family() -> Iterator[tuple[int, int]]:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        yield parent.pid, int(parent.stdout.readline())
        parent.communicate()


def test_H16_descendants_at_any_depth_are_found(family: tuple[int, int]) -> None:
    assert set(family) <= {pid for pid, _ in kin.descendants(os.getpid())}
    assert [pid for pid, _ in kin.descendants(family[0])] == [family[1]]
    assert kin.descendants(family[1]) == []


def test_a_name_with_spaces_and_parentheses_hides_nobody() -> None:
    script = "open('/proc/self/comm', 'w').write('a) 1 (b'); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()

        assert child.pid in {pid for pid, _ in kin.descendants(os.getpid())}
        child.communicate(b"\n")


def test_a_process_that_only_has_the_number_is_spared() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        ((pid, began_at),) = [process for process in kin.descendants(os.getpid()) if process[0] == child.pid]

        kin.kill((pid, began_at - 1))  # as if that one had died, and this one got its number
        assert child.poll() is None

        kin.kill((pid, began_at))
        child.wait()
        kin.kill((pid, began_at))  # nobody has it any more
    assert child.returncode == -9
