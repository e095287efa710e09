"""Every error of procq: its place in the tree, its message, and its way through a pipe (contract M)."""

import concurrent.futures
import copy
import inspect
import pickle

import pytest

from procq import errors
from procq.errors import ProcqError
from procq.units import UnitError

CLASSES = [
    value
    for value in (*(getattr(errors, name) for name in dir(errors)), UnitError)
    if inspect.isclass(value) and issubclass(value, ProcqError) and not value.__name__.startswith("_")
]

#: Arguments for those whose constructor takes their parts.
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "DuplicateTaskError": ("a", "another task"),
    "UnknownTaskError": ("a",),
    "UnknownDependencyError": ("a", ("b", "c"), "the closest id is 'd'"),
    "UnknownHandlerError": ("resize", ("crop", "turn")),
    "CycleError": (("a", "b"),),
    "NotReservedError": ("a", "ready"),
    "JobsFileError": ("no file jobs.py",),
    "RemoteError": ("shop.OutOfStock", "nothing left", "Traceback ..."),
    "RemoteTraceback": ("Traceback ...",),
    "DependencyFailed": ("a", "was cancelled"),
}

#: Classes of the standard library that are inherited too (contract M), and the branch of the tree.
BASES: dict[str, tuple[type[BaseException], ...]] = {
    "UsageError": (ProcqError,),
    "DuplicateTaskError": (errors.UsageError, ValueError),
    "UnknownTaskError": (errors.UsageError, KeyError),
    "UnknownDependencyError": (errors.UsageError, KeyError),
    "UnknownHandlerError": (errors.UsageError, KeyError),
    "CycleError": (errors.UsageError, ValueError),
    "PayloadError": (errors.UsageError, TypeError),
    "QueueClosedError": (errors.UsageError, RuntimeError),
    "QueueFullError": (errors.UsageError,),
    "NotReservedError": (errors.UsageError,),
    "JobsFileError": (errors.UsageError,),
    "UnitError": (errors.UsageError, ValueError),
    "TaskError": (ProcqError,),
    "AttemptTimeout": (errors.TaskError, TimeoutError),
    "WorkerCrashed": (errors.TaskError,),
    "MemoryLimitExceeded": (errors.TaskError, MemoryError),
    "WorkerLost": (errors.TaskError,),
    "RemoteError": (errors.TaskError,),
    "RemoteTraceback": (ProcqError,),
    "DependencyFailed": (errors.TaskError,),
    "TaskCancelled": (errors.TaskError, concurrent.futures.CancelledError),
    "TaskExpired": (errors.TaskCancelled,),
    "EngineError": (ProcqError,),
    "WorkerStartError": (errors.EngineError,),
    "InternalError": (ProcqError,),
    "ProcqError": (Exception,),
}


def made(cls: type[ProcqError]) -> ProcqError:
    """Return an error as procq raises it."""
    return cls(*ARGUMENTS.get(cls.__name__, ("something is wrong",)))


@pytest.mark.parametrize("cls", CLASSES)
def test_M_every_error_has_its_place_in_the_tree(cls: type[ProcqError]) -> None:
    for base in BASES[cls.__name__]:
        assert issubclass(cls, base)


def test_M_every_name_of_the_contract_is_there() -> None:
    assert {cls.__name__ for cls in CLASSES} >= BASES.keys()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("cls", CLASSES)
def test_M_every_error_survives_pickling_with_its_parts(cls: type[ProcqError], protocol: int) -> None:
    error = made(cls)
    error.add_note("seen on a Monday")
    error.extra = ["anything"]  # type: ignore[attr-defined]  # a user may put something there

    back = pickle.loads(pickle.dumps(error, protocol))

    assert type(back) is cls
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_M_every_error_can_be_copied(cls: type[ProcqError]) -> None:
    error = made(cls)

    assert vars(copy.copy(error)) == vars(copy.deepcopy(error)) == vars(error)
    assert str(copy.copy(error)) == str(error)


def test_M_a_subclass_with_a_constructor_of_its_own_survives_too() -> None:
    error = pickle.loads(pickle.dumps(OwnError(first=1, second="two")))

    assert (error.first, error.second, str(error)) == (1, "two", "1 and two")


class OwnError(ProcqError):
    """What a user may derive."""

    def __init__(self, *, first: int, second: str) -> None:
        self.first = first
        self.second = second
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.DuplicateTaskError("a"), "id 'a' is already used; give the new task another id"),
        (
            errors.DuplicateTaskError("a", "another task of type 't'"),
            "id 'a' is already used by another task of type 't'; give the new task another id",
        ),
        (
            errors.UnknownTaskError("a"),
            "no task 'a': it was never submitted, or it finished and was forgotten (see retention)",
        ),
        (errors.UnknownTaskError("a", "it was never enqueued"), "no task 'a': it was never enqueued"),
        (
            errors.UnknownDependencyError("a", ("b", "c")),
            "a needs 'b', 'c', which no task has; submit it first, or in the same submit_many call",
        ),
        (
            errors.UnknownDependencyError("a", ("b",), "the closest id is 'd'"),
            "a needs 'b', which no task has; the closest id is 'd'",
        ),
        (errors.UnknownHandlerError("resize"), "no handler for type 'resize'; known are none"),
        (
            errors.UnknownHandlerError("resize", ("crop", "turn")),
            "no handler for type 'resize'; known are 'crop', 'turn'",
        ),
        (errors.CycleError(("a",)), "dependency cycle: a -> a; remove one of these dependencies"),
        (errors.CycleError(("a", "b")), "dependency cycle: a -> b -> a; remove one of these dependencies"),
        (errors.NotReservedError("a", "ready"), "task 'a' is not reserved but ready; reserve() it first"),
        (errors.RemoteError("shop.OutOfStock", "nothing left"), "shop.OutOfStock: nothing left"),
        (errors.RemoteTraceback("File ...\n"), "\nFile ..."),
        (errors.DependencyFailed("a"), "dependency 'a' failed"),
        (errors.DependencyFailed("a", "was cancelled"), "dependency 'a' was cancelled"),
        (errors.JobsFileError("no file jobs.py"), "no file jobs.py"),
        (
            errors.JobsFileError("no entry", where="jobs.py", hint="define jobs()"),
            "no entry\n  jobs.py\n  hint: define jobs()",
        ),
    ],
)
def test_M_messages_are_built_of_the_parts(error: ProcqError, text: str) -> None:
    assert str(error) == text


def test_M_a_task_error_names_its_task_and_attempt() -> None:
    error = errors.WorkerCrashed("gone").located("a", 3)

    back = pickle.loads(pickle.dumps(error))

    assert (back.task_id, back.attempt) == ("a", 3)
    assert (errors.WorkerCrashed("gone").task_id, errors.WorkerCrashed("gone").attempt) == (None, None)
