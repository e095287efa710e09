"""What a program reads that forgot a part of a queue's life (contract C0, G4)."""

import pytest
from tests.support.looking import run_script

pytestmark = pytest.mark.processes


def test_G4_a_program_that_ends_with_tasks_left_is_told_how_many() -> None:
    ended = run_script(
        """
        import time
        from procq import Queue
        queue = Queue(workers=1).start()
        handles = [queue.submit(time.sleep, 60) for _ in range(3)]
        """
    )

    assert ended.returncode == 0
    assert ended.stderr.count("\n") == 1
    assert "ended with 3 tasks left" in ended.stderr


def test_G4_a_program_whose_tasks_have_all_ended_is_told_nothing() -> None:
    ended = run_script(
        """
        from procq import Queue
        queue = Queue(workers=1).start()
        print(queue.submit(len, "abc").result())
        """
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")


def test_C0_a_wait_without_end_on_a_queue_that_was_not_started_is_told() -> None:
    ended = run_script(
        """
        import threading
        from procq import Queue
        queue = Queue(workers=1)
        handle = queue.submit(len, "abc")
        wait = threading.Thread(target=handle.wait)
        wait.start()
        while not handle._task.listeners:
            pass
        with queue:
            wait.join()
        print(handle.result())
        """
    )

    assert (ended.returncode, ended.stdout) == (0, "3\n")
    assert "not started" in ended.stderr
