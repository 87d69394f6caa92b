"""The rows of units, as Arrow files among the objects of a workspace.

A reference is the key of an object, or a part of one, `KEY#START+BYTES`: small units that are
stored together share an object.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import DataError, NotFoundError, UsageError
from headrace.files import storage_errors
from headrace.settings import MIB
from headrace.storage import Objects

_SCRATCH = "scratch:"
"""What references to payloads in the scratch directory begin with. No key begins so."""

_RESTORE = "restore it from a backup, or run the job with on_change='restart'"
_MAGIC_BYTES = 8
"""An Arrow file begins with these, and then has its schema."""
_SCHEMA_BYTES = 64 * 1024
_SHARED_BYTES = 8 * MIB
"""Units that are stored together share an object up to about this size."""


class PayloadPlace(NamedTuple):
    """Where a durable payload is."""

    key: str
    start: int
    bytes: int | None
    """None for all of the object."""


def payload_place(ref: str) -> PayloadPlace:
    """Return the object that a reference is about, and which part of it. No key has a `#`."""
    key, _, part = ref.partition("#")
    if not part:
        return PayloadPlace(key, 0, None)
    start, _, length = part.partition("+")
    return PayloadPlace(key, int(start), int(length))


class Payloads:
    """The payloads of one job. Any thread may use them; they travel to other processes."""

    def __init__(self, objects: Objects, prefix: str, scratch: Path | None = None) -> None:
        """`scratch` is a directory for payloads that need not survive the run."""
        self._objects = objects
        self._prefix = prefix
        self._scratch = scratch

    def put(self, stage: str, unit: str, table: pa.Table, *, durable: bool = True) -> str:
        """Store the rows of a unit, and return the reference to them.

        Every call gets a key of its own, so a worker that was given up overwrites nothing.
        """
        name = f"{unit}.{secrets.token_hex(6)}.arrow"
        if not durable and self._scratch is not None:
            return self._put_scratch(stage, name, table)
        ref = f"{self._prefix}/{stage}/{unit[:2]}/{name}"
        self._objects.put(ref, memoryview(_encode(table)))
        return ref

    def put_all(self, stage: str, tables: Iterable[pa.Table]) -> list[str]:
        """Store the rows of many units in few objects, and return the references to them."""
        refs: list[str] = []
        waiting: list[pa.Buffer] = []
        waiting_bytes = 0
        for table in tables:
            waiting.append(encoded := _encode(table))
            waiting_bytes += encoded.size
            if waiting_bytes >= _SHARED_BYTES:
                refs += self._put_together(stage, waiting)
                waiting, waiting_bytes = [], 0
        return refs + self._put_together(stage, waiting) if waiting else refs

    def _put_together(self, stage: str, payloads: list[pa.Buffer]) -> list[str]:
        key = f"{self._prefix}/{stage}/shared/{secrets.token_hex(16)}.arrow"
        refs, start = [], 0
        for payload in payloads:
            refs.append(f"{key}#{start}+{payload.size}")
            start += payload.size
        self._objects.put(key, b"".join(payloads))
        return refs

    def _put_scratch(self, stage: str, name: str, table: pa.Table) -> str:
        assert self._scratch is not None
        path = self._scratch / stage / name
        with storage_errors(str(path), do="free some space there"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
        return f"{_SCRATCH}{stage}/{name}"

    def get(self, ref: str) -> pa.Table:
        """Return the rows. Raises DataError if the payload is missing or damaged."""
        try:
            if ref.startswith(_SCRATCH) and self._scratch is not None:
                data = (self._scratch / ref.removeprefix(_SCRATCH)).read_bytes()
            else:
                data = self._get(ref)
        except (NotFoundError, FileNotFoundError) as error:
            raise DataError(
                f"the payload {payload_place(ref).key} is missing",
                do=_RESTORE,
            ) from error
        try:
            with pa.ipc.open_file(pa.BufferReader(data)) as reader:
                return reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"the payload {ref} is damaged: {error}",
                do=_RESTORE,
            ) from error

    def _get(self, ref: str) -> bytes:
        key, start, length = payload_place(ref)
        if length is None:
            return self._objects.get(key)
        try:
            return self._objects.get_range(key, start, length)
        except NotFoundError:
            raise
        except UsageError as error:
            raise DataError(f"the payload {ref} is cut off", do=_RESTORE) from error

    def size(self, ref: str) -> int:
        """Return the size of a durable payload. Raises DataError if it is missing."""
        place = payload_place(ref)
        return self._object_size(place.key) if place.bytes is None else place.bytes

    def _object_size(self, key: str) -> int:
        info = self._objects.head(key)
        if info is None:
            raise DataError(f"the payload {key} is missing", do=_RESTORE)
        return info.bytes

    def schema(self, ref: str) -> pa.Schema:
        """Return the columns of a durable payload, from its first bytes. Raises DataError."""
        key, start, bytes = payload_place(ref)
        object_bytes = self._object_size(key)
        longest = (object_bytes if bytes is None else bytes) - _MAGIC_BYTES
        for length in (min(longest, _SCHEMA_BYTES), longest):
            data = self._objects.get_range(key, start + _MAGIC_BYTES, length)
            try:
                return pa.ipc.read_schema(pa.py_buffer(data))
            except (pa.ArrowException, OSError) as error:
                failure = error
        raise DataError(f"the payload {ref} is damaged: {failure}", do=_RESTORE)

    def delete_scratch(self, refs: Iterable[str]) -> None:
        """Delete the payloads of the run that nobody needs any more; leave the durable ones."""
        for ref in refs:
            if ref.startswith(_SCRATCH) and self._scratch is not None:
                (self._scratch / ref.removeprefix(_SCRATCH)).unlink(missing_ok=True)


def _encode(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()
