# Runs the measurements, each in a process of its own, and keeps a line of each run.
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from bench.machine import bury_orphans, wait_for_quiet, watched
from bench.peers import PEERS
from bench.workloads import Values

ROOT: Final = Path(__file__).parents[1]
#: A run that takes longer has hung.
RUN_LIMIT_S: Final = 180


# One run of one workload by one subject.
@dataclass(frozen=True, slots=True)
class Line:
    workload: str
    subject: str
    rep: int
    # Share of the machine that others took meanwhile; None where it cannot be known.
    others: float | None
    took_s: float
    values: Values = field(default_factory=dict)
    # Why there are no values: the subject has no means for this, or it failed.
    cannot: str | None = None
    failed: str | None = None

    def is_disturbed(self, limit: float) -> bool:
        return self.others is not None and self.others > limit

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def read_lines(path: Path) -> tuple[list[str], list[Line]]:
    found = [json.loads(text) for text in path.read_text().splitlines()]
    facts = [text for entry in found for text in entry.get("machine", ())]
    return facts, [Line(**entry) for entry in found if "machine" not in entry]


@dataclass(frozen=True, slots=True)
class Plan:
    # What is run, and who takes part in each.
    subjects_by_workload: Mapping[str, Sequence[str]]
    reps: int
    # Share of the machine that others may take.
    others: float
    # How often a disturbed run is tried at most, and the longest wait for quiet before each.
    tries: int
    patience_s: float
    # Whoever takes longer for one run gets no second one.
    long_s: float


def run_all(plan: Plan) -> Iterator[Line]:
    for workload, subjects in plan.subjects_by_workload.items():
        # Those that would only take time: they cannot, they failed, or they take very long.
        done: set[str] = set()
        for rep in range(plan.reps):
            for subject in subjects if rep % 2 == 0 else reversed(subjects):
                if subject in done:
                    continue
                for line in run_quietly(plan, workload, subject, rep):
                    yield line
                    if line.cannot is not None or line.failed is not None or line.took_s > plan.long_s:
                        done.add(subject)


# Runs until others disturb it little, a bounded number of times.
def run_quietly(plan: Plan, workload: str, subject: str, rep: int) -> Iterator[Line]:
    for _ in range(plan.tries):
        wait_for_quiet(plan.others, plan.patience_s)
        line = run_once(workload, subject, rep)
        yield line
        if not line.is_disturbed(plan.others) or line.took_s > plan.long_s or not line.values:
            return


def run_once(workload: str, subject: str, rep: int) -> Line:
    command = [sys.executable, "-m", "bench.measure", workload, subject]
    answer: dict[str, object]
    began_at = time.perf_counter()
    with watched() as others, own_folders() as environment:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_LIMIT_S, check=True, env=environment
            )
            answer = json.loads(done.stdout or '{"failed": "ended without an answer"}')
        except subprocess.TimeoutExpired:
            answer = {"failed": f"no answer within {RUN_LIMIT_S} s"}
        except subprocess.CalledProcessError as error:
            answer = {"failed": last_line(error.stderr)}
        finally:
            bury_orphans()
    took_s = time.perf_counter() - began_at
    return line_of(workload, subject, rep, answer, None if hides_cpu(subject) else round(others.share, 4), took_s)


def line_of(
    workload: str, subject: str, rep: int, answer: Mapping[str, object], others: float | None, took_s: float
) -> Line:
    values = {
        name: None if value is None else float(value)
        for name, value in answer.items()
        if value is None or isinstance(value, int | float)
    }
    cannot, failed = (answer.get(name) for name in ("cannot", "failed"))
    assert cannot is None or isinstance(cannot, str)
    assert failed is None or isinstance(failed, str)
    return Line(workload, subject, rep, others, round(took_s, 3), values, cannot, failed)


def hides_cpu(subject: str) -> bool:
    return subject in PEERS and not PEERS[subject].tells_cpu


def last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "died without a word"


# What a run writes goes into folders that are removed: peers leave sessions, logs and settings behind.
@contextmanager
def own_folders() -> Iterator[dict[str, str]]:
    # A short name, because ray puts sockets far below it; joblib keeps its own choice of a memory file system.
    folders = [tempfile.mkdtemp(prefix="bench-")]
    if os.access("/dev/shm", os.W_OK):
        folders.append(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))
    # Installed peers come with byte code; without this, procq run from its tree might be compiled at every start.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    try:
        yield inherited | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TMPDIR": folders[0],
            "DASK_CONFIG": folders[0],
            "RAY_TMPDIR": folders[0],
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "JOBLIB_TEMP_FOLDER": folders[-1],
        }
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def keep(lines: Iterable[Line], path: Path | None, machine: Sequence[str]) -> list[Line]:
    kept = []
    if path is not None:
        path.write_text(json.dumps({"machine": machine}) + "\n")
    for line in lines:
        kept.append(line)
        print(line.as_json(), file=sys.stderr, flush=True)
        if path is not None:
            with path.open("a") as file:
                print(line.as_json(), file=file)
    return kept
