"""Answers of queries as the JSON of Prometheus. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stores.timeseries.promql.aggregation_operators import format_value
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    QueryResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from headrace.stores.timeseries.series import Labels

_PLAIN_MAX = 1e10
"""Arrow prints numbers from here on with an exponent."""
_TINY = 1e-6
_HUGE = 1e21
_WHOLE_MAX = 2.0**53


def success(data: Any, warnings: Sequence[str] = ()) -> bytes:
    return _answer(_dump(data), warnings)


def failure(kind: str, text: str) -> bytes:
    return _dump({"status": "error", "errorType": kind, "error": text}).encode()


def query_answer(result: QueryResult, warnings: Sequence[str] = ()) -> bytes:
    match result:
        case MatrixResult(series):
            kind, found = "matrix", _matrix(series.labels, _points(result), series.offsets)
        case VectorResult(at_ms, labels, values):
            time = format_times(np.array([at_ms], dtype=np.int64))[0].as_py()
            texts = format_values(values).to_pylist()
            rows = (
                f'{{"metric":{_metric(each)},"value":[{time},"{text}"]}}'
                for each, text in zip(labels, texts, strict=True)
            )
            kind, found = "vector", f"[{','.join(rows)}]"
        case ScalarResult(at_ms, value):
            kind, found = "scalar", _pair(at_ms, format_values(np.array([value]))[0].as_py())
        case StringResult(at_ms, text):
            kind, found = "string", _pair(at_ms, text)
    return _answer(f'{{"resultType":"{kind}","result":{found}}}', warnings)


def _answer(data: str, warnings: Sequence[str]) -> bytes:
    told = f',"warnings":{_dump(list(warnings))}' if warnings else ""
    return f'{{"status":"success","data":{data}{told}}}'.encode()


def _matrix(labels: Sequence[Labels], points: pa.Array, offsets: npt.NDArray[np.int64]) -> str:
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), points)
    joined = pc.binary_join(lists, ",").to_pylist()
    rows = (
        f'{{"metric":{_metric(each)},"values":[{values}]}}'
        for each, values in zip(labels, joined, strict=True)
    )
    return f"[{','.join(rows)}]"


def _points(result: MatrixResult) -> pa.Array:
    times = format_times(result.series.timestamps)
    values = format_values(result.series.values)
    return pc.binary_join_element_wise("[", times, ',"', values, '"]', "")


def _pair(at_ms: int, text: str) -> str:
    time = format_times(np.array([at_ms], dtype=np.int64))[0].as_py()
    return f"[{time},{_dump(text)}]"


def _metric(labels: Labels) -> str:
    return _dump(dict(labels))


def _dump(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def format_times(times_ms: npt.NDArray[np.int64]) -> pa.Array:
    """Print milliseconds as seconds, with three digits after the point or none."""
    distinct, places = np.unique(times_ms, return_inverse=True)
    return pa.array([_seconds(each) for each in distinct.tolist()], pa.string()).take(
        pa.array(places)
    )


def _seconds(time_ms: int) -> str:
    whole, rest = divmod(abs(time_ms), 1000)
    sign = "-" if time_ms < 0 else ""
    return f"{sign}{whole}.{rest:03}" if rest else f"{sign}{whole}"


def format_values(values: npt.NDArray[np.float64]) -> pa.Array:
    """Print numbers with the fewest digits that mean them, as Prometheus prints them."""
    texts = pc.cast(pa.array(values), pa.string())
    sizes = np.abs(values)
    special = ~(sizes < _PLAIN_MAX) | ((sizes < _TINY) & (sizes > 0))
    if not special.any():
        return texts
    whole = (sizes >= _PLAIN_MAX) & (sizes < _WHOLE_MAX) & (np.trunc(values) == values)
    if whole.any():
        printed = pc.cast(pa.array(values[whole].astype(np.int64)), pa.string())
        texts = pc.replace_with_mask(texts, pa.array(whole), printed)
    rest = special & ~whole
    printed = pa.array([_unusual(each) for each in values[rest].tolist()], pa.string())
    return pc.replace_with_mask(texts, pa.array(rest), printed)


def _unusual(value: float) -> str:
    if np.isfinite(value) and not _TINY <= abs(value) < _HUGE:
        return repr(value)
    return format_value(value)
