"""What becomes of a jobs file's specs on their way into the queue."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from procq.cli.exits import CommandLineError
from procq.cli.intake import Intake
from procq.cli.pertype import PerType
from procq.errors import CycleError, DuplicateTaskError, JobsFileError, UnknownDependencyError
from procq.handle import Handle, task_of
from procq.queue import Queue
from procq.spec import Options, TaskSpec, task

Spec = TaskSpec[Any]


@task
def work(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - stands in for any task's
    ...


@task(max_attempts=2)
def careful(*args: object) -> None: ...


class Book:
    """Keeps what was accepted, in order."""

    def __init__(self) -> None:
        self.specs: list[Spec] = []
        self.handles: list[Handle[Any]] = []

    def accepted(self, handle: Handle[Any], spec: Spec) -> None:
        self.handles.append(handle)
        self.specs.append(spec)

    @property
    def ids(self) -> list[str]:
        return [handle.id for handle in self.handles]


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def make_queue() -> Iterator[Callable[..., Queue]]:
    """Make queues that are never started: tasks are accepted, and nothing runs."""
    made: list[Queue] = []

    def make(**options: Any) -> Queue:  # noqa: ANN401 - a queue's own
        made.append(Queue(workers=1, **options))
        return made[-1]

    yield make

    for queue in made:
        queue.shutdown(mode="kill", timeout=0)


@pytest.fixture
def queue(make_queue: Callable[..., Queue]) -> Queue:
    return make_queue()


@pytest.fixture
def intake(queue: Queue, book: Book) -> Intake:
    return Intake(queue, defaults={}, accepted=book.accepted)


def test_C4_each_task_gets_its_stable_id(intake: Intake, book: Book) -> None:
    intake.take(work.spec(1))
    intake.take(work.spec(1))
    intake.take(work.using(id="mine").spec(1))

    base = book.ids[0]
    assert base.startswith("work-")
    assert book.ids == [base, f"{base}/2", "mine"]


def test_a_task_without_a_stable_id_is_taken_and_remembered(intake: Intake, book: Book) -> None:
    intake.take(work.spec({1, 2}))

    assert len(book.handles) == 1
    assert intake.unstable_types == {"work"}


def test_C4_ids_are_the_same_whatever_the_order(make_queue: Callable[..., Queue]) -> None:
    one, other = Book(), Book()
    Intake(make_queue(), defaults={}, accepted=one.accepted).take_all([work.spec(1), work.spec(2)])
    Intake(make_queue(), defaults={}, accepted=other.accepted).take_all([work.spec(2), work.spec(1)])

    assert one.ids == other.ids[::-1]


def test_yielding_a_spec_pulls_in_what_it_needs_once(intake: Intake, book: Book) -> None:
    base = work.spec("base")
    left, right = work.spec(base.out), work.spec([base], key={"a": (base.out,)})

    intake.take(work.using(depends_on=[right]).spec(left))
    intake.take(base)
    intake.take(left)

    assert book.specs[0] is base
    assert set(book.specs[1:3]) == {left, right}
    assert len(book.specs) == 4


def test_C1_a_spec_that_is_yielded_twice_is_one_task(intake: Intake, book: Book) -> None:
    spec = work.spec(1)

    intake.take(spec)
    intake.take(spec)

    assert book.specs == [spec]


def test_defaults_are_for_tasks_that_do_not_say(queue: Queue, book: Book) -> None:
    made: list[Spec] = []

    class Spy:
        """Passes on to the queue what it notes."""

        def submit_many(self, specs: list[Spec]) -> list[Handle[Any]]:
            made.extend(specs)
            return queue.submit_many(specs)

    intake = Intake(Spy(), defaults={"max_attempts": 7, "timeout": 30.0}, accepted=book.accepted)

    intake.take(work.spec(careful.spec(1).out))

    assert [(spec.type, spec.options.max_attempts, spec.options.timeout_s) for spec in made] == [
        ("careful", 2, 30.0),
        ("work", 7, 30.0),
    ]


def test_what_was_set_for_a_type_wins_over_what_its_tasks_say(queue: Queue, book: Book) -> None:
    pertype = PerType(["careful.max_attempts=5", "careful.delay=1s"])
    intake = Intake(queue, defaults={"max_attempts": 9}, pertype=pertype, accepted=book.accepted)

    intake.take(careful.using(max_attempts=3, run_at=datetime.now(UTC)).spec())
    intake.take(work.spec())

    first, second = (task_of(handle).rules for handle in book.handles)
    assert (first.max_attempts, second.max_attempts) == (5, 9)
    assert isinstance(first, Options)
    assert (first.delay_s, first.run_at) == (1.0, None), "one takes the place of the other"


def test_what_was_set_goes_for_handlers_too(make_queue: Callable[..., Queue], book: Book) -> None:
    queue = make_queue(handlers={"resize": print})
    intake = Intake(queue, defaults={}, pertype=PerType(["resize.cpus=1", "resize.timeout=5s"]), accepted=book.accepted)

    intake.take(TaskSpec(type="resize", payload=1, timeout=3))

    assert task_of(book.handles[0]).rules.timeout_s == 5


def test_a_list_that_lacks_a_named_type_is_refused_whole(queue: Queue, book: Book) -> None:
    intake = Intake(queue, defaults={}, pertype=PerType(["carefull.cpus=1"]), accepted=book.accepted)

    with pytest.raises(CommandLineError, match="types are careful, work"):
        intake.take_all([work.spec(careful.spec())])
    assert book.specs == []


def test_a_generator_may_yield_a_named_type_at_any_time(queue: Queue, book: Book) -> None:
    intake = Intake(queue, defaults={}, pertype=PerType(["late.cpus=1", "never.cpus=1"]), accepted=book.accepted)

    intake.take(work.spec())
    intake.take(work.using(type="late").spec())

    with pytest.raises(CommandLineError, match="'never'"):
        intake.finish()


def test_a_handlers_task_keeps_its_type_and_payload(make_queue: Callable[..., Queue], book: Book) -> None:
    queue = make_queue(handlers={"resize": print})

    Intake(queue, defaults={"max_attempts": 3}, accepted=book.accepted).take(TaskSpec(type="resize", payload=(3, 4)))

    assert book.handles[0].type == "resize"


def test_E1_a_list_may_name_each_other_in_any_order(intake: Intake, book: Book) -> None:
    intake.take_all([work.using(id="b", depends_on=["a"]).spec(), work.using(id="a").spec()])

    assert sorted(book.ids) == ["a", "b"]


def test_E1_an_unknown_name_refuses_the_whole_list(intake: Intake, book: Book) -> None:
    with pytest.raises(UnknownDependencyError, match="the closest id is 'clean/ber'"):
        intake.take_all([work.using(id="clean/ber").spec(), work.using(id="r", depends_on=["cleen/ber"]).spec()])

    assert book.handles == []


def test_E1_a_cycle_is_told_with_its_places(intake: Intake, book: Book) -> None:
    names = {"a": "b", "b": "c", "c": "a"}

    with pytest.raises(JobsFileError) as caught:
        intake.take_all([work.using(id=name, depends_on=[need]).spec() for name, need in names.items()])

    assert caught.value.what.startswith("dependency cycle: a -> b -> c -> a")
    assert [line.split()[0] for line in caught.value.where.splitlines()] == ["a", "b", "c"]
    assert all("test_intake.py:" in line for line in caught.value.where.splitlines())
    assert book.handles == []


def test_an_argument_that_leads_back_to_its_task_is_a_cycle(intake: Intake) -> None:
    holder: list[object] = []
    spec = work.spec(holder)
    holder.append(work.spec(spec))

    with pytest.raises(CycleError):
        intake.take(spec)


def test_a_generator_may_name_what_it_yields_later(intake: Intake, book: Book) -> None:
    first = work.using(id="report", depends_on=["a", "b"]).spec()
    intake.take(first)
    intake.take(work.using(id="after").spec(first.out))
    intake.take(work.using(id="a").spec())
    intake.take(work.using(id="b").spec())
    assert sorted(book.ids) == ["a", "b"]

    intake.finish()

    assert sorted(book.ids) == ["a", "after", "b", "report"]


def test_a_name_still_unknown_at_the_end_is_an_error(intake: Intake) -> None:
    intake.take(work.using(id="report", depends_on=["nobody"]).spec())

    with pytest.raises(UnknownDependencyError, match="report needs 'nobody'"):
        intake.finish()


def test_C4_an_id_that_another_task_has_is_refused(intake: Intake, book: Book) -> None:
    intake.take(work.using(id="same").spec(1))

    with pytest.raises(DuplicateTaskError, match="'same' is already used"):
        intake.take(work.using(id="same").spec(2))

    assert book.ids == ["same"]


def test_what_is_needed_does_not_wait_for_an_unknown_name(intake: Intake, book: Book) -> None:
    spec = work.spec(1)

    intake.take(work.using(depends_on=["nobody"]).spec(spec.out))

    assert book.specs == [spec]


@pytest.mark.parametrize(
    "wrap",
    [lambda spec: [spec], lambda spec: (spec,), lambda spec: {"a": [(spec.out,)]}],
    ids=["list", "tuple", "nested"],
)
def test_E2_specs_are_found_in_containers(intake: Intake, book: Book, wrap: Callable[[Spec], object]) -> None:
    need = work.spec("need")

    intake.take(work.spec(wrap(need)))

    assert book.specs[0] is need


def test_arguments_without_specs_are_passed_on_as_they_are(queue: Queue, book: Book) -> None:
    made: list[Spec] = []

    class Spy:
        """Notes what comes, and passes it on."""

        def submit_many(self, specs: list[Spec]) -> list[Handle[Any]]:
            made.extend(specs)
            return queue.submit_many(specs)

    big = [[1, 2], {"a": (3,)}]

    Intake(Spy(), defaults={}, accepted=book.accepted).take(work.spec(big))

    assert made[0].args[0] is big
