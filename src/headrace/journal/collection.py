"""A collection as its users hold it: the newest schema, the key and the partition fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.errors import DataError, SchemaError, UsageError
from headrace.journal.documents import schema as schemas
from headrace.journal.local.records import CollectionPut
from headrace.journal.names import check_collection_name

JOURNALS_MAX = 1_000_000
_RETENTION_MAX = 1 << 53


_deserialize = lru_cache(maxsize=4096)(schemas.deserialize)


def define(
    name: str,
    schema: str | pa.Schema,
    *,
    key: str | Sequence[str] = (),
    partition_by: str | Sequence[str] = (),
    journals: int = 1,
    retention_s: float | None = None,
    retention_bytes: int | None = None,
) -> CollectionPut:
    """Return a checked definition. It creates nothing."""
    check_collection_name(name)
    parsed = schemas.parse_schema(schema)
    keys, partitions = _fields(key), _fields(partition_by)
    if keys:
        schemas.check_key(parsed, keys)
    _check_partition_fields(parsed, partitions)
    if not isinstance(journals, int) or not 1 <= journals <= JOURNALS_MAX:
        raise UsageError(
            f"journals must be 1 to {JOURNALS_MAX}, got {journals}", do="choose such a number"
        )
    for what, limit in (("retention_s", retention_s), ("retention_bytes", retention_bytes)):
        if limit is not None and not 0 <= limit <= _RETENTION_MAX:
            raise UsageError(
                f"{what} must be 0 to {_RETENTION_MAX}, got {limit}",
                do="choose such a number; 0 keeps everything",
            )
    versions = (schemas.serialize(parsed),)
    return CollectionPut(name, versions, keys, partitions, journals, retention_s, retention_bytes)


def _fields(given: str | Sequence[str]) -> tuple[str, ...]:
    return (
        tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else tuple(given)
    )


def _check_partition_fields(schema: pa.Schema, fields: tuple[str, ...]) -> None:
    for name in fields:
        if fields.count(name) > 1:
            raise SchemaError(f"partition field {name!r} is named twice", do="name it once")
        if schema.get_field_index(name) < 0:
            raise SchemaError(
                f"partition field {name!r} is not in the schema", do="add it, or leave it out"
            )
        type = schema.field(name).type
        if not (
            pa.types.is_string(type)
            or pa.types.is_integer(type)
            or pa.types.is_boolean(type)
            or pa.types.is_date(type)
        ):
            raise SchemaError(
                f"partition field {name!r} is of type {type}",
                do="partition by a string, integer, boolean or date",
            )


class Collection:
    """What `ws.collection` returns. It never changes; an evolved schema makes a new one."""

    def __init__(self, definition: CollectionPut) -> None:
        self.definition = definition
        self.id = definition.id
        self.name = definition.name
        self.schema: pa.Schema = _deserialize(definition.schemas[-1])
        self.key = definition.key
        self.partition_by = definition.partition_by
        self.journals = definition.journals

    @property
    def version(self) -> int:
        """The version of the schema, counted from 0."""
        return len(self.definition.schemas) - 1

    def decode(self, body: Any, version: int) -> pa.RecordBatch:
        """Return the documents of a frame under the newest schema; not a copy."""
        try:
            written = _deserialize(self.definition.schemas[version])
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), written)
        except (IndexError, OSError, pa.ArrowException) as error:
            raise DataError(
                f"a frame of {self.name} (schema version {version}) cannot be decoded: {error}",
                do="find the publisher that wrote other bytes than its schema says",
            ) from error
        return batch if version == self.version else schemas.adapt(batch, self.schema)

    def __repr__(self) -> str:
        return f"Collection({self.name!r}, {schemas.to_ddl(self.schema)!r})"
