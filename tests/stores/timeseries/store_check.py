"""Looks at every record of a time-series store: do they agree with each other?"""

from __future__ import annotations

from collections import defaultdict

import msgspec
from pyroaring import BitMap

from headrace.stores.kv.contract import KeyValueSnapshot, prefix_end
from headrace.stores.timeseries.chunks.bucket_record import BucketRecord
from headrace.stores.timeseries.chunks.chunk_format import decode_chunk
from headrace.stores.timeseries.index.series_dictionary import decode_posting
from headrace.stores.timeseries.key_layout import (
    BUCKET_MS,
    BUCKETS,
    CHUNKS,
    COUNTERS_KEY,
    DICTIONARY,
    FORWARD,
    INVERTED,
    StoreCounters,
    bucket_of_key,
    chunk_key,
    dictionary_key,
    inverted_key,
)
from headrace.stores.timeseries.labels import decode_labels, fingerprint
from headrace.stores.timeseries.series import Labels


def check_records(snapshot: KeyValueSnapshot) -> dict[int, Labels]:
    """Check that no sample is without its series, and no series without samples.

    Returns the labels of each id.
    """

    def entries(prefix: bytes) -> dict[bytes, bytes]:
        return dict(snapshot.scan(prefix, prefix_end(prefix)))

    stored = snapshot.get(COUNTERS_KEY)
    counters = msgspec.msgpack.decode(stored, type=StoreCounters) if stored else StoreCounters()
    forward = {int.from_bytes(key[1:], "big"): value for key, value in entries(FORWARD).items()}
    assert all(series < counters.next_series for series in forward), "ids are below the next"
    assert entries(DICTIONARY) == {
        dictionary_key(fingerprint(encoded)): series.to_bytes(4, "big")
        for series, encoded in forward.items()
    }
    labels = {series: decode_labels(encoded) for series, encoded in forward.items()}
    postings: defaultdict[tuple[str, str], BitMap] = defaultdict(BitMap)
    for series, pairs in labels.items():
        for pair in pairs:
            postings[pair].add(series)
    found = {key: decode_posting(value) for key, value in entries(INVERTED).items()}
    assert found == {
        inverted_key(name, value): (value, having) for (name, value), having in postings.items()
    }
    members = BitMap()
    chunks = set()
    for key, value in entries(BUCKETS).items():
        bucket, record = bucket_of_key(key), BucketRecord.decode(value)
        members |= record.members
        chunks |= check_bucket(snapshot, bucket, record)
        assert record.chunks["number"].max() < counters.next_chunk
    assert members == BitMap(forward), "series and samples belong together"
    assert set(entries(CHUNKS)) == chunks, "every chunk is in the record of its bucket"
    return labels


def check_bucket(snapshot: KeyValueSnapshot, bucket: int, record: BucketRecord) -> set[bytes]:
    """Check that the chunks of a bucket are what its record says; return their keys."""
    keys = set()
    ids = BitMap()
    assert list(record.chunks["number"]) == sorted(set(record.chunks["number"]))
    for row in record.chunks:
        key = chunk_key(bucket, int(row["number"]))
        stored = snapshot.get(key)
        assert stored is not None, "every chunk of a record is there"
        chunk = decode_chunk(stored)
        ids |= BitMap(chunk.ids.tolist())
        keys.add(key)
        assert len(stored) == row["bytes"]
        assert len(chunk.timestamps) == row["samples"]
        assert (chunk.ids[0], chunk.ids[-1]) == (row["first_id"], row["last_id"])
        assert (chunk.timestamps.min(), chunk.timestamps.max()) == (
            row["first_ms"],
            row["last_ms"],
        )
        assert (chunk.timestamps // BUCKET_MS == bucket).all()
    assert ids == record.members
    return keys
