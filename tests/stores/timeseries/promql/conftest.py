from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.stores.timeseries.memory_source import MemorySource
from tests.stores.timeseries.promql.prometheus_server import (
    MISSING,
    PrometheusServer,
    is_installed,
    prometheus_server,
)
from tests.stores.timeseries.promql.sample_series import made_series


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    if not is_installed():
        pytest.skip(MISSING)
    with prometheus_server(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture(scope="session")
def same_series(prometheus: PrometheusServer) -> MemorySource:
    """Series that both have."""
    series = made_series()
    prometheus.write(series)
    return MemorySource(series)
