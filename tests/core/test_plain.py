"""Described tasks as plain data: what is written is read again, and nothing else is taken for it (contract E6)."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, get_args

import pytest
from hypothesis import given, strategies as st

import procq
from procq import plain
from procq.draft import Draft, Listing, draft_all
from procq.errors import UsageError
from procq.parcel import Parcel
from procq.plain import MalformedError
from procq.spec import DEFAULTS, OnConflict, OptionArguments, Options


class OwnError(Exception):
    pass


#: Values of every option that a task may have, each set apart from its default.
VALUES: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "id": st.text(min_size=1),
    "type": st.text(min_size=1),
    "priority": st.integers() | st.sampled_from(procq.Priority),
    "max_attempts": st.integers(min_value=1),
    "timeout": st.sampled_from([None, 3, 0.25, "1h30m", timedelta(seconds=5)]),
    "run_at": st.none() | st.datetimes() | st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))])),
    "delay": st.sampled_from([None, 0, "250ms", 1e9]),
    "expires": st.sampled_from([None, 0.5, "7d", datetime(2031, 5, 4, tzinfo=UTC), datetime(2031, 5, 4)]),  # noqa: DTZ001 - naive, as users may
    "run_if": st.sampled_from(["success", "done", "failure"]),
    "backoff": st.sampled_from([
        None, procq.exponential(), procq.exponential(2, factor=3.5, cap="1h", jitter="equal"),
        procq.exponential(jitter="none"), procq.constant(4), [1, "2s", 0.5], "3s",
    ]),
    "retry_on": st.sampled_from([None, ValueError, (OSError, OwnError), ()]),
    "never_retry": st.sampled_from([(), "crash", ("timeout", "lost", OwnError, KeyError)]),
    "retry_for": st.sampled_from([None, "1d", 12.5]),
    "group": st.text(min_size=1),
    "cpus": st.integers(min_value=1, max_value=10**6),
    "memory": st.sampled_from([None, 1, "16GiB"]),
}  # fmt: skip


def given_options() -> st.SearchStrategy[dict[str, Any]]:
    chosen = st.fixed_dictionaries({}, optional=dict(VALUES))
    return chosen.filter(lambda values: values.get("delay") is None or values.get("run_at") is None)


def there_and_back(options: Options) -> Options:
    return plain.read_options(json.loads(json.dumps(plain.plain_options(options))))


# --- options ---------------------------------------------------------------------------------------


def test_E6_every_option_has_a_plain_form_but_what_it_depends_on() -> None:
    assert VALUES.keys() == OptionArguments.__annotations__.keys() - {"depends_on"}


@given(given_options())
def test_E6_options_are_the_same_after_they_were_plain(values: dict[str, Any]) -> None:
    options = Options(values)

    read = there_and_back(options)

    assert read.same_as(options)
    assert read.id == options.id
    assert read.given.keys() == options.given.keys()


@given(given_options(), given_options())
def test_E6_options_that_were_plain_can_be_changed_like_any(values: dict[str, Any], changes: dict[str, Any]) -> None:
    options = Options(values)

    assert there_and_back(options).using(changes).same_as(options.using(changes))
    assert there_and_back(options).with_defaults(changes).same_as(options.with_defaults(changes))


def test_C4_a_derived_id_is_still_derived_after_it_was_plain() -> None:
    options = Options({"priority": 3}).named("resize-1f2e")

    read = there_and_back(options)

    assert read.is_derived
    assert read.id == "resize-1f2e"
    assert not there_and_back(Options({"id": "mine"})).is_derived


def test_E6_a_backoff_that_is_a_function_has_no_plain_form() -> None:
    options = Options({"backoff": lambda attempt: attempt})

    with pytest.raises(
        UsageError, match="function can't be passed on by a task, nor kept in a journal; use exponential"
    ):
        plain.plain_options(options)


@pytest.mark.parametrize(
    "row",
    [
        None, [], 3, {"priority": "high"}, {"priority": True}, {"max_attempts": 0}, {"timeout": -1},
        {"timeout": float("nan")}, {"timeout": [1]}, {"delay": float("inf")}, {"delay": 1, "run_at": "2030-01-01"},
        {"run_at": 5}, {"run_at": "yesterday"}, {"expires": {}}, {"run_if": "never"}, {"run_if": []}, {"unknown": 1},
        {"depends_on": ["a"]}, {"depends_on": "a"}, {"backoff": []}, {"backoff": {}}, {"backoff": {"listed": []}},
        {"backoff": {"listed": [{}]}}, {"backoff": {"exponential": [1]}},
        {"backoff": {"exponential": [1, 2, 3, "some"]}}, {"backoff": {"exponential": [1, [], 3, "full"]}},
        {"backoff": {"listed": [1], "exponential": [1, 2, 3, "full"]}}, {"retry_on": "ValueError"},
        {"retry_on": [1]}, {"never_retry": {}}, {"group": ""}, {"cpus": 0}, {"cpus": 1.5}, {"memory": 0}, {"id": ""},
        {"type": None, "id": 7},
    ],
    ids=repr,
)  # fmt: skip
def test_E6_what_are_no_plain_options_is_refused(row: object) -> None:
    with pytest.raises(MalformedError):
        plain.read_options(row)


# --- tasks -----------------------------------------------------------------------------------------


@procq.task
def noted(*args: object) -> tuple[object, ...]:
    return args


def written(*specs: procq.TaskSpec[Any], on_conflict: OnConflict = "raise") -> tuple[bytes, list[Draft]]:
    drafts = draft_all(specs, None, lambda _: False)
    for draft in drafts.values():
        draft.depends_on = [drafts.get(need, need) for need in draft.depends_on]  # type: ignore[call-overload]
    return plain.write(Listing(list(drafts.values()), [drafts[spec] for spec in specs], on_conflict)), list(
        drafts.values()
    )


def test_E6_tasks_and_what_they_need_are_the_same_after_they_were_plain() -> None:
    first = noted.using(id="first", priority=5).spec(1)
    second = noted.using(priority=5, depends_on=[first, "elsewhere"]).spec(first.out)
    third: procq.TaskSpec[object] = procq.TaskSpec(type="resize", payload=second, timeout="3s")
    text, drafts = written(third, first)

    read = plain.read(text, [draft.payload for draft in drafts]).drafts

    assert [one.type for one in read] == ["resize", "noted", "noted"]
    assert [one.id for one in read] == [None, None, "first"]
    assert [one.for_handler for one in read] == [True, False, False]
    assert [one.inputs for one in read] == [1, 1, 0]
    assert [list(one.depends_on) for one in read] == [[read[1]], [read[2], read[2], "elsewhere"], []]
    assert [one.payload for one in read] == [one.payload for one in drafts]
    assert all(one.options.same_as(other.options) for one, other in zip(read, drafts, strict=True))


@pytest.mark.parametrize("on_conflict", get_args(OnConflict))
def test_C4_what_a_used_id_means_and_what_was_asked_for_are_the_same_after_they_were_plain(
    on_conflict: OnConflict,
) -> None:
    first, between = noted.spec("first"), noted.spec("between")
    last = noted.spec([first, between])
    text, drafts = written(first, last, on_conflict=on_conflict)

    listing = plain.read(text, [draft.payload for draft in drafts])

    assert listing.on_conflict == on_conflict
    assert [draft.payload for draft in listing.drafts] == [draft.payload for draft in drafts]
    assert [draft in listing.roots for draft in listing.drafts] == [True, True, False]


def test_E6_options_that_many_tasks_share_are_written_once_and_shared_again() -> None:
    brisk = noted.using(priority=7, timeout="1m")
    text, drafts = written(*[brisk.spec(number) for number in range(5)], noted.using(priority=7, timeout=60).spec())

    read = plain.read(text, [draft.payload for draft in drafts]).drafts

    assert text.count(b"priority") == 1
    assert len({id(draft.options) for draft in read}) == 1


def test_E6_ids_may_be_any_texts() -> None:
    text, drafts = written(noted.using(id="ä\udcff\n", type="ß").spec())

    (read,) = plain.read(text, [draft.payload for draft in drafts]).drafts

    assert (read.id, read.type) == ("ä\udcff\n", "ß")


def test_I1_a_payload_with_buffers_beside_it_stays_as_it_is() -> None:
    text, drafts = written(noted.spec(bytes(10**6)))
    payload = drafts[0].payload
    assert isinstance(payload, Parcel)

    assert plain.read(text, [payload]).drafts[0].payload is payload


TASK: Final = {"type": "t", "options": 0}


@pytest.mark.parametrize(
    "listing",
    [
        b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, [], 3, {"options": [{}]}, {"tasks": [TASK]},
        {"options": {}, "tasks": [TASK]}, {"options": [{}], "tasks": [3]}, {"options": [{}], "tasks": []},
        {"options": [{}], "tasks": [TASK, TASK]}, {"options": [], "tasks": [TASK]},
        {"options": [{"priority": "x"}], "tasks": [TASK]},
        *[
            {"options": [{}], "tasks": [TASK], "on_conflict": rule}
            for rule in ("", "ignore", "Same", None, True, ["same"])
        ],
        *[
            {"options": [{}], "tasks": [{**TASK, **part}]}
            for part in (
                {"type": ""}, {"type": 3}, {"options": -1}, {"options": True}, {"options": "0"}, {"id": 5}, {"id": ""},
                {"needs": "a"}, {"needs": [1]}, {"needs": [-1]}, {"needs": [True]}, {"needs": [None]},
                {"needs": [0.0]}, {"inputs": 1}, {"inputs": -1}, {"needs": [0], "inputs": 2}, {"handler": 1},
                {"id": "a", "derived": "yes"}, {"inputs": None}, {"implied": 1}, {"implied": "no"},
            )
        ],
    ],
    ids=lambda listing: repr(listing)[:80],
)  # fmt: skip
def test_E6_what_is_no_listing_of_tasks_is_refused(listing: object) -> None:
    text = listing if isinstance(listing, bytes) else json.dumps(listing).encode()

    with pytest.raises(MalformedError):
        plain.read(text, [b"payload"])


def test_E6_the_least_that_can_be_said_of_a_task_is_enough() -> None:
    listing = plain.read(json.dumps({"options": [{}], "tasks": [TASK]}).encode(), [b"payload"])

    (read,) = listing.drafts
    assert (listing.roots, listing.on_conflict) == ([read], "raise")
    assert read.options.same_as(DEFAULTS)
    assert read.id is None
    assert not read.depends_on
