"""The bytes of a partition in pieces, which may arrive in any order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import UsageError
from headrace.exchange.format.layout import MapTaskIndex, damaged
from headrace.exchange.format.part_file import decode_part, empty_table
from headrace.settings import MIB

CHUNK_BYTES = 4 * MIB


class PartitionChunk(NamedTuple):
    offset: int
    """Where its first byte is in the file of the partition."""
    data: bytes | pa.Buffer


class Reassembly:
    """Puts the chunks of one partition together. A chunk may come twice, and in any order."""

    def __init__(self, index: MapTaskIndex, reduce_partition: int) -> None:
        self._index = index
        self._meta = index.partition(reduce_partition)
        self._bytes = bytearray(self._meta.bytes if self._meta else 0)
        self._ends: dict[int, int] = {}
        """Where each chunk that came begins and ends."""

    def add(self, chunk: PartitionChunk) -> None:
        data = memoryview(chunk.data).cast("B")
        end = chunk.offset + len(data)
        if not 0 <= chunk.offset <= end <= len(self._bytes):
            raise damaged(
                self._file, f"a chunk has the bytes {chunk.offset} to {end} of {len(self._bytes)}"
            )
        self._bytes[chunk.offset : end] = data
        self._ends[chunk.offset] = max(end, self._ends.get(chunk.offset, 0))

    def table(self) -> pa.Table:
        """Return the rows. Raises DamagedOutputError if a chunk is missing or a byte is wrong."""
        if self._meta is None:
            return empty_table(self._index)
        complete = 0
        for start, end in sorted(self._ends.items()):
            if start > complete:
                break
            complete = max(complete, end)
        if complete < len(self._bytes):
            raise damaged(self._file, f"the chunk from byte {complete} did not arrive")
        return decode_part(self._bytes, self._meta, self._file)

    @property
    def _file(self) -> str:
        name = self._meta.file if self._meta else "part"
        return self._index.task.file(self._index.attempt, name)


def reassemble(
    index: MapTaskIndex, reduce_partition: int, chunks: Iterable[PartitionChunk]
) -> pa.Table:
    """Return the rows of a partition whose chunks are all there, in any order."""
    reassembly = Reassembly(index, reduce_partition)
    for chunk in chunks:
        reassembly.add(chunk)
    return reassembly.table()


def chunk_ranges(size: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of the chunks of a file."""
    for start in range(0, size, check_chunk_bytes(chunk_bytes)):
        yield start, min(chunk_bytes, size - start)


def check_chunk_bytes(chunk_bytes: int) -> int:
    if chunk_bytes < 1:
        raise UsageError(f"chunk_bytes must be at least 1, got {chunk_bytes}", do="use more")
    return chunk_bytes
