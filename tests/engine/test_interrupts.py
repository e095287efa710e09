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
import os, signal, sys, threading, procq

def storm(over, main):
    while not over.is_set():
        signal.pthread_kill(main, signal.SIGINT)
        over.wait(0.0005)

interrupts = 0
with procq.Queue(workers=1) as queue:
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    over = threading.Event()
    thread = threading.Thread(target=storm, args=(over, threading.get_ident()))
    handles = []
    while True:
        try:
            if not thread.ident:
                thread.start()
            while len(handles) < 3000:
                handles.append(queue.submit(len, "abc"))
            over.set()
            break
        except KeyboardInterrupt:
            interrupts += 1
    while True:
        try:
            thread.join()
            break
        except KeyboardInterrupt:
            pass
    assert [handle.result() for handle in handles] == [3] * 3000
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(interrupts)
"""


def test_G4_ctrl_c_amid_a_change_waits_for_its_end(tmp_path: Path) -> None:
    """So a program that catches it can go on with the queue it has."""
    told = run_file(tmp_path / "storm.py", _STORM)

    assert told.returncode == 0, told.stderr
    assert int(told.stdout) > 10


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
