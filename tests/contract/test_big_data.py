"""Buffers beside their pickles: copied as seldom as can be, and never seen by another (contract I1)."""

import weakref
from pathlib import Path

import pytest
from tests.contract.drivers import Driver
from tests.support import arrays
from tests.support.arrays import Array, array

import procq
from procq import errors
from procq.handle import task_of
from procq.parcel import BESIDE_BYTES, Parcel


def shown(value: object) -> str:
    """Name a parameter by what it is."""
    return value if isinstance(value, str) else f"{type(value).__name__} {len(value)}"  # type: ignore[arg-type]


SIZES = [10, BESIDE_BYTES - 1, BESIDE_BYTES, 3_000_000]


@pytest.mark.parametrize("size", SIZES)
def test_I1_an_array_goes_there_and_comes_back(driver: Driver, size: int) -> None:
    queue = driver.started()
    given = Array(array(size).view[:size])
    mixed = {"one": given, "two": [array(size, 2), "text"], "again": given}

    assert queue.submit(arrays.echo, given).result() == given
    assert queue.submit(arrays.echo, mixed).result() == mixed
    assert queue.submit(arrays.echo, value=mixed).result() == mixed


@pytest.mark.parametrize("size", SIZES)
def test_I1_a_task_sees_its_arguments_as_they_were_submitted(driver: Driver, size: int) -> None:
    given = array(size)
    before = bytes(given.view[:4])
    queue = driver.queue()
    handle = queue.submit(arrays.overwrite, given)
    given.view[:4] = b"late"
    queue.start()

    assert handle.result() == [before]
    assert bytes(given.view[:4]) == b"late"


@pytest.mark.parametrize("size", SIZES)
def test_I1_an_attempt_sees_nothing_of_what_the_one_before_wrote(driver: Driver, size: int, tmp_path: Path) -> None:
    given = array(size)
    spec = procq.task(arrays.overwrite_and_fail_once, max_attempts=2, backoff=0).spec(given, str(tmp_path / "failed"))

    handle = driver.started().submit(spec)

    assert handle.result() == [bytes(given.view[:4])]
    assert handle.attempts == 2


@pytest.mark.parametrize("size", SIZES)
def test_I1_a_result_is_another_object_each_time(driver: Driver, size: int) -> None:
    queue = driver.started()
    handle = queue.submit(arrays.make, size)
    first = handle.result()
    first.view[:4] = b"mine"

    assert handle.result() == array(size)
    assert queue.submit(arrays.echo, handle).result() == array(size)
    assert bytes(first.view[:4]) == b"mine"


@pytest.mark.parametrize("size", SIZES)
def test_I1_what_a_task_does_later_to_what_it_returned_is_not_seen(driver: Driver, size: int) -> None:
    queue = driver.started()
    handle = queue.submit(arrays.keep_and_return, size)
    queue.submit(arrays.change_kept).result()

    assert handle.result() == array(size)


@pytest.mark.parametrize("size", SIZES)
def test_E2_a_result_reaches_each_of_its_dependents_unchanged(driver: Driver, size: int) -> None:
    queue = driver.queue()
    one, two = queue.submit(arrays.make, size), queue.submit(arrays.make, size, 2)
    dependents = [queue.submit(arrays.overwrite, one.out, two.out, one.out) for _ in range(3)]
    queue.start()

    begins = [bytes(array(size, first).view[:4]) for first in (1, 2)]
    for dependent in dependents:
        assert dependent.result()[:2] == begins


def test_I1_a_read_only_array_stays_so(driver: Driver) -> None:
    queue = driver.started()
    assert queue.submit(arrays.is_read_only, Array(bytes(100_000))).result()
    assert not queue.submit(arrays.is_read_only, Array(bytearray(100_000))).result()


def test_I1_an_error_may_hold_an_array(driver: Driver) -> None:
    error = driver.started().submit(arrays.fail_with, array(300_000)).exception()

    assert isinstance(error, ValueError)
    assert error.args == (array(300_000),)


def test_C2_the_same_id_with_the_same_array_is_the_same_task_and_with_another_not(driver: Driver) -> None:
    queue = driver.queue()
    echo = procq.task(arrays.echo)
    first = queue.submit(echo.using(id="a").spec(array(300_000)))

    assert queue.submit(echo.using(id="a").spec(array(300_000))) is first
    other = array(300_000)
    other.view[-1] ^= 1
    with pytest.raises(errors.DuplicateTaskError):
        queue.submit(echo.using(id="a").spec(other))


@pytest.mark.parametrize("big", [array(300_000), ["long"] * 50_000], ids=["array", "list"])
def test_C4_F5_of_what_succeeded_no_more_is_kept_than_tells_it_from_others(driver: Driver, big: object) -> None:
    queue = driver.started()
    kinds = procq.task(arrays.types).using(id="a")
    first = queue.submit(kinds.spec(big))
    first.result()

    task = queue._supervisor.scheduler.tasks["a"]
    assert len(task.payload) == 0
    assert queue.submit(kinds.spec(big)) is first
    with pytest.raises(errors.DuplicateTaskError):
        queue.submit(kinds.spec(array(300_000, 2)))


def test_F7_what_failed_or_was_cancelled_keeps_its_arguments_for_a_replay(driver: Driver, tmp_path: Path) -> None:
    queue = driver.queue()
    big = array(300_000)
    cut = queue.submit(procq.task(arrays.ends).using(id="cut").spec(big))
    cut.cancel()
    failing = procq.task(arrays.overwrite_and_fail_once).using(id="failing")
    failed = queue.submit(failing.spec(big, str(tmp_path / "failed")))
    queue.start()
    assert isinstance(failed.exception(), ValueError)

    assert queue.replay("cut") == queue.replay("failing") == 1
    assert cut.result() == arrays.ends(big)
    assert failed.result() == [bytes(big.view[:4])]


@pytest.mark.parametrize("limits", [None, {"ends": 1}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("delay", [0, 100], ids=["ready", "scheduled"])
def test_F5_big_arguments_of_what_was_cancelled_go_with_the_handle(
    driver: Driver, limits: dict[str, int] | None, delay: int
) -> None:
    """At once, not with the next call of the queue."""
    queue = driver.queue(limits=limits)
    handle = queue.submit(procq.task(arrays.ends, delay=delay).spec(array(300_000)))
    payload = task_of(handle).payload
    assert isinstance(payload, Parcel)
    buffer = weakref.ref(payload.buffers[0])
    del payload
    handle.cancel()

    del handle
    assert buffer() is None


def test_F6_dead_letters_are_bounded_in_bytes_too(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("procq.core.letters.SMALL_BYTES", 300_000)
    monkeypatch.setattr("procq.queue.quarter_of_memory", lambda: 1_000_000)
    queue = driver.started()
    handles = [queue.submit(procq.task(arrays.fail_with).spec(array(300_000, first))) for first in range(5)]
    for handle in handles:
        assert isinstance(handle.exception(), ValueError)

    assert [letter.id for letter in queue.dead_letters()] == [handles[-1].id], "each has its argument and its error"
    assert queue.stats().dead_letters_dropped == 4
    assert queue.replay() == 1


def test_F2_arrays_are_mapped_and_their_results_are_their_own(driver: Driver) -> None:
    queue = driver.started()
    found = list(queue.map(arrays.make, [100_000] * 5))
    found[0].view[:4] = b"mine"

    assert found[1:] == [array(100_000)] * 4
    assert list(queue.map(arrays.ends, [array(100_000, first) for first in range(5)])) == [
        (len(array(100_000).view), first, array(100_000, first).view[-1]) for first in range(5)
    ]


@pytest.mark.parametrize("size", SIZES)
def test_I1_bytes_stay_bytes(driver: Driver, size: int) -> None:
    queue = driver.started()
    data = bytes(array(size).view[:size])

    for handle in (queue.submit(arrays.echo, data), queue.submit(arrays.echo, value=data)):
        assert handle.result() == data
        assert type(handle.result()) is bytes
    assert queue.submit(arrays.types, data, [data], bytearray(data), data).result() == [
        "bytes", "list", "bytearray", "bytes",
    ]  # fmt: skip
    assert queue.submit(arrays.echo, queue.submit(arrays.echo, data)).result() == data
    assert queue.submit(lambda *given: given, data, 1, data).result() == (data, 1, data)


@pytest.mark.parametrize("size", [BESIDE_BYTES, 100_000, 3_000_000])
def test_I1_big_bytes_that_were_returned_are_given_out_as_they_came(driver: Driver, size: int) -> None:
    """Nobody can change them, so nobody needs a copy: half of the memory, where there are many."""
    queue = driver.started()
    data = bytes(array(size).view[:size])
    handle = queue.submit(arrays.echo, data)

    assert handle.result() == data
    assert handle.result() is handle.result()
    assert queue.submit(arrays.types, handle.out, [handle.out]).result() == ["bytes", "list"]
    for result in queue.map(arrays.echo, [data] * 3):
        assert type(result) is bytes
        assert result == data


@pytest.mark.parametrize(
    ("given", "as_argument", "as_result"),
    [
        (bytes(10), "bytes", "bytes"),
        (bytearray(10), "bytearray", "bytearray"),
        (bytes(BESIDE_BYTES), "bytes", "read-only memoryview"),
        (bytearray(BESIDE_BYTES), "memoryview", "memoryview"),
    ],
    ids=shown,
)
def test_I1_what_a_class_of_the_user_s_is_rebuilt_from(
    driver: Driver, given: bytes | bytearray, as_argument: str, as_result: str
) -> None:
    """As docs/howto/big-data.md has it."""
    queue = driver.started()

    assert queue.submit(arrays.kind_of, arrays.Kept(given)).result() == as_argument
    assert arrays.kind_of(queue.submit(arrays.Kept, given).result()) == as_result
    in_share = as_result if len(given) < BESIDE_BYTES else "read-only memoryview"
    assert arrays.kind_of(procq.share(arrays.Kept(given)).value) == in_share


def test_I1_a_value_may_have_more_buffers_than_the_kernel_takes_at_once(driver: Driver) -> None:
    queue = driver.started()
    handle = queue.submit(arrays.make_many, 1500)

    assert len(handle.result()) == 1500
    assert queue.submit(len, handle.out).result() == 1500


def test_I1_what_is_made_of_bytes_keeps_its_class(driver: Driver) -> None:
    queue = driver.started()
    for size in (10, 100_000):
        given = [arrays.Marked(size), bytes(size), arrays.Marked(size)]
        assert queue.submit(arrays.types, *given).result() == ["Marked", "bytes", "Marked"]


def test_H3_an_initializer_may_take_an_array(driver: Driver) -> None:
    queue = driver.started(initializer=arrays.overwrite, initargs=(array(300_000),))

    assert queue.submit(arrays.echo, 1).result() == 1
