"""What Spark adds to the builder of pipelines: DataFrames, the sinks of tasks, and a runner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.journal.collection import Collection
from headrace.journal.workspace import Workspace
from headrace.pipeline.contract import (
    OnError,
    OperatorContext,
    Processed,
    RunControl,
    StagePlan,
    UnitRows,
)
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.shuffle_stage import run_shuffle_stage
from headrace.pipeline.source.source_units import digest
from headrace.settings import ServiceSettings
from headrace.spark.pipelines.dataframe_source import DataFrameSource
from headrace.spark.pipelines.sink_feed import SinkFeed
from headrace.spark.pipelines.spark_runner import SparkRunner
from headrace.spark.pipelines.spark_stage import SparkStage, run_spark_stage
from headrace.spark.plan_runner import PlanRunner
from headrace.spark.query_failure import one_line_if_gone
from headrace.spark.sinks.collection_sink import CollectionSink
from headrace.spark.sinks.contract import Sink
from headrace.spark.spark_session import session


class SparkEngine:
    """Implements `engine.Engine`."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def source(self, data: Any, rows_per_unit: int, version: str) -> DataFrameSource | None:
        if not isinstance(data, DataFrame):
            return None
        return DataFrameSource(data, rows_per_unit, version=version)

    def sink(self, sink: Any) -> SinkOperator | None:
        if isinstance(sink, Collection):
            sink = CollectionSink(sink.name)
        is_sink = hasattr(sink, "open") and hasattr(sink, "is_exactly_once")
        return SinkOperator(sink) if is_sink else None

    def stage(self, function: Callable[..., Any], rows_per_unit: int, version: str) -> SparkStage:
        return SparkStage(function, rows_per_unit, version=version)

    def runner(self, spark: SparkSession | None) -> PipelineRunner:
        return PipelineRunner(spark or session(), self._workspace)


class SinkOperator:
    """Keeps rows in the durable topic that the sink is fed from.

    The sink itself stays in the driver: workers only pass rows on.
    """

    expensive = False
    on_error: OnError = "fail"
    is_sink = True
    needs_spark = True

    def __init__(self, sink: Sink | None, name: str = "") -> None:
        self.sink = sink
        self._name = name or str(sink)

    def __reduce__(self) -> tuple[Any, ...]:
        return SinkOperator, (None, self._name)

    def fingerprint(self) -> str:
        """Identify the sink: another one gets all rows again."""
        return digest("sink", self._name)

    async def open(self, context: OperatorContext) -> SinkOperator:
        return self

    async def process(self, rows: UnitRows) -> Processed:
        if rows.probe:
            await rows.probe(range(rows.table.num_rows))
        return Processed(rows.table)

    async def close(self) -> None:
        """Do nothing: nothing is open."""


class PipelineRunner:
    """Runs workers as Spark tasks, and feeds the sinks with what they produce."""

    def __init__(self, spark: SparkSession, workspace: Workspace) -> None:
        self._spark = spark
        self._workspace = workspace

    @property
    def service(self) -> ServiceSettings:
        """Where workers reach the driver."""
        context = self._spark.sparkContext
        if str(context.master).startswith("local"):
            return ServiceSettings()
        return ServiceSettings(host=context.getConf().get("spark.driver.host") or "127.0.0.1")

    def run(self, control: RunControl) -> None:
        """Return when all stages are over, and the sinks hold what they produced."""
        assert isinstance(control, JobRun)
        sinks = {
            stage.stage_id: getattr(stage.spec, "sink", None) for stage in control.job.operators
        }
        feeds = [
            SinkFeed(self._spark, self._workspace, control, stage, sink)
            for stage, sink in sinks.items()
            if sink is not None
        ]
        for feed in feeds:
            feed.start()
        is_over = False
        try:
            with one_line_if_gone(self._spark):
                self._run_phases(control)
            is_over = control.master.error is None
        finally:
            for feed in feeds:
                feed.finish(write_rest=is_over)

    def _run_phases(self, control: JobRun) -> None:
        """Run the stages, but those that take all rows at once when their input is complete."""
        runner = SparkRunner(self._spark, control.job.id)
        for _, plans in groupby(sorted(control.stages, key=_phase), key=_phase):
            phase = list(plans)
            for plan in phase:
                if plan.is_shuffle:
                    is_over = partial(control.is_over, plan.stage)
                    run_shuffle_stage(control, plan.stage, PlanRunner(self._spark, is_over))
                elif plan.takes_all:
                    work = partial(
                        run_spark_stage, self._spark, self._workspace, control, plan.stage
                    )
                    runner.run_alone(plan.stage, work)
            runner.run(control, [plan for plan in phase if not plan.takes_all])


def _phase(plan: StagePlan) -> int:
    return plan.phase
