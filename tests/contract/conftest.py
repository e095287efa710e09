"""Runs every test that takes a `driver` once for each engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.drivers import Driver, InlineDriver, LocalDriver
from tests.contract.log import Log


@pytest.fixture(
    params=[
        pytest.param(InlineDriver, id="inline"),
        pytest.param(LocalDriver, id="local", marks=pytest.mark.processes),
    ]
)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    made: Driver = request.param()

    yield made

    made.close()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")
