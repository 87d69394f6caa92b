"""Turns what operators return into tables of the declared schema, or says what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import UnitError

_CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def from_rows(
    rows: Sequence[Mapping[str, Any]], given: pa.Schema, declared: pa.Schema | None
) -> pa.Table:
    """Return rows as a table.

    Columns have their declared types. Without a declared schema, a column that came in keeps its
    type if the values fit, and other types are inferred from the values.
    """
    if declared is not None:
        _check_names(_names(rows), declared)
        columns = {
            field.name: _column([row.get(field.name) for row in rows], field) for field in declared
        }
        return pa.table(columns, schema=declared)
    if not rows:
        return given.empty_table()
    columns = {}
    for name in _names(rows):
        values = [row.get(name) for row in rows]
        columns[name] = _infer(name, values, given)
    return pa.table(columns)


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of all columns, in the order in which they appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        if not isinstance(name, str):
            raise UnitError(
                f"the operator returned a column named {name!r}", do="name columns by strings"
            )
    return names


def _check_names(names: Sequence[str], declared: pa.Schema) -> None:
    if missing := [field.name for field in declared if names and field.name not in names]:
        raise UnitError(
            f"the operator returned no column {_list(missing)}, which its schema declares",
            do=f"return {_list(declared.names)}",
        )
    if extra := [name for name in names if name not in declared.names]:
        raise UnitError(
            f"the operator returned {_list(extra)}, which its schema does not declare",
            do="add it to the schema, or leave it out",
        )


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except _CONVERSION_ERRORS as error:
        raise _unfit(field, values) from error


def _unfit(field: pa.Field, values: list[Any]) -> UnitError:
    """Name the first value that does not fit."""
    for value in values:
        try:
            pa.array([value], field.type)
        except _CONVERSION_ERRORS:
            return UnitError(
                f"column {field.name!r} is declared as {field.type}, and the operator returned"
                f" {_shown(value)}",
                do="return values of the declared type, or change the schema",
            )
    return UnitError(f"column {field.name!r} does not fit {field.type}", do="change the schema")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _infer(name: str, values: list[Any], given: pa.Schema) -> pa.Array:
    index = given.get_field_index(name)
    if index >= 0:
        try:
            return pa.array(values, given.field(index).type)
        except _CONVERSION_ERRORS:
            pass  # The operator gave the column another type.
    try:
        return pa.array(values)
    except _CONVERSION_ERRORS as error:
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise UnitError(
            f"column {name!r} has values of {' and '.join(kinds)}, which no Arrow type holds",
            do="return values of one type",
        ) from error


def to_table(returned: Any, declared: pa.Schema | None) -> pa.Table:
    """Return what a batch operator returned as a table of the declared schema."""
    table = _as_table(returned)
    if len(set(table.column_names)) < table.num_columns:
        twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
        raise UnitError(f"the operator returned {_list(twice)} twice", do="rename one of them")
    if declared is None:
        return table
    _check_names(table.column_names, declared)
    columns = []
    for field in declared:
        column = table[field.name]
        try:
            columns.append(column.cast(field.type))
        except _CONVERSION_ERRORS as error:
            raise UnitError(
                f"column {field.name!r} is declared as {field.type}, and the operator returned"
                f" {column.type}: {error}",
                do="return values of the declared type, or change the schema",
            ) from error
    return pa.table(columns, schema=declared)


def _as_table(returned: Any) -> pa.Table:
    if isinstance(returned, pa.Table):
        return returned
    if isinstance(returned, pa.RecordBatch):
        return pa.Table.from_batches([returned])
    try:
        if _is_pandas(returned):
            return pa.Table.from_pandas(returned, preserve_index=False).replace_schema_metadata()
        if isinstance(returned, Mapping):
            return pa.table({name: _values(column) for name, column in returned.items()})
    except _CONVERSION_ERRORS as error:
        raise UnitError(
            f"the operator returned columns that are no table: {error}",
            do="return columns of one length, with values of one type each",
        ) from error
    raise UnitError(
        f"the operator returned {'None' if returned is None else f'a {type(returned).__name__}'}"
        " instead of rows",
        do="return a RecordBatch, a Table, a pandas DataFrame or a dict of columns",
    )


def _is_pandas(returned: Any) -> bool:
    """True for a DataFrame, without importing pandas where nobody uses it."""
    kind = type(returned)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def _values(column: Any) -> Any:
    """Return a column that Arrow takes; a matrix is a column of lists."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        return list(column)
    return column
