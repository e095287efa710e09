"""Which queues live in this process, and what a fork makes of them (contract C7, G4).

A forked child has a copy of every queue, and none of the threads and workers.  So each is told, and
refuses whatever would use them.  Knows of a queue only what `Member` says.

Touched without a lock: a `WeakSet` is added to by whoever makes a queue, and read as a program or
a forked child, which has one thread, begins or ends.
"""

import os
import weakref
from typing import Final, Protocol


class Member(Protocol):
    """What has to be told."""

    def mark_forked(self) -> None:
        """This process is a forked child: what was known of workers and threads is not so here."""


#: Every live member of this process.
_LIVE: "Final[weakref.WeakSet[Member]]" = weakref.WeakSet()


def register(member: Member) -> None:
    """Have a member told if it finds itself in a forked child."""
    if not _LIVE:
        _hook_fork()
    _LIVE.add(member)


def live() -> list[Member]:
    """Return the members that live in this process."""
    return list(_LIVE)


def _hook_fork() -> None:
    """Have every forked child tell its members, once a process."""
    if not hasattr(_hook_fork, "done"):
        os.register_at_fork(after_in_child=_tell_members)
        _hook_fork.done = True  # type: ignore[attr-defined]  # register_at_fork cannot be undone or asked


def _tell_members() -> None:
    for member in _LIVE:
        member.mark_forked()
