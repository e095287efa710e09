"""The scheduler against a list: whatever calls come in whatever order, both say the same (contract A, B, D-G).

The model knows no heaps, no counts of unmet dependencies and no lists of dependents: it looks at
all tasks every time.  Properties that hold after each step: no task is lost or started twice, the
order is exactly (priority, submission), nothing starts early, each end is told once and in order,
whoever follows the events finds every task where it is, and in the end every task has ended.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.hand import FixedRules
from tests.support.story import Story, told_at_once

from procq import Breaker
from procq.core.capacity import Capacity
from procq.core.scheduler import Scheduler
from procq.core.states import TERMINAL, UNSUCCESSFUL, WAITING, Status
from procq.core.task import Task
from procq.errors import DuplicateTaskError
from procq.outcome import OUTCOMES, Ended
from procq.retry import constant
from procq.slots import DEFAULT_GROUP, ONE_CPU, Demand

LIMITS = {"pair": 2, "one": 1}
RETENTION = (3, 40)
DEAD_LETTERS = (3, 40)
SUCCESS = Status.SUCCEEDED


@dataclass(eq=False)
class Entry:
    """One task of the model, beside the real one."""

    task: Task
    needs: list["Entry"] = field(repr=False)
    rules: FixedRules
    pause: int
    due: int | None
    expires_at: int | None
    held: bool
    status: Status = Status.BLOCKED
    cause: str | None = None
    #: whose end cancelled it
    because: "Entry | None" = field(default=None, repr=False)
    failures: int = 0
    first_started_at: int | None = None
    #: whether it was sent to a busy worker
    ahead: bool = False
    known: bool = True
    replaced: bool = False
    starts: int = 0
    reports: int = 0

    def __repr__(self) -> str:
        return f"<{self.task.id} {self.status}>"

    @property
    def open(self) -> bool:
        return self.status not in TERMINAL

    @property
    def expiring(self) -> bool:
        """Whether it is open and must still have started by an instant."""
        return self.open and self.expires_at is not None and self.first_started_at is None


@dataclass
class Model:
    """The rules of the contract over one list, in order of submission."""

    entries: list[Entry] = field(default_factory=list)
    now: int = 0
    cutting: bool = False
    settled: list[Entry] = field(default_factory=list)
    letters: list[tuple[Entry, int]] = field(default_factory=list)
    finished: list[tuple[Entry, int]] = field(default_factory=list)
    ends: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(TERMINAL, 0))

    def in_status(self, *statuses: Status) -> list[Entry]:
        return [entry for entry in self.entries if entry.status in statuses]

    def first(self, group: str) -> Entry | None:
        """Return what should start next in a group: the highest priority, then the earliest submitted."""
        running = [entry.task.type for entry in self.in_status(Status.RUNNING)]
        for entry in sorted(self.in_status(Status.READY), key=lambda entry: -entry.rules.priority):
            kind = entry.task.type
            if (
                entry.rules.group == group
                and not entry.ahead
                and (kind not in LIMITS or running.count(kind) < LIMITS[kind])
            ):
                return entry
        return None

    def next_due(self) -> int | None:
        delayed = [entry.due for entry in self.in_status(Status.SCHEDULED)]
        expiring = [entry.expires_at for entry in self.entries if entry.expiring]
        return min((at for at in (*delayed, *expiring) if at is not None), default=None)

    # --- coming in ---------------------------------------------------------------------------------

    def accept(self, entry: Entry) -> None:
        self.entries.append(entry)
        if entry.expires_at is not None and self.now >= entry.expires_at:
            self.end(entry, Status.CANCELLED, "expired")
        else:
            self.attach(entry)

    def attach(self, entry: Entry) -> None:
        """Decide what a new or revived task waits for."""
        if entry.rules.run_if == "success":
            for need in entry.needs:
                if need.status in UNSUCCESSFUL:
                    self.end(entry, Status.CANCELLED, cause_after(need), because=need)
                    return
        if all(not need.open for need in entry.needs):
            if needed(entry):
                self.release(entry)
            else:
                self.end(entry, Status.CANCELLED, "not needed")

    def release(self, entry: Entry) -> None:
        waits = entry.due is not None and self.now < entry.due
        entry.status = Status.SCHEDULED if waits else Status.READY

    # --- ending ------------------------------------------------------------------------------------

    def end(self, entry: Entry, status: Status, cause: str | None = None, because: Entry | None = None) -> None:
        """End a task, and let the news spread in circles."""
        self.end_one(entry, status, cause, because)
        news = [entry]
        for number, ended in enumerate(news):
            for other in self.in_status(Status.BLOCKED):
                if ended not in other.needs:
                    continue
                if ended.status is not SUCCESS and other.rules.run_if == "success":
                    self.end_one(other, Status.CANCELLED, cause_after(ended), ended)
                    news.append(other)
                elif all(not need.open and need not in news[number + 1 :] for need in other.needs):
                    if needed(other):
                        self.release(other)
                    else:
                        self.end_one(other, Status.CANCELLED, "not needed", ended)
                        news.append(other)

    def end_one(self, entry: Entry, status: Status, cause: str | None, because: Entry | None) -> None:
        entry.status = status
        entry.cause = cause
        entry.because = because
        self.settled.append(entry)
        self.ends[status] += 1
        if status is Status.FAILED:
            self.letters.append((entry, self.now))
            self.prune_letters()
        elif entry.task.explicit:
            self.finished.append((entry, self.now))
            self.prune_finished()
        elif not entry.held:
            entry.known = False

    def prune_letters(self) -> None:
        while self.letters and (
            len(self.letters) > DEAD_LETTERS[0] or self.now - self.letters[0][1] >= DEAD_LETTERS[1]
        ):
            self.letters.pop(0)[0].known = False

    def prune_finished(self) -> None:
        while self.finished and (len(self.finished) > RETENTION[0] or self.now - self.finished[0][1] >= RETENTION[1]):
            self.finished.pop(0)[0].known = False

    def reported(self, entry: Entry, outcome: str, *, permanent: bool, later: int | None) -> None:
        """Judge how an attempt ended."""
        entry.reports += 1
        if outcome == "ok":
            self.end(entry, SUCCESS)
        elif outcome == "cancelled":
            self.end(entry, Status.CANCELLED, "cancelled")
        elif outcome == "interrupted":
            self.retry(entry, 0)
        elif later is not None and not permanent:
            self.retry_in_time(entry, later)
        else:
            entry.failures += 1
            if permanent or entry.failures >= entry.rules.max_attempts or outcome in entry.rules.never_retry:
                self.end(entry, Status.FAILED)
            else:
                self.retry_in_time(entry, entry.pause)

    def retry_in_time(self, entry: Entry, pause: int) -> None:
        assert entry.first_started_at is not None
        limit = entry.rules.retry_for_s
        if limit is not None and self.now + pause > entry.first_started_at + limit:
            self.end(entry, Status.FAILED)
        else:
            self.retry(entry, pause)

    def retry(self, entry: Entry, pause: int) -> None:
        if self.cutting:
            self.end(entry, Status.CANCELLED, "shutdown")
        else:
            entry.due = self.now + pause
            self.release(entry)

    # --- time and commands ---------------------------------------------------------------------------

    def pass_to(self, now: int) -> None:
        self.now = now
        while late := [entry for entry in self.entries if entry.expiring and now >= (entry.expires_at or 0)]:
            self.end(min(late, key=lambda entry: entry.expires_at or 0), Status.CANCELLED, "expired")
        for entry in self.in_status(Status.SCHEDULED):
            self.release(entry)

    def start(self, entry: Entry) -> None:
        entry.status = Status.RUNNING
        entry.ahead = False
        entry.starts += 1
        if entry.first_started_at is None:
            entry.first_started_at = self.now

    def put_back(self, entry: Entry) -> None:
        """Undo a start."""
        if self.cutting:
            self.end(entry, Status.CANCELLED, "shutdown")
            return
        entry.status = Status.READY
        if not entry.reports:
            entry.first_started_at = None

    def replay(self, entry: Entry, *, reset_attempts: bool, with_dependents: bool) -> None:
        back = [entry]
        if with_dependents:
            for one in back:
                back += [other for other in self.in_status(Status.CANCELLED) if other.because is one]
        for one in sorted(back, key=self.entries.index):
            if not self.is_displaced(one):
                self.revive(one, reset_attempts=reset_attempts)

    def is_displaced(self, entry: Entry) -> bool:
        """Whether another task has its id now."""
        if entry.replaced:
            return True
        return any(other.known and other.task.id == entry.task.id for other in self.entries if other is not entry)

    def is_replaceable(self, entry: Entry) -> bool:
        is_needed = entry.open and any(entry in other.needs for other in self.in_status(Status.BLOCKED))
        return entry.status is not Status.RUNNING and not is_needed

    def replace(self, old: list[Entry], new: list[Entry]) -> None:
        """Let new tasks take the ids of old ones."""
        for entry in old:
            if entry.open:
                self.end(entry, Status.CANCELLED, "replaced")
            self.letters = [letter for letter in self.letters if letter[0] is not entry]
            self.finished = [kept for kept in self.finished if kept[0] is not entry]
            entry.known = False
            entry.replaced = True
        for entry in new:
            self.accept(entry)

    def revive(self, entry: Entry, *, reset_attempts: bool) -> None:
        self.ends[entry.status] -= 1
        self.letters = [letter for letter in self.letters if letter[0] is not entry]
        self.finished = [kept for kept in self.finished if kept[0] is not entry]
        if reset_attempts:
            entry.failures = 0
            entry.first_started_at = None
        entry.known = True
        entry.status = Status.BLOCKED
        entry.cause = entry.because = entry.due = entry.expires_at = None
        self.attach(entry)

    def cut_off(self) -> list[Entry]:
        self.cutting = True
        waiting = self.in_status(*WAITING)
        for entry in reversed(waiting):
            self.end(entry, Status.CANCELLED, "shutdown")
        return waiting

    def disown(self, entry: Entry) -> None:
        entry.held = False
        if not entry.open and not entry.task.explicit and entry not in [letter[0] for letter in self.letters]:
            entry.known = False


def cause_after(need: Entry) -> str:
    """Return why a task is cancelled that needed this one to succeed."""
    return "not needed" if need.cause == "not needed" else "dependency"


def needed(entry: Entry) -> bool:
    """Whether a task has something to do whose dependencies have all ended."""
    failed = [need for need in entry.needs if need.status in UNSUCCESSFUL and need.cause != "not needed"]
    return entry.rules.run_if != "failure" or bool(failed)


class SchedulerAgainstAList(RuleBasedStateMachine):
    """Makes the same calls of both, and compares all there is to see."""

    groups: ClassVar[tuple[str, ...]] = (DEFAULT_GROUP,)
    demands: ClassVar[tuple[Demand, ...]] = (ONE_CPU,)

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.told: list[str] = []
        self.scheduler = Scheduler(
            backoff=constant(0),
            draw=lambda: 0.5,
            limits=LIMITS,
            breakers={"one": Breaker(failures=10**6)},  # which counts, and never opens
            groups=self.groups,
            capacity=Capacity(4, 10),
            retention=RETENTION,
            dead_letters=DEAD_LETTERS,
        )
        self.story = Story()
        self.events = told_at_once(self.story, lambda: self.model.now)
        self.scheduler.watcher = self.events.facts

    def draw_entry(self, data: st.DataObject, entries: list[Entry]) -> Entry:
        """Choose one, the newest by preference, which is where a failing example shrinks to."""
        return data.draw(st.sampled_from(entries[::-1]), label="task")

    # --- submitting ----------------------------------------------------------------------------------

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Begin with some tasks, at an instant that is not 0, which hides mistakes."""
        self.model.pass_to(100)
        self.scheduler.advance(100)
        self.submit(data, 4)

    @precondition(lambda self: not self.model.cutting)
    @rule(data=st.data(), batch=st.integers(1, 3))
    def submit(self, data: st.DataObject, batch: int) -> None:
        entries: list[Entry] = []
        for _ in range(batch):
            entries.append(self.draft(data, [*self.model.entries, *entries]))
        self.scheduler.accept([entry.task for entry in entries], self.model.now)
        for entry in entries:
            self.model.accept(entry)

    @precondition(lambda self: not self.model.cutting and any(entry.known for entry in self.model.entries))
    @rule(data=st.data(), least=st.integers(1, 2))
    def replace(self, data: st.DataObject, least: int) -> None:
        """Let new tasks take the ids of one or two that are known, or be refused if one of those is in use."""
        known = [entry for entry in self.model.entries if entry.known][::-1]
        old = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=least, unique_by=id), label="old")
        new: list[Entry] = []
        for entry in old:
            if entry.ahead:
                self.take_back(entry)
            new.append(self.draft(data, [*self.model.entries, *new], task_id=entry.task.id))
        olds, news = [entry.task for entry in old], [entry.task for entry in new]
        if all(map(self.model.is_replaceable, old)):
            self.scheduler.replace(olds, news, self.model.now)
            self.model.replace(old, new)
        else:
            with pytest.raises(DuplicateTaskError):
                self.scheduler.replace(olds, news, self.model.now)

    def draft(self, data: st.DataObject, known: list[Entry], *, task_id: str | None = None) -> Entry:
        """Make a task that may depend on any known one, forgotten ones included."""
        now = self.model.now
        needs = data.draw(st.lists(st.sampled_from(known[::-1]), max_size=3, unique_by=id)) if known else []
        pause = data.draw(st.sampled_from([0, 0, 2, 5]), label="pause")
        rules = FixedRules(
            priority=data.draw(st.sampled_from([0, 0, 10, -10]), label="priority"),
            max_attempts=data.draw(st.sampled_from([1, 1, 2, 3]), label="max_attempts"),
            backoff=constant(pause),
            never_retry=data.draw(st.sampled_from([frozenset(), frozenset({"crash"})]), label="never_retry"),
            retry_for_s=data.draw(st.sampled_from([None, None, 6]), label="retry_for"),
            run_if=data.draw(st.sampled_from(["success", "success", "done", "failure"])) if needs else "success",
            group=data.draw(st.sampled_from(self.groups), label="group"),
            demand=data.draw(st.sampled_from(self.demands), label="demand"),
        )
        delay = data.draw(st.sampled_from([None, None, 0, 3, 8]), label="delay")
        expires = data.draw(st.sampled_from([None, None, None, 0, 4, 8]), label="expires")
        explicit = data.draw(st.booleans(), label="explicit")
        due = None if delay is None else now + delay
        expires_at = None if expires is None else now + expires
        task = Task(
            f"task {len(known)}" if task_id is None else task_id,
            data.draw(st.sampled_from(["free", "free", *LIMITS]), label="type"),
            b"x" * (len(known) % 3),
            rules,
            depends_on=tuple(need.task for need in needs),
            due=due,
            expires_at=expires_at,
            explicit=explicit,
        )
        held = data.draw(st.booleans(), label="held")
        task.owner = held or None
        return Entry(task, needs, rules, pause, due, expires_at, held)

    # --- running -------------------------------------------------------------------------------------

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        entry = self.model.first(data.draw(st.sampled_from(self.groups), label="group"))
        if entry is not None:
            self.start_now(entry)

    def start_now(self, entry: Entry) -> None:
        """Start a task; the model has chosen it, and the invariant has seen the scheduler agree."""
        assert entry.status is Status.READY, "no double start"
        assert entry.due is None or self.model.now >= entry.due, "never early"
        self.scheduler.start(entry.task, self.model.now)
        self.model.start(entry)

    @rule(data=st.data())
    def send_ahead(self, data: st.DataObject) -> None:
        entry = self.model.first(data.draw(st.sampled_from(self.groups), label="group"))
        if entry is not None and entry.expires_at is None and entry.task.type not in LIMITS:
            self.scheduler.send_ahead(entry.task)
            entry.ahead = True

    @precondition(lambda self: any(entry.ahead for entry in self.model.entries))
    @rule(data=st.data(), begins=st.booleans())
    def begin_or_take_back(self, data: st.DataObject, *, begins: bool) -> None:
        entry = self.draw_entry(data, [entry for entry in self.model.entries if entry.ahead])
        if begins:
            self.start_now(entry)
        else:
            self.take_back(entry)

    def take_back(self, entry: Entry) -> None:
        self.scheduler.take_back(entry.task)
        entry.ahead = False

    @precondition(lambda self: self.model.in_status(Status.RUNNING))
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        entry = self.draw_entry(data, self.model.in_status(Status.RUNNING))
        self.scheduler.put_back(entry.task, self.model.now)
        self.model.put_back(entry)

    @precondition(lambda self: self.model.in_status(Status.RUNNING) or any(map(self.model.first, self.groups)))
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["ok", "error", "error", "error", "crash", *OUTCOMES]),
        permanent=st.booleans(),
        later=st.sampled_from([None, None, None, 0, 4]),
    )
    def end(self, data: st.DataObject, outcome: str, *, permanent: bool, later: int | None) -> None:
        """End one that runs, or start one and end it."""
        for first in filter(None, map(self.model.first, self.groups)):
            self.start_now(first)
        entry = self.draw_entry(data, self.model.in_status(Status.RUNNING))
        if outcome != "error":
            permanent, later = False, None
        ended = Ended(outcome, 0, self.model.now, permanent=permanent, retry_after_s=later)  # type: ignore[arg-type]
        assert self.scheduler.end(entry.task, entry.starts, ended, self.model.now)
        self.model.reported(entry, outcome, permanent=permanent, later=later)

    @precondition(lambda self: self.model.in_status(Status.RUNNING) or any(entry.ahead for entry in self.model.entries))
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        """Have one that runs return, or one that was sent ahead begin and return unseen."""
        entry = self.draw_entry(
            data, [entry for entry in self.model.entries if entry.status is Status.RUNNING or entry.ahead]
        )
        if entry.ahead:
            self.model.start(entry)
        now = self.model.now
        assert self.scheduler.succeed(entry.task, entry.starts, b"", (now, now, 1, 0.0, 0), now)
        self.model.reported(entry, "ok", permanent=False, later=None)

    @precondition(lambda self: self.model.in_status(Status.RUNNING))
    @rule(data=st.data(), batch=st.integers(0, 3))
    def spawn(self, data: st.DataObject, batch: int) -> None:
        """Have one that runs return and bring others, also while the work is cut short.

        Some of them may take the ids of known ones; if one of those is in use, none is accepted and it still runs.
        """
        parent = self.draw_entry(data, self.model.in_status(Status.RUNNING))
        known = [entry for entry in self.model.entries if entry.known][::-1]
        old = data.draw(st.lists(st.sampled_from(known), max_size=1, unique_by=id), label="old") if known else []
        entries: list[Entry] = []
        for entry in old:
            if entry.ahead:
                self.take_back(entry)
            entries.append(self.draft(data, [*self.model.entries, *entries], task_id=entry.task.id))
        for _ in range(batch):
            entries.append(self.draft(data, [*self.model.entries, *entries]))
        now = self.model.now
        ended = Ended("ok", now, now, value=b"")
        olds, news = [entry.task for entry in old], [entry.task for entry in entries]
        if not all(map(self.model.is_replaceable, old)):
            with pytest.raises(DuplicateTaskError):
                self.scheduler.spawn(parent.task, parent.starts, ended, news, now, olds)
            return
        assert self.scheduler.spawn(parent.task, parent.starts, ended, news, now, olds)
        self.model.replace(old, entries)
        self.model.reported(parent, "ok", permanent=False, later=None)
        if self.model.cutting:
            for entry in reversed(entries):
                if entry.status in WAITING:
                    self.model.end(entry, Status.CANCELLED, "shutdown")

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def succeed_late(self, data: st.DataObject) -> None:
        entry = self.draw_entry(data, self.model.entries)
        fence = entry.starts - (entry.status is Status.RUNNING)
        assert not self.scheduler.succeed(entry.task, fence, b"", (0, 0, 1, 0.0, 0), self.model.now)

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "error"]))
    def report_late(self, data: st.DataObject, outcome: str) -> None:
        entry = self.draw_entry(data, self.model.entries)
        fence = entry.starts - 1 if entry.status is Status.RUNNING else entry.starts
        dropped = self.scheduler.dropped_late
        assert not self.scheduler.end(entry.task, fence, Ended(outcome, 0, 0), self.model.now)  # type: ignore[arg-type]
        assert self.scheduler.dropped_late == dropped + 1

    # --- commands --------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.entries)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = self.draw_entry(data, self.model.entries)
        if entry.ahead:
            self.take_back(entry)
        answer = self.scheduler.cancel(entry.task, self.model.now)
        if entry.status in WAITING:
            assert answer == "cancelled"
            self.model.end(entry, Status.CANCELLED, "cancelled")
        else:
            assert answer == ("finished" if entry.status in TERMINAL else "stopping")

    @precondition(lambda self: self.model.entries and not self.model.cutting)
    @rule(data=st.data(), reset_attempts=st.booleans(), with_dependents=st.booleans())
    def replay(self, data: st.DataObject, *, reset_attempts: bool, with_dependents: bool) -> None:
        statuses = data.draw(st.sampled_from([[Status.FAILED], UNSUCCESSFUL, Status]), label="statuses")
        entry = self.draw_entry(data, self.model.in_status(*statuses) or self.model.entries)
        if entry.status in UNSUCCESSFUL and self.model.is_displaced(entry):
            with pytest.raises(DuplicateTaskError):
                self.scheduler.replay(entry.task, self.model.now)
            return
        taken = self.scheduler.replay(
            entry.task, self.model.now, reset_attempts=reset_attempts, with_dependents=with_dependents
        )
        if entry.status in UNSUCCESSFUL:
            self.model.replay(entry, reset_attempts=reset_attempts, with_dependents=with_dependents)
            assert taken == entry.open
        else:
            assert not taken

    @precondition(lambda self: self.model.letters)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        entry = self.draw_entry(data, [letter[0] for letter in self.model.letters])
        assert self.scheduler.purge([entry.task]) == 1
        self.model.letters = [letter for letter in self.model.letters if letter[0] is not entry]
        entry.known = False

    @precondition(lambda self: any(entry.held for entry in self.model.entries))
    @rule(data=st.data())
    def disown(self, data: st.DataObject) -> None:
        entry = self.draw_entry(data, [entry for entry in self.model.entries if entry.held])
        self.scheduler.disown(entry.task)
        self.model.disown(entry)

    @rule(passed=st.sampled_from([None, 0, 1, 2, 3, 5, 20]))
    def advance(self, passed: int | None) -> None:
        """Let time pass; None: until something is due."""
        due = self.scheduler.next_due()
        if passed is None:
            passed = 0 if due is None else max(0, int(due) - self.model.now)
        now = self.model.now + passed
        self.scheduler.advance(now)
        self.model.pass_to(now)

    @rule()
    def prune(self) -> None:
        self.scheduler.prune(self.model.now)
        self.model.prune_finished()
        self.model.prune_letters()

    @precondition(lambda self: len(self.model.entries) > 8 and not self.model.cutting)
    @rule()
    def cut_off(self) -> None:
        for entry in self.model.entries:
            if entry.ahead:
                self.take_back(entry)
        cut = self.scheduler.cut_off(self.model.now)
        assert cut == [entry.task for entry in self.model.cut_off()]

    # --- what holds after each step ---------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        scheduler, model = self.scheduler, self.model
        scheduler.check_invariants()
        assert [(entry.task.status, entry.task.cause) for entry in model.entries] == [
            (entry.status, entry.cause) for entry in model.entries
        ], "no lost task"
        assert [entry.task.failures for entry in model.entries] == [entry.failures for entry in model.entries]
        for group in self.groups:
            first = model.first(group)
            assert scheduler.next_ready(group) is (None if first is None else first.task), "order"
        assert scheduler.next_due() == model.next_due()
        assert list(scheduler.letters) == [entry.task for entry, _ in model.letters]
        assert set(scheduler.tasks.values()) == {entry.task for entry in model.entries if entry.known}
        counts = {status: len(model.in_status(status)) for status in Status if status not in TERMINAL}
        assert scheduler.counts == {**counts, **model.ends}
        assert scheduler.settled == [entry.task for entry in model.settled], "each end is told once, in order"
        scheduler.settled.clear()
        model.settled.clear()
        self.events.take()
        self.story.check()
        assert self.story.statuses == {entry.task.id: entry.status for entry in model.entries}, "events tell all"

    def teardown(self) -> None:
        """Whatever happened: if what can run does run, everything ends."""
        for entry in self.model.entries:
            if entry.ahead:
                self.take_back(entry)
        for _ in range(20 * len(self.model.entries) + 1):
            if not self.scheduler.open:
                break
            for first in filter(None, map(self.model.first, self.groups)):
                self.start_now(first)
            for entry in self.model.in_status(Status.RUNNING):
                self.scheduler.end(entry.task, entry.starts, Ended("ok", 0, 0), self.model.now)
                self.model.reported(entry, "ok", permanent=False, later=None)
            self.advance(None)
            self.agrees()
        assert self.scheduler.open == 0, "every task ends"
        assert all(not entry.open for entry in self.model.entries)


TestSchedulerAgainstAList = SchedulerAgainstAList.TestCase
TestSchedulerAgainstAList.settings = settings(max_examples=50, stateful_step_count=100)


class GroupsAndSlotsAgainstAList(SchedulerAgainstAList):
    """The same with two groups, and with tasks that take more than one slot (contract B7, B9)."""

    groups: ClassVar[tuple[str, ...]] = (DEFAULT_GROUP, "heavy")
    demands: ClassVar[tuple[Demand, ...]] = (ONE_CPU, Demand(2, 0), Demand(1, 5), Demand(4, 10))


TestGroupsAndSlotsAgainstAList = GroupsAndSlotsAgainstAList.TestCase
TestGroupsAndSlotsAgainstAList.settings = settings(max_examples=30, stateful_step_count=80)
