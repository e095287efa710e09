"""Tasks on shared memory, and around it.  Workers import this module: nothing heavy here."""

import os

from tests.support.arrays import Array, ends
from tests.support.process_tasks import worker_end

import procq

#: Descriptors that a worker may have open, in some tests.
FEW = 64


def allow_few_descriptors() -> None:
    import resource  # noqa: PLC0415 - for this alone

    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, FEW))


def ends_and_descriptors(given: Array) -> tuple[tuple[int, int, int], int]:
    return ends(given), len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - pathlib is heavy


def count(*given: object) -> int:
    return len(given)


def share_again(given: Array) -> tuple[int, int, int]:
    with procq.Queue(workers=1) as queue:
        return queue.submit(ends, procq.share(given).out).result()


def fetch(key: int) -> int:
    found: int = worker_end().fetch(key)
    return found
