"""Says whether the machine has the memory to start another attempt (contract D10, `min_free_memory`).

Knows neither attempts nor where the figure comes from: whoever starts attempts asks, and decides
what becomes of those that are held back.
"""

from collections.abc import Callable
from typing import Final, final

#: How long a figure is relied on, in seconds.  To read one takes 10 to 80 us (measured 2026-11;
#: more levels of cgroups, more time), so it takes less than a five-hundredth of the time, and a
#: start that is held back comes later by at most so much.
LOOK_EVERY_S: Final = 0.05


@final
class Headroom:
    """Whether memory is short.

    Args:
        least_bytes: With less available memory is short.
        available: Returns how many bytes are available now.

    Attributes:
        was_short: What the last look has shown.
        look_at: From this instant on the next call looks anew.
    """

    __slots__ = ("_available", "_least_bytes", "look_at", "was_short")

    def __init__(self, least_bytes: int, available: Callable[[], int]) -> None:
        self._least_bytes = least_bytes
        self._available = available
        self.was_short = False
        self.look_at = 0.0

    def is_short(self, now: float) -> bool:
        """Return whether memory is short, as seen within the last `LOOK_EVERY_S`."""
        if now >= self.look_at:
            self.look_at = now + LOOK_EVERY_S
            self.was_short = self._available() < self._least_bytes
        return self.was_short
