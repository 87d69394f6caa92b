"""Prints documents as NDJSON, as one JSON array, or as a table.

In JSON, dates and timestamps are ISO 8601 strings, decimals are strings, binary is base64, a map is
a list of `{"key": …, "value": …}`, and a number that is not finite is `"NaN"`, `"Infinity"` or
`"-Infinity"`. `headrace publish` reads NDJSON as the same documents.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pt
from rich.text import Text

from headrace.cli.render.json_values import rows
from headrace.cli.render.output import print_line, print_table

TABLE_DOCUMENTS = 100
"""Without --limit a table shows this many documents: it is laid out as a whole."""


class Format(StrEnum):
    ndjson = "ndjson"
    table = "table"


def limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `limit` documents, and ask for no batch after them."""
    left = limit
    if left == 0:
        return
    for batch in batches:
        if left is None:
            yield batch
            continue
        yield batch.slice(0, min(left, batch.num_rows))
        left -= batch.num_rows
        if left <= 0:
            return


def write_ndjson(groups: Iterable[list[dict[str, Any]]]) -> None:
    """Write each group of rows and flush it, so that its reader sees it at once."""
    encoder = msgspec.json.Encoder()
    for group in groups:
        sys.stdout.buffer.write(encoder.encode_lines(group))
        sys.stdout.buffer.flush()


def write_json(groups: Iterable[list[dict[str, Any]]]) -> None:
    """Write one array of all rows."""
    encoder = msgspec.json.Encoder()
    out = sys.stdout.buffer
    out.write(b"[")
    separator = b""
    for group in groups:
        if group:
            out.write(separator + encoder.encode(group)[1:-1])
            separator = b",\n"
    out.write(b"]\n")


def write_table(batches: Iterable[pa.RecordBatch], limit: int | None) -> None:
    most = TABLE_DOCUMENTS if limit is None else limit
    found = list(limited(batches, most if limit is not None else most + 1))
    cells = [map(_cell, row.values()) for batch in found for row in rows(batch)]
    if not cells:
        print_line("no documents")
        return
    schema = found[0].schema
    numbers = [field.name for field in schema if _is_number(field.type)]
    print_table(cells[:most], schema.names, numbers=numbers)
    if len(cells) > most:
        print_line(f"the first {most} documents; for more use --limit N or --format ndjson")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _cell(value: object) -> Text:
    if value is None:
        return Text("null", "dim")
    plain = msgspec.to_builtins(value, builtin_types=())
    if isinstance(plain, str) and plain.isprintable():
        return Text(plain)
    return Text(msgspec.json.encode(plain).decode())
