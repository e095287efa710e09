"""Groups of workers and slots: who may start, who waits for whom, and that nobody is starved (contract B7, B9)."""

from collections.abc import Mapping
from typing import Any, Unpack, cast

import pytest
from hypothesis import given, settings, strategies as st
from tests.core.hand import Hand, RuleArguments

from procq import WeightedFair, errors
from procq.brake import Brake
from procq.core.capacity import Capacity
from procq.core.task import Task
from procq.dispatch import Dispatcher
from procq.outcome import Ended
from procq.slots import Demand

GIB = 2**30


class Place:
    """The workers of one group, none of which takes anything ahead unless told."""

    def __init__(self, engine: "Engine", workers: int) -> None:
        self._engine = engine
        self.workers = workers
        self.growing = False
        self.roomy: list[object] = []

    @property
    def idle(self) -> range:
        return range(self.workers - sum(task.place is self for task in self._engine.running))

    def foresee(self, backlog: int) -> None:
        """Nothing follows from it."""


class Engine:
    """Runs nothing: it takes note of what is started, in order."""

    manual = False

    def __init__(self, groups: Mapping[str, int]) -> None:
        self.running: list[Task] = []
        self.started: list[str] = []
        self.places = {group: Place(self, workers) for group, workers in groups.items()}
        self.ahead: list[Task] = []

    def start(self, task: Task) -> None:
        task.place = self.places[task.group]
        self.running.append(task)
        self.started.append(task.id)

    def fits_ahead(self, _task: Task) -> bool:
        return True

    def send_ahead(self, task: Task) -> None:
        self.ahead.append(task)

    def flush(self) -> None:
        """Nothing is held back."""


class Desk:
    """A scheduler, a dispatcher and an engine of so many workers a group."""

    def __init__(self, capacity: Capacity | None = None, policy: WeightedFair | None = None, **groups: int) -> None:
        groups = groups or {"default": 4}
        self.engine = Engine(groups)
        self.hand = Hand(
            groups=tuple(groups), capacity=capacity or Capacity(sum(groups.values()), 16 * GIB), policy=policy
        )
        self.scheduler = self.hand.scheduler
        self.dispatcher = Dispatcher(self.scheduler, cast("Any", self.engine), None, Brake(self.scheduler))

    def submit(self, task_id: str, cpus: int = 1, memory: int = 0, **rules: Unpack[RuleArguments]) -> Task:
        """Submit a task that takes so much."""
        rules["demand"] = Demand(cpus, memory)
        return self.hand.submit(task_id, **rules)

    def dispatch(self) -> list[str]:
        """Hand out what can be; return what was started by this, in order."""
        self.engine.started.clear()
        self.dispatcher.dispatch(self.hand.now)
        self.scheduler.check_invariants()
        return self.engine.started[:]

    def end(self, *task_ids: str) -> list[str]:
        """End attempts, and hand out again."""
        for task_id in task_ids:
            task = self.hand.tasks[task_id]
            self.engine.running.remove(task)
            self.hand.end(task_id)
        return self.dispatch()


# --- slots ---


def test_B9_a_task_takes_its_cpus_of_as_many_slots_as_there_are() -> None:
    desk = Desk()
    for number in range(3):
        desk.submit(f"pair/{number}", cpus=2)

    assert desk.dispatch() == ["pair/0", "pair/1"]
    assert desk.end("pair/1") == ["pair/2"]


def test_B9_memory_is_counted_beside_them() -> None:
    desk = Desk(Capacity(4, 10 * GIB))
    for number in range(3):
        desk.submit(f"fat/{number}", memory=4 * GIB)
    desk.submit("slim")

    assert desk.dispatch() == ["fat/0", "fat/1"]
    assert desk.end("fat/0") == ["fat/2", "slim"]


def test_B9_how_much_memory_there_is_is_found_out_when_a_task_first_asks() -> None:
    asked: list[int] = []

    def find() -> int:
        asked.append(1)
        return 8 * GIB

    desk = Desk(Capacity(4, find))
    desk.submit("plain")
    desk.submit("pair", cpus=2)
    assert not asked

    desk.submit("fat", memory=5 * GIB)
    desk.submit("fatter", memory=6 * GIB)

    assert desk.dispatch() == ["plain", "pair", "fat"]
    assert len(asked) == 1


def test_B9_a_big_task_is_not_starved_by_small_ones_that_came_later() -> None:
    desk = Desk()
    for number in range(4):
        desk.submit(f"early/{number}")
    desk.dispatch()
    desk.submit("big", cpus=4)
    for number in range(100):
        desk.submit(f"late/{number}")

    started = [desk.end(f"early/{number}") for number in range(4)]

    assert started == [[], [], [], ["big"]]
    assert desk.end("big") == [f"late/{number}" for number in range(4)]


def test_B9_a_more_urgent_one_still_comes_first() -> None:
    desk = Desk()
    desk.submit("early")
    desk.dispatch()
    desk.submit("big", cpus=4)
    desk.submit("urgent", priority=1)

    assert desk.dispatch() == ["urgent"]
    assert desk.end("early") == []
    assert desk.end("urgent") == ["big"]


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (Demand(5, 0), r"t asks for 5 cpus, of which this queue has 4, so it could never start"),
        (Demand(1, 17 * GIB), r"t asks for 18GB of memory, of which this queue has 17GB, so it could never start"),
    ],
)
def test_B9_one_that_can_never_fit_is_refused_at_submit_with_all_that_came_with_it(
    demand: Demand, message: str
) -> None:
    desk = Desk()
    good, bad = desk.hand.make("good"), desk.hand.make("bad", demand=demand)

    with pytest.raises(errors.UsageError, match=message):
        desk.scheduler.accept((good, bad), 0.0)

    assert not desk.scheduler.tasks
    desk.scheduler.check_invariants()


def test_B9_one_that_asks_for_more_than_a_resize_has_left_runs_alone() -> None:
    desk = Desk()
    desk.submit("big", cpus=4)
    desk.submit("small")
    assert desk.scheduler.capacity is not None
    desk.scheduler.capacity.resize(2)

    assert desk.dispatch() == ["big"]
    assert desk.end("big") == ["small"]


def test_B9_the_slots_of_what_runs_count_from_the_first_big_task_on() -> None:
    desk = Desk()
    for number in range(3):
        desk.submit(f"plain/{number}")
    desk.dispatch()

    desk.submit("pair", cpus=2)

    assert desk.dispatch() == []
    assert desk.end("plain/0") == ["pair"]


def test_B9_what_was_sent_ahead_is_taken_back_when_slots_begin_to_count() -> None:
    desk = Desk(default=1)
    place, taken_back = desk.engine.places["default"], []

    def take_back(task: Task) -> bool:
        taken_back.append(task.id)
        desk.scheduler.take_back(task)
        return True

    desk.engine.take_back = take_back  # type: ignore[attr-defined]  # nothing else ever is
    place.roomy.append("one")
    for number in range(3):
        desk.submit(f"plain/{number}")
    desk.dispatch()
    assert [task.id for task in desk.engine.ahead] == ["plain/1", "plain/2"]

    desk.submit("fat", memory=GIB)

    assert desk.dispatch() == []
    assert taken_back == ["plain/1", "plain/2"]
    assert [task.id for task in desk.engine.ahead] == ["plain/1", "plain/2"], "and no more are sent"


def test_B9_a_group_whose_head_is_more_urgent_than_what_waits_for_slots_may_have_a_worker_started() -> None:
    """Else, with no worker of its own yet, it would wait for all that is less urgent in other groups."""
    desk = Desk(Capacity(3, 0), default=2, heavy=1)
    desk.engine.places["heavy"].workers = 0  # none has started
    for number in range(3):
        desk.submit(f"big/{number}", cpus=2)
    assert desk.dispatch() == ["big/0"]
    assert desk.dispatcher.held_for_slots() is desk.hand.tasks["big/1"]
    desk.submit("later", group="heavy")
    assert desk.dispatcher.backlog("heavy") == 0, "it comes after what waits"

    desk.submit("urgent", group="heavy", priority=1)

    assert desk.dispatcher.backlog("heavy") == 2
    assert desk.dispatcher.backlog("default") == 0
    desk.engine.places["heavy"].workers = 1
    assert desk.dispatch() == ["urgent"]


# --- groups ---


def test_B7_a_task_starts_in_its_group_alone() -> None:
    desk = Desk(default=1, heavy=2)
    for number in range(3):
        desk.submit(f"heavy/{number}", group="heavy")
        desk.submit(f"plain/{number}")

    assert desk.dispatch() == ["plain/0", "heavy/0", "heavy/1"]
    assert desk.end("heavy/0") == ["heavy/2"]
    assert desk.end("heavy/1") == []
    assert desk.end("plain/0") == ["plain/1"]


def test_B7_an_unknown_group_is_refused_with_all_that_came_with_it() -> None:
    desk = Desk(default=1, light=2, heavy=2)
    good, bad = desk.hand.make("good"), desk.hand.make("bad", group="gpu")

    with pytest.raises(errors.UsageError, match="t needs group 'gpu'; this queue has 'default', 'heavy', 'light'"):
        desk.scheduler.accept((good, bad), 0.0)

    assert not desk.scheduler.tasks


def test_B4_a_limit_holds_over_all_groups() -> None:
    hand = Hand(groups=("default", "heavy"), limits={"video": 1})
    hand.submit("here", type_name="video")
    hand.submit("there", type_name="video", group="heavy")

    assert hand.start("heavy") == "there"
    assert hand.start() is None
    hand.end("there")
    assert hand.start() == "here"


def test_B8_one_is_overtaken_only_within_its_group() -> None:
    hand = Hand(groups=("default", "heavy"))
    sent = {group: hand.submit(group, group=group) for group in ("default", "heavy")}
    for group in sent:
        task = hand.scheduler.next_ready(group)
        assert task is not None
        hand.scheduler.send_ahead(task)
    urgent = hand.submit("urgent", group="heavy", priority=1)

    assert hand.scheduler.first_ahead("heavy") is sent["heavy"]
    assert hand.scheduler.overtaken_by(urgent) is sent["heavy"]
    hand.scheduler.take_back(sent["heavy"])
    assert hand.scheduler.overtaken_by(urgent) is None
    hand.scheduler.check_invariants()


def test_B6_every_group_has_shares_of_its_own() -> None:
    hand = Hand(groups=("default", "heavy"), policy=WeightedFair({10: 1, 0: 1}))
    for number in range(4):
        for group in ("default", "heavy"):
            hand.submit(f"{group}/high/{number}", group=group, priority=10)
            hand.submit(f"{group}/low/{number}", group=group, priority=0)

    order = {group: [hand.start(group) for _ in range(4)] for group in ("default", "heavy")}

    for group, started in order.items():
        assert started == [f"{group}/high/0", f"{group}/low/0", f"{group}/high/1", f"{group}/low/1"]


# --- all of it ---

submits = st.tuples(
    st.just("submit"), st.integers(1, 6), st.integers(0, 3), st.integers(-1, 1), st.sampled_from(["default", "heavy"])
)
ends = st.tuples(st.just("end"), st.integers(0, 20), st.just(0), st.just(0), st.just(""))


@given(st.lists(st.one_of(submits, ends), max_size=60))
@settings(max_examples=150)
def test_B9_nothing_starts_before_a_more_urgent_one_that_only_slots_keep_waiting(
    script: list[tuple[str, int, int, int, str]],
) -> None:
    """And never is more taken than there is, and in the end everything has run."""
    desk = Desk(Capacity(6, 3), default=3, heavy=2)
    waiting: list[Task] = []

    def look(started: list[str]) -> None:
        for task_id in started:
            task = desk.hand.tasks[task_id]
            waiting.remove(task)
            free = {group: place.workers for group, place in desk.engine.places.items()}
            for other in desk.engine.running[: desk.engine.running.index(task)]:
                free[other.group] -= 1
            for other in waiting:
                is_before = (other.rank, other.seq) < (task.rank, task.seq)
                assert not (is_before and free[other.group]), f"{task_id} started before {other.id}"
        running = desk.engine.running
        assert sum(task.rules.demand.cpus for task in running) <= 6
        assert sum(task.rules.demand.memory_bytes for task in running) <= 3

    for number, (step, value, memory, priority, group) in enumerate(script):
        if step == "submit":
            waiting.append(desk.submit(str(number), value, memory, priority=priority, group=group))
            look(desk.dispatch())
        elif desk.engine.running:
            look(desk.end(desk.engine.running[value % len(desk.engine.running)].id))
    while desk.engine.running:
        look(desk.end(desk.engine.running[0].id))
    assert not waiting


def test_a_task_that_comes_back_gives_its_slots_back_and_takes_them_again() -> None:
    desk = Desk()
    desk.submit("big", cpus=4, max_attempts=2)
    desk.submit("small")
    assert desk.dispatch() == ["big"]
    task = desk.hand.tasks["big"]
    desk.engine.running.remove(task)
    desk.scheduler.put_back(task, 0.0)

    assert desk.dispatch() == ["big"]
    desk.engine.running.remove(task)
    desk.scheduler.end(task, task.fence, Ended("error", 0.0, 0.0), 0.0)

    assert desk.dispatch() == ["small"]
    assert desk.scheduler.capacity is not None
    assert desk.scheduler.capacity.free_cpus == 3
