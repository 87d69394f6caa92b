"""Compares answers of Headrace and of Prometheus."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headrace.errors import QueryError
from headrace.stores.timeseries.promql.query_engine import evaluate, evaluate_at
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    QueryResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from headrace.stores.timeseries.series import Labels, SampleSource
from tests.stores.timeseries.promql.prometheus_server import PrometheusServer

Points = dict[int, float]
Answer = dict[Labels, Points] | Points | str
"""Values by labels and by time; of a scalar or string without labels."""

TOLERANCE = 1e-9


def compare_at(prometheus: PrometheusServer, ours: SampleSource, query: str, at_ms: int) -> None:
    theirs = decode_answer(prometheus.query(query, at_ms))
    if theirs is None:
        with pytest.raises(QueryError):
            evaluate_at(query, ours, at_ms)
    else:
        assert_equal(answer_of(evaluate_at(query, ours, at_ms)), theirs, f"{query} at {at_ms}")


def compare_range(
    prometheus: PrometheusServer,
    ours: SampleSource,
    query: str,
    start_ms: int,
    end_ms: int,
    step_ms: int,
) -> None:
    theirs = decode_answer(prometheus.query_range(query, start_ms, end_ms, step_ms))
    if theirs is None:
        with pytest.raises(QueryError):
            evaluate(query, ours, start_ms, end_ms, step_ms)
    else:
        result = evaluate(query, ours, start_ms, end_ms, step_ms)
        assert_equal(answer_of(result), theirs, f"{query} from {start_ms} to {end_ms} by {step_ms}")


def assert_equal(ours: Answer, theirs: Answer, where: str) -> None:
    if isinstance(ours, str) or isinstance(theirs, str):
        assert ours == theirs, where
        return
    assert list(map(str, sorted(ours))) == list(map(str, sorted(theirs))), where
    for key, wanted in theirs.items():
        found = ours[key]  # type: ignore[index]
        if isinstance(wanted, dict):
            assert isinstance(found, dict)
            assert_equal(found, wanted, f"{where} of {key}")
        else:
            assert isinstance(found, float)
            assert is_close(found, wanted), f"{where} at {key}: {found} instead of {wanted}"


def is_close(found: float, wanted: float) -> bool:
    if math.isnan(found) or math.isnan(wanted):
        return math.isnan(found) and math.isnan(wanted)
    return math.isclose(found, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def answer_of(result: QueryResult) -> Answer:
    """Return what Headrace answered."""
    match result:
        case VectorResult(at_ms, labels, values):
            return {
                name: {at_ms: value} for name, value in zip(labels, values.tolist(), strict=True)
            }
        case MatrixResult(series):
            found: dict[Labels, Points] = {}
            for row, name in enumerate(series.labels):
                part = slice(int(series.offsets[row]), int(series.offsets[row + 1]))
                times, values = series.timestamps[part].tolist(), series.values[part].tolist()
                found[name] = dict(zip(times, values, strict=True))
            return found
        case ScalarResult(at_ms, value):
            return {at_ms: value}
        case StringResult(_, text):
            return text


def decode_answer(answer: Any) -> Answer | None:
    """Return what Prometheus answered, or None if it was an error."""
    if answer["status"] != "success":
        return None
    data = answer["data"]
    match data["resultType"]:
        case "vector":
            return {_labels(each): _points([each["value"]]) for each in data["result"]}
        case "matrix":
            return {_labels(each): _points(each["values"]) for each in data["result"]}
        case "scalar":
            return _points([data["result"]])
    return str(data["result"][1])


def _labels(series: Any) -> Labels:
    return tuple(sorted(series["metric"].items()))


def _points(pairs: Any) -> Points:
    return {round(float(time) * 1000): float(value) for time, value in pairs}
