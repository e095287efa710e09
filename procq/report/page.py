"""Puts a report together, and writes it so that a reader finds the old file or the new one, never half of one.

The page may load and run nothing but what is in it: its policy names the one script and the one style
sheet by their digests, so that not even a text that got past `markup.safe` could run.
"""

import base64
import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from procq.report import sections
from procq.report.account import Account, Event
from procq.report.figures import figures_of
from procq.report.markup import safe
from procq.report.sections import Subject
from procq.report.track import as_json, note, track

_NAVIGATION: Final = (
    ("run", "Run"), ("failures", "Failures"), ("timeline", "Timeline"), ("types", "Types"), ("retries", "Retries"),
    ("resources", "Resources"), ("graph", "Graph"), ("attempts", "Attempts"),
)  # fmt: skip


def write(events: Iterable[Event], path: str | Path, *, about: Mapping[str, object] | None = None) -> None:
    """Write the report of a run to a file that only its owner may read; a file that is there is replaced.

    Args:
        events: Of the run, in order, as `docs/reference/events.md` has them; they may end anywhere.
        path: The file.
        about: What else is known of the run, as the `run.json` of a state directory has it.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    save(render(events, about=about), path)


def save(page: str, path: str | Path) -> None:
    """Write a page to a file that only its owner may read; a file that is there is replaced.

    Raises:
        OSError: It cannot be written; what was there is as it was.
    """
    target = Path(path)
    # In the same folder, or it could not be renamed; mkstemp gives it mode 0600.
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(page.encode("utf-8", "replace"))
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def render(events: Iterable[Event], *, about: Mapping[str, object] | None = None) -> str:
    """Return the report of a run as HTML.

    Args:
        events: Of the run, in order; they may end anywhere.
        about: What else is known of the run, as the `run.json` of a state directory has it.
    """
    account = Account(events)
    subject = Subject.of(account, figures_of(account), {} if about is None else about)
    body = "\n".join(
        (
            sections.verdict(subject),
            sections.failures(subject),
            sections.timeline(subject, note=note(subject)),
            sections.types(subject),
            sections.retries(subject),
            sections.resources(subject),
            sections.dependencies(subject),
            sections.everything(subject),
        )
    )
    return _shell(sections.title(subject), body, data=as_json(track(subject)))


def _shell(title: str, body: str, *, data: str) -> str:
    """Return the whole page around its sections."""
    style, script = _part("style.css"), _part("script.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    links = "".join(f'<li><a href="#{name}">{told}</a></li>' for name, told in _NAVIGATION)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{safe(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<nav aria-label="Sections"><b>procq</b><ul>{links}</ul></nav>
<main id="main">
{body}
</main>
<script type="application/json" id="track">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _part(name: str) -> str:
    """Return a file of this package."""
    return (files("procq.report") / name).read_text(encoding="utf-8")


def _digest(code: str) -> str:
    """Return how a policy names a text that may run or apply."""
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
