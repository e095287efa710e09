"""Task functions that log.

Workers import this module, which must not import `logging`: each function does so itself.
"""

import os
import sys
from types import ModuleType

from tests.support.process_tasks import announce, pass_gate

from procq.inside import Terminated

NAME = "procq-test"


def library() -> ModuleType:
    import logging  # noqa: PLC0415 - not before a task runs

    return logging


def say(text: str, *args: object, level: int = 30, **options: object) -> bool:
    """Log something; return whether `logging` was loaded before."""
    loaded = "logging" in sys.modules
    library().getLogger(NAME).log(level, text, *args, **options)
    return loaded


def say_twice(text: str) -> None:
    """Log in both attempts; the first one fails."""
    from procq.inside import current  # noqa: PLC0415

    say(text)
    if current().attempt == 1:
        raise ValueError


def say_all() -> None:
    """Log what a record can hold."""
    try:
        dict[str, str]()["missing"]
    except KeyError:
        extra = {
            "words": "two",
            "count": 3,
            "part": 0.5,
            "flag": True,
            "none": None,
            "made": object(),
            "long": 10**5000,
        }
        library().getLogger(f"{NAME}.child").exception("%s of %d", "one", 7, extra=extra, stack_info=True)


def say_badly() -> str:
    library().getLogger(NAME).warning("%d", "no number")
    return "went on"


def enabled(*names: str) -> list[bool]:
    """Whether each of some loggers would take a record of level INFO."""
    return [library().getLogger(name).isEnabledFor(20) for name in names]


def configure_and_say(path: str) -> None:
    logging = library()
    logging.basicConfig(filename=path, format="here: %(message)s")
    say("both ways")
    logging.shutdown()


def configure_by_dictionary_and_say() -> None:
    """Throw away every handler there is, as programs do that set up their logging whole."""
    import logging.config  # noqa: PLC0415

    library()
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "root": {"handlers": []}})
    say("after all was set up")


def count_from(start: int, number: int) -> None:
    logger = library().getLogger(NAME)
    for value in range(start, start + number):
        logger.warning("%d", value)


def announce_and_flood(path: str) -> None:
    announce(path)
    flood()


def flood() -> None:
    logger = library().getLogger(NAME)
    while True:
        logger.warning("and on")


def flood_in_a_thread() -> str:
    import threading  # noqa: PLC0415

    threading.Thread(target=flood, daemon=True).start()
    return "left"


def flood_until_told() -> None:
    """Tidy up when asked to stop."""
    try:
        flood()
    except Terminated:
        say("tidied up")
        raise


def fork_and_say() -> int:
    """Log in a forked child, to whose standard error nobody listens; return its exit status."""
    say("parent")
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            count_from(0, 3)
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def leave_a_thread(path: str) -> None:
    """Leave a thread behind that logs once the gate is opened."""
    import threading  # noqa: PLC0415

    def late() -> None:
        pass_gate(path)
        say("late")

    threading.Thread(target=late, name="late").start()
    here = threading.Thread(target=say, args=("in time",))
    here.start()
    here.join()


def open_and_wait(path: str) -> None:
    """Let the thread that was left behind log, and wait until it has."""
    import threading  # noqa: PLC0415

    (thread,) = [thread for thread in threading.enumerate() if thread.name == "late"]
    say("own")
    with open(f"{path}.open", "wb"):  # noqa: PTH123 - pathlib is heavy
        pass
    thread.join()


def look_and_import() -> tuple[str, bool]:
    """Look for `logging` before it is imported; return what its loader is, and whether that is untouched."""
    import importlib.util  # noqa: PLC0415

    found = importlib.util.find_spec("logging")
    assert found is not None
    assert "logging" not in sys.modules
    say("after a look")
    loader = library().__loader__
    return type(loader).__name__, "exec_module" not in vars(loader)


def close_everything_and_say() -> None:
    library()
    os.closerange(3, 256)
    say("nowhere to go")
