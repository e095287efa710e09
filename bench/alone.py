# The tables of procq alone: what is measured for each, and how it is shown.
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from bench.features import MEASURED, feature_table
from bench.runner import Line
from bench.scaling import SCALINGS, scaling_table
from bench.workloads import Values


class Table(NamedTuple):
    told: str
    workloads: Mapping[str, Callable[[], Values]]
    table: Callable[[Sequence[Line], Sequence[str]], Iterator[str]]


TABLES: Final[Mapping[str, Table]] = MappingProxyType(
    {
        "scaling": Table("how procq's cost grows", SCALINGS, scaling_table),
        "features": Table("what each promise of its scheduler costs", MEASURED, feature_table),
    }
)
ALONE: Final = MappingProxyType({name: run for table in TABLES.values() for name, run in table.workloads.items()})
