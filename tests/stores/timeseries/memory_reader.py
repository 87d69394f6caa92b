"""What the HTTP API reads of a store, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.stores.timeseries.labels import make_labels
from headrace.stores.timeseries.matchers import matching_series
from headrace.stores.timeseries.memory_source import MemorySource
from headrace.stores.timeseries.series import LabelMatcher, Labels, SelectedSeries

Written = Sequence[tuple[Mapping[str, str], Sequence[tuple[int, float]]]]


@dataclass(frozen=True)
class MetricNote:
    type: str
    help: str
    unit: str


class MemoryReader:
    def __init__(
        self,
        source: MemorySource,
        series: Written,
        metadata: Mapping[str, MetricNote] | None = None,
    ) -> None:
        self._source = source
        self._series = series
        self._metadata = metadata or {}

    def select(
        self, matchers: Sequence[LabelMatcher], start_ms: int, end_ms: int, samples_max: int
    ) -> SelectedSeries:
        return self._source.select(matchers, start_ms, end_ms, samples_max)

    def series(
        self, matchers: Sequence[LabelMatcher], start_ms: int | None, end_ms: int | None
    ) -> list[Labels]:
        labels = [
            make_labels(each.items())
            for each, samples in self._series
            if any(
                (start_ms is None or start_ms <= time) and (end_ms is None or time <= end_ms)
                for time, _ in samples
            )
        ]
        kept = matching_series(labels, matchers)
        return sorted(each for each, is_kept in zip(labels, kept, strict=True) if is_kept)

    def label_names(
        self, matchers: Sequence[LabelMatcher], start_ms: int | None, end_ms: int | None
    ) -> list[str]:
        found = self.series(matchers, start_ms, end_ms)
        return sorted({name for each in found for name, _ in each})

    def label_values(
        self,
        name: str,
        matchers: Sequence[LabelMatcher],
        start_ms: int | None,
        end_ms: int | None,
    ) -> list[str]:
        found = map(dict, self.series(matchers, start_ms, end_ms))
        return sorted({each[name] for each in found if name in each})

    def metadata(self, metric: str | None) -> Mapping[str, MetricNote]:
        known = self._metadata.items()
        return {name: each for name, each in known if metric in (None, name)}
