"""What a task was when the supervisor before this one ended (contract L2).

Instants are of this engine's clock: who read them from somewhere has turned them into that.
"""

from typing import TYPE_CHECKING, NamedTuple

from procq.core.states import Status
from procq.core.task import CapturedRun, Cause, Run
from procq.parcel import Payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from procq.outcome import Ended


class Past(NamedTuple):
    """The state of one task, beside what it was submitted with."""

    seq: int  #: its place in the order of submission
    submitted_at: float
    status: Status  #: a terminal one, or READY for any that is open
    is_forgotten: bool = False  #: whether it is there only because others depend on it
    fence: int = 0  #: how often it was started
    failures: int = 0  #: attempts charged
    first_started_at: float | None = None
    started_at: float | None = None  #: of the attempt that ran; None: none did
    due: float | None = None  #: the next attempt does not start before; None: it may
    ended_at: float = 0.0  #: of a task that has ended
    cause: Cause | None = None  #: of one that is CANCELLED
    origin: str | None = None  #: likewise
    cut_by: "Sequence[int]" = ()  #: likewise: the numbers of the dependencies whose ends have cancelled it
    history: "Sequence[tuple[int, Ended]]" = ()  #: attempts that ended without success
    ran: Run | CapturedRun | None = None  #: the one that succeeded
    value: Payload | None = None  #: its result
