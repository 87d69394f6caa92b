"""Columns from documents as Python objects, each named in the error if it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import DocumentError
from headrace.journal.documents.columns import to_column
from headrace.journal.documents.text_values import FAILURES
from headrace.journal.documents.validation import DocumentSpec, RowName, unfit_value, unknown_field

Shown = Callable[[Any], str]
"""A value as an error shows it."""


def to_columns(
    documents: Sequence[dict[str, Any]], spec: DocumentSpec, name: RowName, shown: Shown
) -> list[pa.Array]:
    """The columns of the schema in the loose layout, floats as doubles."""
    unknown = set().union(*documents) - set(spec.schema.names)
    if unknown:
        index, field = next((i, n) for i, d in enumerate(documents) for n in d if n in unknown)
        raise unknown_field(field, name(index), spec)
    return [
        _column([document.get(field.name) for document in documents], field, name, shown)
        for field in spec.schema
    ]


def _column(values: list[Any], field: pa.Field, name: RowName, shown: Shown) -> pa.Array:
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
