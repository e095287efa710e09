"""Task functions that write to the standard streams in every way there is.

Workers import this module: nothing heavy here.
"""

import os
import sys
import time

from tests.support.process_tasks import die_by, sleep_forever

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal  # the C module has no stubs
else:
    import _signal as signal  # without the enums


def write(stdout: str = "", stderr: str = "", value: object = None) -> object:
    """Write without a line's end, so that it stays in the buffers."""
    sys.stdout.write(stdout)
    sys.stderr.write(stderr)
    return value


def write_raw(data: bytes, fd: int = 1) -> None:
    while data:
        data = data[os.write(fd, data) :]


def write_in_every_way() -> None:
    import ctypes  # noqa: PLC0415 - heavy
    import subprocess  # noqa: PLC0415

    print("python")  # noqa: T201 - captured
    sys.stdout.flush()
    subprocess.run(["echo", "child"], check=True)
    os.write(1, b"descriptor\n")
    ctypes.CDLL(None).puts(b"C")
    os.write(2, b"error\n")


def write_and(end: str) -> None:
    """Write, and end as told."""
    sys.stdout.write(f"before {end}\n")
    sys.stdout.flush()
    os.write(2, b"last words\n")
    if end == "exit":
        os._exit(3)
    if end == "signal":
        die_by(signal.SIGKILL)
    if end == "error":
        raise ValueError(end)
    sleep_forever()


def write_when_asked_to_stop() -> None:
    try:
        sleep_forever()
    finally:
        sys.stdout.write("tidied up")


def write_attempt() -> None:
    from procq.inside import current  # noqa: PLC0415

    sys.stdout.write(f"attempt {current().attempt}")
    if current().attempt != 3:
        raise ValueError


def meddle(how: str) -> None:
    """Do to the standard streams what tasks do, and do not put it right."""
    import io  # noqa: PLC0415

    sys.stdout.write("before ")
    if how == "replace":
        sys.stdout = io.StringIO()
        sys.stderr = io.StringIO()
    elif how == "none":
        sys.stdout = sys.stderr = None
    elif how == "dup2":
        sys.stdout.flush()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.close(null)
    elif how == "close":
        sys.stdout.flush()
        os.close(1)
        os.close(2)
    elif how == "close streams":
        sys.stdout.close()
        sys.stderr.close()
    elif how == "detach":
        sys.stdout.flush()
        sys.stdout.detach()  # type: ignore[union-attr]
        sys.stderr.detach()  # type: ignore[union-attr]
    elif how == "redirect":
        import contextlib  # noqa: PLC0415

        with contextlib.redirect_stdout(io.StringIO()):
            sys.stdout.write("elsewhere")
        sys.stdout.write("after")


def leave_a_writer() -> int:
    """Leave a program behind that writes without end."""
    import subprocess  # noqa: PLC0415

    program = subprocess.Popen(["yes", "left behind"])
    time.sleep(0.05)  # noqa: TID251 - until it writes
    return program.pid


def flood() -> None:
    import subprocess  # noqa: PLC0415

    subprocess.run(["yes", "and on"], check=True)


def flood_holding_the_interpreter() -> None:
    """Write much from C code that holds the interpreter lock, so that no thread of the worker could read it."""
    import ctypes  # noqa: PLC0415

    library = ctypes.PyDLL(None)
    for number in range(20_000):
        library.puts(b"line %d" % number)


def fork_and_write() -> None:
    pid = os.fork()
    if not pid:
        os.write(1, b"child ")
        os._exit(0)
    os.waitpid(pid, 0)
    sys.stdout.write("parent")


def close_all_descriptors() -> None:
    os.write(1, b"closing")
    os.closerange(3, 256)
