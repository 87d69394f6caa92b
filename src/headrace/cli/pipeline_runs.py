"""Runs the pipelines of a file one after another, as `headrace run` does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace.cli.interruption import run_aside
from headrace.cli.render.pipeline_display import PipelineDisplay
from headrace.errors import HeadraceError
from headrace.pipeline.builder import Pipeline
from headrace.pipeline.run.job_run import RunSummary
from headrace.pipeline.run.record import OnChange
from headrace.python_file import blamed


class PipelineRuns:
    """The pipelines of one command."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        display: PipelineDisplay,
        *,
        on_change: OnChange,
        master: str,
        log: Path | None,
    ) -> None:
        self._pipelines = pipelines
        self._display = display
        self._on_change = on_change
        self._master = master
        self._log = log
        self._running: Pipeline | None = None
        self._is_stopping = False
        self._of_file = _file_session()
        self.summaries: list[RunSummary] = []

    def run(self, file: Path) -> None:
        """Return when all have ended. Raises what one failed with, and KeyboardInterrupt."""
        try:
            run_aside(self._run, self._stop)
        except HeadraceError:
            raise
        except Exception as error:
            if found := blamed(error, [file]):
                raise found from error
            raise

    def _run(self) -> None:
        with ExitStack() as stack:
            spark = self._of_file
            if spark is None and self._needs_spark:
                self._display.status("starting Spark")
                spark = self._start_spark(stack)
            for each in self._pipelines:
                if self._is_stopping:
                    return
                self._run_one(each, spark)

    def _run_one(self, pipeline: Pipeline, spark: Any) -> None:
        is_wanted = self._master or self._of_file or pipeline.needs_spark
        self._running = pipeline
        self._display.status(f"{pipeline.name}: preparing")
        try:
            summary = pipeline.run(
                spark if is_wanted else None, on_change=self._on_change, watch=self._watch
            )
        finally:
            self._running = None
            self._display.ended(pipeline.name)
        self.summaries.append(summary)

    def _watch(self, status: Any) -> None:
        if not self._is_stopping:
            self._display.status(f"{status.job}: running; Ctrl-C stops it, and a later run goes on")
        self._display.report(status)

    @property
    def _needs_spark(self) -> bool:
        return bool(self._master) or any(each.needs_spark for each in self._pipelines)

    def _start_spark(self, stack: ExitStack) -> Any:
        from headrace.spark.spark_session import temporary_session

        directory = self._pipelines[0].workspace.directory
        log = self._log or (directory / "spark.log" if directory else "")
        if log:
            self._display.note(f"Spark logs to {log}")
        workers = [
            sum(stage.config.workers for stage in each.job.operators) for each in self._pipelines
        ]
        return stack.enter_context(temporary_session(max(workers), master=self._master, log=log))

    def _stop(self) -> None:
        self._is_stopping = True
        self._display.status("stopping: calls under way end and are recorded")
        if running := self._running:
            running.stop()


def _file_session() -> Any:
    """Return the Spark session that the file has started; None if there is none."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or pyspark.SparkContext._active_spark_context is None:
        return None
    from headrace.spark.spark_session import session

    return session()
