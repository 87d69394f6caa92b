"""Which checkpoint a micro-batch is of: what Spark wrote to its offset log before it ran it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import DataError


def planned_offset(spark: SparkSession, checkpoint_location: str, batch: int) -> dict[str, Any]:
    """The end of the batch, for a query with one source."""
    path = f"{checkpoint_location}/offsets/{batch}"
    *_, last = _read(spark, path).splitlines()
    try:
        return dict(json.loads(last))
    except ValueError as error:
        raise DataError(
            f"{path} has no offset of ours: {error}", do="use another checkpoint directory"
        ) from error


def committed_checkpoint(checkpoint_location: str) -> int:
    """The checkpoint of the last batch that Spark says is done: 0 if it says nothing of any.

    Of a location on this machine, as those of tasks are.
    """
    folder = Path(checkpoint_location.removeprefix("file://"))
    done = [int(each.name) for each in folder.glob("commits/*") if each.name.isdecimal()]
    with suppress(OSError, ValueError, IndexError, KeyError, TypeError):
        lines = (folder / "offsets" / str(max(done, default=-1))).read_text().splitlines()
        return int(json.loads(lines[-1])["checkpoint"])
    return 0


def _read(spark: SparkSession, path: str) -> str:
    """On any file system that Spark knows."""
    jvm: Any = spark._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    files = place.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    stream = files.open(place)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()
