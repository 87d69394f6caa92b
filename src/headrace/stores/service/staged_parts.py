"""Parts of checkpoints that wait on disk until all of them are applied at once.

    staged/TASK/GENERATION-NUMBER/ID.arrow   the rows of one part
    staged/TASK/GENERATION-NUMBER/applied    the store holds the checkpoint, and its parts are gone

TASK and GENERATION are hashes of their names. A part that a dying process leaves unfinished has
another suffix, and goes when the store is opened again. The parts of older checkpoints of a task go
when the next one is applied, and all of them when a run of the task begins.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from headrace.errors import DataError, DocumentError, NotFoundError, UsageError
from headrace.files import UNFINISHED, storage_errors
from headrace.settings import MIB
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.service.arrow_bodies import one_batch

_PART_ID = re.compile(r"[0-9a-f]{48}")
"""A random name, and the checksum of the file."""
_CHECKSUM_DIGITS = 16
_APPLIED = "applied"
APPLY_BYTES_MAX = 2048 * MIB
"""The parts of one checkpoint may be this large together: they are applied from memory."""
_REMEDY = "mend the disk of the store or choose another"


class PartStaging:
    """The staged parts of one store. Any thread may use it."""

    def __init__(self, root: Path, schema: pa.Schema) -> None:
        self._root = root
        self._schema = schema
        with storage_errors(f"{root}", do=_REMEDY):
            root.mkdir(exist_ok=True)
            for left in root.glob(f"*/*/*{UNFINISHED}"):
                left.unlink()

    def begin(self, checkpoint: StoreCheckpoint) -> StagedPart:
        """Begin a part of a checkpoint."""
        return StagedPart(self._directory(checkpoint), self._schema)

    def was_applied(self, checkpoint: StoreCheckpoint) -> bool:
        """Return True if `mark_applied` was called for the checkpoint."""
        return (self._directory(checkpoint) / _APPLIED).exists()

    def read(self, parts: Sequence[str], checkpoint: StoreCheckpoint) -> pa.RecordBatch:
        """Return the rows of all these parts. Raises NotFoundError if a part is not there."""
        if len(set(parts)) < len(parts):
            raise UsageError(
                f"a part of {checkpoint} is named twice", do="name each part that was staged once"
            )
        paths = [self._path(part, checkpoint) for part in parts]
        total_bytes = sum(path.stat().st_size for path in paths)
        if total_bytes > APPLY_BYTES_MAX:
            raise UsageError(
                f"the parts of {checkpoint} have {total_bytes} bytes, more than {APPLY_BYTES_MAX}",
                do="let a checkpoint hold fewer rows",
            )
        tables = [_read_part(path, checkpoint) for path in paths]
        # Parts need not have the same columns, if the store takes rows without some of them.
        table = pa.concat_tables([*tables], promote_options="default") if tables else None
        return one_batch(self._schema, table.combine_chunks().to_batches() if table else [])

    def mark_applied(self, checkpoint: StoreCheckpoint) -> None:
        """Remove the parts of a checkpoint that the store holds, and those of earlier ones."""
        directory = self._directory(checkpoint)
        with storage_errors(f"{directory}", do=_REMEDY):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / _APPLIED).touch()
            for part in directory.iterdir():
                if part.name != _APPLIED:
                    part.unlink(missing_ok=True)
            for other in directory.parent.iterdir():
                if other != directory:
                    _remove(other)

    def forget(self, task: str) -> None:
        """Remove all parts of a task: a run of it begins."""
        with storage_errors(f"{self._root}", do=_REMEDY):
            _remove(self._root / _hashed(task))

    def _directory(self, checkpoint: StoreCheckpoint) -> Path:
        name = f"{_hashed(checkpoint.generation)}-{checkpoint.number}"
        return self._root / _hashed(checkpoint.task) / name

    def _path(self, part: str, checkpoint: StoreCheckpoint) -> Path:
        if not _PART_ID.fullmatch(part):
            raise UsageError(f"{part!r} is no part", do="pass what stage() returned")
        path = self._directory(checkpoint) / f"{part}.arrow"
        if not path.exists():
            raise NotFoundError(
                f"part {part} of {checkpoint} is not staged",
                do="write the batch again: a newer run of the task may have removed it",
            )
        return path


class StagedPart:
    """One part while it is written. Only one thread at a time uses it."""

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._name = secrets.token_hex(16)
        self._directory = directory
        self._path = directory / f"{self._name}{UNFINISHED}"
        self._stream: Any = None
        with storage_errors(f"{self._path}", do=_REMEDY):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = pa.OSFile(str(self._path), "wb")

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows. Columns that the store has get its types; it checks the rest when it applies.

        All rows of a part have the same columns.
        """
        try:
            fitting = _cast(rows, self._schema)
            with storage_errors(f"{self._path}", do=_REMEDY):
                self._begin(fitting.schema).write_batch(fitting)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
            raise DocumentError(
                f"rows with the columns {_named(rows.schema)} do not fit: {error}",
                do=f"give them {_named(self._schema)}",
            ) from error

    def _begin(self, schema: pa.Schema) -> Any:
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, schema)
        return self._stream

    def end(self) -> str:
        """Return the id of the part, which is complete now."""
        with storage_errors(f"{self._path}", do=_REMEDY):
            self._begin(self._schema).close()
            self._file.close()
            with pa.memory_map(str(self._path)) as file:
                part = f"{self._name}{_checksum(file.read_buffer())}"
            self._path.rename(self._directory / f"{part}.arrow")
        return part

    def drop(self) -> None:
        """Remove what is there of it."""
        with suppress(OSError):
            self._file.close()
        with storage_errors(f"{self._path}", do=_REMEDY):
            self._path.unlink(missing_ok=True)


def _read_part(path: Path, checkpoint: StoreCheckpoint) -> pa.Table:
    """Return the rows of a part, whose id ends with the checksum of its file.

    Nothing syncs a part: after a power failure it may have lost its end, or blocks within it.
    """
    try:
        with storage_errors(f"{path}", do=_REMEDY), pa.memory_map(str(path)) as file:
            content = file.read_buffer()
            if _checksum(content) != path.stem[-_CHECKSUM_DIGITS:]:
                raise pa.ArrowInvalid("it has another checksum")
            table = pa.ipc.open_stream(content).read_all()
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path}, of {checkpoint}, is damaged: {error}", do="write the batch again"
        ) from error
    return table


def _cast(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column.cast(schema.field(name).type) if name in schema.names else column
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _checksum(content: pa.Buffer) -> str:
    return str(xxhash.xxh3_64_hexdigest(content))


def _hashed(name: str) -> str:
    return str(xxhash.xxh3_128_hexdigest(name.encode()))


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)


def _remove(path: Path) -> None:
    # Somebody may be adding a part to a directory that goes.
    shutil.rmtree(path, ignore_errors=True)
