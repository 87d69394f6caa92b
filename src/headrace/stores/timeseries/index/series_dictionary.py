"""Gives series their ids, and writes who has which, in the batch of their first samples.

An id that was given is in the same atomic write as the samples that name it, so no sample is ever
without its series. What this object remembers was written before: a batch that fails leaves no
trace here.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from headrace.errors import DataError, StorageError
from headrace.stores.kv.contract import KeyValueSnapshot, WriteBatch
from headrace.stores.timeseries.chunks.bucket_record import bitmap_ids
from headrace.stores.timeseries.key_layout import (
    SERIES_MOST,
    dictionary_key,
    forward_key,
    inverted_key,
)
from headrace.stores.timeseries.labels import decode_labels, fingerprint

_LENGTH = struct.Struct("<I")
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class ResolvedSeries:
    """The ids of the series of a flush."""

    ids: npt.NDArray[np.int64]
    added: dict[bytes, int]
    """Series that no batch wrote yet, by their labels as bytes."""


class SeriesDictionary:
    """Used by the thread that flushes, and by no other."""

    def __init__(self, cached_max: int) -> None:
        self._cached_max = cached_max
        self._ids: dict[bytes, int] = {}
        """Ids of series that are stored. It may lack any of them."""

    def resolve(
        self, encoded: Sequence[bytes], next_series: int, snapshot: KeyValueSnapshot
    ) -> ResolvedSeries:
        """Return the id of each series, given by its labels as bytes; new ones from `next_series`.

        `snapshot` shows every batch that was written.
        """
        found = [self._ids.get(each, 0) for each in encoded]
        added: dict[bytes, int] = {}
        if not all(found):
            unknown = list(dict.fromkeys(compress(encoded, (not each for each in found))))
            stored = snapshot.get_many([dictionary_key(fingerprint(each)) for each in unknown])
            looked_up: dict[bytes, int] = {}
            for each, value in zip(unknown, stored, strict=True):
                if value is None:
                    added[each] = next_series + len(added)
                else:
                    looked_up[each] = int.from_bytes(value, "big")
            if next_series + len(added) - 1 > SERIES_MOST:
                raise StorageError(
                    f"the store has used all {SERIES_MOST} ids of series",
                    do="write to another store",
                )
            # Not by what is remembered: that may be forgotten at any time.
            found = [
                known or looked_up.get(each) or added[each]
                for known, each in zip(found, encoded, strict=True)
            ]
            self.remember(looked_up)
        return ResolvedSeries(np.array(found, dtype=np.int64), added)

    def put(self, batch: WriteBatch, added: dict[bytes, int], snapshot: KeyValueSnapshot) -> None:
        """Put the dictionary, the forward and the inverted index of new series into the batch."""
        postings: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for encoded, series in added.items():
            batch.put(dictionary_key(fingerprint(encoded)), series.to_bytes(_ID_BYTES, "big"))
            batch.put(forward_key(series), encoded)
            for pair in decode_labels(encoded):
                postings[pair].append(series)
        keys = [inverted_key(name, value) for name, value in postings]
        stored = snapshot.get_many(keys)
        for key, (pair, series_ids), before in zip(keys, postings.items(), stored, strict=True):
            bitmap = BitMap(series_ids) if before is None else decode_posting(before)[1]
            bitmap.update(series_ids)
            batch.put(key, encode_posting(pair[1], bitmap))

    def remember(self, stored: dict[bytes, int]) -> None:
        """Keep ids that are stored. Call it with those that a batch adds when it is written."""
        if len(self._ids) + len(stored) > self._cached_max:
            self._ids.clear()
        if len(stored) <= self._cached_max:
            self._ids.update(stored)

    def remove(self, batch: WriteBatch, dead: BitMap, snapshot: KeyValueSnapshot) -> list[bytes]:
        """Put the removal of series into the batch; return their labels as bytes."""
        removed = []
        postings: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        ids = bitmap_ids(dead).tolist()
        for series, encoded in zip(
            ids, snapshot.get_many([forward_key(series) for series in ids]), strict=True
        ):
            if encoded is None:
                raise DataError(
                    f"series {series} has samples, and no labels", do="restore the store's copy"
                )
            removed.append(encoded)
            batch.delete(dictionary_key(fingerprint(encoded)))
            batch.delete(forward_key(series))
            for pair in decode_labels(encoded):
                postings[pair].append(series)
        keys = [inverted_key(name, value) for name, value in postings]
        for key, pair, before in zip(keys, postings, snapshot.get_many(keys), strict=True):
            # The batch may have added other series to the same record.
            stored = batch.changes.get(key, before)
            left = decode_posting(stored)[1] - dead if stored else BitMap()
            if left:
                batch.put(key, encode_posting(pair[1], left))
            else:
                batch.delete(key)
        return removed

    def forget(self, removed: Iterable[bytes]) -> None:
        """Forget series that a batch removed. Call it when the batch is written."""
        for encoded in removed:
            self._ids.pop(encoded, None)


def encode_posting(value: str, series: BitMap) -> bytes:
    """Return a record of the inverted index: a value of a label, and who has it."""
    series.run_optimize()
    encoded = value.encode()
    return _LENGTH.pack(len(encoded)) + encoded + series.serialize()


def decode_posting(stored: bytes) -> tuple[str, BitMap]:
    end = _LENGTH.size + _LENGTH.unpack_from(stored)[0]
    return stored[_LENGTH.size : end].decode(), BitMap.deserialize(stored[end:])
