"""Runs the command line as people do: as a process, its streams in pipes or on a terminal."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, final

from tests.support.screen import Screen

ROOT = Path(__file__).parents[2]
#: Far more than any command here takes; a hung one fails its test, not the session.
LIMIT_S = 20


class Finished(NamedTuple):
    """A command that ended."""

    code: int  #: its exit code, or minus the signal that ended it
    out: str
    err: str


def child_environment() -> dict[str, str]:
    """Return the environment for a command: this tree's procq, and nothing that colours."""
    hidden = {"NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm", "COLUMNS": "200"}


def python(cwd: Path, *arguments: str, **environment: str) -> Finished:
    """Run this interpreter in a folder, its streams in pipes, to its end."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=child_environment() | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@final
class Terminal:
    """A command on a pseudo-terminal of its own."""

    def __init__(
        self,
        cwd: Path,
        *arguments: str,
        before: Callable[[], object] | None = None,
        size: tuple[int, int] = (200, 50),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(*size)
        # Or the kernel drops, just after Ctrl-C, what the command is already answering to it.
        modes = termios.tcgetattr(slave)
        modes[3] |= termios.NOFLSH
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        self.text = ""

        def enter() -> None:
            # The child's own session, with the terminal as its controlling one: Ctrl-C reaches it.
            os.login_tty(slave)
            if before is not None:
                before()

        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=cwd,
            env=child_environment() | dict(environment or {}),
            preexec_fn=enter,  # noqa: PLW1509 - this process has no threads yet
            pass_fds=[slave],
        )
        os.close(slave)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Stop the command for a moment, and read all that it has sent until then."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        while self._read(time.monotonic()):
            pass
        yield
        self.process.send_signal(signal.SIGCONT)

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def wait_for(self, text: str, *, times: int = 1) -> None:
        """Read until a text has come, so many times."""
        deadline = time.monotonic() + LIMIT_S
        while self.text.count(text) < times:
            assert self._read(deadline), f"{text!r} did not come {times} times, but:\n{self.text[-2000:]}"

    def end(self) -> int:
        """Read to the end, and return how the process ended: the code, or minus the signal."""
        deadline = time.monotonic() + LIMIT_S
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Read what is there; False when the terminal is closed, or the time is up."""
        ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has the other end open any more
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    @property
    def said(self) -> list[str]:
        """What stays of what procq said: without the tasks' own output, and what was redrawn in place."""
        screen = Screen(200, 50)
        # The terminal itself shows the key as ^C.
        screen.feed(self.text.replace("^C", ""))
        lines = [row.strip() for row in screen.all_rows]
        return [line for line in lines if line and not line.startswith("<")]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)
