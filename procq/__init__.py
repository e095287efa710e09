"""Run CPU-heavy Python on all cores, and know what happened to every piece.

What is exported here, and `procq.errors`, is public; everything else may change in any release.

The names are looked up when they are first used: a worker that unpickles a function of a module
with `from procq import task` then imports what a task function needs, and not the whole queue.
"""

TYPE_CHECKING = False  # as type checkers know it; `typing` is 3 ms more for a worker
if TYPE_CHECKING:
    from procq.cli import main
    from procq.core.breaker import Breaker
    from procq.core.policies import Aging, WeightedFair
    from procq.core.records import AttemptRecord, DeadLetter
    from procq.core.states import Priority, Status
    from procq.fault_tolerant import FaultTolerantQueue
    from procq.handle import Handle, TaskResult, as_completed
    from procq.inside import Permanent, RetryLater, current
    from procq.loader import jobs
    from procq.queue import Queue
    from procq.retry import constant, exponential
    from procq.shared import Shared, share
    from procq.spec import Spawn, TaskFunction, TaskSpec, task
    from procq.stats import Stats

__all__ = [
    "Aging",
    "AttemptRecord",
    "Breaker",
    "DeadLetter",
    "FaultTolerantQueue",
    "Handle",
    "Permanent",
    "Priority",
    "Queue",
    "RetryLater",
    "Shared",
    "Spawn",
    "Stats",
    "Status",
    "TaskFunction",
    "TaskResult",
    "TaskSpec",
    "WeightedFair",
    "as_completed",
    "constant",
    "current",
    "exponential",
    "jobs",
    "main",
    "share",
    "task",
]

#: The module that each name lives in.
_HOMES = {
    "Aging": "core.policies",
    "AttemptRecord": "core.records",
    "Breaker": "core.breaker",
    "DeadLetter": "core.records",
    "FaultTolerantQueue": "fault_tolerant",
    "Handle": "handle",
    "Permanent": "inside",
    "Priority": "core.states",
    "Queue": "queue",
    "RetryLater": "inside",
    "Shared": "shared",
    "Spawn": "inside",
    "Stats": "stats",
    "Status": "core.states",
    "TaskFunction": "spec",
    "TaskResult": "handle",
    "TaskSpec": "spec",
    "WeightedFair": "core.policies",
    "as_completed": "handle",
    "constant": "retry",
    "current": "inside",
    "exponential": "retry",
    "jobs": "loader",
    "main": "cli",
    "share": "shared",
    "task": "spec",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'procq' has no attribute {name!r}")
    # Not by `importlib`, which is a module that nobody else needs at the start.
    value = getattr(__import__(f"procq.{home}", fromlist=(name,)), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, used or not."""
    return sorted({*globals(), *__all__})
