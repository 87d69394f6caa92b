"""Which checkpoint a micro-batch is of: what Spark wrote to its offset log before it ran it."""

from __future__ import annotations

import json
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
