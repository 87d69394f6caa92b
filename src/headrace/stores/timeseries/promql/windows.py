"""Which samples each step of a query sees, for all series and steps at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from headrace.stores.timeseries.promql.step_matrix import Flags, Floats, Integers, Steps
from headrace.stores.timeseries.series import STALE_BITS, SelectedSeries

_BLOCK_CELLS = 1 << 20
_CACHED_CELLS = 1 << 14
"""A dozen arrays of so many numbers fit into a processor's cache."""


@dataclass(frozen=True, slots=True)
class SampleWindows:
    """Window (i, k) holds the samples of series i from `begins[i, k]` up to `ends[i, k]`.

    It covers the time from `until_ms[k] - range_ms` to `until_ms[k]`, both included. There is at
    least one sample, which may be in no window.
    """

    timestamps: Integers
    values: Floats
    begins: Integers
    ends: Integers
    until_ms: Integers
    range_ms: int
    evaluated_ms: Integers
    """When each step is evaluated: differs from `until_ms` by `offset` and `@`."""
    check_time: Callable[[], None] = lambda: None
    """Raises QueryError if the query has taken too long. Called before each block."""

    @property
    def counts(self) -> Integers:
        return self.ends - self.begins

    def row_blocks(self) -> Iterator[slice]:
        """Yield all series in blocks, whose windows stay in the cache of a processor."""
        count, steps = self.begins.shape
        rows = max(1, _CACHED_CELLS // max(1, steps))
        for start in range(0, count, rows):
            self.check_time()
            yield slice(start, start + rows)

    def rows(self, rows: slice) -> SampleWindows:
        """Return the windows of some of the series."""
        return replace(self, begins=self.begins[rows], ends=self.ends[rows])

    def blocks(self, chosen: Flags) -> Iterator[tuple[Integers, Integers, Flags]]:
        """Yield where the samples of some windows are, as a matrix of one row for each window.

        Each triple is: which of the flattened windows they are, the places of their samples, and
        which of the places count. Those that do not, at the end of rows, repeat the first sample.
        """
        which = np.flatnonzero(chosen)
        if not which.size:
            return
        begins, counts = self.begins.ravel()[which], self.counts.ravel()[which]
        width = int(counts.max())
        rows = max(1, _BLOCK_CELLS // width)
        for start in range(0, which.size, rows):
            self.check_time()
            part = slice(start, start + rows)
            places = begins[part, None] + np.arange(width)
            inside = np.arange(width) < counts[part, None]
            yield which[part], np.where(inside, places, begins[part, None]), inside


def live_samples(series: SelectedSeries) -> SelectedSeries:
    """Leave out the staleness markers."""
    stale = is_stale(series.values)
    if not stale.any():
        return series
    kept = np.concatenate(([0], np.cumsum(~stale)))
    return SelectedSeries(
        series.labels, kept[series.offsets], series.timestamps[~stale], series.values[~stale]
    )


def is_stale(values: Floats) -> Flags:
    return np.asarray(values.view(np.int64) == STALE_BITS)


def make_windows(
    series: SelectedSeries, until: Steps, range_ms: int, evaluated_ms: Integers
) -> SampleWindows:
    """Make the windows that end at `until`. If that is one step, it is that of every evaluation."""
    ends = samples_until(series, until)
    earlier = Steps(until.start_ms - range_ms - 1, until.step_ms, until.count)
    begins = samples_until(series, earlier)
    shape = (len(series.labels), len(evaluated_ms))
    none = not series.values.size
    return SampleWindows(
        timestamps=np.zeros(1, np.int64) if none else series.timestamps,
        values=np.zeros(1) if none else series.values,
        begins=np.broadcast_to(begins, shape),
        ends=np.broadcast_to(ends, shape),
        until_ms=np.broadcast_to(until.times, shape[1:]),
        range_ms=range_ms,
        evaluated_ms=evaluated_ms,
    )


def samples_until(series: SelectedSeries, steps: Steps) -> Integers:
    """Return where the samples of each series up to and with each step end.

    Every sample is counted at the first step that sees it; sums along the steps do the rest.
    """
    count = steps.count
    counts = np.diff(series.offsets)
    first = -((steps.start_ms - series.timestamps) // max(1, steps.step_ms))
    np.clip(first, 0, count, out=first)
    first += np.repeat(np.arange(len(counts), dtype=np.int64) * (count + 1), counts)
    seen = np.bincount(first, minlength=len(counts) * (count + 1)).reshape(-1, count + 1)
    ends = np.cumsum(seen[:, :count], axis=1)
    ends += series.offsets[:-1, None]
    return ends
