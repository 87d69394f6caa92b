"""Sources of queries: what travels to the task of a unit."""

from __future__ import annotations

import pyarrow as pa
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
