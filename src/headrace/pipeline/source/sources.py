"""Sources: what a job reads first, and the units that it is split into."""

from __future__ import annotations

import glob
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from os.path import abspath
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import DataError, NotFoundError, UsageError
from headrace.journal.names import selector
from headrace.journal.workspace import Workspace
from headrace.pipeline.run.payloads import Payloads
from headrace.pipeline.source.source_units import (
    ROWS_PER_UNIT,
    FileUnit,
    JournalUnit,
    TableUnit,
    Unit,
    digest,
    known_rows,
    ranges,
    units_fingerprint,
)
from headrace.pipeline.source.unit_reader import file_fingerprint
from headrace.plan.unified_columns import plain_table

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json", ".ndjson": "json"}
"""The format of a file by the end of its name. Any other file is one row: its path and bytes."""


class SourceChange(NamedTuple):
    """How a source differs from the units that were planned."""

    added: list[Unit]
    is_only_added: bool
    """True if every planned unit is still there, unchanged."""
    text: str


class UnitSource(ABC):
    """Makes the units of a job. It stays in the driver; units travel to workers."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Identify what the source holds now, without storing anything."""

    @abstractmethod
    def plan(self, payloads: Payloads, stage: str) -> list[Unit]:
        """Return the units. Stores rows that nobody could read again otherwise."""

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of all rows; None if rows must be read to know."""
        return None

    def preview(self) -> tuple[int, int | None]:
        """Return how many units and rows `plan` would give, without storing anything.

        The number of rows is None if they must be read to know.
        """
        return 0, None

    def change(self, planned: Sequence[Unit]) -> SourceChange:
        """Compare the source with what was planned before."""
        return SourceChange([], False, "its rows are not the same")


class TableSource(UnitSource):
    """The rows of an Arrow table, stored when they are planned."""

    def __init__(self, table: pa.Table, rows_per_unit: int = ROWS_PER_UNIT) -> None:
        self._table = table
        self._rows_per_unit = check_rows_per_unit(rows_per_unit)

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def fingerprint(self) -> str:
        return digest(str(self._rows_per_unit), rows_digest(self._table))

    def plan(self, payloads: Payloads, stage: str) -> list[Unit]:
        parts = list(ranges(self._table.num_rows, self._rows_per_unit))
        refs = payloads.put_all(stage, (self._table.slice(*part) for part in parts))
        return [
            TableUnit(ref, first, count, rows_digest(self._table.slice(first, count)))
            for ref, (first, count) in zip(refs, parts, strict=True)
        ]

    def preview(self) -> tuple[int, int | None]:
        return len(list(ranges(self._table.num_rows, self._rows_per_unit))), self._table.num_rows


class FileSource(UnitSource):
    """Rows of files: Parquet in ranges, CSV and JSON lines whole, any other file as one row."""

    def __init__(
        self,
        paths: str | PathLike[str] | Iterable[str | PathLike[str]],
        rows_per_unit: int = ROWS_PER_UNIT,
    ) -> None:
        """`paths` are files, folders, or patterns with `*`."""
        given = [paths] if isinstance(paths, str | PathLike) else list(paths)
        self._paths = [fspath(path) for path in given]
        self._rows_per_unit = check_rows_per_unit(rows_per_unit)

    def fingerprint(self) -> str:
        return units_fingerprint(self.units())

    def plan(self, payloads: Payloads, stage: str) -> list[Unit]:
        return [*self.units()]

    def preview(self) -> tuple[int, int | None]:
        units = self.units()
        return len(units), known_rows(units)

    def units(self) -> list[FileUnit]:
        # A file may be named in several ways, and its rows are there once.
        files = sorted({abspath(file) for path in self._paths for file in _files(path)})
        return [unit for file in files for unit in _file_units(file, self._rows_per_unit)]

    def change(self, planned: Sequence[Unit]) -> SourceChange:
        before, now = _by_path(planned), _by_path(self.units())
        added = sorted(now.keys() - before.keys())
        removed = sorted(before.keys() - now.keys())
        changed = sorted(path for path in before.keys() & now.keys() if before[path] != now[path])
        parts = [
            f"{len(paths)} {'file' if len(paths) == 1 else 'files'} {verb}, such as {paths[0]}"
            for verb, paths in (("added", added), ("removed", removed), ("changed", changed))
            if paths
        ]
        units: list[Unit] = [unit for path in added for unit in now[path]]
        return SourceChange(units, not removed and not changed, "; ".join(parts))


class CollectionSource(UnitSource):
    """The documents that a collection holds when it is planned, by ranges of its journals."""

    def __init__(self, workspace: Workspace, collection: str) -> None:
        self._workspace = workspace
        self._collection = collection

    @property
    def schema(self) -> pa.Schema:
        return self._workspace.collection(self._collection).schema

    def fingerprint(self) -> str:
        """Identify the collection: what is appended later is not part of the source."""
        return digest("collection", self._collection)

    def preview(self) -> tuple[int, int | None]:
        return len(self.units()), None

    def plan(self, payloads: Payloads, stage: str) -> list[Unit]:
        return [*self.units()]

    def units(self) -> list[JournalUnit]:
        journals = self._workspace.journals(selector(self._collection))
        return [
            JournalUnit(self._collection, info.name, info.id, info.begin, info.head)
            for info in journals
            if info.begin < info.head
        ]


def check_rows_per_unit(rows_per_unit: int) -> int:
    if type(rows_per_unit) is not int or rows_per_unit < 1:
        raise UsageError(
            f"rows_per_unit must be at least 1, got {rows_per_unit!r}", do="give it a larger number"
        )
    return rows_per_unit


def rows_digest(table: pa.Table) -> str:
    """Return a hash of the rows and columns of a table, whatever table it may be a slice of."""
    plain = plain_table(table)
    # A slice is written with traces of the rows around it, and a copy is not.
    copied = plain.take(pa.array(np.arange(table.num_rows))).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, copied.schema) as writer:
        writer.write_table(copied)
    given = [] if plain is table else [str(table.schema)]
    return digest(*given, memoryview(sink.getvalue()).tobytes())


def _files(path: str) -> list[str]:
    if Path(path).is_dir():
        found = [str(each) for each in Path(path).rglob("*") if each.is_file()]
        return [each for each in found if not Path(each).name.startswith((".", "_"))]
    if Path(path).is_file():
        return [path]
    if found := [each for each in glob.glob(path, recursive=True) if Path(each).is_file()]:
        return found
    raise NotFoundError(f"the source has no file {path}", do="give files that exist")


def _file_units(path: str, rows_per_unit: int) -> list[FileUnit]:
    format = _FORMATS.get(Path(path).suffix, "binary")
    fingerprint = file_fingerprint(path)
    if format != "parquet":
        return [FileUnit(path, format, 0, -1, fingerprint)]
    return [
        FileUnit(path, format, first, count, fingerprint)
        for first, count in ranges(_parquet_rows(path), rows_per_unit)
    ]


def _parquet_rows(path: str) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read as parquet: {error}", do="mend or remove the file"
        ) from error


def _by_path(units: Sequence[Unit]) -> dict[str, list[FileUnit]]:
    found: dict[str, list[FileUnit]] = {}
    for unit in units:
        if isinstance(unit, FileUnit):
            found.setdefault(unit.path, []).append(unit)
    return found
