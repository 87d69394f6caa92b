"""Exactly-once pipelines on Spark: the public API and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace import errors
from headrace.errors import CommitOutcome, HeadraceError, InDoubtError, UsageError
from headrace.journal.collection import Collection
from headrace.journal.names import Selector, selector
from headrace.journal.publisher import Participant, Publisher, Transaction
from headrace.journal.workspace import Workspace
from headrace.journal.write.pending_commit import PendingCommit
from headrace.pipeline.operators.retries import Retries

# Imports the package headrace.pipeline, too: after its import, `pipeline` names the package until
# the function below takes the name.
from headrace.pipeline.rate_limit.state import RateLimitSpec
from headrace.settings import (
    JournalSettings,
    LogSettings,
    ServiceSettings,
    Settings,
    ShuffleSettings,
)
from headrace.shuffle import (
    Binding,
    Checkpoint,
    LocalMembers,
    Member,
    NextCheckpoint,
    Shuffle,
    follow,
)
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace import spark
    from headrace.pipeline.builder import Pipeline
    from headrace.pipeline.calls.answer import Answer, current_call
    from headrace.pipeline.engine import Engine
    from headrace.pipeline.job import Job, Stage, StageConfig
    from headrace.pipeline.operators.http import http
    from headrace.pipeline.operators.openai import openai_chat, openai_embeddings
    from headrace.pipeline.operators.operator import Operator, OperatorSpec
    from headrace.pipeline.source.sources import UnitSource
    from headrace.plan.plan_run import TaskRunner
    from headrace.plan.query import Query
    from headrace.spark import (
        CheckpointId,
        Cut,
        Task,
        derivation,
        foreach_batch,
        jdbc,
        materialization,
        parquet,
        timeseries,
        vectors,
        writer,
    )
    from headrace.stores.service.shared_timeseries import SharedTimeSeries
    from headrace.stores.service.shared_vectors import SharedVectors
    from headrace.stores.service.store_access import create_store, open_timeseries, open_vectors

__version__ = VERSION

__all__ = [
    "Answer",
    "Binding",
    "Checkpoint",
    "CheckpointId",
    "Collection",
    "CommitOutcome",
    "Cut",
    "HeadraceError",
    "InDoubtError",
    "Job",
    "JournalSettings",
    "LocalMembers",
    "LogSettings",
    "Member",
    "NextCheckpoint",
    "Operator",
    "Participant",
    "PendingCommit",
    "Pipeline",
    "Publisher",
    "Query",
    "RateLimitSpec",
    "Retries",
    "Selector",
    "ServiceSettings",
    "Settings",
    "SharedTimeSeries",
    "SharedVectors",
    "Shuffle",
    "ShuffleSettings",
    "Stage",
    "StageConfig",
    "Task",
    "Transaction",
    "Workspace",
    "create_store",
    "current_call",
    "derivation",
    "errors",
    "follow",
    "foreach_batch",
    "http",
    "jdbc",
    "materialization",
    "open",
    "open_timeseries",
    "open_vectors",
    "openai_chat",
    "openai_embeddings",
    "operator",
    "parquet",
    "pipeline",
    "scan",
    "selector",
    "source",
    "spark",
    "timeseries",
    "vectors",
    "writer",
]

_MODULES = {
    "Answer": "headrace.pipeline.calls.answer",
    "Job": "headrace.pipeline.job",
    "Operator": "headrace.pipeline.operators.operator",
    "Pipeline": "headrace.pipeline.builder",
    "Query": "headrace.plan.query",
    "SharedTimeSeries": "headrace.stores.service.shared_timeseries",
    "SharedVectors": "headrace.stores.service.shared_vectors",
    "Stage": "headrace.pipeline.job",
    "StageConfig": "headrace.pipeline.job",
    "create_store": "headrace.stores.service.store_access",
    "current_call": "headrace.pipeline.calls.answer",
    "http": "headrace.pipeline.operators.http",
    "open_timeseries": "headrace.stores.service.store_access",
    "open_vectors": "headrace.stores.service.store_access",
    "openai_chat": "headrace.pipeline.operators.openai",
    "openai_embeddings": "headrace.pipeline.operators.openai",
}


def open(
    location: str | Path, *, token: str = "", settings: Settings | None = None, create: bool = True
) -> Workspace:
    """Open a workspace: a directory, made if it is not there, or the address of its owner.

    The first process to open a directory owns and serves it; others work through the owner, and
    one of them takes over when it is gone. `grpc://host:port` reaches an owner on another machine.
    """
    if not isinstance(location, str | Path):
        raise UsageError(
            f"{location!r} is no location of a workspace",
            do="give a directory, or an owner's address",
        )
    settings = settings or Settings()
    if token:
        service = msgspec.structs.replace(settings.service, token=token)
        settings = msgspec.structs.replace(settings, service=service)
    return Workspace(location, settings, create=create)


def pipeline(name: str | Job, workspace: Workspace, *, budget: float | None = None) -> Pipeline:
    """Begin a pipeline: a job that is put together stage by stage, and resumed by its name.

    It pauses before a call of an expensive stage that may exceed the budget. A `Job` that has its
    stages already is run as it is.
    """

    builder = import_module("headrace.pipeline.builder")
    begun: Pipeline = builder.Pipeline(name, workspace, _engine(workspace), budget=budget)
    return begun


def scan(data: Any, workspace: Workspace, *, rows_per_unit: int = 100_000) -> Query:
    """Begin a query over files, a collection, an Arrow table or a pandas DataFrame.

    Each unit of up to `rows_per_unit` rows is a map task. Output of map tasks is kept in the
    workspace: a query that runs again under the same name computes only what is not there.
    """
    queries = import_module("headrace.plan.query")
    scans = import_module("headrace.pipeline.source.unit_scan")
    home = queries.QueryHome(lambda: workspace.objects, _plan_runner)
    begun: Query = queries.Query.scan(scans.scan_source(data, workspace, rows_per_unit), home)
    return begun


def _plan_runner(session: Any) -> TaskRunner:
    runners = import_module("headrace.spark.plan_runner")
    found: TaskRunner = runners.PlanRunner(session)
    return found


def operator(
    kind: Literal["map", "flat_map", "filter", "map_batches"], target: Any, **options: Any
) -> OperatorSpec:
    """Return the operator of a `Stage`: a function, or an `Operator`, and the builder's options."""
    operators = import_module("headrace.pipeline.operators.operator")
    found: OperatorSpec = operators.operator_spec(kind, target, **options)
    return found


def source(
    data: Any, workspace: Workspace, *, rows_per_unit: int = 1000, version: str = ""
) -> UnitSource:
    """Return the source of a `Stage`, from whatever `Pipeline.source` takes."""
    engine = import_module("headrace.pipeline.engine")
    found: UnitSource = engine.as_source(
        data, workspace, _engine(workspace), rows_per_unit, version
    )
    return found


def _engine(workspace: Workspace) -> Callable[[], Engine]:
    def engine() -> Engine:
        engines = import_module("headrace.spark.pipelines.spark_engine")
        found: Engine = engines.SparkEngine(workspace)
        return found

    return engine


def __getattr__(name: str) -> Any:
    """Spark, pipelines and stores are imported when they are asked for: that takes its time."""
    if name not in __all__:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    if module := _MODULES.get(name):
        return getattr(import_module(module), name)
    spark = import_module("headrace.spark")
    return spark if name == "spark" else getattr(spark, name)


def __dir__() -> list[str]:
    """The public API, also what has not been imported yet."""
    return list(__all__)
