# Everybody who is measured, by the name that options use; procq first.
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from bench.clusters import Dask, Ray
from bench.peer import Peer
from bench.pools import Futures, Joblib, Loky, Mpire, Pebble, Procq, StandardPool

OURS: Final = Procq.name
#: No pool at all: what the system can do (limits.py).
BARE: Final = "bare"
PEERS: Final[Mapping[str, type[Peer]]] = MappingProxyType(
    {peer.name: peer for peer in (Procq, StandardPool, Futures, Loky, Joblib, Pebble, Mpire, Ray, Dask)}
)
