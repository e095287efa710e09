"""What becomes of drafts that a task spawns, and of what is read while others are taken back for them (contract E6)."""

from collections.abc import Iterable

from tests.core.hand import Hand

from procq.core.states import Status
from procq.core.task import Task
from procq.draft import Draft, Listing
from procq.offspring import Offspring
from procq.outcome import Ended
from procq.spec import Options


def listing(name: str, call: bytes) -> Listing:
    """Describe one task that takes an id, whoever has it."""
    drafts = [Draft("t", call, Options({"id": name}))]
    return Listing(drafts, drafts, "replace")


class Scene:
    """Two tasks run, and one was sent ahead whose id both spawn; to take it back brings the report of the second."""

    def __init__(self) -> None:
        self.hand = hand = Hand()
        self.parents = [hand.submit(f"parent-{number}") for number in range(2)]
        hand.start_all()
        self.old = hand.submit("report")
        hand.scheduler.send_ahead(self.old)
        self.offspring = Offspring(hand.scheduler, self.take_back)
        #: what the second one has spawned
        self.between: Task | None = None

    def take_back(self, tasks: Iterable[Task], now: float) -> None:
        for task in tasks:
            self.hand.scheduler.take_back(task)
        self.end(self.parents[1], now)
        self.between = self.hand.scheduler.find("report")

    def end(self, parent: Task, now: float) -> None:
        brought = listing("report", parent.id.encode())
        self.offspring.take(parent, parent.fence, Ended("ok", 0.0, now, value=b""), brought, now)


def test_C4_what_was_spawned_while_others_were_taken_back_is_replaced_like_any() -> None:
    scene = Scene()
    hand = scene.hand

    scene.end(scene.parents[0], 1.0)

    hand.scheduler.check_invariants()
    assert [parent.status for parent in scene.parents] == [Status.SUCCEEDED] * 2
    assert scene.between is not None
    assert (scene.old.cause, scene.between.cause) == ("replaced", "replaced")
    assert hand.start_all() == ["report"]
    assert hand.scheduler.open == 1
