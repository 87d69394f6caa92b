"""Rows of a vector store from what Python has: documents as in JSON, lists and matrices. Pure.

JSON has no number for NaN and the infinities: documents have the words `NaN`, `Infinity` and
`-Infinity`, as those of journals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DocumentError, QueryError
from headrace.journal.documents.text_values import WORDS
from headrace.stores.vectors.distance import Vectors
from headrace.stores.vectors.vector_rows import DELETED, ID, VECTOR, VectorSchema, refused

VectorsLike = Sequence[Sequence[float] | npt.NDArray[Any]] | npt.NDArray[Any]

_FAILURES = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError)


def document_rows(schema: VectorSchema, documents: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return documents as columns. Raises DocumentError that names row and column."""
    types: dict[str, pa.DataType] = {
        ID: pa.string(),
        VECTOR: pa.list_(pa.float32()),
        DELETED: pa.bool_(),
        **{each.name: each.type for each in schema.metadata_columns},
    }
    given: dict[str, None] = {ID: None}
    for row, document in enumerate(documents):
        for name in document:
            if name not in types:
                known = ", ".join(schema.columns.names)
                raise refused(row, name, f"the store has no such column, only {known}")
            given[name] = None
    columns = [_column(name, types[name], documents) for name in given]
    return pa.RecordBatch.from_arrays(columns, names=list(given))


def _column(name: str, kind: pa.DataType, documents: Sequence[Mapping[str, Any]]) -> pa.Array:
    values = [each.get(name) for each in documents]
    try:
        return value_array(values, kind)
    except _FAILURES as error:
        raise refused(_first_bad(values, kind), name, _reason(error)) from error


def value_array(values: Iterable[Any], kind: pa.DataType | None) -> pa.Array:
    """Return Python values as a column. A time may be a string; without a zone it is UTC."""
    if kind is not None and pa.types.is_timestamp(kind):
        values = [_moment(each) for each in values]
    elif kind is not None and pa.types.is_floating(kind):
        values = [WORDS.get(each, each) if isinstance(each, str) else each for each in values]
    return pa.array(values, kind)


def _moment(value: Any) -> Any:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def as_documents(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as `document_rows` takes them."""
    found: list[dict[str, Any]] = rows.to_pylist()
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_floating(column.type):
            finite = pc.is_finite(column).fill_null(True)
            for row in np.flatnonzero(~finite.to_numpy(zero_copy_only=False)):
                value = found[row][name]
                found[row][name] = "NaN" if value != value else f"{'-' * (value < 0)}Infinity"
    return found


def upserted_rows(
    columns: pa.Schema,
    ids: Sequence[str],
    vectors: VectorsLike,
    metadata: pa.RecordBatch | Mapping[str, Sequence[Any]] | None,
) -> pa.RecordBatch:
    """Return rows to write to a store with these columns. Raises DocumentError, as all here."""
    given = (
        dict(zip(metadata.schema.names, metadata.columns, strict=True))
        if isinstance(metadata, pa.RecordBatch)
        else dict(metadata or {})
    )
    if taken := {ID, VECTOR, DELETED} & given.keys():
        raise DocumentError(f"{min(taken)!r} is no metadata", do="leave it out")
    types = dict(zip(columns.names, columns.types, strict=True))
    arrays = {ID: _texts(ids), VECTOR: _lists(vectors)}
    for name, values in given.items():
        is_array = isinstance(values, pa.Array)
        arrays[name] = values if is_array else named_array(name, values, types.get(name))
    if len({len(each) for each in arrays.values()}) > 1:
        sizes = ", ".join(f"{name} {len(each)}" for name, each in arrays.items())
        raise DocumentError(
            f"the columns differ in length: {sizes}", do="give each one value for every row"
        )
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def deleted_rows(ids: Sequence[str]) -> pa.RecordBatch:
    """Return rows that delete these ids."""
    names = _texts(ids)
    return pa.RecordBatch.from_arrays(
        [names, pa.array([True] * len(names), pa.bool_())], names=[ID, DELETED]
    )


def id_list(ids: Sequence[str]) -> list[str]:
    """Return ids to look up."""
    if isinstance(ids, str) or not all(isinstance(each, str) for each in ids):
        raise QueryError(f"{str(ids)[:100]!r} is no list of ids", do="give a list of strings")
    return list(ids)


def query_matrix(vectors: VectorsLike) -> Vectors:
    """Return vectors to search for as a matrix. What float32 cannot hold becomes infinite."""
    try:
        given = np.asarray(vectors)
        if given.dtype.kind not in "iufO":
            raise TypeError(f"{given.dtype} is no type of numbers")
        with np.errstate(over="ignore"):
            queries: Vectors = given.astype(np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise QueryError(
            f"the vector cannot be read: {_reason(error)}", do="give numbers"
        ) from error
    if queries.ndim != 2 or not len(queries):
        raise QueryError(
            f"a search got an array of the shape {queries.shape}",
            do="give search one vector, and search_many a list of them",
        )
    return queries


def _texts(ids: Sequence[str]) -> pa.Array:
    if isinstance(ids, str):
        raise DocumentError("ids are given as one string", do="give a list of strings")
    return named_array(ID, ids, pa.string())


def _lists(vectors: VectorsLike) -> pa.Array:
    """Return vectors as a column, without a copy of a matrix of float32."""
    if isinstance(vectors, np.ndarray) and vectors.ndim == 2 and vectors.shape[1]:
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    return named_array(VECTOR, vectors, None)


def named_array(name: str, values: Iterable[Any], kind: pa.DataType | None) -> pa.Array:
    """Return values as a column; errors say which column it is."""
    try:
        return value_array(values, kind)
    except (*_FAILURES, pa.ArrowNotImplementedError) as error:
        raise DocumentError(
            f"the column {name!r} cannot be stored: {_reason(error)}",
            do=f"give values of type {kind}" if kind else "give a list of numbers for each row",
        ) from error


def _first_bad(values: Sequence[Any], kind: pa.DataType) -> int:
    for row, value in enumerate(values):
        try:
            value_array([value], kind)
        except _FAILURES:
            return row
    return 0


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
