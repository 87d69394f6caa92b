"""Runs of a bucket stay few however often it is flushed, and the latest sample counts."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.stores.kv.contract import WriteBatch
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.timeseries.chunks import chunk_writer
from headrace.stores.timeseries.chunks.bucket_record import (
    CHUNK_ROW,
    BucketRecord,
    make_bitmap,
)
from headrace.stores.timeseries.chunks.chunk_cache import ChunkCache
from headrace.stores.timeseries.chunks.chunk_format import SeriesSamples, decode_chunk
from headrace.stores.timeseries.chunks.chunk_writer import (
    RUNS_OF_LEVEL,
    ChunkWriter,
    choose_merge,
    cut_chunks,
    group_samples,
)
from headrace.stores.timeseries.key_layout import CHUNKS, chunk_key

BUCKET = 7


def samples_of(ids: list[int], times: list[int], values: list[float]) -> SeriesSamples:
    return group_samples(np.array(ids), np.array(times), np.array(values, dtype=np.float64))


class FlushedBucket:
    """One bucket, flushed again and again."""

    def __init__(self) -> None:
        self.kv = MemoryKeyValueStore()
        self.record = BucketRecord.empty()
        self.next_number = 1

    def flush(self, ids: list[int], times: list[int], values: list[float]) -> int:
        """Return how many runs the flush merged."""
        batch = WriteBatch()
        with self.kv.snapshot() as snapshot:
            writer = ChunkWriter(batch, self.next_number, snapshot.get_many)
            self.record = writer.add(BUCKET, self.record, samples_of(ids, times, values))
        self.kv.write(batch)
        self.next_number = writer.next_number
        return writer.merged_runs

    def contents(self) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], float] = {}
        with self.kv.snapshot() as snapshot:
            for number in self.record.chunks["number"]:
                chunk = decode_chunk(snapshot.get(chunk_key(BUCKET, int(number))) or b"")
                ids = np.repeat(chunk.ids, np.diff(chunk.offsets))
                for name, time, value in zip(ids, chunk.timestamps, chunk.values, strict=True):
                    found[int(name), int(time)] = float(value)
        return found

    def stored_chunks(self) -> int:
        with self.kv.snapshot() as snapshot:
            return len(list(snapshot.scan(CHUNKS, None)))


def test_many_flushes_leave_few_runs_and_nothing_behind() -> None:
    bucket = FlushedBucket()
    expected = {}
    merged = 0
    for number in range(600):
        name, time, value = number % 3, number % 100, float(number)
        merged += bucket.flush([name], [time], [value])
        expected[name, time] = value
        levels = bucket.record.chunks["level"].tolist()
        assert levels == sorted(levels, reverse=True)
        assert max(levels.count(level) for level in levels) < RUNS_OF_LEVEL
        assert bucket.stored_chunks() == len(bucket.record.chunks)
    assert bucket.contents() == expected
    assert merged > 500
    # A sample is written again once for each level: fewer times than there are levels.
    assert len(bucket.record.chunks) < 3 * RUNS_OF_LEVEL
    assert bucket.next_number == 601


def test_runs_that_are_too_large_together_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_writer, "MERGED_SAMPLES_MAX", 20)
    bucket = FlushedBucket()
    for number in range(30):
        bucket.flush([1, 1, 1], [number, number + 1, 50], [1.0, 2.0, float(number)])
    assert len(bucket.record.chunks) == 30
    assert bucket.contents()[1, 50] == 29.0
    merged = [bucket.flush([1], [100 + number], [0.0]) for number in range(40)]
    assert sum(merged) > 0, "small runs after large ones are merged"
    assert bucket.contents()[1, 50] == 29.0


@pytest.mark.parametrize(("samples", "merged"), [(1, 7), (2, 0)])
def test_runs_of_as_many_samples_as_are_allowed_are_merged(
    samples: int, merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_writer, "MERGED_SAMPLES_MAX", 50)
    assert len(choose_merge([run_of(0, 7)] * 7, samples)[1]) == merged


def run_of(level: int, samples: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    row = np.zeros(1, dtype=CHUNK_ROW)
    row["level"], row["samples"] = level, samples
    return row


@pytest.mark.parametrize(
    ("levels", "kept", "level"),
    [
        ([], 0, 0),
        ([0] * 6, 6, 0),
        ([0] * 7, 0, 1),
        ([1] + [0] * 7, 1, 1),
        ([1] * 6 + [0] * 7, 6, 1),
        ([1] * 7 + [0] * 7, 0, 2),
        ([2] * 7 + [1] * 7 + [0] * 7, 0, 3),
        ([2] * 7 + [1] * 6 + [0] * 7, 13, 1),
        ([1] * 7 + [0] * 6, 13, 0),
    ],
)
def test_the_newest_runs_of_a_level_are_merged(levels: list[int], kept: int, level: int) -> None:
    runs = [run_of(each, 1) for each in levels]
    stay, merged, of_level = choose_merge(runs, 1)
    assert (len(stay), len(merged), of_level) == (kept, len(levels) - kept, level)
    assert [id(run) for run in [*stay, *merged]] == [id(run) for run in runs], "in their order"


def test_samples_are_cut_between_series() -> None:
    samples = samples_of([1] * 5 + [2] * 3 + [3] * 40 + [4] * 2 + [5], [*range(51)], [0.0] * 51)
    parts = cut_chunks(samples, 8)
    assert [part.ids.tolist() for part in parts] == [[1, 2], [3], [4, 5]]
    assert [part.offsets.tolist() for part in parts] == [[0, 5, 8], [0, 40], [0, 2, 3]]
    assert np.concatenate([part.timestamps for part in parts]).tolist() == [*range(51)]
    assert cut_chunks(samples, 51) == [samples]


def test_a_run_of_many_chunks_is_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_writer, "CHUNK_SAMPLES", 2)
    bucket = FlushedBucket()
    for number in range(7):
        bucket.flush([1, 2, 3, 4], [number] * 4, [0.0] * 4)
    assert len(bucket.record.runs()) == 7
    assert len(bucket.record.chunks) == 14
    bucket.flush([1], [9], [0.0])
    assert len(bucket.record.runs()) == 1
    assert len(bucket.contents()) == 29


def test_a_record_finds_the_chunks_of_series_and_times() -> None:
    rows = np.zeros(4, dtype=CHUNK_ROW)
    rows["number"] = [1, 2, 3, 4]
    rows["first_id"], rows["last_id"] = [1, 10, 20, 1], [9, 19, 29, 29]
    rows["first_ms"], rows["last_ms"] = [0, 0, 0, 50], [40, 40, 40, 60]
    record = BucketRecord(make_bitmap(np.arange(1, 30)), rows)

    def found(ids: list[int], start_ms: int, end_ms: int) -> list[int]:
        numbers: list[int] = record.find(make_bitmap(np.array(ids)), start_ms, end_ms)[
            "number"
        ].tolist()
        return numbers

    assert found([5], 0, 100) == [1, 4]
    assert found([9, 20], 0, 49) == [1, 3]
    assert found([10, 19], 40, 49) == [2]
    assert found([5], 41, 49) == []
    assert found([29], 60, 60) == [4]
    assert found([30], 0, 100) == []
    assert found([], 0, 100) == []
    assert BucketRecord.decode(record.encode()).members == record.members
    assert BucketRecord.decode(record.encode()).chunks.tolist() == rows.tolist()


def test_the_cache_keeps_what_was_used_last() -> None:
    chunk = samples_of([1] * 9, [*range(9)], [0.0] * 9)  # 160 bytes
    cache = ChunkCache(400)
    cache.add(1, chunk)
    cache.add(2, chunk)
    assert cache.get(1) is chunk
    cache.add(2, chunk)
    cache.add(3, chunk)
    assert cache.get(2) is None
    assert cache.get(1) is cache.get(3) is chunk
    for number in range(4, 20):
        cache.add(number, chunk)
        assert number == 4 or cache.get(number - 1) is chunk
        assert cache.get(number) is chunk
        assert cache.get(number - 2) is None, "it holds no more than it may"
    large = samples_of([1] * 25, [*range(25)], [0.0] * 25)
    cache.add(20, large)
    assert cache.get(20) is None
    assert cache.get(19) is chunk, "nothing makes room for what does not fit at all"
    tight = ChunkCache(159)
    tight.add(1, chunk)
    assert tight.get(1) is None
