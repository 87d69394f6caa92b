"""Columns that hold the rows of many tables, which may differ in their types. Pure.

A function that declares no schema may return integers for one unit, floats or nothing but nulls for
another. The common columns hold all of their values.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as pt

from headrace.errors import SchemaError

_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}

_DECLARE = "declare the operator's schema, so that all of its units have the same"


def unify_columns(schemas: Iterable[pa.Schema], what: object = "the stage") -> pa.Schema:
    """Return the columns of all units of `what`, in the order in which they first appear.

    Raises SchemaError if two types have none in common, as numbers and text.
    """
    distinct = list(dict.fromkeys(schema.remove_metadata() for schema in schemas))
    try:
        return pa.unify_schemas(distinct, promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaError(
            f"units of {what} have different columns: {error}", do=_DECLARE
        ) from error


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of `plain_table`."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def plain_table(table: pa.Table) -> pa.Table:
    """Return the table with views of text and bytes as text and bytes, and dictionaries as values.

    Arrow can neither filter nor reorder views. It neither groups nor joins by dictionaries that
    differ, as those of two files do, and cannot combine many values under narrow indexes.
    """
    schema = plain_schema(table.schema)
    return table if schema.equals(table.schema) else table.cast(schema)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pt.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pt.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return _VIEWS.get(kind, kind)


def fit(table: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the table with exactly these columns; nulls for those that it does not have.

    Raises SchemaError if a value would change, such as an integer that no float is equal to.
    """
    if table.schema.equals(columns):
        return table
    return pa.Table.from_arrays([_fit(table, field) for field in columns], schema=columns)


def _fit(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    try:
        return table[field.name].cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {field.name!r} of a unit does not fit into {field.type}: {error}", do=_DECLARE
        ) from error
