"""Every function of Prometheus 2.42 is compared with it, and what is not there is named."""

from __future__ import annotations

import re

import pytest

from headrace.errors import QueryError
from headrace.stores.timeseries.memory_source import MemorySource
from headrace.stores.timeseries.promql.query_engine import evaluate_at
from tests.stores.timeseries.promql.query_table import AT_ONE_MOMENT, QUERIES

FUNCTIONS = """
abs absent absent_over_time acos acosh asin asinh atan atanh avg_over_time ceil changes clamp
clamp_max clamp_min cos cosh count_over_time days_in_month day_of_month day_of_week day_of_year deg
delta deriv exp floor histogram_quantile holt_winters hour idelta increase irate label_join
label_replace last_over_time ln log10 log2 max_over_time min_over_time minute month pi
predict_linear present_over_time quantile_over_time rad rate resets round scalar sgn sin sinh sort
sort_desc sqrt stddev_over_time stdvar_over_time sum_over_time tan tanh time timestamp vector year
sum avg min max count group stddev stdvar topk bottomk quantile count_values
"""
"""All but those of native histograms."""

UNSUPPORTED = [
    ("histogram_count", "histogram_count(load)"),
    ("histogram_sum", "histogram_sum(load)"),
    ("histogram_fraction", "histogram_fraction(0, 1, load)"),
    ("histogram_avg", "histogram_avg(load)"),
    ("histogram_stddev", "histogram_stddev(load)"),
    ("histogram_stdvar", "histogram_stdvar(load)"),
    ("sort_by_label", 'sort_by_label(load, "job")'),
    ("sort_by_label_desc", 'sort_by_label_desc(load, "job")'),
    ("first_over_time", "first_over_time(load[5m])"),
    ("limitk", "limitk(1, load)"),
    ("limitk", "limitk(1, nothing)"),
    ("limit_ratio", "limit_ratio(0.5, load)"),
    ("fancy", "fancy(load)"),
    ("anchored", "load[5m] anchored"),
]


@pytest.mark.parametrize("name", re.findall(r"\w+", FUNCTIONS))
def test_the_table_of_queries_has(name: str) -> None:
    called = re.compile(rf"\b{name}\b *(by|without|\()")
    assert any(called.search(query) for query in [*QUERIES, *AT_ONE_MOMENT])


@pytest.mark.parametrize(("name", "query"), UNSUPPORTED)
def test_what_is_not_there_is_named(name: str, query: str) -> None:
    source = MemorySource([({"__name__": "load"}, [(0, 1.0)])])
    with pytest.raises(QueryError, match=rf"\b{name}\b"):
        evaluate_at(query, source, 1_000)
