"""Sources of plans in tests: tables in memory, cut into units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TableScanUnit:
    name: str
    table: pa.Table

    def read(self) -> pa.Table:
        return self.table


@dataclass(frozen=True)
class TableScan:
    table: pa.Table
    rows_per_unit: int = 3
    label: str = "table"

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def units(self) -> Sequence[TableScanUnit]:
        return [
            TableScanUnit(f"{self.label} {first}", self.table.slice(first, self.rows_per_unit))
            for first in range(0, self.table.num_rows, self.rows_per_unit)
        ]

    def __str__(self) -> str:
        return self.label
