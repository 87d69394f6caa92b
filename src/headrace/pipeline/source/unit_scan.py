"""What `hr.scan` reads: files, a collection or a table as the source of a query.

The units are those of pipelines, so a map task is named by the rows that it reads: a range of a
file with its fingerprint, a range of a journal, or a hash of rows in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import UsageError
from headrace.journal.collection import Collection
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.journal.workspace import Workspace
from headrace.pipeline.source.source_units import (
    FileUnit,
    JournalUnit,
    digest,
    ranges,
    unit_id,
)
from headrace.pipeline.source.sources import (
    CollectionSource,
    FileSource,
    check_rows_per_unit,
    rows_digest,
)
from headrace.pipeline.source.unit_reader import read_file, read_journal
from headrace.plan.operators import ScanSource
from headrace.settings import ServiceSettings

ROWS_PER_UNIT = 100_000
"""A map task costs a few files, whatever it reads. Rows of expensive functions want fewer."""


class FileScanUnit(NamedTuple):
    unit: FileUnit

    @property
    def name(self) -> str:
        return unit_id(self.unit)

    def read(self) -> pa.Table:
        return read_file(self.unit)


class FileScan:
    """Rows of files."""

    def __init__(self, paths: Any, rows_per_unit: int) -> None:
        self._source = FileSource(paths, rows_per_unit)
        given = [paths] if isinstance(paths, str | PathLike) else paths
        self._label = ", ".join(map(str, given))

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The columns of the first file; None unless its format tells without reading rows."""
        first = next(iter(self.units()), None)
        if first is None or first.unit.format != "parquet":
            return None
        return pq.read_schema(first.unit.path).remove_metadata()

    def units(self) -> Sequence[FileScanUnit]:
        return [FileScanUnit(each) for each in self._source.units()]

    def __str__(self) -> str:
        return self._label


class JournalScanUnit(NamedTuple):
    unit: JournalUnit
    workspace: WorkspaceRef

    @property
    def name(self) -> str:
        return unit_id(self.unit)

    def read(self) -> pa.Table:
        # It listens nowhere.
        service = ServiceSettings(host="127.0.0.1", port=0)
        with self.workspace.open(Workspace, service) as opened:
            return read_journal(self.unit, opened)


class CollectionScan:
    """The documents that a collection holds when the query runs."""

    def __init__(self, workspace: Workspace, collection: Collection) -> None:
        self._workspace = workspace
        self._collection = collection

    @property
    def schema(self) -> pa.Schema:
        return self._collection.schema

    def units(self) -> Sequence[JournalScanUnit]:
        reference = self._workspace.reach()
        source = CollectionSource(self._workspace, self._collection.name)
        return [JournalScanUnit(each, reference) for each in source.units()]

    def __str__(self) -> str:
        return self._collection.name


class RowsUnit(NamedTuple):
    """Rows that travel with their task."""

    name: str
    rows: pa.Table

    def read(self) -> pa.Table:
        return self.rows

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrow would pickle the whole table of which the rows are a part.
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.rows.schema) as stream:
            stream.write_table(self.rows)
        return _rows_unit, (self.name, sink.getvalue().to_pybytes())


def _rows_unit(name: str, encoded: bytes) -> RowsUnit:
    with pa.ipc.open_stream(encoded) as stream:
        return RowsUnit(name, stream.read_all())


class TableScan:
    """The rows of a table in memory."""

    def __init__(self, table: pa.Table, rows_per_unit: int) -> None:
        self._table = table
        self._rows_per_unit = check_rows_per_unit(rows_per_unit)

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def units(self) -> Sequence[RowsUnit]:
        parts = [
            (first, self._table.slice(first, count))
            for first, count in ranges(self._table.num_rows, self._rows_per_unit)
        ]
        return [RowsUnit(digest("rows", str(n), rows_digest(rows)), rows) for n, rows in parts]

    def __str__(self) -> str:
        return f"{self._table.num_rows} rows"


def scan_source(data: Any, workspace: Workspace, rows_per_unit: int = ROWS_PER_UNIT) -> ScanSource:
    """Return the source of a query. Raises UsageError for what is none."""
    if not isinstance(workspace, Workspace):
        raise UsageError(
            f"{workspace!r} is no workspace", do='give an open one, such as hr.open("./data")'
        )
    if isinstance(data, pa.RecordBatch):
        data = pa.table(data)
    if type(data).__module__.partition(".")[0] == "pandas":
        data = pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, pa.Table):
        return TableScan(data, rows_per_unit)
    if isinstance(data, Collection):
        return CollectionScan(workspace, data)
    if isinstance(data, str | PathLike | list | tuple):
        return FileScan(data, rows_per_unit)
    raise UsageError(
        f"a query cannot scan a {type(data).__name__}",
        do="give files, a collection, an Arrow table or a pandas DataFrame; a DataFrame of Spark"
        " is the source of a pipeline, which stores its rows once",
    )
