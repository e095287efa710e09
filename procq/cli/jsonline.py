"""An event as a line of JSON.

A busy run tells of some ten thousand events a second, nearly all of five kinds.  For those a template
is filled in, which takes a third of the time of `json.dumps`; it must say exactly the same.
"""

import json
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Final

Event = Mapping[str, Any]

_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode


def line_of(event: Event) -> str:
    """Return the line, with its end; nothing but ASCII."""
    fields, fill = _TEMPLATES.get(event["ev"], _OTHER)
    if len(event) == fields:  # else it has one that the template does not know
        text = fill(event)
        if text:
            return text
    return _dumps(event) + "\n"


def _head(event: Event) -> str:
    """Return what every event begins with, and its id."""
    return (
        f'{{"v":1,"seq":{event["seq"]},"t":{event["t"]!r},"run":"{event["run"]}","ev":"{event["ev"]}",'
        f'"id":{quoted(event["id"])},'
    )


def _submitted(event: Event) -> str:
    if event["depends_on"] or event["run_at"] is not None or event["args"] is None:
        return ""
    return (
        f'{_head(event)}"type":{quoted(event["type"])},"priority":{event["priority"]:d},'
        f'"group":{quoted(event["group"])},"depends_on":[],"run_at":null,'
        f'"max_attempts":{event["max_attempts"]},"args":{quoted(event["args"])}}}\n'
    )


def _ready(event: Event) -> str:
    return f'{_head(event)}"reason":null}}\n' if event["reason"] is None else ""


def _started(event: Event) -> str:
    if event["worker"] is None or event["pid"] is None:
        return ""
    return f'{_head(event)}"attempt":{event["attempt"]},"worker":{event["worker"]},"pid":{event["pid"]}}}\n'


def _attempt_ended(event: Event) -> str:
    if event["outcome"] != "ok":
        return ""
    peak_rss = event["peak_rss"]
    return (
        f'{_head(event)}"attempt":{event["attempt"]},"outcome":"ok","run_s":{event["run_s"]!r},'
        f'"cpu_s":{event["cpu_s"]!r},"peak_rss":{"null" if peak_rss is None else peak_rss},"exit_code":null,'
        f'"signal":null,"error":null,"result_bytes":{event["result_bytes"]}}}\n'
    )


def _task_ended(event: Event) -> str:
    if event["cause"] is not None or event["origin"] is not None:
        return ""
    return f'{_head(event)}"status":"{event["status"]}","attempts":{event["attempts"]},"cause":null,"origin":null}}\n'


#: How many fields an event of that kind has, and what makes the line, or an empty text of one that is out of
#: the ordinary.
_TEMPLATES: Final[Mapping[str, tuple[int, Callable[[Event], str]]]] = {
    "task.submitted": (13, _submitted),
    "task.ready": (7, _ready),
    "attempt.started": (9, _started),
    "attempt.ended": (15, _attempt_ended),
    "task.ended": (10, _task_ended),
}
_OTHER: Final = (0, _ready)
