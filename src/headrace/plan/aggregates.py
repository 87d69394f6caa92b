"""Aggregates by name: what each keeps of the rows of a task, and how that is combined. Pure.

A partial aggregate keeps *parts*, columns that can be combined in any order. The final aggregate
combines them and computes the result:

    count       n                                       the sum of n
    sum         sum, in a wider type                    the sum of sums
    min, max    min, max                                the min, the max
    any, all    any, all                                of booleans; null counts as nothing
    mean        sum as a float, n                       sum / n
    variance    n, mean, m2 (squared distances)         combined around the common mean, / (n - 1)
    stddev      the same                                its square root

Every aggregate leaves nulls out; one that has no value left is null, a count is 0. Sums of integers
and decimals are exact, and one that does not fit is an error: see `exact_sums`. `mean`, `variance`
and `stddev` are floats. `min` and `max` leave NaN out, unless there is nothing else.
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
from headrace.plan.exact_sums import SUMMED_DIGITS_MAX, final_sum, part_type, without_overflow
from headrace.plan.groups import GroupValues, aggregate_groups, group_numbers

NAMES = ("count", "sum", "min", "max", "mean", "variance", "stddev", "any", "all")

_SAME_TWICE = ("sum", "min", "max", "any", "all")


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
    check_parts(keys, aggregates)
    wanted = [part for each in aggregates for part in _begin(table, each)]
    parts = aggregate_groups(table, keys, wanted)
    for each in aggregates:
        if each.name in ("variance", "stddev"):
            parts = _with_m2(parts, each)
        elif each.name in _SAME_TWICE:
            kind = table.schema.field(each.column).type
            kind = part_type(kind) if each.name == "sum" else kind
            (part,) = each.parts
            parts = _replace(parts, part, _cast(parts[part], kind))
    return parts


def check_parts(keys: Sequence[str], aggregates: Sequence[Aggregate]) -> None:
    """Raise SchemaError if a key has the name of a part."""
    for each in aggregates:
        if taken := set(keys) & set(each.parts):
            raise SchemaError(
                f"the key {min(taken)!r} has the name of a part of {each}",
                do="name the aggregate otherwise",
            )


def _begin(table: pa.Table, each: Aggregate) -> list[GroupValues]:
    """Return what to compute for each part of an aggregate."""
    if not each.column:
        rows = pa.chunked_array([pa.nulls(table.num_rows, pa.int8())])
        return [GroupValues(each.parts[0], rows, "count", pc.CountOptions(mode="all"))]
    values = table[each.column]
    if each.name == "count":
        return [GroupValues(each.parts[0], values, "count")]
    _check_type(each, values.type)
    if each.name in _SAME_TWICE:
        values = without_overflow(values) if each.name == "sum" else values
        return [GroupValues(each.parts[0], _computable(values), each.name, _SKIP)]
    floats = values.cast(pa.float64(), safe=False)
    if each.name == "mean":
        functions = [("sum", _SKIP), ("count", None)]
    else:
        variance = pc.VarianceOptions(ddof=0, min_count=1)
        functions = [("count", None), ("mean", _SKIP), ("variance", variance)]
    return [
        GroupValues(part, floats, *function)
        for part, function in zip(each.parts, functions, strict=True)
    ]


_SKIP = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)


def _check_type(each: Aggregate, kind: pa.DataType) -> None:
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind)
    is_time = pt.is_temporal(kind) and not pt.is_interval(kind)
    is_ordered = is_number or pt.is_boolean(kind) or is_time or _is_bytes(kind)
    fits = {
        "sum": is_number and not (pt.is_decimal(kind) and kind.precision > SUMMED_DIGITS_MAX),
        "min": is_ordered,
        "max": is_ordered,
        "any": pt.is_boolean(kind),
        "all": pt.is_boolean(kind),
    }
    if not (fits.get(each.name, is_number) or pt.is_null(kind)):
        raise SchemaError(
            f"{each}: column {each.column!r} has type {kind}, which has no {each.name}",
            do="use another column, or change its type in a map before",
        )


def _is_bytes(kind: pa.DataType) -> bool:
    return any(
        is_kind(kind)
        for is_kind in (
            *(pt.is_string, pt.is_large_string),
            *(pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary),
        )
    )


def _computable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values in a type that Arrow can aggregate; `_cast` brings them back."""
    kind = values.type
    if pt.is_float16(kind):
        return values.cast(pa.float32())
    if pt.is_decimal32(kind) or pt.is_decimal64(kind):
        return values.cast(pa.decimal128(kind.precision, kind.scale))
    if pt.is_duration(kind):
        return values.cast(pa.int64())
    return values.cast(pa.bool_()) if pt.is_null(kind) else values


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pt.is_null(kind):
        return pa.chunked_array([pa.nulls(len(values))])
    return values.cast(kind)


def _replace(table: pa.Table, name: str, values: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def _with_m2(parts: pa.Table, each: Aggregate) -> pa.Table:
    """Replace a variance by the sum of squared distances, which can be combined."""
    n, _, m2 = each.parts
    return _replace(parts, m2, pc.multiply(parts[m2], parts[n].cast(pa.float64())))


def final_aggregate(
    parts: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]
) -> pa.Table:
    """Return one row for each key, with every aggregate, from the parts of any number of tasks."""
    wanted = [
        GroupValues(part, _computable(parts[part]), function, _SKIP)
        for each in aggregates
        for part, function in _combination(each)
    ]
    is_spread = any(each.name in ("variance", "stddev") for each in aggregates)
    numbers = group_numbers(parts, keys) if is_spread else None
    combined = aggregate_groups(parts, keys, wanted)
    results = [_finish(parts, combined, numbers, each) for each in aggregates]
    return pa.Table.from_arrays(
        [*(combined[name] for name in keys), *results],
        [*keys, *(each.output for each in aggregates)],
    )


def _combination(each: Aggregate) -> list[tuple[str, str]]:
    """Return (part, function) for each part that is combined by a function."""
    if each.name in _SAME_TWICE:
        return [(each.parts[0], each.name)]
    if each.name == "mean":
        return [(part, "sum") for part in each.parts]
    return [(each.parts[0], "sum")]


def _finish(
    parts: pa.Table, combined: pa.Table, numbers: NDArray[np.int64] | None, each: Aggregate
) -> pa.ChunkedArray:
    first = combined[each.parts[0]]
    kind = parts.schema.field(each.parts[0]).type
    match each.name:
        case "count":
            return pc.fill_null(first, 0)
        case "mean":
            return pc.divide(first, combined[each.parts[1]].cast(pa.float64()))
        case "variance" | "stddev":
            assert numbers is not None
            return _spread(parts, numbers, combined.num_rows, each)
        case "sum" if not pt.is_null(kind):
            return final_sum(each, first, kind)
    return _cast(first, kind)


def _spread(
    parts: pa.Table, numbers: NDArray[np.int64], groups: int, each: Aggregate
) -> pa.ChunkedArray:
    """Combine variances around the mean of each group, which is stable for values far from 0."""
    n, mean, m2 = (_floats(parts[part]) for part in each.parts)
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
