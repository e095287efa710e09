"""How long attempts took, in memory that does not grow with their number.

A value is only counted, in a bucket whose bounds are 4 % apart; so whatever is read out of it is off by at
most 2 %.  Less than a microsecond and more than some years fall into the outermost buckets, of which there are
about a thousand.  Keeping a sample instead would be off by chance, and most at the far end, which is what
people look for.
"""

import math
from typing import Final, final

#: A bucket's upper bound, as a multiple of its lower one.
_WIDTH: Final = 1.04
_LOG_WIDTH: Final = math.log(_WIDTH)
_LEAST: Final = 1e-6
_MOST: Final = 1e9
#: In the middle of a bucket, so that both its ends are equally far off.
_MIDDLE: Final = 2 / (1 + 1 / _WIDTH) / _WIDTH


@final
class Sketch:
    """Counts values, and says which of them has a given share of all below it.

    Attributes:
        count: How many there were.
    """

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self.count = 0
        #: how many values fell into each bucket, by its number
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count a value; what is negative counts as the least."""
        bucket = math.ceil(math.log(min(max(value, _LEAST), _MOST)) / _LOG_WIDTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """Return the value that so many of all are not above, or None if there is none.

        Args:
            share: 0.5 is the median.
        """
        left = max(1, math.ceil(share * self.count))
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return math.exp(bucket * _LOG_WIDTH) * _MIDDLE
        return None
