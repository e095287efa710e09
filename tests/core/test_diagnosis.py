"""What is said of a call that cannot be pickled: which argument, and the way to the culprit (contract C5)."""

import functools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from procq import task, testing
from procq.diagnosis import explain_unpicklable
from procq.draft import pickle_call
from procq.errors import PayloadError, UsageError
from procq.spec import type_of

LOCK = threading.Lock()
TELL = "(cannot pickle '_thread.lock' object); open it inside the task, or pass what it is made from"


@dataclass
class Camera:
    """Holds something that cannot travel."""

    name: str = "front"
    parts: list[object] = field(default_factory=lambda: [1, {"driver": LOCK}])


@dataclass(slots=True)
class SlottedCamera:
    """The same, without a dictionary."""

    name: str = "front"
    driver: object = LOCK


class Unspeakable:
    """A key with an impolite repr."""

    def __repr__(self) -> str:
        raise ValueError


def load(path: str, options: object = None, *rest: object, mode: object = "r", **more: object) -> str:
    """Load something."""
    return f"{path} {options} {rest} {mode} {more}"


def anything(*args: object) -> tuple[object, ...]:
    return args


@task
def load_task(path: str, options: object = None) -> str:
    return f"{path} {options}"


def refused(fn: Callable[..., object], *args: object, **kwargs: object) -> str:
    """Return what is said of a call."""
    with pytest.raises(PayloadError) as caught:
        pickle_call(fn, args, kwargs, "load")
    assert caught.value.__cause__ is not None
    return str(caught.value)


@pytest.mark.parametrize(
    ("args", "kwargs", "argument", "where"),
    [
        ((LOCK,), {}, "path", ""),
        (("a", LOCK), {}, "options", ""),
        (("a",), {"options": LOCK}, "options", ""),
        (("a",), {"mode": LOCK}, "mode", ""),
        (("a", 1, 2, LOCK), {}, "rest", " inside tuple at rest[1]"),
        (("a",), {"extra": LOCK}, "more", " inside dict at more['extra']"),
        (("a", [1, 2, LOCK]), {}, "options", " inside list at options[2]"),
        (("a", {"b": [{"c": (LOCK,)}]}), {}, "options", " inside dict at options['b'][0]['c'][0]"),
        (("a", frozenset({LOCK})), {}, "options", " inside frozenset at options[0]"),
        (("a", {LOCK: 1}), {}, "options", None),
        (("a", Camera()), {}, "options", f" inside {__name__}.Camera at options.parts[1]['driver']"),
        (("a", SlottedCamera()), {}, "options", f" inside {__name__}.SlottedCamera at options.driver"),
        (("a", functools.partial(anything, LOCK)), {}, "options", " inside functools.partial at options.args[0]"),
        (("a", {Unspeakable(): LOCK}), {}, "options", " inside dict at options[Unspeakable]"),
        (("a", {"k" * 100: LOCK}), {}, "options", f" inside dict at options['{'k' * 59}...]"),
    ],
    ids=[
        *("positional", "second", "named", "keyword only", "*rest", "**more", "list", "deep", "set"),
        *("key", "object", "slots", "partial", "odd key", "long key"),
    ],
)
def test_C5_the_argument_and_the_path_to_the_culprit_are_named(
    args: tuple[object, ...], kwargs: dict[str, object], argument: str, where: str | None
) -> None:
    said = refused(load, *args, **kwargs)

    if where is None:
        where = f" inside dict at options.keys()[{LOCK!r:.60}]"
    assert said == f"argument '{argument}' of load(...) can't be sent to a worker: _thread.lock{where} {TELL}"


def test_C5_arguments_beside_the_culprit_are_not_blamed_not_even_results() -> None:
    """A result that is not there yet cannot be pickled by itself, but it can as an argument."""
    said = refused(load, load_task.spec("a"), load_task.spec("b").out, LOCK)

    assert said.startswith("argument 'rest' of load(...)")


def test_C5_without_a_signature_arguments_are_named_by_number() -> None:
    said = refused(type, "name", (), {"lock": LOCK})

    assert said.startswith("argument '2' of load(...) can't be sent to a worker: _thread.lock inside dict at 2['lock']")


def test_C5_a_function_is_named_with_what_it_has_closed_over() -> None:
    connection = {"socket": LOCK}

    def closure() -> object:
        return connection

    assert refused(closure) == (
        f"the function load can't be sent to a worker: _thread.lock at load.connection['socket'] {TELL}"
    )


def test_C5_a_function_by_value_is_named_with_its_globals_and_defaults() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "LOCK": LOCK}
    source = """
def by_global():
    return LOCK
def by_default(lock=LOCK):
    return lock
def by_keyword(*, lock=LOCK):
    return lock
"""
    exec(source, namespace)

    assert "_thread.lock at load.LOCK " in refused(namespace["by_global"])
    assert "_thread.lock at load.__defaults__[0] " in refused(namespace["by_default"])
    assert "_thread.lock at load.lock " in refused(namespace["by_keyword"])


def test_C5_a_task_function_is_told_as_the_function_it_wraps() -> None:
    connection = LOCK

    @task
    def closure() -> object:
        return connection

    assert "_thread.lock at load.connection " in refused(closure)


def test_C5_a_method_is_named_with_its_object() -> None:
    class Source:
        def __init__(self) -> None:
            self.lock = LOCK

        def read(self) -> None: ...

    assert "_thread.lock at load.__self__.lock " in refused(Source().read)


def test_C5_a_culprit_that_cannot_be_taken_apart_is_named_itself() -> None:
    said = refused(load, "a", (number for number in range(3)))

    assert said.startswith("argument 'options' of load(...) can't be sent to a worker: generator (cannot pickle")


def test_C5_an_error_of_procq_while_pickling_is_raised_as_it_is() -> None:
    class Refuses:
        def __reduce__(self) -> str:
            raise UsageError("no, thanks")

    with pytest.raises(UsageError, match=r"^no, thanks$") as caught:
        pickle_call(load, (Refuses(),), {}, "load")

    assert caught.value.__cause__ is None


def test_C5_if_no_part_fails_by_itself_the_call_is_named() -> None:
    said = explain_unpicklable(load, ("a",), {"mode": "w"}, "load", ValueError("odd"))

    assert said == "the call of load(...) can't be sent to a worker (odd)"


def test_C5_a_queue_or_what_holds_one_is_refused_with_what_to_do() -> None:
    queue = testing.inline()

    with pytest.raises(UsageError, match="a Queue can't be sent to a worker; open one inside the task"):
        pickle_call(load, ({"queue": queue},), {}, "load")


def test_C5_a_thing_that_holds_itself_is_no_trap() -> None:
    around: list[object] = [LOCK]
    around.insert(0, around)

    said = refused(load, around)

    assert re.match(r"argument 'path' of load\(...\) can't be sent", said)


def test_type_of_serves_as_the_name() -> None:
    with pytest.raises(PayloadError, match=r"argument 'path' of load\(\.\.\.\)"):
        pickle_call(load, (LOCK,), {}, type_of(load))


def test_C5_an_error_without_a_text_is_told_by_its_class() -> None:
    assert "(MemoryError)" in explain_unpicklable(len, (), {}, "len", MemoryError())
