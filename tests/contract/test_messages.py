"""What a queue says to somebody who made a mistake, or has to find one; on every engine."""

import pytest
from tests.contract import tasks
from tests.contract.drivers import Driver

from procq.errors import DependencyFailed, RemoteError


def test_E4_a_failed_dependency_is_told_with_its_kind_and_its_error(driver: Driver) -> None:
    with driver.queue() as queue:
        origin = queue.submit(tasks.fail, "five rows are bad")
        between = queue.submit(tasks.echo, origin)
        error = queue.submit(tasks.echo, between).exception(20)

    assert isinstance(error, DependencyFailed)
    assert error.origin == origin.id
    assert "fail) failed: ValueError: five rows are bad" in str(error)
    assert repr(error.__cause__) == repr(ValueError("five rows are bad"))


def test_E4_a_cancelled_dependency_is_told_as_that(driver: Driver) -> None:
    queue = driver.queue()
    origin = queue.submit(tasks.echo, 1)
    dependent = queue.submit(tasks.echo, origin)
    origin.cancel()

    assert str(dependent.error) == f"dependency {origin.id!r} (echo) was cancelled"
    queue.shutdown()


def test_D3_an_exit_is_told_with_its_name_once(driver: Driver) -> None:
    with driver.queue() as queue:
        error = queue.submit(tasks.leave, 3).exception(20)

    assert isinstance(error, RemoteError)
    assert str(error) == "SystemExit: 3"


def test_C0_a_wait_on_a_queue_that_was_not_started_says_so(driver: Driver) -> None:
    queue = driver.queue()
    handle = queue.submit(tasks.echo, 1)

    assert "not started" in repr(queue)
    with pytest.raises(TimeoutError, match="its queue was not started"):
        handle.result(0.01)
    assert "not started" not in repr(queue.start())


def test_F2_a_map_starts_before_it_is_asked(driver: Driver) -> None:
    with driver.queue() as queue:
        results = queue.map(tasks.echo, range(3))
        assert sum(queue.stats().counts.values()) == 3
        assert list(results) == [0, 1, 2]


def test_F7_a_filter_of_dead_letters_may_ask_the_queue(driver: Driver) -> None:
    with driver.queue() as queue:
        failed = queue.submit(tasks.fail, "once")
        failed.wait(20)
        assert queue.purge(lambda letter: queue.handle(letter.id).ok) == 0
        assert queue.replay(lambda letter: not queue.handle(letter.id).ok) == 1
