"""Names of collections and journals, and selectors over them. Pure.

    bank/debits/region=eu/day=2026-11-15/0003
    └collection┘└partition values──────┘└which of that partition's journals┘

A selector needs only the name of a journal to tell whether it matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from headrace.errors import UsageError

_NAME_PART = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER = re.compile(r"[0-9]+")
NAME_BYTES_MAX = 512
_NULL = "%null"
_EMPTY = "%empty"
"""Stand for the values that have no text; no string is escaped to either."""


class JournalName(NamedTuple):
    """The parts of a journal's name."""

    collection: str
    partition: tuple[tuple[str, str], ...]
    """The partition fields with their escaped values."""
    number: int

    def __str__(self) -> str:
        values = [f"{quote(field, safe='')}={value}" for field, value in self.partition]
        return "/".join([self.collection, *values, f"{self.number:04d}"])


def check_collection_name(name: str) -> str:
    """Return `name`. Raises UsageError if no collection can have it."""
    parts = name.split("/")
    if not all(map(_NAME_PART.fullmatch, parts)) or len(name) > NAME_BYTES_MAX:
        raise UsageError(
            f"{name!r} cannot name a collection",
            do="use parts of letters, digits, '.', '_' and '-', joined by '/'",
        )
    if parts[-1].isdigit():
        raise UsageError(
            f"{name!r} cannot name a collection: it would read like a journal's name",
            do="let the last part hold something other than digits",
        )
    return name


def check_publisher_name(name: str) -> str:
    """Return `name`. Raises UsageError if no publisher can have it."""
    if not isinstance(name, str):
        raise UsageError(f"{name!r} cannot name a publisher", do="use text, or give no name")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"{name!r} cannot name a publisher", do="use text that UTF-8 can hold"
        ) from None
    if size > NAME_BYTES_MAX:
        raise UsageError(
            f"the publisher's name {name[:32]!r}… has {len(name)} characters",
            do=f"use at most {NAME_BYTES_MAX} bytes",
        )
    return name


def parse_journal_name(name: str) -> JournalName:
    *parts, number = name.split("/")
    labels = [part for part in parts if "=" in part]
    collection = parts[: len(parts) - len(labels)]
    if not (
        _NUMBER.fullmatch(number) and collection and all(map(_NAME_PART.fullmatch, collection))
    ):
        raise UsageError(f"{name!r} is not a journal's name", do="see `headrace journals list`")
    pairs = (label.partition("=") for label in labels)
    return JournalName(
        "/".join(collection),
        tuple((unquote(field), value) for field, _, value in pairs),
        int(number),
    )


def escape_value(value: object) -> str:
    """Return a boolean, number, date or string as it stands in a journal's name."""
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value if isinstance(value, str) else str(value)
    return quote(text, safe="") or _EMPTY


def unescape_value(escaped: str) -> str | None:
    if escaped == _NULL:
        return None
    return "" if escaped == _EMPTY else unquote(escaped)


class Selector(msgspec.Struct, frozen=True):
    """Selects journals of one collection, or of all, by their partition values.

    For each field of `include` the journal must have one of the values; for each field of `exclude`
    it must have none of them. Values are in their escaped form: see `selector`.
    """

    collection: str = ""
    include: dict[str, tuple[str, ...]] = {}
    exclude: dict[str, tuple[str, ...]] = {}

    def matches(self, name: JournalName) -> bool:
        if self.collection and name.collection != self.collection:
            return False
        values = dict(name.partition)
        return all(values.get(f) in wanted for f, wanted in self.include.items()) and not any(
            values.get(f) in unwanted for f, unwanted in self.exclude.items()
        )


def selector(
    collection: str = "",
    include: Mapping[str, Iterable[object]] | None = None,
    exclude: Mapping[str, Iterable[object]] | None = None,
) -> Selector:
    """Return a selector of plain values."""

    def escaped(fields: Mapping[str, Iterable[object]] | None) -> dict[str, tuple[str, ...]]:
        for field, values in (fields or {}).items():
            if isinstance(values, str):
                raise UsageError(
                    f"the values of {field!r} are the string {values!r}",
                    do=f"give a list: [{values!r}]",
                )
        return {field: tuple(map(escape_value, vs)) for field, vs in (fields or {}).items()}

    return Selector(collection, escaped(include), escaped(exclude))
