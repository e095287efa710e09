"""Turns calls, results and errors into bytes and back (contract C5, D9, E2).

Decides what travels by reference and what by value: plain `pickle` first, because it is five
times faster, and cloudpickle where plain pickle fails or would name `__main__`, which is a
different module in a worker.  Used on both sides of the pipe, so it imports only `pickle`
until a payload needs more.

A dependency's result is known inside a payload by its number alone: objects that stand for
results (handles, specs) reduce themselves to `_result_of(number)` while `dump_call` runs, and
the worker puts the result's own bytes in their place.  So nobody walks the arguments, a
placeholder may lie at any depth, and the supervisor never unpickles a result.

A call is one pickle, or two in a row: that of a function which travels by its name alone, then
that of its arguments.  So the first is made once a process and read once a worker, which is more
than half of the cost of a tiny call (1.3 us to write, 1.0 us to read).  A handler that is called by a
task's `Spawn` stands there too, with or without a name, for nobody has the function and the arguments at once.

    0x80 ...                            one pickle: (function, args) or (function, args, kwargs)
    0x01, size (2 bytes, little-endian), pickled function, pickled args
    0x02, size (2 bytes, little-endian), pickled function, pickled (args, kwargs)

Big buffers (arrays, say) stay beside their pickle (`Parcel`).  A call has them in memory of its own, since
every attempt must see its arguments as they were submitted; a result needs that only where it is not sent
at once.
"""

# The C modules behind `pickle` and `threading`, which cost a new worker 4 of its 15 ms (H2).
import copyreg
import sys
from _pickle import PickleBuffer, dumps as _pickle_dumps, loads as _pickle_loads
from _thread import _local
from functools import partial

from procq.parcel import BESIDE_BYTES, Parcel, copied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from functools import _lru_cache_wrapper
    from types import CodeType, FrameType
    from typing import Any, Final

    from procq.parcel import Buffer, Payload, Share

PROTOCOL = 5

#: What a call begins with whose function travels by name; any pickle of today begins with 0x80.
_BY_NAME: "Final" = 1
_BY_NAME_WITH_KEYWORDS: "Final" = 2
#: Copying so much costs less than making a view of it.
_SMALL_BYTES: "Final" = 4096
#: Functions kept with their names, here and in a worker; a program that makes up more starts over.
_NAMES_MAX: "Final" = 1024
#: Values of these classes, exactly, nobody can change, so that many may share one pickle; they stand for
#: no result and are nothing of `__main__`.
PLAIN: "Final" = frozenset((type(None), bool, int, float, complex, str, bytes))
#: What may travel by name: functions and classes, and what procq makes of them.  Their instances are
#: equal to nothing but themselves.
BY_NAME: "Final[set[type]]" = {type(lambda: None), type(len), type}


class NotPicklable(Exception):  # noqa: N818 - becomes a PayloadError where the caller is known
    """Neither pickle nor cloudpickle can turn an object into bytes; the cause says why."""


class _Session(_local):
    """What the call being pickled or unpickled in this thread refers to."""

    #: While pickling: the objects standing for results and their numbers, by `id`, in order.
    #: None when no call is being pickled in this thread.
    found: "dict[int, tuple[int, object]] | None" = None
    #: While pickling: the shared memory that it refers to.
    shares: "Sequence[Share]" = ()
    #: While unpickling: the pickled results, by number.
    inputs: "Sequence[Payload]" = ()


_SESSION = _Session()


class _Name:
    """A function that travels by its name alone, and where the name leads."""

    __slots__ = ("fn", "head", "module", "name", "namespace")

    def __init__(self, fn: "Callable[..., object]", head: bytes, namespace: "Mapping[str, object]", name: str) -> None:
        self.fn = fn
        #: what its calls without keywords begin with
        self.head = head
        self.module = sys.modules[fn.__module__]
        self.namespace = namespace
        self.name = name

    def leads_to_it(self) -> bool:
        """Whether the name still leads to the function."""
        return self.namespace.get(self.name) is self.fn and sys.modules.get(self.fn.__module__) is self.module


#: Known names by function, where calls are pickled, and by pickled function, in a worker.  A name is
#: good for as long as it leads to the function: it may be given to another, or its module reloaded.
_names: "dict[Callable[..., object], _Name]" = {}
_named: "dict[bytes, _Name]" = {}


def _name_of(fn: "Callable[..., object]") -> _Name | None:
    """Return the name a function travels by; None if it must be pickled with each call."""
    if type(fn) not in BY_NAME:
        return None
    known = _names.get(fn)
    if known is not None and known.leads_to_it():
        return known
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    namespace = getattr(sys.modules.get(module), "__dict__", {})
    if namespace.get(name) is not fn:  # not at the top of its module, or by value
        return None
    try:
        data = _pickle_dumps(fn, PROTOCOL)
    except Exception:  # noqa: BLE001 - a class may have a metaclass with an idea of its own
        return None
    if len(data) >> 16 or b"__main__" in data:
        return None
    if len(_names) >= _NAMES_MAX:
        _names.clear()
    _names[fn] = name_of_fn = _Name(fn, bytes([_BY_NAME, len(data) & 0xFF, len(data) >> 8]) + data, namespace, name)
    return name_of_fn


def has_name(fn: "Callable[..., object]") -> bool:
    """Whether a function travels by its name."""
    return _name_of(fn) is not None


def dump_call(
    fn: "Callable[..., object]", args: "tuple[object, ...]", kwargs: "Mapping[str, object]"
) -> "tuple[Payload, list[object]]":
    """Pickle a call in the caller's thread.

    Returns:
        The bytes, and the objects in the arguments that stand for results, by number.

    Raises:
        NotPicklable: Something in the call cannot be pickled.
    """
    name = _name_of(fn)
    is_plain, may_be_big = True, bool(kwargs)
    for value in args:
        kind = type(value)
        if kind not in PLAIN:
            is_plain = False
        elif kind is bytes and len(value) >= BESIDE_BYTES:  # type: ignore[arg-type]  # mypy knows not what `kind` is of
            is_plain, may_be_big = False, True
            break
    if may_be_big:
        args, kwargs = _set_aside(args, kwargs)
    if name is None:
        return dump_part((fn, args, kwargs) if kwargs else (fn, args))
    if kwargs:
        data, found = dump_part((args, kwargs))
        return behind(bytes([_BY_NAME_WITH_KEYWORDS]) + name.head[1:], data), found
    if is_plain:
        return name.head + _pickle_dumps(args, PROTOCOL), []
    data, found = dump_part(args)
    return behind(name.head, data), found


def _set_aside(
    args: "tuple[object, ...]", kwargs: "Mapping[str, object]"
) -> "tuple[tuple[object, ...], dict[str, object]]":
    """Have big bytes among arguments stand beside the pickle, which has them copied otherwise."""
    known: dict[int, _Aside] = {}
    return (
        tuple([_aside(value, known) for value in args]),
        {key: _aside(value, known) for key, value in kwargs.items()},
    )


def _aside(value: object, known: "dict[int, _Aside]") -> object:
    if type(value) is not bytes or len(value) < BESIDE_BYTES:
        return value
    return known.setdefault(id(value), _Aside(value))


class _Aside:
    """Big bytes that stand beside a pickle: in it they are an object, so that pickle knows them when they come again.

    A `PickleBuffer` by itself it writes each time.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> "tuple[object, ...]":
        return as_bytes, (PickleBuffer(self._data),)


def as_bytes(buffer: "Buffer") -> bytes:
    """Rebuild big `bytes`; called by pickle.  Only what has become something else on its way is copied."""
    return buffer if type(buffer) is bytes else bytes(buffer)


#: The pickle of nothing but big bytes that stand beside it.
_BYTES_BESIDE: "Final" = _pickle_dumps(_Aside(b""), PROTOCOL, buffer_callback=lambda _: False)


def behind(head: bytes, data: "Payload") -> "Payload":
    """Return a pickle with something before it: the arguments of a call behind its function."""
    return data.behind(head) if isinstance(data, Parcel) else head + data


def dump_part(value: object) -> "tuple[Payload, list[object]]":
    """Pickle a part of a call, as `dump_call` does the whole.

    Raises:
        NotPicklable: Something in it cannot be pickled.
    """
    found: dict[int, tuple[int, object]] = {}
    # Pickling runs users' code, which may pickle another call: what was there comes back.
    before = _SESSION.found, _SESSION.shares
    _SESSION.found, _SESSION.shares = found, ()
    try:
        # Clearing no shares: to keep one too many alive does no harm.
        data = copied(dumps(value, bytes_stay=True, before_second_try=found.clear))
        shares = _SESSION.shares
    finally:
        _SESSION.found, _SESSION.shares = before
    if shares:
        data = Parcel(data.data, data.buffers, shares) if isinstance(data, Parcel) else Parcel(data, (), shares)
    return data, [standin for _, standin in found.values()]


def dump_function(fn: "Callable[..., object]") -> bytes | None:
    """Pickle a function apart from any call of it.

    Returns:
        What stands before the pickled arguments in a call; None if the function is too big for that.

    Raises:
        NotPicklable: It cannot be pickled.
    """
    name = _name_of(fn)
    if name is not None:
        return name.head
    data, standins = dump_part(fn)
    if isinstance(data, Parcel) or standins or len(data) >> 16:
        return None
    return bytes([_BY_NAME, len(data) & 0xFF, len(data) >> 8]) + data


def take_along(*shares: "Share") -> bool:
    """Have the call that is being pickled keep shared memory alive; False: none is being pickled."""
    if _SESSION.found is None:
        return False
    _SESSION.shares = (*_SESSION.shares, *shares)
    return True


#: In a worker: what gets the descriptor of shared memory by its key.
fetch_shared: "Callable[[int], int] | None" = None


def load_call(
    data: "Payload", inputs: "Sequence[Payload]"
) -> "tuple[Callable[..., object], tuple[object, ...], dict[str, object]]":
    """Unpickle a call, with the pickled results of its dependencies in their places.

    What it gives uses up the buffers that stand beside: another time they may have been written to.
    """
    if not inputs:
        return _load_call(data)
    before, _SESSION.inputs = _SESSION.inputs, inputs
    try:
        return _load_call(data)
    finally:
        _SESSION.inputs = before


def _load_call(call: "Payload") -> "tuple[Callable[..., object], tuple[object, ...], dict[str, object]]":
    """Unpickle a call whose inputs are known, if it has any."""
    buffers: Sequence[Buffer] = ()
    if isinstance(call, Parcel):
        data, buffers = call.data, call.buffers
    else:
        data = call
    kind = data[0]
    if kind > _BY_NAME_WITH_KEYWORDS:
        fn, args, *rest = _pickle_loads(data, buffers=buffers)
        return fn, args, rest[0] if rest else {}
    end = 3 + data[1] + (data[2] << 8)
    key = bytes(data[3:end])
    known = _named.get(key)
    if known is not None and known.leads_to_it():
        fn = known.fn
    else:
        fn = _pickle_loads(key)
        name = _name_of(fn)
        if name is not None:
            if len(_named) >= _NAMES_MAX:
                _named.clear()
            _named[key] = name
    # Not a slice of bytes, which would copy a big payload.
    rest = _pickle_loads(data[end:] if len(data) < _SMALL_BYTES else memoryview(data)[end:], buffers=buffers)
    return (fn, rest, {}) if kind == _BY_NAME else (fn, *rest)


def pickles_of(call: bytes) -> tuple[int, list[bytes]]:
    """Return what a call begins with, and the pickles that it is made of, as told above."""
    kind = call[0]
    if kind > _BY_NAME_WITH_KEYWORDS:
        return kind, [call]
    end = 3 + call[1] + (call[2] << 8)
    return kind, [call[3:end], call[end:]]


def is_loading() -> bool:
    """Whether this thread is unpickling a call, and may be importing a module for that; takes some microseconds."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - documented, for CPython
    while frame is not None:
        if frame.f_code is _load_call.__code__:
            return True
        frame = frame.f_back
    return False


def placeholder(standin: object) -> "tuple[object, ...] | None":
    """Reduce an object that stands for a result; None when no call is being pickled."""
    found = _SESSION.found
    if found is None:
        return None
    number, _ = found.setdefault(id(standin), (len(found), standin))
    return _result_of, (number,)


def _result_of(number: int) -> object:
    """Rebuild the result that stands at this place; called by pickle in the worker."""
    data = _SESSION.inputs[number]
    if not data:
        raise LookupError(
            "an argument is the result of a task that did not succeed; a task that runs all the same (run_if) "
            "must not take its result: name it in depends_on"
        )
    return loads_once(data)


def _reduce_parcel(parcel: Parcel) -> "tuple[Callable[..., Parcel], tuple[Any, ...]]":
    """Reduce a parcel that is part of another, as in a chunk: what stands beside it stands beside that one."""
    take_along(*parcel.shares)
    return _parcel, (bytes(parcel.data), [PickleBuffer(buffer) for buffer in parcel.buffers])


def _parcel(data: bytes, buffers: "Sequence[memoryview]") -> Parcel:
    """Rebuild a parcel; called by pickle."""
    return Parcel(data, [memoryview(buffer) for buffer in buffers])


copyreg.pickle(Parcel, _reduce_parcel)


def same(value: object) -> object:
    """Rebuild something as what it wraps; called by pickle in the worker, which has this module already."""
    return value


def loads(data: "Payload") -> "Any":  # noqa: ANN401 - as `pickle.loads`
    """Unpickle what may be unpickled again."""
    return loads_once(copied(data))


def loads_once(data: "Payload") -> "Any":  # noqa: ANN401 - as `pickle.loads`
    """Unpickle what nobody unpickles again: what it gives may write into the buffers that stand beside."""
    if isinstance(data, Parcel):
        return _pickle_loads(data.data, buffers=data.buffers)
    return _pickle_loads(data)


def dumps(
    value: object, *, bytes_stay: bool = False, before_second_try: "Callable[[], None] | None" = None
) -> "Payload":
    """Pickle anything that pickle or cloudpickle can; big buffers stay where they are, beside the pickle.

    Args:
        value: What to pickle.
        bytes_stay: Whether a buffer that is made of `bytes` shall arrive as `bytes`.  For each who reads shared
            memory that would be a copy more; `bytes` that are a whole result are `dump_result`'s.
        before_second_try: Called if plain pickle has failed, before cloudpickle is tried.

    Raises:
        NotPicklable: Neither can; its cause is the error of the last try.
    """
    if type(value) in PLAIN:
        return _pickle_dumps(value, PROTOCOL)
    buffers: list[Buffer] = []
    data = _dump(value, partial(_put_in, buffers, bytes_stay), (buffers.clear, before_second_try))
    return Parcel(data, buffers) if buffers else data


def dump_result(value: object) -> "Payload":
    """Pickle what a task has returned.

    As `dumps`, but big `bytes` are not copied: they stand beside a pickle that says no more than that, arrive
    as `bytes`, and are given out as they came.

    Raises:
        NotPicklable: As `dumps`.
    """
    if type(value) is bytes and len(value) >= BESIDE_BYTES:
        return Parcel(_BYTES_BESIDE, [value])
    return dumps(value)


def dumps_whole(value: object) -> bytes:
    """Pickle as `dumps` does, but all into one piece."""
    return _dump(value, None, ())


def _dump(
    value: object,
    put_in: "Callable[[PickleBuffer], bool] | None",
    before_second_try: "Sequence[Callable[[], None] | None]",
) -> bytes:
    try:
        data = _pickle_dumps(value, PROTOCOL, buffer_callback=put_in)
    except Exception:  # noqa: BLE001, S110 - any error of a user's __reduce__ leads to the second try
        pass
    else:
        # What lives in `__main__` is pickled by name, and the name leads nowhere in a worker.
        # A false hit (the text in a string) only costs the slower way.
        if b"__main__" not in data:
            return data
    for prepare in before_second_try:
        if prepare is not None:
            prepare()
    try:
        return _dump_by_value(value, put_in)
    except Exception as error:
        raise NotPicklable(str(error)) from error


def _put_in(beside: "list[Buffer]", bytes_stay: bool, buffer: "PickleBuffer") -> bool:  # noqa: FBT001 - of a partial
    """Say whether a buffer is to be put into the pickle; else it goes to those beside it."""
    try:
        view = buffer.raw()
    except BufferError:  # in pieces: pickle has its own words for that
        return True
    if len(view) < BESIDE_BYTES:
        return True
    owner = view.obj
    beside.append(owner if bytes_stay and type(owner) is bytes and len(owner) == len(view) else view)
    return False


def _dump_by_value(value: object, put_in: "Callable[[PickleBuffer], bool] | None") -> bytes:
    """Pickle with cloudpickle, which takes along what cannot be imported."""
    from collections import ChainMap  # noqa: PLC0415
    from functools import lru_cache  # noqa: PLC0415
    from io import BytesIO  # noqa: PLC0415
    from types import CodeType  # noqa: PLC0415

    import cloudpickle  # noqa: PLC0415 - 20 ms that most workers never need

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
        dispatch_table = ChainMap(  # noqa: RUF012
            {CodeType: _reduce_code, type(lru_cache(len)): _reduce_cached}, cloudpickle.Pickler.dispatch_table
        )

    buffer = BytesIO()
    Pickler(buffer, PROTOCOL, put_in).dump(value)
    return buffer.getvalue()


def _reduce_cached(cached: "_lru_cache_wrapper[object]") -> "str | tuple[object, ...]":
    """Reduce what `functools.cache` made: by its name if that leads to it, else with an empty cache.

    By itself it travels by name alone, also out of `__main__`, which is another module in a worker.
    """
    fn = cached.__wrapped__
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and module != "__main__":  # `partial` gives no name
        place: object = sys.modules.get(module)
        for part in name.split("."):
            place = getattr(place, part, None)
        if place is cached:
            return name
    return _cached, (fn, *cached.cache_parameters().values())


def _cached(fn: "Callable[..., object]", maxsize: int | None, typed: bool) -> object:  # noqa: FBT001 - pickled
    """Rebuild what `functools.cache` made; called by pickle in the worker."""
    from functools import lru_cache  # noqa: PLC0415

    return lru_cache(maxsize, typed)(fn)


def _reduce_code(code: "CodeType") -> "tuple[object, ...]":
    """Reduce code with the name of its file, which cloudpickle leaves out.

    So a traceback names the user's file and line (PAIN H13).  Both ends are one interpreter, so
    marshal will do; its version 2 writes the same bytes for the same code each time.
    """
    import marshal  # noqa: PLC0415

    return _load_code, (marshal.dumps(code, 2),)


def _load_code(data: bytes) -> object:
    """Rebuild code; called by pickle in the worker."""
    import marshal  # noqa: PLC0415

    return marshal.loads(data)  # noqa: S302 - as trusted as the pickle it came in
