"""What a user may write, and what is refused at the call, field and value named (contract C1-C3, E2)."""

import copy
import functools
import gc
import math
import pickle
import weakref
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from procq import Priority, TaskFunction, TaskSpec, task
from procq.errors import UsageError
from procq.payload import dump_call, load_call
from procq.retry import constant, exponential
from procq.spec import DEFAULTS, Options, Output, call_spec, called, type_of


def shown(value: object) -> str:
    """Name a parameter by what it looks like."""
    return f"{value!r:.40}"


class OutOfStockError(LookupError):
    """An error of the user's."""


def plain(a: int, b: int = 2, *, c: int = 3) -> int:
    """Add."""
    return a + b + c


def anything(*args: int, **kwargs: int) -> int:
    return len(args) + len(kwargs)


@task
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@task(max_attempts=3, timeout="30s", type="sum", priority=Priority.HIGH)
def add_with_options(a: int, b: int) -> int:
    return a + b


# --- C3: options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "field", "read"),
    [
        ("id", "a", "id", "a"),
        ("type", "t", "type", "t"),
        ("priority", 7, "priority", 7),
        ("priority", Priority.CRITICAL, "priority", 20),
        ("priority", -(10**30), "priority", -(10**30)),
        ("max_attempts", 1, "max_attempts", 1),
        ("timeout", "1m30s", "timeout_s", 90.0),
        ("timeout", None, "timeout_s", None),
        ("delay", timedelta(hours=1), "delay_s", 3600.0),
        ("delay", 0, "delay_s", 0.0),
        ("run_at", datetime(2030, 1, 1, tzinfo=UTC), "run_at", datetime(2030, 1, 1, tzinfo=UTC)),
        ("expires", 5, "expires", 5.0),
        ("expires", datetime(2030, 1, 1, tzinfo=UTC), "expires", datetime(2030, 1, 1, tzinfo=UTC)),
        ("depends_on", ["a", "b"], "depends_on", ("a", "b")),
        ("depends_on", iter("ab"), "depends_on", ("a", "b")),
        ("depends_on", (), "depends_on", ()),
        ("run_if", "failure", "run_if", "failure"),
        ("backoff", 3, "backoff", constant(3)),
        ("backoff", exponential(1), "backoff", exponential(1)),
        ("backoff", None, "backoff", None),
        ("retry_on", ValueError, "retry_on", frozenset({"ValueError"})),
        ("retry_on", (OSError, OutOfStockError), "retry_on", frozenset({"OSError", f"{__name__}.OutOfStockError"})),
        ("retry_on", (), "retry_on", frozenset()),
        ("never_retry", "crash", "never_retry", frozenset({"crash"})),
        ("never_retry", ["timeout", KeyError], "never_retry", frozenset({"timeout", "KeyError"})),
        ("never_retry", KeyboardInterrupt, "never_retry", frozenset({"KeyboardInterrupt"})),
        ("retry_for", "1h", "retry_for_s", 3600.0),
    ],
    ids=shown,
)
def test_C3_what_an_option_accepts(option: str, value: object, field: str, read: object) -> None:
    options = Options({option: value})

    assert getattr(options, field) == read
    others = set(Options.__slots__) - {field, "given", "_alone"}
    assert {name: getattr(options, name) for name in others} == {name: getattr(DEFAULTS, name) for name in others}


def test_C3_the_defaults() -> None:
    assert (DEFAULTS.priority, DEFAULTS.max_attempts, DEFAULTS.run_if) == (0, 1, "success")
    assert (DEFAULTS.timeout_s, DEFAULTS.retry_on, DEFAULTS.id) == (None, None, None)
    assert DEFAULTS.never_retry == frozenset()


BAD_VALUES: dict[str, tuple[object, ...]] = {
    "id": ("", 3, b"a", ["a"]),
    "type": ("", 3),
    "priority": (1.5, "high", None, True, math.nan),
    "max_attempts": (0, -1, 2.0, "3", None, True),
    "timeout": (0, "0s", -1, math.inf, math.nan, "soon", True, [1]),
    "run_at": ("tomorrow", 5, timedelta(hours=1)),
    "delay": (-1, math.inf, "soon", datetime(2030, 1, 1, tzinfo=UTC)),
    "expires": (-1, math.nan, "soon", [1]),
    "depends_on": ("a", None, 3),
    "run_if": ("always", "", None, True, ["done"]),
    "backoff": ([], -1, "soon", [1, -1]),
    "retry_on": ("ValueError", ValueError("x"), [int], [ValueError, "crash"], 3),
    "never_retry": ("ok", "cancelled", "interrupted", "boom", [int], 3, None),
    "retry_for": (-1, math.inf, "soon"),
}


@pytest.mark.parametrize(
    ("option", "value"), [(option, value) for option, values in BAD_VALUES.items() for value in values], ids=shown
)
def test_C3_a_bad_value_is_refused_at_the_call_with_field_and_value(option: str, value: object) -> None:
    options: Any = {option: value}

    for refused in (
        lambda: task(plain, **options),
        lambda: task(**options),
        lambda: add.using(**options),
        lambda: add.spec(1).using(**options),
    ):
        with pytest.raises(UsageError, match=rf"^{option}=") as caught:
            refused()
        culprit = value[-1] if isinstance(value, list) and value and repr(value) not in str(caught.value) else value
        assert repr(culprit) in str(caught.value)


@pytest.mark.parametrize("option", ["retries", "Timeout", "max_attempt", "block"])
def test_C3_an_unknown_option_is_refused_and_the_known_are_listed(option: str) -> None:
    options: Any = {option: 1}

    with pytest.raises(UsageError, match=rf"unknown option '{option}'; known are .*max_attempts.*timeout"):
        add.using(**options)
    with pytest.raises(UsageError, match=rf"unknown option '{option}'"):
        TaskSpec(type="t", **options)


def test_C3_delay_and_run_at_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="delay and run_at are both given"):
        task(plain, delay=1, run_at=datetime(2030, 1, 1, tzinfo=UTC))


def test_C3_the_later_of_delay_and_run_at_takes_the_place_of_the_earlier() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    delayed = add.using(delay=5)

    dated = delayed.using(run_at=at)

    assert (dated.options.delay_s, dated.options.run_at) == (None, at)
    assert dated.using(delay=7).options.run_at is None


def test_C3_defaults_fill_in_what_was_not_given_and_nothing_else() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    spec = add.using(timeout=None, run_at=at).spec(1)

    filled = spec.with_defaults(timeout=5, max_attempts=3, delay=1)

    assert filled.options.timeout_s is None, "None was given"
    assert filled.options.max_attempts == 3
    assert (filled.options.run_at, filled.options.delay_s) == (at, None), "an instant was given"
    assert spec.with_defaults(timeout=1) is spec


def test_C3_an_iterator_of_dependencies_is_read_once_and_kept() -> None:
    spec = add.using(depends_on=iter(["a", "b"])).spec(1)

    assert spec.using(priority=3).options.depends_on == ("a", "b")


def test_C3_a_list_that_changes_later_changes_nothing() -> None:
    needs = ["a"]
    spec = add.using(depends_on=needs).spec(1)
    needs.append("b")

    assert spec.using(priority=3).options.depends_on == ("a",)


def test_C4_options_are_the_same_if_they_describe_the_same_task() -> None:
    one = Options({"timeout": "1m", "backoff": [1, 2], "id": "a"})

    assert one.same_as(Options({"timeout": 60, "backoff": (1.0, "2s"), "id": "b"}))
    assert not one.same_as(Options({"timeout": 61, "backoff": [1, 2]}))
    assert not one.same_as(Options({"timeout": 60}))


# --- C1: task functions -------------------------------------------------------------------------------


def test_C1_calling_a_task_function_just_calls_the_function() -> None:
    assert add(1) == 3
    assert add(1, b=5) == 6
    assert add_with_options(2, 3) == 5
    with pytest.raises(TypeError):
        add()  # type: ignore[call-arg]  # that is the test


def test_C1_a_task_function_looks_like_its_function() -> None:
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add two numbers.", __name__)
    assert repr(add) == "<task function add>"


def test_C1_a_spec_describes_a_call_and_runs_nothing() -> None:
    calls: list[int] = []

    @task(priority=3)
    def noted(number: int, *, by: int) -> None:
        calls.append(number * by)

    spec = noted.spec(1, by=2)

    assert (spec.args, dict(spec.kwargs), spec.options.priority) == ((1,), {"by": 2}, 3)
    assert calls == []


def test_C1_using_returns_a_copy_with_other_options() -> None:
    urgent = add_with_options.using(priority=20, id="x")

    assert (urgent.options.priority, urgent.options.max_attempts, urgent.options.id) == (20, 3, "x")
    assert (add_with_options.options.priority, add_with_options.options.id) == (10, None)
    assert urgent(1, 1) == 2


def test_C1_task_wraps_without_decorating() -> None:
    wrapped = task(plain, timeout=5)

    assert isinstance(wrapped, TaskFunction)
    assert wrapped(1) == 6
    assert wrapped.options.timeout_s == 5


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (plain, "plain"),
        (add, "add"),
        (add_with_options, "sum"),
        (functools.partial(functools.partial(plain, 1), 2), "plain"),
        (len, "len"),
        (dict, "dict"),
        ([].append, "list.append"),
        (OutOfStockError().with_traceback, "OutOfStockError.with_traceback"),
        (lambda: None, "<lambda>"),
    ],
    ids=shown,
)
def test_C2_a_function_has_a_type_its_qualified_name_unless_given(fn: Any, name: str) -> None:  # noqa: ANN401 - any callable
    found = fn.type if isinstance(fn, TaskFunction) else type_of(fn)

    assert found.replace("BaseException.", "OutOfStockError.") == name


def test_C2_an_inner_function_is_named_without_its_locals() -> None:
    def inner() -> None: ...

    assert type_of(inner) == "test_C2_an_inner_function_is_named_without_its_locals.inner"


def test_C2_a_task_function_may_be_wrapped_under_another_type() -> None:
    """The wrapped one's type came along with its name and its docstring, and won."""
    inner = task(len, type="inner")

    assert task(inner, type="outer").type == "outer"
    assert task(inner, type="outer").spec([]).type == "outer"
    assert task(inner).type == "inner"


def test_C2_an_object_that_can_be_called_has_the_type_of_its_class() -> None:
    class Adder:
        def __call__(self) -> int:
            return 1

    assert type_of(Adder()).endswith("Adder")


async def asynchronous() -> None: ...


async def asynchronous_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("fn", [asynchronous, asynchronous_generator, functools.partial(asynchronous)], ids=shown)
def test_C1_an_async_function_is_refused(fn: Any) -> None:  # noqa: ANN401
    with pytest.raises(UsageError, match=r"asynchronous\w* is an async function; procq runs plain functions"):
        task(fn)
    with pytest.raises(UsageError, match="async function"):
        call_spec(fn, (), {})


@pytest.mark.parametrize("fn", [3, "add", [plain]], ids=shown)
def test_C1_what_cannot_be_called_is_refused(fn: Any) -> None:  # noqa: ANN401
    with pytest.raises(UsageError, match="is no function"):
        task(fn)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (add, (), {}),
        (add, (1, 2, 3), {}),
        (add, (1,), {"c": 3}),
        (add, (1,), {"a": 3}),
        (task(plain), (1, 2, 3), {}),
        (task(lambda *, a: a), (), {}),
    ],
    ids=shown,
)
def test_C1_arguments_that_the_function_does_not_take_are_refused_at_the_call(
    fn: Any,  # noqa: ANN401
    args: tuple[int, ...],
    kwargs: dict[str, int],
) -> None:
    with pytest.raises(UsageError, match=r"\(\) "):
        fn.spec(*args, **kwargs)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs"),
    [
        (add, (1,), {}),
        (add, (1, 2), {}),
        (add, (), {"b": 1, "a": 2}),
        (task(plain), (1, 2), {"c": 3}),
        (task(anything), (1, 2, 3, 4), {"x": 1}),
        (task(functools.partial(plain, 1)), (2,), {}),
        (task(int), ("3",), {}),
        (task(functools.wraps(plain)(lambda *args: args)), (7,), {}),
    ],
    ids=shown,
)
def test_C1_arguments_that_the_function_takes_are_kept(
    fn: Any,  # noqa: ANN401
    args: tuple[int, ...],
    kwargs: dict[str, int],
) -> None:
    spec = fn.spec(*args, **kwargs)

    assert (spec.args, dict(spec.kwargs)) == (args, kwargs)


@pytest.mark.parametrize("fn", [add, add.using(priority=3), add_with_options], ids=["bare", "using", "named"])
def test_C5_a_task_function_of_a_module_travels_by_reference(fn: TaskFunction[[int, int], int]) -> None:
    data = pickle.dumps(fn)

    assert len(data) < 200, "a name, not the code"
    assert pickle.loads(data)(1, 2) == 3


def test_C5_a_task_function_that_its_name_does_not_lead_to_travels_with_its_options() -> None:
    """What it depends on stays behind: no worker could name that."""
    wrapped = task(plain, timeout=5, retry_on=OSError, depends_on=[add.spec(1, 2)])

    loaded = pickle.loads(pickle.dumps(wrapped))

    assert loaded.fn is plain
    assert loaded.options.same_as(wrapped.options)
    assert loaded.spec(1).options.timeout_s == 5
    assert not loaded.options.depends_on
    assert loaded(3) == wrapped(3)


def test_C5_at_the_head_of_a_call_a_task_function_without_a_name_travels_as_its_function() -> None:
    """Where it is only called, a worker need not import what its options are made of."""
    data, _ = dump_call(called(task(plain, timeout=5)), (1,), {})

    assert load_call(data, ())[0] is plain
    assert called(add) is add


# --- specs --------------------------------------------------------------------------------------------


def test_C1_one_spec_object_is_one_task_and_equal_specs_are_two() -> None:
    one, two = add.spec(1), add.spec(1)

    assert one != two
    assert len({one, two, one}) == 2
    assert one.using(priority=1) is not one


@pytest.mark.parametrize("name", ["fn", "args", "kwargs", "options", "type", "unheard_of"])
def test_C1_a_spec_is_immutable(name: str) -> None:
    spec = add.spec(1)

    with pytest.raises(AttributeError, match=rf"immutable; {name} can't be set"):
        setattr(spec, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(spec, name)
    assert spec.args == (1,)


def test_C1_a_spec_can_be_let_go_of() -> None:
    spec = add.spec(1)
    ref = weakref.ref(spec)

    del spec
    gc.collect()

    assert ref() is None


def test_C2_a_spec_by_type_carries_one_payload() -> None:
    spec: TaskSpec[object] = TaskSpec(type="resize", payload={"width": 5}, priority=3, id="a")

    assert (spec.type, spec.fn, spec.args, dict(spec.kwargs)) == ("resize", None, ({"width": 5},), {})
    assert (spec.id, spec.options.priority) == ("a", 3)
    assert TaskSpec(type="resize").args == (None,)


@pytest.mark.parametrize("name", ["", None, 3, b"t"])
def test_C2_the_type_of_a_spec_is_a_text(name: Any) -> None:  # noqa: ANN401
    with pytest.raises(UsageError, match=r"^type="):
        TaskSpec(type=name)


def test_C2_using_may_change_the_type() -> None:
    assert TaskSpec(type="a").using(type="b").type == "b"
    assert add.spec(1).using(type="b").type == "b"
    assert add.using(type="b").spec(1).type == "b"


def test_a_spec_is_shown_by_its_id_or_its_type() -> None:
    assert repr(add.spec(1)) == "<TaskSpec add(…)>"
    assert repr(add.using(id="sum-1").spec(1)) == "<TaskSpec sum-1>"


# --- E2: placeholders ---------------------------------------------------------------------------------


def uses_of(out: Any) -> dict[str, Any]:  # noqa: ANN401 - typed as the result, which it is not yet
    """Return what a user may try with a result that is not there yet."""
    return {
        "truth": lambda: bool(out),
        "call": lambda: out(1),
        "attribute": lambda: out.shape,
        "method": lambda: out.items(1),
        "item": lambda: out[0],
        "length": lambda: len(out),
        "loop": lambda: list(out),
        "unpacking": lambda: [*out],
        "containment": lambda: 1 in out,
        "sum": lambda: out + 1,
        "sum, the other way": lambda: 1 + out,
        "product": lambda: 2 * out,
        "quotient": lambda: out / 2,
        "comparison": lambda: out > 1,
        "order": lambda: sorted([out, out]),
        "number": lambda: int(out),
        "float": lambda: float(out),
        "index": lambda: [1][out],
        "sign": lambda: -out,
        "power": lambda: out**2,
        "pickle": lambda: pickle.dumps(out),
        "deep copy": lambda: copy.deepcopy(out),
        "dependency list": lambda: task(plain, depends_on=out),
    }


@pytest.mark.parametrize("use", uses_of(None))
def test_E2_a_placeholder_refuses_every_use_but_as_an_argument(use: str) -> None:
    out = add.spec(1).out

    with pytest.raises(UsageError, match=r"add\(…\)"):
        uses_of(out)[use]()


def test_E2_a_placeholder_shows_what_it_stands_for() -> None:
    assert repr(add.spec(1).out) == "<result of add(…)>"


def test_E2_a_spec_itself_cannot_be_pickled_but_as_an_argument() -> None:
    with pytest.raises(UsageError, match=r"add\(…\) stands for a result and can't be pickled"):
        pickle.dumps(add.spec(1))


def test_E2_a_spec_and_its_out_as_an_argument_stand_for_the_same_result() -> None:
    spec = add.spec(1)

    _, inputs = dump_call(plain, (spec, spec.out), {"c": [spec]})

    assert inputs == [spec]


def test_E2_a_placeholder_among_the_dependencies_means_its_source() -> None:
    spec = add.spec(1)
    outputs: list[object] = [spec.out, spec, "id"]

    assert task(plain, depends_on=outputs).options.depends_on == (spec, spec, "id")


def test_E2_whatever_asks_for_dunder_attributes_gets_none() -> None:
    out: object = add.spec(1).out

    assert not hasattr(out, "__array__")
    assert isinstance(out, Output)


def test_typing_a_spec_knows_its_result_and_its_function_the_arguments() -> None:
    """What mypy makes of these lines is the test; it runs over the tests too."""
    spec: TaskSpec[int] = add.spec(1)
    out: int = spec.out
    wrapped: TaskFunction[[int], Iterator[int]] = task(counting)
    wrong: TaskSpec[str] = add.spec(1)  # type: ignore[assignment]  # its result is an int
    with pytest.raises(UsageError):
        add.spec("1", 2, 3)  # type: ignore[call-arg,arg-type]
    with pytest.raises(UsageError):
        add.using(timeot=3)  # type: ignore[call-arg]

    assert {type(value) for value in (spec, wrong, wrapped, out)} == {TaskSpec, TaskFunction, Output}


def counting(number: int) -> Iterator[int]:
    yield from range(number)
