"""Writes for people, to one stream: colour, the lines in place, and nothing that could do harm.

Human text goes to stderr, data to stdout.  A stream that is no terminal gets whole lines
only, no carriage return and no escape sequence.  What comes from outside (messages of a
task's error, previews of arguments) has its control characters shown, not sent.  A stream
that breaks ends its own output and nothing else: a run does not die because nobody reads it.
"""

import os
import shutil
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TextIO, final

ColorChoice = Literal["auto", "always", "never"]
Style = Literal["plain", "good", "bad", "warn", "dim"]
Part = str | tuple[Style, str]  #: a piece of a line, in a style or plain
Line = Sequence[Part]

#: Clear to the end of the line, and to that of the screen; the second from the beginning of the line.
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END: Final = "\x1b[J"
_CLEAR: Final = f"\r{_TO_END}"
#: SGR parameters.  Colour only repeats what the words say.
_SGR: Final[Mapping[Style, str]] = {"plain": "", "good": "32", "bad": "1;31", "warn": "33", "dim": "2"}


def wants_color(choice: ColorChoice, *, is_terminal: bool, environment: Mapping[str, str]) -> bool:
    """Return whether to colour: the flag, then NO_COLOR, then the forcing variables, then the terminal.

    Args:
        choice: What `--color` says.
        is_terminal: Whether that very stream is a terminal.
        environment: The variables of the process.
    """
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    if any(environment.get(name, "0") not in {"", "0"} for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return is_terminal and environment.get("TERM") != "dumb"


def printable(text: str) -> str:
    """Show control characters instead of sending them, so that no task's error moves the cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _up(lines: int) -> str:
    """Return what moves the cursor up."""
    return f"\x1b[{lines}A"


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes; it has no control characters."""
    return len(text) if text.isascii() else sum(map(_columns_of_char, text))


def _columns_of_char(char: str) -> int:
    """Return 2 for the wide characters of East Asia and for emoji, 0 for what is set upon the one before."""
    if unicodedata.east_asian_width(char) in "WF":
        return 2
    return 0 if unicodedata.category(char) in {"Mn", "Me"} else 1


def cut(text: str, columns: int) -> str:
    """Return as much of the beginning of a text as fits into so many columns."""
    if text.isascii():
        return text[:columns]
    for position, char in enumerate(text):
        columns -= _columns_of_char(char)
        if columns < 0:
            return text[:position]
    return text


@final
class Terminal:
    """One output stream for people; used by one thread, the main one.

    On a terminal some lines can stand in place: they are drawn again and again, and whole lines scroll above them.
    The cursor rests in an empty line just above them.  So what others write to the terminal meanwhile, a task say,
    stands where it belongs, and drawing needs to know nothing of what the terminal did to the lines below: it
    draws from the cursor downwards, also after the terminal has been made narrower and has wrapped them.

    Args:
        stream: Usually `sys.stderr`.
        color: What `--color` says.
        environment: The variables of the process.
        ascii_only: Whether nothing but ASCII may be in lines in place, whatever the stream could encode.

    Attributes:
        is_mute: Whether nothing is written but errors.
    """

    __slots__ = (
        "_broken", "_colored", "_drawn", "_drawn_for", "_encoding", "_lines", "_size", "_stream", "is_live", "is_mute",
    )  # fmt: skip

    def __init__(
        self,
        stream: TextIO,
        *,
        color: ColorChoice = "auto",
        environment: Mapping[str, str],
        ascii_only: bool = False,
    ) -> None:
        self._stream = stream
        self.is_mute = False
        is_terminal = stream.isatty()
        self._colored = wants_color(color, is_terminal=is_terminal, environment=environment)
        #: Whether lines can be redrawn in place.
        self.is_live = is_terminal and environment.get("TERM") != "dumb"
        #: In which lines in place are encoded, as far as that can be.
        self._encoding = "ascii" if ascii_only else (stream.encoding or "ascii")
        #: The lines that stand in place now, what was sent for them, and for which size of the terminal.
        self._lines: Sequence[Line] = ()
        self._drawn = ""
        self._size = self._drawn_for = (0, 0)
        #: Whether the stream refused a write; nothing is written any more.
        self._broken = False

    @property
    def is_unicode(self) -> bool:
        """Whether lines in place may have any character."""
        return self._encoding.lower().replace("-", "") in {"utf8", "utf8sig"}

    def size(self) -> tuple[int, int]:
        """Return how many columns and lines the terminal has now."""
        try:
            columns, lines = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):  # no terminal, or no file at all
            columns = lines = 0
        told = shutil.get_terminal_size() if columns <= 0 or lines <= 0 else os.terminal_size((columns, lines))
        return columns if columns > 0 else told.columns, lines if lines > 0 else told.lines

    def line(self, *parts: Part) -> None:
        """Write one line, its parts each a text or a style with a text; above those in place."""
        if not self.is_mute:
            self._line(*parts)

    def _line(self, *parts: Part) -> None:
        whole = "".join(self._painted(part) for part in parts)
        cleared, self._drawn = (_CLEAR if self._drawn else ""), self._drawing(self._lines)
        self._write(f"{cleared}{whole}\n{self._drawn}")

    def error(self, error: BaseException | str) -> None:
        """Write what is wrong: its first line after "procq: error:", the others as they are."""
        first, *more = str(error).splitlines()
        self._line(("bad", "procq: error:"), f" {first}")
        for line in more:
            self._line(line)

    def in_place(self, lines: Sequence[Line]) -> None:
        """Show lines at the end of what was written, instead of those that stood there.

        They are cut to what fits: a line that wraps could not be redrawn, nor could one that has scrolled away.
        """
        assert self.is_live, "a stream that is no terminal gets whole lines only"
        drawn = self._drawing(lines)
        if drawn != self._drawn or self._size != self._drawn_for:
            self._write(drawn or _CLEAR)
        self._lines, self._drawn = lines, drawn

    def clear(self) -> None:
        """Take away the lines in place."""
        if self._drawn:
            self._write(_CLEAR)
        self._lines, self._drawn = (), ""

    def _drawing(self, lines: Sequence[Line]) -> str:
        """Return what draws lines below the cursor and comes back to it; empty if there is no room for any."""
        self._drawn_for, self._size = self._size, self.size()
        columns, rows = self._size
        shown = [self._fitted(line, columns - 1) for line in lines[: rows - 1]]
        if not shown:
            return ""
        # From the cursor on, as something may stand before it.
        below = f"{_TO_END_OF_LINE}\n".join(["", *shown])
        return f"{below}{_TO_END}{_up(len(shown))}\r"

    def _fitted(self, line: Line, columns: int) -> str:
        """Return a line as it is sent, cut to so many columns."""
        return "".join(self._fitted_parts(line, columns))

    def _fitted_parts(self, line: Line, columns: int) -> Iterator[str]:
        for part in line:
            whole = self._encodable(printable(part if isinstance(part, str) else part[1]))
            kept = cut(whole, columns)
            yield self._painted(kept if isinstance(part, str) else (part[0], kept))
            columns -= columns_of(kept)
            if len(kept) < len(whole):
                return

    def _encodable(self, text: str) -> str:
        """Return a text with escapes in place of what the stream cannot encode, which count for what they take."""
        if text.isascii() or self.is_unicode:
            return text
        return text.encode(self._encoding, "backslashreplace").decode(self._encoding)

    def _painted(self, part: Part) -> str:
        """Return a part as it is sent."""
        if isinstance(part, str):
            return printable(part)
        style, text = part
        code = _SGR[style] if self._colored else ""
        return f"\x1b[{code}m{printable(text)}\x1b[0m" if code and text else printable(text)

    def _write(self, text: str) -> None:
        """Send text at once, unless the stream is gone."""
        if self._broken:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the file object itself was closed
            self._broken = True


def standard_error(color: ColorChoice = "auto", *, ascii_only: bool = False) -> Terminal:
    """Return the terminal for human text of this process."""
    import sys  # noqa: PLC0415 - looked up at the call: tests and callers may replace sys.stderr

    return Terminal(sys.stderr, color=color, environment=os.environ, ascii_only=ascii_only)
