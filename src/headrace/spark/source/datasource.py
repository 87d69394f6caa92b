"""The data source `headrace`: one micro-batch is one consistent cut across all journals.

Spark writes the planned end of a micro-batch to its offset log before it runs the micro-batch, and
to its commit log afterwards. So `latestOffset` polls for the next checkpoint, stores it by number,
and returns an offset that names it. If Spark runs a batch again, its `start` and `end` are the
`last_commit` and `read_through` of a new Session.

Spark makes a reader in several processes and asks only one of them for offsets. So a reader opens
nothing before it is needed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.decoders import decode_json, decode_msgpack
from headrace.errors import REPORT, UsageError
from headrace.settings import ServiceSettings, ShuffleSettings
from headrace.shuffle import Checkpoint, History, Member, Shuffle
from headrace.shuffle.binding import resolve
from headrace.shuffle.checkpoints.checkpoint_feed import Feed
from headrace.shuffle.queue.queue_client import Share
from headrace.spark.column_check import check_read_columns
from headrace.spark.source.batch import BatchReader, Pinned
from headrace.spark.source.options import (
    Reads,
    parse_batch,
    parse_reads,
    parse_stream,
    parse_writes,
)
from headrace.spark.source.rows import Rows, row_schema
from headrace.spark.tasks.task_record import get_task_record
from headrace.spark.worker_process import EncodedPartition, bound_to_parent, without_traceback
from headrace.spark.write.datasource_writer import BatchWriter, StreamWriter, plan


class HeadraceSource(DataSource):
    _pinned = b""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._was_sent = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_was_sent": True}

    @classmethod
    def name(cls) -> str:
        return "headrace"

    @without_traceback()
    def schema(self) -> StructType:
        reads = parse_reads(self.options)
        with reads.location.open() as workspace:
            # Spark keeps this object, and makes all readers of the DataFrame from it.
            self._pinned = Pinned.now(workspace, reads).encode()
            collections = {each.name: each for each in workspace.collections()}
        sources = resolve(reads.bindings, collections, {})
        return from_arrow_schema(row_schema(sources.all, meta=reads.meta))

    @without_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_batch(self.options), schema, self._pinned)

    def streamReader(self, schema: StructType) -> StreamReader:
        # Spark handles no error of this method well: only the traceback shows the message.
        return StreamReader(parse_stream(self.options), schema)

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        _check_appends(overwrite)
        return BatchWriter(plan(parse_writes(self.options, is_stream=False), schema))

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Plan a write if Spark made this source here; else return the writer that commits."""
        _check_appends(overwrite)
        writes = parse_writes(self.options, is_stream=True)
        return StreamWriter(writes, None if self._was_sent else plan(writes, schema))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, reads: Reads, schema: StructType) -> None:
        self._reads = reads
        self._schema = schema
        self._query: _OpenQuery | None = None
        self._is_bounded = False
        self._planned: int | None = None
        """The checkpoint of the last batch that this process planned."""
        self._committed: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_query": None}

    # -- in the process that Spark asks for offsets ----------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(0)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        documents_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        query = self._opened()
        number = query.feed.after(
            self._number(start),
            None if self._is_bounded else self._reads.poll_s,
            documents_max=documents_max,
        )
        return self._offset(number)

    def getDefaultReadLimit(self) -> ReadLimit:
        documents_max = self._reads.documents_max
        return ReadAllAvailable() if documents_max is None else ReadMaxRows(documents_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_bounded = True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._number(start), self._number(end)
        if last == first:
            return []
        if last != first + 1:
            raise UsageError(f"Spark planned a batch from {first} to {last}", do=REPORT)
        self._check_synchronous(first)
        self._planned = last
        query = self._opened()
        shares = query.feed.shares(last)
        check_read_columns(self._schema, shares[0].sources)
        service = msgspec.json.encode(query.service)
        return [EncodedPartition(msgspec.msgpack.encode(share), service) for share in shares]

    def commit(self, end: dict[str, Any]) -> None:
        """Note the commit. `latestOffset` releases: Spark commits once it has planned the next."""
        self._committed = self._number(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        query = self._query
        if query is None:
            return None
        return {**self._offset(query.feed.number), "behind": query.feed.behind()}

    def _check_synchronous(self, first: int) -> None:
        """Raise UsageError if Spark writes its offset log asynchronously.

        Spark commits a batch once the next one is in its offset log, before it runs that. If it
        wrote the log later, a checkpoint might be released that a restart asks for.
        """
        if self._planned == first != self._committed:
            raise UsageError(
                "this query keeps its progress asynchronously, and could not be started again",
                do="leave out the option asyncProgressTrackingEnabled",
            )

    def stop(self) -> None:
        query, self._query = self._query, None
        if query:
            query.close()

    def _opened(self) -> _OpenQuery:
        if self._query is None:
            self._query = _OpenQuery(self._reads, is_bounded=self._is_bounded)
        return self._query

    def _offset(self, number: int) -> dict[str, Any]:
        return self._opened().feed.history.offset(number)

    def _number(self, offset: dict[str, Any]) -> int:
        number = offset.get("checkpoint")
        mine = self._opened().feed.history.offset(0)
        if {**offset, "checkpoint": 0} != mine or not isinstance(number, int):
            raise UsageError(
                f"the checkpoint directory of the query belongs to {_described(offset)}, and this"
                f" is {_described(mine)}",
                do="give every task, and every generation of it, a directory of its own",
            )
        return number

    # -- in executors ----------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EncodedPartition)
        encoded, settings = partition.open()
        share = decode_msgpack(encoded, Share)
        service = decode_json(settings, ServiceSettings)
        rows = Rows(share.sources, to_arrow_schema(self._schema, timezone="UTC"))
        if self._reads.meta:
            yield from rows.all_with_meta(share.blocks(service), share.journals)
        else:
            yield from rows.all(share.read(service))


class _OpenQuery:
    """What a query has open: the workspace, the feed, and members unless they run elsewhere."""

    def __init__(self, reads: Reads, *, is_bounded: bool) -> None:
        self.service = ServiceSettings(token=reads.members_token or secrets.token_urlsafe(32))
        with ExitStack() as stack:
            stack.enter_context(bound_to_parent())
            self.workspace = stack.enter_context(reads.location.open())
            addresses = list(reads.members)
            if not addresses and get_task_record(self.workspace.objects, reads.task):
                raise UsageError(
                    f"{reads.task!r} is the name of a task, which has checkpoints of its own",
                    do="give the stream another name, or use spark.read to see what the task read",
                )
            if not addresses:
                root = (self.workspace.directory or Path(".")) / "members"
                for _ in range(reads.shards):
                    member = stack.enter_context(Member(root, self.service))
                    addresses.append(member.address)
            workspace = self.workspace
            cut = workspace.journals() if is_bounded else None
            settings = ShuffleSettings()
            if reads.documents_max:
                per_member = max(1, reads.documents_max // reads.shards)
                settings = ShuffleSettings(report_documents=per_member)

            def open(last: Checkpoint, through: Checkpoint | None) -> Shuffle:
                return Shuffle(
                    workspace,
                    reads.bindings,
                    addresses,
                    last_commit=last,
                    read_through=through,
                    cut=cut,
                    settings=settings,
                    service=self.service,
                )

            self.feed = Feed(History(workspace.objects, reads.task), open, names=reads.meta)
            stack.callback(self.feed.close)
            self._running = stack.pop_all()

    def close(self) -> None:
        self._running.close()


def _check_appends(overwrite: bool) -> None:
    if overwrite:
        raise UsageError(
            "format 'headrace' cannot overwrite a collection: documents are only ever added",
            do='use mode("append"), or outputMode("append") of a stream',
        )


def _described(offset: dict[str, Any]) -> str:
    return f"task {offset.get('task')!r}, generation {offset.get('generation')}"
