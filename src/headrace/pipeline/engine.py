"""What Spark adds to a pipeline, and the sources that need no Spark."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import UsageError
from headrace.journal.collection import Collection
from headrace.journal.workspace import Workspace
from headrace.pipeline.contract import Runner, StageOperator
from headrace.pipeline.source.source_units import ROWS_PER_UNIT
from headrace.pipeline.source.sources import CollectionSource, FileSource, TableSource, UnitSource
from headrace.settings import ServiceSettings


class EngineRunner(Runner, Protocol):
    """A runner that knows how its workers reach the driver."""

    @property
    def service(self) -> ServiceSettings: ...


class Engine(Protocol):
    """What Spark adds to a pipeline. It is made when a pipeline first needs it."""

    def source(self, data: Any, rows_per_unit: int, version: str) -> UnitSource | None:
        """Return a source of `data`; None if the engine does not know it."""

    def sink(self, sink: Any) -> StageOperator | None:
        """Return a sink; None if the engine does not know it."""

    def stage(
        self, function: Callable[..., Any], rows_per_unit: int, version: str
    ) -> StageOperator:
        """Return the operator of a stage whose function takes and returns DataFrames."""

    def runner(self, session: Any) -> EngineRunner:
        """Return a runner on `session`. If it is None, use the active session or make one."""


def as_source(
    data: Any,
    workspace: Workspace,
    engine: Callable[[], Engine] | None,
    rows_per_unit: int = ROWS_PER_UNIT,
    version: str = "",
) -> UnitSource:
    """Return the source of whatever `Pipeline.source` takes."""
    if isinstance(data, UnitSource):
        return data
    if isinstance(data, pa.RecordBatch):
        data = pa.table(data)
    if type(data).__module__.partition(".")[0] == "pandas":
        data = pa.Table.from_pandas(data, preserve_index=False)
    if isinstance(data, pa.Table):
        return TableSource(data, rows_per_unit)
    if isinstance(data, Collection):
        return CollectionSource(workspace, data.name)
    if isinstance(data, str | PathLike | list | tuple):
        return FileSource(data, rows_per_unit)
    found = engine().source(data, rows_per_unit, version) if engine else None
    if found is None:
        raise UsageError(
            f"a {type(data).__name__} is no source",
            do="give files, a collection, an Arrow table or a DataFrame",
        )
    return found
