"""What attempts wrote to their standard streams: kept in files of the run's directory, and shown.

A queue tells of it when the attempt has ended, and keeps the last 64 KiB of each stream; where more came
the text says how much is missing.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

_STREAMS: Final = ("stdout", "stderr")
#: Of a file's name, which may have 255 bytes on most systems, for what stands for the task's id.
_NAME_CHARS: Final = 180
#: Lines that are shown of a failed attempt; `procq logs` has the rest.
SHOWN_LINES: Final = 20


class Wrote(Protocol):
    """What is read of an attempt that has ended."""

    @property
    def attempt(self) -> int:
        """Its number."""

    @property
    def stdout(self) -> str | None:
        """What it wrote there."""

    @property
    def stderr(self) -> str | None:
        """Likewise."""


class Written(NamedTuple):
    """One stream of one attempt, as a file has it."""

    attempt: int
    stream: str
    text: str


def keep(directory: Path, task_id: str, attempts: Sequence[Wrote]) -> None:
    """Write what the attempts of a task wrote, those that wrote something.

    Raises:
        OSError: It cannot be written.
    """
    for record in attempts:
        for stream in _STREAMS:
            text = getattr(record, stream)
            if text:
                directory.mkdir(mode=0o700, exist_ok=True)
                # Added to, as an attempt that was not charged shares its number with the next.
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
                path = directory / f"{_file_name(task_id)}.{record.attempt}.{stream}"
                with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)


def read(directory: Path, task_id: str) -> list[Written]:
    """Return what the attempts of a task wrote, in their order."""
    name = _file_name(task_id)
    found = []
    try:
        paths = [path for path in directory.iterdir() if path.name.startswith(f"{name}.")]
    except OSError:
        return []
    for path in paths:
        attempt, _, stream = path.name.removeprefix(f"{name}.").partition(".")
        if attempt.isdecimal() and stream in _STREAMS:
            found.append(Written(int(attempt), stream, path.read_text(encoding="utf-8")))
    return sorted(found, key=lambda one: (one.attempt, one.stream != "stdout"))


def shown(attempts: Sequence[Wrote], *, most: int | None = None) -> Iterator[str]:
    """Yield the lines that attempts wrote, of each stream the last ones."""
    for record in attempts:
        for stream in _STREAMS:
            lines = (getattr(record, stream) or "").splitlines()
            if most is not None and len(lines) > most:
                yield f"[... {len(lines) - most} lines left out ...]"
                lines = lines[-most:]
            yield from lines


def _file_name(task_id: str) -> str:
    """Return what stands for an id in a file's name, another for each id."""
    name = quote(task_id, safe=" #=@,+", errors="surrogatepass").replace(".", "%2E")
    if len(name) <= _NAME_CHARS:
        return name
    return name[:_NAME_CHARS] + "~" + hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
