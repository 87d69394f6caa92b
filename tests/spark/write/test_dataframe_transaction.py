"""A DataFrame as one transaction: one of several attempts at a task counts, even at the same time.

A speculative attempt runs beside the one that is slow. Spark speculates on clusters only, so the
slow one is a task here that nobody waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import FencedError
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.spark.write import dataframe_transaction
from headrace.spark.write.dataframe_transaction import publish, take_part

WAIT_S = 60


class Slow:
    """An attempt that has appended a row, and goes on when the test lets it."""

    def __init__(self, reach: WorkspaceRef, invitation: str) -> None:
        self._going = threading.Event()
        self._appended = threading.Event()
        self._outcome: str | Exception = ""
        self._thread = threading.Thread(target=self._run, args=(reach, invitation))
        self._thread.start()
        assert self._appended.wait(WAIT_S)

    def _run(self, reach: WorkspaceRef, invitation: str) -> None:
        try:
            self._outcome = take_part(reach, invitation, "numbers", self._rows())
        except Exception as error:  # noqa: BLE001  what it is compared with
            self._outcome = error

    def _rows(self) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"number": [0]})
        self._appended.set()
        assert self._going.wait(WAIT_S)
        yield pa.record_batch({"number": [1]})

    def go_on(self) -> str | Exception:
        self._going.set()
        self._thread.join(WAIT_S)
        return self._outcome


# proves G14
@pytest.mark.parametrize("is_prepared", [False, True])
def test_an_attempt_that_lost_adds_nothing(
    spark: SparkSession, workspace: headrace.Workspace, is_prepared: bool
) -> None:
    """It may go on after the commit, or be ready before the commit."""
    workspace.collection("numbers", "number long", journals=2)
    reach = workspace.reach()
    with (
        headrace.open(reach.address, token=reach.token) as elsewhere,
        mock.patch.object(dataframe_transaction, "shared", return_value=elsewhere),
    ):
        publisher = workspace.publisher("task/numbers")
        transaction = publisher.begin()
        slow = Slow(reach, transaction.invite())
        prepared = slow.go_on() if is_prepared else None
        publish(spark.range(4).toDF("number"), workspace, "numbers", transaction)
        transaction.commit()
        outcome = slow.go_on()
        publisher.close()
    if is_prepared:
        assert isinstance(prepared, str)
        assert prepared
    else:
        assert isinstance(outcome, FencedError)
    assert sorted(workspace.table("numbers")["number"].to_pylist()) == [0, 1, 2, 3]
