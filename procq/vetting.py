"""What `Queue(...)` is given, as what it is made of; or refused, naming the parameter and the value (contract C3).

Each reader takes one parameter, or those that mean something only together, and knows no other; but
`chosen_engine` takes all that is for worker processes.  Nothing is started here, and no queue is known.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast

from procq import loader
from procq.core.policies import Aging, Strict, WeightedFair
from procq.draft import pickle_initializer
from procq.engine.headroom import Headroom
from procq.engine.local.machine import available_memory, quarter_of_memory, total_memory, usable_cpus
from procq.errors import UsageError
from procq.slots import DEFAULT_GROUP
from procq.spec import type_of
from procq.units import Duration, Size, count, seconds, size_bytes

if TYPE_CHECKING:
    from procq.core.breaker import Breaker
    from procq.engine.protocol import Engine

V = TypeVar("V")

#: "Not given", where None means something else.
NOT_GIVEN: Final = object()


def handlers_by_type(handlers: Mapping[str, Callable[..., object]] | None) -> dict[str, Callable[..., object]]:
    """Return the functions of a queue, by the types whose tasks they do.

    Raises:
        UsageError: A type or a function cannot be.
    """
    checked = _copied(handlers, "handlers", "functions by type", '{"resize": resize}')
    for fn in checked.values():
        type_of(fn)
    return checked


def limits_by_type(limits: Mapping[str, int] | None) -> dict[str, int]:
    """Return how many tasks of a type may run at once, for the types that have a limit.

    Raises:
        UsageError: A number cannot be.
    """
    checked = _copied(limits, "limits", "numbers by type", '{"fetch": 4}')
    for name, limit in checked.items():
        count(limit, field=f"limits[{name!r}]", least=1)
    return checked


def breakers_by_type(breakers: "Mapping[str, Breaker] | None") -> "dict[str, Breaker]":
    """Return the breakers of the types that have one.

    Raises:
        UsageError: Something is no breaker.
    """
    checked = _copied(breakers, "breaker", "breakers by type", '{"fetch": Breaker()}')
    if not checked:
        return checked
    from procq.core.breaker import Breaker  # noqa: PLC0415 - few queues have one

    for name, breaker in checked.items():
        if not isinstance(breaker, Breaker):
            raise UsageError(f"breaker[{name!r}]={breaker!r}: expected a Breaker, such as Breaker(failures=5)")
    return checked


def workers_by_group(workers: int | None, groups: Mapping[str, int] | None) -> dict[str, int]:
    """Return how many workers each group of a queue has, by its name; "default" is the first.

    Args:
        workers: Those of the default group; None: what is left of the usable CPUs, at least 1.
        groups: As `Queue` takes them.

    Raises:
        UsageError: A name or a number cannot be, or `groups` and `workers` contradict each other.
    """
    further = _copied(groups, "groups", "how many workers by name", '{"heavy": 2}')
    for name, number in further.items():
        count(number, field=f"groups[{name!r}]", least=1)
    default = further.pop(DEFAULT_GROUP, None)
    if workers is not None:
        if default is not None:
            raise UsageError(
                f"workers={workers!r} and groups[{DEFAULT_GROUP!r}]={default!r} both say how many workers the default "
                "group has; give one of them"
            )
        default = count(workers, field="workers", least=1)
    if default is None:
        default = max(1, usable_cpus() - sum(further.values()))
    return {DEFAULT_GROUP: default, **further}


def slots_and_memory(resources: Mapping[str, Size] | None) -> tuple[int | None, int | Callable[[], int]]:
    """Return how many slots there are, None if that goes by the workers, and how much memory, or what finds it out.

    Raises:
        UsageError: A name or a number cannot be.
    """
    given = _copied(resources, "resources", "sizes by name", '{"cpu": 8, "memory": "16GB"}')
    cpus, memory = given.pop("cpu", None), given.pop("memory", None)
    if given:
        raise UsageError(f"resources={resources!r}: knows no {next(iter(given))!r}; only 'cpu' and 'memory'")
    return (
        count_or_none(cpus, "resources['cpu']"),
        total_memory if memory is None else size_bytes(memory, field="resources['memory']"),
    )


def checked_policy(policy: object) -> Strict | Aging | WeightedFair:
    """Return the policy that is meant.

    Raises:
        UsageError: There is none such.
    """
    if isinstance(policy, Aging | WeightedFair):
        return policy
    if policy != "strict":
        raise UsageError(f"policy={policy!r}: must be 'strict', Aging() or WeightedFair({{...}})")
    return Strict()


def chosen_engine(
    engine: "Literal['local'] | Engine",
    *,
    groups: dict[str, int],
    kill_grace: Duration,
    start_timeout: Duration,
    initializer: Callable[..., object] | None,
    initargs: tuple[object, ...],
    max_tasks_per_worker: int | None,
    max_memory_per_worker: Size | None,
    recycle_memory: Size | None,
    capture: bool,
) -> "Engine":
    """Return the engine that is meant, not started; all but `groups` is for worker processes alone.

    Raises:
        UsageError: A value cannot be, whichever engine it is.
    """
    if not isinstance(capture, bool):
        raise UsageError(f"capture={capture!r}: must be True or False")
    kill_grace_s = seconds(kill_grace, field="kill_grace")
    start_timeout_s = seconds(start_timeout, field="start_timeout")
    attempts = count_or_none(max_tasks_per_worker, "max_tasks_per_worker")
    hard_bytes = bytes_or_none(max_memory_per_worker, "max_memory_per_worker")
    recycle_bytes = bytes_or_none(recycle_memory, "recycle_memory")
    if engine == "local":
        # Not before Windows was refused: what it is built on does not exist there.
        from procq.engine.local.engine import LocalEngine  # noqa: PLC0415

        memory = None
        if hard_bytes is not None or recycle_bytes is not None:
            from procq.engine.local.memory import MemoryWatch  # noqa: PLC0415 - few queues look at it

            memory = MemoryWatch(hard_bytes=hard_bytes, recycle_bytes=recycle_bytes)
        return LocalEngine(
            groups=groups,
            kill_grace_s=kill_grace_s,
            start_timeout_s=start_timeout_s,
            initializer=pickle_initializer(initializer, initargs),
            jobs=loader.known,
            max_tasks_per_worker=attempts,
            memory=memory,
            capture=capture,
        )
    if isinstance(engine, str):
        raise UsageError(f"engine={engine!r}: must be 'local' or an engine object")
    if engine.places.keys() != groups.keys():
        raise UsageError(
            f"groups: the queue has {', '.join(map(repr, groups))}; "
            f"the engine was made for {', '.join(map(repr, engine.places))}"
        )
    return engine


def headroom_of(min_free_memory: Size | None) -> Headroom | None:
    """Return what tells whether memory is short; None: it is not looked at.

    Raises:
        UsageError: It is no size.
    """
    free_bytes = bytes_or_none(min_free_memory, "min_free_memory")
    return None if free_bytes is None else Headroom(free_bytes, available_memory)


def number_and_age(bounds: tuple[int, Duration], field: str) -> tuple[int, float]:
    """Return how many of something are kept, and how long, in seconds.

    Raises:
        UsageError: This says neither.
    """
    try:
        number, age = bounds
    except (TypeError, ValueError):
        raise UsageError(f"{field}={bounds!r}: expected (how many, how long)") from None
    return count(number, field=field), seconds(age, field=field)


def pending_bytes(value: object) -> int | Callable[[], int] | None:
    """Return how many bytes of calls a queue holds, or what finds that out; None: no bound.

    Raises:
        UsageError: It is no size.
    """
    return quarter_of_memory if value is NOT_GIVEN else bytes_or_none(cast("Size | None", value), "max_pending_bytes")


def count_or_none(value: object, field: str) -> int | None:
    """Return a number of at least 1, or None.

    Raises:
        UsageError: It is neither.
    """
    return None if value is None else count(value, field=field, least=1)


def bytes_or_none(value: Size | None, field: str) -> int | None:
    """Return a size in bytes, or None.

    Raises:
        UsageError: It is neither.
    """
    return None if value is None else size_bytes(value, field=field)


def _copied(given: Mapping[str, V] | None, field: str, what: str, example: str) -> dict[str, V]:
    """Copy a mapping by names, which the program may change later; none is an empty one.

    Raises:
        UsageError: It is no mapping, or a name is no text.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UsageError(f"{field}={given!r}: expected {what}, such as {example}")
    for name in cast("Mapping[object, V]", given):
        if not isinstance(name, str) or not name:
            raise UsageError(f"{field}: {name!r} is no name; expected {what}, such as {example}")
    return dict(given)
