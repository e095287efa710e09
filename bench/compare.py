# Compares procq with other pools on the same work; prints a Markdown table.
#
#   python bench/compare.py                                         everything, with every peer that is installed
#   python bench/compare.py --reps 1 --only start --peers futures   a first try
#
# README.md beside this file says how it measures.  Linux only: it reads /proc.
import argparse
import signal
import sys
import time
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # so that all say `bench.x`, this script and every worker

from bench import machine  # noqa: E402
from bench.alone import TABLES  # noqa: E402
from bench.limits import LIMITS  # noqa: E402
from bench.peers import BARE, OURS, PEERS  # noqa: E402
from bench.runner import Plan, keep, read_lines, run_all  # noqa: E402
from bench.table import markdown, write_between_marks  # noqa: E402
from bench.workloads import RUNS  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python bench/compare.py",
        description="Compare procq with other pools on the same work; prints a Markdown table.",
        epilog=f"Workloads: {', '.join(RUNS)}.  Peers: {', '.join(sorted(set(PEERS) - {OURS}))}.",
    )
    peers = [name for name in PEERS if name != OURS]
    parser.add_argument("--reps", type=at_least_one, default=5, help="runs of each workload and subject (default 5)")
    parser.add_argument("--only", type=some_of(RUNS), default=list(RUNS), help="workloads, with commas (default all)")
    parser.add_argument("--peers", type=some_of(peers), default=peers, help="peers, with commas (default all)")
    alone = parser.add_mutually_exclusive_group()
    for name, table in TABLES.items():
        alone.add_argument(
            f"--{name}", dest="alone", action="store_const", const=name, help=f"instead: {table.told}, procq alone"
        )
    parser.add_argument("--json", type=Path, help="write each single run to this file as a line of JSON")
    parser.add_argument("--load", type=Path, help="run nothing; read such a file")
    parser.add_argument("--markdown", type=Path, help="put the table between the two marks in this file, too")
    parser.add_argument("--picture", type=Path, help="draw a picture into this file (.svg, .png; needs matplotlib)")
    parser.add_argument(
        "--others", type=float, default=0.1, help="share of the machine that others may take (default 0.1)"
    )
    parser.add_argument("--tries", type=at_least_one, default=3, help="times a disturbed run is tried (default 3)")
    parser.add_argument(
        "--patience", type=float, default=20, help="longest wait for quiet before a run, s (default 20)"
    )
    parser.add_argument(
        "--long", type=float, default=20, help="a subject whose run takes longer gets no second one, s (default 20)"
    )
    options = parser.parse_args()
    if options.alone is not None and (options.load or options.picture):
        parser.error(f"--{options.alone} has its own table and no picture")
    return options


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 or more")
    return number


def some_of(names: Collection[str]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        for name in text.split(","):
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r}: must be of {', '.join(names)}")
        return text.split(",")

    return chosen


# What is run: procq, the peers that are installed, and the bare limit where there is one.
def plan(options: argparse.Namespace) -> Plan:
    if options.alone is not None:
        subjects_by_workload = {name: [OURS] for name in TABLES[options.alone].workloads}
    else:
        present = [OURS, *(name for name in options.peers if PEERS[name].version() is not None)]
        subjects_by_workload = {name: [*present, *([BARE] if name in LIMITS else [])] for name in options.only}
    return Plan(subjects_by_workload, options.reps, options.others, options.tries, options.patience, options.long)


# What the figures are of, as lines of Markdown.
def facts(options: argparse.Namespace) -> list[str]:
    versions = {} if options.alone is not None else {PEERS[name].title: PEERS[name].version() for name in options.peers}
    named = [f"{title} {number}" for title, number in versions.items() if number]
    missing = [title for title, number in versions.items() if number is None]
    lines = [f"{machine.describe()}, procq {version(OURS)}, {time.strftime('%Y-%m-%d')}; medians of {options.reps}."]
    if named:
        lines.append(f"Versions: {', '.join(named)}.")
    if missing:
        lines.append(f"Not installed, so left out: {', '.join(missing)}.")
    return lines


def main() -> None:
    options = arguments()
    if options.load is None:
        machine.adopt_orphans()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended then, too
        told = facts(options)
        lines = keep(run_all(plan(options)), options.json, told)
    else:
        told, lines = read_lines(options.load)
    alone = None if options.alone is None else TABLES[options.alone]
    table = "\n".join(markdown(lines, options.others, told) if alone is None else alone.table(lines, told))
    print(table)
    if options.markdown is not None:
        write_between_marks(options.markdown, table)
    if options.picture is not None:
        from bench.picture import draw  # noqa: PLC0415 - matplotlib is of the extra

        draw(lines, told, options.picture)


if __name__ == "__main__":
    main()
