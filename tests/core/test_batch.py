"""From specs to tasks: any order, cycles and unknown names, all or nothing (contract C1, C4, E1, E2)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from procq import Queue, TaskSpec, task, testing
from procq.draft import Draft, draft_all
from procq.errors import (
    CycleError,
    DuplicateTaskError,
    PayloadError,
    UnknownDependencyError,
    UnknownHandlerError,
    UsageError,
)
from procq.making import in_order
from procq.spec import Options


@task
def noted(*args: object) -> tuple[object, ...]:
    return args


def named(task_id: str, *needs: object) -> TaskSpec[tuple[object, ...]]:
    """Return a spec with an id that depends on others."""
    return noted.using(id=task_id, depends_on=needs).spec()


def drafts_of(graph: dict[str, Sequence[str]]) -> tuple[list[Draft], dict[Draft, list[Draft]]]:
    """Return drafts of a graph, given as what each needs, and what they need."""
    drafts = {name: Draft("t", b"", Options({"id": name})) for name in graph}
    return list(drafts.values()), {drafts[name]: [drafts[need] for need in needs] for name, needs in graph.items()}


def ordered(graph: dict[str, Sequence[str]]) -> list[str]:
    """Return the names of a graph in the order in which they are submitted."""
    return [draft.label for draft in in_order(*drafts_of(graph))]


@pytest.fixture
def queue() -> Iterator[Queue]:
    """Return a queue without processes that is not started."""
    with testing.inline() as queue:
        queue.pause()
        yield queue
        queue.shutdown(mode="kill")


def accepted(queue: Queue) -> int:
    """Return how many tasks a queue has accepted in its life."""
    return sum(queue.stats().counts.values())


# --- order --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "order"),
    [
        ({}, ""),
        ({"c": "", "a": "", "b": ""}, "cab"),  # as given
        ({"c": "b", "b": "a", "a": ""}, "abc"),
        ({"a": "", "b": "a", "c": "b"}, "abc"),
        ({"d": "bc", "b": "a", "c": "a", "a": ""}, "abcd"),  # a diamond
        ({"x": "", "d": "c", "y": "", "c": "y"}, "xycd"),
        ({"e": "da", "d": "cb", "c": "a", "b": "a", "a": ""}, "acbde"),  # shared below shared
        ({"b": "aa", "a": ""}, "ab"),  # named twice
    ],
    ids=["nothing", "as given", "backwards", "forwards", "diamond", "apart", "shared", "twice"],
)
def test_E1_each_comes_after_those_it_depends_on_and_else_as_given(graph: dict[str, str], order: str) -> None:
    assert "".join(ordered({name: list(needs) for name, needs in graph.items()})) == order


@given(st.data())
def test_E1_any_order_of_any_acyclic_graph_will_do(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    needs = {
        number: data.draw(st.sets(st.integers(0, number - 1), max_size=4)) if number else () for number in range(size)
    }
    given_order = data.draw(st.permutations(range(size)))

    order = ordered({str(number): [str(need) for need in needs[number]] for number in given_order})

    place = {name: at for at, name in enumerate(order)}
    assert sorted(order) == sorted(map(str, range(size))), "each once"
    assert all(place[str(need)] < place[str(number)] for number in range(size) for need in needs[number])


def test_E1_a_chain_longer_than_the_stack_is_ordered() -> None:
    size = 5000
    graph: dict[str, Sequence[str]] = {str(number): [str(number + 1)] for number in range(size)}

    assert ordered({**graph, str(size): []}) == [str(number) for number in range(size, -1, -1)]


def test_E1_many_paths_through_the_same_tasks_take_a_step_for_each_edge() -> None:
    """Thirty diamonds in a row have a thousand million paths."""
    graph: dict[str, Sequence[str]] = {"0": []}
    for number in range(30):
        left, right = f"{number}l", f"{number}r"
        graph |= {left: [str(number)], right: [str(number)], str(number + 1): [left, right]}

    assert ordered(graph)[-1] == "30"


# --- cycles -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("start", [0, 1])
def test_E1_a_cycle_is_listed_from_task_to_what_it_needs(size: int, start: int) -> None:
    names = [chr(ord("a") + number) for number in range(size)]
    graph = {names[(number + start) % size]: [names[(number + start + 1) % size]] for number in range(size)}
    drafts, found = drafts_of(dict(graph))

    with pytest.raises(CycleError) as caught:
        in_order(drafts, found)

    cycle = caught.value.cycle
    assert sorted(cycle) == names
    assert all(graph[one] == [other] for one, other in zip(cycle, (*cycle[1:], cycle[0]), strict=True))
    assert str(caught.value).startswith(f"dependency cycle: {' -> '.join((*cycle, cycle[0]))};")


def test_E1_what_leads_into_a_cycle_is_not_listed_as_part_of_it() -> None:
    drafts, found = drafts_of({"entrance": ["a"], "a": ["b", "leaf"], "b": ["a"], "leaf": []})

    with pytest.raises(CycleError) as caught:
        in_order(drafts, found)

    assert caught.value.cycle == ("a", "b")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_E1_a_batch_with_a_cycle_is_refused_as_a_whole(queue: Queue, size: int) -> None:
    specs = [named("fine")] + [named(f"t{number}", f"t{(number + 1) % size}") for number in range(size)]

    with pytest.raises(CycleError, match=r"t0 -> .*t0"):
        queue.submit_many(specs)

    assert accepted(queue) == 0


# --- names --------------------------------------------------------------------------------------------


def test_E1_tasks_of_a_batch_may_name_each_other_in_any_order(queue: Queue) -> None:
    specs = [named("c", "b", "a"), named("b", "a"), named("a")]

    handles = queue.submit_many(specs)

    assert [(handle.id, str(handle.status)) for handle in handles] == [
        ("c", "blocked"),
        ("b", "blocked"),
        ("a", "ready"),
    ]
    queue.resume()
    assert [handle.result() for handle in handles] == [(), (), ()]
    assert queue.submit(named("d", "c", handles[1])).result() == ()


def test_E1_an_unknown_name_refuses_the_batch_and_hints_at_the_closest(queue: Queue) -> None:
    queue.submit(named("download-2024"))
    specs = [named("fine"), named("merge", "download-2025")]

    with pytest.raises(UnknownDependencyError) as caught:
        queue.submit_many(specs)

    assert str(caught.value) == "merge needs 'download-2025', which no task has; the closest id is 'download-2024'"
    assert (caught.value.task_id, caught.value.missing) == ("merge", ("download-2025",))
    assert accepted(queue) == 1


def test_E1_the_closest_name_may_be_in_the_batch(queue: Queue) -> None:
    with pytest.raises(UnknownDependencyError, match="the closest id is 'parse'"):
        queue.submit_many([named("parse"), named("merge", "prase")])


def test_E5_an_unknown_name_like_no_other_says_what_may_have_happened(queue: Queue) -> None:
    with pytest.raises(UnknownDependencyError, match=r"'ghost', which no task has; .*never submitted.*forgotten"):
        queue.submit(named("a", "ghost"))


def test_E1_the_search_for_the_closest_name_is_bounded(queue: Queue) -> None:
    """It goes on under the lock, so it must not look at a million ids: the newest are looked at."""
    queue.submit_many([named("far-away"), *(named(f"{number}") for number in range(2500))])

    with pytest.raises(UnknownDependencyError, match="never submitted"):
        queue.submit(named("a", "far-awaz"))
    queue.submit(named("near-by"))
    with pytest.raises(UnknownDependencyError, match="'near-by'"):
        queue.submit(named("a", "near-bz"))


def test_E1_a_task_without_an_id_is_named_by_its_type(queue: Queue) -> None:
    with pytest.raises(UnknownDependencyError, match=r"^noted\(…\) needs 'ghost'"):
        queue.submit(noted.using(depends_on=["ghost"]).spec())


@pytest.mark.parametrize("source", [3, None, noted, b"a"], ids=["number", "None", "task function", "bytes"])
def test_E1_what_is_no_id_handle_or_spec_is_refused(queue: Queue, source: object) -> None:
    with pytest.raises(UsageError, match=r"depends_on=.*: expected an id, a handle or a spec"):
        queue.submit(named("a", source))

    assert accepted(queue) == 0


def test_E1_a_handle_of_another_queue_is_refused(queue: Queue) -> None:
    other = testing.inline()
    foreign = other.submit(named("a"))

    with pytest.raises(UnknownDependencyError, match="another queue; pass its result instead"):
        queue.submit(named("b", foreign))

    other.shutdown(mode="kill")


def test_C4_an_id_twice_in_a_batch_is_refused_as_a_whole(queue: Queue) -> None:
    with pytest.raises(DuplicateTaskError, match="'a'"):
        queue.submit_many([named("b"), named("a"), named("a")])

    assert accepted(queue) == 0


# --- drafting -----------------------------------------------------------------------------------------


def nothing_is_known(_spec: TaskSpec[Any]) -> bool:
    return False


def test_E2_specs_that_are_needed_are_drafted_too_each_once() -> None:
    base = noted.spec("base")
    left, right = noted.spec(base), noted.spec([base.out])
    top = noted.using(depends_on=[right]).spec(left, right.out)

    drafts = draft_all([top], {}, nothing_is_known)

    assert set(drafts) == {top, left, right, base}
    assert drafts[top].inputs == 2
    assert drafts[top].depends_on == [left, right, right]


def test_E2_a_spec_that_is_known_is_not_drafted_again_nor_what_it_needs() -> None:
    base = noted.spec()
    top = noted.spec(base)

    assert set(draft_all([top, top], {}, lambda spec: spec is base)) == {top}


@pytest.mark.parametrize(
    "item", [3, "a", None, noted, lambda: None, [noted.spec()], {}], ids=lambda item: type(item).__name__
)
def test_C1_what_is_no_spec_is_refused(item: Any) -> None:  # noqa: ANN401
    with pytest.raises(UsageError, match=r"expected a TaskSpec, got \w+; describe a task with \.spec\(\.\.\.\)"):
        draft_all([noted.spec(), item], {}, nothing_is_known)


def test_C2_a_type_without_a_handler_is_refused_and_the_known_are_listed() -> None:
    handlers: dict[str, Callable[..., object]] = {"turn": abs, "crop": abs}

    with pytest.raises(UnknownHandlerError, match="no handler for type 'resize'; known are 'crop', 'turn'"):
        draft_all([TaskSpec(type="resize")], handlers, nothing_is_known)
    assert draft_all([TaskSpec(type="turn", payload=-3)], handlers, nothing_is_known)


def test_E4_a_task_that_runs_only_on_failure_needs_something_that_can_fail(queue: Queue) -> None:
    lonely = noted.using(run_if="failure", id="repair").spec(1)

    with pytest.raises(UsageError, match="repair has run_if='failure' and depends on nothing"):
        queue.submit_many([named("a"), lonely])
    assert accepted(queue) == 0

    assert queue.submit_many([named("a"), lonely.using(depends_on=["a"])])


def test_C5_one_call_that_cannot_be_pickled_refuses_the_batch(queue: Queue) -> None:
    specs = [noted.spec(1), noted.spec(number for number in range(3))]

    with pytest.raises(PayloadError, match=r"argument 'args' of noted\(\.\.\.\).*generator"):
        queue.submit_many(specs)

    assert accepted(queue) == 0


def test_E2_a_spec_as_an_argument_is_submitted_with_its_own_needs(queue: Queue) -> None:
    base = noted.using(id="base").spec(1)
    middle = noted.spec(base.out)
    top = noted.spec({"of": middle})
    queue.resume()

    assert queue.submit(top).result() == ({"of": ((1,),)},)
    assert queue.handle("base").result() == (1,)
    assert accepted(queue) == 3
