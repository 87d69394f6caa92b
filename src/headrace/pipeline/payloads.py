"""The rows of units, as Arrow files among the objects of a workspace."""

from __future__ import annotations

import secrets

import pyarrow as pa

from headrace.errors import DataError, NotFoundError
from headrace.storage import Objects


class Payloads:
    """The payloads of one job. Any thread may use them; they travel to other processes."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def put(self, stage: str, unit: str, table: pa.Table) -> str:
        """Store the rows of a unit, and return the reference to them.

        Every call gets a key of its own, so a worker that was given up overwrites nothing.
        """
        ref = f"{self._prefix}/{stage}/{unit[:2]}/{unit}.{secrets.token_hex(6)}.arrow"
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self._objects.put(ref, memoryview(sink.getvalue()))
        return ref

    def get(self, ref: str) -> pa.Table:
        """Return the rows. Raises DataError if the payload is missing or damaged."""
        try:
            data = self._objects.get(ref)
        except NotFoundError as error:
            raise DataError(
                f"the payload {ref} is missing",
                do="restore it from a backup, or run the job with on_change='restart'",
            ) from error
        try:
            with pa.ipc.open_file(pa.BufferReader(data)) as reader:
                return reader.read_all()
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"the payload {ref} is damaged: {error}",
                do="restore it from a backup, or run the job with on_change='restart'",
            ) from error

    def delete(self, ref: str) -> None:
        self._objects.delete(ref)
