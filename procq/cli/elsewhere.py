"""Where a thing is set that somebody has looked for in the wrong place: a flag that is none, or `--set`.

Knows names alone: of flags, of the options of a task, of the parameters of a queue; not what was given.
"""

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from procq.cli.settings import RunSettings
from procq.spec import OptionArguments

#: Options that are one task's own, so that no flag sets them.
OWN: Final = frozenset({"depends_on", "id", "type"})
#: Parameters of `Queue` that a flag sets in a way of its own.
_READ_APART: Final[Mapping[str, str]] = {
    "capture": "--output HOW",
    "deadline": "--deadline D|HH:MM",
    "groups": "--group NAME=N",
    "limits": "--limit TYPE=N",
    "policy": "--policy HOW",
    "workers": "--workers N",
}
#: Parameters of `Queue` that no flag sets: values that are hard to type, or of use to programs only.
WITHOUT_FLAG: Final = frozenset({
    "backoff", "breaker", "dead_letters", "durability", "engine", "handlers", "initargs", "initializer", "journal",
    "max_pending_bytes", "on_event", "resources", "retention", "start_timeout",
})  # fmt: skip
#: What others call it, and what has to be known of the difference.
_ELSEWHERE_CALLED: Final[Mapping[str, tuple[str, str]]] = {
    "max_retries": ("max_attempts", "it counts the first try too"),
    "retries": ("max_attempts", "it counts the first try too"),
}


def _flags() -> dict[str, str]:
    """Return the flags that have a long name, as they are typed, by that name and by the parameter that they set."""
    found = dict(_READ_APART)
    for setting in fields(RunSettings):
        for names, how in setting.metadata["flags"]:
            form = how.get("metavar") or "|".join(how.get("choices", ()))
            for name in names:
                if name.startswith("--"):
                    typed = f"{name} {form}".rstrip()
                    found.setdefault(_plain(name), typed)
                    if setting.metadata["queue"]:
                        found.setdefault(setting.metadata["queue"], typed)
    return found


def _plain(name: str) -> str:
    """Return a name as Python has it."""
    return name.lstrip("-").replace("-", "_")


def for_flag(wrong: str) -> str:
    """Say what somebody may have meant by a flag that is none; an empty text if that cannot be guessed.

    Args:
        wrong: As it was typed, without a value.
    """
    name = _plain(wrong)
    known = _flags()
    if name in _ELSEWHERE_CALLED:
        meant, difference = _ELSEWHERE_CALLED[name]
        return f"did you mean `--{meant.replace('_', '-')}`? {difference}"
    if name in known:
        return f"did you mean `{known[name].split()[0]}`?"
    place = _of_tasks(name) or _of_queue(name)
    if place:
        return place
    others = OptionArguments.__optional_keys__ | WITHOUT_FLAG
    close = difflib.get_close_matches(name, [*known, *sorted(others - known.keys())], n=1)
    if not close:
        return ""
    if close[0] in known:
        return f"did you mean `{known[close[0]].split()[0]}`?"
    return _of_tasks(close[0]) or _of_queue(close[0])


def _of_tasks(name: str) -> str:
    """Say where an option of tasks is set that is no flag of its own."""
    if name in OWN:
        return f"{name} is one task's own: my_task.using({name}=...)"
    if name in OptionArguments.__optional_keys__:
        for_all = f", or @procq.jobs({name}=...) for all" if name in WITHOUT_FLAG else ""
        return f"{name} is an option of tasks: --set TYPE.{name}=VALUE, or my_task.using({name}=...){for_all}"
    return ""


def _of_queue(name: str) -> str:
    """Say where a parameter of the queue is set that no flag sets."""
    return f"{name} has no flag: @procq.jobs({name}=...)" if name in WITHOUT_FLAG else ""


def for_set(type_name: str, wrong: str) -> str:
    """Say where that is set which `--set` does not; an empty text if there is no such thing.

    Args:
        type_name: The type that was given with it; empty if there was none.
        wrong: What was given as the option.
    """
    name = _plain(wrong)
    shown = type_name or "TYPE"
    if name in _ELSEWHERE_CALLED:
        meant, difference = _ELSEWHERE_CALLED[name]
        return f"did you mean `--set {shown}.{meant}`? {difference}"
    if name in OWN:
        return f"{name} is one task's own: {type_name or 'my_task'}.using({name}=...)"
    if name in OptionArguments.__optional_keys__:
        return f"such as --set {shown}.{name}=VALUE"
    if name in WITHOUT_FLAG:
        return f"{name} is not of single tasks but of the whole run: @procq.jobs({name}=...)"
    flag = _flags().get(name)
    if flag is None:
        return ""
    if type_name and name in {"limit", "limits"}:
        return f"the flag for that is --limit {type_name}=N"
    return f"{name} is not of single tasks but of the whole run: {flag}"
