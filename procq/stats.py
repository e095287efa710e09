"""A look at a queue: how much of what there is, what its workers do, how fast it goes (contract F8)."""

from itertools import chain
from typing import final

from procq.core.states import Status
from procq.supervisor import Supervisor


@final
class Stats:
    """A look at a queue (contract F8).

    Attributes:
        counts: Tasks by status; ended ones are counted even after they are forgotten.
        retries: How many attempts were followed by another.
        dead_letters: How many are kept.
        dead_letters_dropped: How many were dropped, being too many, too big or too old (contract F6).
        dropped_messages: Late reports that were not accepted (contract D1).
        breakers: "closed", "open" or "half-open" by type, for the types that have a breaker (D8).
        workers: Workers by what they do, all groups together.
        groups: The same for each group, by its name.
        throughput: Tasks ended a second since `start`.
        oldest_ready_s: How long the longest-waiting READY task has waited since submit, or None.
    """

    __slots__ = (
        "breakers", "counts", "dead_letters", "dead_letters_dropped", "dropped_messages", "groups", "oldest_ready_s",
        "retries", "throughput", "workers",
    )  # fmt: skip

    def __init__(self, supervisor: Supervisor, started_at: float | None) -> None:
        scheduler = supervisor.scheduler
        now = supervisor.engine.now()
        self.counts = dict(scheduler.counts)
        self.retries = scheduler.retries
        self.dead_letters = len(scheduler.letters)
        self.dead_letters_dropped = scheduler.letters.dropped
        self.dropped_messages = scheduler.dropped_late
        circuits = {name: gate.circuit for name, gate in scheduler.gates.items()}
        self.breakers = {name: circuit.state for name, circuit in circuits.items() if circuit is not None}
        self.workers = supervisor.engine.states()
        self.groups = {name: place.states() for name, place in supervisor.engine.places.items()}
        ended = sum(self.counts[status] for status in Status if status.terminal)
        elapsed = 0.0 if started_at is None else now - started_at
        self.throughput = ended / elapsed if elapsed > 0 else 0.0
        waiting = chain(scheduler.ready, scheduler.ahead.values())
        oldest = min((task.submitted_at for task in waiting), default=None)
        self.oldest_ready_s = None if oldest is None else now - oldest

    def __repr__(self) -> str:
        counted = ", ".join(f"{number} {status}" for status, number in self.counts.items() if number)
        return f"<Stats {counted or 'empty'}; {self.throughput:.0f}/s>"
