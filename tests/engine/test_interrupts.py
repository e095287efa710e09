"""What is left of a queue when Ctrl-C broke off a change or its start (contract G2, G4)."""

from pathlib import Path

import pytest
from tests.support.leaks import wait_until
from tests.support.looking import PATIENCE_S
from tests.support.process_tasks import Gate, pass_gate

from procq import Queue
from procq.errors import EngineError, WorkerStartError

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
