"""Task functions for the tests of a queue's surroundings: orphans, big payloads, threads, odd environments.

Workers import this module: nothing heavy here.
"""

import os
import sys
import time

from tests.support.process_tasks import announce, pass_gate, say, sleep_forever

# --- the interpreter ---


def interpreter() -> tuple[dict[str, object], list[str], dict[str, object]]:
    """Return what it was told by its command line or the environment."""
    return {name: getattr(sys.flags, name) for name in sys.flags.__match_args__}, sys.warnoptions, sys._xoptions


# --- starting ---


def wait_in_initializer(path: str) -> None:
    """Be a worker that is starting for ever."""
    announce(path)
    sleep_forever()


# --- sizes ---


def double(data: bytes) -> bytes:
    return data + data


# --- state of a process ---


def change_state(folder: str) -> int:
    os.chdir(folder)
    os.environ["PROCQ_TEST_STATE"] = "changed"
    return os.getpid()


def see_state() -> tuple[int, str, str | None]:
    return os.getpid(), os.getcwd(), os.environ.get("PROCQ_TEST_STATE")  # noqa: PTH109 - pathlib is heavy


def variables(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


# --- pools inside tasks ---


def square(number: int) -> int:
    return number * number


def sum_with_pool(method: str) -> int:
    import multiprocessing  # noqa: PLC0415
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        return sum(pool.map(square, range(10)))


# --- time ---


def say_number_and_instant(path: str, number: int) -> None:
    say(path, f"{number}:{time.monotonic()}")


# --- room ---


def pass_gate_with(path: str, _payload: bytes) -> None:
    pass_gate(path)
