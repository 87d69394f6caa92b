"""DataFrames of what a store holds.

One task scans the store, so all rows of an action are of one snapshot; then they are spread. Every
action takes a snapshot of its own. So does a scan that Spark repeats because it lost an executor:
what it had spread before is lost with that, unless somebody writes meanwhile and a later stage has
already begun.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.errors import UsageError
from headrace.spark.worker_process import for_executors, without_traceback
from headrace.stores.service.shared_store import is_store_address
from headrace.stores.service.store_access import open_store
from headrace.stores.service.store_directory import TIMESERIES, VECTORS
from headrace.stores.timeseries.timeseries_store import Matchers, read_matchers, to_ms
from headrace.stores.vectors.filters import to_json
from headrace.stores.vectors.vector_store import FilterLike, as_filter


def read_timeseries(
    spark: SparkSession,
    store: str | PathLike[str],
    matchers: Matchers = (),
    start: int | datetime | None = None,
    end: int | datetime | None = None,
    *,
    partitions: int | None = None,
    token: str = "",
) -> DataFrame:
    """Return the samples with start ≤ time ≤ end of the series that match, all if none is given.

    The columns are `timestamp`, `value` and `labels`. Times are milliseconds since 1970, or
    datetimes. `store` is a directory that executors see, or the address of the process that serves
    the store, which wants the token.
    """
    triples = [(each.name, str(each.kind), each.value) for each in read_matchers(matchers)]
    selection = {"matchers": triples, "start": to_ms(start), "end": to_ms(end)}
    return _read(spark, TIMESERIES, store, token, selection, partitions)


def read_vectors(
    spark: SparkSession,
    store: str | PathLike[str],
    filter: FilterLike = None,
    *,
    columns: Sequence[str] | None = None,
    partitions: int | None = None,
    token: str = "",
) -> DataFrame:
    """Return the rows of a vector store that pass the filter: all columns, or the named ones.

    For `store` and `token` see `read_timeseries`.
    """
    kept = as_filter(filter)
    selection = {
        "filter": None if kept is None else to_json(kept),
        "columns": None if columns is None else list(columns),
    }
    return _read(spark, VECTORS, store, token, selection, partitions)


def _read(
    spark: SparkSession,
    kind: str,
    store: str | PathLike[str],
    token: str,
    selection: dict[str, Any],
    partitions: int | None,
) -> DataFrame:
    if partitions is not None and partitions < 1:
        raise UsageError(f"partitions must be at least 1, got {partitions}", do="use a number")
    location = fspath(store)
    if not is_store_address(location):
        location = str(Path(location).absolute())
    with open_store(location, token=token, kind=kind) as opened:
        # A wrong selection is told here, before Spark begins.
        first = next(opened.scan(**selection), None)
        columns = opened.schema if first is None else first.schema
        if first is None and (named := selection.get("columns")) is not None:
            columns = pa.schema([columns.field(name) for name in named])
    schema = from_arrow_schema(_with_lists(columns))
    wanted = to_arrow_schema(schema, timezone="UTC")
    scan = for_executors(_scan, location, token, kind, selection, wanted)
    rows = spark.range(0, 1, 1, 1).mapInArrow(scan, schema)
    spread = partitions or spark.sparkContext.defaultParallelism
    return rows if spread == 1 else rows.repartition(spread)


def _with_lists(columns: pa.Schema) -> pa.Schema:
    """Return the columns as Spark knows them: it has no lists of a fixed size."""
    return pa.schema(
        field.with_type(pa.list_(field.type.value_type))
        if pa.types.is_fixed_size_list(field.type)
        else field
        for field in columns
    )


# -- in Spark's tasks ----------------------------------------------------------------------


def _scan(
    location: str,
    token: str,
    kind: str,
    selection: dict[str, Any],
    columns: pa.Schema,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    for _ in numbers:
        with without_traceback(), open_store(location, token=token, kind=kind) as store:
            for batch in store.scan(**selection):
                arrays = [batch.column(field.name).cast(field.type) for field in columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=columns)
