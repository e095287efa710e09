# ray and dask: made for many machines, measured on one.
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from bench import tasks
from bench.peer import Peer, Pending, Value
from bench.pools import run_layers

HERE = "127.0.0.1"


class Ray(Peer):
    name = title = package = "ray"
    starts = 1
    tells_cpu = False
    script = """\
import logging
import ray
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
print(ray.get(ray.remote(lambda: abs(-1)).remote()), flush=True)
ray.shutdown()
"""

    def start(self) -> None:
        import ray  # noqa: PLC0415

        self._ray = ray
        # Its wrapping of a function is kept, as a decorator would keep it.
        self._remotes: dict[Callable[..., object], Any] = {}
        ray.init(
            address="local",
            num_cpus=self.workers,
            include_dashboard=False,
            _node_ip_address=HERE,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )

    def submit(self, fn: Callable[..., object], /, *args: object) -> Pending:
        if fn not in self._remotes:
            self._remotes[fn] = self._ray.remote(fn)
        return self._remotes[fn].remote(*args)

    def result(self, pending: Pending) -> Value:
        return self._ray.get(pending)

    def gather(self, pendings: Sequence[Pending]) -> list[Value]:
        return list(self._ray.get(pendings))

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        from ray.util.multiprocessing import Pool  # noqa: PLC0415

        if self.pool is None:
            self.pool = Pool(processes=self.workers)
        return list(self.pool.map(fn, items, chunksize=chunk))

    def each_with(self, fn: Callable[..., object], shared: object, count: int) -> list[Value]:
        return super().each_with(fn, self._ray.put(shared), count)

    # By hand: the limit begins when the wait begins, and so a moment before the task does.
    def run_limited(self, fn: Callable[..., object], seconds: float, /, *args: object) -> None:
        pending = self.submit(fn, *args)
        with suppress(self._ray.exceptions.GetTimeoutError):
            self._ray.get(pending, timeout=seconds)
        self._ray.cancel(pending, force=True)
        self._ray.get(pending)

    def graph(self, layers: int, width: int) -> None:
        run_layers(self, layers, width)

    def shutdown(self) -> None:
        self._ray.shutdown()


class Dask(Peer):
    name = title = "dask"
    package = "distributed"
    pace = 0.2
    starts = 3
    script = """\
from distributed import Client, LocalCluster
if __name__ == "__main__":
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        print(client.submit(abs, -1).result(), flush=True)
"""

    def start(self) -> None:
        from distributed import Client, LocalCluster  # noqa: PLC0415

        self.cluster = LocalCluster(
            n_workers=self.workers, threads_per_worker=1, processes=True, dashboard_address=None, host=HERE
        )
        self.pool = Client(self.cluster)

    def submit(self, fn: Callable[..., object], /, *args: object) -> Pending:
        return self.pool.submit(fn, *args, pure=False)

    def gather(self, pendings: Sequence[Pending]) -> list[Value]:
        return list(self.pool.gather(pendings))

    def map(self, fn: Callable[..., object], items: Sequence[object], chunk: int | str) -> list[Value]:
        from dask.bag import from_sequence  # noqa: PLC0415

        return list(from_sequence(items, partition_size=chunk).map(fn).compute(scheduler=self.pool))

    def each_with(self, fn: Callable[..., object], shared: object, count: int) -> list[Value]:
        return super().each_with(fn, self.pool.scatter(shared), count)

    # As one collection, which is quicker than a submit for each node.
    def graph(self, layers: int, width: int) -> None:
        import dask  # noqa: PLC0415

        node = dask.delayed(tasks.node, pure=False)
        layer = [node(dask_key_name=f"node-0-{place}") for place in range(width)]
        for number in range(1, layers):
            layer = [
                node(layer[place], layer[(place + 1) % width], dask_key_name=f"node-{number}-{place}")
                for place in range(width)
            ]
        dask.compute(*layer, scheduler=self.pool, optimize_graph=False)

    def shutdown(self) -> None:
        self.pool.close()
        self.cluster.close()
