"""Reads what map tasks published. Every byte is checked before it is used."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headrace.errors import NotFoundError, UsageError, VersionError
from headrace.exchange.format.layout import (
    INDEX_BIN,
    INDEX_JSON,
    LATEST,
    MapTask,
    MapTaskIndex,
    ShufflePartitionMeta,
    damaged,
    decode_index,
    index_body,
    index_payload,
    missing,
)
from headrace.exchange.format.part_file import decode_part, empty_table
from headrace.exchange.format.partition_chunks import (
    CHUNK_BYTES,
    PartitionChunk,
    check_chunk_bytes,
    chunk_ranges,
)
from headrace.exchange.format.publication import PublishedOutput, checksum
from headrace.exchange.output_registry import OutputRegistry
from headrace.storage import Objects


class MapOutputReader:
    """Reads the outputs among some objects. Any thread may use it.

    Raises DamagedOutputError for a file that is missing, damaged or not the one that was written;
    its fields say which map task to compute again.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._registry = OutputRegistry(objects)

    def resolve(self, task: MapTask, attempt: int = LATEST) -> MapTaskIndex:
        """Return the index of a published attempt. Raises NotFoundError if it is not published."""
        return self.index(self._registry.lookup(task, attempt))

    def index(self, output: PublishedOutput) -> MapTaskIndex:
        """Return the index of a published output: `index.bin`, or `index.json` without it."""
        if (data := self._get_if_there(self._index_bin_file(output))) is not None:
            return self._decode_index_bin(output, data)
        return self.index_json(output)

    def index_bin(self, output: PublishedOutput) -> MapTaskIndex:
        return self._decode_index_bin(output, self._get(self._index_bin_file(output)))

    def index_json(self, output: PublishedOutput) -> MapTaskIndex:
        file = output.task.file(output.attempt, INDEX_JSON)
        return self._checked(output, file, self._get(file))

    def read_partition(
        self, task: MapTask, reduce_partition: int, attempt: int = LATEST
    ) -> pa.Table:
        """Return the rows of a published attempt for a reduce partition, batch by batch."""
        return self.read(self.resolve(task, attempt), reduce_partition)

    def read(self, index: MapTaskIndex, reduce_partition: int) -> pa.Table:
        """Return the rows of a reduce partition of an attempt whose index is known."""
        meta = index.partition(reduce_partition)
        if meta is None:
            return empty_table(index)
        return self.read_part(index.task, index.attempt, meta)

    def read_part(self, task: MapTask, attempt: int, meta: ShufflePartitionMeta) -> pa.Table:
        """Return the rows of one part file, as the index of its attempt describes it."""
        file = task.file(attempt, meta.file)
        return decode_part(self._get(file), meta, file)

    def fetch_partition_chunks(
        self,
        task: MapTask,
        reduce_partition: int,
        attempt: int = LATEST,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[PartitionChunk]:
        """Yield the bytes of a partition in pieces; `Reassembly` puts them together and checks."""
        return self.fetch_chunks(self.resolve(task, attempt), reduce_partition, chunk_bytes)

    def fetch_chunks(
        self, index: MapTaskIndex, reduce_partition: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[PartitionChunk]:
        check_chunk_bytes(chunk_bytes)
        meta = index.partition(reduce_partition)
        if meta is None:
            return
        file = index.task.file(index.attempt, meta.file)
        for start, length in chunk_ranges(meta.bytes, chunk_bytes):
            yield PartitionChunk(start, self._get_range(file, start, length))

    def _index_bin_file(self, output: PublishedOutput) -> str:
        return output.task.file(output.attempt, INDEX_BIN)

    def _decode_index_bin(self, output: PublishedOutput, data: bytes) -> MapTaskIndex:
        file = self._index_bin_file(output)
        try:
            payload = index_payload(data, file)
        except VersionError as error:
            # The record tells a newer index from one whose version is damaged.
            if checksum(index_body(data)) == output.index_checksum:
                raise damaged(file, "its version is not the one that was written") from error
            raise
        return self._checked(output, file, payload)

    def _checked(self, output: PublishedOutput, file: str, payload: bytes) -> MapTaskIndex:
        if output.index_checksum and checksum(payload) != output.index_checksum:
            raise damaged(file, "its checksum does not match")
        return decode_index(payload, output.task, output.attempt, file)

    def _get(self, file: str) -> bytes:
        if (data := self._get_if_there(file)) is None:
            raise missing(file)
        return data

    def _get_if_there(self, file: str) -> bytes | None:
        try:
            return self._objects.get(file)
        except NotFoundError:
            return None

    def _get_range(self, file: str, start: int, length: int) -> bytes:
        try:
            return self._objects.get_range(file, start, length)
        except NotFoundError as error:
            raise missing(file) from error
        except UsageError as error:
            raise damaged(file, "it is shorter than its index says") from error
