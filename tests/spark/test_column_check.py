"""Columns of a running query, against what its collections have become."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from headrace.errors import SchemaError
from headrace.spark.column_check import check_read_columns
from tests.shuffle.builders import source

ROWS = StructType([StructField("n", LongType()), StructField("s", StringType())])


def now(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


def test_a_column_that_was_added_is_left_out() -> None:
    check_read_columns(ROWS, [source(0, "a", schema=now(n=pa.int64(), s=pa.string(), x=pa.int8()))])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (now(n=pa.int64()), "column 's' of collection 'a' is gone, .* it was string; make"),
        (
            now(n=pa.int64(), s=pa.int64()),
            "column 's' of collection 'a' is bigint, .* it was string; make",
        ),
    ],
)
def test_a_column_that_is_gone_or_of_another_type_is_named(schema: pa.Schema, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        check_read_columns(ROWS, [source(0, "a", schema=schema)])
    both = StructType([StructField("a", ROWS), StructField("b", ROWS)])
    good = now(n=pa.int64(), s=pa.string())
    of_both = [source(1, "b", name="b", schema=good), source(0, "a", name="a", schema=schema)]
    with pytest.raises(SchemaError, match=said):
        check_read_columns(both, of_both)
