"""Event streams of runs that never were, of any length, with what real ones have: retries, crashes, dependencies."""

import random
from collections.abc import Iterator
from itertools import count

Event = dict[str, object]

#: When these runs begin; any instant does.
BEGAN = 1_796_000_000.0


def large_run(attempts: int, *, workers: int = 8, seed: int = 1) -> Iterator[Event]:
    """Yield the events of a run with about so many attempts, in order."""
    chance, numbers = random.Random(seed), count(1)

    def event(kind: str, at: float, **fields: object) -> Event:
        return {"v": 1, "seq": next(numbers), "t": BEGAN + at, "run": "synthetic", "ev": kind, **fields}

    yield event("run.started", 0.0, workers=workers, pid=1, python="3.11.7", procq="0.1.0", host="nowhere")
    for worker in range(1, workers + 1):
        yield event("worker.started", 0.0, worker=worker, pid=100 + worker)
    free = [0.1] * workers
    counts = {"succeeded": 0, "failed": 0, "cancelled": 0}
    begun, task, cpu_s, fetched = 0, 0, 0.0, ""
    while begun < attempts:
        kind = ("fetch", "clean", "train")[min(2, int(chance.expovariate(1.2)))]
        task_id, at = f"{kind}/{task}", min(free)
        needs = [] if kind == "fetch" or not fetched else [fetched]
        fetched = task_id if kind == "fetch" else fetched
        task += 1
        yield event("task.submitted", at, id=task_id, type=kind, priority=0, group=None, depends_on=needs,
                    run_at=None, max_attempts=3, args=f"day={task}")  # fmt: skip
        yield event("task.ready", at, id=task_id, reason=None)
        for nth in (1, 2, 3):
            lane = free.index(min(free))
            began, run_s = max(free[lane], at), chance.lognormvariate(-3, 1)
            outcome = chance.choices(("ok", "error", "timeout", "crash"), (95, 3, 1, 1))[0]
            error = None if outcome == "ok" else {"type": "ValueError", "message": f"bad {nth}", "traceback": "Trace"}
            yield event("attempt.started", began, id=task_id, attempt=nth, worker=lane + 1, pid=101 + lane)
            yield event("attempt.ended", began + run_s, id=task_id, attempt=nth, outcome=outcome, run_s=run_s,
                        cpu_s=run_s / 2, peak_rss=chance.randrange(10**7, 10**9), exit_code=None, signal=None,
                        error=error, result_bytes=5)  # fmt: skip
            free[lane], at, begun, cpu_s = began + run_s + 0.0005, began + run_s, begun + 1, cpu_s + run_s / 2
            if outcome == "ok" or nth == 3 or chance.random() < 0.2:  # some errors are not worth another attempt
                break
            yield event("task.scheduled", at, id=task_id, reason="backoff", in_s=0.1)
            at += 0.1
            yield event("task.ready", at, id=task_id, reason=None)
        status = "succeeded" if outcome == "ok" else "failed"
        counts[status] += 1
        yield event("task.ended", at, id=task_id, status=status, attempts=nth, cause=None, origin=None)
    yield event("run.ended", max(free), counts=counts, elapsed=max(free), cpu_s=cpu_s)
