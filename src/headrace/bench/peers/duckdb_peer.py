"""DuckDB, if it is installed: a database of tables in this process, which SQL queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

_CREATE = """
    CREATE TABLE samples (
        timestamp BIGINT, value DOUBLE,
        __name__ VARCHAR, job VARCHAR, instance VARCHAR, path VARCHAR, code VARCHAR
    )
"""
_SERIES = "__name__, job, instance, path, code"
_RATE = f"""
    WITH increases AS (
        SELECT timestamp, code, value - first_value(value) OVER (
            PARTITION BY {_SERIES} ORDER BY timestamp
            RANGE BETWEEN $window - 1 PRECEDING AND CURRENT ROW
        ) AS increase
        FROM samples
        WHERE __name__ = 'http_requests_total'
            AND timestamp > $begin - $window AND timestamp <= $end
    )
    SELECT timestamp, code, sum(increase) / ($window / 1000)
    FROM increases WHERE timestamp >= $begin GROUP BY timestamp, code
"""


class DuckDbFigures(NamedTuple):
    samples_per_s: float
    range_ms: list[float]
    bytes_per_sample: float


def measure_duckdb(
    path: Path, batches: Sequence[pa.RecordBatch], end: int, queries: int
) -> DuckDbFigures | None:
    """Insert batches, each a transaction of its own, and query the last hour; None without DuckDB.

    The query sums increases within five minutes, as `sum by (code) (rate(…[5m]))` does, but neither
    extrapolates them nor notices that a counter began again, so it does less than PromQL asks for.
    """
    try:
        # Nothing that Headrace runs with needs it.
        import duckdb
    except ImportError:
        return None
    connection: Any = duckdb.connect(str(path))
    connection.execute(_CREATE)
    samples = sum(batch.num_rows for batch in batches)
    begin_s = time.perf_counter()
    for batch in batches:
        connection.register("batch", batch)
        connection.execute("INSERT INTO samples BY NAME SELECT * FROM batch")
    took_s = time.perf_counter() - begin_s
    connection.execute("CHECKPOINT")
    range_ms = []
    for _ in range(queries):
        begin_s = time.perf_counter()
        connection.execute(_RATE, {"begin": end - 3_600_000, "end": end, "window": 300_000})
        found = connection.fetchall()
        range_ms.append((time.perf_counter() - begin_s) * 1000)
        assert {code for _, code, _ in found} == {"200", "404", "500"}
    connection.close()
    return DuckDbFigures(samples / took_s, range_ms, path.stat().st_blocks * 512 / samples)
