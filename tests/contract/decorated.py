"""A task function, apart from the others: who imports it imports what makes one."""

import procq


@procq.task(max_attempts=2, priority=3)
def decorated(value: int) -> int:
    return value + 1
