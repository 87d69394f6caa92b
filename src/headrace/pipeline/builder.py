"""Pipelines as users write them: a source, stages, a sink.

captions = (
    hr.pipeline("captions", ws)
    .source("images/*.parquet")
    .map_batches(Caption, workers=2, expensive=True)
    .filter(is_good)
    .sink(store)
)
captions.run()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Self

import pyarrow as pa

from headrace.errors import UsageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.branches import BuiltStage, assemble, merge
from headrace.pipeline.calls.bodies import Kind
from headrace.pipeline.contract import Runner, StageOperator
from headrace.pipeline.dead_letters import DeadLetter
from headrace.pipeline.engine import Engine, as_source
from headrace.pipeline.job import Job, Stage, StageConfig
from headrace.pipeline.operators.operator import operator_spec
from headrace.pipeline.operators.shuffles import (
    DistinctOperator,
    GroupOperator,
    JoinOperator,
    ShuffleOperator,
)
from headrace.pipeline.run.job_plan import JobPlan, plan_job
from headrace.pipeline.run.job_results import read_results
from headrace.pipeline.run.job_run import JobRun, RunSummary
from headrace.pipeline.run.record import OnChange
from headrace.pipeline.run.thread_runner import ThreadRunner
from headrace.pipeline.sinks import CallableSink
from headrace.pipeline.source.source_units import ROWS_PER_UNIT
from headrace.pipeline.status.job_catalog import find_dead_letters, replay_dead_letters
from headrace.pipeline.status.job_status import JobStatus, read_status
from headrace.plan.operators import JoinKind
from headrace.plan.query import PARTITIONS
from headrace.settings import ServiceSettings

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class Pipeline:
    """A job that is put together stage by stage. Nothing runs before `run`."""

    def __init__(
        self,
        name: str | Job,
        workspace: Workspace,
        engine: Callable[[], Engine] | None = None,
        *,
        budget: float | None = None,
    ) -> None:
        self._given = name if isinstance(name, Job) else None
        if self._given and budget is not None:
            raise UsageError(
                f"job {self._given.id!r} is given with a budget beside it",
                do="give the budget to the Job",
            )
        self.name = name.id if isinstance(name, Job) else Job(name, budget=budget).id
        self._budget = budget
        self.workspace = workspace
        self._engine = engine
        self._running: JobRun | None = None
        self._is_stopping = False
        self._stages: list[BuiltStage] = []
        """The last one is what the next stage reads."""
        self.is_joined = False
        """True if the pipeline is part of another, which has its stages."""

    # -- stages ------------------------------------------------------------------------------

    def source(
        self,
        data: Any,
        *,
        rows_per_unit: int = ROWS_PER_UNIT,
        name: str = "source",
        version: str = "",
    ) -> Self:
        """Read files, a collection, an Arrow table, a pandas DataFrame or a Spark DataFrame.

        Files are given as paths, folders or patterns. Units of tables and Parquet files have up to
        `rows_per_unit` rows: after a crash a unit is the least that is processed again. Each other
        file, and each journal of a collection, is one unit, however many rows it has. Give a
        Spark DataFrame another `version` if its rows have changed: its columns, and the files that
        it reads, are compared in any case.
        """
        self._check_open()
        if self._stages:
            raise UsageError(
                f"pipeline {self.name!r} has a source already",
                do="build a Job to read from several sources, or join two pipelines",
            )
        found = as_source(data, self.workspace, self._engine, rows_per_unit, version)
        self._stages.append(BuiltStage(Stage(name, found), True, ()))
        return self

    def map(self, function: Callable[..., Any], **options: Any) -> Self:
        """Apply a function to each row, a dict; it returns the new row. Options: `map_batches`."""
        return self._add("map", function, options)

    def flat_map(self, function: Callable[..., Any], **options: Any) -> Self:
        """Apply a function to each row; it returns any number of rows. Options: `map_batches`."""
        return self._add("flat_map", function, options)

    def filter(self, function: Callable[..., Any], **options: Any) -> Self:
        """Keep the rows of each batch for which the returned mask is true. Options as above."""
        return self._add("filter", function, options)

    def map_batches(self, operator: Any, **options: Any) -> Self:
        """Apply a function, or an `Operator`, to batches of rows.

        Options of the stage: `name`, `workers`, `resources`, `durable` (True keeps its output on
        disk, False keeps it in memory and runs the stage again after a crash; expensive stages and
        the last one are always durable). All others are those of StageOperator, such as
        `batch_size`, `expensive`, `cost`, `budget`, `retries`, `on_error`, `timeout_s`,
        `concurrency` and `rate_limit`.
        """
        return self._add("map_batches", operator, options)

    def http(self, operator: Any, **options: Any) -> Self:
        """Call a service for each row: `hr.http(...)` or one of its ready forms."""
        return self._add("map_batches", operator, {"expensive": True, **options})

    def spark(
        self,
        function: Callable[..., Any],
        *,
        rows_per_unit: int = ROWS_PER_UNIT,
        name: str = "",
        version: str = "",
    ) -> Self:
        """Apply a function from DataFrame to DataFrame to all rows at once, on Spark.

        The stage begins when the stages before it are done. Its result is stored once, in units of
        up to `rows_per_unit` rows, and never computed again.
        """
        operator = self._required_engine("a spark stage").stage(function, rows_per_unit, version)
        return self._append(name or _name_of(function, "spark"), operator, True, StageConfig())

    def group_by(
        self,
        *keys: str,
        partitions: int = PARTITIONS,
        rows_per_unit: int = ROWS_PER_UNIT,
        name: str = "group-by",
    ) -> GroupedPipeline:
        """Group all rows by key; `agg` says what to make of each group. Without keys it is one.

        The stage begins when the stages before it are done. Its tasks shuffle the rows into
        `partitions`, and what they have published is not computed again after a crash. Its result
        is stored once, in units of up to `rows_per_unit` rows.
        """
        return GroupedPipeline(self, keys, partitions, rows_per_unit, name)

    def distinct(
        self,
        *keys: str,
        partitions: int = PARTITIONS,
        rows_per_unit: int = ROWS_PER_UNIT,
        name: str = "distinct",
    ) -> Self:
        """Keep one row for each key, whichever. The rest is as for `group_by`."""
        operator = DistinctOperator(keys, partitions=partitions, rows_per_unit=rows_per_unit)
        return self._shuffle(name, operator)

    def join(
        self,
        other: Pipeline,
        on: str | Sequence[str],
        *,
        how: JoinKind = "inner",
        partitions: int = PARTITIONS,
        rows_per_unit: int = ROWS_PER_UNIT,
        name: str = "join",
    ) -> Self:
        """Join with the rows of another pipeline on columns that both have.

        The stages of the other become stages of this one, which runs them under its own name. The
        rest is as for `group_by`.
        """
        operator = JoinOperator(on, how, partitions=partitions, rows_per_unit=rows_per_unit)
        self._check_begun(name)
        self._check_joinable(other, name)
        mine, branch = self._last, other._last
        self._shuffle(name, operator, merge(self._stages, other._stages, other.name), mine, branch)
        other.is_joined = True
        return self

    def _check_joinable(self, other: Pipeline, name: str) -> None:
        if not isinstance(other, Pipeline):
            raise UsageError(f"a {type(other).__name__} cannot be joined", do="give a pipeline")
        if other is self:
            raise UsageError(
                f"pipeline {self.name!r} is joined with itself",
                do="build its other side as a pipeline of its own",
            )
        other._check_begun(name)
        if self.workspace.directory != other.workspace.directory:
            raise UsageError(
                f"pipeline {other.name!r} is of the workspace {other.workspace.location}, and"
                f" {self.name!r} of {self.workspace.location}",
                do="build both in one workspace",
            )
        if other._budget is not None:
            raise UsageError(
                f"pipeline {other.name!r} has a budget, and becomes part of {self.name!r}",
                do=f"give the budget to {self.name!r}",
            )

    def _shuffle(
        self,
        name: str,
        operator: ShuffleOperator,
        stages: Sequence[BuiltStage] = (),
        *above: str,
    ) -> Self:
        """Add a stage that shuffles; `stages` and `above` are those of a join."""
        before = self._stages
        self._stages = list(stages or before)
        try:
            self._append(name, operator, True, StageConfig(), above)
            assemble(self.name, self._stages).columns(self._last)
        except UsageError:
            self._stages = before
            raise
        return self

    def sink(self, sink: Any, *, name: str = "sink", workers: int = 1, version: str = "") -> Self:
        """Write the rows to a sink: `hr.parquet(...)` and the like, a collection, or a function.

        A function gets the rows of a unit, an Arrow table, and an idempotency key. After a crash it
        may get the same rows again, with the same key.
        """
        operator = self._engine().sink(sink) if self._engine and not _is_plain(sink) else None
        if operator is None:
            if not callable(sink):
                raise UsageError(f"{sink!r} is no sink", do="give a sink, or a function")
            operator = CallableSink(sink, version=version)
        return self._append(name, operator, True, StageConfig(workers=workers))

    def _add(self, kind: Kind, target: Any, options: dict[str, Any]) -> Self:
        name = options.pop("name", "") or _name_of(target, kind)
        durable = options.pop("durable", None)
        workers = options.pop("workers", 1)
        resources = options.pop("resources", {})
        operator = operator_spec(kind, target, **options)
        must = operator.expensive or operator.on_error == "dead_letter"
        if durable is False and must:
            raise UsageError(
                f"stage {name!r} is expensive or keeps dead letters, and durable is False",
                do="leave out durable",
            )
        config = StageConfig(
            queue_backend="local" if durable or must else "memory",
            workers=workers,
            resources=resources,
        )
        return self._append(name, operator, durable is not None or must, config)

    def _append(
        self,
        name: str,
        operator: StageOperator,
        is_chosen: bool,
        config: StageConfig,
        above: Sequence[str] = (),
    ) -> Self:
        self._check_begun(name)
        taken = {each.name for each in self._stages}
        unique, number = name, 2
        while unique in taken:
            unique, number = f"{name}-{number}", number + 1
        self._stages.append(
            BuiltStage(Stage(unique, operator, config), is_chosen, tuple(above) or (self._last,))
        )
        return self

    def _check_begun(self, name: str) -> None:
        self._check_open()
        if not self._stages:
            raise UsageError(
                f"pipeline {self.name!r} begins with stage {name!r}", do="call source first"
            )
        if self._stages[-1].stage.is_sink:
            raise UsageError(
                f"pipeline {self.name!r} ends in the sink {self._last!r}, and stage {name!r} would"
                " read it",
                do="put the sink last, after a join or any other stage",
            )

    @property
    def _last(self) -> str:
        return self._stages[-1].name

    def _check_open(self) -> None:
        if self._given:
            raise UsageError(
                f"pipeline {self.name!r} has the stages of its Job", do="add stages to the Job"
            )

    def _required_engine(self, what: str) -> Engine:
        if self._engine is None:
            raise UsageError(f"{what} needs Spark", do="make the pipeline with hr.pipeline")
        return self._engine()

    # -- the job -----------------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """The job that the stages make. The output of its last stage is durable."""
        if self._given:
            self._given.validate()
            return self._given
        job = assemble(self.name, self._stages, self._budget)
        job.validate()
        return job

    def plan(self) -> JobPlan:
        """Tell what a run would do: units, calls, their cost, and what is done. Changes nothing."""
        return plan_job(self.workspace, self.job)

    def run(
        self,
        spark: Any = None,
        *,
        on_change: OnChange = "refuse",
        runner: Runner | None = None,
        service: ServiceSettings | None = None,
        watch: Callable[[JobStatus], None] | None = None,
    ) -> RunSummary:
        """Run the pipeline, or go on where it was, until it is done or its budget is spent.

        Workers are tasks of the Spark session, or threads of this process if there is none. If a
        sink needs Spark and no session is given, one is started on this machine. A thread shows
        `watch` how the run stands, twice a second and at its end.
        """
        self._is_stopping = False
        job = self.job
        if runner is None and (spark or self.needs_spark):
            runner = self._required_engine("a run").runner(spark)
            service = service or runner.service
        runner = runner or ThreadRunner()
        with JobRun(self.workspace, job, on_change=on_change, service=service, watch=watch) as run:
            self._running = run
            try:
                if self._is_stopping:
                    run.stop()
                runner.run(run)
                return run.summary()
            finally:
                self._running = None

    def stop(self) -> None:
        """Ask the run that another thread has begun to end soon.

        Its outcome is "stopped". Calls under way are recorded, and the next run goes on there.
        """
        self._is_stopping = True
        if run := self._running:
            run.stop()

    @property
    def needs_spark(self) -> bool:
        """True if a stage or a sink can only run on Spark."""
        return any(getattr(stage.spec, "needs_spark", False) for stage in self.job.operators)

    def status(self) -> JobStatus:
        """Tell how the last run stands or ended."""
        return read_status(self.workspace, self.name)

    def dead_letters(self, stage: str = "") -> list[DeadLetter]:
        """Return the rows that stages gave up, with their errors; without a name, those of all."""
        return find_dead_letters(self.workspace, self.name, stage)

    def replay_dead_letters(self, stage: str = "") -> int:
        """Send those rows back to their stage, for the next run. Return how many there are."""
        return replay_dead_letters(self.workspace, self.name, stage)

    def collect(self, stage: str = "") -> pa.Table:
        """Return what a durable stage has produced; without a name, the last.

        A pipeline with a sink has nothing to return.
        """
        job = self.job
        return read_results(self.workspace, job, stage or list(job.stages)[-1])


class GroupedPipeline:
    """Grouped rows of a pipeline, until `agg` says what to make of each group."""

    def __init__(
        self,
        pipeline: Pipeline,
        keys: tuple[str, ...],
        partitions: int,
        rows_per_unit: int,
        name: str,
    ) -> None:
        self._pipeline = pipeline
        self._keys = keys
        self._partitions = partitions
        self._rows_per_unit = rows_per_unit
        self._name = name

    def agg(self, **aggregates: Any) -> Pipeline:
        """Make one row of each group: `agg(n="count", total=("cents", "sum"))`."""
        operator = GroupOperator(
            self._keys,
            aggregates,
            partitions=self._partitions,
            rows_per_unit=self._rows_per_unit,
        )
        return self._pipeline._shuffle(self._name, operator)


def _name_of(target: Any, kind: str) -> str:
    name = getattr(target, "__name__", "") or type(target).__name__
    cleaned = _NOT_IN_NAMES.sub("", name)
    return cleaned if cleaned and "lambda" not in cleaned else kind.replace("_", "-")


def _is_plain(sink: Any) -> bool:
    return callable(sink) and hasattr(sink, "__name__")
