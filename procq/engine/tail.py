"""The last part of what an attempt wrote, whatever it wrote in all (contract H4)."""

from typing import Final, final

#: So many bytes of each stream are kept: enough for the messages around a failure.  They are kept with
#: the attempt's record as long as that is, so that this times the number of kept tasks is memory.
KEPT_BYTES: Final = 64 * 1024

#: The top two bits of a byte that goes on with a character of UTF-8, and how many may follow the first.
_CONTINUES, _CONTINUES_MASK, _CONTINUES_MOST = 0x80, 0xC0, 3


@final
class Tail:
    """Takes bytes, and keeps the last of them."""

    __slots__ = ("_data", "_total")

    def __init__(self) -> None:
        self._data = bytearray()
        #: how many came in all
        self._total = 0

    def append(self, data: bytes) -> None:
        """Take more."""
        self._total += len(data)
        self._data += data
        if len(self._data) > 2 * KEPT_BYTES:  # not each time, for it moves all that is kept
            del self._data[:-KEPT_BYTES]

    def clear(self) -> None:
        """Forget all."""
        self._total = 0
        self._data.clear()

    def text(self) -> str:
        """Return what is kept as text; before it, how many bytes came and were not kept."""
        data = self._data[-KEPT_BYTES:]
        left_out = self._total - len(data)
        if left_out:
            rest = 0  # of a character that was cut in two
            while rest < _CONTINUES_MOST and data[rest] & _CONTINUES_MASK == _CONTINUES:
                rest += 1
            del data[:rest]
            left_out += rest
        text = data.decode("utf-8", "backslashreplace")
        return f"[... {left_out} bytes left out ...]\n{text}" if left_out else text
