"""Aggregates by name: what each keeps of the rows of a task, and how that is combined. Pure.

A partial aggregate keeps *parts*, columns that can be combined in any order. The final aggregate
combines them and computes the result:

    count       n                                       the sum of n
    sum         sum                                     the sum of sums
    min, max    min, max                                the min, the max
    any, all    any, all                                of booleans; null counts as nothing
    mean        sum as a float, n                       sum / n
    variance    n, mean, m2 (squared distances)         combined around the common mean, / (n - 1)
    stddev      the same                                its square root

Every aggregate leaves nulls out; one that has no value left is null, a count is 0. Sums of integers
are 64 bits wide, and one that does not fit is an error. `mean`, `variance` and `stddev` are floats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from headrace.errors import SchemaError, UsageError

NAMES = ("count", "sum", "min", "max", "mean", "variance", "stddev", "any", "all")

_SAME_TWICE = {"sum": "sum", "min": "min", "max": "max", "any": "any", "all": "all"}
_INTEGERS_END = float(2**63)


class Aggregate(NamedTuple):
    """One column of the result."""

    output: str
    name: str
    column: str
    """Empty for a count of rows."""

    def __str__(self) -> str:
        return (
            f"{self.output}={self.name}({self.column})" if self.column else f"{self.output}=count"
        )

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the columns that a partial aggregate keeps."""
        return tuple(f"{self.output}.{part}" for part in _PARTS.get(self.name, (self.name,)))


_PARTS = {
    "count": ("n",),
    "mean": ("sum", "n"),
    "variance": ("n", "mean", "m2"),
    "stddev": ("n", "mean", "m2"),
}


def named_aggregates(wanted: Mapping[str, Any]) -> tuple[Aggregate, ...]:
    """Return aggregates given as `n="count"` or `total=("amount", "sum")`."""
    if not wanted:
        raise UsageError("agg() names no aggregate", do='give one, such as n="count"')
    found = []
    for output, each in wanted.items():
        column, name = ("", each) if isinstance(each, str) else _pair(output, each)
        if name not in NAMES:
            hint = "count after distinct(...)" if "distinct" in name else f"use {', '.join(NAMES)}"
            raise UsageError(f"{output}: there is no aggregate {name!r}", do=hint)
        if not column and name != "count":
            raise UsageError(
                f"{output}: {name!r} needs a column", do=f'write {output}=("column", "{name}")'
            )
        found.append(Aggregate(output, name, column))
    return tuple(found)


def _pair(output: str, each: Any) -> tuple[str, str]:
    match each:
        case (str() as column, str() as name):
            return column, name
    raise UsageError(
        f"{output}: {each!r} is no aggregate", do=f'write {output}=("column", "sum") or "count"'
    )


def partial_aggregate(
    table: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> pa.Table:
    """Return one row for each key, with the parts of every aggregate."""
    columns = {name: table[name] for name in keys}
    plan: list[tuple[Any, ...]] = []
    outputs: list[str] = []
    for each in aggregates:
        for part, values, function, options in _begin(table, each):
            name = f"{each.output}.{part}"
            columns[name] = values
            outputs.append(name)
            plan.append((name, function, options))
    grouped = _group(pa.table(columns), keys, plan)
    parts = _named(grouped, keys, outputs)
    for each in aggregates:
        if each.name in ("variance", "stddev"):
            parts = _with_m2(parts, each)
        if each.name == "sum":
            _check_sum(table, keys, each.column, parts[f"{each.output}.sum"], each)
    return parts


def _begin(table: pa.Table, each: Aggregate) -> list[tuple[str, Any, str, Any]]:
    """Return (part, values, function, options) for each part of an aggregate."""
    if each.name == "count":
        if not each.column:
            rows = pa.nulls(table.num_rows, pa.int8())
            return [("n", rows, "count", pc.CountOptions(mode="all"))]
        return [("n", table[each.column], "count", None)]
    values = table[each.column]
    _check_type(each, values.type)
    if each.name in _SAME_TWICE:
        return [(each.name, values, each.name, _SKIP)]
    floats = values.cast(pa.float64(), safe=False)
    if each.name == "mean":
        return [("sum", floats, "sum", _SKIP), ("n", floats, "count", None)]
    variance = pc.VarianceOptions(ddof=0, min_count=1)
    return [
        ("n", floats, "count", None),
        ("mean", floats, "mean", _SKIP),
        ("m2", floats, "variance", variance),
    ]


_SKIP = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


def _check_type(each: Aggregate, kind: pa.DataType) -> None:
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)
    is_logical = pt.is_boolean(kind)
    is_ordered = is_number or is_logical or pt.is_temporal(kind) or _is_text(kind)
    fits = {"min": is_ordered, "max": is_ordered, "any": is_logical, "all": is_logical}
    if not (fits.get(each.name, is_number) or pt.is_null(kind)):
        raise SchemaError(
            f"{each}: column {each.column!r} has type {kind}, which has no {each.name}",
            do="use another column, or change its type in a map before",
        )


def _is_text(kind: pa.DataType) -> bool:
    return any((pt.is_string(kind), pt.is_large_string(kind), pt.is_binary(kind)))


def _group(table: pa.Table, keys: Sequence[str], plan: Sequence[tuple[Any, ...]]) -> pa.Table:
    return table.group_by(list(keys), use_threads=False).aggregate(plan)


def _named(grouped: pa.Table, keys: Sequence[str], outputs: Sequence[str]) -> pa.Table:
    """Give Arrow's columns our names. Arrow appends the function's, and may put keys last."""
    held = dict(zip(grouped.column_names, grouped.columns, strict=True))
    found = {name: held.pop(name) for name in keys}
    return pa.table(found | dict(zip(outputs, held.values(), strict=True)))


def _with_m2(parts: pa.Table, each: Aggregate) -> pa.Table:
    """Replace a variance by the sum of squared distances, which can be combined."""
    n, m2 = f"{each.output}.n", f"{each.output}.m2"
    squares = pc.multiply(parts[m2], parts[n].cast(pa.float64()))
    return parts.set_column(parts.schema.get_field_index(m2), m2, squares)


def _check_sum(
    table: pa.Table, keys: Sequence[str], column: str, sums: pa.ChunkedArray, each: Aggregate
) -> None:
    """Raise UsageError if a sum of integers does not fit. Arrow would give another number."""
    if not pt.is_integer(table[column].type) or not table.num_rows:
        return
    largest = pc.max(pc.abs_checked(table[column].cast(pa.float64(), safe=False))).as_py()
    if largest is None or largest * table.num_rows < _INTEGERS_END:
        return
    columns = {name: table[name] for name in keys} | {
        "": table[column].cast(pa.float64(), safe=False)
    }
    floats = _group(pa.table(columns), keys, [("", "sum", _SKIP)])["_sum"]
    limit = _INTEGERS_END * (2 if pt.is_unsigned_integer(sums.type) else 1)
    if pc.any(pc.greater_equal(pc.abs(floats), limit)).as_py():
        raise UsageError(
            f"{each}: a sum does not fit into 64 bits",
            do="turn the column into a decimal or a float in a map before",
        )


def final_aggregate(
    parts: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> pa.Table:
    """Return one row for each key, with every aggregate, from the parts of any number of tasks."""
    plan: list[tuple[Any, ...]] = []
    outputs: list[str] = []
    for each in aggregates:
        for part, function in _combination(each):
            outputs.append(f"{each.output}.{part}")
            plan.append((outputs[-1], function, _SKIP))
    is_spread = any(each.name in ("variance", "stddev") for each in aggregates)
    numbers = group_numbers(parts, keys) if is_spread else None
    combined = _named(_group(parts, keys, plan), keys, outputs)
    columns: dict[str, Any] = {name: combined[name] for name in keys}
    for each in aggregates:
        if each.name == "sum":
            _check_sum(parts, keys, f"{each.output}.sum", combined[f"{each.output}.sum"], each)
        columns[each.output] = _finish(parts, combined, numbers, each)
    if not keys and not combined.num_rows:
        return pa.table({name: pa.array([None], column.type) for name, column in columns.items()})
    return pa.table(columns)


def _combination(each: Aggregate) -> list[tuple[str, str]]:
    """Return (part, function) for each part that is combined by a function."""
    if each.name in _SAME_TWICE:
        return [(each.name, _SAME_TWICE[each.name])]
    if each.name == "mean":
        return [("sum", "sum"), ("n", "sum")]
    return [("n", "sum")]


def _finish(
    parts: pa.Table, combined: pa.Table, numbers: NDArray[np.int64] | None, each: Aggregate
) -> pa.ChunkedArray:
    n = f"{each.output}.n"
    match each.name:
        case "count":
            return pc.fill_null(combined[n], 0)
        case "mean":
            return pc.divide(combined[f"{each.output}.sum"], combined[n].cast(pa.float64()))
        case "variance" | "stddev":
            assert numbers is not None
            return _spread(parts, numbers, combined.num_rows, each)
    return combined[f"{each.output}.{each.name}"]


def _spread(
    parts: pa.Table, numbers: NDArray[np.int64], groups: int, each: Aggregate
) -> pa.ChunkedArray:
    """Combine variances around the mean of each group, which is stable for values far from 0."""
    n = _floats(parts[f"{each.output}.n"])
    mean, m2 = _floats(parts[f"{each.output}.mean"]), _floats(parts[f"{each.output}.m2"])
    count = np.bincount(numbers, n, groups)
    with np.errstate(all="ignore"):
        common = np.bincount(numbers, n * mean, groups) / count
        distance = mean - common[numbers]
        squares = np.bincount(numbers, m2 + n * distance * distance, groups)
        variance = squares / (count - 1)
    result = np.sqrt(variance) if each.name == "stddev" else variance
    return pa.chunked_array([pa.array(result, mask=count < 2)])


def _floats(column: pa.ChunkedArray) -> NDArray[np.float64]:
    return np.asarray(pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy())


def group_numbers(table: pa.Table, keys: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of each row's group: groups are numbered as Arrow's group_by lists them."""
    numbers = np.zeros(table.num_rows, np.int64)
    if not keys or not table.num_rows:
        return numbers
    rows = pa.array(np.arange(table.num_rows))
    columns = {name: table[name] for name in keys} | {"": rows}
    lists = _group(pa.table(columns), keys, [("", "list")])["_list"].combine_chunks()
    members = lists.flatten().to_numpy()
    sizes = lists.value_lengths().to_numpy()
    numbers[members] = np.repeat(np.arange(len(sizes)), sizes)
    return numbers
