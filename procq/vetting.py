"""What `Queue(...)` is given, as what it is made of; or refused, naming the parameter and the value (contract C3).

Each reader takes one parameter, or two that mean something only together, and knows no other.  Nothing is
started here, and no queue is known.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar, cast

from procq.core.breaker import Breaker
from procq.core.policies import Aging, Strict, WeightedFair
from procq.engine.local.machine import quarter_of_memory, total_memory, usable_cpus
from procq.errors import UsageError
from procq.slots import DEFAULT_GROUP
from procq.spec import type_of
from procq.units import Duration, Size, count, seconds, size_bytes

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


def breakers_by_type(breakers: Mapping[str, Breaker] | None) -> dict[str, Breaker]:
    """Return the breakers of the types that have one.

    Raises:
        UsageError: Something is no breaker.
    """
    checked = _copied(breakers, "breaker", "breakers by type", '{"fetch": Breaker()}')
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
