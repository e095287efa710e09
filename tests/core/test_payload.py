"""What travels by reference, what by value, and how results take their places (contract C5, E2)."""

import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import FunctionType, ModuleType
from typing import Any

import pytest

from procq import task
from procq.parcel import BESIDE_BYTES, Parcel, Payload
from procq.payload import NotPicklable, dump_call, dumps, load_call, loads, placeholder


def plain(*args: object, **kwargs: object) -> tuple[object, ...]:
    """Return what it was given."""
    return (*args, kwargs) if kwargs else args


@task
def noted(*args: object) -> tuple[object, ...]:
    return args


def called(data: Payload, *results: object) -> object:
    """Do what a worker does with a call and the results it takes."""
    fn, args, kwargs = load_call(data, [dumps(result) for result in results])
    return fn(*args, **kwargs)


def function_of_main(source: str) -> Callable[..., Any]:
    """Return the function `f` that a script or a notebook defines."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(source, namespace)
    fn: FunctionType = namespace["f"]
    assert fn.__module__ == "__main__"
    return fn


# --- by reference or by value -------------------------------------------------------------------------


def test_C5_a_function_of_a_module_travels_by_reference() -> None:
    data, _ = dump_call(plain, (1,), {})

    assert len(data) < 100
    assert load_call(data, [])[0] is plain


def test_C5_a_closure_travels_with_what_it_has_closed_over_as_it_was() -> None:
    box = [1]

    def closure(number: int) -> list[int]:
        return [*box, number]

    data, _ = dump_call(closure, (2,), {})
    box.append(99)

    assert called(data) == [1, 2]


def test_C5_a_lambda_travels() -> None:
    data, _ = dump_call(lambda number: number + 1, (1,), {})

    assert called(data) == 2


def test_C5_arguments_are_those_of_the_submit() -> None:
    numbers = [1]
    data, _ = dump_call(plain, (numbers,), {"by": numbers})
    numbers.append(2)

    assert called(data) == ([1], {"by": [1]})


def test_C5_what_is_one_object_stays_one_object() -> None:
    shared = [1]
    data, _ = dump_call(plain, (shared, [shared]), {})

    args: Any = load_call(data, [])[1]
    assert args[0] is args[1][0]


def test_C5_a_function_of_main_travels_by_value() -> None:
    fn = function_of_main("factor = 3\ndef f(n):\n    return n * factor\n")

    data, _ = dump_call(fn, (2,), {})

    assert called(data) == 6


def test_C5_so_it_does_where_its_name_would_lead_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the submitting process the name leads to it; in a worker it leads nowhere."""
    fn = function_of_main("def f(n):\n    return n * 3\n")
    monkeypatch.setattr(sys.modules["__main__"], "f", fn, raising=False)
    assert len(pickle.dumps(fn)) < 50, "plain pickle is content"

    data, _ = dump_call(fn, (2,), {})
    monkeypatch.undo()

    assert called(data) == 6


def test_C5_a_task_function_of_main_travels_by_value() -> None:
    fn = task(function_of_main("def f(n):\n    return n * 3\n"), max_attempts=2)

    data, _ = dump_call(fn, (2,), {})

    assert called(data) == 6


def test_C5_an_object_of_a_class_of_main_travels_by_value() -> None:
    fn = function_of_main(
        "class Point:\n    def __init__(self, x):\n        self.x = x\ndef f(x):\n    return Point(x)\n"
    )

    data, _ = dump_call(plain, (fn(5),), {})

    (point,) = load_call(data, [])[1]
    assert vars(point) == {"x": 5}


def test_C5_the_text_main_in_an_argument_does_no_harm() -> None:
    data, _ = dump_call(plain, ("if __name__ == '__main__':",), {})

    assert called(data) == ("if __name__ == '__main__':",)


def test_C5_a_function_by_value_keeps_its_file_and_line_for_tracebacks() -> None:
    def fails() -> None:
        raise ZeroDivisionError

    data, _ = dump_call(fails, (), {})
    fn = load_call(data, [])[0]

    assert isinstance(fn, FunctionType)
    assert (fn.__code__.co_filename, fn.__code__.co_firstlineno) == (__file__, fails.__code__.co_firstlineno)


def test_I1_big_bytes_that_are_given_twice_travel_once_and_stay_one() -> None:
    big = bytes(BESIDE_BYTES)
    data, _ = dump_call(plain, (big, 1, big), {"again": big, "other": bytes(BESIDE_BYTES)})

    assert isinstance(data, Parcel)
    assert [len(buffer) for buffer in data.buffers] == [BESIDE_BYTES] * 2
    assert data.buffers[0] is big
    _, args, kwargs = load_call(data, [])
    assert (args, kwargs) == ((big, 1, big), {"again": big, "other": big})
    assert args[0] is args[2] is kwargs["again"] is not kwargs["other"]


def test_C5_a_cached_function_without_a_name_travels_by_value() -> None:
    """What `functools.partial` makes has none, and neither has what `functools.cache` makes of that."""
    fn, args, _ = load_call(dump_call(cache(partial(plain, 1)), (2,), {})[0], [])

    assert fn(*args) == (1, 2)


def test_C5_a_cached_function_of_main_travels_by_value_with_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(value: int) -> int:
        return 2 * value

    double.__module__, double.__qualname__ = "__main__", "double"
    cached = lru_cache(maxsize=3)(double)
    monkeypatch.setattr(sys.modules["__main__"], "double", cached, raising=False)
    assert cached(2) == 4
    data = dumps(cached)
    monkeypatch.delattr(sys.modules["__main__"], "double")
    rebuilt: Any = loads(data)

    assert rebuilt(2) == 4
    assert rebuilt.cache_info() == (0, 1, 3, 1)


def test_C4_the_same_call_is_the_same_bytes() -> None:
    """So an equal spec under the same id is known to be the same task."""
    fn = function_of_main("def f(n):\n    return [n for n in range(n)]\n")

    assert dump_call(fn, (1, "a"), {})[0] == dump_call(fn, (1, "a"), {})[0]
    assert dump_call(plain, (1, "a"), {})[0] == dump_call(plain, (1, "a"), {})[0]


@pytest.mark.parametrize("value", [threading.Lock(), (number for number in range(3))], ids=["lock", "generator"])
def test_C5_what_nothing_can_pickle_is_told_with_its_cause(value: object) -> None:
    with pytest.raises(NotPicklable, match="cannot pickle") as caught:
        dump_call(plain, (value,), {})

    assert isinstance(caught.value.__cause__, TypeError)


def test_C5_what_is_nested_too_deeply_is_told_as_that() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]

    with pytest.raises(NotPicklable, match="deep recursion"):
        dump_call(plain, (nested,), {})


@pytest.mark.parametrize("error", [ValueError("no"), KeyError(3), ZeroDivisionError()], ids=repr)
def test_C5_an_error_in_a_users_reduce_is_told(error: Exception) -> None:
    with pytest.raises(NotPicklable) as caught:
        dump_call(plain, (Reduces(error),), {})

    assert caught.value.__cause__ is error


class Reduces:
    """Raises when it is pickled."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __reduce__(self) -> str:
        raise self.error


def test_results_travel_the_same_way() -> None:
    assert loads(dumps({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}
    fn = loads(dumps(lambda: 3))
    assert callable(fn)
    assert fn() == 3


# --- results in their places -----------------------------------------------------------------------------


@dataclass
class Holder:
    """A user's class that holds something."""

    held: object


@dataclass(frozen=True, slots=True)
class Slotted:
    """Another, without a dictionary."""

    held: object


@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x,
        lambda x: [1, x, 2],
        lambda x: (1, (2, (x,))),
        lambda x: {"key": {"deeper": x}},
        Holder,
        Slotted,
        lambda x: deque([x]),
        lambda x: Holder([{"key": (Slotted(x),)}]),
        lambda x: partial(plain, x),
    ],
    ids=["bare", "list", "tuples", "dicts", "dataclass", "slots", "deque", "all of it", "partial"],
)
@pytest.mark.parametrize("as_out", [True, False], ids=["out", "spec"])
def test_E2_a_result_takes_its_place_at_any_depth(shape: Callable[[object], object], *, as_out: bool) -> None:
    spec = noted.spec(1)

    data, inputs = dump_call(plain, (shape(spec.out if as_out else spec),), {})

    assert inputs == [spec]
    (got,) = load_call(data, [dumps("the result")])[1]
    expected = shape("the result")
    if isinstance(got, partial):
        assert got() == ("the result",)
    else:
        assert got == expected


def test_E2_several_results_keep_their_numbers_in_order_of_appearance() -> None:
    one, two, three = noted.spec(1), noted.spec(2), noted.spec(3)

    data, inputs = dump_call(plain, (two, [one, two.out], {"x": three}), {"again": one.out})

    assert inputs == [two, one, three]
    assert called(data, "two", "one", "three") == ("two", ["one", "two"], {"x": "three"}, {"again": "one"})


def test_E2_each_use_of_a_result_gets_an_object_of_its_own() -> None:
    spec = noted.spec(1)
    data, _ = dump_call(plain, (spec.out, spec.out), {})

    first, second = load_call(data, [dumps([1])])[1]

    assert first == second == [1]


def test_E2_the_second_try_numbers_the_results_anew() -> None:
    """The first try gets as far as the lambda, and has numbered a result by then."""
    one, two = noted.spec(1), noted.spec(2)

    data, inputs = dump_call(plain, (one, lambda: 3, two), {})

    assert inputs == [one, two]
    fn, args, _ = load_call(data, [dumps("one"), dumps("two")])
    assert fn is plain
    assert (args[0], args[2]) == ("one", "two")


def test_E2_a_result_in_a_closure_takes_its_place_too() -> None:
    spec = noted.spec(1)

    def closure() -> object:
        return spec

    data, inputs = dump_call(closure, (), {})

    assert inputs == [spec]
    assert called(data, "the result") == "the result"


def test_E2_without_a_call_being_pickled_nothing_stands_for_a_result() -> None:
    assert placeholder(noted.spec(1)) is None


def test_E2_a_call_pickled_while_another_one_is_does_not_disturb_it() -> None:
    """Pickling runs users' code, and that may submit tasks."""
    outer, inner = noted.spec(1), noted.spec(2)
    submits = Submits(inner)

    _, inputs = dump_call(plain, (submits, outer), {})

    assert inputs == [outer]
    assert submits.inputs == [inner]


class Submits:
    """Pickles a call of its own when it is pickled."""

    def __init__(self, spec: object) -> None:
        self.spec = spec
        self.inputs: list[object] = []

    def __reduce__(self) -> tuple[object, ...]:
        _, self.inputs = dump_call(plain, (self.spec,), {})
        return plain, ()


def test_E2_another_thread_knows_nothing_of_the_call() -> None:
    found: list[object] = []
    asks = Asks(lambda: found.append(placeholder(noted.spec(1))))

    dump_call(plain, (asks,), {})

    assert found == [None]


class Asks:
    """Has a question asked in another thread while it is pickled."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.ask = ask

    def __reduce__(self) -> tuple[object, ...]:
        thread = threading.Thread(target=self.ask)
        thread.start()
        thread.join()
        return plain, ()


def test_E2_after_a_failure_the_next_call_starts_from_nothing() -> None:
    with pytest.raises(NotPicklable):
        dump_call(plain, (noted.spec(1), threading.Lock()), {})
    spec = noted.spec(2)

    assert placeholder(spec) is None
    assert dump_call(plain, (spec,), {})[1] == [spec]


def test_E4_the_result_of_a_task_that_did_not_succeed_cannot_be_taken() -> None:
    data, _ = dump_call(plain, (noted.spec(1),), {})

    with pytest.raises(LookupError, match="did not succeed"):
        load_call(data, [b""])


def test_C5_a_name_is_used_only_while_its_module_is_the_one_that_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function whose module was thrown away, or imported anew, travels by value."""
    module = ModuleType("thrown_away")
    exec("def f():\n    return 1\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "thrown_away", module)
    by_name, _ = dump_call(module.f, (), {})
    anew = ModuleType("thrown_away")
    exec("def f():\n    return 22\n", anew.__dict__)
    monkeypatch.setitem(sys.modules, "thrown_away", anew)

    by_value, _ = dump_call(module.f, (), {})

    assert called(by_value) == 1
    assert called(by_name) == 22
