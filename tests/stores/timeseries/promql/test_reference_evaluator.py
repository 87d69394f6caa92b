"""Headrace and a plain evaluator give the same answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import QueryError
from headrace.stores.timeseries.promql.query_engine import evaluate
from headrace.stores.timeseries.promql.query_parser import parse_query
from headrace.stores.timeseries.series import Labels
from tests.stores.timeseries.promql.comparison import Points, answer_of, assert_equal
from tests.stores.timeseries.promql.random_queries import Moments, moments, plain_queries
from tests.stores.timeseries.promql.random_series import random_series, random_source
from tests.stores.timeseries.promql.reference_evaluator import NoAnswerError, ReferenceEvaluator

Answer = dict[Labels, Points]


@given(seed=st.integers(0, 1000), data=st.data(), steps=moments(most=8))
def test_a_plain_evaluator_agrees(seed: int, data: st.DataObject, steps: Moments) -> None:
    query = data.draw(plain_queries(seed))
    source = random_source(seed)
    wanted = _reference(seed, query, steps)
    if wanted is None:
        with pytest.raises(QueryError):
            evaluate(query, source, steps.start_ms, steps.end_ms, steps.step_ms)
    else:
        found = evaluate(query, source, steps.start_ms, steps.end_ms, steps.step_ms)
        assert_equal(answer_of(found), wanted, query)


def _reference(seed: int, query: str, steps: Moments) -> Answer | None:
    """Return the answer of every step, or None if one has none."""
    reference = ReferenceEvaluator(random_series(seed), steps.start_ms, steps.end_ms)
    node = parse_query(query)
    found: Answer = {}
    try:
        for at in range(steps.start_ms, steps.end_ms + 1, steps.step_ms):
            for labels, value in reference.evaluate(node, at).items():
                found.setdefault(labels, {})[at] = value
    except NoAnswerError:
        return None
    return found
