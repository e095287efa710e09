"""A journal that is opened again comes to the very state of the queue that wrote it, whatever that has gone through.

The model is the queue itself: after each of many random steps what its journal holds is read by another one,
and the two are compared task by task.
"""

import gc
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from procq import Handle, Queue, RetryLater, Spawn, TaskSpec, task
from procq.core.scheduler import Scheduler
from procq.core.states import TERMINAL
from procq.core.task import Task
from procq.errors import DuplicateTaskError
from procq.testing import FakeClock, inline, run_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from procq.journal import Durability

_STEPS: Final = 40
_TOLD: Final = (
    "seq", "type", "status", "rank", "failures", "fence", "explicit", "cause", "origin", "needs", "value", "timeout_s",
)  # fmt: skip


@task(max_attempts=3, backoff=[50, 500])
def moody(mood: str, *_: object) -> str:
    if mood == "fails":
        raise ValueError(mood)
    if mood == "later":
        raise RetryLater(70)
    return mood


@task
def parent(number: int) -> None:
    return Spawn([moody.using(id=f"child{number}").spec("well"), moody.using(delay=300).spec("well")])


def described(scheduler: Scheduler) -> dict[str, dict[str, object]]:
    """Tell all that matters of each known task."""
    return {name: _described(one) for name, one in scheduler.tasks.items()}


def _described(one: Task) -> dict[str, object]:
    is_open = one.status not in TERMINAL
    told: dict[str, object] = {name: getattr(one, name) for name in _TOLD}
    told |= {
        "payload": one.payload if is_open else None,
        "depends_on": [need.seq for need in one.depends_on] if is_open else [],
        "inputs": [need.seq for need in one.inputs] if is_open else [],
        "history": [(number, ended.outcome, ended.message) for number, ended in one.history],
        "cut": sorted(gone.id for gone in one.cut),
        "rules": (one.rules.max_attempts, one.rules.run_if, one.rules.backoff),
    }
    return told


def waits(scheduler: Scheduler, now: float) -> dict[str, float]:
    """Tell how long each SCHEDULED task has to wait, in seconds."""
    journal: Any = scheduler.watcher
    return {one.id: round(journal._due[one] - now, 3) for one in scheduler.delayed}


def order(scheduler: Scheduler) -> list[str]:
    return [one.id for one in sorted(scheduler.ready, key=scheduler.ready.key)]


class Life:
    """A queue that has things happen to it."""

    def __init__(self, queue: Queue, seed: int) -> None:
        self.queue = queue
        self.draw = random.Random(seed)
        self.held: list[Handle[Any]] = []
        self.number = 0
        self.steps: list[Callable[[], object]] = [
            self.submit, self.submit, self.submit, self.pass_time, self.let_go, self.cancel, self.replay, self.purge,
            self.replace, self.spawn,
        ]  # fmt: skip

    def step(self) -> None:
        self.draw.choice(self.steps)()
        gc.collect()

    def submit(self) -> None:
        self.number += 1
        options: dict[str, Any] = {"priority": self.draw.choice([0, 0, 10])}
        if self.draw.random() < 0.6:
            options["id"] = f"id{self.number}"
        if self.draw.random() < 0.3:
            options["delay"] = self.draw.choice([30, 300])
        if self.draw.random() < 0.1:
            options["expires"] = 100
        needs = self.draw.sample(self.held, min(len(self.held), self.draw.choice([0, 0, 1, 2])))
        if needs:
            options["run_if"] = self.draw.choice(["success", "success", "done", "failure"])
            options["depends_on"] = needs
        inputs = needs[:1] if options.get("run_if") == "success" else []
        mood = self.draw.choice(["well", "well", "fails", "later"])
        self.held.append(self.queue.submit(moody.using(**options).spec(mood, *inputs)))

    def pass_time(self) -> None:
        run_for(self.queue, self.draw.choice([0, 10, 60, 400]))

    def let_go(self) -> None:
        if self.held:
            del self.held[self.draw.randrange(len(self.held))]

    def cancel(self) -> None:
        if self.held:
            self.draw.choice(self.held).cancel()

    def replay(self) -> None:
        for letter in self.queue.dead_letters()[:2]:
            self.queue.replay(letter.id, with_dependents=self.draw.random() < 0.5)

    def purge(self) -> None:
        if self.draw.random() < 0.3:
            self.queue.purge()

    def replace(self) -> None:
        named = [one for one in self.held if one.id.startswith("id")]
        if not named:
            return
        spec: TaskSpec[str] = moody.using(id=self.draw.choice(named).id).spec("well", self.draw.random())
        with suppress(DuplicateTaskError):  # it runs, or others wait for it
            self.held.append(self.queue.submit(spec, on_conflict="replace"))

    def spawn(self) -> None:
        self.number += 1
        self.held.append(self.queue.submit(parent, self.number))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "durability"), [(8, "process"), (2, "relaxed"), (3, "process"), (4, "relaxed")])
def test_L2_what_is_read_from_a_journal_is_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, durability: "Durability"
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("time.time", lambda: 1e9 + clock.now)  # the clock on the wall goes on with it
    queue = inline(journal=tmp_path / "j", durability=durability, clock=clock).start()
    life = Life(queue, seed)

    for number in range(_STEPS):
        life.step()
        _compare(queue, tmp_path / f"copy{number}")
    queue.shutdown(mode="kill")


def _compare(queue: Queue, copy: Path) -> None:
    """Have another queue read what the journal of one holds, and compare the two."""
    supervisor = queue._supervisor
    assert supervisor._journal is not None
    with supervisor.lock:
        supervisor._disown_orphans()
        supervisor._journal.flush()
        for suffix in ("", "-wal"):
            shutil.copy(f"{supervisor._journal._file.path}{suffix}", f"{copy}{suffix}")
    other = inline(journal=copy, durability="process")
    there, here = supervisor.scheduler, other._supervisor.scheduler
    try:
        here.check_invariants()
        assert here.tasks.keys() == there.tasks.keys()
        for name, told in described(there).items():
            assert described(here)[name] == told, name
        assert waits(here, other._supervisor.engine.now()) == waits(there, supervisor.engine.now())
        assert order(here) == order(there)
        assert [one.id for one in here.letters] == [one.id for one in there.letters]
    finally:
        other.shutdown(mode="kill")
