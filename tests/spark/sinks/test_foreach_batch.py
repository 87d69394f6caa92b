"""A Python function as a sink."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.spark.sinks.contract import CheckpointId, Sink
from headrace.spark.sinks.foreach_batch import foreach_batch
from tests.spark.sinks.conftest import Numbers, checkpoint


def test_a_function_is_given_every_batch_and_its_checkpoint(
    spark: SparkSession, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    """The same one again, if the batch is run again."""
    seen: list[tuple[DataFrame, CheckpointId]] = []

    def keep(rows: DataFrame, at: CheckpointId) -> None:
        seen.append((rows, at))

    sink: Sink = foreach_batch(keep)
    assert not sink.is_exactly_once
    assert str(sink).endswith("keep, at least once")
    target = sink.open(spark, workspace, checkpoint(1))
    assert target.last() is None
    rows = numbers(0, 1)
    for number in (1, 2, 2):
        target.write(rows, checkpoint(number))
    target.close()
    assert seen == [(rows, checkpoint(number)) for number in (1, 2, 2)]


def test_a_function_that_stores_the_checkpoint_may_say_so() -> None:
    sink = foreach_batch(print, exactly_once=True)
    assert sink.is_exactly_once
    assert str(sink) == "function print"


def test_what_a_function_raises_is_raised(
    spark: SparkSession, workspace: headrace.Workspace, numbers: Numbers
) -> None:
    def fail(rows: DataFrame, at: CheckpointId) -> None:
        raise ValueError(at.number)

    with pytest.raises(ValueError, match="7"):
        foreach_batch(fail).open(spark, workspace, checkpoint(7)).write(
            numbers(0, 1), checkpoint(7)
        )
