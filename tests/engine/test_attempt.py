"""One attempt ends in a report, whatever the task does (contract D2, D3, D9)."""

import gc
import itertools
import os
import pickle
import signal
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import tasks

from procq import payload
from procq.engine import attempt
from procq.engine.attempt import Gate, run
from procq.errors import PayloadError
from procq.inside import Permanent, RetryLater, Terminated
from procq.outcome import Ended, class_names


def run_task(fn: object, *args: object, gate: Gate | None = None) -> Ended:
    call, _ = payload.dump_call(fn, args, {})  # type: ignore[arg-type]
    return run(call, (), gate=gate)


def value_of(ended: Ended) -> object:
    assert ended.value is not None, (ended.message, ended.traceback)
    return payload.loads(ended.value)


# --- success ---


def test_a_result_comes_back_pickled() -> None:
    ended = run_task(tasks.add, 2, 3)

    assert ended.outcome == "ok"
    assert value_of(ended) == 5
    assert (ended.error_types, ended.message, ended.traceback) == ((), "", "")
    assert not ended.permanent
    assert not ended.terminated


def test_instants_come_from_the_clock_handed_in() -> None:
    clock = itertools.count(10.0, 0.5)
    call, _ = payload.dump_call(tasks.add, (2, 3), {})

    ended = run(call, (), clock=lambda: next(clock))

    assert (ended.started_at, ended.ended_at) == (10.0, 10.5)


def test_inputs_take_the_places_of_the_results_they_are() -> None:
    class StandIn:
        def __reduce__(self) -> tuple[object, ...]:
            reduced = payload.placeholder(self)
            assert reduced is not None
            return reduced

    call, found = payload.dump_call(tasks.add, (StandIn(), 3), {})
    assert len(found) == 1

    assert value_of(run(call, [payload.dumps(39)])) == 42


# --- ordinary errors ---


def test_an_error_comes_back_as_itself_and_in_words() -> None:
    ended = run_task(tasks.fail, "bad input")

    assert ended.outcome == "error"
    error = value_of(ended)
    assert type(error) is ValueError
    assert error.args == ("bad input",)
    assert ended.error_types == ("ValueError", "Exception", "BaseException")
    assert ended.message == "bad input"
    assert not ended.permanent


def test_a_traceback_has_the_tasks_frames_only_and_the_whole_chain() -> None:
    ended = run_task(tasks.fail_chained)

    text = ended.traceback
    assert text.startswith("Traceback")
    assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("ValueError: outer")
    assert 'raise KeyError("inner")' in text
    assert "in _deeper" in text
    assert attempt.__file__ not in text
    assert payload.__file__ not in text


def test_the_traceback_of_a_stop_reads_as_any_other() -> None:
    """It is made without the module `traceback`, whose import took longer than the stop itself."""
    try:
        _Stopping().stop()
    except Terminated as error:
        text, frames = attempt._traceback(error), error.__traceback__
        usual = traceback.format_exception(type(error), error, frames)
    marks_left_out = [line for line in "".join(usual).splitlines() if line.strip("\t ^~")]

    assert text.splitlines() == marks_left_out
    assert "raise Terminated  # a line of source" in text


class _Stopping:
    def stop(self) -> None:
        exec("self.go_on()", {"self": self})  # a frame whose source is in no file

    def go_on(self) -> None:
        raise Terminated  # a line of source


def test_the_traceback_of_a_stop_amid_another_error_tells_of_both() -> None:
    def stopped_while_handling() -> None:
        try:
            dict[str, int]()["inner"]
        except KeyError:
            _Stopping().go_on()

    ended = run_task(stopped_while_handling)

    assert ended.traceback.index("KeyError: 'inner'") < ended.traceback.index("procq.inside.Terminated")


@pytest.mark.parametrize("task", [tasks.fail_two_parts, tasks.fail_with_lock])
def test_an_error_that_cannot_be_rebuilt_is_known_by_its_words(task: object) -> None:
    ended = run_task(task)

    assert ended.outcome == "error"
    assert ended.value is None
    assert ended.error_types[-2:] == ("Exception", "BaseException")
    assert ended.message
    assert not ended.permanent


def test_an_error_without_a_text_does_no_harm() -> None:
    ended = run_task(tasks.fail_silently)

    assert ended.error_types[0] == "tests.support.tasks.SilentError"
    assert "__str__ raised" in ended.message
    assert "SilentError" in ended.traceback


class _Nameless(type):
    @property
    def __mro__(cls) -> tuple[type, ...]:
        raise RuntimeError("no names for you")


class NamelessError(Exception, metaclass=_Nameless):
    pass


class NotesError(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # as wild as tasks are
        raise RuntimeError("no notes for you")


def fail_as(kind: type[Exception]) -> None:
    raise kind("odd")


def test_an_error_that_cannot_even_be_named_is_an_error() -> None:
    ended = run_task(lambda: fail_as(NamelessError))

    assert ended.outcome == "error"
    assert ended.error_types == ("BaseException",)
    assert "cannot be described: RuntimeError" in ended.message


def test_an_error_whose_traceback_cannot_be_had_is_an_error() -> None:
    ended = run_task(fail_as, NotesError)

    assert ended.message == "odd"
    assert ended.traceback


def test_endless_recursion_is_an_error_like_others() -> None:
    ended = run_task(tasks.fail_deeply)

    assert ended.error_types[0] == "RecursionError"
    assert not ended.permanent
    assert len(ended.traceback) < 5_000, "repeated frames are told once"


def test_texts_as_long_as_their_input_lose_their_middle() -> None:
    ended = run_task(tasks.fail, f"<{'x' * 1_000_000}>")

    assert len(ended.message) < attempt.TEXT_MAX + 100
    assert ended.message.startswith("<x")
    assert ended.message.endswith("x>")
    assert "950002 characters left out" in ended.message
    assert len(ended.traceback) < attempt.TEXT_MAX + 100


class Data:
    pass


def fail_holding(watched: list[weakref.ref[Data]]) -> None:
    data = Data()
    _WATCHED.append(weakref.ref(data))
    raise ValueError(len(watched))


_WATCHED: list[weakref.ref[Data]] = []


def test_an_error_does_not_keep_the_tasks_data_alive() -> None:
    """A cycle of error, traceback and our frame would hold it until the next garbage collection."""
    gc.collect()
    gc.disable()
    try:
        ended = run_task(fail_holding, [])
        assert ended.error_types[0] == "ValueError"
        assert _WATCHED.pop()() is None
    finally:
        gc.enable()


# --- directives ---


def test_D3_permanent_with_a_text_is_itself_the_error() -> None:
    ended = run_task(tasks.fail_permanently, "give up")

    assert ended.permanent
    assert ended.message == "give up"
    assert ended.error_types[0] == "procq.inside.Permanent"
    error = value_of(ended)
    assert isinstance(error, Permanent)
    assert error.reason == "give up"


def test_D3_permanent_with_an_error_stands_for_that() -> None:
    ended = run_task(tasks.fail_permanently_with_error)

    assert ended.permanent
    assert (ended.message, ended.error_types[0]) == ("for good", "ValueError")
    assert type(value_of(ended)) is ValueError
    assert "in fail_permanently_with_error" in ended.traceback


def test_D7_retry_later_carries_its_delay() -> None:
    ended = run_task(tasks.later, 2.5)

    assert ended.outcome == "error"
    assert ended.retry_after_s == 2.5
    assert not ended.permanent


class _SpoiltLater(RetryLater):
    def __init__(self, delay_s: object) -> None:
        Exception.__init__(self)
        if delay_s is not None:
            self.delay_s = delay_s  # type: ignore[assignment]  # spoilt on purpose


def spoilt_later(delay_s: object) -> None:
    raise _SpoiltLater(delay_s)


@pytest.mark.parametrize("delay_s", [None, "soon", -1.0, float("nan"), float("inf")])
def test_a_retry_later_that_a_subclass_spoilt_is_an_ordinary_error(delay_s: object) -> None:
    ended = run_task(spoilt_later, delay_s)

    assert ended.outcome == "error"
    assert ended.retry_after_s is None


class _SpoiltPermanent(Permanent):
    def __init__(self) -> None:
        Exception.__init__(self, "spoilt")


def spoilt_permanent() -> None:
    raise _SpoiltPermanent


def test_a_permanent_that_a_subclass_spoilt_is_permanent() -> None:
    ended = run_task(spoilt_permanent)

    assert ended.permanent
    assert ended.message == "spoilt"


# --- what is not an Exception ---


@pytest.mark.parametrize(
    ("code", "message"),
    [(0, "SystemExit: 0"), (None, "SystemExit: 0"), (3, "SystemExit: 3"), ("bye", "SystemExit: bye")],
)
def test_H14_an_exit_call_is_a_failure_that_names_the_value(code: object, message: str) -> None:
    ended = run_task(tasks.leave, code)

    assert ended.outcome == "error"
    assert ended.permanent
    assert ended.message == message
    assert ended.error_types == ("SystemExit", "BaseException")
    assert type(value_of(ended)) is SystemExit


@pytest.mark.parametrize(
    ("task", "message"), [(tasks.interrupt, "KeyboardInterrupt"), (tasks.fail_base, "OwnBaseError: mine")]
)
def test_D3_what_is_no_exception_is_permanent(task: object, message: str) -> None:
    ended = run_task(task)

    assert ended.permanent
    assert ended.message == message
    assert not ended.terminated


# --- calls that cannot be unpickled ---


def test_a_module_that_is_missing_here_is_told_as_such() -> None:
    ended = run(b"cprocq_no_such_module\nfunction\n.", ())

    assert ended.outcome == "error"
    assert ended.permanent
    assert ended.value is None, "else result() would raise the bare error, which does not say where"
    assert ended.error_types[0] == "ModuleNotFoundError"
    assert ended.message == (
        "the call could not be unpickled in the worker: ModuleNotFoundError: No module named 'procq_no_such_module'"
    )


def test_an_argument_whose_loading_raises_is_told_with_its_traceback() -> None:
    ended = run_task(tasks.echo, tasks.UnloadableError())

    assert ended.permanent
    assert "could not be unpickled in the worker: LookupError: no rebuilding" in ended.message
    assert "in _refuse" in ended.traceback
    assert attempt.__file__ not in ended.traceback


@pytest.mark.parametrize(
    "call", [b"", b"nonsense", pickle.dumps(None), pickle.dumps((1, 2)), pickle.dumps(("text", ()))]
)
def test_bytes_that_are_no_call_are_an_error(call: bytes) -> None:
    ended = run(call, ())

    assert ended.outcome == "error"
    assert ended.error_types


# --- results that cannot be pickled ---


@pytest.mark.parametrize(
    ("task", "texts"),
    [
        (tasks.generator, ("generator returned a generator, which cannot be sent back", "; return a list instead")),
        (tasks.coroutine, ("coroutine returned a coroutine", "procq runs plain functions: call asyncio.run() inside")),
        (tasks.lock_in_dict, ("lock_in_dict returned a dict", "lock")),
        (tasks.exits_while_pickled, ("returned an UnpicklableOnPurpose", "SystemExit: 9")),
    ],
)  # fmt: skip
def test_D9_a_result_that_cannot_be_pickled_fails_for_good(task: object, texts: tuple[str, ...]) -> None:
    ended = run_task(task)

    assert ended.outcome == "error"
    assert ended.permanent
    assert ended.value is None
    assert ended.error_types == class_names(PayloadError)
    for text in texts:
        assert text in ended.message


# --- being terminated ---


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that SIGTERM knocks at, as in a worker."""
    gate = Gate()

    def knock(signum: int, frame: object) -> None:  # noqa: ARG001 - a signal handler's
        if gate.may_fire():
            raise Terminated

    before = signal.signal(signal.SIGTERM, knock)
    yield gate
    signal.signal(signal.SIGTERM, before)


def knock_and_finish() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    return "finished"


def knock_and_swallow() -> str:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:  # noqa: BLE001 - what tasks do
        os.kill(os.getpid(), signal.SIGTERM)
    return "swallowed"


class KnocksWhenPickled:
    def __reduce__(self) -> tuple[object, ...]:
        os.kill(os.getpid(), signal.SIGTERM)
        return tasks.add, (1, 2)


class KnocksWhenLoaded:
    def __reduce__(self) -> tuple[object, ...]:
        return knock_and_finish, ()


def test_D5_terminated_ends_the_task_and_is_told(gate: Gate) -> None:
    ended = run_task(knock_and_finish, gate=gate)

    assert ended.outcome == "error"
    assert ended.terminated
    assert ended.permanent
    assert ended.error_types[0] == "procq.inside.Terminated"


def test_D5_a_task_that_catches_terminated_is_told_too_and_meets_it_once(gate: Gate) -> None:
    ended = run_task(knock_and_swallow, gate=gate)

    assert ended.outcome == "ok"
    assert value_of(ended) == "swallowed"
    assert ended.terminated


def test_a_knock_while_the_call_is_loaded_is_a_termination_not_a_bad_call(gate: Gate) -> None:
    ended = run_task(tasks.echo, KnocksWhenLoaded(), gate=gate)

    assert ended.terminated


def test_a_knock_while_the_report_is_made_does_not_spoil_it(gate: Gate) -> None:
    ended = run_task(tasks.echo, 1, gate=gate)
    assert ended.outcome == "ok"

    ended = run_task(KnocksWhenPickled, gate=gate)

    assert ended.outcome == "ok"
    assert value_of(ended) == 3
    assert not ended.terminated


class GateWithAFootInIt(Gate):
    """SIGTERM arrives in the very instant in which the gate is about to be closed."""

    __slots__ = ("_is_open",)

    @property
    def is_open(self) -> bool:
        return self._is_open

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        if not is_open and getattr(self, "_is_open", False):
            self._is_open = False
            self.has_fired = True
            raise Terminated
        self._is_open = is_open


@pytest.mark.parametrize("task", [tasks.pid, tasks.fail, tasks.interrupt])
def test_a_knock_while_the_gate_is_being_closed_does_not_get_past_run(task: object) -> None:
    ended = run_task(task, gate=GateWithAFootInIt())

    assert ended.outcome == "error"
    assert ended.terminated
    assert ended.error_types[0] == "procq.inside.Terminated"


def test_the_gate_is_open_for_the_task_only(gate: Gate) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    for task in (tasks.pid, tasks.fail, tasks.leave):
        ended = run_task(task, gate=gate)
        assert not gate.is_open
        assert not ended.terminated
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_knock_just_before_the_gate_opens_holds_the_task(gate: Gate, tmp_path: Path) -> None:
    file = tmp_path / "said"
    gate.is_asked = True

    ended = run_task(tasks.say, str(file), "ran", gate=gate)

    assert ended.terminated
    assert ended.error_types[0] == "procq.inside.Terminated"
    assert not file.exists()


def test_a_knock_is_told_of_its_own_attempt_only(gate: Gate) -> None:
    assert run_task(knock_and_finish, gate=gate).terminated
    assert not run_task(tasks.pid, gate=gate).terminated
