"""Adds samples to a bucket, and merges its runs, so that they stay few. Pure.

Eight runs of one level become one of the next level, in the batch of the flush that makes the
eighth. So a sample is written again once for each level, and a reader finds few chunks however
often the store is flushed. Runs that are too large together stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.stores.kv.contract import WriteBatch
from headrace.stores.timeseries.chunks.bucket_record import (
    CHUNK_ROW,
    BucketRecord,
    make_bitmap,
)
from headrace.stores.timeseries.chunks.chunk_format import (
    SeriesSamples,
    decode_chunk,
    encode_chunk,
)
from headrace.stores.timeseries.key_layout import chunk_key
from headrace.stores.timeseries.sample_merge import sort_samples

RUNS_OF_LEVEL = 8
MERGED_SAMPLES_MAX = 4_000_000
"""Runs with more samples together are not merged: a flush would take too long."""
CHUNK_SAMPLES = 64 * 1024
"""A chunk has about this many samples; more only if a single series has."""

Rows = npt.NDArray[np.void]


def group_samples(
    ids: npt.NDArray[np.int64],
    timestamps: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
) -> SeriesSamples:
    """Return samples in any order by series and time. Of samples at the same time the last counts.

    `ids` names the series of each sample.
    """
    order, starts = sort_samples(ids, timestamps)
    offsets = np.append(starts, len(order)).astype(np.int64)
    return SeriesSamples(ids[order][starts], offsets, timestamps[order], values[order])


def sample_ids(samples: SeriesSamples) -> npt.NDArray[np.int64]:
    """Return the id of the series of each sample."""
    return np.repeat(samples.ids, np.diff(samples.offsets))


@dataclass
class ChunkWriter:
    """Writes chunks to a batch. It gives them numbers that no chunk had before."""

    batch: WriteBatch
    next_number: int
    get_many: Callable[[Sequence[bytes]], list[bytes | None]]
    """Reads chunks that earlier batches wrote."""
    merged_runs: int = field(default=0)

    def add(self, bucket: int, record: BucketRecord, samples: SeriesSamples) -> BucketRecord:
        """Put the samples into the batch; return the new record of the bucket."""
        members = record.members | make_bitmap(samples.ids)
        runs, merged, level = choose_merge(record.runs(), len(samples.timestamps))
        if merged:
            samples = self._merge(bucket, merged, samples)
        added = self._put_run(bucket, samples, level)
        return BucketRecord(members, np.concatenate([*runs, added]))

    def _merge(self, bucket: int, runs: list[Rows], samples: SeriesSamples) -> SeriesSamples:
        rows = np.concatenate(runs)
        keys = [chunk_key(bucket, int(number)) for number in rows["number"]]
        parts = [
            decode_chunk(stored or b"", f"chunk {number} of bucket {bucket}")
            for number, stored in zip(rows["number"], self.get_many(keys), strict=True)
        ]
        for key in keys:
            self.batch.delete(key)
        self.merged_runs += len(runs)
        parts.append(samples)
        return group_samples(
            np.concatenate([sample_ids(part) for part in parts]),
            np.concatenate([part.timestamps for part in parts]),
            np.concatenate([part.values for part in parts]),
        )

    def _put_run(self, bucket: int, samples: SeriesSamples, level: int) -> Rows:
        run = self.next_number
        rows = []
        for part in cut_chunks(samples, CHUNK_SAMPLES):
            encoded = encode_chunk(part)
            number = self.next_number
            self.next_number += 1
            self.batch.put(chunk_key(bucket, number), encoded)
            times = part.timestamps
            rows.append(
                (
                    *(number, run, level, len(times), len(encoded)),
                    *(part.ids[0], part.ids[-1], times.min(), times.max()),
                )
            )
        return np.array(rows, dtype=CHUNK_ROW)


def choose_merge(runs: list[Rows], samples: int) -> tuple[list[Rows], list[Rows], int]:
    """Return the runs that stay, those to merge with a new run of so many samples, and its level.

    Only the newest runs are merged: none may change places with one that stays.
    """
    level = 0
    kept = list(runs)
    merged: list[Rows] = []
    while len(kept) >= RUNS_OF_LEVEL - 1:
        newest = kept[1 - RUNS_OF_LEVEL :]
        if any(int(run["level"][0]) > level for run in newest):
            break
        total = samples + sum(int(run["samples"].sum()) for run in newest)
        if total > MERGED_SAMPLES_MAX:
            break
        kept, merged, samples = kept[: 1 - RUNS_OF_LEVEL], newest + merged, total
        level += 1
    return kept, merged, level


def cut_chunks(samples: SeriesSamples, chunk_samples: int) -> list[SeriesSamples]:
    """Cut between series, into parts of about `chunk_samples`."""
    if len(samples.timestamps) <= chunk_samples:
        return [samples]
    pieces = samples.offsets[:-1] // chunk_samples
    begins = np.flatnonzero(np.diff(pieces, prepend=-1))
    ends = np.append(begins[1:], len(samples.ids))
    parts = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        first, last = samples.offsets[begin], samples.offsets[end]
        parts.append(
            SeriesSamples(
                samples.ids[begin:end],
                samples.offsets[begin : end + 1] - first,
                samples.timestamps[first:last],
                samples.values[first:last],
            )
        )
    return parts
