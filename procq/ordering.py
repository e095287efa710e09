"""In which order things come that need each other: each after what it needs (contract E1).

Knows nothing of what it orders: drafts of a submit, or specs of a jobs file.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from procq.errors import CycleError

H = TypeVar("H", bound=Hashable)


def needs_first(roots: Iterable[H], needs: Callable[[H], Sequence[H]], label: Callable[[H], str]) -> list[H]:
    """Return things and all that they need, each once and after what it needs, and else as they were given.

    Args:
        roots: The things.
        needs: Says what one of them needs.
        label: Names one, for the error.

    Raises:
        CycleError: They need each other in a circle.
    """
    ordered: dict[H, None] = {}
    for root in roots:
        # Depth first with a stack of its own: a chain may be longer than Python's.
        path: dict[H, None] = {}
        stack: list[tuple[H, bool]] = [(root, False)]
        while stack:
            one, needs_are_done = stack.pop()
            if needs_are_done:
                del path[one]
                ordered[one] = None
            elif one in path:
                around = list(path)
                raise CycleError(tuple(map(label, around[around.index(one) :])))
            elif one not in ordered:
                path[one] = None
                stack.append((one, True))
                stack += [(need, False) for need in reversed(needs(one)) if need not in ordered]
    return list(ordered)
