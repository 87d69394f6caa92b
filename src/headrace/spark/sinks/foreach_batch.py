"""A Python function as a sink: it is called for every batch."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import UsageError
from headrace.journal.workspace import Workspace
from headrace.spark.sinks.contract import CheckpointId

Function = Callable[[DataFrame, CheckpointId], object]


def foreach_batch(function: Function, *, exactly_once: bool = False) -> ForeachBatch:
    """Call `function(rows, checkpoint)` for every batch, **at least once**.

    If a call did not return, the function is called again with the same checkpoint, maybe by
    another process while the first still runs. A function that stores the checkpoint atomically
    with the rows, and does nothing if the checkpoint is stored already, applies each batch exactly
    once: say so with `exactly_once=True`. A Delta table does both by itself:

        def to_delta(rows, checkpoint):
            (
                rows.write.format("delta")
                .mode("append")
                .option("txnAppId", f"{checkpoint.task}/{checkpoint.generation}")
                .option("txnVersion", checkpoint.number)
                .save("s3a://lake/movements")
            )

        hr.foreach_batch(to_delta, exactly_once=True)
    """
    if not callable(function):
        raise UsageError(f"{function!r} is no function", do="give a function of (rows, checkpoint)")
    return ForeachBatch(function, exactly_once)


class ForeachBatch:
    def __init__(self, function: Function, exactly_once: bool) -> None:
        self._function = function
        self.is_exactly_once = exactly_once

    def __str__(self) -> str:
        name = getattr(self._function, "__qualname__", repr(self._function))
        return f"function {name}{'' if self.is_exactly_once else ', at least once'}"

    def open(self, spark: SparkSession, workspace: Workspace, task: CheckpointId) -> ForeachBatch:
        return self

    def last(self) -> None:
        """Return None: a function does not say what it holds."""

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        self._function(rows, checkpoint)

    def close(self) -> None:
        """Do nothing: nothing is open."""
