"""Many threads use one queue at once: no wake-up is lost, every task ends (contract C8, D1)."""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of

from procq import Handle, Queue, Status, TaskSpec, as_completed, task
from procq.errors import TaskCancelled, TaskError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

say = task(tasks.say, max_attempts=2, backoff=0)


class Storm:
    """Threads that submit, cancel and wait at random for a time, and what they have seen."""

    def __init__(self, queue: Queue, log: Path, *, seconds: float, threads: int) -> None:
        self.queue = queue
        self.log = str(log)
        self.ends_at = time.monotonic() + seconds
        self.handles: dict[int, Handle[object]] = {}
        self.errors: list[BaseException] = []
        self.numbers = itertools.count()
        self.answers: dict[int, str] = {}
        self.threads = [threading.Thread(target=self.run, args=(seed,)) for seed in range(threads)]

    def blow(self) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(PATIENCE_S + 10)
        assert not any(thread.is_alive() for thread in self.threads), "a thread waits for what has happened"
        if self.errors:
            raise self.errors[0]

    def run(self, seed: int) -> None:
        chance = random.Random(seed)
        mine: list[tuple[int, Handle[object]]] = []
        try:
            while time.monotonic() < self.ends_at:
                self.act(chance, mine)
            for _, handle in mine:
                handle.wait(PATIENCE_S)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.errors.append(error)

    def act(self, chance: random.Random, mine: list[tuple[int, Handle[object]]]) -> None:
        what = chance.random()
        if what < 0.5 or not mine:
            number = next(self.numbers)
            handle = self.queue.submit(self.spec(chance, number, mine))
            mine.append((number, handle))
            self.handles[number] = handle
        elif what < 0.65:
            number, handle = chance.choice(mine)
            self.answers.setdefault(number, handle.cancel())
        elif what < 0.8:
            self.look(chance.choice(mine)[1])
        elif what < 0.85:
            chance.choice(mine)[1].add_done_callback(lambda handle: handle.attempts)
        elif what < 0.9 and len(mine) > 5:
            for _ in as_completed([handle for _, handle in chance.sample(mine, 3)], PATIENCE_S):
                pass
        else:
            self.queue.stats()
            del mine[: len(mine) // 4]

    def spec(self, chance: random.Random, number: int, mine: list[tuple[int, Handle[object]]]) -> TaskSpec[object]:
        fn = say if chance.random() < 0.8 else task(tasks.say_and_maybe_fail, max_attempts=3, backoff=0.001)
        spec: TaskSpec[object] = fn.spec(self.log, number)
        if chance.random() < 0.1 and mine:
            spec = spec.using(depends_on=[chance.choice(mine)[1]], run_if="done")
        if chance.random() < 0.1:
            spec = spec.using(delay=chance.random() / 20)
        return spec.using(priority=chance.choice((-10, 0, 0, 10)))

    def look(self, handle: Handle[object]) -> None:
        with suppress(TaskCancelled, TaskError, ValueError):
            handle.result(PATIENCE_S)

    def check(self) -> None:
        """Each task ended, ran once for each of its attempts, and never if it was cancelled before the first."""
        for handle in self.handles.values():
            handle.wait(PATIENCE_S)
        check_invariants(self.queue)
        said = Counter(int(text) for text in Path(self.log).read_text().split())
        for number, handle in self.handles.items():
            assert said[number] <= len(handle.history), handle.history
            if handle.ok:
                assert said[number] == len(handle.history), handle.history
            if not handle.history:
                assert self.answers.get(number) == "cancelled"
            if self.answers.get(number) == "cancelled":
                assert handle.status is Status.CANCELLED


@contextmanager
def all_the_while(disturb: Callable[[], None], *, every_s: float) -> Iterator[None]:
    """Call something again and again in a thread of its own until the block ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            disturb()

    disturber = threading.Thread(target=run)
    disturber.start()
    try:
        yield
    finally:
        stop.set()
        disturber.join()


@pytest.mark.slow
def test_no_wake_up_is_lost_when_sixteen_threads_submit_cancel_and_wait(tmp_path: Path) -> None:
    with Queue(workers=2) as queue:
        storm = Storm(queue, tmp_path / "log", seconds=3, threads=16)
        storm.blow()
        storm.check()
        assert len(storm.handles) > 200


@pytest.mark.slow
def test_nor_when_workers_are_killed_all_the_while(tmp_path: Path) -> None:
    with Queue(workers=2) as queue:
        storm = Storm(queue, tmp_path / "log", seconds=2, threads=8)
        chance = random.Random(1)

        def kill_somebody() -> None:
            # Not those that start: too many of them in a row, and the queue gives up (D11).
            with queue._supervisor.lock:
                workers = list(engine_of(queue)._workers.values())
                found = [worker.pid for worker in workers if worker.state in {"idle", "busy"}]
                if found:  # not buried yet, so that nobody else can have its number
                    os.kill(chance.choice(found), signal.SIGKILL)

        with all_the_while(kill_somebody, every_s=0.03):
            storm.blow()
        for handle in storm.handles.values():
            handle.wait(PATIENCE_S)
        check_invariants(queue)
        assert queue.submit(tasks.echo, 1).result(PATIENCE_S) == 1


@pytest.mark.slow
def test_nor_when_the_queue_is_paused_and_resized_all_the_while(tmp_path: Path) -> None:
    with Queue(workers=2) as queue:
        storm = Storm(queue, tmp_path / "log", seconds=2, threads=8)
        chance = random.Random(2)

        def disturb() -> None:
            queue.pause()
            queue.resize(chance.choice((1, 2, 3)))
            queue.resume()

        with all_the_while(disturb, every_s=0.01):
            storm.blow()
        storm.check()


@pytest.mark.parametrize("mode", ["drain", "finish", "kill"])
def test_a_storm_that_a_shutdown_ends_leaves_nobody_waiting(mode: str, tmp_path: Path) -> None:
    from procq.errors import QueueClosedError  # noqa: PLC0415 - for this alone

    queue = Queue(workers=2).start()
    storm = Storm(queue, tmp_path / "log", seconds=30, threads=8)
    for thread in storm.threads:
        thread.start()
    assert wait_until(lambda: len(storm.handles) > 100, PATIENCE_S)
    queue.shutdown(20, mode=mode)  # type: ignore[arg-type]  # one of the modes
    for thread in storm.threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in storm.threads)
    assert {type(error) for error in storm.errors} <= {QueueClosedError}
    assert all(handle.done() for handle in storm.handles.values())
    if mode == "drain":
        cancelled = [handle for handle in storm.handles.values() if handle.status is Status.CANCELLED]
        assert all(handle._task.cause == "cancelled" for handle in cancelled)


def test_one_handle_is_waited_for_by_many_threads() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.sleep, 0.1, ["value"])
        got: list[object] = []
        threads = [threading.Thread(target=lambda: got.append(handle.result(PATIENCE_S))) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert got == [["value"]] * 20
    assert len({id(value) for value in got}) == 20, "each has an object of its own"


def test_waits_that_give_up_leave_nothing_behind() -> None:
    with Queue(workers=1) as queue:
        handle = queue.submit(tasks.sleep, 0.3)
        for _ in range(50):
            with pytest.raises(TimeoutError):
                handle.wait(0)
        assert not handle._task.listeners
        handle.wait(PATIENCE_S)
