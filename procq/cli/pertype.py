"""What the flags say of the tasks of one type: options by `--set`, and `--limit`.

A type is known once a jobs file has a task function or a handler of it, or lists a task of it.  One that
is named by a flag and by nothing else is most likely misspelt, so the flag is refused: before anything
starts where the entry returns a list, else when its generator has ended.
"""

import builtins
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any, Final, final

from procq.cli import elsewhere
from procq.cli.entry import Entry
from procq.cli.exits import CommandLineError
from procq.core.capacity import Capacity
from procq.core.states import Priority
from procq.errors import UsageError
from procq.retry import exponential
from procq.spec import Options, TaskFunction


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CommandLineError("expected a whole number") from None


def _priority(text: str) -> int:
    return Priority[text.upper()] if text.upper() in Priority.__members__ else _whole(text)


def _maybe(text: str) -> str | None:
    """Read a duration or a size, which the option itself checks, or none."""
    return None if text == "none" else text


def _backoff(text: str) -> object:
    """Read a wait, waits with commas between them, or "exponential"."""
    if text == "exponential":
        return exponential()
    return text.split(",") if "," in text else text


def _failures(text: str) -> list[object]:
    """Read outcomes and names of built-in errors, with commas between them; the option checks which."""
    return [getattr(builtins, name, name) for name in text.split(",") if name]


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise CommandLineError("expected a time such as 2026-11-29T06:00") from None


#: How the value of each option is read that may be set for all tasks of a type; what is one task's own is none.
_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "backoff": _backoff,
    "cpus": _whole,
    "delay": _maybe,
    "expires": _maybe,
    "group": str,
    "max_attempts": _whole,
    "memory": _maybe,
    "never_retry": _failures,
    "priority": _priority,
    "retry_for": _maybe,
    "retry_on": _failures,
    "run_at": _instant,
    "run_if": str,
    "timeout": _maybe,
}

#: How a run gets more of what an option asks for.
_MORE: Final[Mapping[str, str]] = {
    "cpus": 'a run has as many as it has workers (-j N), or as @procq.jobs(resources={"cpu": N}) says',
    "memory": 'a run has all of this machine, or as much as @procq.jobs(resources={"memory": SIZE}) says',
}


def _read(text: str) -> tuple[str, str, object]:
    """Read TYPE.OPTION=VALUE.

    Raises:
        CommandLineError: It is something else.
    """
    left, equals, value = text.partition("=")
    type_name, _, option = left.rpartition(".")
    if not equals or not type_name:
        hint = elsewhere.for_set(type_name, option) or "such as --set clean.timeout=5m"
        raise CommandLineError(f"--set {text}: expected TYPE.OPTION=VALUE", hint=hint)
    read = _READERS.get(option)
    if read is None:
        hint = elsewhere.for_set(type_name, option) or _those("options", _READERS, option)
        raise CommandLineError(f"--set {text}: no such option", hint=hint)
    try:
        made = read(value)
        Options({option: made})
    except UsageError as error:
        raise CommandLineError(f"--set {text}: {error}") from None
    return type_name, option, made


def _those(what: str, known: Collection[str], wrong: str) -> str:
    """Say which there are, and first of all which of them may be meant."""
    return f"{_meant(wrong, known)}{what} are {', '.join(known) or 'none'}"


def _meant(wrong: str, known: Collection[str]) -> str:
    """Ask whether the closest of some names was meant, before more is said; an empty text if none is close."""
    close = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean `{close[0]}`? " if close else ""


def types_in(entry: Entry, queue_options: Mapping[str, object]) -> set[str]:
    """Return the types that a jobs file can be seen to have: its task functions, those of its modules, handlers."""
    handlers = queue_options.get("handlers")
    types = set(handlers) if isinstance(handlers, Mapping) else set()
    values: list[Any] = list(getattr(entry, "__globals__", {}).values())
    for value in list(values):
        if isinstance(value, ModuleType):
            values += vars(value).values()
    types.update(value.type for value in values if isinstance(value, TaskFunction))
    return types


@final
class PerType:
    """What was said of single types, and whether there are such.

    Args:
        sets: What `--set` was given, each TYPE.OPTION=VALUE.
        limits: What `--limit` was given.

    Raises:
        CommandLineError: One of them cannot be.
    """

    __slots__ = ("_flags", "_known", "_typed", "options")

    def __init__(self, sets: Sequence[str] = (), limits: Mapping[str, int] | None = None) -> None:
        #: options by type
        self.options: dict[str, dict[str, object]] = {}
        #: the types that are known
        self._known: set[str] = set()
        #: how each type was named that is not
        self._flags = {name: f"--limit {name}={number}" for name, number in (limits or {}).items()}
        #: how each option of a type was typed
        self._typed: dict[tuple[str, str], str] = {}
        for text in sets:
            type_name, option, value = _read(text)
            before = self._typed.get((type_name, option))
            if before is not None:
                raise CommandLineError(
                    f"--set {type_name}.{option} is given twice: {before} and {text}", hint="leave one of them out"
                )
            self._typed[type_name, option] = text
            self.options.setdefault(type_name, {})[option] = value
            self._flags[type_name] = f"--set {text}"
        for type_name, options in self.options.items():
            try:
                Options(options)
            except UsageError as error:
                raise CommandLineError(f"--set {type_name}: {error}") from None

    def check_places(self, groups: Collection[str], capacity: Capacity | None) -> None:
        """Refuse what would keep the tasks of a type from ever starting.

        Args:
            groups: The groups of workers that the run has.
            capacity: What its tasks may take together; None: that is not counted.

        Raises:
            CommandLineError: With the flag, and what to do.
        """
        for (type_name, option), text in self._typed.items():
            given = Options({option: self.options[type_name][option]})
            if given.group not in groups:
                raise CommandLineError(
                    f"--set {text}: there is no group {given.group!r}; this run has {', '.join(map(repr, groups))}",
                    hint=f"{_meant(given.group, groups)}--group {given.group}=N gives it N workers",
                )
            excess = "" if capacity is None else capacity.excess(given.demand)
            if excess:
                raise CommandLineError(
                    f"--set {text}: such a task asks for {excess}, so it could never start", hint=_MORE[option]
                )

    def check_needs(self, type_name: str, label: str, *, has_any: bool) -> None:
        """Refuse to make a task wait for a failure that cannot come.

        Args:
            type_name: Its type.
            label: The task, for the message.
            has_any: Whether it depends on any other task.

        Raises:
            CommandLineError: It would never start.
        """
        if not has_any and self.options.get(type_name, {}).get("run_if") == "failure":
            text = self._typed[type_name, "run_if"]
            raise CommandLineError(
                f"--set {text}: {label} depends on nothing that could fail, so it could never start",
                hint="it is for types whose tasks all depend on others; leave it out",
            )

    def know(self, types: Iterable[str]) -> None:
        """Note that there are such types."""
        for name in types:
            if name not in self._known:
                self._known.add(name)
                self._flags.pop(name, None)

    def doubt(self) -> str:
        """Say which flag names a type that is not known; an empty text if none does."""
        if not self._flags:
            return ""
        name, flag = next(iter(self._flags.items()))
        return f"{flag}: no task has the type {name!r}"

    def check(self) -> None:
        """Refuse a flag that names a type of which there is no task.

        Raises:
            CommandLineError: With the types that there are.
        """
        what = self.doubt()
        if what:
            raise CommandLineError(what, hint=self.hint())

    def hint(self) -> str:
        """Say which types there are, and which of them may be meant."""
        return _those("types", sorted(self._known), next(iter(self._flags)))
