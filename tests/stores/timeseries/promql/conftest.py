from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.timeseries.promql.prometheus_server import (
    MISSING,
    PrometheusServer,
    is_installed,
    prometheus_server,
)


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    if not is_installed():
        pytest.skip(MISSING)
    with prometheus_server(tmp_path_factory.mktemp("prometheus")) as server:
        yield server
