"""Options that select journals of a collection, and the limit of offsets in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import headrace as hr
from headrace.errors import UsageError
from headrace.journal.names import unescape_value

OFFSET_MAX = (1 << 63) - 1
"""A message to the owner holds no greater offset."""

WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FIELD=VALUE",
        help="Read journals of this partition value (%null for null); repeatable.",
    ),
]


def select(collection: str, where: Sequence[str] | None) -> hr.Selector:
    """Return a selector that needs a match for every field, by any of the field's values."""
    include: dict[str, list[str | None]] = {}
    for each in where or ():
        field, equals, value = each.partition("=")
        if not field or not equals:
            raise typer.BadParameter(f"{each!r} is not FIELD=VALUE", param_hint="--where")
        include.setdefault(field, []).append(value if unescape_value(value) is not None else None)
    return hr.selector(collection, include)


def check_partition_fields(collection: hr.Collection, selector: hr.Selector) -> None:
    for field in selector.include:
        if field not in collection.partition_by:
            known = ", ".join(collection.partition_by) or "none"
            raise UsageError(
                f"{field!r} is not a partition field of {collection.name}",
                do=f"select by partition fields; there are: {known}",
            )
