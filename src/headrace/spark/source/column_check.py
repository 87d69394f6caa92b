"""Whether what is read still has the columns that a DataFrame was made with."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from headrace.errors import SchemaError
from headrace.shuffle.binding import Source, document_schema


def check_columns(rows: StructType, sources: Sequence[Source]) -> None:
    """Columns may have been added, which are left out; those that rows have are as they were."""
    for source in sources:
        wanted = rows if len(sources) == 1 else rows[source.name].dataType
        assert isinstance(wanted, StructType)
        there = {each.name: each for each in from_arrow_schema(document_schema(source))}
        for field in wanted:
            if not field.name.startswith("_"):
                _check(field, there.get(field.name), source)


def _check(wanted: StructField, found: StructField | None, source: Source) -> None:
    if found and found.dataType == wanted.dataType:
        return
    has = f"is {found.dataType.simpleString()}" if found else "is gone"
    raise SchemaError(
        f"column {wanted.name!r} of collection {source.collection!r} {has}, and the query was"
        f" made when it was {wanted.dataType.simpleString()}",
        do="make the query again",
    )
