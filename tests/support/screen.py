"""A terminal's screen, to see what people would see of the bytes that a command sent."""

from typing import Any

import pyte


class Screen(pyte.HistoryScreen):
    """A screen that remembers what has scrolled away, and takes a resize as terminals do.

    Args:
        columns: How wide it is.
        lines: How high.
        reflows: Whether it wraps lines anew that no longer fit when it is made narrower, as most terminals of
            today do; others cut them.
    """

    def __init__(self, columns: int, lines: int, *, reflows: bool = False) -> None:
        super().__init__(columns, lines, history=10_000, ratio=0.5)
        self.reflows = reflows
        self.set_mode(pyte.modes.LNM)  # the terminal's driver makes CR LF of LF
        self.stream = pyte.Stream(self)

    def feed(self, text: str) -> None:
        """Take what a command has sent."""
        self.stream.feed(text)

    @property
    def rows(self) -> list[str]:
        """What the screen shows, without the blanks at the ends of lines."""
        return [row.rstrip() for row in self.display]

    @property
    def all_rows(self) -> list[str]:
        """What has scrolled away, and what the screen shows; without empty lines at the end."""
        gone = ["".join(_chars(row, self.columns)).rstrip() for row in self.history.top]
        rows = gone + self.rows
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def become(self, columns: int, lines: int) -> None:
        """Change the size, and what is shown with it: the cursor stays on what it was on."""
        rows, y = self.rows, self.cursor.y
        wrapped: list[str] = []
        cursor = 0
        for number, row in enumerate(rows):
            if number == y:
                cursor = len(wrapped)
            pieces = [row[at : at + columns] for at in range(0, len(row), columns)] or [""]
            wrapped += pieces if self.reflows else pieces[:1]
        while len(wrapped) > cursor + 1 and not wrapped[-1]:
            wrapped.pop()
        # What no longer fits goes at the top, but for what is below the cursor if that would go with it.
        first = min(cursor, max(0, len(wrapped) - lines))
        self.resize(lines, columns)
        self.reset()
        self.set_mode(pyte.modes.LNM)
        for number, row in enumerate(wrapped[first : first + lines]):
            self.cursor_position(number + 1, 1)
            self.draw(row)
        self.cursor_position(cursor - first + 1, 1)

    def style_of(self, text: str) -> str:
        """Return the colour in which a text stands on the screen."""
        for y, row in enumerate(self.display):
            if text in row:
                return str(self.buffer[y][row.index(text)].fg)
        raise AssertionError(f"{text!r} is not on the screen")


def _chars(row: Any, columns: int) -> list[str]:  # noqa: ANN401 - a row of pyte's
    return [row[column].data for column in range(columns)]
