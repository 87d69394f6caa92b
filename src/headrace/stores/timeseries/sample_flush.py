"""Moves samples into the key-value store: everything that belongs to a flush in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from headrace.decoders import decode_msgpack
from headrace.errors import VersionError
from headrace.ingest.contract import FlushResult
from headrace.stores.kv.contract import (
    KeyValueSnapshot,
    KeyValueStore,
    WriteBatch,
    WriteSequence,
    prefix_end,
)
from headrace.stores.timeseries.chunks.bucket_record import BucketRecord
from headrace.stores.timeseries.chunks.chunk_format import SeriesSamples
from headrace.stores.timeseries.chunks.chunk_writer import (
    ChunkWriter,
    group_samples,
    sample_ids,
)
from headrace.stores.timeseries.index.series_dictionary import SeriesDictionary
from headrace.stores.timeseries.key_layout import (
    BUCKET_MS,
    BUCKETS,
    COUNTERS_KEY,
    StoreCounters,
    bucket_key,
    bucket_of_key,
    chunk_key,
    metadata_key,
)
from headrace.stores.timeseries.sample_batch import SampleBatch, SampleDelta

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StoredState:
    """What readers of a store share: it shows whole flushes, and nothing changes it.

    The snapshot is freed when the last reader lets go of it.
    """

    snapshot: KeyValueSnapshot
    counters: StoreCounters


def load_state(kv: KeyValueStore) -> StoredState:
    """Return what a store holds that was just opened."""
    snapshot = kv.snapshot()
    stored = snapshot.get(COUNTERS_KEY)
    if stored is None:
        return StoredState(snapshot, StoreCounters())
    counters = decode_msgpack(stored, StoreCounters)
    if counters.format != FORMAT:
        raise VersionError(
            f"the time-series store has format {counters.format}, not {FORMAT}",
            do="use the newer version of Headrace that wrote it",
        )
    return StoredState(snapshot, counters)


class SampleFlush:
    """The flush handler of a time-series store. The coordinator calls it from one thread."""

    def __init__(
        self,
        kv: KeyValueStore,
        dictionary: SeriesDictionary,
        oldest_ms: Callable[[], int | None],
    ) -> None:
        """`oldest_ms` tells which samples are kept: those from then on, or all if it is None."""
        self._kv = kv
        self._dictionary = dictionary
        self._oldest_ms = oldest_ms
        self.expired_samples = 0
        """Samples that came too late to be kept, since the store was opened."""
        self.merged_runs = 0

    def execute_flush(self, delta: SampleDelta, snapshot: StoredState) -> FlushResult[StoredState]:
        flush = _Flush(snapshot, self._dictionary, self._oldest_ms())
        for key, value in delta.records.items():
            flush.batch.put(key, value)
        flush.add(delta.batches)
        flush.drop_expired()
        flush.batch.put(COUNTERS_KEY, msgspec.msgpack.encode(flush.counters()))
        sequence = self._kv.write(flush.batch)
        # From here on the batch is there, and only now may anything else know what it did.
        self._dictionary.remember(flush.added)
        self._dictionary.forget(flush.removed)
        self.expired_samples += flush.expired_samples
        self.merged_runs += flush.merged_runs
        return FlushResult(StoredState(self._kv.snapshot(), flush.counters()), sequence)

    def wait_durable(self, sequence: int) -> None:
        self._kv.wait_durable(WriteSequence(sequence))


class _Flush:
    """One flush while its batch is made. It changes nothing but the batch."""

    def __init__(
        self, state: StoredState, dictionary: SeriesDictionary, oldest_ms: int | None
    ) -> None:
        self.batch = WriteBatch()
        self.added: dict[bytes, int] = {}
        self.removed: list[bytes] = []
        self.expired_samples = 0
        self.merged_runs = 0
        self._snapshot = state.snapshot
        self._before = state.counters
        self._next_chunk = state.counters.next_chunk
        self._dictionary = dictionary
        self._oldest_bucket = None if oldest_ms is None else oldest_ms // BUCKET_MS
        self._records: dict[int, BucketRecord] = {}
        """Buckets that the batch writes."""

    def counters(self) -> StoreCounters:
        changes = bool(self.added) + bool(self.removed)
        return StoreCounters(
            next_series=self._before.next_series + len(self.added),
            next_chunk=self._next_chunk,
            index_version=self._before.index_version + changes,
        )

    def add(self, batches: Sequence[SampleBatch]) -> None:
        for batch in batches:
            for metric, told in batch.metadata.items():
                self.batch.put(metadata_key(metric), msgspec.msgpack.encode(told))
        series, codes, timestamps, values = join_batches(batches)
        if self._oldest_bucket is not None:
            kept = timestamps >= self._oldest_bucket * BUCKET_MS
            self.expired_samples = int(len(kept) - np.count_nonzero(kept))
            if self.expired_samples:
                codes, timestamps, values = codes[kept], timestamps[kept], values[kept]
        if not len(codes):
            return
        if not np.bincount(codes, minlength=len(series)).all():
            # A sender may name a series and give no sample of it.
            series, codes = only_used(series, codes)
        resolved = self._dictionary.resolve(series, self._before.next_series, self._snapshot)
        self.added = resolved.added
        self._dictionary.put(self.batch, self.added, self._snapshot)
        self._add_chunks(group_samples(resolved.ids[codes], timestamps, values))

    def _add_chunks(self, samples: SeriesSamples) -> None:
        writer = ChunkWriter(self.batch, self._next_chunk, self._snapshot.get_many)
        parts = list(split_buckets(samples))
        stored = self._snapshot.get_many([bucket_key(bucket) for bucket, _ in parts])
        for (bucket, part), value in zip(parts, stored, strict=True):
            record = writer.add(bucket, BucketRecord.decode(value), part)
            self._records[bucket] = record
            self.batch.put(bucket_key(bucket), record.encode())
        self._next_chunk = writer.next_number
        self.merged_runs = writer.merged_runs

    def drop_expired(self) -> None:
        """Remove the buckets beyond retention, and the series that have no other bucket."""
        if self._oldest_bucket is None:
            return
        end = bucket_key(self._oldest_bucket)
        gone = BitMap()
        for key, value in self._snapshot.scan(BUCKETS, end):
            record = BucketRecord.decode(value)
            gone |= record.members
            self.batch.delete(key)
            for number in record.chunks["number"]:
                self.batch.delete(chunk_key(bucket_of_key(key), int(number)))
        if not gone:
            return
        for _, value in self._snapshot.scan(end, prefix_end(BUCKETS)):
            gone -= BucketRecord.decode(value).members
        for record in self._records.values():
            gone -= record.members
        self.removed = self._dictionary.remove(self.batch, gone, self._snapshot)


def join_batches(
    batches: Sequence[SampleBatch],
) -> tuple[list[bytes], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the series and samples of all batches. A series of several batches is there often."""
    series: list[bytes] = []
    codes = [np.empty(0, np.int64)]
    for batch in batches:
        codes.append(batch.codes + len(series))
        series += batch.series
    return (
        series,
        np.concatenate(codes),
        np.concatenate([np.empty(0, np.int64), *(batch.timestamps for batch in batches)]),
        np.concatenate([np.empty(0, np.float64), *(batch.values for batch in batches)]),
    )


def only_used(
    series: Sequence[bytes], codes: npt.NDArray[np.int64]
) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Leave out the series that no sample belongs to."""
    used, renumbered = np.unique(codes, return_inverse=True)
    return [series[code] for code in used], renumbered


def split_buckets(samples: SeriesSamples) -> list[tuple[int, SeriesSamples]]:
    """Return the samples of each bucket, ascending."""
    buckets = samples.timestamps // BUCKET_MS
    first, last = int(buckets.min()), int(buckets.max())
    if first == last:
        return [(first, samples)]
    ids = sample_ids(samples)
    order = np.argsort(buckets, kind="stable")
    cuts = np.flatnonzero(np.diff(buckets[order])) + 1
    return [
        (
            int(buckets[places[0]]),
            group_samples(ids[places], samples.timestamps[places], samples.values[places]),
        )
        for places in np.split(order, cuts)
    ]
