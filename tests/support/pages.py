"""Reads the pages of the documentation: their blocks, tables, headings and links."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Block(NamedTuple):
    """A fenced block."""

    language: str
    text: str
    line: int  #: where it begins in its page, from 1


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)


def prose(text: str) -> str:
    """Return a page with the lines of its blocks left empty."""
    return re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)


def headings(text: str, level: int) -> list[str]:
    """Return the headings of one level."""
    return re.findall(rf"^{'#' * level} (.+)$", prose(text), re.MULTILINE)


def section(text: str, heading: str) -> str:
    """Return what stands under a heading of the second level, its subheadings included."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading {heading!r}"
    return found[1]


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the one table under a heading, without the row of titles."""
    lines = [line for line in section(text, heading).splitlines() if line.startswith("|")]
    assert lines, f"no table under {heading!r}"
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def codes(text: str) -> list[str]:
    """Return what stands in backquotes."""
    return re.findall(r"`([^`\n]+)`", text)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Return the names under which a page's headings can be linked."""
    found = re.findall(r"^#+ (.+)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
