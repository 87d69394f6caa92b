"""The columns of a vector store, and rows that were checked against them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DocumentError, SchemaError
from headrace.stores.vectors.distance import COSINE_NORM_MIN, NORM_MAX, Metric, Vectors

ID, VECTOR, DELETED = "id", "vector", "_deleted"
DIMENSION_MAX = 65_536
NAME_BYTES_MAX = 1024

Names = npt.NDArray[np.object_]
"""External ids."""

_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")
_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int64": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
}
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last microsecond of the years 1 to 9999."""
_TYPE_NAMES = "a string, an integer, a float, bool or a timestamp"


class VectorSchema(msgspec.Struct, frozen=True):
    """What a store holds: vectors of one dimension, compared by one metric, with metadata."""

    dimension: int
    metric: Metric
    metadata: tuple[tuple[str, str], ...] = ()
    """Name and type of each metadata column."""

    @staticmethod
    def of(dimension: int, metric: Metric | str, metadata: pa.Schema | None = None) -> VectorSchema:
        """Raises SchemaError if a store cannot have these columns."""
        if not 1 <= dimension <= DIMENSION_MAX:
            raise SchemaError(
                f"vectors of dimension {dimension} cannot be stored",
                do=f"choose a dimension from 1 to {DIMENSION_MAX}",
            )
        if metric not in list(Metric):
            raise SchemaError(f"there is no metric {metric!r}", do="use l2, cosine or dot")
        fields = [_checked_field(field) for field in metadata or ()]
        if len({field.name for field in fields}) < len(fields):
            raise SchemaError("two metadata columns have one name", do="rename one of them")
        pairs = tuple((field.name, str(field.type)) for field in fields)
        return VectorSchema(dimension, Metric(metric), pairs)

    @property
    def metadata_columns(self) -> pa.Schema:
        return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in self.metadata])

    @property
    def vector_type(self) -> pa.DataType:
        return pa.list_(pa.float32(), self.dimension)

    @property
    def columns(self) -> pa.Schema:
        """What `scan` yields: the id, the vector and the metadata."""
        head = [pa.field(ID, pa.string(), nullable=False), pa.field(VECTOR, self.vector_type)]
        return pa.schema([*head, *self.metadata_columns])


def _checked_field(field: pa.Field) -> pa.Field:
    """Return the field as the store keeps it: with the widest type of its family."""
    if not _FIELD.fullmatch(field.name) or field.name in (ID, VECTOR):
        raise SchemaError(
            f"a metadata column cannot be named {field.name!r}",
            do=f"use letters, digits, _ - and . after a letter, and neither {ID} nor {VECTOR}",
        )
    for kind in _TYPES.values():
        # Whole numbers become floats in rows, but a column of them is one of integers.
        if may_cast(field.type, kind) and not pa.types.is_null(field.type):
            return field.with_type(kind)
    raise SchemaError(
        f"the metadata column {field.name!r} has the type {field.type}", do=f"use {_TYPE_NAMES}"
    )


@dataclass(frozen=True, slots=True)
class VectorRows:
    """Rows that fit a store: either vectors to upsert, or ids to delete where `deleted` is true."""

    names: Names
    vectors: Vectors
    """A row for each name that is not deleted, in their order."""
    metadata: pa.RecordBatch
    deleted: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def size_bytes(self) -> int:
        return int(self.vectors.nbytes + self.metadata.nbytes + 120 * len(self))

    def take(self, rows: npt.NDArray[np.int64]) -> VectorRows:
        if len(rows) == len(self):
            return self
        deleted = self.deleted[rows]
        places = np.cumsum(~self.deleted) - 1
        vectors = self.vectors[places[rows[~deleted]]]
        metadata = self.metadata.take(pa.array(rows))
        return VectorRows(self.names[rows], vectors, metadata, deleted)


def checked_rows(schema: VectorSchema, rows: pa.RecordBatch) -> VectorRows:
    """Return the rows as the store takes them. Raises DocumentError that names row and column.

    A metadata column that is not given is null.
    """
    given = set(rows.schema.names)
    known = {ID, VECTOR, DELETED, *schema.metadata_columns.names}
    if unknown := sorted(given - known):
        raise DocumentError(
            f"the store has no column {unknown[0]!r}",
            do=f"its columns are {', '.join(schema.columns.names)}",
        )
    if len(given) < len(rows.schema.names):
        raise DocumentError("two columns of the rows have one name", do="rename one of them")
    names = _checked_names(rows)
    deleted = _checked_deleted(rows)
    vectors = _checked_vectors(schema, _vector_column(rows, deleted), ~deleted)
    return VectorRows(names, vectors, _checked_metadata(schema, rows), deleted)


def _checked_names(rows: pa.RecordBatch) -> Names:
    if ID not in rows.schema.names:
        raise DocumentError(f"the rows have no column {ID!r}", do="give every vector an id")
    column = _cast(rows.column(ID), pa.string(), ID)
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    if len(bad := np.flatnonzero((lengths == 0) | (lengths > NAME_BYTES_MAX))):
        raise refused(int(bad[0]), ID, f"an id has 1 to {NAME_BYTES_MAX} bytes of UTF-8")
    names: Names = column.to_numpy(zero_copy_only=False)
    return names.astype(object, copy=False)


def _checked_deleted(rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    if DELETED not in rows.schema.names:
        return np.zeros(len(rows), np.bool_)
    column = _cast(rows.column(DELETED), pa.bool_(), DELETED)
    found: npt.NDArray[np.bool_] = column.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _vector_column(rows: pa.RecordBatch, deleted: npt.NDArray[np.bool_]) -> pa.Array:
    if VECTOR in rows.schema.names:
        return rows.column(VECTOR)
    if not deleted.all():
        raise refused(int(np.flatnonzero(~deleted)[0]), VECTOR, "it is missing")
    return pa.nulls(len(rows), pa.list_(pa.float32()))


def _checked_vectors(
    schema: VectorSchema, column: pa.Array, wanted: npt.NDArray[np.bool_]
) -> Vectors:
    """Return the wanted rows of a column of lists as a matrix."""
    kind = column.type
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)) and not (
        pa.types.is_large_list(kind) or pa.types.is_null(kind)
    ):
        raise DocumentError(
            f"the column {VECTOR!r} has the type {kind}", do="give a list of numbers for each row"
        )
    given = ~column.is_null().to_numpy(zero_copy_only=False)
    if len(bad := np.flatnonzero(wanted & ~given)):
        raise refused(int(bad[0]), VECTOR, "it is missing")
    kept = column if wanted.all() else column.filter(pa.array(wanted))
    positions = np.flatnonzero(wanted)
    if not len(positions):
        return np.empty((0, schema.dimension), np.float32)
    lengths = pc.list_value_length(kept).to_numpy(zero_copy_only=False)
    if len(bad := np.flatnonzero(lengths != schema.dimension)):
        what = f"it has {lengths[bad[0]]} numbers, and the store has {schema.dimension} dimensions"
        raise refused(int(positions[bad[0]]), VECTOR, what)
    return _matrix(schema, kept, positions)


def _matrix(schema: VectorSchema, kept: pa.Array, positions: npt.NDArray[np.int64]) -> Vectors:
    values = kept.flatten()
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise DocumentError(
            f"the column {VECTOR!r} holds {values.type}", do="give numbers, best as float32"
        )
    # What does not fit float32 becomes infinite here, and is refused like other infinite numbers.
    numbers = values.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore", invalid="ignore"):
        found: Vectors = numbers.astype(np.float32, copy=False)
    found = found.reshape(len(kept), schema.dimension)
    check_matrix(schema.metric, found, positions)
    return found


def check_matrix(
    metric: Metric, vectors: Vectors, rows: npt.NDArray[np.int64] | None = None
) -> None:
    """Raise DocumentError that names the first vector which cannot be compared by the metric."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    reasons = [
        (~np.isfinite(vectors).all(axis=1), "a number in it is NaN, infinite or beyond float32"),
        (~(wide <= NORM_MAX**2), f"it is longer than {NORM_MAX:g}"),
    ]
    if metric is Metric.COSINE:
        reasons.append((wide < COSINE_NORM_MIN**2, "it is zero, which has no direction"))
    for wrong, why in reasons:
        if len(bad := np.flatnonzero(wrong)):
            raise refused(int(bad[0] if rows is None else rows[bad[0]]), VECTOR, why)


def _checked_metadata(schema: VectorSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = []
    for field in schema.metadata_columns:
        if field.name in rows.schema.names:
            column = _cast(rows.column(field.name), field.type, field.name)
            if pa.types.is_timestamp(field.type):
                _check_years(column, field.name)
            columns.append(column)
        else:
            columns.append(pa.nulls(len(rows), field.type))
    if not columns:
        return no_columns(len(rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema.metadata_columns)


def _check_years(column: pa.Array, name: str) -> None:
    """Neither Python nor JSON has other times, so nobody could read them."""
    since = column.cast(pa.int64()).fill_null(0).to_numpy()
    if len(bad := np.flatnonzero((since < _FIRST_US) | (since > _LAST_US))):
        raise refused(int(bad[0]), name, "its year is not from 1 to 9999")


def no_columns(count: int) -> pa.RecordBatch:
    """A batch without columns has a length, which `from_arrays` cannot give it."""
    return pa.RecordBatch.from_arrays([pa.nulls(count)], names=["_"]).select([])


def _cast(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    given = column.type
    if pa.types.is_dictionary(given):
        column, given = column.dictionary_decode(), given.value_type
    if given == kind:
        return column
    if not may_cast(given, kind):
        raise _mistyped(column, kind, name)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise DocumentError(
            f"the column {name!r} cannot be stored as {kind}: {str(error)[:100]}",
            do="give values of that type",
        ) from error


def may_cast(given: pa.DataType, kind: pa.DataType) -> bool:
    """True if the type says the same: a number never becomes a text, nor a text a number."""
    families: tuple[Any, ...] = (
        lambda each: pa.types.is_string(each) or pa.types.is_large_string(each),
        pa.types.is_boolean,
        pa.types.is_timestamp,
    )
    if pa.types.is_null(given) or any(each(given) and each(kind) for each in families):
        return True
    if pa.types.is_integer(given):
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
    return bool(pa.types.is_floating(given) and pa.types.is_floating(kind))


def _mistyped(column: pa.Array, kind: pa.DataType, name: str) -> DocumentError:
    given = np.flatnonzero(~column.is_null().to_numpy(zero_copy_only=False))
    row = int(given[0]) if len(given) else 0
    return refused(row, name, f"it is of type {column.type}, and the column of type {kind}")


def refused(row: int, column: str, why: str) -> DocumentError:
    """Return the error that a value of a row cannot be stored."""
    return DocumentError(
        f"row {row}, column {column!r} cannot be stored: {why}",
        do="mend it and send the batch again: none of its rows was taken",
    )
