"""Series in memory that PromQL can read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from headrace.stores.timeseries.labels import make_labels
from headrace.stores.timeseries.matchers import matching_series
from headrace.stores.timeseries.sample_merge import check_samples_max, merge_samples
from headrace.stores.timeseries.series import LabelMatcher, Labels, SelectedSeries

Samples = Iterable[tuple[int, float]]
"""Times in milliseconds, and values."""


class MemorySource:
    """A `SampleSource` that holds its series in memory. Of samples at one time the last counts."""

    def __init__(self, series: Iterable[tuple[Mapping[str, str], Samples]] = ()) -> None:
        self._series: dict[Labels, SelectedSeries] = {}
        for labels, samples in series:
            pairs = list(samples)
            times = np.array([time for time, _ in pairs], dtype=np.int64)
            self.add(labels, times, np.array([value for _, value in pairs], dtype=np.float64))

    def add(
        self,
        labels: Mapping[str, str],
        timestamps: npt.NDArray[np.int64],
        values: npt.NDArray[np.float64],
    ) -> None:
        """Add samples, in any order, to the series with these labels. NaNs keep their bits."""
        name = make_labels(labels.items())
        offsets = np.array([0, len(timestamps)], dtype=np.int64)
        added = SelectedSeries([name], offsets, timestamps, values)
        earlier = [self._series[name]] if name in self._series else []
        self._series[name] = merge_samples([*earlier, added])

    def select(
        self, matchers: Sequence[LabelMatcher], start_ms: int, end_ms: int, samples_max: int
    ) -> SelectedSeries:
        """Return the series in the order of their labels: see `SampleSource`."""
        names = sorted(self._series)
        found: list[Labels] = []
        times: list[npt.NDArray[np.int64]] = []
        values: list[npt.NDArray[np.float64]] = []
        count = 0
        for position in np.flatnonzero(matching_series(names, matchers)):
            one = self._series[names[position]]
            begin = np.searchsorted(one.timestamps, start_ms, "left")
            end = np.searchsorted(one.timestamps, end_ms, "right")
            if begin < end:
                found.append(names[position])
                times.append(one.timestamps[begin:end])
                values.append(one.values[begin:end])
                count += int(end - begin)
                check_samples_max(count, samples_max)
        return SelectedSeries(
            found,
            np.cumsum([0, *(len(each) for each in times)], dtype=np.int64),
            np.concatenate(times) if times else np.empty(0, dtype=np.int64),
            np.concatenate(values) if values else np.empty(0, dtype=np.float64),
        )
