"""Reads one state of a store: series, samples and labels that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from headrace.decoders import decode_msgpack
from headrace.stores.kv.contract import prefix_end
from headrace.stores.timeseries.chunks.bucket_record import (
    CHUNK_ROW,
    BucketRecord,
    bitmap_ids,
    make_bitmap,
)
from headrace.stores.timeseries.chunks.chunk_cache import ChunkCache
from headrace.stores.timeseries.chunks.chunk_format import SeriesSamples, decode_chunk
from headrace.stores.timeseries.index.series_index import IndexCache, SeriesIndex
from headrace.stores.timeseries.key_layout import (
    BUCKET_LEAST,
    BUCKET_MOST,
    BUCKET_MS,
    METADATA,
    bucket_key,
    bucket_of_key,
    chunk_key,
)
from headrace.stores.timeseries.sample_batch import (
    TIME_LEAST_MS,
    TIME_MOST_MS,
    MetricMetadata,
    SampleDelta,
)
from headrace.stores.timeseries.sample_flush import StoredState
from headrace.stores.timeseries.sample_merge import (
    check_samples_max,
    merge_samples,
    no_series,
    sort_samples,
)
from headrace.stores.timeseries.series import LabelMatcher, Labels, SelectedSeries

_SCANNED_SAMPLES = 1_000_000
"""A scan yields about so many samples at once."""
_ALL_SAMPLES = 1 << 62
_READ_AT_ONCE = 64
"""Chunks are fetched in groups of so many."""


class SampleReader:
    """A `SampleSource` that shows a store as it was at one moment, however often it is asked.

    Any thread may use it. It holds a snapshot of the store, which is freed with it.
    """

    def __init__(
        self,
        state: StoredState,
        deltas: Sequence[SampleDelta],
        oldest_ms: int | None,
        index_cache: IndexCache,
        chunk_cache: ChunkCache,
    ) -> None:
        """`deltas` are writes that the state does not show, oldest first."""
        self._state = state
        self._deltas = deltas
        self._oldest_ms = oldest_ms
        self._index_cache = index_cache
        self._chunk_cache = chunk_cache
        self._index = SeriesIndex(state.snapshot, state.counters.index_version, index_cache)

    def select(
        self, matchers: Sequence[LabelMatcher], start_ms: int, end_ms: int, samples_max: int
    ) -> SelectedSeries:
        """Return all series that match, and their samples: see `SampleSource`."""
        start_ms, end_ms = self._not_expired(start_ms), _storable(end_ms)
        stored = self._select_stored(matchers, start_ms, end_ms, samples_max)
        if not self._deltas:
            return stored
        fresh = [each.select(matchers, start_ms, end_ms) for each in self._deltas]
        found = merge_samples([stored, *fresh])
        check_samples_max(len(found.timestamps), samples_max)
        return found

    def series(
        self,
        matchers: Sequence[LabelMatcher] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[Labels]:
        """Return the series that match and have samples in the hours of that time, sorted."""
        found = self._index.labels(self._find(matchers, start_ms, end_ms))
        if self._deltas:
            times = _whole_hours(start_ms, end_ms)
            found = list(
                {*found}.union(*(each.select(matchers, *times).labels for each in self._deltas))
            )
        return sorted(found)

    def label_names(
        self,
        matchers: Sequence[LabelMatcher] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[str]:
        """Return the names of the labels that those series have: see `series`."""
        if not matchers and start_ms is None and end_ms is None and not self._deltas:
            return list(self._index.names())
        found = self.series(matchers, start_ms, end_ms)
        return sorted({name for labels in found for name, _ in labels})

    def label_values(
        self,
        name: str,
        matchers: Sequence[LabelMatcher] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[str]:
        """Return the values that those series have in a label: see `series`."""
        if self._deltas:
            found = map(dict, self.series(matchers, start_ms, end_ms))
            return sorted({labels[name] for labels in found if name in labels})
        ids = self._find(matchers, start_ms, end_ms)
        known = self._index.values(name)
        values = known.values.to_pylist()
        return sorted(
            value
            for value, having in zip(values, known.series, strict=True)
            if having.intersect(ids)
        )

    def metadata(self, metric: str | None = None) -> dict[str, MetricMetadata]:
        """Return what senders said about metrics, about one or about all."""
        found = {
            key[1:].decode(): decode_msgpack(value, MetricMetadata)
            for key, value in self._state.snapshot.scan(METADATA, prefix_end(METADATA))
        }
        for delta in self._deltas:
            for batch in delta.batches:
                found |= batch.metadata
        return {name: told for name, told in sorted(found.items()) if metric in (None, name)}

    def buckets(
        self, start_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[tuple[int, BucketRecord]]:
        """Yield the buckets of that time that are not beyond retention, and their records."""
        first, last = _whole_hours(self._not_expired(start_ms), end_ms)
        for key, value in self._state.snapshot.scan(
            bucket_key(first // BUCKET_MS), bucket_key(last // BUCKET_MS) + b"\x00"
        ):
            yield bucket_of_key(key), BucketRecord.decode(value)

    def scan(
        self,
        matchers: Sequence[LabelMatcher] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> Iterator[SelectedSeries]:
        """Yield the samples hour by hour; an hour with many of them in groups of series."""
        start_ms = self._not_expired(start_ms)
        end_ms = TIME_MOST_MS if end_ms is None else _storable(end_ms)
        buckets = dict(self.buckets(start_ms, end_ms))
        of_deltas = {each for delta in self._deltas for each in delta.buckets()}
        for bucket in sorted({*buckets, *of_deltas}):
            begin = max(start_ms, bucket * BUCKET_MS)
            end = min(end_ms, (bucket + 1) * BUCKET_MS - 1)
            if self._deltas:
                # What is not flushed is small: it is brought into whole hours.
                found = iter([self.select(matchers, begin, end, _ALL_SAMPLES)])
            else:
                found = self._scan_bucket(matchers, buckets[bucket], bucket, begin, end)
            yield from (each for each in found if each.labels)

    def figures(self) -> dict[str, int | float | str]:
        """Return figures for people, about what is flushed."""
        members, rows = [BitMap()], [np.empty(0, dtype=CHUNK_ROW)]
        for _, record in self.buckets():
            members.append(record.members)
            rows.append(record.chunks)
        chunks = np.concatenate(rows)
        found: dict[str, int | float | str] = {
            "series": len(BitMap.union(*members)),
            "samples": int(chunks["samples"].sum()),
            "bytes": int(chunks["bytes"].sum()),
            "chunks": len(chunks),
            "buckets": len(rows) - 1,
        }
        if len(chunks):
            for name, time_ms in (
                ("oldest", chunks["first_ms"].min()),
                ("newest", chunks["last_ms"].max()),
            ):
                found[name] = str(np.datetime64(int(time_ms), "ms")) + "Z"
        return found

    def _scan_bucket(
        self,
        matchers: Sequence[LabelMatcher],
        record: BucketRecord,
        bucket: int,
        start_ms: int,
        end_ms: int,
    ) -> Iterator[SelectedSeries]:
        wanted = bitmap_ids(self._index.find(matchers, record.members))
        of_each = int(record.chunks["samples"].sum()) // max(1, len(record.members)) + 1
        group = max(1, _SCANNED_SAMPLES // of_each)
        for first in range(0, len(wanted), group):
            here = make_bitmap(wanted[first : first + group])
            rows = record.find(here, start_ms, end_ms)
            pieces = [pick(each, here, start_ms, end_ms) for each in self._chunks(bucket, rows)]
            yield self._with_labels(join_pieces([each for each in pieces if len(each.ids)]))

    def _with_labels(self, found: SeriesSamples) -> SelectedSeries:
        names = self._index.labels(make_bitmap(found.ids))
        return SelectedSeries(names, found.offsets, found.timestamps, found.values)

    def _not_expired(self, start_ms: int | None) -> int:
        times = [each for each in (start_ms, self._oldest_ms) if each is not None]
        return _storable(max(times, default=TIME_LEAST_MS))

    def _find(
        self, matchers: Sequence[LabelMatcher], start_ms: int | None, end_ms: int | None
    ) -> BitMap:
        members = [record.members for _, record in self.buckets(start_ms, end_ms)]
        return self._index.find(matchers, BitMap.union(*members) if members else BitMap())

    def _select_stored(
        self, matchers: Sequence[LabelMatcher], start_ms: int, end_ms: int, samples_max: int
    ) -> SelectedSeries:
        buckets = list(self.buckets(start_ms, end_ms)) if start_ms <= end_ms else []
        members = [record.members for _, record in buckets]
        wanted = self._index.find(matchers, BitMap.union(*members) if members else BitMap())
        pieces = []
        count = 0
        for bucket, record in buckets:
            here = wanted & record.members
            for chunk in self._chunks(bucket, record.find(here, start_ms, end_ms)):
                piece = pick(chunk, here, start_ms, end_ms)
                count += len(piece.timestamps)
                check_samples_max(count, samples_max)
                if len(piece.timestamps):
                    pieces.append(piece)
        return self._with_labels(join_pieces(pieces))

    def _chunks(self, bucket: int, rows: npt.NDArray[np.void]) -> Iterator[SeriesSamples]:
        """Yield the chunks, decoded, in the order of their numbers."""
        numbers = rows["number"].tolist()
        for begin in range(0, len(numbers), _READ_AT_ONCE):
            group = numbers[begin : begin + _READ_AT_ONCE]
            found = {number: self._chunk_cache.get(number) for number in group}
            missing = [number for number in group if found[number] is None]
            keys = [chunk_key(bucket, number) for number in missing]
            for number, stored in zip(missing, self._state.snapshot.get_many(keys), strict=True):
                chunk = decode_chunk(stored or b"", f"chunk {number} of bucket {bucket}")
                self._chunk_cache.add(number, chunk)
                found[number] = chunk
            yield from (chunk for chunk in found.values() if chunk is not None)


def pick(chunk: SeriesSamples, wanted: BitMap, start_ms: int, end_ms: int) -> SeriesSamples:
    """Return the samples of a chunk that belong to the series and the time."""
    ids, offsets = chunk.ids, chunk.offsets
    times, values = chunk.timestamps, chunk.values
    asked = bitmap_ids(wanted)
    if len(asked):
        places = np.minimum(np.searchsorted(asked, ids), len(asked) - 1)
        kept = asked[places] == ids
    else:
        kept = np.zeros(len(ids), dtype=np.bool_)
    if not kept.all():
        counts = np.diff(offsets)[kept]
        inside = _ranges(offsets[:-1][kept], counts)
        ids, times, values = ids[kept], times[inside], values[inside]
        offsets = np.append(0, np.cumsum(counts))
    in_time = (times >= start_ms) & (times <= end_ms)
    if in_time.all():
        return SeriesSamples(ids, offsets, times, values)
    sums = np.append(0, np.cumsum(in_time))
    counts = np.diff(sums[offsets])
    some = counts > 0
    return SeriesSamples(
        ids[some], np.append(0, np.cumsum(counts[some])), times[in_time], values[in_time]
    )


def join_pieces(pieces: Sequence[SeriesSamples]) -> SeriesSamples:
    """Return the samples of all pieces by series and time. At one time, a later piece counts."""
    if not pieces:
        nothing = no_series()
        return SeriesSamples(
            np.empty(0, np.int64), nothing.offsets, nothing.timestamps, nothing.values
        )
    if len(pieces) == 1:
        return pieces[0]
    # Whole series are brought together first: mostly nothing is left to sort then.
    ids = np.concatenate([piece.ids for piece in pieces])
    counts = np.concatenate([np.diff(piece.offsets) for piece in pieces])
    starts = np.cumsum(counts) - counts
    order = np.argsort(ids, kind="stable")
    inside = _ranges(starts[order], counts[order])
    times = np.concatenate([piece.timestamps for piece in pieces])[inside]
    values = np.concatenate([piece.values for piece in pieces])[inside]
    names = np.repeat(ids[order], counts[order])
    last, begins = sort_samples(names, times)
    offsets = np.append(begins, len(last)).astype(np.int64)
    return SeriesSamples(names[last][begins], offsets, times[last], values[last])


def _ranges(starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of all ranges that begin at `starts` and have `counts` numbers."""
    shifts = starts - (np.cumsum(counts) - counts)
    numbers = np.arange(counts.sum(), dtype=np.int64)
    numbers += np.repeat(shifts, counts)
    return numbers


def _whole_hours(start_ms: int | None, end_ms: int | None) -> tuple[int, int]:
    """Return the first and last millisecond of the hours of that time."""
    first = BUCKET_LEAST if start_ms is None else start_ms // BUCKET_MS
    last = BUCKET_MOST if end_ms is None else end_ms // BUCKET_MS
    first, last = (min(max(each, BUCKET_LEAST), BUCKET_MOST) for each in (first, last))
    return first * BUCKET_MS, (last + 1) * BUCKET_MS - 1


def _storable(time_ms: int) -> int:
    """Return the time, or one just outside of all that can be stored if it is further away."""
    return min(max(time_ms, TIME_LEAST_MS - 1), TIME_MOST_MS + 1)
