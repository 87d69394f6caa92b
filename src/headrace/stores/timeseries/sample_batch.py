"""Samples that are about to be written, and the delta that collects them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import DocumentError
from headrace.stores.kv.contract import KEY_BYTES_MAX
from headrace.stores.timeseries.key_layout import (
    BUCKET_LEAST,
    BUCKET_MOST,
    BUCKET_MS,
    METADATA,
)
from headrace.stores.timeseries.labels import METRIC, check_value, decode_labels, shorten
from headrace.stores.timeseries.matchers import matching_series
from headrace.stores.timeseries.sample_merge import merge_samples, sort_samples
from headrace.stores.timeseries.series import LabelMatcher, SelectedSeries

TIME_LEAST_MS = BUCKET_LEAST * BUCKET_MS
TIME_MOST_MS = (BUCKET_MOST + 1) * BUCKET_MS - 1
_SAMPLE_BYTES = 24
_SERIES_BYTES = 100
"""About what Python needs for the labels of a series, besides their bytes."""
_METADATA_BYTES = 200
"""About what Python needs for what is told about a metric, besides the texts."""
METADATA_NAME_BYTES_MAX = KEY_BYTES_MAX - len(METADATA)


class MetricMetadata(msgspec.Struct, frozen=True):
    """What a sender said about a metric."""

    type: str = "unknown"
    help: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """Samples in any order. Sample i belongs to the series `series[codes[i]]`."""

    series: Sequence[bytes]
    """Labels as bytes: see `labels.encode_labels`."""
    codes: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    metadata: dict[str, MetricMetadata] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Takes as long as there are series."""
        of_series = sum(map(len, self.series)) + _SERIES_BYTES * len(self.series)
        of_metadata = sum(
            _METADATA_BYTES + len(metric) + len(told.help) + len(told.unit)
            for metric, told in self.metadata.items()
        )
        return of_series + _SAMPLE_BYTES * len(self.codes) + of_metadata

    def select(
        self, matchers: Sequence[LabelMatcher], start_ms: int, end_ms: int
    ) -> SelectedSeries:
        """Return the series that match, and their samples of that time."""
        names = [decode_labels(each) for each in self.series]
        kept = matching_series(names, matchers)[self.codes]
        kept &= (self.timestamps >= start_ms) & (self.timestamps <= end_ms)
        codes = self.codes[kept]
        order, starts = sort_samples(codes, self.timestamps[kept])
        found = [names[code] for code in codes[order][starts]]
        offsets = np.append(starts, len(order)).astype(np.int64)
        return SelectedSeries(
            found, offsets, self.timestamps[kept][order], self.values[kept][order]
        )


def check_times(timestamps: npt.NDArray[np.int64], latest_ms: int) -> None:
    """Raise DocumentError, which names the sample, if a time cannot be stored."""
    bad = np.flatnonzero((timestamps > min(latest_ms, TIME_MOST_MS)) | (timestamps < TIME_LEAST_MS))
    if len(bad):
        first = int(bad[0])
        raise DocumentError(
            f"sample {first} is at {timestamps[first]} ms since 1970, too far in the "
            f"{'future' if timestamps[first] > 0 else 'past'}",
            do="give times in milliseconds, or allow more with ahead_s",
        )


def check_metadata(metadata: Mapping[str, MetricMetadata]) -> None:
    """Raise DocumentError if what is told about a metric cannot be stored."""
    for metric, told in metadata.items():
        where = f"the metadata of {shorten(metric)}"
        name_bytes = check_value(METRIC, metric, where)
        if not 1 <= name_bytes <= METADATA_NAME_BYTES_MAX:
            raise DocumentError(
                f"{where} names a metric of {name_bytes} bytes",
                do=f"tell of metrics whose names have at most {METADATA_NAME_BYTES_MAX} bytes",
            )
        for name, text in (("type", told.type), ("help", told.help), ("unit", told.unit)):
            check_value(name, text, where)


class SampleDelta:
    """Samples, and records of tasks, that are not flushed yet: see `ingest.contract.Delta`."""

    __slots__ = ("batches", "expire", "records", "size_bytes")

    def __init__(
        self,
        batches: Sequence[SampleBatch] = (),
        records: dict[bytes, bytes] | None = None,
        *,
        expire: bool = False,
    ) -> None:
        self.batches = list(batches)
        """Oldest first: of two samples at the same time the later one counts."""
        self.records = dict(records or {})
        """Records of checkpoints to put, by key."""
        self.expire = expire
        """True if a flush must look for buckets beyond retention even without samples."""
        self.size_bytes = sum(each.size_bytes for each in batches) + sum(
            len(key) + len(value) for key, value in self.records.items()
        )

    @property
    def is_empty(self) -> bool:
        return not (self.batches or self.records or self.expire)

    def merge(self, other: SampleDelta) -> None:
        self.batches += other.batches
        self.records.update(other.records)
        self.expire |= other.expire
        self.size_bytes += other.size_bytes

    def copy(self) -> SampleDelta:
        copied = SampleDelta(records=self.records, expire=self.expire)
        copied.batches = list(self.batches)
        copied.size_bytes = self.size_bytes
        return copied

    def buckets(self) -> set[int]:
        """Return the hours that have samples in the delta."""
        return {
            int(bucket)
            for batch in self.batches
            for bucket in np.unique(batch.timestamps // BUCKET_MS)
        }

    def select(
        self, matchers: Sequence[LabelMatcher], start_ms: int, end_ms: int
    ) -> SelectedSeries:
        """Return the series of the delta that match, and their samples of that time."""
        return merge_samples([each.select(matchers, start_ms, end_ms) for each in self.batches])
