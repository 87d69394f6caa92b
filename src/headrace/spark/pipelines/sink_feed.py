"""Feeds a sink of tasks with what a durable stage has produced, in numbered batches.

The sink's number of a batch is that of its messages: see `sink_batches`. A sink that is exactly
once stores the number with the rows. For any other, the number is stored after the write, and a
batch that was interrupted is written again.
"""

from __future__ import annotations

import logging
import threading
import time

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from headrace.errors import DataError
from headrace.journal.location.workspace_connection import OWNERS_LOST_MAX
from headrace.journal.workspace import Workspace
from headrace.pipeline.run.job_run import JobRun, job_prefix
from headrace.spark.gateway_log import without_tracebacks
from headrace.spark.pipelines.sink_batches import SinkBatch, SinkBatches
from headrace.spark.pipelines.stage_rows import Produced, fetch_produced, read_rows
from headrace.spark.query_failure import explain_in
from headrace.spark.sinks.contract import ReopenableTarget, Sink, Target
from headrace.spark.sinks.sink_generation import first_batch
from headrace.spark.slots import free_slots

ROWS_MAX = 1_000_000
"""A batch ends with the unit that reaches so many rows."""
ROWS_DUE = 100_000
_DUE_S = 30.0
_LOOK_S = 1.0

_log = logging.getLogger("headrace")


class SinkFeed:
    """Writes batches while the run goes on if slots are free, and the rest when it is over."""

    def __init__(
        self, spark: SparkSession, workspace: Workspace, run: JobRun, stage: str, sink: Sink
    ) -> None:
        self._spark = spark
        self._workspace = workspace
        self._run = run
        self._stage = stage
        self._sink = sink
        self._topic = run.topics[stage]
        record = run.record
        revision = record.stages[stage].revision
        prefix = f"{job_prefix(record)}/sinks/{stage}.r{revision}"
        self._batches = SinkBatches(workspace.objects, prefix)
        self._first = first_batch(record, stage)
        self._position: list[int] | None = None
        self._last = 0
        self._last_s = time.monotonic()
        self._is_complete = threading.Event()
        self._is_cancelled = False
        self._thread = InheritableThread(
            target=self._feed, name=f"headrace-sink-{stage}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def finish(self, *, write_rest: bool) -> None:
        """Wait until everything that the stage has produced is written, or stop writing."""
        self._is_cancelled = not write_rest
        self._is_complete.set()
        self._thread.join()

    def _feed(self) -> None:
        context = self._spark.sparkContext
        context.setJobGroup(
            f"headrace-{self._run.job.id}-{self._stage}", f"sink of stage {self._stage}"
        )
        context.setLocalProperty("spark.scheduler.pool", "headrace-sinks")
        try:
            with without_tracebacks():
                target = self._sink.open(self._spark, self._workspace, self._first)
                try:
                    self._write_all(target)
                finally:
                    target.close()
        except Exception as error:  # noqa: BLE001  the run fails with it
            self._run.worker_failed(self._stage, explain_in(self._spark, error))

    def _write_all(self, target: Target) -> None:
        self._resume(target)
        while not self._is_complete.wait(_LOOK_S):
            if free_slots(self._spark):
                self._write_next(target, is_rest=False)
        while not self._is_cancelled and self._write_next(target, is_rest=True):
            pass

    def _resume(self, target: Target) -> None:
        """Write the batches that are stored and that the sink does not hold."""
        stored, held = self._batches.last(), target.last()
        last = self._batches.last_written() if held is None else held
        if last > stored:
            raise DataError(
                f"{self._sink} holds batch {last} of stage {self._stage!r}, and only {stored}"
                " batches are stored",
                do="restore the workspace's objects from a backup",
            )
        for number in range(last + 1, stored + 1):
            batch = self._batches.load(number)
            found = fetch_produced(self._workspace, self._topic, batch.begins, batch.ends)
            self._write(target, number, found)
        self._last = stored
        self._position = self._batches.load(stored).ends if stored else None

    def _write_next(self, target: Target, *, is_rest: bool) -> bool:
        """Write another batch if it is due. Return False if there was nothing to write."""
        found = fetch_produced(self._workspace, self._topic, self._position, rows_max=ROWS_MAX)
        if not found.messages:
            return False
        is_late = time.monotonic() - self._last_s > _DUE_S
        if not (is_rest or is_late or found.rows >= ROWS_DUE):
            return False
        begins = self._position or [0] * self._topic.partitions
        batch = self._batches.store(SinkBatch(self._last + 1, begins, found.ends))
        if batch.ends != found.ends:
            found = fetch_produced(self._workspace, self._topic, batch.begins, batch.ends)
        self._write(target, batch.number, found)
        self._last, self._position = batch.number, batch.ends
        self._last_s = time.monotonic()
        return True

    def _write(self, target: Target, number: int, found: Produced) -> None:
        rows = read_rows(self._spark, self._workspace, self._run.payloads, found.messages)
        checkpoint = self._first._replace(number=number)
        for lost in range(OWNERS_LOST_MAX + 1):
            try:
                target.write(rows, checkpoint)
                break
            except Exception:
                is_reopenable = isinstance(target, ReopenableTarget) and target.is_lost()
                if not is_reopenable or lost == OWNERS_LOST_MAX:
                    raise
                assert isinstance(target, ReopenableTarget)
                _log.warning("sink of %s: writing batch %d again", self._stage, number)
                target.reopen()
        if target.last() is None:
            self._batches.mark_written(number)
