"""Builds columns from Python values: those that stand for a type, or their forms in JSON.

| type | Python values | also |
|---|---|---|
| boolean | bool | |
| tinyint to bigint | int | |
| float, double | float, int | the texts `NaN`, `Infinity`, `-Infinity` |
| decimal | Decimal, int | text |
| string | str | |
| binary | bytes, bytearray, memoryview | base64 text |
| date | date | ISO 8601 text |
| timestamp | datetime with a time zone | ISO 8601 text with `Z` or an offset |
| timestamp_ntz | datetime without a time zone | ISO 8601 text without |
| array | list, tuple, numpy array | |
| map | dict | list of pairs, or of `{"key": …, "value": …}` |
| struct | dict | |

An int is not a boolean, a bool is not a number, and a datetime is not a date.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.errors import DocumentError
from headrace.journal.documents.text_values import (
    FAILURES,
    WORDS,
    UnfitValueError,
    has_text,
    parse_text,
    text_of,
    zone_advice,
)
from headrace.journal.documents.validation import (
    DocumentSpec,
    RowName,
    contains_map,
    unchecked_type,
    unfit_value,
    unknown_field,
    widen_float,
)

Shown = Callable[[Any], str]
"""Formats a value for an error."""

_INTEGER = re.compile(r"-?\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class JsonNumber:
    """A number in JSON. Its value depends on the type of its field."""

    text: str

    def value(self, kind: pa.DataType) -> int | float | Decimal:
        if self.text in WORDS:
            if pt.is_floating(kind):
                return WORDS[self.text]
            raise UnfitValueError
        if pt.is_integer(kind) and _INTEGER.fullmatch(self.text):
            return int(self.text)
        if pt.is_decimal(kind):
            return Decimal(self.text)
        if pt.is_floating(kind):
            found = float(self.text)
            if np.isfinite(found):
                return found
        raise UnfitValueError


def to_columns(
    documents: Sequence[dict[str, Any]], spec: DocumentSpec, name: RowName, shown: Shown
) -> list[pa.Array]:
    """Return the columns of the schema in the loose layout, floats as doubles.

    Raises a DocumentError that names the first document with an unknown field or an unfit value.
    """
    unknown = set().union(*documents) - set(spec.schema.names)
    if unknown:
        index, field = next((i, n) for i, d in enumerate(documents) for n in d if n in unknown)
        raise unknown_field(field, name(index), spec)
    return [
        _named_column([document.get(field.name) for document in documents], field, name, shown)
        for field in spec.schema
    ]


def _named_column(values: list[Any], field: pa.Field, name: RowName, shown: Shown) -> pa.Array:
    try:
        return to_column(values, field.type)
    except FAILURES:
        pass
    for index, value in enumerate(values):
        try:
            to_column([value], field.type)
        except FAILURES as why:
            raise unfit_value(name(index), field.name, shown(value), field.type, why) from None
    raise DocumentError(
        f"field {field.name!r}: the values do not fit in one batch",
        do="append them in smaller pieces",
    )


def to_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return the values in the loose layout of `kind`, floats as doubles.

    Raises one of `FAILURES` if a value does not fit.
    """
    if not contains_map(kind) and _stand_for(values, kind):
        try:
            return pa.array(values, unchecked_type(kind, widen_float))
        except FAILURES:
            # Arrow judges some values too strictly, such as a number in a numpy array.
            pass
    return _build(values, kind)


def _build(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pt.is_struct(kind):
        return _build_struct(values, kind)
    if pt.is_map(kind):
        entries = [None if each is None else _entries(each) for each in values]
        pair = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _build_list(entries, pair)
    if pt.is_list(kind):
        _check_types(values, (list, tuple, np.ndarray))
        return _build_list(values, kind.value_type)
    return _build_leaf(values, kind)


def _build_leaf(values: list[Any], kind: pa.DataType) -> pa.Array:
    values = [each.value(kind) if isinstance(each, JsonNumber) else each for each in values]
    if not has_text(kind):
        return _natural(values, kind)
    texts = [each if isinstance(each, str) else None for each in values]
    others = [None if isinstance(each, str) else each for each in values]
    parsed = parse_text(pa.array(texts, pa.string()), kind)
    return pc.coalesce(parsed, _natural(others, kind))


def _natural(values: list[Any], kind: pa.DataType) -> pa.Array:
    if not _stand_for(values, kind):
        if pt.is_timestamp(kind):
            # Leave out the NaT of pandas, a datetime that does not equal itself.
            times = [each for each in values if isinstance(each, datetime) and each == each]
            if any(map(_has_nanoseconds, times)):
                raise UnfitValueError("round it to microseconds")
            wrong = [each for each in times if (each.tzinfo is None) != (kind.tz is None)]
            if wrong:
                raise UnfitValueError(zone_advice(text_of(wrong[0]), kind))
        raise UnfitValueError
    return pa.array(values, widen_float(kind))


def _build_struct(values: list[Any], kind: pa.StructType) -> pa.Array:
    _check_types(values, (dict,))
    names = {field.name for field in kind}
    for each in values:
        if each and (unknown := each.keys() - names):
            shown = ", ".join(sorted(map(repr, unknown)))
            raise UnfitValueError(f"leave {shown} out, which the struct does not have")
    children = [
        _build([None if each is None else each.get(field.name) for each in values], field.type)
        for field in kind
    ]
    missing = pa.array([each is None for each in values], pa.bool_())
    return pa.StructArray.from_arrays(
        children, fields=list(unchecked_type(kind, widen_float)), mask=missing
    )


def _build_list(values: list[Any], element: pa.DataType) -> pa.Array:
    lengths = [0 if each is None else len(each) for each in values]
    below = _build(list(chain.from_iterable(each for each in values if each is not None)), element)
    offsets = pa.array(np.r_[0, np.cumsum(lengths)].astype(np.int32))
    missing = pa.array([each is None for each in values], pa.bool_())
    return pa.ListArray.from_arrays(offsets, below, mask=missing)


def _entries(value: Any) -> list[dict[str, Any]]:
    """Return the entries of a map that is given in any of its forms."""
    if isinstance(value, dict):
        return [{"key": key, "value": item} for key, item in value.items()]
    if not isinstance(value, list | tuple):
        raise UnfitValueError('give a list of {"key": …, "value": …}')
    entries = []
    for each in value:
        if isinstance(each, tuple) and len(each) == 2:
            entries.append({"key": each[0], "value": each[1]})
        elif each is None or (isinstance(each, dict) and each.keys() <= {"key", "value"}):
            entries.append(each or {})
        else:
            raise UnfitValueError('give a list of {"key": …, "value": …}')
    return entries


def _check_types(values: Iterable[Any], allowed: tuple[type, ...]) -> None:
    if not all(issubclass(one, allowed) for one in set(map(type, values)) - {type(None)}):
        raise UnfitValueError


def _stand_for(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Return True if the values have the Python types that stand for `kind`, which has no maps."""
    present = [value for value in values if value is not None]
    allowed = next(types for is_kind, types in _PYTHON_TYPES if is_kind(kind))
    found = set(map(type, present))
    if not all(issubclass(one, allowed) for one in found):
        return False
    if bool in found and not pt.is_boolean(kind):
        return False
    if pt.is_date(kind):
        return not any(issubclass(one, datetime) for one in found)
    if pt.is_timestamp(kind):
        return all(
            (value.tzinfo is None) == (kind.tz is None) and not _has_nanoseconds(value)
            for value in present
        )
    if pt.is_struct(kind):
        unknown = set().union(*present) - {f.name for f in kind}
        return not unknown and all(
            _stand_for([v.get(f.name) for v in present], f.type) for f in kind
        )
    if pt.is_list(kind):
        return _stand_for(chain.from_iterable(present), kind.value_type)
    return True


def _has_nanoseconds(time: datetime) -> bool:
    """Return True for a pandas timestamp with nanoseconds, which Arrow would drop."""
    return type(time) is not datetime and bool(getattr(time, "nanosecond", 0))


_PYTHON_TYPES: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pt.is_boolean, (bool, np.bool_)),
    (pt.is_integer, (int, np.integer)),
    (pt.is_floating, (float, int, np.floating, np.integer)),
    (pt.is_decimal, (Decimal, int)),
    (pt.is_string, (str,)),
    (pt.is_binary, (bytes, bytearray, memoryview)),
    (pt.is_date, (date,)),
    (pt.is_timestamp, (datetime,)),
    (pt.is_struct, (dict,)),
    (pt.is_list, (list, tuple, np.ndarray)),
)
