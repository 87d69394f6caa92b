"""Writes the output of one map task: rows for reduce partitions, in, a published attempt, out.

The order: claim an attempt -> store parts and indexes -> sync them -> publish. Readers find an
attempt only by its publication, so they see all of its files or none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import StorageError, UsageError
from headrace.exchange.format.layout import (
    INDEX_BIN,
    INDEX_JSON,
    U32_MAX,
    MapTask,
    MapTaskIndex,
    ShufflePartitionMeta,
    encode_index,
    encode_index_bin,
    part_name,
)
from headrace.exchange.format.part_file import (
    Compression,
    PartCompression,
    PartEncoder,
    encode_schema,
)
from headrace.exchange.format.publication import Claim, PublishedOutput, checksum
from headrace.exchange.output_registry import OutputRegistry
from headrace.settings import MIB
from headrace.storage import Objects

_BATCH_BYTES = 1 * MIB
"""Rows of a partition are encoded when there are about this many bytes of them: small batches cost
more than they hold."""
_WAITING_BYTES_MAX = 64 * MIB
"""All partitions together hold at most about this much that is not encoded."""


class Publication(NamedTuple):
    """What became of an attempt."""

    output: PublishedOutput
    """What readers see: the attempt that was first."""
    is_mine: bool
    """False if another attempt was first; the files of this one are gone."""


class MapOutputWriter:
    """Collects the rows of a map task, and publishes them at its end.

    It holds the encoded rows in memory until then. One thread uses it.
    """

    def __init__(
        self,
        objects: Objects,
        task: MapTask,
        schema: pa.Schema,
        partition_count: int,
        *,
        replaces: int = 0,
        compression: Compression | None = "lz4",
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`replaces` is the attempt whose output is damaged; 0 if the task has no output yet.

        Parts are compressed if that makes the first rows a third smaller.
        """
        if not 1 <= partition_count <= U32_MAX:
            raise UsageError(
                f"{task} has {partition_count} reduce partitions",
                do=f"use a whole number from 1 to {U32_MAX}",
            )
        self.task = task
        self._objects = objects
        self._registry = OutputRegistry(objects)
        self._schema = schema
        self._partition_count = partition_count
        self._replaces = replaces
        self._compression = PartCompression(compression)
        self._now_ms = now_ms
        self._partitions: dict[int, PartEncoder] = {}
        self._waiting_bytes = 0
        self._is_done = False

    def write(self, reduce_partition: int, batch: pa.RecordBatch) -> None:
        """Add rows for a reduce partition. The batch must not change afterwards."""
        self._check_open()
        if not 0 <= reduce_partition < self._partition_count:
            raise UsageError(
                f"{self.task} has no reduce partition {reduce_partition}",
                do=f"use one from 0 to {self._partition_count - 1}",
            )
        if not batch.schema.equals(self._schema):
            raise UsageError(
                f"{self.task} got a batch with the columns {_columns(batch.schema)}",
                do=f"write batches with the columns {_columns(self._schema)}",
            )
        if not batch.num_rows:
            return
        partition = self._partitions.get(reduce_partition)
        if partition is None:
            partition = self._partitions[reduce_partition] = PartEncoder(
                self._schema, self._compression
            )
        self._waiting_bytes += partition.add(batch)
        if partition.waiting_bytes >= _BATCH_BYTES:
            self._waiting_bytes -= partition.encode()
        if self._waiting_bytes >= _WAITING_BYTES_MAX:
            for each in self._partitions.values():
                self._waiting_bytes -= each.encode()

    def publish(self) -> Publication:
        """Store the rows as an attempt of the map task, and publish it unless another was first.

        Raises StorageError if the rows cannot be stored; then nothing is published. Raises
        FencedError if cleanup gave the attempt up meanwhile.
        """
        self._check_open()
        self._is_done = True
        claim = self._registry.claim(self.task, self._replaces, self._now_ms())
        if isinstance(claim, PublishedOutput):
            return Publication(claim, is_mine=False)
        index, files = self._encode(claim)
        payload = encode_index(index)
        files += [
            (self.task.file(claim.attempt, INDEX_BIN), pa.py_buffer(encode_index_bin(payload))),
            (self.task.file(claim.attempt, INDEX_JSON), pa.py_buffer(payload)),
        ]
        try:
            self._objects.put_all(files)
        except StorageError:
            # The disk may be full, so deleting matters; it may also be gone, so deleting may fail.
            with suppress(StorageError):
                self._delete(claim)
            raise
        mine = _published(index, claim, checksum(payload))
        winner = self._registry.register(mine)
        if winner != mine:
            self._delete(claim)
        return Publication(winner, is_mine=winner == mine)

    def _encode(self, claim: Claim) -> tuple[MapTaskIndex, list[tuple[str, pa.Buffer]]]:
        metas, files = [], []
        for reduce_partition, partition in sorted(self._partitions.items()):
            data = partition.finish()
            name = part_name(reduce_partition)
            files.append((self.task.file(claim.attempt, name), data))
            metas.append(
                ShufflePartitionMeta(
                    reduce_partition=reduce_partition,
                    file=name,
                    bytes=data.size,
                    rows=partition.rows,
                    batches=partition.batches,
                    checksum=checksum(memoryview(data)),
                )
            )
        self._partitions.clear()
        index = MapTaskIndex(
            query_id=self.task.query_id,
            stage_id=self.task.stage_id,
            map_task=self.task.map_task,
            attempt=claim.attempt,
            created_at_ms=self._now_ms(),
            partitions=tuple(metas),
            partition_count=self._partition_count,
            schema=encode_schema(self._schema),
        )
        return index, files

    def _delete(self, claim: Claim) -> None:
        self._objects.delete_all(self.task.attempt_directory(claim.attempt))

    def _check_open(self) -> None:
        if self._is_done:
            raise UsageError(f"the output of {self.task} was published", do="make another writer")


def _published(index: MapTaskIndex, claim: Claim, index_checksum: str) -> PublishedOutput:
    return PublishedOutput(
        query_id=index.query_id,
        stage_id=index.stage_id,
        map_task=index.map_task,
        generation=claim.generation,
        attempt=index.attempt,
        created_at_ms=index.created_at_ms,
        rows=index.rows,
        bytes=index.bytes,
        index_checksum=index_checksum,
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema) or "none"
