"""The one Spark session that the acts of `headrace demo` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from headrace.cli.interruption import run_aside

MEMBERS = 2
"""An act may run tasks with so many members in all."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # The demo ends before better machine code would pay off.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


class DemoSpark:
    """Starts Spark when an act first asks for it; none of its processes outlives the block."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._session: Any = None

    def session(self) -> Any:
        """Return the session, a SparkSession."""
        from headrace.spark.spark_session import session

        if self._session is None:
            settings = _SETTINGS | {
                "spark.local.dir": str(self._scratch),
                "spark.sql.warehouse.dir": str(self._scratch / "warehouse"),
            }
            self._session = session(MEMBERS, conf=settings, log=self._scratch / "spark.log")
        return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._session:
            # Ctrl-C inside of a call to Spark would break the connection.
            run_aside(self._end, lambda: None)

    def _end(self) -> None:
        from headrace.spark.spark_session import end

        end(self._session)
