"""Reads an events file: one JSON object a line, as `procq run --events` and a state directory have it.

Knows lines, not what the events mean.  A run that was killed leaves half a line at the end, and a disk
that was full half of one amid others: what cannot be read is passed over, and whoever reads the events
sees by the gap in their `seq` that something is missing.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_events(path: str | Path) -> Iterator[dict[str, object]]:
    """Yield the events of a file, oldest first, as they are read.

    Args:
        path: The file; it may still be written.

    Raises:
        OSError: It cannot be read.
    """
    with Path(path).open("rb") as file:
        for line in file:
            event = event_in(line)
            if event is not None:
                yield event


def event_in(line: bytes) -> dict[str, Any] | None:
    """Return the event that a line is; None if it can't be read."""
    try:
        event = json.loads(line)
    except ValueError:  # no JSON, or no UTF-8: cut off
        return None
    return event if isinstance(event, dict) else None
