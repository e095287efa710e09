"""Passes the events of one queue on to several takers, since a queue tells one listener.

Knows who wants which kinds; what they do with an event is their own affair.
"""

from collections.abc import Iterable
from typing import Any

from procq.errors import UsageError
from procq.events import OPT_IN, Event, Listener, as_listener


def join(options: dict[str, Any], take: Listener, kinds: Iterable[str] = ()) -> None:
    """Have events told to one more taker, beside those that `options` name already.

    Args:
        options: Parameters of a `Queue`, of which `on_event` is changed.  One that the queue would refuse stays
            as it is, for the queue to refuse it.
        take: Called with each event, before the takers that were there already.
        kinds: Opt-in kinds that it wants to be told of as well.
    """
    wanted = frozenset(kinds)
    others = options.get("on_event")
    if others is None:
        options["on_event"] = take, wanted
        return
    try:
        other, other_wants = as_listener(others)
    except UsageError:
        return
    first, second = _choosy(take, wanted, wanted | other_wants), _choosy(other, other_wants, wanted | other_wants)

    def tell(event: Event) -> None:
        first(event)
        second(event)

    options["on_event"] = tell, wanted | other_wants


def _choosy(take: Listener, wanted: frozenset[str], told: frozenset[str]) -> Listener:
    """Return a taker that is not bothered with opt-in kinds that only others want."""
    unwanted = told - wanted
    if not unwanted:
        return take
    assert unwanted <= frozenset(OPT_IN), "all else is told to everybody"
    return lambda event: None if event["ev"] in unwanted else take(event)
