"""What a PromQL query answers. Pure.

Every answer is a `table()` too: its columns are `timestamp`, `value` and `labels`, as in a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.stores.timeseries.input.arrow_samples import LABELS, SCHEMA, TIME, VALUE, write_rows
from headrace.stores.timeseries.series import Labels, SelectedSeries


@dataclass(frozen=True, slots=True)
class VectorResult:
    """One value of each series at one moment."""

    at_ms: int
    labels: Sequence[Labels]
    values: npt.NDArray[np.float64]

    def table(self) -> pa.Table:
        """Return a row for each series."""
        times = np.full(len(self.labels), self.at_ms, np.int64)
        offsets = np.arange(len(self.labels) + 1, dtype=np.int64)
        return MatrixResult(SelectedSeries(self.labels, offsets, times, self.values)).table()


@dataclass(frozen=True, slots=True)
class MatrixResult:
    """Values of each series at many moments. Moments without a value are left out."""

    series: SelectedSeries

    def table(self) -> pa.Table:
        """Return a row for each value, series after series."""
        return pa.Table.from_batches([write_rows(self.series)])


@dataclass(frozen=True, slots=True)
class ScalarResult:
    at_ms: int
    value: float

    def table(self) -> pa.Table:
        """Return one row, without labels."""
        return VectorResult(self.at_ms, [()], np.array([self.value])).table()


@dataclass(frozen=True, slots=True)
class StringResult:
    at_ms: int
    value: str

    def table(self) -> pa.Table:
        """Return one row, whose value is a string, without labels."""
        time, _, labels = SCHEMA
        return pa.table(
            [
                pa.array([self.at_ms], time.type),
                pa.array([self.value], pa.string()),
                pa.array([[]], labels.type),
            ],
            names=[TIME, VALUE, LABELS],
        )


QueryResult = VectorResult | MatrixResult | ScalarResult | StringResult
