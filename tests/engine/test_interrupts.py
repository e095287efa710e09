"""What is left of a queue when Ctrl-C broke off a change or its start (contract G2, G4)."""

import _imp
import ast
import importlib
import inspect
import signal
import sys
import threading
import types
from pathlib import Path

import pytest
from tests.support.interrupting import SUPERVISOR, Interrupter, first_calls
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, run_file, run_script
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


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "procq-supervisor"]


STARTING = (
    *SUPERVISOR, "procq.queue", "procq.interrupts", "procq.engine.local.engine", "procq.engine.local.drive",
)  # fmt: skip
#: Where a handler that waits for nothing makes Python lose a descriptor or a lock before anybody has it.
BELOW = ("procq.engine.local.loop", "threading")


def is_undisturbed(queue: Queue, interrupter: Interrupter) -> bool:
    """Start a queue; return whether the moment of the interrupt did not come."""
    try:
        with interrupter.watching():
            queue.start()
    except KeyboardInterrupt:
        assert interrupter.done
        return False
    assert not interrupter.done
    return True


@first_calls
@pytest.mark.usefixtures("no_leaks")
def test_C0_a_start_that_ctrl_c_came_into_is_done_or_undone() -> None:
    """A second one opens no second loop."""
    number = 0
    while True:
        queue = Queue(workers=1)
        if is_undisturbed(queue, Interrupter(number, *STARTING, *BELOW)):
            break
        queue.start()
        assert len(loops()) == 1
        assert queue.submit(len, "abc").result(PATIENCE_S) == 3
        assert queue.shutdown().drained
        number += 1
    queue.shutdown()

    assert number > 10


@first_calls
@pytest.mark.usefixtures("no_leaks")
def test_C0_a_start_that_a_handler_of_the_program_s_own_raised_in_leaves_no_half() -> None:
    """Such a handler waits for nothing: the start is undone or done, or the queue is over and says so."""
    number = started = 0
    while True:
        queue = Queue(workers=1)
        if is_undisturbed(queue, Interrupter(number, *STARTING, handler=signal.default_int_handler)):
            break
        try:
            queue.start()
            assert queue.submit(len, "abc").result(PATIENCE_S) == 3
        except EngineError as error:
            assert "interrupted" in str(error)  # noqa: PT017 - one of two ways to go on
        else:
            assert len(loops()) == 1
            started += 1
        queue.shutdown(1)
        number += 1
    queue.shutdown()

    assert number > started > 5


@first_calls
@pytest.mark.usefixtures("no_leaks")
def test_G4_ctrl_c_as_a_with_begins_leaves_nothing() -> None:
    number = 0
    while True:
        interrupter = Interrupter(number, *SUPERVISOR)
        try:
            with interrupter.watching(), Queue(workers=1):
                sys.settrace(None)
        except KeyboardInterrupt:
            assert not loops()
        if not interrupter.done:
            break
        number += 1

    assert number > 10


def test_C6_ctrl_c_that_ends_a_wait_for_room_leaves_the_lock_alone() -> None:
    """However it comes: here while the waiting thread takes the lock back."""
    main = threading.get_ident()

    def is_taking_it_back() -> bool:
        return sys._current_frames()[main].f_code.co_name == "_lock_again"

    def interrupt(supervisor: Supervisor) -> None:
        assert wait_until(lambda: bool(supervisor.room.turns), PATIENCE_S)
        with supervisor.lock:
            supervisor.room.free_all()
            assert wait_until(is_taking_it_back, PATIENCE_S)
            signal.pthread_kill(main, signal.SIGINT)
            assert wait_until(lambda: interrupts.WATCH.pending, PATIENCE_S)

    with Queue(workers=1, max_pending=1) as queue:
        queue.pause()
        queue.submit(len, "abc")
        other = threading.Thread(target=interrupt, args=(queue._supervisor,))
        other.start()
        with pytest.raises(KeyboardInterrupt):
            queue.submit(len, "abc")
        other.join()
        queue.resume()
        assert queue.submit(len, "abc").result(PATIENCE_S) == 3


# --- amid an import ---

#: What CPython's import system is made of.
IMPORTING = ("importlib._bootstrap", "importlib._bootstrap_external", "_frozen_importlib", "_frozen_importlib_external")


def is_interrupted_at(number: int, name: str) -> bool:
    """Import a module and have Ctrl-C come at a moment of that; return whether it did."""
    interrupter = Interrupter(number, *IMPORTING)
    try:
        with interrupter.watching():
            importlib.import_module(name)
        if interrupter.done:
            threading.Event().wait(PATIENCE_S)  # what was put off ends it
    except KeyboardInterrupt:
        assert interrupter.done
        return True
    assert not interrupter.done, "Ctrl-C was lost"
    return False


@first_calls
def test_C0_ctrl_c_amid_an_import_leaves_no_lock_of_the_import_system_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every thread that imports anything waits for ever, and ours with the queue's lock."""
    name = "procq_test_imported"
    (tmp_path / f"{name}.py").write_text("done = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    number = 0
    with Queue(workers=1):
        while True:
            is_interrupted = is_interrupted_at(number, name)
            is_held = _imp.lock_held()
            while _imp.lock_held():
                _imp.release_lock()
            sys.modules.pop(name, None)
            assert not is_held, f"after moment {number}"
            elsewhere = threading.Thread(target=importlib.import_module, args=(name,), daemon=True)
            elsewhere.start()
            elsewhere.join(PATIENCE_S)
            assert not elsewhere.is_alive(), f"after moment {number}"
            sys.modules.pop(name, None)
            if not is_interrupted:
                break
            number += 1

    assert number > 100


def test_C0_ctrl_c_ends_a_wait_for_an_import_of_another_thread_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put off is not put off for ever."""
    name = "procq_test_slow"
    (tmp_path / f"{name}.py").write_text("import gates\ngates.begun.set()\ngates.free.wait()\n")
    gates = types.ModuleType("gates")
    begun, free = threading.Event(), threading.Event()
    gates.begun, gates.free = begun, free  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gates", gates)
    monkeypatch.syspath_prepend(tmp_path)
    main = threading.get_ident()

    def is_waiting() -> bool:
        return sys._current_frames()[main].f_code.co_filename == "<frozen importlib._bootstrap>"

    def interrupt() -> None:
        assert wait_until(is_waiting, PATIENCE_S)
        signal.pthread_kill(main, signal.SIGINT)

    with Queue(workers=1):
        slow = threading.Thread(target=importlib.import_module, args=(name,))
        slow.start()
        other = threading.Thread(target=interrupt)
        try:
            assert begun.wait(PATIENCE_S)
            other.start()
            with pytest.raises(KeyboardInterrupt):
                importlib.import_module(name)
        finally:
            free.set()
            other.join()
            slow.join()
            sys.modules.pop(name, None)


# --- whose handler it is ---


_IS_OURS = """
import os, signal, threading
from procq import Queue

def is_ours():
    return signal.getsignal(signal.SIGINT) is not signal.default_int_handler

def elsewhere(fn):
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()

queue = Queue(workers=1).start()
assert is_ours()
"""


def told_by(script: str) -> str:
    told = run_script(_IS_OURS + script)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_G4_the_handler_goes_with_a_queue_that_is_dropped() -> None:
    assert told_by("del queue; print(is_ours())") == "False\n"


def test_G4_the_handler_stays_while_another_queue_is_open() -> None:
    told = told_by("other = Queue().start(); del queue; print(is_ours()); other.shutdown(); print(is_ours())")

    assert told == "True\nFalse\n"


def test_G4_after_a_shutdown_elsewhere_the_handler_goes_with_the_first_interrupt() -> None:
    """Only the main thread may take it away, and nothing of procq's runs there any more."""
    script = """
elsewhere(queue.shutdown)
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("raised", is_ours())
"""

    assert told_by(script) == "raised False\n"


def test_G4_after_a_shutdown_elsewhere_another_here_takes_the_handler_away() -> None:
    assert told_by("elsewhere(queue.shutdown); queue.shutdown(); print(is_ours())") == "False\n"


def test_C7_a_forked_child_has_python_s_own_handler() -> None:
    script = """
if not os.fork():
    print(is_ours(), flush=True)
    os._exit(0)
os.wait()
queue.shutdown()
"""

    assert told_by(script) == "False\n"


def test_G4_a_handler_of_the_program_s_own_is_left_alone() -> None:
    script = """
mine = lambda number, frame: None
signal.signal(signal.SIGINT, mine)
with Queue():
    pass
queue.shutdown()
print(signal.getsignal(signal.SIGINT) is mine)
"""

    assert told_by(script) == "True\n"


# --- storms ---


_STORM = """
import signal, sys, threading, procq

caught, sent = [], 0

def lost(unraisable):  # within a `__del__`, where Python can only tell of it
    if unraisable.exc_type is KeyboardInterrupt:
        caught.append(0)

sys.unraisablehook = lost

def storm(over, main):
    global sent
    begun.wait()  # Python's own `Thread.start` would be interrupted else
    while not over.wait(0.0005):
        if sent == len(caught):  # the one before has been dealt with
            sent += 1
            signal.pthread_kill(main, signal.SIGINT)

with procq.Queue(workers=1) as queue:
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    over, begun = threading.Event(), threading.Event()
    thread = threading.Thread(target=storm, args=(over, threading.get_ident()))
    thread.start()
    handles = []
    while len(caught) < 100:
        try:
            begun.set()
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

# Elsewhere interrupts stay away: what compares is no program that catches them.  To change the mask runs
# the handler of what came before.
def masked(how):
    signal.pthread_sigmask(how, [signal.SIGINT])

masked(signal.SIG_BLOCK)

def begun(begin):
    global caught
    while True:
        try:
            masked(signal.SIG_UNBLOCK)
            begun = begin()
            masked(signal.SIG_BLOCK)
            return begun
        except KeyboardInterrupt:
            caught += 1

def take(results):
    def go_on():
        for result in results:
            yield_to.append(result)

    begun(go_on)

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


# --- what our threads import ---

_IMPORT_LOCK_TAKEN = """
import _imp, sys, threading
from procq import Queue, exponential, task
from tests.support import importing_tasks as tasks

PATIENCE_S = {patience_s}
told = []

def run():
    listener = told.append
    with Queue(workers=1, on_event=(listener, ["log"]), backoff=exponential("1ms")) as queue:
        queue.submit(tasks.spawn_one).result(PATIENCE_S)  # the workers have started, and what a spawn needs is here
        _imp.acquire_lock()  # as an interrupt that a handler of the program's own raised would leave it
        try:
            queue.submit(tasks.warn, "a warning of a task").result(PATIENCE_S)
            queue.submit(tasks.spawn_one).result(PATIENCE_S)
            queue.submit(task(tasks.fail_first, max_attempts=3).spec({folder!r})).result(PATIENCE_S)
            done = threading.Event()
            handle = queue.submit(len, "abc")
            if sys.version_info < (3, 13):  # from then on Python itself imports what it needs for a traceback
                handle.add_done_callback(lambda _: 1 / 0)
            handle.add_done_callback(lambda _: done.set())
            assert done.wait(PATIENCE_S)
            assert len(queue.submit(bytes, 8_000_000).result(PATIENCE_S)) == 8_000_000
            queue.submit(tasks.die).wait(PATIENCE_S)
            assert queue.submit(len, "abc").result(PATIENCE_S) == 3  # another worker
            assert queue.shutdown(PATIENCE_S).drained
        finally:
            _imp.release_lock()
run()
assert {{event["ev"] for event in told}} >= {{"run.started", "log", "run.ended"}}
print("done")
"""


@pytest.mark.parametrize("warnings", ["", "ignore::BytesWarning"])
def test_no_thread_of_ours_imports_anything_once_the_workers_have_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: str
) -> None:
    """It would wait for whoever holds the lock of the import system, and everybody for it."""
    monkeypatch.setenv("PYTHONWARNINGS", warnings)  # with any, more is needed to start a worker
    told = run_script(_IMPORT_LOCK_TAKEN.format(patience_s=PATIENCE_S / 4, folder=str(tmp_path)))

    assert told.returncode == 0, told.stderr
    assert told.stdout == "done\n"
    assert "a warning of a task\n" in told.stderr
    assert ("ZeroDivisionError" in told.stderr) == (sys.version_info < (3, 13))
