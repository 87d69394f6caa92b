"""Answers PromQL queries, at one moment or at every step of a range."""

from __future__ import annotations

import numpy as np

from headrace.errors import QueryError
from headrace.stores.timeseries.promql.evaluation import Evaluation
from headrace.stores.timeseries.promql.expression import (
    Expression,
    RangeSelector,
    SubqueryNode,
    TextNode,
    is_scalar,
)
from headrace.stores.timeseries.promql.query_limits import QueryBudget, QueryLimits
from headrace.stores.timeseries.promql.query_parser import parse_query
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    QueryResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from headrace.stores.timeseries.promql.step_matrix import StepMatrix, Steps
from headrace.stores.timeseries.series import SampleSource

_DEFAULTS = QueryLimits()
_TIME_MS_MAX = 1 << 53


def evaluate(
    query: str | Expression,
    source: SampleSource,
    start_ms: int,
    end_ms: int,
    step_ms: int,
    limits: QueryLimits | QueryBudget = _DEFAULTS,
) -> MatrixResult:
    """Answer a query at `start_ms` and every `step_ms` after it up to `end_ms`.

    Series are sorted by their labels. Raises QueryError if the query cannot be read, fails, or
    exceeds a limit.
    """
    if step_ms < 1 or end_ms < start_ms:
        raise QueryError(
            f"no range: from {start_ms} to {end_ms} ms in steps of {step_ms} ms",
            do="use an end after the start, and a positive step",
        )
    _check_times(start_ms, end_ms)
    node = parse_query(query) if isinstance(query, str) else query
    check_has_steps(node)
    steps = Steps(start_ms, step_ms, (end_ms - start_ms) // step_ms + 1)
    budget = limits if isinstance(limits, QueryBudget) else QueryBudget(limits)
    budget.hold(1, steps.count)
    evaluation = Evaluation(source, budget, start_ms, end_ms)
    if is_scalar(node):
        values = evaluation.scalar(node, steps)[None, :]
        return MatrixResult(
            StepMatrix([()], values, np.ones(values.shape, np.bool_)).samples(steps)
        )
    matrix = evaluation.vector(node, steps).pruned()
    order = sorted(range(len(matrix.labels)), key=matrix.labels.__getitem__)
    return MatrixResult(matrix.rows(np.array(order, dtype=np.intp)).samples(steps))


def check_has_steps(node: Expression) -> None:
    """Raise QueryError if an expression has no value for each step of a range."""
    if isinstance(node, RangeSelector | SubqueryNode | TextNode):
        kind = "string" if isinstance(node, TextNode) else "range vector"
        raise QueryError(
            f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector',
            do="apply a function such as rate() to it, or query at one moment",
        )


def _check_times(*times_ms: int) -> None:
    """Raise QueryError for a time that arithmetic with 64 bits could not do without overflow."""
    for time_ms in times_ms:
        if abs(time_ms) > _TIME_MS_MAX:
            raise QueryError(f"{time_ms} ms is no time", do="give milliseconds since 1970")


def evaluate_at(
    query: str | Expression,
    source: SampleSource,
    at_ms: int,
    limits: QueryLimits | QueryBudget = _DEFAULTS,
) -> QueryResult:
    """Answer a query at one moment."""
    _check_times(at_ms)
    node = parse_query(query) if isinstance(query, str) else query
    steps = Steps(at_ms, 1, 1)
    budget = limits if isinstance(limits, QueryBudget) else QueryBudget(limits)
    evaluation = Evaluation(source, budget, at_ms, at_ms)
    if isinstance(node, TextNode):
        return StringResult(at_ms, node.value)
    if isinstance(node, RangeSelector | SubqueryNode):
        return MatrixResult(evaluation.samples(node, steps))
    if is_scalar(node):
        return ScalarResult(at_ms, float(evaluation.scalar(node, steps)[0]))
    matrix = evaluation.vector(node, steps).pruned()
    return VectorResult(at_ms, matrix.labels, matrix.values[:, 0])
