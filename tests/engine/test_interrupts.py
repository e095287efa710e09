"""What is left of a queue when Ctrl-C broke off a change or its start (contract G2, G4)."""

import ast
import inspect
from pathlib import Path

import pytest
from tests.support.leaks import wait_until
from tests.support.looking import PATIENCE_S, run_file
from tests.support.process_tasks import Gate, pass_gate

from procq import Queue, interrupts, task
from procq.errors import DuplicateTaskError, EngineError, WorkerStartError
from procq.supervisor import Supervisor

pytestmark = pytest.mark.processes


def test_a_change_that_was_broken_off_ends_the_queue_at_once(tmp_path: Path) -> None:
    """And not when the next task happens to end."""
    gate = Gate(tmp_path)
    queue = Queue(workers=1).start()
    queue.submit(pass_gate, gate.path)
    gate.wait_begun()
    supervisor = queue._supervisor
    with pytest.raises(KeyboardInterrupt), supervisor.lock, supervisor._change:
        raise KeyboardInterrupt

    assert wait_until(lambda: supervisor.bug is not None, PATIENCE_S)
    with pytest.raises(EngineError, match="interrupted amid a change"):
        queue.submit(len, "abc")
    assert not queue.shutdown(1).drained


def test_a_start_that_was_broken_off_can_be_shut_down_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading  # noqa: PLC0415

    start = threading.Thread.start

    def broken_off(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    queue = Queue(workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", broken_off)
        with pytest.raises(KeyboardInterrupt):
            queue.start()

    with pytest.raises(WorkerStartError, match="interrupted"):
        queue.start()
    queue.shutdown(1)


_STORM = """
import signal, sys, threading, procq

caught, sent = [], 0

def lost(unraisable):  # within a `__del__`, where Python can only tell of it
    if unraisable.exc_type is KeyboardInterrupt:
        caught.append(0)

sys.unraisablehook = lost

def storm(over, main):
    global sent
    while not over.wait(0.0005):
        if sent == len(caught):  # the one before has been dealt with
            sent += 1
            signal.pthread_kill(main, signal.SIGINT)

with procq.Queue(workers=1) as queue:
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    over = threading.Event()
    thread = threading.Thread(target=storm, args=(over, threading.get_ident()))
    thread.start()
    handles = []
    while len(caught) < 100:
        try:
            while True:
                handles.append(queue.submit(len, "abc"))
        except KeyboardInterrupt:
            caught.append(len(handles))
    try:
        over.set()
        thread.join()
        while len(caught) < sent:
            handles.append(queue.submit(len, "abc"))
    except KeyboardInterrupt:
        caught.append(0)
    assert {handle.result() for handle in handles} == {3}
    assert queue.stats().counts["succeeded"] >= len(handles)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(len(caught))
"""


def test_G4_ctrl_c_amid_a_change_waits_for_its_end(tmp_path: Path) -> None:
    """So a program that catches it can go on with the queue it has."""
    told = run_file(tmp_path / "storm.py", _STORM)

    assert told.returncode == 0, told.stderr
    assert int(told.stdout) >= 100


_MAP_STORM = """
import itertools, signal, sys, threading, procq
from procq import as_completed

caught = sent = 0
over = threading.Event()

def storm(main):
    global sent
    while not over.wait(0.0005):
        if sent == caught:  # the one before has been dealt with
            sent += 1
            signal.pthread_kill(main, signal.SIGINT)

def lost(unraisable):  # within a `__del__`, where Python can only tell of it
    global caught
    caught += unraisable.exc_type is KeyboardInterrupt

sys.unraisablehook = lost

def take(results):
    global caught
    while True:
        try:
            for result in results:
                yield_to.append(result)
            return
        except KeyboardInterrupt:
            caught += 1

def begun(begin):
    global caught
    while True:
        try:
            return begin()
        except KeyboardInterrupt:
            caught += 1

def work(number):
    if number % 100 == 99:
        raise LookupError(number)
    return {number} if number % 10 == 0 else number

def safe(number):
    try:
        return work(number)
    except LookupError as error:
        return error.args[0]

with procq.Queue(workers=2) as queue:
    thread = threading.Thread(target=storm, args=(threading.get_ident(),))
    thread.start()
    for chunksize, ordered in itertools.product(("auto", 1, 16), (True, False)):
        yield_to = []
        numbers = range(300 if chunksize == 1 else 3000)
        take(begun(lambda: queue.map(safe, iter(numbers), chunksize=chunksize, ordered=ordered, buffersize=64)))
        expected = [safe(number) for number in numbers]
        if not ordered:
            yield_to.sort(key=repr)
            expected.sort(key=repr)
        if yield_to != expected:
            begun(lambda: print("lost", chunksize, ordered, len(yield_to), len(expected)))
    handles = []
    while len(handles) < 300:
        begun(lambda: handles.append(queue.submit(len, "abc")))
    yield_to = []
    take(begun(lambda: as_completed(handles)))
    if len(set(yield_to)) != len(handles) or len(yield_to) != len(handles):
        begun(lambda: print("lost of as_completed", len(yield_to), len(handles)))
    begun(over.set)
    begun(thread.join)
    while caught < sent:
        begun(lambda: queue.submit(len, "abc").result())
print(caught)
"""


def test_F2_ctrl_c_while_a_map_waits_loses_nothing(tmp_path: Path) -> None:
    """A program that catches it goes on with the iterator it has."""
    told = run_file(tmp_path / "storm.py", _MAP_STORM)

    assert told.returncode == 0, told.stderr
    assert int(told.stdout) >= 100, told.stdout


def test_every_method_that_makes_a_change_is_kept_from_interrupts() -> None:
    """Whoever adds one and forgets the mark would have Ctrl-C tear it."""
    tree = ast.parse(Path(inspect.getfile(Supervisor)).read_text())
    (supervisor,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Supervisor")
    changing = {
        method.name
        for method in supervisor.body
        if isinstance(method, ast.FunctionDef)
        and any(isinstance(at, ast.Attribute) and at.attr in {"__exit__", "_change"} for at in ast.walk(method))
        and ("with self._change" in ast.unparse(method) or ".by = get_ident()" in ast.unparse(method))
    }

    assert len(changing) >= 8
    assert {name for name in changing if getattr(Supervisor, name).__code__ not in interrupts._CHANGING} == set()


def test_an_interrupt_amid_a_change_that_is_refused_is_raised_all_the_same() -> None:
    queue = Queue(workers=1)
    queue.submit(task(len, id="one").spec("abc"))
    interrupts.WATCH.pending = True

    with pytest.raises(KeyboardInterrupt), queue._supervisor.lock, queue._supervisor._change:
        raise DuplicateTaskError("one", "another")
    assert not interrupts.WATCH.pending
    queue.shutdown(mode="kill")
