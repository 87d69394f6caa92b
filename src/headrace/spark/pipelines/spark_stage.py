"""Stages whose function takes DataFrames and returns one: any query over all rows of the input.

The rows of the result are stored as payloads, under the number of the attempt, and then
sealed (`pipeline.run.sealed_results`). If a run dies before that, the next one computes the result
again; after that no run does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import HeadraceError, UnitError, UsageError
from headrace.journal.workspace import Workspace
from headrace.pipeline.contract import OnError, OperatorContext
from headrace.pipeline.messages import QueueMessage
from headrace.pipeline.run.job_run import JobRun
from headrace.pipeline.run.whole_stage import WholeInput
from headrace.pipeline.run.whole_stage_loop import attempt_of, compute_when_due, named
from headrace.pipeline.source.source_units import TableUnit, digest
from headrace.pipeline.source.sources import check_rows_per_unit
from headrace.plan.source_hash import source_hash
from headrace.spark.gateway_log import without_tracebacks
from headrace.spark.pipelines.dataframe_source import store_rows
from headrace.spark.pipelines.stage_rows import no_rows, read_rows
from headrace.spark.query_failure import GONE, explain_in


class SparkStage:
    """The operator of such a stage. It stays in the driver."""

    expensive = False
    on_error: OnError = "fail"
    needs_spark = True
    takes_all = True

    def __init__(
        self, function: Callable[..., Any], rows_per_unit: int, *, version: str = ""
    ) -> None:
        """`function` gets a DataFrame for each upstream stage, in their order."""
        if not callable(function):
            raise UsageError(
                f"{function!r} is no function", do="give a function from DataFrame to DataFrame"
            )
        self._function = function
        self.rows_per_unit = check_rows_per_unit(rows_per_unit)
        self._version = version

    def fingerprint(self) -> str:
        return digest("spark", self._version or source_hash(self._function))

    async def open(self, context: OperatorContext) -> NoReturn:
        raise UsageError(f"stage {context.stage!r} has no workers", do="run it with Spark")

    def apply(self, stage: str, rows: Sequence[DataFrame]) -> DataFrame:
        """Call the function. Raises an error of Headrace that names the stage."""
        try:
            result = self._function(*rows)
        except (Py4JError, PySparkException, HeadraceError):
            raise
        except Exception as error:
            raise UnitError(
                f"stage {stage!r}: {type(error).__name__}: {error}",
                do="mend its function, and run the job again",
            ) from error
        if not isinstance(result, DataFrame) or result.isStreaming:
            kind = "a stream" if isinstance(result, DataFrame) else f"a {type(result).__name__}"
            raise UsageError(
                f"the function of stage {stage!r} returned {kind}, not a DataFrame",
                do="return a DataFrame that spark.read or the function's input leads to",
            )
        return result


def run_spark_stage(
    spark: SparkSession, workspace: Workspace, run: JobRun, stage: str, group: str
) -> None:
    """Compute the stage when it is due, unless its result is sealed. The run fails if that fails.

    Call it in a thread of its own: it sets the thread's job group.
    """
    context = spark.sparkContext
    context.setJobGroup(group, f"stage {stage} of job {run.job.id}", interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", f"headrace-{stage}")
    try:
        with without_tracebacks():
            compute_when_due(run, stage, partial(_compute, spark, workspace, run, stage))
    except Exception as error:  # noqa: BLE001  the run fails with it
        cause = explain_in(spark, error)
        if isinstance(cause, HeadraceError) and cause is not GONE:
            cause = named(stage, cause)
        run.worker_failed(stage, cause)


def _compute(
    spark: SparkSession, workspace: Workspace, run: JobRun, stage: str, taken: WholeInput
) -> list[TableUnit] | None:
    operator = run.job.stages[stage].operator
    assert isinstance(operator, SparkStage)
    frames = [
        _read(spark, workspace, run, upstream, messages)
        for upstream, messages in taken.messages.items()
    ]
    rows = [frame for frame in frames if frame is not None]
    if len(rows) < len(frames):
        return None
    result = operator.apply(stage, rows)
    return store_rows(result, run.payloads, attempt_of(run, stage), operator.rows_per_unit)


def _read(
    spark: SparkSession,
    workspace: Workspace,
    run: JobRun,
    upstream: str,
    messages: Sequence[QueueMessage],
) -> DataFrame | None:
    """Return what an upstream stage has produced; None if there are neither rows nor columns."""
    found = [message for message in messages if message.may_have_rows]
    if found:
        return read_rows(spark, workspace, run.payloads, found)
    declared = getattr(run.job.stages[upstream].operator, "schema", None)
    return no_rows(spark, declared) if isinstance(declared, pa.Schema) else None
