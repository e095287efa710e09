"""Makes safe HTML of texts and readable texts of numbers; knows nothing of runs.

Rule: whatever comes from a task goes through `safe`, which also shows what would otherwise act on the
reader: control characters, and marks that turn the direction of writing.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import isnan
from typing import Final

#: Shown as they are among what Python calls unprintable.
_KEPT: Final = "\n\t\u00a0\u3000"


def safe(value: str) -> str:
    """Return a text for HTML, in an element or in an attribute with quotes."""
    return escape(visible(value))


def visible(value: str) -> str:
    """Return a text with what would not be seen in it, and might act on the reader, spelt out."""
    if value.isprintable():
        return value
    return "".join(char if char.isprintable() or char in _KEPT else _shown(char) for char in value)


def _shown(char: str) -> str:
    """Return what stands for a character that does not print; of half a pair, what stands for any."""
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:  # noqa: PLR2004 - surrogates, of which UTF-8 has none
        return "\ufffd"
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"  # noqa: PLR2004


def user(value: str) -> str:
    """Return a text of a user's, set apart so that its direction of writing is its own."""
    return f"<bdi>{safe(value)}</bdi>"


def duration(seconds: float | None) -> str:
    """Return "0.3 ms", "412 ms", "1.23 s", "2 min 05 s", "3 h 07 min"; a dash if unknown."""
    if seconds is None or isnan(seconds):
        return "-"
    if seconds == 0:
        return "0 s"
    if seconds < 0.0995:  # noqa: PLR2004 - each step's bound is where it would round to the next one's
        return f"{seconds * 1000:.2g} ms" if seconds >= 0.00095 else f"{seconds * 1000:.1g} ms"  # noqa: PLR2004
    if seconds < 0.9995:  # noqa: PLR2004
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:  # noqa: PLR2004
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:  # noqa: PLR2004
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60:02} min"


def size(octets: float | None) -> str:
    """Return "12.5 MB" of a number of bytes; a dash if unknown."""
    if octets is None or isnan(octets):
        return "-"
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if octets >= 0.9995 * factor:
            return f"{octets / factor:.3g} {unit}" if octets < 999.5 * factor else f"{octets / factor:.0f} {unit}"
    return f"{octets:.0f} B"


def percent(share: float | None) -> str:
    """Return a share in percent; a dash if unknown."""
    if share is None or isnan(share):
        return "-"
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.1f} %"  # noqa: PLR2004


def plural(number: int, one: str, many: str = "") -> str:
    """Return "1 task", "1,204 tasks"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: frozenset[int]) -> str:
    """Return a table of HTML cells, the first of each row being its head, that scrolls in itself if it is wide.

    Args:
        caption: What it is a table of; plain text.
        heads: Plain texts.
        rows: Cells of HTML.
        numeric: The columns that are set to the right.
    """
    sides = ["n" if column in numeric else "" for column in range(len(heads))]
    head = "".join(f'<th scope="col"{_class(side)}>{safe(name)}</th>' for side, name in zip(sides, heads, strict=True))
    body = "\n".join(_row(cells, sides) for cells in rows)
    return (
        f'<div class="scroll" role="group" tabindex="0" aria-label="{safe(caption)}">\n'
        f"<table><caption>{safe(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _row(cells: Sequence[str], sides: Sequence[str]) -> str:
    first, *others = cells
    rest = "".join(f"<td{_class(side)}>{cell}</td>" for side, cell in zip(sides[1:], others, strict=True))
    return f'<tr><th scope="row">{first}</th>{rest}</tr>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
