"""Prints what queries and searches of stores found."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from headrace.cli.render.line_chart import ChartLine, draw_chart, format_value
from headrace.cli.render.output import console, print_fields, print_json, print_line, print_table
from headrace.cli.render.units import format_size
from headrace.stores.timeseries.prometheus_json import query_answer
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    QueryResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from headrace.stores.timeseries.series import Labels, SelectedSeries
from headrace.stores.vectors.vector_rows import VECTOR

_PIPE_COLUMNS = 80
_WIDTH_MAX = 120
_CHART_ROWS = 16
_VECTOR_SHOWN = 4
"""A vector is printed up to this many numbers."""


def print_answer(result: QueryResult, *, as_json: bool) -> None:
    """Print the answer to a query: as text, or as the `data` of Prometheus."""
    if as_json:
        print_json(msgspec.json.decode(query_answer(result))["data"])
        return
    match result:
        case VectorResult(_, labels, values):
            if not labels:
                print_line("no series match")
                return
            rows = (
                (name_series(each), f"{value:.10g}")
                for each, value in zip(labels, values.tolist(), strict=True)
            )
            print_table(rows, ["series", "value"], numbers=["value"])
        case MatrixResult(series):
            _print_samples(series)
        case ScalarResult(_, value):
            print_line(f"{value:.10g}")
        case StringResult(_, text):
            print_line(text)


def _print_samples(series: SelectedSeries) -> None:
    rows = []
    for number, labels in enumerate(series.labels):
        span = slice(series.offsets[number], series.offsets[number + 1])
        for at_ms, value in zip(
            series.timestamps[span].tolist(), series.values[span].tolist(), strict=True
        ):
            rows.append((name_series(labels), format_moment(at_ms), f"{value:.10g}"))
    if rows:
        print_table(rows, ["series", "time", "value"], numbers=["value"])
    else:
        print_line("no series match")


def print_chart(found: SelectedSeries, start_ms: int, end_ms: int, step_ms: int) -> None:
    """Print the answer to a query of a range as a chart as wide as the terminal."""
    if not found.labels:
        print_line("no series match")
        return
    lines = []
    for number, labels in enumerate(found.labels):
        span = slice(found.offsets[number], found.offsets[number + 1])
        lines.append(ChartLine(name_series(labels), found.timestamps[span], found.values[span]))
    out = console()
    width = min(out.width, _WIDTH_MAX) if out.is_terminal else _PIPE_COLUMNS
    chart = draw_chart(
        lines,
        start_ms=start_ms,
        end_ms=end_ms,
        step_ms=step_ms,
        width=width,
        height=_CHART_ROWS,
        in_colour=out.is_terminal and out.color_system is not None and not out.no_color,
    )
    for line in chart:
        out.print(line, soft_wrap=True)


def name_series(labels: Labels) -> str:
    """Return a series as PromQL writes it."""
    named = dict(labels)
    metric = named.pop("__name__", "")
    inside = ", ".join(f"{name}={_quoted(value)}" for name, value in named.items())
    return f"{metric}{{{inside}}}" if inside or not metric else metric


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def format_moment(at_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def print_rows(found: pa.RecordBatch) -> None:
    """Print rows of a vector store; vectors only begin."""
    if not found.num_rows:
        print_line("nothing is found")
        return
    names = found.schema.names
    rows = [[_cell(name, row[name]) for name in names] for row in found.to_pylist()]
    numbers = [each.name for each in found.schema if pa.types.is_floating(each.type)]
    print_table(rows, names, numbers=numbers)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name == VECTOR:
        shown = ", ".join(f"{each:.4g}" for each in value[:_VECTOR_SHOWN])
        return f"[{shown}{', …' if len(value) > _VECTOR_SHOWN else ''}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_stat(about: Mapping[str, object], figures: Mapping[str, int | float | str]) -> None:
    """Print what a store says of itself."""
    print_fields({**about, **{name: _figure(name, each) for name, each in figures.items()}})


def _figure(name: str, value: int | float | str) -> str:
    if name.endswith("bytes") and not isinstance(value, str):
        return format_size(value)
    if name.endswith("_ms") and isinstance(value, int):
        return format_moment(value)
    if isinstance(value, float):
        return format_value(value)
    return f"{value:,}" if isinstance(value, int) else value
