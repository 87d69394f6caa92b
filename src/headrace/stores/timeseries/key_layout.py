"""Under which keys a time-series store keeps what. Pure.

    01              StoreCounters: the next ids
    02 fingerprint  dictionary: the id of the series
    03 id           forward index: the labels of the series
    04 name 00 hash inverted index: a value of the label, and the series that have it
    05 bucket       BucketRecord: which series have samples in this hour, and in which chunks
    06 bucket chunk samples
    07 metric       what a sender said about a metric

A batch writes all that belongs to its samples. Chunks never change; every other record is replaced
as a whole.
"""

from __future__ import annotations

import hashlib

import msgspec

BUCKET_MS = 3_600_000
"""A bucket is an hour. It begins at a multiple of this."""
BUCKET_LEAST = -(1 << 31)
BUCKET_MOST = (1 << 31) - 1
SERIES_MOST = (1 << 32) - 1
"""Ids fit 32 bits: those of roaring bitmaps."""

COUNTERS_KEY = b"\x01"
DICTIONARY = b"\x02"
FORWARD = b"\x03"
INVERTED = b"\x04"
BUCKETS = b"\x05"
CHUNKS = b"\x06"
METADATA = b"\x07"

_HASH_BYTES = 16


class StoreCounters(msgspec.Struct, frozen=True):
    """The next ids, as stored. They only grow, so that no id is ever used again."""

    next_series: int = 1
    next_chunk: int = 1
    index_version: int = 0
    """Grows whenever a series is added or removed."""
    format: int = 1


def dictionary_key(fingerprint: bytes) -> bytes:
    return DICTIONARY + fingerprint


def forward_key(series: int) -> bytes:
    return FORWARD + series.to_bytes(4, "big")


def name_prefix(name: str) -> bytes:
    """Begins the keys of all values of a label. No name contains the zero byte at its end."""
    return INVERTED + name.encode() + b"\x00"


def inverted_key(name: str, value: str) -> bytes:
    """Values may be longer than keys, so a cryptographic hash stands for them."""
    digest = hashlib.blake2b(value.encode(), digest_size=_HASH_BYTES).digest()
    return name_prefix(name) + digest


def bucket_key(bucket: int) -> bytes:
    return BUCKETS + _bucket_bytes(bucket)


def bucket_of_key(key: bytes) -> int:
    return int.from_bytes(key[1:5], "big") + BUCKET_LEAST


def chunk_key(bucket: int, chunk: int) -> bytes:
    return CHUNKS + _bucket_bytes(bucket) + chunk.to_bytes(8, "big")


def metadata_key(metric: str) -> bytes:
    return METADATA + metric.encode()


def _bucket_bytes(bucket: int) -> bytes:
    """Return bytes that sort as the buckets do, those before 1970 included."""
    return (bucket - BUCKET_LEAST).to_bytes(4, "big")
