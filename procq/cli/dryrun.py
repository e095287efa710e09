"""What `--dry-run` does: lists what would run, and why, and runs nothing.

The tasks go into a queue that is never started, so what a run would refuse before it starts anything
is refused here too: unknown names, cycles, arguments that cannot travel.  That costs memory for each.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

from procq.cli import preview
from procq.handle import Handle
from procq.spec import TaskSpec

if TYPE_CHECKING:
    from procq.cli.data import Output
    from procq.cli.intake import Intake

#: Types named in the closing line.
_TYPES_SHOWN: Final = 8


class UnreadError(Exception):
    """Nobody reads the list any more, so it need not be made; a generator may have no end."""


@final
class Listing:
    """The list of what would run: a line a task, of the reason, the id and the call, with tabs between them.

    Args:
        output: Gets each line.
    """

    __slots__ = ("_counts", "_output", "intake")

    def __init__(self, output: "Output") -> None:
        self._output = output
        self._counts: Counter[str] = Counter()
        #: what the tasks are submitted by, once it is known
        self.intake: Intake | None = None

    def accepted(self, handle: Handle[Any], spec: TaskSpec[Any]) -> None:
        """List a task.

        Raises:
            UnreadError: Nobody reads.
        """
        assert self.intake is not None, "it has just called this"
        self._counts[spec.type] += 1
        reason, task_id = ("new", handle.id) if self.intake.has_stable_id(spec) else ("no stable id", "-")
        self._output.line(f"{reason}\t{task_id}\t{preview.call(spec)}")
        if not self._output.is_open:
            raise UnreadError

    @property
    def total(self) -> int:
        """How many tasks are listed."""
        return self._counts.total()

    def closing_line(self) -> str:
        """Return "would run 5 tasks: 4 square, 1 total"."""
        parts = [f"{number} {name}" for name, number in self._counts.most_common(_TYPES_SHOWN)]
        rest = self.total - sum(number for _, number in self._counts.most_common(_TYPES_SHOWN))
        parts += [f"{rest} of other types"] if rest else []
        return f"would run {self.total} {'task' if self.total == 1 else 'tasks'}: {', '.join(parts)}"
