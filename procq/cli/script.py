"""What a script that calls `procq.main(jobs)` has as its entry.

A function of the script itself lives in `__main__`, which is another module in a worker.  So the
script is loaded once more, by path, as `procq run` loads it, and the function of the same name
there is the entry: its tasks travel by reference, and both ways to run the file do the same.
"""

import sys
from pathlib import Path

from procq import inside, loader
from procq.cli.entry import Entry, Target, find_entry
from procq.errors import JobsFileError


def refuse_while_loading() -> None:
    """Refuse to run a script where it is only being loaded, or inside a worker.

    Raises:
        JobsFileError: Always there: a run that starts runs would never end.
    """
    shown = loader.loading()
    if shown is not None:
        raise JobsFileError(
            f"procq.main() was reached while {shown} was being loaded",
            hint='put it under if __name__ == "__main__"',
        )
    if loader.in_worker() or inside.current().id is not None:
        raise JobsFileError(
            "procq.main() was reached inside a worker",
            hint='put it under if __name__ == "__main__"; inside a task open a Queue, or return more tasks',
        )


def script_entry(jobs: Entry) -> Entry:
    """Return the entry to call.

    Args:
        jobs: What the script gave to `procq.main`.

    Raises:
        JobsFileError: It is no function, or the script cannot be loaded as a jobs file.
    """
    name = getattr(jobs, "__name__", "")
    file = getattr(sys.modules["__main__"], "__file__", None)
    if getattr(jobs, "__module__", None) != "__main__" or file is None or not _is_top_level(jobs, name):
        # A lambda, a local function, a notebook: it stays as it is, and travels by value.
        if not callable(jobs):
            raise JobsFileError(f"procq.main() takes a function that returns tasks, not {jobs!r}")
        return jobs
    target = Target(name=str(Path(file)), function=name)
    return find_entry(loader.load(file), target)


def _is_top_level(jobs: Entry, name: str) -> bool:
    """Return whether the script's own global of that name is this function."""
    return getattr(sys.modules["__main__"], name, None) is jobs
