"""Rows to write to a store, and what a store holds, in a form that is easy to compare."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.stores.timeseries.sample_reader import SampleReader
from headrace.stores.timeseries.series import Labels
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore

HOUR_MS = 3_600_000
ALL_MS = (-(1 << 50), 1 << 50)

Row = tuple[str, int, float]
"""The metric, the time and the value of a sample."""


def rows_of(rows: Sequence[Row], **labels: Sequence[str | None]) -> pa.RecordBatch:
    columns = {
        "__name__": pa.array([name for name, _, _ in rows], pa.string()),
        "timestamp": pa.array([time for _, time, _ in rows], pa.int64()),
        "value": pa.array([value for _, _, value in rows], pa.float64()),
        **{name: pa.array(values, pa.string()) for name, values in labels.items()},
    }
    return pa.RecordBatch.from_pydict(columns)


def all_by_labels(
    source: TimeSeriesStore | SampleReader,
) -> dict[Labels, list[tuple[int, float]]]:
    found = source.select([], *ALL_MS, 1 << 40)
    samples = list(zip(found.timestamps.tolist(), found.values.tolist(), strict=True))
    ends = found.offsets.tolist()
    assert len(set(found.labels)) == len(found.labels), "no series is there twice"
    return {
        labels: samples[ends[place] : ends[place + 1]] for place, labels in enumerate(found.labels)
    }


def all_samples(source: TimeSeriesStore | SampleReader) -> dict[str, list[tuple[int, float]]]:
    """Return the samples of each metric. Metrics here have one series."""
    return {dict(labels)["__name__"]: samples for labels, samples in all_by_labels(source).items()}
