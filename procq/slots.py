"""What a task takes while it runs: workers of a group, processors, memory (contract B7, B9)."""

from collections.abc import Iterable
from typing import Final, NamedTuple

#: The workers of every task that names no group.
DEFAULT_GROUP: Final = "default"


class Demand(NamedTuple):
    """What one attempt holds of the queue's resources from its start to its end."""

    cpus: int  #: slots, at least 1
    memory_bytes: int  #: 0: none that is counted

    def __str__(self) -> str:
        cpus = f"{self.cpus} cpu" if self.cpus == 1 else f"{self.cpus} cpus"
        return cpus if not self.memory_bytes else f"{cpus} and {self.memory_bytes} bytes"


#: What a task takes that does not say.
ONE_CPU: Final = Demand(1, 0)


def need_refused(who: str, group: str, known: Iterable[str]) -> str:
    """Say that a queue does not have the group of workers that somebody needs."""
    return f"{who} needs group {group!r}; this queue has {', '.join(map(repr, sorted(known)))}"
