"""Checks columns before any work is done: those of rows against those of a collection."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from headrace.errors import DocumentError, SchemaError
from headrace.journal.collection import Collection
from headrace.journal.write.write_buffer import to_batch
from headrace.settings import JournalSettings
from headrace.shuffle.binding import Source, document_schema


def check_written_columns(collection: Collection, rows: pa.Schema) -> None:
    """Raise SchemaError if rows with these columns cannot be documents of the collection.

    Columns are matched by name.
    """
    where = f"collection {collection.name!r}"
    for field in collection.schema:
        needed = not field.nullable or field.name in collection.key
        if needed and field.name not in rows.names:
            raise SchemaError(
                f"{where} needs column {field.name!r}, which the rows do not have",
                do=f"add it to the rows: they have {', '.join(rows.names)}",
            )
    no_rows = pa.RecordBatch.from_pylist([], schema=rows)
    try:
        to_batch(collection, no_rows, JournalSettings().document_bytes_max)
    except DocumentError as error:
        raise SchemaError(f"{where}: {error.what}", do=error.do) from error


def check_read_columns(rows: StructType, sources: Sequence[Source]) -> None:
    """Raise SchemaError if a source no longer has the columns that a DataFrame was made with.

    The DataFrame leaves out columns that were added since.
    """
    for source in sources:
        wanted = rows if len(sources) == 1 else rows[source.name].dataType
        assert isinstance(wanted, StructType)
        found = {each.name: each for each in from_arrow_schema(document_schema(source))}
        for field in wanted:
            if not field.name.startswith("_"):
                _check_field(field, found.get(field.name), source)


def _check_field(wanted: StructField, found: StructField | None, source: Source) -> None:
    if found and found.dataType == wanted.dataType:
        return
    has = f"is {found.dataType.simpleString()}" if found else "is gone"
    raise SchemaError(
        f"column {wanted.name!r} of collection {source.collection!r} {has}, and the query was"
        f" made when it was {wanted.dataType.simpleString()}",
        do="make the query again",
    )
