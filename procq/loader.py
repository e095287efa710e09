"""Loads a jobs file by path under one stable module name, in supervisor and workers alike.

So the functions of a jobs file travel to workers by reference, as those of any importable
module do (by value a decorated function would drag its module's globals along).  The
supervisor calls `load`, sends `known()` to each worker, and the worker calls `install`: from
then on `import procq_jobs_etl` finds the same file there.  This module also marks entry
functions and chooses among them; it knows nothing of tasks, queues or the command line.

Workers import this module at start-up, so it imports only what an interpreter has loaded
anyway; the import machinery follows when a jobs file is really loaded.
"""

# pathlib would be one more import for every worker:
# ruff: noqa: PTH100, PTH109, PTH112, PTH113, PTH118, PTH119, PTH120, PTH122, PTH208

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import importlib.machinery
    import traceback
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any, Final, TypeVar, overload

    from procq.errors import JobsFileError

    F = TypeVar("F", bound=Callable[..., Any])

#: The attribute by which `jobs` marks a function; its value is the dict of `Queue` parameters.
_MARK: "Final" = "__procq_jobs__"
#: How many frames of the user's code an error shows; the last ones say most.
_FRAMES_SHOWN: "Final" = 5
_PACKAGE: "Final" = os.path.dirname(os.path.abspath(__file__))


class _Registry:
    """The jobs files of this process.  A process has one, as it has one `sys.modules`."""

    __slots__ = ("finder", "loading", "paths", "worker")

    def __init__(self) -> None:
        #: Absolute path of each jobs file by its module name.
        self.paths: dict[str, str] = {}
        #: What is being loaded right now, as the user wrote it; None otherwise.
        self.loading: str | None = None
        #: Whether this process is a worker: only workers call `install`.
        self.worker = False
        #: In `sys.meta_path` once a worker has called `install`.
        self.finder: _Finder | None = None


class _Finder:
    """Finds jobs files by their stable names; stands in `sys.meta_path` of a worker."""

    __slots__ = ("_paths",)

    def __init__(self, paths: "Mapping[str, str]") -> None:
        self._paths = paths

    def find_spec(
        self,
        name: str,
        path: "Sequence[str] | None" = None,  # noqa: ARG002 - the import system passes it
        target: "ModuleType | None" = None,  # noqa: ARG002
    ) -> "importlib.machinery.ModuleSpec | None":
        """Return how to load `name`, or None if it is no jobs file."""
        where = self._paths.get(name)
        return None if where is None else _spec_of(name, where)


_REGISTRY: "Final" = _Registry()


# --- both sides --------------------------------------------------------------------------------


def known() -> dict[str, str]:
    """Return the absolute path of each jobs file loaded here, by module name."""
    return dict(_REGISTRY.paths)


def install(paths: "Mapping[str, str]") -> None:
    """Make the supervisor's jobs files importable in this worker, each loaded when first needed.

    Args:
        paths: What `known()` returned in the supervisor.
    """
    _REGISTRY.worker = True
    _REGISTRY.paths.update(paths)
    if _REGISTRY.finder is None:
        _REGISTRY.finder = _Finder(_REGISTRY.paths)
        # In front: a dict look-up is cheaper than a search of sys.path that finds nothing.
        sys.meta_path.insert(0, _REGISTRY.finder)


def in_worker() -> bool:
    """Return whether this process is a worker."""
    return _REGISTRY.worker


def loading() -> str | None:
    """Return the name of the jobs file that is being loaded at this moment, or None."""
    return _REGISTRY.loading


def _spec_of(name: str, path: str) -> "importlib.machinery.ModuleSpec":
    """Describe to the import system how `name` comes from the file at `path`."""
    import importlib.machinery  # noqa: PLC0415
    import importlib.util  # noqa: PLC0415

    # The loader is named, so that a jobs file need not end in ".py".
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "only a missing loader gives None"
    return spec


# --- loading -----------------------------------------------------------------------------------


def load(path: str) -> "ModuleType":
    """Load a jobs file, or return it if it is loaded already.

    The file's directory becomes the first entry of `sys.path`, as for `python FILE`.  Runs the
    file's top-level code; a KeyboardInterrupt in it passes through.

    Args:
        path: The file, relative to the current directory or absolute.

    Raises:
        JobsFileError: There is no such file, or loading it fails.
    """
    absolute = os.path.abspath(path)
    if not os.path.isfile(absolute):
        raise _missing(path, absolute)
    name = _name_for(absolute)
    if name in sys.modules:
        return sys.modules[name]
    _put_first_on_path(os.path.dirname(absolute))
    _REGISTRY.paths[name] = absolute
    try:
        return _run_as_module(name, absolute, shown=os.path.basename(path))
    except BaseException:
        # A half-made module must not be found by a second try, nor by a worker.
        del _REGISTRY.paths[name]
        raise


def load_module(name: str) -> "ModuleType":
    """Import a module by its dotted name, with the current directory first on `sys.path`.

    Raises:
        JobsFileError: There is no such module, or importing it fails.
    """
    import importlib  # noqa: PLC0415

    _put_first_on_path(os.getcwd())
    with _Loading(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Only when `name` itself or a package above it is missing, not something it imports.
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                raise _refusal(
                    f"no such module: {name}",
                    hint="-m takes a dotted name as `python -m` does; for a file write: procq run FILE",
                ) from None
            raise


class _Loading:
    """Marks that a jobs file is being loaded, and turns what goes wrong into `JobsFileError`."""

    __slots__ = ("_before", "_shown")

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._before: str | None = None

    def __enter__(self) -> None:
        self._before = _REGISTRY.loading
        _REGISTRY.loading = self._shown

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _REGISTRY.loading = self._before
        if isinstance(error, SystemExit):
            raise _refusal(
                f"{self._shown} ended the program while loading: {describe(error)}",
                where=shown_frames(error),
                hint='put what the file does as a script under if __name__ == "__main__"',
            ) from error
        if isinstance(error, Exception) and not _is_refusal(error):
            # What procq itself refuses, such as an option of a task, speaks for itself.
            what = f"{self._shown} failed while loading: {describe(error)}{_line_in(self._shown, error)}"
            raise _refusal(str(error) if _is_misuse(error) else what, where=shown_frames(error)) from error


def _run_as_module(name: str, path: str, *, shown: str) -> "ModuleType":
    """Execute the file as module `name`; on failure nothing of it stays in `sys.modules`."""
    import importlib.util  # noqa: PLC0415

    spec = _spec_of(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _Loading(shown):
            assert spec.loader is not None, "_spec_of names it"
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _name_for(absolute: str) -> str:
    """Return the stable module name of a jobs file; files of one name get numbers."""
    stem = os.path.splitext(os.path.basename(absolute))[0]
    base = "procq_jobs_" + "".join(char if char.isalnum() else "_" for char in stem)
    name, number = base, 1
    while _REGISTRY.paths.get(name, absolute) != absolute:
        number += 1
        name = f"{base}_{number}"
    return name


def _put_first_on_path(directory: str) -> None:
    """Make `directory` the first entry of `sys.path`."""
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)


def _refusal(what: str, *, where: str = "", hint: str = "") -> "JobsFileError":
    """Make a `JobsFileError`."""
    # Here and not above: errors bring in `typing`, which a worker need not pay for.
    from procq.errors import JobsFileError  # noqa: PLC0415

    return JobsFileError(what, where=where, hint=hint)


def _is_refusal(error: BaseException) -> bool:
    """Return whether the error is already told as a user should see it."""
    from procq.errors import JobsFileError  # noqa: PLC0415

    return isinstance(error, JobsFileError)


def _is_misuse(error: BaseException) -> bool:
    """Return whether procq refused something in the user's code."""
    from procq.errors import UsageError  # noqa: PLC0415

    return isinstance(error, UsageError)


def _missing(path: str, absolute: str) -> "JobsFileError":
    """Say that there is no jobs file at `path`, and what the user may have meant."""
    import difflib  # noqa: PLC0415

    if os.path.isdir(absolute):
        return _refusal(f"{path} is a directory, not a jobs file", hint="name a file in it: procq run FILE")
    directory, base = os.path.split(absolute)
    try:
        files = [name for name in os.listdir(directory) if name.endswith(".py")]
    except OSError:
        files = []
    close = difflib.get_close_matches(base, files, n=1)
    hint = f"did you mean `{os.path.join(os.path.dirname(path), close[0])}`?" if close else ""
    return _refusal(f"no such jobs file: {path}", hint=hint)


# --- errors as the user should see them --------------------------------------------------------


def describe(error: BaseException) -> str:
    """Return "ValueError: text" in one line, as the last line of a traceback has it."""
    try:
        text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything, and must not hide the error
        text = "(its text cannot be had: __str__ raised)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def user_frames(error: BaseException) -> "list[traceback.FrameSummary]":
    """Return the frames of the user's own code, innermost last.

    Left out are procq, the import system, the standard library and installed packages; if
    nothing is left then, all but procq and the import system stay.
    """
    import traceback  # noqa: PLC0415

    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_PACKAGE + os.sep, "<frozen "))
    ]
    if isinstance(error, SyntaxError) and error.filename is not None:
        # The place of a syntax error is not a frame: that code never ran.
        frames.append(traceback.FrameSummary(error.filename, error.lineno, "<module>", line=error.text or ""))
    return [frame for frame in frames if is_user_file(frame.filename)] or frames


def is_user_file(filename: str) -> bool:
    """Return whether a source file is neither procq's, nor the standard library's, nor installed."""
    if filename.startswith(("<frozen ", _PACKAGE + os.sep)):
        return False
    # os.py lies in the standard library's directory, wherever this interpreter keeps it.
    library = os.path.dirname(os.__file__) + os.sep
    return not filename.startswith(library) and "site-packages" not in filename and "dist-packages" not in filename


def shown_path(filename: str) -> str:
    """Return a path as people like to read it: relative if it lies under the current directory."""
    here = os.getcwd() + os.sep
    return filename.removeprefix(here)


def shown_frames(error: BaseException) -> str:
    """Return the user's last frames, a line each: "etl.py:3  import pandas"."""
    lines = [
        f"{shown_path(frame.filename)}:{frame.lineno}" + (f"  {frame.line.strip()}" if frame.line else "")
        for frame in user_frames(error)[-_FRAMES_SHOWN:]
    ]
    return "\n  ".join(lines)


def _line_in(shown: str, error: BaseException) -> str:
    """Return " (line 3)": the last line of the jobs file itself that led to the error."""
    lines = [frame.lineno for frame in user_frames(error) if os.path.basename(frame.filename) == shown]
    return f" (line {lines[-1]})" if lines else ""


# --- entries -----------------------------------------------------------------------------------

if TYPE_CHECKING:

    @overload
    def jobs(fn: F, /) -> F: ...

    @overload
    def jobs(**queue_options: object) -> Callable[[F], F]: ...


def jobs(fn: "Any" = None, /, **queue_options: object) -> "Any":
    """Mark the entry function of a jobs file: the one that returns the tasks to run.

    Use it bare (`@procq.jobs`) or with parameters of `Queue` that hold for this entry:
    `@procq.jobs(limits={"fetch": 4})`.  The function itself is returned unchanged.

    Args:
        fn: The function, when used bare.
        **queue_options: Parameters for `Queue`; flags of the command line win over them.

    Raises:
        JobsFileError: What is marked is no function.
    """
    if fn is None:
        return _Marker(queue_options)
    return _Marker(queue_options)(fn)


class _Marker:
    """Puts the mark of `jobs` on a function."""

    __slots__ = ("_options",)

    def __init__(self, options: "Mapping[str, object]") -> None:
        self._options = options

    def __call__(self, fn: "F") -> "F":
        """Mark `fn` and return it."""
        if isinstance(fn, type) or not callable(fn):
            raise _refusal(
                f"@procq.jobs marks a function, not {fn!r}", hint="put it above the function that returns the tasks"
            )
        setattr(fn, _MARK, dict(self._options))
        return fn


def is_marked(entry: object) -> bool:
    """Return whether `jobs` marked this function."""
    return hasattr(entry, _MARK)


def queue_options(entry: "Callable[..., object]") -> dict[str, object]:
    """Return the `Queue` parameters that `jobs` put on an entry; empty without the mark."""
    return dict(getattr(entry, _MARK, {}))
