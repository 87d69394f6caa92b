"""Documents as users give them, made into one record batch of exactly the collection's schema.

Whatever the form, a field that is missing is null, and an unknown field, a value that does not fit
its type without loss, a null in a key or NOT NULL field, and a document that is too large are a
`DocumentError` that names the field and the document (its index from 0) or the line (from 1).
Nothing is taken from input that has any of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.errors import DocumentError
from headrace.journal.fit import (
    Shape,
    cast,
    check_size,
    fits_as_it_is,
    misfit,
    nullable,
    rebuilt,
    to_batch,
    unknown_field,
    wide_float,
)
from headrace.journal.ndjson import Lines
from headrace.journal.schema import to_ddl


def from_arrow(data: pa.RecordBatch | pa.Table, shape: Shape) -> pa.RecordBatch:
    """From Arrow columns, in any order. Other widths, units and layouts are cast where no value
    changes; double is never narrowed to float."""
    if fits_as_it_is(data, shape):
        check_size(data, shape, _document)
        return data
    names = data.schema.names
    for name in names:
        if name not in shape.schema.names:
            raise unknown_field(name, "the data", shape)
        if names.count(name) > 1:
            raise DocumentError(f"the data has field {name!r} twice", do="drop one of them")
    return to_batch(
        [
            _cast_lossless(_whole(data[field.name]), field)
            if field.name in names
            else pa.nulls(data.num_rows, nullable(field.type))
            for field in shape.schema
        ],
        shape,
        _document,
    )


def from_dicts(documents: Sequence[dict[str, Any]], shape: Shape) -> pa.RecordBatch:
    """From dicts of Python values: exactly the kind of value that each type stands for.

    An integer is no boolean and no float, a `date` no `datetime`; a `timestamp` takes a datetime
    with a time zone, a `timestamp_ntz` one without.
    """
    for kind in set(map(type, documents)):
        if not issubclass(kind, dict):
            index = next(i for i, d in enumerate(documents) if type(d) is kind)
            raise DocumentError(f"document {index} is a {kind.__name__}", do="give dicts")
    unknown = set().union(*documents) - set(shape.schema.names)
    if unknown:
        index, name = next((i, n) for i, d in enumerate(documents) for n in d if n in unknown)
        raise unknown_field(name, _document(index), shape)
    columns = [_from_values([d.get(f.name) for d in documents], f) for f in shape.schema]
    return to_batch(columns, shape, _document)


def from_ndjson(data: bytes | memoryview, shape: Shape) -> pa.RecordBatch:
    """From newline-delimited JSON in UTF-8: one object a line, blank lines ignored.

    Dates and timestamps are ISO 8601 strings, a `timestamp` with its offset or `Z`; decimals are
    numbers or strings; binary is the UTF-8 of a string. A name that occurs twice in an object is
    refused. JSON has no maps with typed keys, so a collection with a map needs another form.
    """
    lines = Lines(data, shape)
    columns = [_whole(column) for column in lines.parse_all().columns]
    return to_batch(columns, shape, lines.name)


def _document(index: int) -> str:
    return f"document {index}"


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    try:
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    except pa.ArrowException as error:
        raise DocumentError(
            f"the documents are too many at once ({error})", do="append them in smaller pieces"
        ) from error


# Arrow.


def _cast_lossless(array: pa.Array, field: pa.Field) -> pa.Array:
    if not _is_lossless(array.type, field.type):
        ddl = to_ddl(pa.schema([field.with_nullable(True).remove_metadata()]))
        raise DocumentError(
            f"field {field.name!r} is {array.type} in the data, but the schema has {ddl}",
            do="cast the column before you append it",
        )
    if pt.is_integer(array.type) and pt.is_decimal(field.type):
        # Arrow's direct cast asks for room for every integer, not for those that are there.
        array = array.cast(pa.decimal128(20, 0))
    return cast(array, nullable(field.type), field.name, _document)


def _is_lossless(given: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a checked cast keeps every value that it does not refuse."""
    if given.equals(kind) or pt.is_null(given):
        return True
    if pt.is_dictionary(given):
        return _is_lossless(given.value_type, kind)
    if pt.is_integer(given):
        return any(is_number(kind) for is_number in (pt.is_integer, pt.is_floating, pt.is_decimal))
    if pt.is_floating(given):
        return bool(pt.is_floating(kind) and given.bit_width <= kind.bit_width)
    if pt.is_timestamp(given) and pt.is_timestamp(kind):
        return bool((given.tz is None) == (kind.tz is None))
    if pt.is_struct(given) and pt.is_struct(kind):
        return [f.name for f in given] == [f.name for f in kind] and all(
            _is_lossless(g.type, k.type) for g, k in zip(given, kind, strict=True)
        )
    if pt.is_map(given) and pt.is_map(kind):
        return _is_lossless(given.key_type, kind.key_type) and _is_lossless(
            given.item_type, kind.item_type
        )
    if pt.is_list(kind) and any(is_list(given) for is_list in _LISTS):
        return _is_lossless(given.value_type, kind.value_type)
    return any(is_one(given) and is_one(kind) for is_one in _SAME_VALUES)


_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)
_SAME_VALUES: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_decimal,
    pt.is_date,
    lambda kind: pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind),
    lambda kind: (
        pt.is_binary(kind)
        or pt.is_large_binary(kind)
        or pt.is_binary_view(kind)
        or pt.is_fixed_size_binary(kind)
    ),
)


# Python values.


def _from_values(values: list[Any], field: pa.Field) -> pa.Array:
    array = _array_or_none(values, field.type)
    if array is not None:
        return array
    for index, value in enumerate(values):
        if _array_or_none([value], field.type) is None:
            shown = f"{value!r} ({type(value).__name__})"
            raise misfit(_document(index), field.name, shown, field.type)
    raise DocumentError(
        f"field {field.name!r}: the values do not fit in one batch",
        do="append them in smaller pieces",
    )


def _array_or_none(values: list[Any], kind: pa.DataType) -> pa.Array | None:
    if not _accepts(values, kind):
        return None
    try:
        return pa.array(values, rebuilt(kind, wide_float))
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return None


def _accepts(values: Iterable[Any], kind: pa.DataType) -> bool:
    """Whether the values are of the Python types that stand for `kind`."""
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
        return all((value.tzinfo is None) == (kind.tz is None) for value in present)
    if pt.is_struct(kind):
        unknown = set().union(*present) - {f.name for f in kind}
        return not unknown and all(_accepts([v.get(f.name) for v in present], f.type) for f in kind)
    if pt.is_map(kind):
        keys, items = chain.from_iterable(present), chain.from_iterable(v.values() for v in present)
        return _accepts(keys, kind.key_type) and _accepts(items, kind.item_type)
    if pt.is_list(kind):
        return _accepts(chain.from_iterable(present), kind.value_type)
    return True


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
    (pt.is_map, (dict,)),
    (pt.is_list, (list, tuple, np.ndarray)),
)
