"""The rows of units, as Arrow files among the objects of a workspace."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from headrace.errors import DataError, NotFoundError
from headrace.files import storage_errors
from headrace.storage import Objects

_SCRATCH = "scratch:"
"""What references to payloads in the scratch directory begin with. No key begins so."""

_RESTORE = "restore it from a backup, or run the job with on_change='restart'"
_MAGIC_BYTES = 8
"""An Arrow file begins with these, and then has its schema."""
_SCHEMA_BYTES = 64 * 1024


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
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self._objects.put(ref, memoryview(sink.getvalue()))
        return ref

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
                data = self._objects.get(ref)
        except (NotFoundError, FileNotFoundError) as error:
            raise DataError(
                f"the payload {ref} is missing",
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

    def schema(self, ref: str) -> pa.Schema:
        """Return the columns of a durable payload, from its first bytes. Raises DataError."""
        info = self._objects.head(ref)
        if info is None:
            raise DataError(f"the payload {ref} is missing", do=_RESTORE)
        longest = info.bytes - _MAGIC_BYTES
        for length in (min(longest, _SCHEMA_BYTES), longest):
            data = self._objects.get_range(ref, _MAGIC_BYTES, length)
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
