"""Which task runs next, with real workers and tasks sent ahead of time (contract B1, B2, B8; PAIN H33, H37)."""

import time
from pathlib import Path

import pytest
from tests.support import process_tasks as tasks
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.looking import PATIENCE_S, check_invariants, engine_of, pids, wait_idle
from tests.support.process_tasks import Gate

from procq import Priority, Queue, task
from procq.engine.local.engine import LocalEngine
from procq.errors import UsageError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]


def lines(path: Path) -> list[str]:
    return path.read_text().split()


def warm_up(queue: Queue, log: Path) -> None:
    """Let the queue learn that `say` is brief, so that it is sent ahead in numbers."""
    for handle in [queue.submit(tasks.say, str(log), "warm") for _ in range(20)]:
        handle.result(PATIENCE_S)


def test_B1_tasks_submitted_before_the_start_run_in_exact_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    queue = Queue(workers=1)
    handles = [queue.submit(tasks.say, str(log), number) for number in range(300)]
    assert not log.exists()

    with queue:
        pass

    assert lines(log) == [str(number) for number in range(300)]
    assert all(handle.ok for handle in handles)


def test_H37_strictly_priority_then_order_of_submission(tmp_path: Path) -> None:
    """With arguments that cannot be compared with each other."""
    log = tmp_path / "log"
    gate = Gate(tmp_path)
    say = task(tasks.say)
    with Queue(workers=1) as queue:
        queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        for number in range(200):
            priority = (-5, 0, 30)[number % 3]
            queue.submit(say.spec(str(log), number, {"fn": tasks.nothing, "n": {}}).using(priority=priority))
        gate.open()

    numbers = [int(text) for text in lines(log)]
    assert numbers == sorted(range(200), key=lambda number: (-(-5, 0, 30)[number % 3], number))


def test_B8_what_is_more_urgent_overtakes_what_was_sent_ahead(tmp_path: Path) -> None:
    log = tmp_path / "log"
    gate = Gate(tmp_path)
    urgent = task(tasks.say, priority=Priority.CRITICAL)
    with Queue(workers=1) as queue:
        warm_up(queue, tmp_path / "warm")
        queue.submit(tasks.pass_gate, gate.path)
        gate.wait_begun()
        queue.submit(tasks.say, str(log), "ordinary 1")
        queue.submit(tasks.say, str(log), "ordinary 2")
        queue.submit(urgent.spec(str(log), "urgent"))
        gate.open()

    assert log.read_text().splitlines() == ["urgent", "ordinary 1", "ordinary 2"]


def test_B8_the_worker_that_ends_first_takes_the_most_urgent(tmp_path: Path) -> None:
    """Wherever the less urgent ones were sent ahead."""
    log = tmp_path / "log"
    gates = [Gate(tmp_path, "one"), Gate(tmp_path, "two")]
    say = task(tasks.say)
    with Queue(workers=2) as queue:
        warm_up(queue, tmp_path / "warm")
        for gate in gates:
            queue.submit(tasks.pass_gate, gate.path)
        for gate in gates:
            gate.wait_begun()
        for number in range(4):
            queue.submit(say.spec(str(log), f"ordinary{number}"))
        urgent = queue.submit(say.spec(str(log), "urgent").using(priority=Priority.HIGH))
        first = gates[0]
        first.open()
        urgent.result(PATIENCE_S)
        assert wait_until(lambda: len(lines(log)) == 5, PATIENCE_S), "one worker ran all the others"
        gates[1].open()

    assert lines(log) == ["urgent", "ordinary0", "ordinary1", "ordinary2", "ordinary3"]


def test_B8_nothing_less_urgent_stays_ahead_behind_attempts_of_some_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever worker ends first takes the urgent one, which therefore waits behind none of them."""
    monkeypatch.setattr(LocalEngine, "_review", lambda engine, now: setattr(engine, "_review_at", now + 3600))
    gates = [Gate(tmp_path, "one"), Gate(tmp_path, "two")]
    log = tmp_path / "log"
    say = task(tasks.say)
    with Queue(workers=2) as queue:
        for _ in queue.map(tasks.sleep, [0, 0]):
            pass  # it starts both workers
        wait_idle(queue, 2)
        scheduler, paces = queue._supervisor.scheduler, engine_of(queue)._paces
        queue.pause()
        held = [queue.submit(tasks.pass_gate, gate.path) for gate in gates]
        for number in range(8):
            queue.submit(say.spec(str(log), number))
        paces.note(held[0].type, 0.04)
        queue.resume()
        for gate in gates:
            assert gate.wait_begun()
        assert len(scheduler.ahead) == 2

        urgent = queue.submit(say.spec(str(log), "urgent").using(priority=Priority.HIGH))
        assert not scheduler.ahead
        gates[1].open()
        urgent.result(PATIENCE_S)
        gates[0].open()

    assert lines(log)[0] == "urgent"


def test_B8_two_workers_run_two_long_tasks_side_by_side(tmp_path: Path) -> None:
    """The second must not wait behind the first, although only one worker has been started so far."""
    gates = [Gate(tmp_path, "one"), Gate(tmp_path, "two")]
    with Queue(workers=2) as queue:
        for gate in gates:
            queue.submit(tasks.pass_gate, gate.path)
            assert gate.wait_begun()
        for gate in gates:
            gate.open()


def test_B8_even_when_the_tasks_were_brief_so_far(tmp_path: Path) -> None:
    """What a task waits behind may turn out long although all others of its type were brief."""
    gates = [Gate(tmp_path, "one"), Gate(tmp_path, "two")]
    with Queue(workers=2) as queue:
        for handle in [queue.submit(tasks.pass_gate_or_not, "") for _ in range(20)]:
            handle.result(PATIENCE_S)
        for gate in gates:
            queue.submit(tasks.pass_gate_or_not, gate.path)
        for gate in gates:
            assert gate.wait_begun()
        for gate in gates:
            gate.open()


def test_H33_brief_tasks_do_not_wait_behind_a_long_one(tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    with Queue(workers=2) as queue:
        long = queue.submit(tasks.pass_gate, gate.path)
        handles = [queue.submit(tasks.sleep, 0.002) for _ in range(100)]
        gate.wait_begun()
        for handle in handles:
            handle.result(PATIENCE_S)
        assert not long.done()
        gate.open()


def test_B8_a_stream_of_brief_tasks_does_not_starve_one_that_waits_behind_a_long_one(tmp_path: Path) -> None:
    """The other worker never idles here, and still must take what waits and is more urgent."""
    gates = [Gate(tmp_path, "one"), Gate(tmp_path, "two")]
    log = tmp_path / "log"
    with Queue(workers=2) as queue:
        for handle in [queue.submit(tasks.pass_gate_or_not, "") for _ in range(20)]:
            handle.result(PATIENCE_S)
        for gate in gates:
            queue.submit(tasks.pass_gate_or_not, gate.path)
        urgent = [task(tasks.say).spec(str(log), n).using(priority=Priority.HIGH) for n in range(3)]
        handles = queue.submit_many(urgent)
        stream = [queue.submit(tasks.sleep, 0.004) for _ in range(100)]
        for gate in gates:
            gate.wait_begun()
        gates[0].open()
        for one in handles:
            one.result(PATIENCE_S)
        assert not stream[-1].done()
        gates[1].open()


def test_B2_a_retry_keeps_its_place(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fail = task(tasks.say_and_fail, max_attempts=3, backoff=0)
    queue = Queue(workers=1)
    queue.submit(fail.spec(str(log), "first"))
    for number in range(3):
        queue.submit(tasks.say_and_sleep, str(log), number, 0.02)
    with queue:
        pass

    order = lines(log)
    assert order[0] == "first"
    # The next one may have been sent ahead before the first had failed; no more than that.
    assert order.index("2") > max(place for place, text in enumerate(order) if text == "first")


def test_delayed_tasks_that_are_due_at_the_same_moment_run_in_order_of_submission(tmp_path: Path) -> None:
    log = tmp_path / "log"
    say = task(tasks.say, delay=0.2)
    queue = Queue(workers=1)
    queue.submit_many([say.spec(str(log), number) for number in range(50)])
    with queue:
        pass

    assert lines(log) == [str(number) for number in range(50)]


def test_H42_delayed_tasks_run_once_each_and_never_early(tmp_path: Path) -> None:
    log = tmp_path / "log"
    later = task(tasks.say_instant)
    with Queue(workers=2) as queue:
        due = {}
        for number in range(60):
            delay = 0.05 + (number * 37 % 60) / 100
            due[number] = time.monotonic() + delay
            queue.submit(later.spec(str(log), number).using(delay=delay))
            noise = queue.submit(tasks.nothing)
            if number % 2:
                noise.cancel()

    said = [line.split() for line in log.read_text().splitlines()]
    assert sorted(int(number) for number, _ in said) == list(range(60))
    for text, at in said:
        assert float(at) >= due[int(text)]


@pytest.mark.parametrize("is_refused", [False, True])
def test_C4_what_was_sent_ahead_is_taken_back_to_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """If the submit is refused after all, it goes on as it was."""
    monkeypatch.setattr(LocalEngine, "_review", lambda engine, now: setattr(engine, "_review_at", now + 3600))
    log = tmp_path / "log"
    gate = Gate(tmp_path)
    say = task(tasks.say)
    with Queue(workers=1) as queue:
        warm_up(queue, tmp_path / "warm")
        paces = engine_of(queue)._paces
        queue.pause()
        held = queue.submit(tasks.pass_gate, gate.path)
        paces.note(held.type, 0.04)
        for number in range(8):
            queue.submit(say.using(id=f"{number}").spec(str(log), number))
        queue.resume()
        assert gate.wait_begun()
        assert ids_ahead(queue)[0] == "0"

        if is_refused:
            with pytest.raises(UsageError, match="nowhere"):
                queue.submit(say.using(id="0", group="nowhere").spec(str(log), "never"), on_conflict="replace")
        else:
            queue.submit(say.using(id="0").spec(str(log), "new"), on_conflict="replace")
        gate.open()

    ordered = [str(number) for number in range(8)]
    assert lines(log) == (ordered if is_refused else [*ordered[1:], "new"])


def ids_ahead(queue: Queue) -> list[str]:
    """Return the ids of what was sent ahead, first submitted first."""
    with queue._supervisor.lock:
        return [task.id for task in sorted(queue._supervisor.scheduler.ahead.values(), key=lambda task: task.seq)]


def test_H1_pause_takes_back_what_was_sent_ahead(tmp_path: Path) -> None:
    log = tmp_path / "log"
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        warm_up(queue, tmp_path / "warm")
        first = queue.submit(tasks.pass_gate, gate.path)
        rest = [queue.submit(tasks.say, str(log), number) for number in range(20)]
        gate.wait_begun()
        queue.pause()
        gate.open()
        first.result(PATIENCE_S)
        wait_idle(queue, 1)
        assert not log.exists()
        check_invariants(queue)

        queue.resume()
        for handle in rest:
            handle.result(PATIENCE_S)

    assert lines(log) == [str(number) for number in range(20)]


def test_a_pause_amid_a_stream_of_brief_tasks_loses_no_news(tmp_path: Path) -> None:
    """It may read a result in the caller's thread, and must then tell whoever waits for that."""
    with Queue(workers=1) as queue:
        warm_up(queue, tmp_path / "warm")
        for _ in range(50):
            handles = [queue.submit(tasks.nothing) for _ in range(5)]
            queue.pause()
            wait_idle(queue, 1)
            for handle in handles:
                if handle.done():
                    handle.result(PATIENCE_S)
            queue.resume()
            for handle in handles:
                handle.result(PATIENCE_S)
            check_invariants(queue)


def test_B4_a_limited_type_never_runs_more_at_once_and_holds_nobody_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    span = task(tasks.say_span, type="span")
    with Queue(workers=2, limits={"span": 1}) as queue:
        spans = [queue.submit(span.spec(str(log), number, 0.01)) for number in range(20)]
        others = [queue.submit(tasks.nothing) for _ in range(50)]
        for handle in others:
            handle.result(PATIENCE_S)
        assert not spans[-1].done()

    said = [line.split() for line in log.read_text().splitlines()]
    assert [(kind, number) for kind, number in said] == [
        (kind, str(number)) for number in range(20) for kind in ("begin", "end")
    ]


def test_tasks_keep_running_on_the_same_workers() -> None:
    with Queue(workers=2) as queue:
        handles = [queue.submit(tasks.pid) for _ in range(500)]
        used = {handle.result(PATIENCE_S) for handle in handles}
        assert used <= pids(queue)
        assert len(used) <= 2
        assert len(engine_of(queue).places["default"].idle) <= 2


def test_B1_payloads_that_overfill_a_pipe_keep_their_order_and_harm_nobody(tmp_path: Path) -> None:
    """Three of them fill a socket: a full one is no fault of its worker, and what did not fit comes back."""
    log = tmp_path / "log"
    with Queue(workers=1) as queue:
        warm_up(queue, tmp_path / "warm")
        handles = [queue.submit(tasks.say, str(log), number, bytes(40_000)) for number in range(200)]
        for handle in handles:
            handle.result(PATIENCE_S)
        check_invariants(queue)

    assert lines(log) == [str(number) for number in range(200)]
    assert {handle.attempts for handle in handles} == {1}


def test_B8_what_is_taken_back_out_of_a_full_pipe_runs_later(tmp_path: Path) -> None:
    """Even then the worker is told to forget it, or it would never be given a task again."""
    gate = Gate(tmp_path)
    with Queue(workers=1) as queue:
        for _ in range(50):
            queue.submit(tasks.pass_gate_or_not, "").result(PATIENCE_S)
            queue.submit(tasks.length, bytes(40_000)).result(PATIENCE_S)
        queue.pause()
        queue.submit(tasks.pass_gate_or_not, gate.path)
        handles = [queue.submit(tasks.length, bytes(40_000)) for _ in range(100)]
        queue.resume()
        gate.wait_begun()
        assert wait_until(lambda: not engine_of(queue)._ahead, PATIENCE_S)  # 5 ms turned out long
        gate.open()
        for handle in handles:
            assert handle.result(PATIENCE_S) == 40_000
        check_invariants(queue)
