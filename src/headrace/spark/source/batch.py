"""Batch reads with `format("headrace")`: what is committed now, or what a task has read."""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.decoders import decode_msgpack
from headrace.errors import UsageError
from headrace.journal.contract import JournalInfo
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.names import parse_journal_name
from headrace.journal.workspace import Workspace
from headrace.shuffle import describe_task
from headrace.shuffle.batch.batch_read import (
    Plan,
    plan_between,
    plan_cut,
    read_blocks,
    read_scans,
    take_cut,
)
from headrace.shuffle.batch.journal_scan import Scan
from headrace.shuffle.binding import Source, Sources
from headrace.spark.source.options import Reads
from headrace.spark.source.partition_filters import FilterTaker, label_selectors
from headrace.spark.source.rows import Rows
from headrace.spark.source.workspace_option import shared
from headrace.spark.worker_process import EncodedPartition


class Pinned(msgspec.Struct, frozen=True):
    """What a batch read shows, decided once.

    Spark plans a query again for every DataFrame that is made from another, and plans a part twice
    that a query has twice. All of them must show the same cut.
    """

    cut: list[JournalInfo] | None = None
    generation: str = ""
    first: int | None = None
    last: int | None = None
    """If a task's checkpoints are read: those after `first` up to `last`, of `generation`."""

    @classmethod
    def now(cls, workspace: Workspace, reads: Reads) -> Self:
        """Pin what is committed at this moment."""
        if not reads.task:
            return cls(take_cut(workspace, reads.bindings))
        # A stream may begin its task. A batch read raises the error when it is planned.
        with suppress(UsageError):
            task = describe_task(workspace.objects, reads.task)
            last = task.last if reads.last is None else reads.last
            first = min(task.first, last) if reads.first is None else reads.first
            return cls(None, task.generation, first, last)
        return cls(None, "", reads.first, reads.last)

    def encode(self) -> bytes:
        """Compress: the names of journals are much alike."""
        return zlib.compress(msgspec.msgpack.encode(self), level=1)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return decode_msgpack(zlib.decompress(data), cls)


class BatchReader(DataSourceReader):
    """Reads what `pinned`, an encoded `Pinned`, says; if it is empty, pins when Spark plans."""

    def __init__(self, reads: Reads, schema: StructType, pinned: bytes = b"") -> None:
        self._reads = reads
        self._schema = schema
        self._pinned = pinned
        self._filters = self.pushFilters = FilterTaker()  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        # Executors get what they need with their partitions.
        return {**vars(self), "_pinned": b""}

    def partitions(self) -> Sequence[InputPartition]:
        with self._reads.location.open() as workspace:
            plan = self._plan(workspace)
            reach = msgspec.msgpack.encode(workspace.reach())
        sources = msgspec.msgpack.encode(plan.sources.all)
        return [
            EncodedPartition(reach, sources, msgspec.msgpack.encode(scans))
            for scans in balanced(self._narrowed(plan), self._reads.partitions)
        ]

    def _plan(self, workspace: Workspace) -> Plan:
        reads = self._reads
        pinned = Pinned.decode(self._pinned) if self._pinned else Pinned.now(workspace, reads)
        if pinned.cut is not None:
            return plan_cut(workspace, reads.bindings, pinned.cut)
        return plan_between(
            *(workspace, reads.bindings, reads.task, pinned.first, pinned.last),
            generation=pinned.generation,
        )

    def _narrowed(self, plan: Plan) -> list[Scan]:
        # With several sources the columns are structs, and a filter would concern only one source.
        if len(plan.sources.all) > 1:
            return plan.scans
        selectors = label_selectors(self._filters.taken, plan.sources.all[0])
        if not selectors:
            return plan.scans
        named = ((scan, parse_journal_name(scan.journal.name)) for scan in plan.scans)
        return [scan for scan, name in named if all(each.matches(name) for each in selectors)]

    # -- in executors ----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes a partition of its own if there is nothing to read.
        if not isinstance(partition, EncodedPartition):
            return
        reach, encoded_sources, encoded_scans = partition.open()
        sources = Sources(decode_msgpack(encoded_sources, tuple[Source, ...]))
        scans = decode_msgpack(encoded_scans, list[Scan])
        rows = Rows(sources.all, to_arrow_schema(self._schema, timezone="UTC"))
        workspace = shared(decode_msgpack(reach, WorkspaceRef))
        if self._reads.meta:
            journals = {number: scan.journal.name for number, scan in enumerate(scans)}
            yield from rows.all_with_meta(read_blocks(workspace, sources, scans), journals)
        else:
            yield from rows.all(read_scans(workspace, sources, scans))


def balanced(scans: Sequence[Scan], count: int) -> list[list[Scan]]:
    """Divide scans into at most `count` groups of about equal size.

    The largest scan comes first, and each goes to the smallest group.
    """
    groups: list[list[Scan]] = [[] for _ in range(min(count, len(scans)))]
    sizes = [(0, index) for index in range(len(groups))]
    for scan in sorted(scans, key=lambda each: each.bytes, reverse=True):
        size, index = sizes[0]
        groups[index].append(scan)
        heapq.heapreplace(sizes, (size + scan.bytes, index))
    return groups
