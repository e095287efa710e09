"""Says how an attempt ended that was asked to stop (contract D5, F3, G2); one rule for every engine."""

from typing import TYPE_CHECKING

from procq.engine.protocol import Attempt
from procq.outcome import Ended

if TYPE_CHECKING:
    from procq.outcome import Outcome


def judge_stopped(ended: Ended, reason: "Outcome", attempt: Attempt) -> None:
    """Correct the report on an attempt that was stopped for `reason`.

    A task cannot catch its way out of a timeout.  One that was to be stopped and finished first has
    won; for a timeout that is one that ended in time, though its report took longer.
    """
    timeout_s = attempt.timeout_s
    if reason == "timeout":
        has_ended = ended.outcome in {"ok", "error"} and not ended.terminated
        if has_ended and timeout_s is not None and ended.ended_at - ended.started_at <= timeout_s:
            return
        ended.outcome = "timeout"
        ended.message = f"ran longer than its timeout of {timeout_s:g} s"
        ended.error_types = ()
        ended.value = None
        ended.permanent = False
        ended.retry_after_s = None
    elif ended.outcome == "ok" and not ended.terminated:
        return
    elif reason == "cancelled" or ended.terminated or ended.outcome != "error":
        ended.outcome = reason
        ended.value = None
