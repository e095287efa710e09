"""Writes data to standard output, for what does nothing else: whoever leaves early (`| head`) ends it quietly."""

import os
import sys
from collections.abc import Iterable
from typing import Self, final

from procq.cli.terminal import printable


@final
class Output:
    """Standard output; a context manager that writes out what is left at its end."""

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        #: Whether somebody reads.
        self.is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()

    def line(self, text: str) -> None:
        """Write a line for people, and for tools that go by lines and tabs; other control characters are shown."""
        self.text("\t".join(map(printable, text.split("\t"))) + "\n")

    def text(self, text: str) -> None:
        """Write a text as it is."""
        if self.is_open:
            try:
                sys.stdout.write(text)
            except BrokenPipeError:
                self._leave()

    def _flush(self) -> None:
        """Send what Python has held back."""
        if self.is_open:
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                self._leave()

    def _leave(self) -> None:
        """Write no more, and have nothing left that would fail again when the interpreter ends."""
        self.is_open = False
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def write_lines(lines: Iterable[str]) -> None:
    """Write lines."""
    with Output() as output:
        for line in lines:
            output.line(line)


def write_text(text: str) -> None:
    """Write a text as it is."""
    write_texts([text])


def write_texts(texts: Iterable[str]) -> None:
    """Write texts as they are, and make no more of them once nobody reads."""
    with Output() as output:
        for text in texts:
            output.text(text)
            if not output.is_open:
                return
