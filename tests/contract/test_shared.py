"""Shared objects: put into memory once, read by all, gone with the last who could read them (contract I2)."""

import gc
import pickle
from functools import partial
from pathlib import Path

import pytest
from tests.contract.drivers import Driver
from tests.support import arrays
from tests.support.arrays import Array, array

import procq
from procq import errors


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_I2_a_task_gets_the_object_in_the_place_of_its_handle(driver: Driver, size: int) -> None:
    queue = driver.started()
    shared = procq.share({"array": array(size), "name": "text"})

    for _ in range(3):
        found = queue.submit(arrays.echo, [1, (shared, "by")]).result()
        assert found == [1, ({"array": array(size), "name": "text"}, "by")]
    assert shared.value == {"array": array(size), "name": "text"}


def test_I2_what_it_holds_is_read_only_and_what_is_changed_later_is_not_seen(driver: Driver) -> None:
    given = array(300_000)
    shared = procq.share(given)
    given.view[:4] = b"late"
    queue = driver.started()

    assert queue.submit(arrays.is_read_only, shared.out).result()
    assert isinstance(queue.submit(arrays.overwrite, shared.out).exception(), TypeError)
    assert shared.value == array(300_000)
    assert shared.value.view.readonly
    assert shared.nbytes >= 300_000
    assert "Array" in repr(shared)


def test_I2_an_attempt_has_objects_of_its_own_around_the_buffers(driver: Driver) -> None:
    shared = procq.share(["one"])
    queue = driver.started()

    assert [queue.submit(arrays.append_and_count, shared.out).result() for _ in range(3)] == [2, 2, 2]


def test_I2_it_may_be_part_of_the_function_of_a_map_and_of_an_initializer(driver: Driver) -> None:
    shared = procq.share(array(300_000))
    queue = driver.started(initializer=arrays.keep, initargs=(shared,))

    found = list(queue.map(partial(arrays.byte_of, shared.out), range(500)))

    assert found == list(array(300_000).view[:500])
    assert queue.submit(arrays.ends_of_last_given).result() == arrays.ends(array(300_000))


def test_I2_two_of_them_and_a_result_in_one_call(driver: Driver) -> None:
    queue = driver.started()
    one, two = procq.share(array(100_000)), procq.share(array(200_000, 2))
    result = queue.submit(arrays.make, 100_000, 3)

    assert queue.submit(arrays.echo, [one, two, one, result]).result() == [
        array(100_000), array(200_000, 2), array(100_000), array(100_000, 3),
    ]  # fmt: skip


def test_I2_it_lives_as_long_as_a_task_that_was_given_it(driver: Driver) -> None:
    queue = driver.queue()
    before = descriptors()
    shared = procq.share(array(300_000))
    handle = queue.submit(arrays.ends, shared.out)
    del shared
    assert descriptors() > before

    queue.start()
    assert handle.result()[0] == len(array(300_000).view)
    queue.shutdown()
    assert descriptors() <= before


def test_I2_F5_it_does_not_live_as_long_as_a_task_is_kept_that_has_ended(driver: Driver) -> None:
    """A task with an id of its own is kept for its result."""
    queue = driver.started()
    queue.submit(arrays.echo, 1).result()  # the worker has descriptors too
    before = descriptors()
    shared = procq.share(array(300_000))
    ends = procq.task(arrays.ends).using(id="a")
    spec = ends.spec(shared.out)
    handle = queue.submit(spec)
    found = handle.result()
    assert queue.submit(ends.spec(shared.out)) is handle
    del shared, spec

    assert descriptors() <= before
    assert queue.wait("a").value == found


def test_I2_what_cannot_be_shared_is_refused_and_nothing_is_left() -> None:
    before = descriptors()
    with pytest.raises(errors.PayloadError, match="generator"):
        procq.share(number for number in range(3))
    shared = procq.share(1)
    with pytest.raises(errors.PayloadError, match="Shared int"):
        procq.share([shared])
    with pytest.raises(errors.UsageError, match="pass it as an argument to a task"):
        pickle.dumps(shared)
    del shared
    gc.collect()
    assert descriptors() == before


def test_I2_it_holds_what_stands_by_itself_in_main_too(driver: Driver) -> None:
    shared = procq.share(lambda number: number + 1)
    assert driver.started().submit(arrays.call, shared.out, 1).result() == 2


def test_I2_something_empty() -> None:
    assert procq.share(Array(b"")).value == Array(b"")
