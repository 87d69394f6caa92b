"""Documents as Python values that have a form in JSON.

Arrow converts a column as a whole, and fast. What it cannot convert is done a value at a time: maps
whose keys are nested or boolean, which JSON does not allow as keys, become lists of pairs; days and
instants beyond the years 1 to 9999, which Python does not know, become text as ISO 8601 has it.
(Arrow's own text for years beyond 32767 is wrong.)
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

_ERA_YEARS = 400
_ERA = timedelta(days=146_097)
"""After that the calendar repeats."""


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    if not _has_pairs(column.type):
        # Lossy: of equal keys in a map the last counts, and Arrow warns of that.
        with suppress(OverflowError), warnings.catch_warnings(action="ignore"):
            found: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
            return found
    return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pt.is_map(kind):
        keys, items = scalar.values.flatten()
        pairs = [(_value(key), _value(item)) for key, item in zip(keys, items, strict=True)]
        return pairs if _is_pairs(kind) else dict(pairs)
    if pt.is_list(kind):
        return [_value(each) for each in scalar.values]
    if pt.is_struct(kind):
        return {field.name: _value(scalar[at]) for at, field in enumerate(kind)}
    try:
        return scalar.as_py()
    except OverflowError:
        return _far_time(scalar.value, kind)


def _far_time(count: int, kind: pa.DataType) -> str:
    """That of as many days or microseconds from 1970 on."""
    if pt.is_date(kind):
        begin, unit, zone = date(1970, 1, 1), timedelta(days=1), ""
    else:
        begin, unit = datetime(1970, 1, 1), timedelta(microseconds=1)
        zone = "Z" if kind.tz else ""
    eras, rest = divmod(count, _ERA // unit)
    near = begin + rest * unit
    year = near.year + eras * _ERA_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}{near.isoformat()[4:]}{zone}"


def _has_pairs(kind: pa.DataType) -> bool:
    children = [kind.field(at).type for at in range(kind.num_fields)]
    return (pt.is_map(kind) and _is_pairs(kind)) or any(map(_has_pairs, children))


def _is_pairs(kind: pa.MapType) -> bool:
    return bool(pt.is_nested(kind.key_type) or pt.is_boolean(kind.key_type))
