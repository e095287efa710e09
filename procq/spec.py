"""What to run and under which rules: task functions, specs and their options (contract C1-C3).

Decides what a user may write and refuses the rest at the call, naming the field and the value.
Knows nothing of queues: a spec describes a task, a queue makes one of it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    final,
    overload,
)

from procq.errors import UsageError
from procq.outcome import qualified_name
from procq.payload import BY_NAME, has_name, placeholder, same
from procq.retry import Backoff, BackoffLike, as_backoff
from procq.slots import DEFAULT_GROUP, ONE_CPU, Demand
from procq.units import Duration, Size, count, is_datetime, seconds, size_bytes

if TYPE_CHECKING:
    from datetime import datetime

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: What becomes of a spec whose id another task has (contract C4): one of `inside.ON_CONFLICT`.
OnConflict = Literal["raise", "same", "replace"]

#: Outcomes that `never_retry` may name (contract D3).
_RETRIABLE_OUTCOMES: Final = frozenset({"error", "timeout", "crash", "memory", "lost"})
#: Options of which the first takes the place of the second.
_EXCLUSIVE: Final = (("delay", "run_at"), ("run_at", "delay"))
_RUN_IF: Final = ("success", "done", "failure")
#: Options that may be given as several values.
_MANY: Final = frozenset({"backoff", "depends_on", "never_retry", "retry_on"})
#: Flags of code objects whose call returns a coroutine or an asynchronous generator
#: (`inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR`, without importing inspect).
_ASYNC_FLAGS: Final = 0x80 | 0x200


class _HandlerOptions(TypedDict, total=False):
    """`OptionArguments` without the type, which a handler's spec names itself."""

    id: str
    priority: int
    max_attempts: int
    timeout: Duration | None
    run_at: "datetime | None"
    delay: Duration | None
    expires: "Duration | datetime | None"
    depends_on: Iterable[object]
    run_if: str
    backoff: BackoffLike | None
    retry_on: "type[BaseException] | Iterable[type[BaseException]]"
    never_retry: "type[BaseException] | str | Iterable[type[BaseException] | str]"
    retry_for: Duration | None
    group: str
    cpus: int
    memory: Size | None


class OptionArguments(_HandlerOptions, total=False):
    """The options of a task, as `task`, `.using` and `TaskSpec` take them (contract C3)."""

    type: str


@final
class ClassName(str):
    """The qualified name of an exception class that is not at hand itself: in options that were read (plain.py)."""

    __slots__ = ()


@final
class Options:
    """Validated options; immutable, and shared by all tasks of a task function.

    Attributes:
        given: Names of the options that were set, as opposed to left at their defaults.
    """

    __slots__ = (
        "_alone", "backoff", "delay_s", "demand", "depends_on", "expires", "given", "group", "id", "is_derived",
        "max_attempts", "never_retry", "priority", "retry_for_s", "retry_on", "run_at", "run_if", "timeout_s", "type",
    )  # fmt: skip

    given: Mapping[str, object]

    def __init__(self, given: Mapping[str, object]) -> None:
        unknown = given.keys() - OptionArguments.__annotations__.keys()
        if unknown:
            known = ", ".join(sorted(OptionArguments.__annotations__))
            raise UsageError(f"unknown option {min(unknown)!r}; known are {known}")
        # Copies: an iterator can be read once only, and `using` reads again; a list may change.
        self.given = given = MappingProxyType({name: _kept(name, value) for name, value in given.items()})
        self.id = _text_or_none(given.get("id"), "id")
        self.type = _text_or_none(given.get("type"), "type")
        self.priority = _whole(given.get("priority", 0), "priority")
        self.max_attempts = count(given.get("max_attempts", 1), field="max_attempts", least=1)
        self.timeout_s = _positive_or_none(given.get("timeout"), "timeout")
        self.delay_s = _seconds_or_none(given.get("delay"), "delay")
        self.run_at = _instant_or_none(given.get("run_at"), "run_at")
        if self.delay_s is not None and self.run_at is not None:
            raise UsageError("delay and run_at are both given; give one of them")
        expires = given.get("expires")
        self.expires = expires if is_datetime(expires) else _seconds_or_none(expires, "expires")
        self.depends_on = _dependencies(given.get("depends_on", ()))
        self.run_if = _one_of(given.get("run_if", "success"), "run_if", _RUN_IF)
        backoff = given.get("backoff")
        self.backoff: Backoff | None = None if backoff is None else as_backoff(cast("BackoffLike", backoff))
        retry_on = given.get("retry_on")
        self.retry_on = None if retry_on is None else _class_names(retry_on, "retry_on", frozenset())
        self.never_retry = _class_names(given.get("never_retry", ()), "never_retry", _RETRIABLE_OUTCOMES)
        self.retry_for_s = _seconds_or_none(given.get("retry_for"), "retry_for")
        self.group = _text(given.get("group", DEFAULT_GROUP), "group")
        self.demand = _demand(given.get("cpus", 1), given.get("memory"))
        self._alone: Options | None = None
        #: whether `id` was derived from the arguments; then nobody asks for the task by it later, and
        #: its result need not be kept for that (F5)
        self.is_derived = False

    def __reduce__(self) -> tuple[object, ...]:
        """Travel as part of a task function, without what they depend on: that cannot be named in a worker."""
        return Options, ({name: value for name, value in self.given.items() if name != "depends_on"},)

    def named(self, derived_id: str) -> "Options":
        """Return these options with an id that was derived from the arguments (contract C4)."""
        options = self.using({"id": derived_id})
        options.is_derived = True
        return options

    def using(self, changes: Mapping[str, object]) -> "Options":
        """Return these options with some of them replaced.

        Raises:
            UsageError: An option is unknown or its value cannot be.
        """
        merged = {**self.given, **changes}
        for one, other in _EXCLUSIVE:
            if one in changes and other not in changes:
                merged.pop(other, None)
        return Options(merged)

    def alone(self) -> "Options":
        """Return these options without what they depend on: a task must not keep handles alive (F5)."""
        if not self.depends_on:
            return self
        if self._alone is None:
            self._alone = Options({name: value for name, value in self.given.items() if name != "depends_on"})
            self._alone.is_derived = self.is_derived
        return self._alone

    def with_defaults(self, defaults: Mapping[str, object]) -> "Options":
        """Return these options, with what was not given taken from `defaults`."""
        missing = {name: value for name, value in defaults.items() if name not in self.given}
        for one, other in _EXCLUSIVE:
            if one in self.given:
                missing.pop(other, None)
        return self.using(missing) if missing else self

    def same_as(self, other: "Options") -> bool:
        """Whether both describe the same task, what it depends on left aside (contract C4)."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in Options.__slots__
            if name not in {"_alone", "depends_on", "given", "id", "is_derived"}
        )


def _kept(name: str, value: object) -> object:
    return tuple(value) if name in _MANY and isinstance(value, list | Iterator) else value


def _text_or_none(value: object, field: str) -> str | None:
    return None if value is None else _text(value, field)


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{field}={value!r}: expected a text that is not empty")
    return value


def _whole(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{field}={value!r}: expected a whole number, not {type(value).__name__}")
    return int(value)


def _seconds_or_none(value: object, field: str) -> float | None:
    return None if value is None else seconds(cast("Duration", value), field=field)


def _positive_or_none(value: object, field: str) -> float | None:
    result = _seconds_or_none(value, field)
    if result == 0:
        raise UsageError(f"{field}={value!r}: must be longer than 0; leave it out for no limit")
    return result


def _demand(cpus: object, memory: object) -> Demand:
    demand = Demand(
        count(cpus, field="cpus", least=1), 0 if memory is None else size_bytes(cast("Size", memory), field="memory")
    )
    return ONE_CPU if demand == ONE_CPU else demand


def _instant_or_none(value: object, field: str) -> "datetime | None":
    if value is None or is_datetime(value):
        return value
    raise UsageError(f"{field}={value!r}: expected a datetime; for a duration use delay=")


def _one_of(value: object, field: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise UsageError(f"{field}={value!r}: must be one of {', '.join(map(repr, known))}")
    return str(value)


def _dependencies(value: object) -> tuple[object, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise UsageError(f"depends_on={value!r}: expected a list of ids, handles or specs")
    return tuple(item.source if isinstance(item, Output) else item for item in value)


def _class_names(value: object, field: str, outcomes: frozenset[str]) -> frozenset[str]:
    """Turn exception classes and outcome names into the names the core goes by."""
    items = value if isinstance(value, Iterable) and not isinstance(value, str | type) else (value,)
    names: set[str] = set()
    for item in items:
        if isinstance(item, type) and issubclass(item, BaseException):
            names.add(qualified_name(item))
        elif isinstance(item, ClassName):
            names.add(str(item))
        elif isinstance(item, str) and item in outcomes:
            names.add(item)
        else:
            also = f" or one of {', '.join(sorted(outcomes))}" if outcomes else ""
            raise UsageError(f"{field}={item!r}: expected an exception class{also}")
    return frozenset(names)


#: Copied from the function, which has them still, and nobody asks a task function in a worker.
_OF_THE_FUNCTION: Final = frozenset({"__annotate__", "__annotations__", "__type_params__"})
#: What a task has that sets nothing.
DEFAULTS: Final = Options({})


@final
class Output(Generic[R_co]):
    """Stands for a result that is not there yet; may only be passed to a task (contract E2)."""

    __slots__ = ("source",)

    def __init__(self, source: object) -> None:
        #: the spec or handle whose result this is
        self.source = source

    def __reduce__(self) -> tuple[object, ...]:
        """Become the number of a result while a call is pickled."""
        return stand_for(self.source)

    def __repr__(self) -> str:
        return f"<result of {describe(self.source)}>"

    def _refuse(self, *_args: object) -> NoReturn:
        raise UsageError(
            f"this is a placeholder for the result of {describe(self.source)}; "
            "pass it to a task, or ask its handle for .result()"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # copy, pickle and inspect ask for what is not there
            raise AttributeError(name)
        self._refuse()

    __bool__ = __call__ = __iter__ = __len__ = __getitem__ = __contains__ = __int__ = __float__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __lt__ = __le__ = (
        _refuse
    )
    __gt__ = __ge__ = __neg__ = __abs__ = __mod__ = __floordiv__ = __pow__ = __and__ = __or__ = _refuse


def stand_for(source: object) -> tuple[object, ...]:
    """Reduce a spec or handle to the number of its result; it has no other pickled form.

    Raises:
        UsageError: It is being pickled, but not as an argument of a task.
    """
    reduced = placeholder(source)
    if reduced is None:
        # A task that returns specs is told by this too, so nobody has to look for them in its result (E6).
        also = ", or let a task return procq.Spawn([...]) to have it run" if isinstance(source, TaskSpec) else ""
        raise UsageError(
            f"{describe(source)} stands for a result and can't be pickled; pass it as an argument to a task{also}"
        )
    return reduced


def describe(source: object) -> str:
    """Return a short name of a spec, a handle or anything else."""
    label = getattr(source, "label", None)
    return str(label()) if callable(label) else repr(source)


@final
class TaskSpec(Generic[R_co]):
    """One task to be: a function or a handler's type, its arguments and its options (C1, C2).

    Immutable.  One spec object is one task: submitting it again is the same task, and equal but
    distinct specs are two.

    Args:
        type: The type whose handler runs; needed when there is no function.
        payload: The one argument of the handler.
        options: See `OptionArguments`.

    Raises:
        UsageError: An option is unknown or its value cannot be.
    """

    __slots__ = ("__weakref__", "args", "fn", "kwargs", "options", "type")

    fn: "Callable[..., object] | None"
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    options: Options
    type: str

    def __init__(self, *, type: str, payload: object = None, **options: Unpack[_HandlerOptions]) -> None:  # noqa: A002
        _fill(self, None, _text(type, "type"), (payload,), _NOTHING, Options(cast("Mapping[str, object]", options)))

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        raise AttributeError(f"a TaskSpec is immutable; {name} can't be set; make another with .using()")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a TaskSpec is immutable; {name} can't be deleted")

    def __reduce__(self) -> tuple[object, ...]:
        """Become the number of its result while a call is pickled (contract E2)."""
        return stand_for(self)

    def __repr__(self) -> str:
        return f"<TaskSpec {self.label()}>"

    @property
    def out(self) -> R_co:
        """Stands for the result, typed as the result; pass it to another task (contract E2)."""
        return cast("R_co", Output(self))

    @property
    def id(self) -> str | None:
        """The id the user chose, or None."""
        return self.options.id

    def label(self) -> str:
        """Return the id, or the type and "(…)"."""
        return self.options.id or f"{self.type}(…)"

    def using(self, **options: Unpack[OptionArguments]) -> "TaskSpec[R_co]":
        """Return another task like this one with other options.

        Raises:
            UsageError: An option is unknown or its value cannot be.
        """
        return self._with(self.options.using(cast("Mapping[str, object]", options)))

    def with_defaults(self, **options: Unpack[OptionArguments]) -> "TaskSpec[R_co]":
        """Return this spec, or one like it, with options that it does not set taken from here."""
        merged = self.options.with_defaults(cast("Mapping[str, object]", options))
        return self if merged is self.options else self._with(merged)

    def _with(self, options: Options) -> "TaskSpec[R_co]":
        spec: TaskSpec[R_co] = TaskSpec.__new__(TaskSpec)
        _fill(spec, self.fn, options.type or self.type, self.args, self.kwargs, options)
        return spec


_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})
#: The slots themselves, past the guard of `__setattr__`.
_set_fn, _set_type, _set_args, _set_kwargs, _set_options = (
    vars(TaskSpec)[name].__set__ for name in ("fn", "type", "args", "kwargs", "options")
)


def _fill(
    spec: TaskSpec[Any],
    fn: Callable[..., object] | None,
    type_name: str,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    options: Options,
) -> None:
    """Write the slots of a new spec, once."""
    _set_fn(spec, fn)
    _set_type(spec, type_name)
    _set_args(spec, args)
    _set_kwargs(spec, kwargs)
    _set_options(spec, options)


def call_spec(
    fn: Callable[..., R], args: tuple[object, ...], kwargs: Mapping[str, object], options: Options = DEFAULTS
) -> TaskSpec[R]:
    """Describe a call of a plain function.

    Raises:
        UsageError: `fn` is no plain function.
    """
    spec: TaskSpec[R] = TaskSpec.__new__(TaskSpec)
    _fill(spec, fn, options.type or type_of(fn), args, kwargs, options)
    return spec


def named(spec: TaskSpec[R], derived_id: str) -> TaskSpec[R]:
    """Return a spec with an id that was derived from its arguments (contract C4)."""
    twin: TaskSpec[R] = TaskSpec.__new__(TaskSpec)
    _fill(twin, spec.fn, spec.type, spec.args, spec.kwargs, spec.options.named(derived_id))
    return twin


def is_async(fn: object) -> bool:
    """Whether calling a function would only make a coroutine, or an asynchronous generator."""
    code: CodeType | None = getattr(fn, "__code__", None)
    return code is not None and bool(code.co_flags & _ASYNC_FLAGS)


def type_of(fn: Callable[..., object]) -> str:
    """Return the type of a function's tasks: its qualified name.

    Raises:
        UsageError: It cannot be called, or is asynchronous.
    """
    if type(fn) is FunctionType and not fn.__code__.co_flags & _ASYNC_FLAGS:
        return fn.__qualname__.replace("<locals>.", "")
    if not callable(fn):
        raise UsageError(f"{fn!r} is no function; submit a function, a task function or a TaskSpec")
    if is_async(fn):
        raise UsageError(
            f"{fn.__qualname__} is an async function; procq runs plain functions; use asyncio.run inside it"
        )
    name = getattr(fn, "__qualname__", None)
    if isinstance(name, str):
        return name.replace("<locals>.", "")
    inner = getattr(fn, "func", None)  # functools.partial
    return type_of(inner) if callable(inner) else type(fn).__qualname__


@final
class TaskFunction(Generic[P, R]):
    """A function with options; calling it just calls the function (contract C1).

    Made by `task`.  Immutable and safe to share between threads.
    """

    __name__: str  #: the function's, as `__doc__` and its like are

    def __init__(self, fn: Callable[P, R], options: Options, origin: "TaskFunction[P, R] | None" = None) -> None:
        functools.update_wrapper(self, fn)
        # After that, which copies all that a task function has, should `fn` be one: its type as well.
        self._type = options.type or (fn.type if isinstance(fn, TaskFunction) else type_of(fn))
        self.fn = fn
        self.options = options
        #: the task function that the module's name leads to, so that it travels by reference
        self._origin = self if origin is None else origin
        self._bounds = _positional_bounds(fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task function {self.type}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        """Travel by reference where the module's name leads here, else in parts, with its options."""
        origin = self._origin
        name = getattr(origin.fn, "__qualname__", None)  # what `functools.partial` made has none
        module = getattr(origin.fn, "__module__", None)
        if isinstance(name, str) and module != "__main__" and _lookup(module, name) is origin:
            return name if self is origin else (same, (origin,))
        # Made before it is filled, for a function may lead back to it: one that spawns itself does.
        return _empty, (), {name: value for name, value in vars(self).items() if name not in _OF_THE_FUNCTION}

    @property
    def type(self) -> str:
        """The type of its tasks."""
        return self._type

    def spec(self, *args: P.args, **kwargs: P.kwargs) -> TaskSpec[R]:
        """Describe a task: this function with these arguments; runs nothing.

        Raises:
            UsageError: The function does not take these arguments.
        """
        low, high = self._bounds
        if kwargs or not low <= len(args) <= high:
            self._check_arguments(args, kwargs)
        spec: TaskSpec[R] = TaskSpec.__new__(TaskSpec)
        _fill(spec, self._origin, self._type, args, kwargs or _NOTHING, self.options)
        return spec

    def using(self, **options: Unpack[OptionArguments]) -> "TaskFunction[P, R]":
        """Return a copy with other options.

        Raises:
            UsageError: An option is unknown or its value cannot be.
        """
        return TaskFunction(self.fn, self.options.using(cast("Mapping[str, object]", options)), self._origin)

    def _check_arguments(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Raise what calling the function would raise for these arguments."""
        from inspect import signature  # noqa: PLC0415 - 4 ms, needed only to say what is wrong

        try:
            bound = signature(self.fn)
        except (TypeError, ValueError):  # builtins without a signature: the worker will tell
            return
        try:
            bound.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"{self.type}() {error}") from None


def _empty() -> TaskFunction[..., object]:
    """Make a task function to be filled; called by pickle in the worker."""
    return TaskFunction.__new__(TaskFunction)


BY_NAME.add(TaskFunction)


def called(fn: Callable[..., object]) -> Callable[..., object]:
    """Return what a call of a function is pickled with: of a task function that has no name the function alone.

    Its options are of no use where it is only called, and to rebuild them would cost a worker 12 ms.
    """
    return fn.fn if isinstance(fn, TaskFunction) and not has_name(fn) else fn


if TYPE_CHECKING:

    @overload
    def Spawn(specs: Iterable[TaskSpec[Any]], *, on_conflict: OnConflict = "raise") -> None: ...
    @overload
    def Spawn(specs: Iterable[TaskSpec[Any]], value: R, *, on_conflict: OnConflict = "raise") -> R: ...
    def Spawn(  # noqa: N802 - a class, in inside.py
        specs: Iterable[TaskSpec[Any]], value: object = None, *, on_conflict: OnConflict = "raise"
    ) -> object:
        """What `procq.Spawn` is to type checkers: the value, which is what the handle of the task gives."""


def _positional_bounds(fn: Callable[..., object]) -> tuple[int, int]:
    """Return how many positional arguments a plain function needs and takes; (1, 0) if unknown."""
    if not isinstance(fn, FunctionType):
        return 1, 0
    code = fn.__code__
    if code.co_flags & 0x04 or (code.co_kwonlyargcount and len(fn.__kwdefaults__ or ()) < code.co_kwonlyargcount):
        return 1, 0  # *args, or keyword-only arguments without defaults
    return code.co_argcount - len(fn.__defaults__ or ()), code.co_argcount


def _lookup(module: str | None, name: str) -> object:
    """Return what a module holds under a qualified name, or None."""
    import sys  # noqa: PLC0415 - only while a task function is pickled

    place: object = None if module is None else sys.modules.get(module)
    for part in name.split("."):
        place = getattr(place, part, None)
    return place


@overload
def task(fn: Callable[P, R], /, **options: Unpack[OptionArguments]) -> TaskFunction[P, R]: ...
@overload
def task(**options: Unpack[OptionArguments]) -> Callable[[Callable[P, R]], TaskFunction[P, R]]: ...
def task(
    fn: Callable[P, R] | None = None, /, **options: Unpack[OptionArguments]
) -> TaskFunction[P, R] | Callable[[Callable[P, R]], TaskFunction[P, R]]:
    """Make a task function: `@task`, `@task(timeout="30s")`, or `task(fn, timeout="30s")`.

    Args:
        fn: A plain function.
        options: `id`, `type` (default: the qualified name), `priority` (0), `max_attempts` (1,
            counts all tries), `timeout` (of one attempt, default none), `run_at` or `delay`,
            `expires`, `depends_on`, `run_if` ("success", "done", "failure"), `backoff`,
            `retry_on`, `never_retry`, `retry_for`, `group` (of workers, "default"), `cpus` (1) and
            `memory` (none: what an attempt holds of the queue's `resources`); times and sizes as in
            `procq.units`.

    Raises:
        UsageError: An option is unknown or its value cannot be, or `fn` is no plain function.
    """
    checked = Options(cast("Mapping[str, object]", options))
    if fn is not None:
        return TaskFunction(fn, checked)
    return functools.partial(TaskFunction, options=checked)
