"""The logs that Spark keeps of a task's query: offsets, and commits.

Spark writes the end of a micro-batch to its offset log before it runs the micro-batch, and to its
commit log afterwards. Each generation of a task has a directory for them.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import DataError
from headrace.journal.workspace import Workspace
from headrace.shuffle import History
from headrace.shuffle.checkpoints.task_keys import logs_path
from headrace.spark.tasks.run_record import local_directory


def open_logs(workspace: Workspace, task: str) -> tuple[History, str]:
    """Return a task's checkpoints, and the location of Spark's logs of their generation.

    Removes the logs of earlier generations: no run can go on with them.
    """
    folder = logs_folder(workspace, task)
    # List them before the generation is looked up: then none of them can be of a later one.
    listed = list(folder.glob("*"))
    history = History(workspace.objects, task)
    for each in listed:
        if each.name != history.generation:
            shutil.rmtree(each, ignore_errors=True)
    # Spark takes what follows the scheme as it is, so nothing is quoted.
    return history, f"file://{folder / history.generation}"


def logs_folder(workspace: Workspace, task: str) -> Path:
    return local_directory(workspace) / logs_path(task)


def delete_logs(workspace: Workspace, task: str) -> None:
    """Delete Spark's logs of all generations of a task."""
    shutil.rmtree(logs_folder(workspace, task), ignore_errors=True)


def planned_offset(spark: SparkSession, checkpoint_location: str, batch: int) -> dict[str, Any]:
    """Return the end of a micro-batch of a query with one source."""
    path = f"{checkpoint_location}/offsets/{batch}"
    *_, last = _read(spark, path).splitlines()
    try:
        return dict(json.loads(last))
    except ValueError as error:
        raise DataError(
            f"{path} holds no offset that Headrace wrote: {error}",
            do="use another checkpoint directory",
        ) from error


def committed_checkpoint(checkpoint_location: str) -> int:
    """Return the checkpoint of the last batch in Spark's commit log; 0 if there is none.

    The location must be on this machine, as those of tasks are.
    """
    folder = Path(checkpoint_location.removeprefix("file://"))
    batches = [int(each.name) for each in folder.glob("commits/*") if each.name.isdecimal()]
    with suppress(OSError, ValueError, IndexError, KeyError, TypeError):
        lines = (folder / "offsets" / str(max(batches, default=-1))).read_text().splitlines()
        return int(json.loads(lines[-1])["checkpoint"])
    return 0


def _read(spark: SparkSession, path: str) -> str:
    """Return a file's text, from any file system that Spark can read."""
    jvm: Any = spark._jvm
    file = jvm.org.apache.hadoop.fs.Path(path)
    file_system = file.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    stream = file_system.open(file)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()
