"""A program that keeps its queue in a journal and may be killed at any moment: `journal_run.py JOURNAL LOG TASKS`.

Says on standard output what it was told: "accepted ID" once `submit` has returned, "ended ID" once a result is there.
"""

import os
import sys
from itertools import pairwise

from tests.support.journal_tasks import ID, passed, work

from procq import Queue, TaskSpec, as_completed


def main(journal: str, log: str, number: int) -> None:
    # Captured, so that nothing is sent ahead: then it is known at each moment what has begun.
    with Queue(2, journal=journal, durability="process", capture=True) as queue:
        specs: list[TaskSpec[int]] = []
        for at in range(number):
            name = ID.format(at)
            specs.append(work.using(id=name).spec(log, name, fails=at % 3))
        for first, _ in list(pairwise(specs[:8])):
            specs.append(passed.using(id=f"after-{first.options.id}").spec(log, f"after-{first.options.id}", first.out))
        handles = []
        for spec in specs:
            handles.append(queue.submit(spec))
            os.write(1, f"accepted {spec.options.id}\n".encode())
        for handle in as_completed(handles):
            handle.result()
            os.write(1, f"ended {handle.id} {handle.attempts}\n".encode())
    os.write(1, b"all\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
