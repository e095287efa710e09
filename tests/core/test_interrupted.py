"""What Ctrl-C ended at any moment and is then gone on with, or done again (contract C4, F2)."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.interrupting import CALLS, SUPERVISOR, Interrupter, Rebuilt, counted, counted_or_failed, first_calls

from procq import Handle, Queue, as_completed, task, testing

#: Not what an inline queue calls while it plays the worker, too.
MODULES = ("procq.mapping", "procq.source", "procq.change", "procq.handle", "procq.queue", "procq.batch", "procq.spec")
#: Whatever else a call of the façade goes through.
ALL = (*MODULES, *SUPERVISOR, "procq.core.scheduler", "procq.core.letters", "weakref")


def take_all(results: Iterator[Any], interrupter: Interrupter) -> tuple[list[object], int]:
    """Take all results, and go on after interrupts; return them, and how many interrupts there were."""
    taken: list[object] = []
    interrupted = 0
    while True:
        try:
            with interrupter.watching():
                for result in results:
                    taken.append(result)  # noqa: PERF402 - what was taken before the interrupt counts
        except KeyboardInterrupt:
            interrupted += 1
        except LookupError as error:
            taken.append(str(error))
        else:
            return taken, interrupted


def at_every_moment(once: Callable[[Interrupter], int], modules: tuple[str, ...] = MODULES) -> int:
    """Do something again and again, each time interrupted a moment later, until none is left; return how many."""
    number = interrupted = 0
    while True:
        interrupter = Interrupter(number, *modules)
        CALLS.clear()
        interrupted += once(interrupter)
        if not interrupter.done:
            assert interrupted == number
            return number
        number += 1


def test_nothing_is_interrupted_amid_a_finalizer_where_python_would_only_tell_of_it() -> None:
    """Whose turn comes at any moment: a handle of an earlier test's may be collected in a later one."""
    with testing.inline() as queue:
        handles = [queue.submit(counted, 1)]
        interrupter = Interrupter(0, *ALL)
        with interrupter.watching():
            handles.clear()
        assert not interrupter.done


def big_result(queue: Queue) -> object:
    """Return the only handle of a task that is let go of as soon as that is."""
    handle = queue.submit(bytes, 100_000)
    handle.wait()
    return handle


def begun_map(queue: Queue) -> object:
    return queue.map(counted, itertools.count())


def begun_wait(queue: Queue) -> object:
    return as_completed([queue.submit(task(counted, delay=3600).spec(1))])


def with_a_spec(queue: Queue) -> object:
    """Return a spec that the queue knows, and forgets with it."""
    spec = task(counted).spec(1)
    queue.submit(spec)
    return spec


def other_queue(_: Queue) -> object:
    other = testing.inline().start()
    other.submit(counted, 1)
    return other


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:a Queue was dropped:ResourceWarning")
@pytest.mark.parametrize("make", [big_result, begun_map, begun_wait, with_a_spec, other_queue])
@first_calls
def test_G4_ctrl_c_amid_a_finalizer_of_ours_comes_after_it(make: Callable[[Queue], object]) -> None:
    """Python would only tell of it, and the program would go on."""
    number = 0
    with testing.inline() as queue:
        while True:
            things = [make(queue)]
            interrupter = Interrupter(number, *ALL, "procq.testing", amid_finalizers=True)
            try:
                with interrupter.watching():
                    things.clear()
                if not interrupter.done:
                    break
                threading.Event().wait(20)
            except KeyboardInterrupt:
                number += 1
            else:
                pytest.fail(f"Ctrl-C was lost at moment {number}")
        queue.shutdown(mode="kill")

    assert number > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("chunksize", [1, 3, "auto"])
def test_F2_a_map_that_was_interrupted_goes_on_and_loses_nothing(ordered: bool, chunksize: Any) -> None:  # noqa: ANN401, FBT001
    """Nor does anything come or run twice."""
    # Of three chunks the last is not whole, not all fit into the buffer, and the last of all fails; each
    # number more costs twice, for there are more moments, and more is done again after each.
    numbers = range(3, 10)
    expected = [str(n) if n % 5 == 4 else Rebuilt(n) if n % 3 == 1 else n for n in numbers]

    def once(interrupter: Interrupter) -> int:
        with testing.inline() as queue:
            results = queue.map(counted_or_failed, iter(numbers), ordered=ordered, chunksize=chunksize, buffersize=6)
            taken, interrupted = take_all(results, interrupter)
        assert (taken if ordered else sorted(taken, key=repr)) == (expected if ordered else sorted(expected, key=repr))
        assert sorted(CALLS) == list(numbers)
        return interrupted

    assert at_every_moment(once) > 50  # of three chunks on 3.13, which looks for signals less often, 75


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_F2_as_completed_that_was_interrupted_goes_on_and_loses_nothing() -> None:
    def once(interrupter: Interrupter) -> int:
        with testing.inline() as queue:
            handles: list[Handle[int]] = [queue.submit(counted, number) for number in range(5)]
            completed = as_completed(handles, 60)
            taken, interrupted = take_all(completed, interrupter)
        assert taken == handles
        return interrupted

    assert at_every_moment(once) > 10


@pytest.mark.timeout(300)
@first_calls
def test_C4_a_spec_whose_submit_was_interrupted_is_the_same_task_when_it_is_submitted_again() -> None:
    def once(interrupter: Interrupter) -> int:
        spec = task(counted).spec(1)
        interrupted = 0
        with testing.inline() as queue:
            try:
                with interrupter.watching():
                    queue.submit(spec)
            except KeyboardInterrupt:
                interrupted = 1
            assert queue.submit(spec).result() == 1
        assert CALLS == [1]
        return interrupted

    assert at_every_moment(once, ALL) > 10


@pytest.mark.timeout(300)
def test_F7_a_purge_that_was_interrupted_is_done_or_undone() -> None:
    def once(interrupter: Interrupter) -> int:
        interrupted = 0
        with testing.inline() as queue:
            handle = queue.submit(task(counted_or_failed, id="failed").spec(4))
            handle.wait()
            try:
                with interrupter.watching():
                    queue.purge()
            except KeyboardInterrupt:
                interrupted = 1
            assert ("failed" in queue._supervisor.scheduler.tasks) == bool(queue.dead_letters())
        return interrupted

    assert at_every_moment(once, ALL) > 3
