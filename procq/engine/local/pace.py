"""How long the attempts of a type last, learnt from those that ended (DESIGN 3).

So the engine can tell how far ahead a worker may be sent attempts; knows neither workers nor clocks.
"""

from typing import Final, final

#: What an attempt is expected to last when none of its type has ended yet: long.
UNKNOWN_S: Final = 1.0
#: How much of the newest duration goes into the moving average: an eighth forgets a change of
#: pace after some twenty attempts, and one odd duration hardly shows.
_NEWEST: Final = 0.125
#: An attempt that lasted so many times the average counts in full, at once: after a surprise
#: caution is cheap, and what waits behind a long attempt is not.
_SURPRISE: Final = 8
#: Types whose average is kept; a program that makes up types without end starts over.
_TYPES_MAX: Final = 10_000


@final
class Paces:
    """Moving averages of durations, in seconds, by type."""

    __slots__ = ("_average_s", "expected_s")

    def __init__(self) -> None:
        self._average_s: dict[str, float] = {}
        #: `expected_s(type_name, UNKNOWN_S)` is what an attempt of the type is expected to last; bound
        #: for the hot path, where a method of our own would cost as much as what it does
        self.expected_s = self._average_s.get

    def note(self, type_name: str, run_s: float) -> None:
        """Learn from an attempt of the type that has ended."""
        averages = self._average_s
        known_s = averages.get(type_name)
        if known_s is None:
            if len(averages) >= _TYPES_MAX:
                averages.clear()
            averages[type_name] = run_s
        elif run_s > _SURPRISE * known_s:
            averages[type_name] = run_s
        else:
            averages[type_name] = known_s + (run_s - known_s) * _NEWEST
