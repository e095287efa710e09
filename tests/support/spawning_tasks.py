"""Task functions that spawn others, and that cheat about it; workers import this, so nothing heavy here."""

import os
import sys
from zlib import crc32

from tests.support.process_tasks import sleep_forever, worker_end

import procq
from procq.inside import Spawn


def note(path: str, text: str) -> None:
    with open(path, "a", encoding="ascii") as file:  # noqa: PTH123 - pathlib is heavy
        file.write(f"{text}\n")


def report(number: int, size: int, path: str) -> list[bytes]:
    """Make a report on the first task of the queue, which spawns a note with a big argument."""
    from procq.engine.local import wire  # noqa: PLC0415
    from procq.engine.spawning import packed  # noqa: PLC0415
    from procq.outcome import Ended  # noqa: PLC0415
    from procq.payload import dumps  # noqa: PLC0415

    # Twice: something big that the worker was to read when it died is charged, for it may have died of that.
    spec = procq.task(note_length, max_attempts=2, backoff=0).spec(path, bytes(size))
    ended = Ended("ok", 0.0, 1.0, value=dumps("spawned"), spawned=packed(Spawn([spec])))
    frame = wire.pack_ended(0, number, ended)
    return [frame] if isinstance(frame, bytes) else [bytes(piece) for piece in frame]


def note_length(path: str, data: bytes) -> None:
    note(path, str(len(data)))


def report_and_die(size: int, path: str) -> None:
    """Say all there is to say, and die in that very instant."""
    worker_end()._stream.sendall(b"".join(report(1, size, path)))
    os._exit(3)


def report_half_and_die(size: int, path: str) -> str:
    """Die amid the report; the second attempt makes it whole."""
    if procq.current().attempt == 1:
        data = b"".join(report(1, size, path))
        worker_end()._stream.sendall(data[: len(data) // 2])
        os._exit(3)
    return procq.Spawn([procq.task(note_length).spec(path, bytes(size))], value="spawned")


def report_twice(path: str) -> None:
    worker_end()._stream.sendall(2 * b"".join(report(1, 10, path)))
    sleep_forever()


def send_listing(text: bytes, calls: list[bytes]) -> None:
    """Report a success with a list of tasks that nobody has checked, and die."""
    from procq.engine.local import wire  # noqa: PLC0415
    from procq.outcome import Ended, Spawned  # noqa: PLC0415

    frame = wire.pack_ended(0, 1, Ended("ok", 0.0, 1.0, value=b"N.", spawned=Spawned(text, calls)))
    worker_end()._stream.sendall(frame if isinstance(frame, bytes) else b"".join(frame))
    os._exit(3)


def fan(number: int) -> int:
    """Spawn so many tasks, and one that says how many they were."""
    one = procq.task(identity)
    specs = [one.spec(position) for position in range(number)]
    return procq.Spawn([procq.task(count, id="count").spec([spec.out for spec in specs])], value=number)


def identity(number: int) -> int:
    return number


def count(numbers: list[int]) -> int:
    assert numbers == list(range(len(numbers)))
    return len(numbers)


def spawn_array(size: int) -> None:
    return procq.Spawn([procq.task(fill, id="filled").spec(bytearray(size))])


def fill(data: bytearray) -> bytearray:
    """Write into what came, and give it back."""
    data[:] = b"x" * len(data)
    return data


def too_many(number: int) -> None:
    """Spawn tasks whose descriptions alone are more than can be told at once."""
    one = procq.task(identity)
    return procq.Spawn(one.using(id=f"{position}-{'x' * 100_000}").spec(position) for position in range(number))


def spawn_under_used_id(task_id: str, path: str, text: str, group: str = "default") -> str:
    """Spawn a note in the place of a task."""
    specs = [procq.task(note, id=task_id, group=group).spec(path, text)]
    return procq.Spawn(specs, value="spawned", on_conflict="replace")


@procq.task(max_attempts=20, backoff=0)
def spawn_in_a_race(number: int, *, is_mortal: bool) -> int:
    """Spawn two tasks whose ids others like it use too; if told so, one attempt in some has its worker die soon."""
    drawn = crc32(f"{number} {procq.current().attempt}".encode())
    if is_mortal and drawn % 6 == 0:
        from threading import Timer  # noqa: PLC0415 - few workers need it

        Timer(drawn % 5 / 1000, os._exit, (3,)).start()
    one = procq.task(identity)
    specs = [one.using(id=f"shared-{(number + more) % 7}").spec(number) for more in range(2)]
    return procq.Spawn(specs, value=number, on_conflict="replace")


def loaded() -> list[str]:
    """Return which of procq's modules the worker has imported."""
    return sorted(name for name in sys.modules if name.startswith("procq"))


@procq.task(max_attempts=20, backoff=0)
def hardy_tree(name: str, depth: int) -> int:
    """Spawn two of itself, down to a depth of 0; one attempt in some has its worker die, now or a little later."""
    from threading import Timer  # noqa: PLC0415 - heavy

    drawn = crc32(f"{name} {procq.current().attempt}".encode())
    if drawn % 6 == 0:
        Timer(drawn % 5 / 1000, os._exit, (3,)).start()
    specs = [hardy_tree.using(id=f"{name}{side}").spec(f"{name}{side}", depth - 1) for side in "lr" if depth]
    return procq.Spawn(specs, value=depth)
