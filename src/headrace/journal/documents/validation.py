"""Checks that documents of any form fit their collection.

Until a column is checked, it has a loose layout: null is allowed everywhere, and a map is a list of
structs of `key` and `value`, which has the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from headrace.errors import DocumentError
from headrace.journal.documents.schema import to_ddl
from headrace.journal.documents.text_values import UnfitValueError

_FLOAT32_MAX = float(np.finfo(np.float32).max)

Mask = NDArray[np.bool_]
RowName = Callable[[int], str]
"""Returns the name of a row for errors, such as "document 3" or "line 4"."""


@dataclass(frozen=True)
class DocumentSpec:
    """The schema, the key and the greatest size of a collection's documents."""

    schema: pa.Schema
    key: Sequence[str]
    document_bytes_max: int

    @cached_property
    def is_flat(self) -> bool:
        return not any(pt.is_nested(field.type) for field in self.schema)

    @cached_property
    def required(self) -> list[int]:
        """The indexes of the columns that may have no nulls."""
        return [
            index
            for index, field in enumerate(self.schema)
            if not field.nullable or field.name in self.key
        ]


def to_batch(columns: list[pa.Array], spec: DocumentSpec, name: RowName) -> pa.RecordBatch:
    """Check columns in the loose layout, and return them as a batch of the schema.

    Their types may be wider than those of the schema.
    """
    fitted = []
    for column, field in zip(columns, spec.schema, strict=True):
        required = field.with_nullable(field.nullable and field.name not in spec.key)
        if found := _find(column, required, _is_missing):
            raise DocumentError(
                f"{name(found[0])} has no value in {found[1]!r}, which is a key or NOT NULL field",
                do="give it a value",
            )
        if found := _find(column, field, _overflows_float):
            raise DocumentError(
                f"{name(found[0])}, field {found[1]!r}: the number is out of the range of float",
                do="use a double field",
            )
        whole = cast(column, field, name)
        fitted.append(pa.array(_Retyped(whole, field.type)))
    batch = pa.RecordBatch.from_arrays(fitted, schema=spec.schema)
    check_size(batch, spec, name)
    return batch


def fits_as_it_is(data: pa.RecordBatch | pa.Table, spec: DocumentSpec) -> bool:
    """Return True for a flat batch of the same schema, with nulls only where they are allowed.

    That is the usual batch on a hot path.
    """
    return (
        isinstance(data, pa.RecordBatch)
        and spec.is_flat
        and data.schema.equals(spec.schema)
        and not any(data.column(index).null_count for index in spec.required)
    )


@dataclass(frozen=True, slots=True)
class _Retyped:
    """An array under another type of the same memory; not a copy.

    Arrow's own cast refuses NOT NULL fields that are null only because their parent is null.
    """

    array: pa.Array
    kind: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]


def check_size(batch: pa.RecordBatch, spec: DocumentSpec, name: RowName) -> None:
    if batch.get_total_buffer_size() <= spec.document_bytes_max:
        return
    sizes = sum((_row_bytes(column) for column in batch.columns), np.zeros(len(batch), np.int64))
    largest = int(np.argmax(sizes))
    if sizes[largest] > spec.document_bytes_max:
        raise too_large(name(largest), int(sizes[largest]), spec)


def _row_bytes(array: pa.Array) -> NDArray[np.int64]:
    """Return about how many bytes each row takes."""
    kind = array.type
    if pt.is_string(kind) or pt.is_binary(kind):
        return _numpy(pc.fill_null(pc.binary_length(array), 0).cast(pa.int64()))
    if pt.is_struct(kind):
        fields = (_row_bytes(array.field(i)) for i in range(kind.num_fields))
        return sum(fields, start=np.zeros(len(array), np.int64))
    if pt.is_list(kind) or pt.is_map(kind):
        children = [array.keys, array.items] if pt.is_map(kind) else [array.values]
        below = np.r_[0, np.cumsum(sum(_row_bytes(child) for child in children))]
        sizes: NDArray[np.int64] = np.diff(below[_numpy(array.offsets)])
        return sizes
    return np.full(len(array), -(-kind.bit_width // 8), np.int64)


Test = Callable[[pa.Array, pa.Field], Mask | None]


def _is_missing(array: pa.Array, field: pa.Field) -> Mask | None:
    return _numpy(array.is_null()) if array.null_count and not field.nullable else None


def _overflows_float(array: pa.Array, field: pa.Field) -> Mask | None:
    """Return the rows whose double would become infinite as a float."""
    if not (pt.is_float32(field.type) and pt.is_float64(array.type)):
        return None
    values = np.abs(_numpy(array))
    beyond: Mask = (values > _FLOAT32_MAX) & np.isfinite(values)
    return beyond


def _find(array: pa.Array, field: pa.Field, test: Test, path: str = "") -> tuple[int, str] | None:
    """Return the first row where `test` holds at `field` or below it, with the field's path."""
    path = f"{path}.{field.name}" if path else field.name
    bad = test(array, field)
    if bad is not None and bad.any():
        return int(np.argmax(bad)), path
    if not pt.is_nested(field.type):
        return None
    rows = np.flatnonzero(_numpy(array.is_valid()))
    array = array.drop_null()
    if pt.is_struct(field.type):
        below = [(array.field(i), child) for i, child in enumerate(field.type)]
        owners = np.arange(len(array) + 1)
    else:
        offsets = _numpy(array.offsets)
        values = array.values[offsets[0] : offsets[-1]]
        owners = offsets - offsets[0]
        below = [(values, field.type.value_field)] if pt.is_list(field.type) else []
        if pt.is_map(field.type):
            # A null entry has no key either.
            keys = pc.if_else(values.is_valid(), values.field(0), None)
            below = [(keys, field.type.key_field), (values.field(1), field.type.item_field)]
    for values, child in below:
        if found := _find(values, child, test, path):
            return int(rows[np.searchsorted(owners, found[0], side="right") - 1]), found[1]
    return None


def cast(array: pa.Array, field: pa.Field, name: RowName) -> pa.Array:
    """Cast `array` to the loose layout of the field. Raises for the first row that does not fit."""
    kind = unchecked_type(field.type)
    if array.type.equals(kind):
        return array
    if pt.is_nested(kind):
        array = _rows(array, 0, len(array))
    try:
        return array.cast(kind)
    except pa.ArrowException:
        bad = first_failing(len(array), lambda low, high: _fails_cast(array, low, high, kind))
        listed = " ".join(array[bad : bad + 1].to_string(indent=0).split())
        shown = listed.removeprefix("[ ").removesuffix(" ]")
        raise unfit_value(name(bad), field.name, f"{shown} ({array.type})", field.type) from None


def _fails_cast(array: pa.Array, low: int, high: int, kind: pa.DataType) -> bool:
    try:
        _rows(array, low, high).cast(kind)
    except pa.ArrowException:
        return True
    return False


def _rows(array: pa.Array, low: int, high: int) -> pa.Array:
    """Copy these rows. The cast of a slice would also see nested rows outside of it."""
    try:
        return array.take(pa.array(np.arange(low, high)))
    except pa.ArrowNotImplementedError:
        # Arrow has no `take` for views.
        return pa.concat_arrays([array[low:high], array[:0]])


def first_failing(count: int, fails: Callable[[int, int], bool]) -> int:
    """Return the first of `count` items that fails, given that one of them does."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(low, middle) else (middle, high)
    return low


def unchecked_type(
    kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType] = lambda leaf: leaf
) -> pa.DataType:
    """Return `kind` in the loose layout, with `leaf` applied to each leaf."""
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, unchecked_type(f.type, leaf)) for f in kind])
    if pt.is_map(kind):
        key, item = unchecked_type(kind.key_type, leaf), unchecked_type(kind.item_type, leaf)
        return pa.list_(pa.struct([pa.field("key", key), pa.field("value", item)]))
    if pt.is_list(kind):
        return pa.list_(unchecked_type(kind.value_type, leaf))
    if pt.is_large_list(kind):
        return pa.large_list(unchecked_type(kind.value_type, leaf))
    if pt.is_fixed_size_list(kind):
        return pa.list_(unchecked_type(kind.value_type, leaf), kind.list_size)
    return leaf(kind)


def as_unchecked(array: pa.Array) -> pa.Array:
    """Return the array in the loose layout; not a copy."""
    return (
        pa.array(_Retyped(array, unchecked_type(array.type))) if contains_map(array.type) else array
    )


def contains_map(kind: pa.DataType) -> bool:
    children = (kind.field(index).type for index in range(kind.num_fields))
    return bool(pt.is_map(kind)) or any(map(contains_map, children))


def widen_float(kind: pa.DataType) -> pa.DataType:
    return pa.float64() if pt.is_float32(kind) else kind


def _numpy(array: pa.Array) -> NDArray[Any]:
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def unknown_field(name: str, where: str, spec: DocumentSpec) -> DocumentError:
    return DocumentError(
        f"{where} has field {name!r}, which is not in the schema",
        do=f"choose among {', '.join(spec.schema.names)}",
    )


def unfit_value(
    where: str, field: str, value: str, kind: pa.DataType, why: Exception | None = None
) -> DocumentError:
    """Return the error for a value that does not fit; `why` may hold a remedy."""
    shown = value if len(value) <= 80 else f"{value[:40]} ... {value[-35:]}"
    ddl = to_ddl(pa.schema([pa.field("x", kind)])).removeprefix("x ")
    return DocumentError(
        f"{where}, field {field!r}: {shown} does not fit {ddl}",
        do=why.do if isinstance(why, UnfitValueError) else UnfitValueError().do,
    )


def too_large(where: str, size: int, spec: DocumentSpec) -> DocumentError:
    return DocumentError(
        f"{where} has about {size} bytes, over document_bytes_max = {spec.document_bytes_max}",
        do="split it, store its payload elsewhere, or raise the limit",
    )
