"""What attempts hold of the queue's processors and memory while they run (contract B9)."""

from collections.abc import Callable
from typing import final

from procq.slots import Demand
from procq.units import format_bytes


@final
class Capacity:
    """The slots of a queue: how many there are, and how many are free.

    Args:
        cpus: Slots in all.
        memory_bytes: Memory in all; or what finds it out, called once, when a task first asks for some.
    """

    __slots__ = ("_memory_bytes", "cpus", "free_bytes", "free_cpus")

    def __init__(self, cpus: int, memory_bytes: int | Callable[[], int]) -> None:
        self.cpus = cpus
        self._memory_bytes = memory_bytes
        #: what no running attempt holds; below 0 if what there is has become less meanwhile
        self.free_cpus = cpus
        self.free_bytes = memory_bytes if isinstance(memory_bytes, int) else 0

    @property
    def memory_bytes(self) -> int:
        """Memory in all; found out now if it was not before."""
        if not isinstance(self._memory_bytes, int):
            self._memory_bytes = self._memory_bytes()
            self.free_bytes += self._memory_bytes
        return self._memory_bytes

    def resize(self, cpus: int) -> None:
        """Change how many processor slots there are."""
        self.free_cpus += cpus - self.cpus
        self.cpus = cpus

    def excess(self, demand: Demand) -> str:
        """Say what a task asks for that could never be free; empty if there is nothing."""
        if demand.cpus > self.cpus:
            return f"{demand.cpus} cpus, of which this queue has {self.cpus}"
        if demand.memory_bytes and demand.memory_bytes > self.memory_bytes:
            has = format_bytes(self.memory_bytes)
            return f"{format_bytes(demand.memory_bytes)} of memory, of which this queue has {has}"
        return ""

    def fits(self, demand: Demand) -> bool:
        """Whether so much is free now."""
        return demand.cpus <= self.free_cpus and (not demand.memory_bytes or demand.memory_bytes <= self.free_bytes)

    def take(self, demand: Demand) -> None:
        """An attempt starts."""
        self.free_cpus -= demand.cpus
        self.free_bytes -= demand.memory_bytes

    def give_back(self, demand: Demand) -> None:
        """An attempt has ended, or has not begun after all."""
        self.free_cpus += demand.cpus
        self.free_bytes += demand.memory_bytes
