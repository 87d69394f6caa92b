"""A table that one thread appends to, while readers of older snapshots look into it."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.stores.vectors.distance import Metric
from headrace.stores.vectors.row_table import RowTable
from headrace.stores.vectors.vector_rows import VectorSchema, no_columns

SCHEMA = VectorSchema.of(2, Metric.L2, None)


def append(table: RowTable, *names: str) -> None:
    numbers = np.arange(table.count, table.count + len(names))
    table.append(np.array(names, object), numbers, no_columns(len(names)))


def test_a_reader_finds_the_last_row_that_its_snapshot_has() -> None:
    table = RowTable(SCHEMA)
    append(table, "a", "b")
    append(table, "a", "c")
    append(table, "a")
    for count, rows in [(0, [-1, -1, -1]), (1, [0, -1, -1]), (2, [0, 1, -1]), (3, [2, 1, -1])]:
        assert table.find(["a", "b", "c"], count).tolist() == rows
    assert table.find(["a", "b", "c", "d"], 5).tolist() == [4, 1, 3, -1]


def test_a_reader_finds_its_row_while_a_newer_one_is_appended() -> None:
    found: list[list[int]] = []

    class Newest(dict[str, int]):
        def update(self, *given: Any, **named: int) -> None:
            super().update(*given, **named)
            found.append(table.find(["a"], 1).tolist())

    table = RowTable(SCHEMA)
    append(table, "a")
    table._newest = Newest(table._newest)
    append(table, "a")
    assert found == [[0]]
