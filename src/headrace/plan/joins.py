"""Joins of two tables with Arrow's hash join. Pure.

Arrow joins the keys and the numbers of the rows. The rows are then taken by their numbers, so that
columns of any type can be joined: Arrow's own join refuses lists, structs and vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.errors import SchemaError
from headrace.plan.key_columns import check_keys, with_plain_keys
from headrace.plan.operators import JoinKind

_ARROW_KIND: dict[JoinKind, Any] = {
    "inner": "inner",
    "left": "left outer",
    "right": "right outer",
    "full": "full outer",
    "semi": "left semi",
    "anti": "left anti",
}
_LEFT, _RIGHT = "left row", "right row"


def join_tables(
    what: object, left: pa.Table, right: pa.Table, on: Sequence[str], kind: JoinKind
) -> pa.Table:
    """Return the columns `on`, then the others of the left table, then those of the right.

    `semi` returns the rows of the left table that have a match, `anti` those that have none. Rows
    whose key has a null match nothing.
    """
    check_join(what, left.schema, right.schema, on, kind)
    left, right = with_plain_keys(left, on), with_plain_keys(right, on)
    numbers = _numbered(left, on, _LEFT).join(
        _numbered(right, on, _RIGHT), list(on), join_type=_ARROW_KIND[kind], use_threads=False
    )
    from_left = _take(left, numbers[_LEFT])
    if kind in ("semi", "anti"):
        return from_left
    from_right = _take(right, numbers[_RIGHT])
    columns: dict[str, Any] = {
        name: pc.coalesce(from_left[name], from_right[name].cast(left.schema.field(name).type))
        for name in on
    }
    for table in (from_left, from_right):
        columns |= {name: table[name] for name in table.column_names if name not in on}
    return pa.table(columns)


def check_join(
    what: object, left: pa.Schema, right: pa.Schema, on: Sequence[str], kind: JoinKind
) -> None:
    """Raise SchemaError if the columns of two inputs cannot be joined."""
    check_keys(f"{what}, left", on, left)
    check_keys(f"{what}, right", on, right)
    for name in on:
        here, there = left.field(name).type, right.field(name).type
        if here != there:
            raise SchemaError(
                f"{what}: column {name!r} is {here} on the left and {there} on the right",
                do="give both the same type in a map before",
            )
    if kind in ("semi", "anti"):
        return
    both = (set(left.names) & set(right.names)) - set(on)
    if both:
        raise SchemaError(
            f"{what}: both inputs have a column {sorted(both)[0]!r}",
            do="rename it on one side in a map before, or join on it",
        )


def _numbered(table: pa.Table, on: Sequence[str], name: str) -> pa.Table:
    """Return the keys, and the number of each row. Arrow joins no columns of type null."""
    columns: dict[str, Any] = {
        key: table[key].cast(pa.int8()) if pt.is_null(table[key].type) else table[key] for key in on
    }
    return pa.table(columns | {name: pa.array(np.arange(table.num_rows))})


def _take(table: pa.Table, rows: pa.ChunkedArray) -> pa.Table:
    """Return the rows of these numbers; nulls where the number is null."""
    return table.combine_chunks().take(rows.combine_chunks())
