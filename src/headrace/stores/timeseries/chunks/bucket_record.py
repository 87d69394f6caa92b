"""Which series have samples in a bucket, and which chunks hold them. Pure.

A *run* is what one flush, or one merge of earlier runs, wrote to the bucket: chunks with different
series. Of two samples at the same time, the one in the later run counts; a chunk of a later run has
a greater number. Runs of the same *level* are about the same number of flushes.
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

CHUNK_ROW = np.dtype(
    [
        ("number", "<u8"),
        ("run", "<u8"),
        ("level", "<u4"),
        ("samples", "<u4"),
        ("bytes", "<u4"),
        ("first_id", "<u4"),
        ("last_id", "<u4"),
        ("first_ms", "<i8"),
        ("last_ms", "<i8"),
    ]
)
"""One row for each chunk, in the order of their numbers."""

_LENGTH = struct.Struct("<I")


def make_bitmap(ids: npt.NDArray[np.int64]) -> BitMap:
    return BitMap(array("I", ids.astype(np.uint32).tobytes()))


def bitmap_ids(bitmap: BitMap) -> npt.NDArray[np.int64]:
    """Return the ids in the bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), dtype=np.uint32).astype(np.int64)


@dataclass(frozen=True, slots=True)
class BucketRecord:
    members: BitMap
    """Series with samples in the bucket."""
    chunks: npt.NDArray[np.void]

    @staticmethod
    def empty() -> BucketRecord:
        return BucketRecord(BitMap(), np.empty(0, dtype=CHUNK_ROW))

    def encode(self) -> bytes:
        self.members.run_optimize()
        members = self.members.serialize()
        return _LENGTH.pack(len(members)) + members + self.chunks.tobytes()

    @staticmethod
    def decode(stored: bytes | None) -> BucketRecord:
        if stored is None:
            return BucketRecord.empty()
        end = _LENGTH.size + _LENGTH.unpack_from(stored)[0]
        members = BitMap.deserialize(stored[_LENGTH.size : end])
        return BucketRecord(members, np.frombuffer(stored, dtype=CHUNK_ROW, offset=end))

    def runs(self) -> list[npt.NDArray[np.void]]:
        """Return the chunks of each run, oldest first."""
        if not len(self.chunks):
            return []
        begins = np.flatnonzero(np.diff(self.chunks["run"])) + 1
        return np.split(self.chunks, begins)

    def find(self, ids: BitMap, start_ms: int, end_ms: int) -> npt.NDArray[np.void]:
        """Return the chunks that may have samples of the series, at these times."""
        if not ids:
            return self.chunks[:0]
        rows = self.chunks
        mask = (rows["first_ms"] <= end_ms) & (rows["last_ms"] >= start_ms)
        mask &= (rows["first_id"] <= ids.max()) & (rows["last_id"] >= ids.min())
        for position in np.flatnonzero(mask):
            row = rows[position]
            first, last = int(row["first_id"]), int(row["last_id"])
            mask[position] = ids.range_cardinality(first, last + 1) > 0
        return rows[mask]
