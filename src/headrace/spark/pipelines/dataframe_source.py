"""A DataFrame as a source: its rows are stored once, and the list of what was stored is the source.

Spark may return other rows, or the same in another order, when it computes a DataFrame again. So
its rows are stored as payloads before the first unit runs. The list of units is stored afterwards
in one step, put if absent: a driver that dies before leaves payloads that nobody refers to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from headrace.errors import NotFoundError, UsageError
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.source.source_units import ROWS_PER_UNIT, TableUnit, Unit, digest
from headrace.pipeline.source.sources import (
    SourceChange,
    UnitSource,
    check_rows_per_unit,
    rows_digest,
)
from headrace.pipeline.source.unit_reader import file_fingerprint
from headrace.spark.query_failure import one_line_if_gone, raised_as_ours
from headrace.spark.worker_process import for_executors

_STORED = "part int, number int, ref string, rows long, content string"
_STORED_ARROW = pa.schema(
    [
        ("part", pa.int32()),
        ("number", pa.int32()),
        ("ref", pa.string()),
        ("rows", pa.int64()),
        ("content", pa.string()),
    ]
)


class DataFrameSource(UnitSource):
    """The rows of a DataFrame."""

    def __init__(
        self, rows: DataFrame, rows_per_unit: int = ROWS_PER_UNIT, *, version: str = ""
    ) -> None:
        """Give another `version` if the rows have changed and nothing else tells."""
        if rows.isStreaming:
            raise UsageError("a stream cannot be the source of a pipeline", do="use spark.read")
        self._rows = rows
        self._rows_per_unit = check_rows_per_unit(rows_per_unit)
        self._version = version

    def fingerprint(self) -> str:
        """Identify the columns, the version, and the files that the DataFrame reads.

        The rows themselves are not part of it: to compare them, Spark would compute them again.
        """
        with one_line_if_gone(self._rows.sparkSession), raised_as_ours():
            files = sorted(self._rows.inputFiles())
            columns = self._rows.schema.json()
        return digest("dataframe", self._version, columns, *map(_file_identity, files))

    def plan(self, payloads: Payloads, stage: str) -> list[Unit]:
        return [*store_rows(self._rows, payloads, stage, self._rows_per_unit)]

    def change(self, planned: Any) -> SourceChange:
        return SourceChange([], False, "its columns, its version or the files that it reads")


def store_rows(
    rows: DataFrame, payloads: Payloads, stage: str, rows_per_unit: int
) -> list[TableUnit]:
    """Store the rows of a DataFrame as payloads, by Spark's tasks, and return their units."""
    store = for_executors(_store, payloads, stage, rows_per_unit)
    with one_line_if_gone(rows.sparkSession), raised_as_ours():
        stored = sorted(rows.mapInArrow(store, _STORED).collect())
    units: list[TableUnit] = []
    first = 0
    for _, _, ref, count, content in stored:
        units.append(TableUnit(ref, first, count, content))
        first += count
    return units


def _store(
    payloads: Payloads, stage: str, rows_per_unit: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    task = TaskContext.get()
    part = task.partitionId() if task else 0
    for number, table in enumerate(_tables(batches, rows_per_unit)):
        content = rows_digest(table)
        ref = payloads.put(stage, content, table)
        row = {"part": part, "number": number, "ref": ref, "rows": table.num_rows}
        yield pa.RecordBatch.from_pylist([{**row, "content": content}], _STORED_ARROW)


def _tables(batches: Iterator[pa.RecordBatch], rows_per_unit: int) -> Iterator[pa.Table]:
    """Yield tables of exactly so many rows, but for the last."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while batch.num_rows:
            taken = batch.slice(0, rows_per_unit - count)
            waiting.append(taken)
            count += taken.num_rows
            batch = batch.slice(taken.num_rows)
            if count == rows_per_unit:
                yield pa.Table.from_batches(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _file_identity(url: str) -> str:
    """Return the path of a file with its size and time, if this machine sees it."""
    parsed = urlparse(url)
    path = Path(unquote(parsed.path))
    if parsed.scheme not in ("", "file") or not path.exists():
        return url
    try:
        return f"{path} {file_fingerprint(str(path))}"
    except NotFoundError:
        return url
