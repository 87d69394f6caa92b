"""Keeps the batches of a checkpoint until all of them are there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Self

import pyarrow as pa

from headrace.files import storage_errors
from headrace.settings import MIB

MEMORY_BYTES = 16 * MIB


class BatchSpool:
    """Batches of any schemas, in order: in memory up to a size, then in a file without a name."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)  # noqa: SIM115  see __exit__
        self._batches = 0

    def put(self, batch: pa.RecordBatch) -> None:
        with _as_storage_error(), pa.ipc.new_stream(self._file, batch.schema) as stream:
            stream.write_batch(batch)
        self._batches += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield every batch once. Put no more batches after this."""
        with _as_storage_error():
            self._file.seek(0)
        for _ in range(self._batches):
            with _as_storage_error(), pa.ipc.open_stream(self._file) as stream:
                [batch] = stream
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        # Closing writes again what did not fit on the disk, and `put` has already raised for that.
        with suppress(OSError):
            self._file.close()


def _as_storage_error() -> AbstractContextManager[None]:
    directory = tempfile.gettempdir()
    return storage_errors(
        f"cannot keep documents in {directory} (see TMPDIR)", do="set TMPDIR to another directory"
    )
