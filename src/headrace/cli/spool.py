"""Documents that are kept until there are all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Self

import pyarrow as pa

from headrace.files import storage_errors
from headrace.settings import MIB

MEMORY_BYTES = 16 * MIB


class Spool:
    """Batches of any schemas, in order: in memory up to a size, then in a file without a name."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)  # noqa: SIM115  see __exit__
        self._batches = 0

    def put(self, batch: pa.RecordBatch) -> None:
        with _writing(), pa.ipc.new_stream(self._file, batch.schema) as stream:
            stream.write_batch(batch)
        self._batches += 1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them, once; nothing is put any more."""
        with _writing():
            self._file.seek(0)
        for _ in range(self._batches):
            with _writing(), pa.ipc.open_stream(self._file) as stream:
                [batch] = stream
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        # What did not fit on the disk was told when it was put, and would be written once more.
        with suppress(OSError):
            self._file.close()


def _writing() -> AbstractContextManager[None]:
    where = tempfile.gettempdir()
    return storage_errors(
        f"cannot keep documents in {where} (see TMPDIR)", do="name another directory"
    )
