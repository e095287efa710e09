# procq and the pools: the standard library's two, loky, joblib, pebble, mpire.
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench import tasks
from bench.peer import Peer, Pending, Value


class Procq(Peer):
    name = title = package = "procq"
    takes_million = True
    script = """\
from procq import Queue
with Queue(workers=2) as queue:
    print(queue.submit(abs, -1).result(), flush=True)
"""

    # So that an error comes at the limit and not a second after it.
    kill_grace_s = 0.2

    def start(self) -> None:
        from procq import Queue  # noqa: PLC0415

        self.pool = Queue(workers=self.workers, kill_grace=self.kill_grace_s).start()

    def submit(self, fn: Callable[..., object], /, *args: object) -> Pending:
        return self.pool.submit(fn, *args)

    # A procq of before there were chunks runs each item as a task.
    def chunks(self) -> tuple[int | str, ...]:
        return ("auto", *super().chunks()) if self._has_chunks() else ("none",)

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        options = {"chunksize": chunk} if self._has_chunks() else {"buffersize": len(items)}
        return list(self.pool.map(fn, items, **options))

    def each_with(self, fn: Callable[..., object], shared: object, count: int) -> list[Value]:
        import procq  # noqa: PLC0415

        share: Callable[[object], object] | None = getattr(procq, "share", None)
        return super().each_with(fn, shared if share is None else share(shared), count)

    def run_limited(self, fn: Callable[..., object], seconds: float, /, *args: object) -> None:
        from procq import task  # noqa: PLC0415

        # First what the import of a task function takes: it would be part of the attempt.
        self.warm(task(tasks.nap))
        self.pool.submit(task(fn, timeout=seconds).spec(*args)).result()

    def graph(self, layers: int, width: int) -> None:
        run_layers(self, layers, width)

    def shutdown(self) -> None:
        self.pool.shutdown(mode="kill")

    @staticmethod
    def _has_chunks() -> bool:
        from procq import Queue  # noqa: PLC0415

        return "chunksize" in inspect.signature(Queue.map).parameters


# The graph, for those whose submit takes what it gave back before.
def run_layers(peer: Peer, layers: int, width: int) -> None:
    layer = [peer.submit(tasks.node) for _ in range(width)]
    for _ in range(layers - 1):
        layer = [peer.submit(tasks.node, layer[place], layer[(place + 1) % width]) for place in range(width)]
    peer.gather(layer)


class StandardPool(Peer):
    name = "pool"
    title = "multiprocessing.Pool"
    takes_million = True
    script = """\
from multiprocessing import get_context
if __name__ == "__main__":
    with get_context("spawn").Pool(2) as pool:
        print(pool.apply(abs, (-1,)), flush=True)
"""

    def start(self) -> None:
        from multiprocessing import get_context  # noqa: PLC0415

        self.pool = get_context("spawn").Pool(self.workers)

    def submit(self, fn: Callable[..., object], /, *args: object) -> Pending:
        return self.pool.apply_async(fn, args)

    def result(self, pending: Pending) -> Value:
        return pending.get()

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        return list(self.pool.map(fn, items, chunk))

    def shutdown(self) -> None:
        self.pool.terminate()
        self.pool.join()


class Futures(Peer):
    name = "futures"
    title = "ProcessPoolExecutor"
    takes_million = True
    script = """\
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
if __name__ == "__main__":
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        print(pool.submit(abs, -1).result(), flush=True)
"""

    def start(self) -> None:
        from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415
        from multiprocessing import get_context  # noqa: PLC0415

        self.pool = ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"))

    def submit(self, fn: Callable[..., object], /, *args: object) -> Pending:
        return self.pool.submit(fn, *args)

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        return list(self.pool.map(fn, items, chunksize=chunk))

    def shutdown(self) -> None:
        self.pool.shutdown(cancel_futures=True)


class Loky(Futures):
    name = title = package = "loky"
    takes_million = False
    script = """\
from loky import get_reusable_executor
print(get_reusable_executor(max_workers=2).submit(abs, -1).result(), flush=True)
"""

    def start(self) -> None:
        from loky import get_reusable_executor  # noqa: PLC0415

        self.pool = get_reusable_executor(max_workers=self.workers, timeout=600)

    def shutdown(self) -> None:
        self.pool.shutdown(kill_workers=True)


# It has no submit: the call of a `Parallel` is the unit, and one task is a call with one task.
class Joblib(Peer):
    name = title = package = "joblib"
    script = """\
from joblib import Parallel, delayed
print(Parallel(n_jobs=2)([delayed(abs)(-1)])[0], flush=True)
"""

    def start(self) -> None:
        import joblib  # noqa: PLC0415

        self._delayed = joblib.delayed
        self._parallel = joblib.Parallel
        self.pool = self._calls(1)
        self.pool.__enter__()

    def call(self, fn: Callable[..., object], /, *args: object) -> Value:
        return self.each(fn, [args])[0]

    def each(self, fn: Callable[..., object], calls: Iterable[tuple[object, ...]]) -> list[Value]:
        return list(self.pool(self._delayed(fn)(*args) for args in calls))

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        return list(self._calls(chunk)(self._delayed(fn)(item) for item in items))

    def run_limited(self, fn: Callable[..., object], seconds: float, /, *args: object) -> None:
        # Two of them, or it would run the one in the caller.
        self._calls(1, timeout=seconds)([self._delayed(fn)(*args) for _ in range(2)])

    def shutdown(self) -> None:
        from joblib.externals.loky import get_reusable_executor  # noqa: PLC0415

        self.pool.__exit__(None, None, None)
        get_reusable_executor().shutdown(kill_workers=True)

    def _calls(self, batch: int | str, **options: float) -> Any:  # noqa: ANN401 - it has no types
        return self._parallel(n_jobs=self.workers, backend="loky", batch_size=batch, pre_dispatch="all", **options)


class Pebble(Peer):
    name = "pebble"
    title = "pebble"
    package = "Pebble"
    takes_million = True
    script = """\
from multiprocessing import get_context
from pebble import ProcessPool
if __name__ == "__main__":
    with ProcessPool(2, context=get_context("spawn")) as pool:
        print(pool.schedule(abs, args=(-1,)).result(), flush=True)
"""

    def start(self) -> None:
        from multiprocessing import get_context  # noqa: PLC0415

        from pebble import ProcessPool  # noqa: PLC0415

        self.pool = ProcessPool(self.workers, context=get_context("spawn"))

    def submit(self, fn: Callable[..., object], /, *args: object) -> Pending:
        return self.pool.schedule(fn, args=args)

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        return list(self.pool.map(fn, items, chunksize=chunk).result())

    def run_limited(self, fn: Callable[..., object], seconds: float, /, *args: object) -> None:
        self.pool.schedule(fn, args=args, timeout=seconds).result()

    def shutdown(self) -> None:
        self.pool.stop()
        self.pool.join()


class Mpire(Peer):
    name = title = package = "mpire"
    script = """\
from mpire import WorkerPool
if __name__ == "__main__":
    with WorkerPool(2, start_method="spawn") as pool:
        print(pool.apply(abs, (-1,)), flush=True)
"""

    def start(self) -> None:
        from mpire import WorkerPool  # noqa: PLC0415

        self.pool = WorkerPool(self.workers, start_method="spawn", keep_alive=True)

    def submit(self, fn: Callable[..., object], /, *args: object) -> Pending:
        return self.pool.apply_async(fn, args)

    def result(self, pending: Pending) -> Value:
        return pending.get()

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        return list(self.pool.map(fn, items, chunk_size=chunk))

    def run_limited(self, fn: Callable[..., object], seconds: float, /, *args: object) -> None:
        self.pool.apply_async(fn, args, task_timeout=seconds).get()

    def shutdown(self) -> None:
        self.pool.terminate()
