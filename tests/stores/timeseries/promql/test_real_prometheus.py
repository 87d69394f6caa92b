"""Headrace and a real Prometheus give the same answers."""

from __future__ import annotations

import pytest

from headrace.stores.timeseries.memory_source import MemorySource
from tests.stores.timeseries.promql.comparison import compare_at, compare_range
from tests.stores.timeseries.promql.prometheus_server import PrometheusServer
from tests.stores.timeseries.promql.query_table import AT_ONE_MOMENT, QUERIES
from tests.stores.timeseries.promql.sample_series import BASE_MS, MINUTE, SECOND

pytestmark = [pytest.mark.long, pytest.mark.scenario]


@pytest.mark.parametrize("query", [*QUERIES, *AT_ONE_MOMENT])
def test_queries_at_one_moment(
    query: str, prometheus: PrometheusServer, same_series: MemorySource
) -> None:
    for at_ms in (BASE_MS + 21 * MINUTE, BASE_MS + 33 * MINUTE + 7 * SECOND + 123):
        compare_at(prometheus, same_series, query, at_ms)


@pytest.mark.parametrize("query", QUERIES)
def test_queries_of_a_range(
    query: str, prometheus: PrometheusServer, same_series: MemorySource
) -> None:
    compare_range(
        prometheus, same_series, query, BASE_MS - MINUTE, BASE_MS + 44 * MINUTE, 45 * SECOND
    )
    compare_range(
        prometheus, same_series, query, BASE_MS + MINUTE + 7, BASE_MS + 9 * MINUTE, 13 * SECOND
    )
