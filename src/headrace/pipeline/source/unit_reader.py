"""Reads the rows of a unit, in a worker."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from headrace.errors import ChangedError, DataError, NotFoundError
from headrace.ids import Offset
from headrace.journal.committed_documents import documents
from headrace.journal.names import selector
from headrace.journal.workspace import Workspace
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.source.source_units import FileUnit, JournalUnit, TableUnit, Unit

BINARY_COLUMNS = pa.schema({"path": pa.string(), "content": pa.large_binary()})


def read_unit(unit: Unit, payloads: Payloads, workspace: Workspace | None) -> pa.Table:
    """Return the rows of a unit. Raises ChangedError if they are no longer what was planned.

    Only a range of a journal needs the workspace.
    """
    match unit:
        case TableUnit(ref=ref):
            return payloads.get(ref)
        case FileUnit():
            return read_file(unit)
        case JournalUnit():
            assert workspace is not None
            return read_journal(unit, workspace)


def unit_columns(unit: Unit, payloads: Payloads, workspace: Workspace) -> pa.Schema:
    """Return the columns of a unit, without its rows if its format tells."""
    match unit:
        case TableUnit(ref=ref):
            return payloads.schema(ref)
        case FileUnit(format="parquet", path=path):
            try:
                return pq.read_schema(path)
            except (pa.ArrowException, OSError) as error:
                raise _unreadable(unit, error) from error
        case FileUnit(format="binary"):
            return BINARY_COLUMNS
        case FileUnit():
            return read_file(unit).schema
        case JournalUnit(collection=collection):
            return workspace.collection(collection).schema


def file_fingerprint(path: str) -> str:
    """Identify the contents of a file by its size and the time of its last change."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror or error}", do="put it back") from error
    return f"{status.st_size}-{status.st_mtime_ns}"


def read_file(unit: FileUnit) -> pa.Table:
    """Return rows of a file. Raises ChangedError if it is not the file that was planned."""
    _check_unchanged(unit)
    try:
        table = _file_rows(unit)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(unit, error) from error
    # Whoever replaced the file meanwhile may have mixed old rows with new ones.
    _check_unchanged(unit)
    return table


def _unreadable(unit: FileUnit, error: Exception) -> DataError:
    return DataError(
        f"{unit.path} cannot be read as {unit.format}: {error}", do="mend or remove the file"
    )


def _check_unchanged(unit: FileUnit) -> None:
    if file_fingerprint(unit.path) != unit.fingerprint:
        raise ChangedError(
            f"{unit.path} has changed since the job planned its units",
            do="put the file back, or run with on_change='recompute' or 'restart'",
        )


def _file_rows(unit: FileUnit) -> pa.Table:
    if unit.format == "csv":
        return pyarrow.csv.read_csv(unit.path)
    if unit.format == "json":
        return pyarrow.json.read_json(unit.path)
    if unit.format == "binary":
        content = Path(unit.path).read_bytes()
        return pa.table({"path": [unit.path], "content": [content]}, BINARY_COLUMNS)
    with pq.ParquetFile(unit.path) as file:
        return _parquet_rows(file, unit.first, unit.count)


def _parquet_rows(file: pq.ParquetFile, first: int, count: int) -> pa.Table:
    """Read the row groups that hold the rows, and cut them out."""
    groups: list[int] = []
    skipped = position = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if position + rows <= first:
            skipped = position + rows
        elif position < first + count:
            groups.append(number)
        position += rows
    return file.read_row_groups(groups).slice(first - skipped, count)


def read_journal(unit: JournalUnit, workspace: Workspace) -> pa.Table:
    """Return the documents of a range of a journal."""
    found = workspace.journals(selector(unit.collection))
    info = next((each for each in found if each.id == unit.incarnation), None)
    if info is None:
        raise ChangedError(
            f"journal {unit.journal} was deleted since the job planned its units",
            do="run with on_change='recompute' or 'restart'",
        )
    collection = workspace.collection(unit.collection)
    # What was committed up to the end that was planned, and nothing that committed later.
    planned = msgspec.structs.replace(info, head=Offset(unit.end))
    batches = [
        documents(collection, unit.journal, frame, meta=False)
        for frame in workspace.frames(planned, unit.begin)
    ]
    return pa.Table.from_batches(batches, collection.schema)
