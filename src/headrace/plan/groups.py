"""Rows that are grouped by key, with Arrow's group_by. Pure.

Arrow reads a name such as ".a" as a path, and appends the name of the function to that of the
column. So it gets columns that are named by their position, whatever names they have here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class GroupValues(NamedTuple):
    """What Arrow computes of the rows of each group."""

    output: str
    """The name of the column that holds it."""
    values: pa.ChunkedArray
    function: str
    options: Any = None


def aggregate_groups(
    table: pa.Table, keys: Sequence[str], wanted: Sequence[GroupValues]
) -> pa.Table:
    """Return one row for each key. Without keys all rows are one group, even if there are none."""
    key_names = [f"key {number}" for number in range(len(keys))]
    value_names = [f"value {number}" for number in range(len(wanted))]
    columns = [table[name] for name in keys] + [each.values for each in wanted]
    grouped = pa.Table.from_arrays(columns, [*key_names, *value_names]).group_by(
        key_names, use_threads=False
    )
    found = grouped.aggregate(
        [
            (name, each.function, each.options)
            for name, each in zip(value_names, wanted, strict=True)
        ]
    )
    results = [
        found[f"{name}_{each.function}"] for name, each in zip(value_names, wanted, strict=True)
    ]
    return pa.Table.from_arrays(
        [*(found[name] for name in key_names), *results],
        [*keys, *(each.output for each in wanted)],
    )


def group_numbers(table: pa.Table, keys: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of each row's group, in the order of `aggregate_groups`."""
    numbers = np.zeros(table.num_rows, np.int64)
    if not keys or not table.num_rows:
        return numbers
    rows = pa.chunked_array([np.arange(table.num_rows)])
    grouped = aggregate_groups(table, keys, [GroupValues("", rows, "list")])
    lists = grouped.column(len(keys)).combine_chunks()
    members = lists.flatten().to_numpy()
    sizes = lists.value_lengths().to_numpy()
    numbers[members] = np.repeat(np.arange(len(sizes)), sizes)
    return numbers
