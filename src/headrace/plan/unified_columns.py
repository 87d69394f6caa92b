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


def schema_without_views(schema: pa.Schema) -> pa.Schema:
    """Return the columns of `without_views`."""
    fields = [field.with_type(_VIEWS.get(field.type, field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def without_views(table: pa.Table) -> pa.Table:
    """Return the table with views of text and bytes as text and bytes.

    Arrow can neither filter nor reorder views.
    """
    if not any(pt.is_string_view(kind) or pt.is_binary_view(kind) for kind in table.schema.types):
        return table
    return table.cast(schema_without_views(table.schema))


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
