"""Turns documents into Python values that JSON can hold and `headrace publish` reads back.

A map becomes a list of its entries, each with `key` and `value`, so that keys may have any type. A
number that is not finite becomes a word. Days and instants beyond the years 1 to 9999, which Python
cannot represent, become ISO 8601 text. (Arrow's own text for years beyond 32767 is wrong.)
"""

from __future__ import annotations

from contextlib import suppress
from datetime import date, datetime, timedelta
from itertools import pairwise
from math import isfinite, isnan
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.journal.documents.validation import as_unchecked

_ERA_YEARS = 400
_ERA = timedelta(days=146_097)
"""The Gregorian calendar repeats after this many days."""


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    names = batch.schema.names
    columns = [_column(as_unchecked(column)) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _column(array: pa.Array) -> list[Any]:
    """Return the values of a column; all at once, which is fast, if none needs another form."""
    if _is_finite(array):
        with suppress(OverflowError):
            found: list[Any] = array.to_pylist()
            return found
    return _values(array)


def _is_finite(array: pa.Array) -> bool:
    if pt.is_floating(array.type):
        return bool(pc.all(pc.is_finite(array)).as_py() is not False)
    if pt.is_struct(array.type):
        return all(map(_is_finite, array.flatten()))
    return not pt.is_list(array.type) or _is_finite(array.flatten())


def _values(array: pa.Array) -> list[Any]:
    kind, is_valid = array.type, array.is_valid().to_pylist()
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        fields = zip(*map(_values, array.flatten()), strict=True)
        structs = (dict(zip(names, row, strict=True)) for row in fields)
        return [each if valid else None for each, valid in zip(structs, is_valid, strict=True)]
    if pt.is_list(kind):
        below = _values(array.flatten())
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        slices = pairwise(np.r_[0, np.cumsum(lengths)].tolist())
        return [
            below[low:high] if valid else None
            for (low, high), valid in zip(slices, is_valid, strict=True)
        ]
    try:
        found = array.to_pylist()
    except OverflowError:
        counts = array.cast(pa.int32() if pt.is_date(kind) else pa.int64()).to_pylist()
        return [None if each is None else _time(each, kind) for each in counts]
    return list(map(_finite_or_word, found)) if pt.is_floating(kind) else found


def _finite_or_word(value: float | None) -> float | str | None:
    if value is None or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _time(count: int, kind: pa.DataType) -> str:
    """Return the text of the day or instant that many days or microseconds after 1970."""
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
