"""Any writer of Spark as a sink, at least once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import UsageError
from headrace.journal.workspace import Workspace
from headrace.spark.sinks.contract import CheckpointId

Mode = Literal["append", "overwrite"]


def writer(
    format: str, path: str | None = None, mode: Mode = "append", **options: str
) -> SparkWriter:
    """Call `rows.write.format(…).mode(…).options(…).save(path)` for every batch, **at least once**.

    A batch that was interrupted is written again, whole, beside what the first attempt wrote. With
    `overwrite`, only the newest batch is there.
    """
    if not isinstance(format, str) or not format:
        raise UsageError(f"{format!r} is no format", do="name a format that Spark has, like 'json'")
    if mode not in get_args(Mode):
        raise UsageError(
            f"mode {mode!r} cannot write batch after batch", do="use 'append' or 'overwrite'"
        )
    return SparkWriter(format, path, mode, options)


class SparkWriter:
    is_exactly_once = False

    def __init__(
        self, format: str, path: str | None, mode: Mode, options: Mapping[str, str]
    ) -> None:
        self._format = format
        self._path = path
        self._mode = mode
        self._options = options

    def __str__(self) -> str:
        return f"format {self._format}{f' in {self._path}' if self._path else ''}, at least once"

    def open(self, spark: SparkSession, workspace: Workspace, task: CheckpointId) -> SparkWriter:
        return self

    def last(self) -> None:
        """Return None: a writer does not say what it holds."""

    def write(self, rows: DataFrame, checkpoint: CheckpointId) -> None:
        frame = rows.write.format(self._format).mode(self._mode).options(**self._options)
        try:
            frame.save(self._path)
        except AnalysisException as error:
            reason = (error.getMessage() or "").partition("\n")[0]
            raise UsageError(
                f"{checkpoint} cannot be written as {self}: {reason}",
                do="correct the format, the options or the rows",
            ) from error
        except Py4JJavaError as error:
            if not error.java_exception.getClass().getName().endswith("ClassNotFoundException"):
                raise
            raise UsageError(
                f"{checkpoint} cannot be written: Spark has no format {self._format!r}",
                do="correct its name, or add its jar to spark.jars",
            ) from error

    def close(self) -> None:
        """Do nothing: nothing is open."""
