"""A real worker, driven by hand: whatever a task does, its report or the worker's death arrives (contract H)."""

import contextlib
import functools
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from tests.support import tasks
from tests.support.driver import Driver
from tests.support.frames import in_one, read_up
from tests.support.leaks import no_leaks, wait_until  # noqa: F401 - a fixture
from tests.support.process_tasks import Gate, pass_gate

from procq import inside, payload
from procq.engine.local import wire, worker
from procq.parcel import Payload

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("no_leaks")]

PATIENCE_S = 20.0


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def call_of(fn: object, *args: object) -> Payload:
    return payload.dump_call(fn, args, {})[0]  # type: ignore[arg-type]


def start_failure(driver: Driver) -> wire.StartFailed:
    message = driver.message()
    assert isinstance(message, wire.StartFailed), message
    return message


# --- start-up ---


def test_H2_a_fresh_worker_has_imported_little(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("COVERAGE_")]:
        monkeypatch.delenv(name)  # measuring a worker imports half the standard library
    with Driver() as driver:
        found = driver.result(tasks.modules)

    assert isinstance(found, list)
    heavy = {
        "asyncio", "cloudpickle", "concurrent.futures", "dataclasses", "datetime", "inspect", "logging",
        "multiprocessing", "psutil", "random", "selectors", "socket", "subprocess", "traceback",
        "procq.core", "procq.engine.local.birth", "procq.engine.local.engine", "procq.engine.local.loop",
        "procq.engine.protocol", "procq.errors", "procq.queue", "procq.retry", "procq.spec", "procq.supervisor",
        "procq.units",
    }  # fmt: skip
    assert not heavy.intersection(found)


def test_H3_an_initializer_runs_once_and_its_result_does_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver(initializer=call_of(tasks.initialize, str(file))) as driver:
        assert driver.result(tasks.add, 1, 2) == 3
        assert driver.result(tasks.add, 1, 3) == 4

    assert lines(file) == ["initialized"]


@pytest.mark.parametrize(
    ("initializer", "error_type", "message"),
    [
        (call_of(tasks.initialize_badly), "RuntimeError", "no database here"),
        (call_of(tasks.initialize_and_exit), "SystemExit", "SystemExit: 3"),
        (b"cprocq_no_such_module\nfunction\n.", "ModuleNotFoundError", "No module named 'procq_no_such_module'"),
    ],
    ids=["raises", "exits", "missing"],
)
def test_D11_a_failure_to_start_is_told_with_its_traceback(initializer: bytes, error_type: str, message: str) -> None:
    with Driver(initializer=initializer, await_ready=False) as driver:
        failed = start_failure(driver)
        leave = driver.death()

    assert (failed.error_type, failed.message) == (error_type, message)
    assert error_type in failed.traceback
    assert leave.exit_code == wire.EXIT_START_FAILED


# --- attempts ---


def test_attempts_run_one_after_the_other_in_the_same_process() -> None:
    with Driver() as driver:
        assert driver.result(tasks.pid) == driver.worker.pid
        assert driver.result(tasks.add, 1, 2) == 3
        assert driver.result(tasks.pid) == driver.worker.pid


def test_a_report_tells_when_and_what_it_used() -> None:
    with Driver() as driver:
        before = time.monotonic()
        burnt = driver.run(tasks.burn_cpu, 0.2)
        after = time.monotonic()
        brief = driver.run(tasks.add, 1, 2)
        big = driver.run(tasks.use_memory, 100_000_000)

    assert before <= burnt.started_at <= burnt.ended_at <= after
    assert 0.19 < burnt.cpu_s < 0.19 + (after - before)
    assert brief.cpu_s < worker.BRIEF_S
    assert burnt.peak_rss_bytes > 2**20
    assert big.peak_rss_bytes > burnt.peak_rss_bytes + 90_000_000


def test_inputs_reach_the_call() -> None:
    with Driver() as driver:
        call, found = payload.dump_call(tasks.echo, (["before", _StandIn(), "after"],), {})
        assert len(found) == 1
        for value in ("small", b"x" * 1_000_000):
            driver.seq += 1
            driver.send_call(call, inputs=(payload.dumps(value),))
            ended = driver.report()
            assert ended.value is not None, ended.message
            assert payload.loads(ended.value) == ["before", value, "after"]


class _StandIn:
    """Stands for the first input."""

    def __reduce__(self) -> tuple[object, ...]:
        reduced = payload.placeholder(self)
        assert reduced is not None
        return reduced


@pytest.mark.parametrize("size", [0, 100, 70_000, 10_000_000])
def test_arguments_and_results_of_any_size(size: int) -> None:
    value = os.urandom(size)
    with Driver() as driver:
        assert driver.result(tasks.echo, value) == value
        assert driver.result(tasks.echo, "still in step") == "still in step"


@pytest.mark.parametrize(
    ("task", "args", "error_type", "permanent"),
    [
        (tasks.fail, (), "ValueError", False),
        (tasks.fail_two_parts, (), "tests.support.tasks.TwoPartError", False),
        (tasks.fail_permanently, ("no",), "procq.inside.Permanent", True),
        (tasks.later, (1.5,), "procq.inside.RetryLater", False),
        (tasks.leave, (0,), "SystemExit", True),
        (tasks.interrupt, (), "KeyboardInterrupt", True),
        (tasks.generator, (), "procq.errors.PayloadError", True),
        (tasks.echo, (tasks.UnloadableError(),), "LookupError", True),
    ],
)
def test_D3_errors_are_reported_and_the_worker_goes_on(
    task: object, args: tuple[object, ...], error_type: str, *, permanent: bool
) -> None:
    with Driver() as driver:
        ended = driver.run(task, *args)
        assert driver.result(tasks.pid) == driver.worker.pid

    assert ended.outcome == "error"
    assert ended.error_types[0] == error_type
    assert ended.permanent is permanent
    assert ended.message
    assert (ended.value is None) is (
        error_type.rsplit(".", maxsplit=1)[-1] in {"TwoPartError", "PayloadError", "LookupError"}
    )
    assert ended.retry_after_s == (1.5 if task is tasks.later else None)


def test_lambdas_and_main_functions_run() -> None:
    with Driver() as driver:
        assert driver.result(lambda: 6 * 7) == 42


# --- the context ---


def test_H3_current_tells_the_attempt_who_it_is() -> None:
    with Driver() as driver:
        before = time.monotonic()
        ended = driver.run(tasks.context, timeout_s=30.0)
        after = time.monotonic()
        assert ended.value is not None
        told = payload.loads(ended.value)
        assert driver.result(tasks.context) == ("task-2", 1, None, None)

    assert isinstance(told, tuple)
    assert told[:2] == ("task-1", 1)
    assert before + 30 <= told[2] <= after + 30
    assert 29 < told[3] <= 30


def test_H3_an_inline_queue_within_a_task_has_contexts_of_its_own() -> None:
    with Driver() as driver:
        told = driver.result(tasks.inline_context)
        assert isinstance(told, tuple)
        outer, inner, is_back = told
        assert (outer, is_back) == ("task-1", True)
        assert inner != outer
        assert driver.run(tasks.inline_cut_short).outcome == "ok"
        assert driver.result(tasks.context) == ("task-3", 1, None, None)


def test_H3_a_thread_that_asks_while_attempts_change_spoils_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take long to make the context of the attempt before, which is not the next one's."""
    place = inside._Place()
    monkeypatch.setattr(inside, "_PLACE", place)
    first, second = (1, 1, 1, None, b"first"), (2, 1, 1, None, b"second")

    def make(token: tuple[int, int, int, float | None, bytes]) -> inside.Context:
        place.token = second  # as if meanwhile
        return inside.Context(token[4].decode())

    place.make, place.token = make, first

    assert inside.current().id == "first"
    assert inside.current().id == "second"
    assert inside.current() is inside.current()


def test_H3_progress_is_sent_at_once_and_then_at_a_bounded_pace() -> None:
    with Driver() as driver:
        seq = driver.send(tasks.progress, 100_000)
        first = driver.message()
        assert isinstance(first, wire.Progress)
        count = 1
        while isinstance(message := driver.message(), wire.Progress):
            count += 1
        assert isinstance(message, wire.Report)
        assert message.ended.outcome == "ok"

    assert (first.seq, first.fence, first.done, first.total) == (seq, 1, 0, 100_000)
    took_s = message.ended.ended_at - message.ended.started_at
    assert count <= 2 + took_s / worker.PROGRESS_EVERY_S


def test_progress_after_the_attempts_end_speaks_for_nobody(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        assert driver.run(tasks.progress_from_afterlife).outcome == "ok"
        first = driver.seq
        driver.send(tasks.sleep_with_finally, str(file), 0.3)
        said = []
        while isinstance(message := driver.message(), wire.Progress):
            said.append(message.seq)
        assert isinstance(message, wire.Report)

    # A thread may be between asking and sending when its attempt ends; then it names that attempt.
    assert said in ([], [first])


def test_progress_that_is_no_number_is_the_tasks_error() -> None:
    with Driver() as driver:
        ended = driver.run(tasks.progress_wrongly)
        assert driver.result(tasks.add, 1, 2) == 3

    assert ended.outcome == "error"
    assert ended.error_types[0] == "ValueError"


# --- being asked to stop ---


def wait_asleep(driver: Driver, file: Path) -> None:
    """Wait until a task has begun and sleeps: a signal just before would be handled only after the sleep."""
    assert wait_until(lambda: lines(file) == ["began"] and sleeps(driver.worker.pid), PATIENCE_S)


def sleeps(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_SLEEPING


def test_D5_a_task_that_is_asked_to_stop_cleans_up_and_reports(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        driver.send(tasks.sleep_with_finally, str(file))
        wait_asleep(driver, file)
        driver.worker.ask()
        ended = driver.report()
        assert driver.result(tasks.pid) == driver.worker.pid

    assert lines(file) == ["began", "finally"]
    assert ended.outcome == "error"
    assert ended.terminated
    assert ended.error_types == ("procq.inside.Terminated", "BaseException")


def test_D5_a_task_that_catches_it_cannot_hide_it(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        driver.send(tasks.sleep_and_swallow, str(file))
        wait_asleep(driver, file)
        driver.worker.ask()
        ended = driver.report()

    assert lines(file) == ["began", "caught"]
    assert ended.outcome == "ok"
    assert ended.terminated


def test_a_task_that_terminates_itself_is_terminated() -> None:
    with Driver() as driver:
        ended = driver.run(tasks.terminate_self)
        assert driver.result(tasks.add, 1, 2) == 3

    assert ended.terminated


def test_handlers_that_a_task_changed_are_put_back(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        assert driver.run(tasks.change_signal_handlers).outcome == "ok"
        assert driver.result(tasks.interrupt_self) == "still here"
        driver.send(tasks.sleep_with_finally, str(file))
        wait_asleep(driver, file)
        driver.worker.ask()
        assert driver.report().terminated


def test_H4_sigint_does_nothing() -> None:
    with Driver() as driver:
        os.killpg(driver.worker.pid, signal.SIGINT)
        assert driver.result(tasks.interrupt_self) == "still here"


def test_a_task_that_is_claimed_when_sigterm_comes_is_reported() -> None:
    """Between the claim and the task's first line the worker must not simply leave."""
    end, served = serve_with_sigterm_at_claim(claimed=True)

    assert served is None
    (frame,) = end.sent
    (report,) = read_up(in_one(frame))
    assert isinstance(report, wire.Report)
    assert (report.seq, report.ended.outcome, report.ended.terminated) == (1, "error", True)


def test_a_worker_whose_task_was_taken_back_when_sigterm_comes_leaves() -> None:
    end, served = serve_with_sigterm_at_claim(claimed=False)

    assert isinstance(served, SystemExit)
    assert not end.sent


class ScriptedEnd:
    """A worker's end with one task, whose claim is asked for at the moment of a SIGTERM."""

    def __init__(self, *, claimed: bool) -> None:
        self.claimed = claimed
        self.coming = [wire.unpack_down(in_one(wire.pack_task(1, 1, 1, None, "id", call_of(tasks.pid)))), wire.Leave()]
        self.sent: list[wire.Frame] = []
        self.is_child = False

    def receive(self) -> wire.DownMessage:
        return self.coming.pop(0)

    def claim(self) -> bool:
        signal.raise_signal(signal.SIGTERM)
        return self.claimed

    def send(self, frame: wire.Frame) -> None:
        self.sent.append(frame)


def serve_with_sigterm_at_claim(*, claimed: bool) -> tuple[ScriptedEnd, SystemExit | None]:
    """Return the end and how the worker left."""
    end = ScriptedEnd(claimed=claimed)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        alone = worker.Worker(end)  # type: ignore[arg-type]  # all of it that `serve` asks for
        alone.take_signals()
        alone.serve()
    except SystemExit as left:
        return end, left
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return end, None


# --- several tasks, and taking back ---


def reported(driver: Driver) -> int:
    message = driver.message()
    assert isinstance(message, wire.Report), message
    assert message.ended.outcome == "ok", message.ended.message
    return message.seq


def test_tasks_of_one_packet_run_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        frames = [driver.pack(tasks.say, str(file), str(number)) for number in range(50)]
        assert driver.channel.send_tasks(frames[:20])
        assert driver.channel.send_tasks(frames[20:21])
        assert driver.channel.send_tasks(frames[21:])
        assert [reported(driver) for _ in frames] == list(range(1, 51))
        assert driver.channel.revoke() == 0

    assert lines(file) == [str(number) for number in range(50)]


@pytest.mark.parametrize("in_packet", [1, 2, 4], ids=["all apart", "some unread", "all read"])
def test_what_was_taken_back_is_never_run_and_what_is_sent_after_dropped_is(tmp_path: Path, in_packet: int) -> None:
    file, gate = tmp_path / "said", Gate(tmp_path)
    with Driver() as driver:
        frames = [
            driver.pack(pass_gate, gate.path),
            *(driver.pack(tasks.say, str(file), f"taken back {number}") for number in range(3)),
        ]
        for at in range(0, len(frames), in_packet):
            assert driver.channel.send_tasks(frames[at : at + in_packet])
        gate.wait_begun()

        assert driver.channel.revoke() == 3
        assert driver.channel.drop()
        gate.open()
        assert reported(driver) == 1
        assert isinstance(driver.message(), wire.Dropped)
        assert driver.run(tasks.say, str(file), "sent after").outcome == "ok"
        assert driver.channel.revoke() == 0

    assert lines(file) == ["sent after"]


def test_a_worker_that_waits_answers_a_drop() -> None:
    with Driver() as driver:
        for _ in range(2):
            assert driver.channel.drop()
            assert isinstance(driver.message(), wire.Dropped)
        assert driver.result(tasks.add, 1, 2) == 3


def test_a_racing_worker_runs_the_first_tasks_and_never_those_taken_back(tmp_path: Path) -> None:
    rounds, count = 150, 12
    chance = random.Random(2)
    file = tmp_path / "said"
    expected = []
    shared = 0
    with Driver() as driver:
        for _ in range(rounds):
            first = driver.seq + 1
            frames = [driver.pack(tasks.say, str(file), str(seq)) for seq in range(first, first + count)]
            cut = chance.randrange(1, count)
            assert driver.channel.send_tasks(frames[:cut])
            assert driver.channel.send_tasks(frames[cut:])
            run = [reported(driver) for _ in range(chance.randrange(count))]
            revoked = driver.channel.revoke()
            assert driver.channel.drop()
            run += [reported(driver) for _ in range(count - revoked - len(run))]
            assert isinstance(driver.message(), wire.Dropped)
            assert run == list(range(first, first + count - revoked))
            expected += run
            shared += 0 < revoked < count

    assert lines(file) == [str(seq) for seq in expected]
    assert shared, "no race happened at all"


def test_a_worker_killed_while_it_waits_takes_nothing_with_it() -> None:
    for _ in range(5):
        with Driver() as driver:
            assert wait_until(functools.partial(sleeps, driver.worker.pid), PATIENCE_S)
            os.kill(driver.worker.pid, signal.SIGKILL)
            # It may be dead before, which is all the same.
            with contextlib.suppress(wire.WireError):
                driver.channel.send_tasks([driver.pack(tasks.pid), driver.pack(tasks.pid)])
            driver.death()

            assert driver.channel.revoke() == 2
            assert driver.channel.receive() == []


def test_a_worker_killed_in_its_work_takes_one_task_with_it_at_most() -> None:
    chance = random.Random(3)
    for _ in range(5):
        with Driver() as driver:
            assert driver.channel.send_tasks([driver.pack(tasks.pid) for _ in range(60)])
            run = [reported(driver) for _ in range(chance.randrange(50))]
            os.kill(driver.worker.pid, signal.SIGKILL)
            driver.death()
            for message in driver.rest():
                assert isinstance(message, wire.Report)
                run.append(message.seq)

            assert run == list(range(1, len(run) + 1))
            assert len(run) + driver.channel.revoke() in (59, 60)


def test_inputs_do_not_stay_in_memory_while_the_worker_waits() -> None:
    size = 200_000_000
    with Driver() as driver:
        call, _ = payload.dump_call(tasks.echo, ("small",), {})
        driver.seq += 1
        driver.send_call(call, inputs=(bytes(size),))
        assert driver.report().outcome == "ok"

        process = psutil.Process(driver.worker.pid)
        assert wait_until(lambda: process.memory_info().rss < size / 2, PATIENCE_S)


# --- cheats ---


def test_H5_a_forked_child_that_comes_home_reports_nothing(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        child = driver.result(tasks.fork_and_come_home, str(file))
        assert lines(file) == [str(child)]
        assert isinstance(driver.result(tasks.fork_and_raise), int)
        assert driver.result(tasks.pid) == driver.worker.pid
        assert driver.leave().exit_code == 0
        assert driver.rest() == []


def test_H5_a_forked_child_that_speaks_is_not_heard() -> None:
    with Driver() as driver:
        driver.send(tasks.fork_and_speak)
        assert isinstance(driver.message(), wire.Report)


def test_H5_closed_descriptors_end_the_worker_with_a_code_of_their_own() -> None:
    with Driver() as driver:
        driver.send(tasks.close_descriptors)
        assert driver.death().exit_code == wire.EXIT_PIPES_LOST


def test_H5_closed_claims_end_the_worker_before_it_begins_a_task(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        fds = driver.result(tasks.pipes_of_the_worker)
        assert isinstance(fds, list)
        assert driver.result(tasks.close, fds[2]) is None
        driver.send(tasks.say, str(file), "begun")

        assert driver.death().exit_code == wire.EXIT_PIPES_LOST
        assert driver.channel.revoke() == 1
    assert lines(file) == []


def test_H5_claims_closed_by_a_task_end_the_worker_with_more_to_do() -> None:
    with Driver() as driver:
        frames = [driver.pack(tasks.close_descriptors), driver.pack(tasks.add, 1, 2), driver.pack(tasks.add, 1, 3)]
        assert driver.channel.send_tasks(frames)

        assert driver.death().exit_code == wire.EXIT_PIPES_LOST
        assert driver.channel.revoke() == 2


def test_H5_closed_standard_streams_harm_nobody() -> None:
    with Driver() as driver:
        assert driver.result(tasks.close_standard_streams) == "closed"
        assert driver.run(tasks.shout, "with streams again").outcome == "ok"
        assert driver.result(tasks.add, 1, 2) == 3
        assert driver.leave().signal is None


@pytest.mark.parametrize("data", [b"x", b"\x06" * 100, b"\x01\x02" * 40_000], ids=["byte", "kind", "long"])
def test_H5_garbage_in_the_pipe_is_a_wire_error(data: bytes) -> None:
    with Driver() as driver:
        fds = driver.result(tasks.pipes_of_the_worker)
        assert isinstance(fds, list)
        driver.send(tasks.write_garbage_to, fds[1], data)
        with pytest.raises(wire.WireError):
            driver.message()


def test_H5_output_appears_before_the_report(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with Driver() as driver:
        assert driver.run(tasks.shout, "hello from the worker").outcome == "ok"
        out, err = capfd.readouterr()

    assert out == "hello from the worker\n"
    assert err == "hello from the worker\n"


def test_H5_programs_that_a_task_starts_inherit_none_of_our_descriptors() -> None:
    with Driver() as driver:
        listed = driver.result(tasks.descriptors_of_a_program)

    assert listed == ["0", "1", "2", "3"], "3 is the listing's own"


# --- leaving ---


def test_told_to_leave_a_worker_ends_as_an_interpreter_does(tmp_path: Path) -> None:
    file = tmp_path / "said"
    with Driver() as driver:
        driver.run(tasks.register_at_exit, str(file))
        assert driver.leave().exit_code == 0

    assert lines(file) == ["at exit"]


def test_leaving_makes_no_noise(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "always")
    with Driver() as driver:
        driver.run(tasks.add, 1, 2)
        driver.leave()
    with Driver() as driver:
        driver.worker.ask()
        driver.death()

    assert capfd.readouterr() == ("", "")


def test_told_to_leave_at_once_a_worker_leaves() -> None:
    with Driver(await_ready=False) as driver:
        assert driver.leave().exit_code == 0
