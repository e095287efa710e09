"""What the supervisor's thread sleeps in (DESIGN 2)."""

import os
import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.leaks import no_leaks  # noqa: F401 - a fixture

from procq.engine.local.loop import READ, Loop

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

FOREVER_S = 3600.0


@pytest.fixture
def loop() -> Iterator[Loop]:
    one = Loop()
    one.open()
    yield one
    one.close()


@pytest.fixture
def ready_fd() -> Iterator[int]:
    """Give a descriptor that can be read."""
    end, writing_end = os.pipe()
    os.write(writing_end, b"x")
    yield end
    os.close(end)
    os.close(writing_end)


def test_a_nap_is_not_ended_by_what_can_wait_and_tells_of_it_afterwards(loop: Loop, ready_fd: int) -> None:
    calls: list[str] = []
    loop.watch(ready_fd, READ, lambda: calls.append("ready"))
    began_at = time.monotonic()

    loop.handle(loop.poll(FOREVER_S, 0.05))

    assert time.monotonic() - began_at >= 0.05
    assert calls == ["ready"]


def test_after_a_nap_in_which_nothing_came_the_sleep_goes_on(loop: Loop) -> None:
    """Each turn costs a worker its processor for some time."""
    end, writing_end = os.pipe()
    calls: list[str] = []
    loop.watch(end, READ, lambda: calls.append("ready"))
    writer = threading.Timer(0.05, os.write, (writing_end, b"x"))

    writer.start()
    loop.handle(loop.poll(FOREVER_S, 0.001))

    writer.join()
    assert calls == ["ready"]
    loop.unwatch(end)
    os.close(end)
    os.close(writing_end)


def test_a_nap_is_ended_by_what_is_urgent(loop: Loop, ready_fd: int) -> None:
    """A death, say; and so is any sleep."""
    calls: list[str] = []
    loop.watch(ready_fd, READ, lambda: calls.append("dead"), urgent=True)

    loop.handle(loop.poll(FOREVER_S, FOREVER_S))
    loop.handle(loop.poll(FOREVER_S))

    assert calls == ["dead", "dead"]


def test_a_nap_is_ended_by_the_alarm(loop: Loop) -> None:
    loop.alarm()
    loop.handle(loop.poll(FOREVER_S, FOREVER_S))
    assert loop.poll(0.0) == [], "the alarm is over"


def test_nothing_is_told_of_what_is_watched_no_more(loop: Loop, ready_fd: int) -> None:
    for urgent in (False, True):
        loop.watch(ready_fd, READ, pytest.fail, urgent=urgent)
        loop.unwatch(ready_fd)
        assert loop.poll(0.0, 0.001) == []
