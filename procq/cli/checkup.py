"""What `procq doctor` finds: what this machine gives procq, what it lacks, and whether a task runs.

Only looks, but for one task that it runs to see that one does.
"""

import importlib.metadata
import os
import platform
import re
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from procq.engine.local.machine import available_memory, cgroup_quota, total_memory, usable_cpus
from procq.units import format_bytes

#: Where the state of runs is kept.
_STATE: Final = ".procq"
#: Extras for those who work on procq itself.
_OWN_EXTRAS: Final = frozenset({"bench", "lint", "test"})
#: What a worker takes of the supervisor's descriptors, with room for the program's own (counted in 2026).
_PER_WORKER: Final = 4
_BESIDES: Final = 64
#: A task that has not run by then will not: a loaded machine takes a second.
_TRY_S: Final = 30.0
#: What the system may lack, and what does not work then.
_FEATURES: Final = (
    ("pidfd_open", "no worker can be started"),
    ("eventfd", "no worker can be started"),
    ("memfd_create", "share() does not work"),
    ("sched_getaffinity", "CPUs that are kept from this process are counted all the same"),
)


@dataclass(slots=True, kw_only=True)
class Findings:
    """What was found.

    Attributes:
        facts: By topic; plain values.
        lines: What people read: a topic and what is so.
        warnings: What will be missed.
        problems: Why procq cannot run.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def note(self, topic: str, text: str, **facts: object) -> None:
        """Note what is so."""
        self.lines.append((topic, text))
        self.facts[topic] = facts


def examine() -> Findings:
    """Look at everything."""
    found = Findings()
    for look in (_versions, _cpus, _memory, _descriptors, _state, _extras, _features, _try):
        look(found)
    return found


def _versions(found: Findings) -> None:
    try:
        procq = importlib.metadata.version("procq")
    except importlib.metadata.PackageNotFoundError:  # run from a source tree
        procq = None
    text = f"{procq or '(not installed)'} on {platform.python_implementation()} {platform.python_version()}, "
    text += f"{platform.system()} {platform.release()} {platform.machine()}"
    found.note(
        "procq", text,
        version=procq, python=platform.python_version(), implementation=platform.python_implementation(),
        system=platform.system(), release=platform.release(), machine=platform.machine(),
    )  # fmt: skip
    if sys.platform != "linux":
        found.warnings.append(f"{platform.system()}: best effort; procq is made for Linux")


def _cpus(found: Findings) -> None:
    quota = cgroup_quota()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    parts = [f"{usable_cpus()} usable, of {os.cpu_count()}"]
    if affinity is not None and affinity != os.cpu_count():
        parts.append(f"affinity: {affinity}")
    if quota is not None:
        parts.append(f"cgroup quota: {quota:g}")
    found.note("cpus", "; ".join(parts), usable=usable_cpus(), machine=os.cpu_count(), affinity=affinity, quota=quota)


def _memory(found: Findings) -> None:
    whole, limit, free = total_memory(cgroups="/nonexistent"), total_memory(), available_memory()
    parts = [f"{format_bytes(free)} available, of {format_bytes(limit)}"]
    if limit < whole:
        parts.append(f"cgroup limit; the machine has {format_bytes(whole)}")
    found.note("memory", "; ".join(parts), available=free, limit=limit if limit < whole else None, machine=whole)


def _descriptors(found: Findings) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_endless = soft == resource.RLIM_INFINITY
    enough = None if is_endless else max(0, (soft - _BESIDES) // _PER_WORKER)
    found.note(
        "descriptors",
        "no limit" if is_endless else f"{soft} at most, enough for {enough} workers",
        soft=None if is_endless else soft,
        hard=None if hard == resource.RLIM_INFINITY else hard,
        enough_for=enough,
    )
    if enough is not None and enough < usable_cpus():
        found.warnings.append(f"{soft} descriptors are few for {usable_cpus()} workers: ulimit -n {hard}")


def _state(found: Findings) -> None:
    path = Path(_STATE).absolute()
    exists = path.exists()
    writable = os.access(path if exists else path.parent, os.W_OK | os.X_OK) and (not exists or path.is_dir())
    state = ("there" if exists else "not there yet") + (", writable" if writable else ", not writable")
    found.note("state", f"{path}: {state}", path=str(path), exists=exists, writable=writable)
    if not writable:
        found.warnings.append(f"{path} cannot be written: runs here leave no record")


def _extras(found: Findings) -> None:
    present: dict[str, bool] = {}
    try:
        about = importlib.metadata.metadata("procq")
        wanted = importlib.metadata.requires("procq") or []
    except importlib.metadata.PackageNotFoundError:
        found.note("extras", "not known: procq is not installed", present={})
        return
    for extra in sorted(set(about.get_all("Provides-Extra") or []) - _OWN_EXTRAS):
        names = [line for line in wanted if re.search(rf"extra *== *['\"]{re.escape(extra)}['\"]", line)]
        present[extra] = all(_is_installed(re.split(r"[^\w.-]", line)[0]) for line in names)
    text = ", ".join(f"{extra} {'present' if there else 'missing'}" for extra, there in present.items())
    found.note("extras", text or "there are none", present=present)


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _features(found: Findings) -> None:
    missing = {name: instead for name, instead in _FEATURES if not hasattr(os, name)}
    text = "; ".join(f"{name}: {instead}" for name, instead in missing.items())
    found.note("lacks", text or "nothing", missing=sorted(missing))


def _try(found: Findings) -> None:
    from procq.queue import Queue  # noqa: PLC0415 - what is looked at first should be told if this fails

    began_at = time.monotonic()
    try:
        with Queue(workers=1) as queue:
            queue.submit(abs, -1).result(_TRY_S)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
        found.note("task", f"does not run: {type(error).__name__}: {error}", runs=False, seconds=None)
        found.problems.append(f"a task does not run: {type(error).__name__}: {error}")
        return
    took_s = time.monotonic() - began_at
    found.note(
        "task", f"runs; the first took {took_s * 1000:.0f} ms, with a worker to start", runs=True, seconds=took_s
    )
