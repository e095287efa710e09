"""Task functions that spawn others; each does the same in a worker and inline."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.contract import tasks

import procq
from procq import Spawn, TaskSpec
from procq.inside import Terminated
from procq.spec import OnConflict

note: Final = procq.task(tasks.note)
echo: Final = procq.task(tasks.echo)
total: Final = procq.task(tasks.total)


def spawn_notes(path: str, *texts: str, **options: Any) -> str:  # noqa: ANN401 - of the tasks
    """Spawn a note of each text, and note before that this ran."""
    tasks.note(path, "parent")
    return Spawn([note.using(**options).spec(path, text) for text in texts], value="spawned")


def spawn_nothing() -> int:
    return Spawn([], value=7)


def spawn_and_return_nothing(path: str) -> None:
    return Spawn([note.spec(path, "child")])


def fan_out(numbers: list[int]) -> str:
    """Spawn a task for each number, and one that adds up what they return; return the id of that."""
    parts = [add_one.spec(number) for number in numbers]
    return Spawn([total.using(id="sum").spec([part.out for part in parts])], value="sum")


@procq.task
def add_one(number: int) -> int:
    return number + 1


@procq.task
def count_down(path: str, number: int) -> int:
    """Spawn itself with one less, down to 0."""
    tasks.note(path, str(number))
    return Spawn([count_down.spec(path, number - 1)] if number else [], value=number)


@procq.task
def tree(path: str, depth: int) -> int:
    """Spawn two of itself, down to a depth of 0."""
    tasks.note(path, str(depth))
    return Spawn([tree.spec(path, depth - 1) for _ in range(2)] if depth else [], value=depth)


def spawn_after_itself(path: str, run_if: str = "success") -> str:
    """Spawn a task that depends on the one that spawns it."""
    me = procq.current().id
    assert me is not None
    after = note.using(depends_on=[me], run_if=run_if, id="after")
    return Spawn([after.spec(path, "after")], value=tasks.note(path, "parent"))


def spawn_after(path: str, *ids: str, **options: Any) -> None:  # noqa: ANN401
    return Spawn([note.using(depends_on=ids, id="after", **options).spec(path, "after")])


def spawn_in_any_order(path: str) -> None:
    last = note.using(id="c", depends_on=["b"]).spec(path, "c")
    return Spawn([last, note.using(id="b", depends_on=["a"]).spec(path, "b"), note.using(id="a").spec(path, "a")])


def spawn_one_of_each_priority(path: str) -> None:
    return Spawn(note.using(priority=number).spec(path, str(number)) for number in (0, 20, -10, 10))


def spawn_with(function: str, *args: object, **options: Any) -> None:  # noqa: ANN401
    """Spawn one call of a task of the contract suite, with options."""
    return Spawn([procq.task(getattr(tasks, function), **options).spec(*args)])


def fail_before_spawning(attempt: int, path: str) -> object:
    value = tasks.fail_before(attempt)
    return Spawn([note.spec(path, "child")], value=value)


def die_before_spawning(attempt: int, path: str) -> object:
    value = tasks.die_before(attempt)
    return Spawn([note.spec(path, "child")], value=value)


def meet_and_spawn(place: str) -> str:
    """Meet, and spawn one after the other."""
    value = tasks.meet(place)
    first = echo.using(id="first").spec(1)
    return Spawn([echo.using(id="last").spec(first.out), first], value=value)


def meet_to_the_end_and_spawn(place: str) -> str:
    """Meet and stay, asked to stop or not, and spawn something all the same."""
    return Spawn([echo.using(id="first").spec(1)], value=tasks.meet_to_the_end(place))


def work_and_spawn_all_the_same(duration: float) -> None:
    """Take too long, and spawn something when asked to stop."""
    try:  # noqa: SIM105 - as bad as tasks can be
        tasks.work(duration)
    except Terminated:
        pass
    return Spawn([echo.using(id="child").spec()])


def print_and_spawn(path: str) -> None:
    tasks.write("out", "err")
    return Spawn([note.spec(path, "child")])


def spawn_big(size: int) -> bytes:
    """Spawn a task with a big argument, and one that takes a big result; return something big."""
    data = bytes(range(256)) * (size // 256)
    first = echo.using(id="bytes").spec(data)
    second = echo.using(id="array").spec(bytearray(data))
    return Spawn([first, second, length.using(id="length").spec([first, second.out])], value=data)


@procq.task
def length(values: list[object]) -> list[int]:
    return [len(value) for value in values if isinstance(value, bytes | bytearray)]


def spawn_named(size: int, *, priority: int = 0) -> None:
    """Spawn a task with an id, the same each time for the same arguments."""
    return Spawn([echo.using(id="one", priority=priority).spec(bytes(size))])


def spawn_under_used_ids(path: str, on_conflict: OnConflict, *names: str) -> str:
    """Spawn a note under each of the ids, which others may have."""
    specs = [note.using(id=name).spec(path, f"spawned {name}") for name in names]
    return Spawn(specs, value="told", on_conflict=on_conflict)


def meet_and_replace(place: str, *, path: str, name: str) -> str:
    """Meet, and spawn a note in the place of a task."""
    value = tasks.meet(place)
    return Spawn([note.using(id=name).spec(path, "new")], value=value, on_conflict="replace")


def spawn_after_used(path: str) -> str:
    """Spawn under a used id a task that needs two others, of which one is needed elsewhere, too."""
    needless, needed = note.spec(path, "needless"), note.spec(path, "needed")
    ignored = echo.using(id="used").spec([needless, needed])
    return Spawn([ignored, echo.using(id="last").spec([ignored, needed])], value="told", on_conflict="same")


def spawn_one_id_twice(on_conflict: OnConflict) -> str:
    return Spawn([echo.using(id="twice").spec(number) for number in (1, 2)], "told", on_conflict=on_conflict)


def spawn_for_itself(path: str, on_conflict: OnConflict) -> str:
    """Spawn another task under its own id, and one that names that id."""
    tasks.note(path, "parent")
    me = procq.current().id or ""
    after = note.using(id="after", depends_on=[me]).spec(path, "after")
    return Spawn([note.using(id=me).spec(path, "itself"), after], value="told", on_conflict=on_conflict)


@procq.task
def step(path: str, number: int) -> int:
    """Take the place of the step before the last one."""
    tasks.note(path, str(number))
    following = step.using(id=f"step-{(number + 1) % 2}").spec(path, number + 1)
    return Spawn([following] if number < 6 else [], value=number, on_conflict="replace")


def spawn_handled(type_name: str, payload: object) -> None:
    return Spawn([TaskSpec(type=type_name, payload=payload, id="handled")])


def spawn_handled_sum(number: int) -> None:
    part: TaskSpec[int] = TaskSpec(type="double", payload=number)
    return Spawn([TaskSpec(type="double", payload=part, id="handled")])


def specs_if_odd(number: int) -> object:
    """Return a list of specs if a number is odd, which ought to be a Spawn."""
    return [echo.spec(number)] if number % 2 else number


def spawn_if_odd(number: int) -> int:
    """Spawn a task named after the number if that is odd."""
    return Spawn([echo.using(id=f"child-{number}").spec(number)], value=-number) if number % 2 else number


# --- what is refused ---


def _specs_that_raise() -> Iterator[TaskSpec[Any]]:
    yield echo.spec()
    raise ValueError("no more of them")


def _inner_handle() -> object:
    from procq import testing  # noqa: PLC0415 - a queue of the task's own

    with testing.inline() as queue:
        return queue.submit(tasks.echo, 1)


#: What can be wrong with what a task spawns, by name.
WRONG: Final[dict[str, Callable[[], object]]] = {
    "unknown id": lambda: Spawn([echo.using(id="fine").spec(), echo.using(depends_on=["finer"]).spec()]),
    "used id": lambda: Spawn([echo.using(id="fine").spec(), echo.using(id="taken").spec("other")]),
    "one id twice": lambda: Spawn([echo.using(id="twice").spec(1), echo.using(id="twice").spec(2)]),
    "own id": lambda: Spawn([echo.using(id=procq.current().id or "").spec()]),
    "cycle": lambda: Spawn([echo.using(id="a", depends_on=["b"]).spec(), echo.using(id="b", depends_on=["a"]).spec()]),
    "no spec": lambda: Spawn([echo.spec(), tasks.echo]),  # type: ignore[list-item]
    "argument": lambda: Spawn([echo.spec(), echo.spec({"lock": threading.Lock()})]),
    "handle": lambda: Spawn([echo.spec(_inner_handle())]),
    "backoff": lambda: Spawn([echo.using(id="x", backoff=lambda attempt: attempt).spec()]),
    "handler": lambda: Spawn([TaskSpec(type="resise", payload=1)]),
    "handler's payload": lambda: Spawn([TaskSpec(type="double", payload=threading.Lock())]),
    "value": lambda: Spawn([echo.spec()], value=tasks.generator()),
    "nested": lambda: [Spawn([echo.spec()])],
    "value that is one": lambda: Spawn([echo.spec()], value=Spawn([echo.spec()], value=1)),
    "shared": lambda: Spawn([echo.spec(procq.share(bytes(1000)))]),
    "group": lambda: Spawn([echo.spec(), echo.using(group="nowhere").spec()]),
    "cpus": lambda: Spawn([echo.spec(), echo.using(cpus=1000).spec()]),
    "nothing to fail": lambda: Spawn([echo.using(run_if="failure").spec()]),
    "iterable": lambda: Spawn(_specs_that_raise()),
    "specs in a list": lambda: [echo.spec(1), echo.spec(2)],
    "specs in a tuple": lambda: (echo.spec(1),),
    "specs deep inside": lambda: {"pages": [{"next": echo.spec(1)}]},
    "spec alone": lambda: echo.spec(1),
    "spec's out": lambda: [echo.spec(1).out],
    "generator of specs": lambda: (echo.spec(number) for number in range(2)),
    "value with a spec": lambda: Spawn([echo.spec(1)], value=[echo.spec(1)]),
    "one spec": lambda: Spawn(echo.spec(1)),  # type: ignore[call-overload]
    "nothing": lambda: Spawn(None),  # type: ignore[call-overload]
    "rule": lambda: Spawn([echo.spec(1)], on_conflict="ignore"),  # type: ignore[call-overload]
}


def spawn_wrongly(what: str, path: str) -> object:
    tasks.note(path)
    return WRONG[what]()
