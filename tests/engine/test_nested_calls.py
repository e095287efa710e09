"""A signal handler or a `__del__` calls a queue amid another call of it, in the same thread (contract C8, G1).

A call that would wait for itself is refused and has done nothing; all others do what they always do.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.support.interrupting import SUPERVISOR, Interrupter, first_calls
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants
from tests.support.process_tasks import Gate, pass_gate

from procq import Handle, Queue, Status, task, testing
from procq.errors import EngineError, ProcqError, QueueFullError, TaskCancelled, UsageError
from procq.lock import NestedCallError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

CALLING = (
    *SUPERVISOR,
    "procq.queue",
    "procq.handle",
    "procq.batch",
    "procq.core.scheduler",
    "procq.core.graph",
    "procq.core.letters",
)
REFUSED = "amid another call of the same queue"

Call = Callable[[Queue], object]

echo = task(len)
failing = task(int, type="failing")


def nested(call: Callable[[], object], outcomes: list[object]) -> Callable[[int, FrameType | None], object]:
    """Return a handler that makes a call and notes what came of it: None, or the error that refused it."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        try:
            call()
        except UsageError as error:
            assert REFUSED in str(error)  # noqa: PT017 - one of two ways to go on
            outcomes.append(error)
        else:
            outcomes.append(None)

    return handler


def at_every_moment(
    outer: Call, inner: Call, *, finish: Callable[[Queue, list[object]], object], make: Callable[[], Queue]
) -> list[object]:
    """Make a call, each time with another amid it one moment later; return what came of those."""
    outcomes: list[object] = []
    number = 0
    while True:
        queue = make()
        interrupter = Interrupter(number, *CALLING, handler=nested(lambda: inner(queue), outcomes))  # noqa: B023
        with interrupter.watching():
            outer(queue)
        finish(queue, outcomes)
        queue.shutdown(mode="kill")
        if not interrupter.done:
            return outcomes
        number += 1


def paused() -> Queue:
    """Return a queue that starts nothing, so that what is in it stays there."""
    queue = testing.inline().start()
    queue.pause()
    queue.submit(echo.using(id="there").spec("abc"))
    return queue


def check_whole(queue: Queue, _outcomes: list[object]) -> None:
    check_invariants(queue)
    queue._supervisor.check_whole()


INNER: dict[str, Call] = {
    "submit": lambda queue: queue.submit(len, "abcd"),
    "submit a spec": lambda queue: queue.submit(echo.spec("abcd")),
    "submit_many": lambda queue: queue.submit_many([echo.spec("abcd"), echo.spec("x")]),
    "cancel": lambda queue: queue.cancel("there"),
    "stats": lambda queue: queue.stats(),
    "dead_letters": lambda queue: queue.dead_letters(),
    "replay": lambda queue: queue.replay(),
    "purge": lambda queue: queue.purge(),
    "pause": lambda queue: queue.pause(),
    "resize": lambda queue: queue.resize(3),
    "start": lambda queue: queue.start(),
}
OUTER = INNER | {"map": lambda queue: queue.map(len, ["abcd"])}


@first_calls
@pytest.mark.slow
@pytest.mark.parametrize("inner", INNER)
def test_C8_a_call_amid_a_submit_is_made_or_refused_and_never_waits_for_itself(inner: str) -> None:
    outcomes = at_every_moment(lambda queue: queue.submit(len, "abc"), INNER[inner], finish=check_whole, make=paused)

    assert len(outcomes) > 10
    assert any(outcomes), "none came while the lock was held"
    assert not all(outcomes), "none was made"


@first_calls
@pytest.mark.slow
@pytest.mark.parametrize("outer", OUTER)
def test_C8_a_submit_amid_any_call_is_made_or_refused_and_never_waits_for_itself(outer: str) -> None:
    """And what was refused has left nothing."""
    before = 0

    def finish(queue: Queue, outcomes: list[object]) -> None:
        nonlocal before
        check_whole(queue, outcomes)
        there = [one for one in queue._supervisor.scheduler.tasks.values() if one.type == "failing"]
        made = len(outcomes) > before and outcomes[-1] is None
        assert len(there) == made
        before = len(outcomes)

    kept: list[Handle[Any]] = []
    outcomes = at_every_moment(
        OUTER[outer], lambda queue: kept.append(queue.submit(failing.spec("x"))), finish=finish, make=paused
    )

    assert any(outcomes)
    assert not all(outcomes)


@first_calls
def test_C8_a_handler_that_lets_the_refusal_out_breaks_off_the_call_that_it_interrupted() -> None:
    """As any error that a handler raises would; it is never taken for a refusal of that call."""
    number = torn = 0
    while True:
        queue = Queue(workers=1).start()
        queue.submit(len, "abc").result(PATIENCE_S)

        def handler(_number: int, _frame: FrameType | None) -> None:
            queue.stats()  # noqa: B023

        interrupter = Interrupter(number, *SUPERVISOR, "procq.core.scheduler", handler=handler)
        try:
            with interrupter.watching():
                queue.submit(len, "abc")
        except UsageError as error:
            assert REFUSED in str(error)  # noqa: PT017
        try:
            assert queue.submit(len, "abc").result(PATIENCE_S) == 3
            check_invariants(queue)
        except EngineError as error:
            assert "interrupted amid a change" in str(error)  # noqa: PT017
            torn += 1
        queue.shutdown(mode="kill")
        if not interrupter.done:
            break
        number += 1

    assert number > torn > 5


@first_calls
@pytest.mark.parametrize("mode", ["drain", "kill"])
def test_G1_a_handler_may_shut_down_amid_a_shutdown(mode: Any) -> None:  # noqa: ANN401
    """Also while that one waits for the end."""
    outcomes: list[object] = []
    number = 0
    while True:
        queue = Queue(workers=1).start()
        queue.submit(len, "abc")
        call = nested(lambda: queue.shutdown(mode="kill"), outcomes)  # noqa: B023
        interrupter = Interrupter(number, *SUPERVISOR, "threading", handler=call)
        with interrupter.watching():
            queue.shutdown(mode=mode)
        if not interrupter.done:
            break
        number += 1

    assert not all(outcomes)
    assert number > 20


def waits_in(name: str) -> Callable[[], bool]:
    """Return a function that tells whether the main thread is in a function of this name."""
    main = threading.main_thread().ident
    assert main is not None

    def waits() -> bool:
        frame: FrameType | None = sys._current_frames()[main]
        return frame is not None and frame.f_code.co_name == name

    return waits


@pytest.fixture
def signals() -> Iterator[Callable[[Callable[[], object], str], threading.Thread]]:
    """Have a signal handler make a call as soon as the main thread waits in a function."""
    before = signal.getsignal(signal.SIGUSR1)

    def arrange(call: Callable[[], object], name: str) -> threading.Thread:
        signal.signal(signal.SIGUSR1, lambda *_: call())

        def send() -> None:
            assert wait_until(waits_in(name), PATIENCE_S)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        thread = threading.Thread(target=send)
        thread.start()
        return thread

    yield arrange
    signal.signal(signal.SIGUSR1, before)


def test_F3_a_handler_may_cancel_what_its_thread_waits_for(
    signals: Callable[[Callable[[], object], str], threading.Thread], tmp_path: Path
) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        handle = queue.submit(pass_gate, gate.path)
        gate.wait_begun()
        sender = signals(handle.cancel, "_get")
        with pytest.raises(TaskCancelled):
            handle.result(PATIENCE_S)
        sender.join()

    assert handle.status is Status.CANCELLED


def test_C6_a_handler_that_submits_while_its_thread_waits_for_room_is_refused(
    signals: Callable[[Callable[[], object], str], threading.Thread],
) -> None:
    """It would stand behind what it interrupted, which cannot go on before it has returned."""
    told: list[str] = []

    def submit_and_make_room() -> None:
        for block in (True, False):
            try:
                queue.submit(echo.spec("abcd"), block=block)
            except ProcqError as error:
                told.append(type(error).__name__)
        queue.resume()

    with Queue(workers=1, max_pending=1) as queue:
        queue.pause()
        queue.submit(len, "abc")
        sender = signals(submit_and_make_room, "_wait_in_turn")
        assert queue.submit(len, "abc").result(PATIENCE_S) == 3
        sender.join()

    assert told == ["NestedCallError", QueueFullError.__name__]


class Submitting:
    """Submits when it is deleted, wherever that happens."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __del__(self) -> None:
        self._queue.submit(len, "abc")


def test_C8_a_del_that_calls_the_queue_while_its_thread_holds_the_lock_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python tells what a `__del__` raises, and goes on."""
    raised: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: raised.append(told.exc_value))
    with Queue(workers=1) as queue:
        dropped = Submitting(queue)
        with queue._supervisor.lock:
            del dropped

        assert [type(error) for error in raised] == [NestedCallError]
        assert queue.submit(len, "abc").result(PATIENCE_S) == 3
    raised.clear()


def test_F5_a_big_result_that_is_dropped_while_the_lock_is_held_is_let_go_of_later() -> None:
    """The lock could be taken again; what it guards is amid a change all the same."""
    with Queue(workers=1) as queue:
        handle = queue.submit(bytes, 10**6)
        handle.result(PATIENCE_S)
        supervisor = queue._supervisor
        with supervisor.lock:
            task_id = handle.id
            del handle
            assert task_id in supervisor.scheduler.tasks
        queue.submit(len, "abc").result(PATIENCE_S)

        assert task_id not in supervisor.scheduler.tasks
