"""Headrace and a real Prometheus give the same answers to queries that nobody thought of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stores.timeseries.memory_source import MemorySource
from tests.stores.timeseries.promql.comparison import compare_at, compare_range
from tests.stores.timeseries.promql.prometheus_server import (
    MISSING,
    PrometheusServer,
    is_installed,
    prometheus_server,
)
from tests.stores.timeseries.promql.random_queries import Moments, moments, queries
from tests.stores.timeseries.promql.random_series import random_series, random_source

pytestmark = [pytest.mark.long, pytest.mark.scenario]

Written = Callable[[int], MemorySource]
"""Returns the series of a seed, once Prometheus has them too."""


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """One of its own: other tests ask theirs for all series that there are."""
    if not is_installed():
        pytest.skip(MISSING)
    with prometheus_server(tmp_path_factory.mktemp("random")) as server:
        yield server


@pytest.fixture(scope="module")
def written(prometheus: PrometheusServer) -> Written:
    @cache
    def write(seed: int) -> MemorySource:
        prometheus.write(random_series(seed))
        return random_source(seed)

    return write


@given(seed=st.integers(0, 9), data=st.data(), steps=moments())
def test_random_queries(
    prometheus: PrometheusServer,
    written: Written,
    seed: int,
    data: st.DataObject,
    steps: Moments,
) -> None:
    query, series = data.draw(queries(seed)), written(seed)
    compare_at(prometheus, series, query, steps.start_ms)
    compare_range(prometheus, series, query, steps.start_ms, steps.end_ms, steps.step_ms)


@pytest.mark.deep
@settings(max_examples=10_000)
@given(seed=st.integers(10, 200), data=st.data(), steps=moments())
def test_many_random_queries(
    prometheus: PrometheusServer,
    written: Written,
    seed: int,
    data: st.DataObject,
    steps: Moments,
) -> None:
    query, series = data.draw(queries(seed)), written(seed)
    compare_at(prometheus, series, query, steps.start_ms)
    compare_range(prometheus, series, query, steps.start_ms, steps.end_ms, steps.step_ms)
