"""Writes for people, to one stream: colour, the line in place, and nothing that could do harm.

Human text goes to stderr, data to stdout.  A stream that is no terminal gets whole lines
only, no carriage return and no escape sequence.  What comes from outside (messages of a
task's error, previews of arguments) has its control characters shown, not sent.  A stream
that breaks ends its own output and nothing else: a run does not die because nobody reads it.
"""

import os
import shutil
from collections.abc import Mapping
from typing import Final, Literal, TextIO, final

ColorChoice = Literal["auto", "always", "never"]
Style = Literal["plain", "good", "bad", "warn", "dim"]
Part = str | tuple[Style, str]  #: a piece of a line, in a style or plain

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


@final
class Terminal:
    """One output stream for people; used by one thread, the main one.

    Args:
        stream: Usually `sys.stderr`.
        color: What `--color` says.
        environment: The variables of the process.

    Attributes:
        is_mute: Whether nothing is written but errors.
    """

    __slots__ = ("_broken", "_colored", "_in_place", "_stream", "is_live", "is_mute")

    def __init__(self, stream: TextIO, *, color: ColorChoice = "auto", environment: Mapping[str, str]) -> None:
        self._stream = stream
        self.is_mute = False
        is_terminal = stream.isatty()
        self._colored = wants_color(color, is_terminal=is_terminal, environment=environment)
        #: Whether a line can be redrawn in place.
        self.is_live = is_terminal and environment.get("TERM") != "dumb"
        #: The line that stands in place now, to be cleared before the next whole line.
        self._in_place = ""
        #: Whether the stream refused a write; nothing is written any more.
        self._broken = False

    def line(self, *parts: Part) -> None:
        """Write one line, its parts each a text or a style with a text."""
        if not self.is_mute:
            self._line(*parts)

    def _line(self, *parts: Part) -> None:
        self._write(self._cleared() + "".join(self._painted(part) for part in parts) + "\n")

    def error(self, error: BaseException | str) -> None:
        """Write what is wrong: its first line after "procq: error:", the others as they are."""
        first, *more = str(error).splitlines()
        self._line(("bad", "procq: error:"), f" {first}")
        for line in more:
            self._line(line)

    def in_place(self, text: str) -> None:
        """Show `text` in the last line of the terminal, instead of what stood there.

        Cut to the width of the terminal, since a wrapped line cannot be redrawn.
        """
        assert self.is_live, "a stream that is no terminal gets whole lines only"
        shown = printable(text)[: shutil.get_terminal_size().columns - 1]
        if shown != self._in_place:
            self._write(self._cleared() + shown)
            self._in_place = shown

    def clear(self) -> None:
        """Take away the line in place."""
        if self._in_place:
            self._write(self._cleared())

    def _cleared(self) -> str:
        """Return what takes away the line in place, and forget it."""
        was, self._in_place = self._in_place, ""
        return "\r\x1b[K" if was else ""

    def _painted(self, part: Part) -> str:
        """Return a part as it is sent."""
        if isinstance(part, str):
            return printable(part)
        style, text = part
        code = _SGR[style] if self._colored else ""
        return f"\x1b[{code}m{printable(text)}\x1b[0m" if code else printable(text)

    def _write(self, text: str) -> None:
        """Send text at once, unless the stream is gone."""
        if self._broken:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the file object itself was closed
            self._broken = True


def standard_error(color: ColorChoice = "auto") -> Terminal:
    """Return the terminal for human text of this process."""
    import sys  # noqa: PLC0415 - looked up at the call: tests and callers may replace sys.stderr

    return Terminal(sys.stderr, color=color, environment=os.environ)
