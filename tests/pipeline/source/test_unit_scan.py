"""Sources of queries: what travels to the task of a unit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from headrace.pipeline.source.unit_scan import TableScan


def test_a_unit_of_a_table_travels_with_its_own_rows_alone() -> None:
    table = pa.table({"n": range(100_000), "text": [f"row {n}" for n in range(100_000)]})
    units = TableScan(table, 1_000).units()
    encoded: list[bytes] = [cloudpickle.dumps(unit) for unit in units]  # type: ignore[no-untyped-call]
    assert max(map(len, encoded)) < 2 * table.nbytes / len(units)
    arrived = [cloudpickle.loads(each) for each in encoded]
    assert [each.name for each in arrived] == [each.name for each in units]
    assert pa.concat_tables([each.read() for each in arrived]).equals(table)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 3, None, 5], pa.int64()),
        ([True, False, True, None, True], pa.bool_()),
        (["a", None, "ccc", "", "e"], pa.string()),
        (["a", None, "a text of more than twelve", "", "e"], pa.string_view()),
        (["a", None, "a", "b", "e"], pa.dictionary(pa.int8(), pa.string())),
        ([[1], None, [2, 3], [], [None]], pa.list_(pa.int64())),
        ([{"a": 1}, None, {"a": None}, {"a": 4}, {"a": 5}], pa.struct({"a": pa.int64()})),
        ([None] * 5, pa.null()),
    ],
    ids=lambda each: str(each) if isinstance(each, pa.DataType) else "",
)
def test_a_unit_of_a_table_is_named_by_its_own_rows_alone(values: list[Any], kind: Any) -> None:
    """Not by what is around them in a larger table, nor by the batches that they come in."""

    def names(table: pa.Table) -> list[str]:
        return [unit.name for unit in TableScan(table, 5).units()]

    def table(rows: list[Any]) -> pa.Table:
        return pa.table({"value": pa.array(rows, kind)})

    own, others = table(values), values[2:] + values
    (name,) = names(own)
    assert names(table(values + others))[0] == name
    assert names(table(others + values).slice(len(others)))[0] == name
    assert names(pa.concat_tables([own.slice(0, 2), own.slice(2)]))[0] == name
    assert names(table(values[::-1]))[0] != name or values == values[::-1]
    assert names(own.rename_columns(["other"]))[0] != name
