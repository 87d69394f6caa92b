"""Input partitions: what a driver tells an executor to read."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from headrace.spark.versions import check_version
from headrace.version import VERSION


class Part(InputPartition):
    """As bytes: an executor of another version must be told so before it decodes anything."""

    def __init__(self, *encoded: bytes) -> None:
        self._encoded = encoded
        self._version = VERSION

    def __repr__(self) -> str:
        return f"Part({sum(map(len, self._encoded))} bytes)"

    def open(self) -> tuple[bytes, ...]:
        """In an executor: what it is told."""
        check_version(self._version)
        return self._encoded
