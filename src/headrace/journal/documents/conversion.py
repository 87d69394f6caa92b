"""Converts documents of any form into one record batch of exactly the collection's schema.

A missing field becomes null. An unknown field, a value that its type cannot hold without loss, a
null in a key or NOT NULL field, and a document that is too large raise a `DocumentError` that names
the field and the document (counted from 0) or the line (from 1). Then no document is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.errors import DocumentError
from headrace.journal.documents.columns import to_columns
from headrace.journal.documents.ndjson import NdjsonLines
from headrace.journal.documents.schema import to_ddl
from headrace.journal.documents.validation import (
    DocumentSpec,
    RowName,
    as_unchecked,
    cast,
    check_size,
    fits_as_it_is,
    to_batch,
    unchecked_type,
    unknown_field,
)


def from_arrow(
    data: pa.RecordBatch | pa.Table, spec: DocumentSpec, *, documents_before: int = 0
) -> pa.RecordBatch:
    """Convert Arrow columns, in any order.

    Casts other widths, units and layouts where no value changes, but never narrows double to float.
    `documents_before` is added to the number of a document in errors.
    """

    def row(index: int) -> str:
        return _document(documents_before + index)

    if fits_as_it_is(data, spec):
        check_size(data, spec, row)
        return data
    names = data.schema.names
    for name in names:
        if name not in spec.schema.names:
            raise unknown_field(name, "the data", spec)
        if names.count(name) > 1:
            raise DocumentError(f"the data has field {name!r} twice", do="drop one of them")
    return to_batch(
        [
            _cast_lossless(_whole(data[field.name]), field, row)
            if field.name in names
            else pa.nulls(data.num_rows, unchecked_type(field.type))
            for field in spec.schema
        ],
        spec,
        row,
    )


def from_dicts(documents: Sequence[dict[str, Any]], spec: DocumentSpec) -> pa.RecordBatch:
    """Convert dicts of Python values or of their forms in JSON: see the table in `columns`."""
    for kind in set(map(type, documents)):
        if not issubclass(kind, dict):
            index = next(i for i, d in enumerate(documents) if type(d) is kind)
            raise DocumentError(f"document {index} is of type {kind.__name__}", do="give dicts")
    return to_batch(to_columns(documents, spec, _document, _shown), spec, _document)


def from_ndjson(data: bytes | memoryview, spec: DocumentSpec) -> pa.RecordBatch:
    """Convert newline-delimited JSON in UTF-8: one object a line; blank lines do not count.

    Values have the JSON forms that `from_dicts` takes. An object may not have a name twice.
    """
    lines = NdjsonLines(data, spec)
    return to_batch(lines.columns(), spec, lines.name)


def _shown(value: Any) -> str:
    return f"{value!r} ({type(value).__name__})"


def _document(index: int) -> str:
    return f"document {index}"


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    try:
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    except pa.ArrowException as error:
        raise DocumentError(
            f"the documents do not fit in one batch ({error})", do="append them in smaller pieces"
        ) from error


# Arrow.


def _cast_lossless(array: pa.Array, field: pa.Field, name: RowName) -> pa.Array:
    if not _is_lossless(array.type, field.type):
        naive = pt.is_timestamp(array.type) and pt.is_timestamp(field.type) and field.type.tz
        ddl = to_ddl(pa.schema([field.with_nullable(True).remove_metadata()]))
        raise DocumentError(
            f"field {field.name!r} is {array.type} in the data, but the schema has {ddl}",
            do='give the times a time zone, e.g. pc.assume_timezone(column, "UTC")'
            if naive
            else "cast the column before you append it",
        )
    if pt.is_dictionary(array.type):
        # Arrow cannot decode dictionaries of views.
        array = array.dictionary.cast(_without_views(array.type.value_type)).take(array.indices)
    if pt.is_integer(array.type) and pt.is_decimal(field.type):
        # Arrow's direct cast requires room for every integer of the type, not only for the present.
        array = array.cast(pa.decimal128(20, 0))
    return cast(as_unchecked(array), field, name)


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pt.is_string_view(kind):
        return pa.string()
    return pa.binary() if pt.is_binary_view(kind) else kind


def _is_lossless(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if a checked cast keeps every value that it does not refuse."""
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
"""Lists of views are missing: Arrow loses elements when it casts them to lists."""
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
