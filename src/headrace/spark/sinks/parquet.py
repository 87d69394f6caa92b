"""Parquet files as a sink, which appends rows exactly once.

Spark's tasks write the files, each under a key that no other attempt has, and return the keys.
Spark returns the keys of the winning attempts, and `manifests.py` makes a checkpoint of their
files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import NamedTuple, Unpack
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.errors import NotFoundError, SchemaError, StorageError, UsageError
from headrace.journal.workspace import Workspace
from headrace.settings import MIB
from headrace.spark.sinks.contract import CheckpointId, is_due
from headrace.spark.sinks.manifests import (
    Manifest,
    Manifests,
    Written,
    data_key,
    found,
    owned,
    staged_key,
)
from headrace.spark.worker_process import for_executors
from headrace.storage import Objects, S3Options, open_objects

_FILE_BYTES = 128 * MIB
_STAGED = "key string, rows long, bytes long"
_STAGED_ARROW = pa.schema([("key", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
_GLOB = re.compile(r"([\\*?\[\]{}])")
_PLAIN = (
    *(BooleanType(), ByteType(), ShortType(), IntegerType(), LongType(), FloatType(), DoubleType()),
    *(StringType(), BinaryType(), DateType(), TimestampType(), TimestampNTZType()),
)


def parquet(
    location: str | PathLike[str], *, file_bytes: int = _FILE_BYTES, **options: Unpack[S3Options]
) -> ParquetFiles:
    """Append rows to files in a directory, or at `s3://bucket/prefix`, exactly once.

    The options are those of S3. The location is for one task. After a reset, the sink refuses the
    task, which would write all rows again. Columns may be added, and keep their types. A file ends
    when it has `file_bytes`; a Spark task holds it in memory until then.

    Spark's tasks write the files, so on a cluster all machines must share the directory.
    """
    if not isinstance(location, str | PathLike):
        raise UsageError(
            f"{location!r} is no location for Parquet files", do="use a path or s3://bucket"
        )
    if not isinstance(file_bytes, int) or file_bytes < 1:
        raise UsageError(
            f"file_bytes must be at least 1, got {file_bytes!r}", do="use a whole number"
        )
    location = fspath(location)
    scheme, separator, rest = location.partition("://")
    if scheme == "file" and rest.startswith("/"):
        location, separator = unquote(rest), ""
    if not location or (separator and scheme != "s3"):
        raise UsageError(
            f"{location!r} is no location for Parquet files", do="use a path or s3://bucket"
        )
    if not separator:
        location = str(Path(location).absolute())
    return ParquetFiles(location, file_bytes, options)


class ParquetFiles:
    """A sink, and a reader of what the sink has committed."""

    is_exactly_once = True

    def __init__(self, location: str, file_bytes: int, options: S3Options) -> None:
        self._location = location
        self._file_bytes = file_bytes
        self._options = options

    def __str__(self) -> str:
        return f"Parquet files in {self._location}"

    def open(self, spark: SparkSession, workspace: Workspace, task: CheckpointId) -> ParquetTarget:
        objects = self._objects()
        manifests = owned(objects, self._location, *task[:2])
        return ParquetTarget(objects, manifests, self._location, task, self._file_bytes)

    def files(self) -> list[str]:
        """Return the paths or URLs of the committed files."""
        return [f"{self._location.rstrip('/')}/{each.key}" for each in self._committed()[0]]

    def table(self) -> pa.Table:
        """Return the committed rows."""
        files, columns = self._committed()
        objects = self._objects()
        batches = (batch for each in files for batch in _read(objects, each.key, columns))
        return pa.Table.from_batches(batches, columns)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows that are committed when this is called."""
        files, columns = self._committed()
        schema = from_arrow_schema(columns)
        if not files:
            return spark.createDataFrame([], schema)
        if "://" not in self._location:
            directory = "file://" + _GLOB.sub(r"\\\1", self._location)
            paths = [f"{directory}/{each.key}" for each in files]
            reader = spark.read.schema(schema).option("datetimeRebaseMode", "CORRECTED")
            return reader.parquet(*paths)
        # Spark itself cannot read from S3 without further packages.
        keys = [each.key for each in files]
        numbers = spark.range(0, len(keys), 1, min(len(keys), 4 * _parallelism(spark)))
        read = for_executors(_read_numbered, self._objects(), keys, columns)
        return numbers.mapInArrow(read, schema)

    def _committed(self) -> tuple[list[Written], pa.Schema]:
        if "://" not in self._location and not Path(self._location).is_dir():
            raise NotFoundError(f"there is no directory {self._location}", do="check the location")
        files: list[Written] = []
        last: Manifest | None = None
        for last in found(self._objects(), self._location).visible():
            files.extend(last.files)
        if last is None:
            raise NotFoundError(
                f"nothing is committed in {self._location}",
                do="wait for the task's first checkpoint",
            )
        return files, last.columns

    def _objects(self) -> Objects:
        return open_objects(self._location, **self._options)


class StagedFiles(NamedTuple):
    """Files that are written and not committed."""

    number: int
    files: list[Written]
    columns: pa.Schema


class ParquetTarget:
    def __init__(
        self,
        objects: Objects,
        manifests: Manifests,
        location: str,
        opened: CheckpointId,
        file_bytes: int,
    ) -> None:
        self._objects = objects
        self._manifests = manifests
        self._location = location
        self._opened = opened
        self._file_bytes = file_bytes
        self._last = 0
        self.last()

    def last(self) -> int:
        last = self._manifests.last()
        if last != self._last:
            # The process that committed it may have died before it moved the files.
            self._manifests.settle(last)
        self._last = last
        return last

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        if checkpoint.number > self._last + 1:
            self.last()  # another process may have committed more
        if is_due(checkpoint, self._opened, self._last, self._location):
            self.commit(self.stage(rows, checkpoint))

    def stage(self, rows: DataFrame, checkpoint: CheckpointId) -> StagedFiles:
        """Write the files. No reader sees them yet."""
        columns = _columns(rows)
        self._manifests.merged(checkpoint.number, columns)
        staging = self._manifests.staging
        target = staging, checkpoint.number
        write = for_executors(_write, self._objects, target, columns, self._file_bytes)
        written = [Written(*each) for each in rows.mapInArrow(write, _STAGED).collect()]
        for each in written:
            seen = self._objects.head(staged_key(staging, each.key))
            if (seen is None or seen.bytes != each.bytes) and self.last() < checkpoint.number:
                raise StorageError(
                    f"a Spark task wrote {each.key}, and the driver does not find it in"
                    f" {self._location}",
                    do="use a directory that all machines of the cluster share, or s3://",
                )
        return StagedFiles(checkpoint.number, written, columns)

    def commit(self, staged: StagedFiles) -> None:
        """Commit the staged files. If another run has committed the checkpoint, its files count."""
        manifest = self._manifests.commit(*staged)
        self._manifests.show(manifest)
        self._last = max(self._last, staged.number)
        for each in set(staged.files).difference(manifest.files):
            self._objects.delete(staged_key(self._manifests.staging, each.key))
        self._manifests.close_group(staged.number)

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _columns(rows: DataFrame) -> pa.Schema:
    """Return the columns as files have them: nullable, of types that Parquet and Spark know."""
    names = [name.lower() for name in rows.columns]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise SchemaError(f"the rows have two columns {twice!r}", do="rename one of them")
    if not names:
        raise SchemaError("the rows have no columns", do="select at least one")
    for field in rows.schema:
        if not _is_usable(field.dataType):
            raise SchemaError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which Parquet files"
                " cannot hold",
                do="cast it to another type",
            )
    return to_arrow_schema(rows.schema.toNullable(), timezone="UTC")


def _is_usable(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(_is_usable(each.dataType) for each in kind)
    if isinstance(kind, ArrayType):
        return _is_usable(kind.elementType)
    if isinstance(kind, MapType):
        return _is_usable(kind.keyType) and _is_usable(kind.valueType)
    return isinstance(kind, DecimalType) or kind in _PLAIN


def _parallelism(spark: SparkSession) -> int:
    return spark.sparkContext.defaultParallelism


# -- in Spark's tasks ----------------------------------------------------------------------


def _write(
    objects: Objects,
    target: tuple[str, int],
    columns: pa.Schema,
    file_bytes: int,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write rows to staged files of a checkpoint, and yield what was written."""
    staging, number = target
    groups = _row_groups(batches, columns, file_bytes // 4)
    first = next(groups, None)
    while first is not None:
        buffer = pa.BufferOutputStream()
        rows = 0
        with pq.ParquetWriter(buffer, columns, compression="zstd") as writer:
            group: pa.Table | None = first
            while group is not None:
                writer.write_table(group, row_group_size=group.num_rows)
                rows += group.num_rows
                group = next(groups, None) if buffer.tell() < file_bytes else None
        data = buffer.getvalue()
        key = data_key(number)
        objects.put(staged_key(staging, key), memoryview(data))
        yield pa.record_batch([[key], [rows], [data.size]], schema=_STAGED_ARROW)
        first = next(groups, None)


def _row_groups(
    batches: Iterator[pa.RecordBatch], columns: pa.Schema, group_bytes: int
) -> Iterator[pa.Table]:
    """Yield several of Spark's small batches together, with the columns of the files."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(_as(columns, batch))
        size += batch.nbytes
        if size >= group_bytes:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def _read_numbered(
    objects: Objects, keys: list[str], columns: pa.Schema, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from _read(objects, keys[number], columns)


def _read(objects: Objects, key: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(pa.BufferReader(objects.get(key))) as file:
        for batch in file.iter_batches():
            yield _as(columns, batch)


def _as(columns: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with exactly these columns; those that it lacks are null."""
    arrays = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.nulls(batch.num_rows, field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
