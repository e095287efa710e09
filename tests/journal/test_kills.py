"""Whatever is killed, whenever: the next supervisor goes on with all that was accepted (contract L1, L2).

`JOURNAL_KILLS=300 pytest tests/journal/test_kills.py` kills that often.
"""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_TASKS: Final = 40
_KILLS: Final = int(os.environ.get("JOURNAL_KILLS", "5"))
#: From before the interpreter has begun until after all is done.
_LATEST_KILL_S: Final = 0.7

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(60 + 3 * _KILLS)]


class Witness:
    """What the outside knows: what the program was told, and the traces of tasks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.accepted: set[str] = set()
        self.attempts: dict[str, str] = {}
        #: how much of the log there was when a supervisor had gone, and which tasks it had told as ended
        self.marks: list[tuple[int, frozenset[str]]] = []

    @property
    def log(self) -> bytes:
        path = self.folder / "log"
        return path.read_bytes() if path.exists() else b""

    def live(self, kill_after_s: float | None) -> bool:
        """Run the program, and kill it then; return whether it came to its end."""
        arguments = [str(self.folder / "journal"), str(self.folder / "log"), str(_TASKS)]
        program = subprocess.Popen(
            [sys.executable, str(_ROOT / "tests/support/journal_run.py"), *arguments],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, errors = program.communicate(timeout=kill_after_s)
        except subprocess.TimeoutExpired:
            program.kill()
            out, errors = program.communicate()  # until its workers have gone, too: they hold the pipe
        assert errors == b""
        for line in out.decode().splitlines():
            kind, *about = line.split()
            if kind == "accepted":
                self.accepted.add(about[0])
            elif kind == "ended":
                assert self.attempts.setdefault(about[0], about[1]) == about[1], f"{about[0]} has run again"
        self.marks.append((len(self.log), frozenset(self.attempts)))
        return program.returncode == 0


def test_L2_killed_at_any_moment_nothing_accepted_is_lost_and_nothing_ended_runs_again(
    tmp_path: Path, seeded: random.Random
) -> None:
    kills = late = lives = 0
    while kills < _KILLS:
        lives += 1
        folder = tmp_path / str(lives)
        folder.mkdir()
        witness = Witness(folder)
        while not witness.live(seeded.uniform(0, _LATEST_KILL_S) if kills < _KILLS else None):
            kills += 1
        late += _check(witness)
    # An attempt may be on record and its worker not have begun when both die, never the other way round.
    assert late <= 2 * kills


def _check(witness: Witness) -> int:
    """Compare what was told with the traces; return how many attempts are on record that have left none."""
    assert witness.accepted <= witness.attempts.keys()
    begun = Counter(line.split()[1].decode() for line in witness.log.splitlines() if line.startswith(b"begin"))
    unseen = {name: int(told) - begun[name] for name, told in witness.attempts.items()}
    assert all(number >= 0 for number in unseen.values()), f"attempts that were not charged: {unseen}"
    for size, ended in witness.marks:
        again = {line.split()[1].decode() for line in witness.log[size:].splitlines() if line.startswith(b"begin")}
        assert not again & ended
    return sum(unseen.values())


@pytest.fixture
def seeded(request: pytest.FixtureRequest) -> random.Random:
    seed = request.config.getoption("randomly_seed", default=1)
    return random.Random(str(seed))
