"""Many callers at once, and calls from callbacks: nobody is forgotten (contract C6, C8, F4, G4; PAIN H42).

The storms at random are in test_threads.py; here each situation is made on purpose.
"""

import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import pytest
from tests.support import process_tasks as tasks, surrounding_tasks
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of
from tests.support.process_tasks import Gate

from procq import Handle, Queue, Status, task
from procq.engine.local import engine
from procq.engine.local.loop import Events, Loop
from procq.errors import QueueClosedError, QueueFullError, TaskCancelled, UnknownDependencyError
from procq.handle import task_of

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

Mode = Literal["drain", "finish", "kill"]


def known_tasks(queue: Queue) -> int:
    with queue._supervisor.lock:
        return len(queue._supervisor.scheduler.tasks)


def waiting_for_room(queue: Queue) -> int:
    with queue._supervisor.lock:
        return len(queue._supervisor.room.turns)


def succeeded(queue: Queue) -> int:
    return queue.stats().counts[Status.SUCCEEDED]


@contextmanager
def threads(number: int, work: Callable[[int], object]) -> Iterator[list[Any]]:
    """Do work in so many threads beside the test, and raise what they raised; the list gets what they returned."""
    results: list[Any] = []
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(work, index) for index in range(number)]
        yield results
        results += [future.result(PATIENCE_S) for future in futures]


@contextmanager
def loop_held_up(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the loop's thread hear nothing meanwhile, as if it did not get the interpreter."""
    is_held, free = threading.Event(), threading.Event()
    poll = Loop.poll

    def held_up(loop: Loop, wait_s: float, nap_s: float = 0.0) -> Events:
        events = poll(loop, wait_s, nap_s)
        is_held.set()
        free.wait(PATIENCE_S)
        return events

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "poll", held_up)
        # It sleeps in the true one, which returns; then it comes here.
        while not is_held.wait(0.001):
            engine_of(queue).alarm()
        try:
            yield
        finally:
            free.set()


# --- no wake-up is lost ---


def test_a_result_is_never_missed_by_the_thread_that_waits_for_it() -> None:
    """One task at a time in each of many threads: whoever misses a wake-up waits for ever."""

    def ask(queue: Queue, index: int) -> None:
        for number in range(150):
            assert queue.submit(tasks.echo, (index, number)).result(PATIENCE_S) == (index, number)

    with Queue(workers=2) as queue, threads(12, lambda index: ask(queue, index)):
        pass
    assert succeeded(queue) == 12 * 150


def test_G6_a_caller_that_hears_of_the_last_failure_halts_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop, which has other things to do, may not come to it for a while."""
    with Queue(workers=1, max_failures=1) as queue:
        queue.submit(tasks.echo, 1).wait(PATIENCE_S)
        with loop_held_up(queue, monkeypatch):
            failing = queue.submit(tasks.fail, "no")
            waiting = queue.submit(task(tasks.echo, delay=3600).spec(1))

            def is_refused() -> bool:
                try:
                    queue.submit(tasks.echo, 1)
                except QueueClosedError:
                    return True
                return False

            assert wait_until(is_refused)
            assert (failing.status, waiting.status) == (Status.FAILED, Status.CANCELLED)


def test_H42_delayed_tasks_run_once_and_never_early_whatever_else_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    chance = random.Random(42)
    delayed = task(surrounding_tasks.say_number_and_instant)
    stop = threading.Event()

    def bustle(queue: Queue, index: int) -> None:
        chance = random.Random(index)
        while not stop.is_set():
            handles = [queue.submit(tasks.echo, number) for number in range(5)]
            handles.append(queue.submit(task(tasks.echo, delay=chance.random()).spec(1)))
            for handle in chance.sample(handles, 3):
                handle.cancel()
            handles[0].wait(PATIENCE_S)

    with Queue(workers=4) as queue, threads(3, lambda index: bustle(queue, index)):
        try:
            due, handles = [], []
            for number in range(100):
                delay_s = chance.uniform(0.1, 1.0)
                due.append(time.monotonic() + delay_s)
                handles.append(queue.submit(delayed.using(delay=delay_s).spec(str(log), number)))
            for handle in handles:
                handle.result(PATIENCE_S)
        finally:
            stop.set()

    ran = [line.split(":") for line in log.read_text().split()]
    assert Counter(int(number) for number, _ in ran) == Counter(range(100))
    assert all(float(instant) >= due[int(number)] for number, instant in ran)


# --- the caller's thread does the loop's work ---


def test_a_thread_that_submits_hears_results_although_the_loop_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that submits without a pause keeps the loop from the interpreter; workers must not idle for that."""
    with Queue(workers=1) as queue:
        for handle in [queue.submit(tasks.echo, number) for number in range(50)]:
            handle.result(PATIENCE_S)
        with loop_held_up(queue, monkeypatch):
            handles = [queue.submit(tasks.echo, number) for number in range(500)]
            assert wait_until(lambda: queue.submit(tasks.echo, 0) is not None and handles[-1].done(), PATIENCE_S)
        assert [handle.result(PATIENCE_S) for handle in handles] == list(range(500))
        check_invariants(queue)


def test_a_thread_that_waits_for_a_brief_task_hears_its_end_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_IMMINENT_S", 10.0)  # the machine may have other work to do
    with Queue(workers=1) as queue:
        for number in range(50):
            queue.submit(tasks.echo, number).result(PATIENCE_S)
        with loop_held_up(queue, monkeypatch):
            assert wait_until(lambda: queue._supervisor.look_out(task_of(queue.submit(tasks.echo, 1))), PATIENCE_S)
        check_invariants(queue)


@pytest.mark.parametrize("way", ["submit", "wait"])
def test_B3_a_retry_that_a_caller_heard_of_comes_when_it_is_due(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop, which sleeps without end, has not heard of it and must be told."""
    again = task(tasks.fail_first, max_attempts=2, backoff=0)
    wakes: list[float | None] = []
    wake = Loop.wake

    def noted(loop: Loop, by: float | None = None) -> None:
        wakes.append(by)
        wake(loop, by)

    monkeypatch.setattr(engine, "_IMMINENT_S", 10.0)  # the machine may have other work to do
    with Queue(workers=1) as queue:
        for number in range(50):
            queue.submit(again.spec(str(tmp_path / f"{number}"), number)).result(PATIENCE_S)
        with loop_held_up(queue, monkeypatch), monkeypatch.context() as patch:
            patch.setattr(Loop, "wake", noted)
            handle = queue.submit(again.using(backoff=3600).spec(str(tmp_path / "new"), 1))
            if way == "submit":
                assert wait_until(lambda: queue.submit(tasks.echo, 0) is not None and bool(handle.history), PATIENCE_S)
            else:
                assert wait_until(lambda: hears(queue, handle), PATIENCE_S)
            assert queue._supervisor.scheduler.next_due() in wakes
        handle.cancel()


def hears(queue: Queue, handle: Handle[object]) -> bool:
    queue._supervisor.look_out(task_of(handle))
    return bool(handle.history)


def test_nobody_looks_out_for_a_task_that_may_last(tmp_path: Path) -> None:
    """Neither for one of an unknown type nor for one that waits: a thread that waits for those sleeps."""
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        slow = queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        waits = queue.submit(tasks.echo, 1)

        assert not queue._supervisor.look_out(task_of(slow))
        assert not queue._supervisor.look_out(task_of(waits))
        gate.open()
        assert waits.result(PATIENCE_S) == 1


# --- submits and shutdowns ---


@pytest.mark.parametrize("mode", ["drain", "finish", "kill"])
def test_C7_a_submit_that_races_a_shutdown_is_refused_or_its_task_ends(mode: Mode) -> None:
    for size in range(6):
        queue = Queue(workers=2, kill_grace=0.1).start()
        begun = threading.Semaphore(0)

        def submit_on(_: int, queue: Queue = queue, begun: threading.Semaphore = begun) -> list[Handle[object]]:
            handles: list[Handle[object]] = []
            try:
                while True:
                    handles.append(queue.submit(tasks.echo, len(handles)))
                    begun.release()
            except QueueClosedError:
                return handles

        with threads(4, submit_on) as accepted:
            for _ in range(size**3):
                assert begun.acquire(timeout=PATIENCE_S)
            report = queue.shutdown(mode=mode)
        handles = [handle for some in accepted for handle in some]

        assert all(handle.done() for handle in handles)
        assert len(handles) == report.succeeded + report.cancelled
        assert report.drained == (report.cancelled == 0)
        assert mode != "drain" or report.drained
        check_invariants(queue)


def test_a_start_that_races_submits_and_a_shutdown() -> None:
    for number in range(20):
        queue = Queue(workers=2)
        handles: SimpleQueue[Handle[object]] = SimpleQueue()

        def act(index: int, queue: Queue = queue, handles: "SimpleQueue[Handle[object]]" = handles) -> None:
            try:
                if index == 0:
                    queue.start()
                else:
                    handles.put(queue.submit(tasks.echo, 1))
            except QueueClosedError:
                pass

        with threads(3, act):
            if number % 2:
                queue.shutdown(mode="kill")
        queue.shutdown()
        while not handles.empty():
            assert handles.get().done()


# --- waiting for room ---


def fill(queue: Queue, gate: Gate) -> None:
    """Make a queue with one worker and `max_pending=1` full until the gate opens."""
    queue.submit(task(tasks.pass_gate, id="taken").spec(gate.path))
    gate.wait_begun()
    queue.submit(tasks.nothing)


@pytest.mark.parametrize("mode", ["drain", "kill"])
def test_C6_a_shutdown_frees_every_submit_that_waits_for_room(mode: Mode, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    queue = Queue(workers=1, max_pending=1, kill_grace=0.1).start()
    fill(queue, gate)

    def submit(_: int) -> None:
        with pytest.raises(QueueClosedError):
            queue.submit(tasks.nothing)

    with threads(12, submit), ThreadPoolExecutor(1) as closing:
        assert wait_until(lambda: waiting_for_room(queue) == 12)
        closed = closing.submit(queue.shutdown, mode=mode)
        assert wait_until(lambda: waiting_for_room(queue) == 0)
        if mode == "drain":
            gate.open()
        assert closed.result(PATIENCE_S).drained == (mode == "drain")


def test_C6_many_producers_share_little_room() -> None:
    waited: list[int] = []

    def produce(queue: Queue, index: int) -> None:
        for number in range(100):
            queue.submit(tasks.echo, (index, number))
            counts = queue.stats().counts
            waited.append(counts[Status.READY] + counts[Status.SCHEDULED] + counts[Status.BLOCKED])

    with Queue(workers=2, max_pending=3) as queue, threads(8, lambda index: produce(queue, index)):
        pass
    assert succeeded(queue) == 800
    assert max(waited) <= 3


def test_C6_who_is_let_in_and_refused_after_all_passes_the_room_on(tmp_path: Path) -> None:
    """Else the next one would wait until something else happens, and nothing need happen any more."""
    gate = Gate(tmp_path)
    with Queue(workers=1, max_pending=1) as queue:
        fill(queue, gate)

        def submit_in_vain(_: int) -> None:
            with pytest.raises(UnknownDependencyError):
                queue.submit(task(tasks.nothing, depends_on=["nobody"]).spec())

        with threads(4, submit_in_vain), ThreadPoolExecutor(1) as last:
            assert wait_until(lambda: waiting_for_room(queue) == 4)
            late = last.submit(queue.submit, tasks.echo, "let in")
            assert wait_until(lambda: waiting_for_room(queue) == 5)
            gate.open()
            assert late.result(PATIENCE_S).result(PATIENCE_S) == "let in"


def test_C6_who_waits_longest_for_room_is_not_overtaken_by_those_who_need_less(tmp_path: Path) -> None:
    gates = [Gate(tmp_path, name) for name in "ab"]
    with Queue(workers=1, max_pending_bytes=10_000) as queue:
        for gate in gates:
            queue.submit(surrounding_tasks.pass_gate_with, gate.path, bytes(4500))
        gates[0].wait_begun()
        with ThreadPoolExecutor(2) as pool:
            big = pool.submit(queue.submit, tasks.length, bytes(9000))
            assert wait_until(lambda: waiting_for_room(queue) == 1)
            small = pool.submit(queue.submit, tasks.length, bytes(2000))
            assert wait_until(lambda: waiting_for_room(queue) == 2)
            gates[0].open()  # there is room for the small one now
            gates[1].wait_begun()
            assert waiting_for_room(queue) == 2
            gates[1].open()
            assert big.result(PATIENCE_S).result(PATIENCE_S) == 9000
            assert small.result(PATIENCE_S).result(PATIENCE_S) == 2000


def crowded(queue: Queue) -> list[Handle[object]]:
    """Have three tasks wait where there is room for one; the first of them as "old"."""
    later = task(tasks.echo, delay=3600)
    return queue.submit_many([later.using(id="old").spec(1), later.spec(2), later.spec(3)])


def replace(queue: Queue, arg: object) -> Handle[object]:
    return queue.submit(task(tasks.echo, id="old").spec(arg), on_conflict="replace")


def test_C6_a_replacement_that_waits_is_let_in_when_there_is_room_but_for_what_it_replaces() -> None:
    """That one may be due in an hour, and nothing else may happen until then."""
    with ThreadPoolExecutor(1) as pool, Queue(workers=1, max_pending=1) as queue:
        _, *others = crowded(queue)
        new = pool.submit(replace, queue, "new")
        assert wait_until(lambda: waiting_for_room(queue) == 1)
        for other in others:
            other.cancel()
        assert new.result(PATIENCE_S).result(PATIENCE_S) == "new"


def test_C6_a_replacement_does_not_wait_behind_those_who_need_room_of_their_own() -> None:
    with ThreadPoolExecutor(2) as pool, Queue(workers=1, max_pending=1) as queue:
        old, *others = crowded(queue)
        last = pool.submit(queue.submit, tasks.echo, "last")
        assert wait_until(lambda: waiting_for_room(queue) == 1)
        new = pool.submit(replace, queue, "new")
        assert wait_until(lambda: waiting_for_room(queue) == 2)
        for other in others:
            other.cancel()
        assert new.result(PATIENCE_S).result(PATIENCE_S) == "new"
        assert old.status is Status.CANCELLED
        assert last.result(PATIENCE_S).result(PATIENCE_S) == "last"


def test_C6_a_replacement_in_bytes_is_let_in_when_what_it_replaces_makes_room() -> None:
    with ThreadPoolExecutor(1) as pool, Queue(workers=1, max_pending_bytes=10_000) as queue:
        later = task(tasks.echo, delay=3600)
        queue.submit(later.using(id="old").spec(bytes(8500)))
        other = queue.submit(task(tasks.echo, delay=3600).spec(bytes(900)))
        new = pool.submit(replace, queue, bytes(9200))
        assert wait_until(lambda: waiting_for_room(queue) == 1)
        other.cancel()
        assert len(new.result(PATIENCE_S).result(PATIENCE_S)) == 9200  # type: ignore[arg-type]


def test_C6_a_replacement_needs_a_place_once_what_it_replaces_has_gone() -> None:
    """It was there when the wait began, and has been cancelled since."""
    with ThreadPoolExecutor(1) as pool, Queue(workers=1, max_pending=1) as queue:
        old, other, third = crowded(queue)
        new = pool.submit(replace, queue, "new")
        assert wait_until(lambda: waiting_for_room(queue) == 1)
        old.cancel()
        other.cancel()
        with pytest.raises(TimeoutError):
            new.result(0.05)
        third.cancel()
        assert new.result(PATIENCE_S).result(PATIENCE_S) == "new"


def test_C6_who_gives_up_waiting_harms_nobody(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=1, max_pending=1) as queue:
        fill(queue, gate)

        def give_up(index: int) -> None:
            with pytest.raises(QueueFullError, match="no room came within"):
                queue.submit(task(tasks.nothing).spec(), timeout=0.01 * index)

        with ThreadPoolExecutor(1) as last:
            with threads(8, give_up):
                late = last.submit(queue.submit, tasks.echo, "let in")
            assert wait_until(lambda: waiting_for_room(queue) == 1)
            gate.open()
            assert late.result(PATIENCE_S).result(PATIENCE_S) == "let in"


# --- handles that go ---


def test_F5_handles_let_go_in_other_threads_while_their_tasks_end() -> None:
    given: SimpleQueue[Handle[object] | None] = SimpleQueue()

    def let_go(_: int) -> None:
        while given.get() is not None:
            pass

    with Queue(workers=2) as queue:
        with threads(4, let_go):
            for number in range(2000):
                handle = queue.submit(tasks.echo, number)
                if number % 3 == 0:
                    handle.add_done_callback(lambda _: None)
                given.put(handle)
                del handle
            for _ in range(4):
                given.put(None)
        assert wait_until(lambda: succeeded(queue) == 2000)
        last = queue.submit(tasks.nothing)
        last.wait(PATIENCE_S)

        assert wait_until(lambda: known_tasks(queue) == 1)
        check_invariants(queue)


def test_handles_in_cycles_are_let_go_by_the_collector_in_whatever_thread() -> None:
    """It may run anywhere, also while this thread holds the queue's lock."""

    def make_cycles(queue: Queue, index: int) -> None:
        for number in range(200):
            cycle: list[object] = [queue.submit(tasks.echo, number)]
            cycle.append(cycle)
            if number % 20 == index:
                gc.collect()

    threshold = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        with Queue(workers=2) as queue:
            with threads(4, lambda index: make_cycles(queue, index)):
                pass
            assert wait_until(lambda: succeeded(queue) == 800)
            gc.collect()
            last = queue.submit(tasks.nothing)
            last.wait(PATIENCE_S)
            assert known_tasks(queue) == 1
            check_invariants(queue)
    finally:
        gc.set_threshold(*threshold)


# --- calls from callbacks ---


def test_C8_callbacks_that_submit() -> None:
    ended = threading.Event()
    seen: list[object] = []

    with Queue(workers=2) as queue:

        def go_on(handle: Handle[object]) -> None:
            seen.append(handle.result())
            if len(seen) == 100:
                ended.set()
            else:
                queue.submit(tasks.echo, len(seen)).add_done_callback(go_on)

        queue.submit(tasks.echo, 0).add_done_callback(go_on)
        assert ended.wait(PATIENCE_S)
    assert seen == list(range(100))


def test_F4_callbacks_that_cancel_and_wait() -> None:
    with Queue(workers=2, kill_grace=0.1) as queue:
        long = [queue.submit(tasks.sleep_forever) for _ in range(2)]
        waiting = [queue.submit(tasks.echo, number) for number in range(10)]
        cancelled: SimpleQueue[list[BaseException | None]] = SimpleQueue()

        def cancel_all(_: Handle[object]) -> None:
            every: list[Handle[Any]] = [*waiting, *long]
            for handle in every:
                handle.cancel()
            cancelled.put([handle.exception(PATIENCE_S) for handle in every])

        waiting[0].add_done_callback(cancel_all)
        waiting[0].cancel()
        errors = cancelled.get(timeout=PATIENCE_S)

    assert len(errors) == 12
    assert {type(error) for error in errors} == {TaskCancelled}


@pytest.mark.parametrize("mode", ["drain", "finish", "kill"])
def test_G4_callbacks_that_shut_down(mode: Mode) -> None:
    queue = Queue(workers=2, kill_grace=0.1).start()
    reports: SimpleQueue[Any] = SimpleQueue()
    handles = [queue.submit(tasks.echo, number) for number in range(20)]
    for handle in handles[::5]:
        handle.add_done_callback(lambda _: reports.put(queue.shutdown(mode=mode)))

    first = reports.get(timeout=PATIENCE_S)

    assert queue.shutdown() == first
    assert [reports.get(timeout=PATIENCE_S) for _ in range(3)] == [first] * 3
    assert all(handle.done() for handle in handles)
