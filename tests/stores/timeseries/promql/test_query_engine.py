from __future__ import annotations

import tracemalloc
from itertools import count

import numpy as np
import pytest

from headrace.errors import QueryError
from headrace.stores.timeseries.memory_source import MemorySource
from headrace.stores.timeseries.promql import windows
from headrace.stores.timeseries.promql.query_engine import evaluate, evaluate_at
from headrace.stores.timeseries.promql.query_limits import QueryBudget, QueryLimits
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    ScalarResult,
    StringResult,
    VectorResult,
)

MINUTE_MS = 60_000
COUNTERS = MemorySource(
    [
        (
            {"__name__": "hits", "path": path, "zone": zone},
            [(minute * MINUTE_MS, float(minute * speed)) for minute in range(31)],
        )
        for path, zone, speed in [("/", "a", 60), ("/", "b", 120), ("/x", "a", 240)]
    ]
)


def vector(query: str, at_minute: int = 30) -> dict[str, float]:
    result = evaluate_at(query, COUNTERS, at_minute * MINUTE_MS)
    assert isinstance(result, VectorResult)
    names = [",".join(f"{name}={value}" for name, value in each) for each in result.labels]
    return dict(zip(names, result.values.tolist(), strict=True))


def test_a_rate_is_summed_by_label() -> None:
    assert vector("sum by (path) (rate(hits[5m]))") == {"path=/": 3.0, "path=/x": 4.0}


def test_a_range_query_has_every_step_at_once() -> None:
    result = evaluate("sum(hits)", COUNTERS, 0, 30 * MINUTE_MS, 10 * MINUTE_MS)
    assert list(result.series.labels) == [()]
    assert result.series.timestamps.tolist() == [0, 600_000, 1_200_000, 1_800_000]
    assert result.series.values.tolist() == [0.0, 4200.0, 8400.0, 12600.0]


def test_every_kind_of_result() -> None:
    assert evaluate_at("time() / 2", COUNTERS, 3_000) == ScalarResult(3_000, 1.5)
    assert evaluate_at('"text"', COUNTERS, 3_000) == StringResult(3_000, "text")
    window = evaluate_at('hits{path="/x"}[2m]', COUNTERS, 30 * MINUTE_MS)
    assert isinstance(window, MatrixResult)
    assert window.series.values.tolist() == [28 * 240.0, 29 * 240.0, 30 * 240.0]
    constant = evaluate("1", COUNTERS, 0, 2_000, 1_000)
    assert constant.series.values.tolist() == [1.0, 1.0, 1.0]


def test_a_range_has_no_steps() -> None:
    for start, end, step in [(10, 9, 1), (0, 10, 0), (0, 10, -1)]:
        with pytest.raises(QueryError, match="no range"):
            evaluate("1", COUNTERS, start, end, step)


@pytest.mark.parametrize(
    "query", ["hits", "rate(hits[5m])", "max_over_time(hits[1h:1m])", "time()"]
)
def test_a_time_that_no_clock_shows_is_refused(query: str) -> None:
    for at_ms in (1 << 53) + 1, -(1 << 53) - 1, 10**30:
        with pytest.raises(QueryError, match=f"{at_ms} ms is no time"):
            evaluate_at(query, COUNTERS, at_ms)
        with pytest.raises(QueryError, match=f"{at_ms} ms is no time"):
            evaluate(query, COUNTERS, min(at_ms, 0), max(at_ms, 0), 10**30)


def test_a_range_query_needs_one_value_for_each_step() -> None:
    for query, kind in [("hits[5m]", "range vector"), ('"text"', "string")]:
        with pytest.raises(QueryError, match=f'invalid expression type "{kind}" for range query'):
            evaluate(query, COUNTERS, 0, 1_000, 1_000)


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        (QueryLimits(samples_max=92), "93 samples"),
        (QueryLimits(cells_max=92), "cells_max"),
        (QueryLimits(timeout_s=-1.0), "timeout_s"),
    ],
)
def test_a_limit_that_is_exceeded_is_named(limits: QueryLimits, named: str) -> None:
    with pytest.raises(QueryError, match=named):
        evaluate("sum(hits)", COUNTERS, 0, 30 * MINUTE_MS, MINUTE_MS, limits)


SKEWED = MemorySource(
    [({"__name__": "load", "host": str(host)}, [(0, float(host))]) for host in range(40)]
    + [({"__name__": "load", "host": "all", "cpu": str(cpu)}, [(0, 1.0)]) for cpu in range(40)]
    + [
        ({"__name__": "took", "host": str(host), "le": str(bound)}, [(0, 1.0)])
        for host in range(40)
        for bound in (range(40) if host == 0 else range(1))
    ]
)


@pytest.mark.parametrize(
    "query",
    [
        "max_over_time(vector(1)[30d:1ms])",
        "rate(nothing[30d:1ms])",
        "max_over_time(sum(hits)[10y:1ms] @ 60)",
        'count_values("v", vector(time()))',
        "quantile by (host) (0.5, load)",
        "histogram_quantile(0.5, took)",
    ],
)
def test_no_query_holds_more_than_its_limit(query: str) -> None:
    """Each of them is small at first, and would take gigabytes with the limits that are usual."""
    tracemalloc.start()
    try:
        with pytest.raises(QueryError, match="cells_max"):
            evaluate(query, SKEWED, 0, 599_000, 1_000, QueryLimits(cells_max=50_000))
        assert tracemalloc.get_traced_memory()[1] < 50_000 * 100
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("query", "blocks"), [("quantile_over_time(0.5, hits[30m])", 93), ("rate(hits[30m])", 3)]
)
def test_the_time_is_looked_at_between_the_blocks_of_one_function(
    query: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks() -> int:
        looked = count()
        budget = QueryBudget(QueryLimits(), lambda: next(looked) / 1e6)
        evaluate(query, COUNTERS, 0, 30 * MINUTE_MS, MINUTE_MS, budget)
        return next(looked)

    in_one_block = looks()
    monkeypatch.setattr(windows, "_BLOCK_CELLS", 1)
    monkeypatch.setattr(windows, "_CACHED_CELLS", 1)
    assert looks() - in_one_block == blocks - 1


@pytest.mark.parametrize(
    ("query", "limits", "named"),
    [
        ("sum_over_time(vector(1)[9m:1m])", QueryLimits(samples_max=39), "more than 39 samples"),
        ("1", QueryLimits(cells_max=30), r"1 series × 31 steps .* \(cells_max\)"),
        (
            "max_over_time(hits[31m:30m])",
            QueryLimits(cells_max=92),
            r"3 series × 31 .* \(cells_max",
        ),
    ],
)
def test_what_a_query_makes_itself_counts_too(query: str, limits: QueryLimits, named: str) -> None:
    with pytest.raises(QueryError, match=named):
        evaluate(query, COUNTERS, 0, 30 * MINUTE_MS, MINUTE_MS, limits)
    more = QueryLimits(limits.samples_max + 1, limits.cells_max + 1)
    assert evaluate(query, COUNTERS, 0, 30 * MINUTE_MS, MINUTE_MS, more).series.labels


def test_a_caller_may_wait_less_than_the_limit_and_not_longer() -> None:
    assert QueryLimits(timeout_s=5.0).within(1.0).timeout_s == 1.0
    assert QueryLimits(timeout_s=5.0).within(9.0).timeout_s == 5.0


def test_limits_that_are_just_enough() -> None:
    limits = QueryLimits(samples_max=93, cells_max=93)
    result = evaluate("sum(hits)", COUNTERS, 0, 30 * MINUTE_MS, MINUTE_MS, limits)
    assert np.count_nonzero(result.series.values) == 30
