"""DataFrames of time series and of vectors."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.errors import QueryError, UsageError
from headrace.spark.source.store_batch import read_timeseries, read_vectors
from headrace.stores.service.store_access import create_store, open_store

HOUR_MS = 3_600_000
SAMPLES = 1_000


@pytest.fixture
def metrics(tmp_path: Path) -> Path:
    create_store(tmp_path / "metrics", "timeseries")
    with open_store(tmp_path / "metrics") as store:
        store.flush(store.write(samples(range(SAMPLES))))
    return tmp_path / "metrics"


def samples(numbers: range) -> pa.RecordBatch:
    """Samples of two series, over some hours."""
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": [n * HOUR_MS // 100 for n in numbers],
            "value": [float(n) for n in numbers],
            "job": ["even" if n % 2 == 0 else "odd" for n in numbers],
        }
    )


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    create_store(tmp_path / "vectors", "vectors", dimension=2, metadata={"n": "long"})
    with open_store(tmp_path / "vectors") as store:
        rows = [{"id": f"v{n}", "vector": [n, 1.0], "n": n} for n in range(100)]
        store.flush(store.write(pa.RecordBatch.from_pylist(rows)))
    return tmp_path / "vectors"


def test_samples_are_rows(spark: SparkSession, metrics: Path) -> None:
    frame = read_timeseries(spark, metrics, partitions=3)
    assert frame.dtypes == [
        ("timestamp", "timestamp"),
        ("value", "double"),
        ("labels", "map<string,string>"),
    ]
    assert frame.rdd.getNumPartitions() == 3
    table = frame.orderBy("value").toArrow()
    assert table["value"].to_pylist() == [float(n) for n in range(SAMPLES)]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [
        n * HOUR_MS * 10 for n in range(SAMPLES)
    ]
    assert [dict(each)["job"] for each in table["labels"].to_pylist()[:2]] == ["even", "odd"]


def test_matchers_and_times_select_samples(spark: SparkSession, metrics: Path) -> None:
    start, end = HOUR_MS, datetime(1970, 1, 1, 2, tzinfo=UTC)
    chosen = read_timeseries(spark, metrics, [("job", "=", "odd")], start, end, partitions=1)
    assert sorted(row.value for row in chosen.collect()) == [*range(101, 200, 2)]
    assert read_timeseries(spark, metrics, [("job", "=", "none")], partitions=1).count() == 0


def test_every_action_shows_what_the_store_holds_then(spark: SparkSession, metrics: Path) -> None:
    frame = read_timeseries(spark, metrics, partitions=2)
    with open_store(metrics) as store:  # Spark's tasks ask this process.
        assert frame.count() == SAMPLES
        store.flush(store.write(samples(range(SAMPLES, SAMPLES + 10))))
        assert frame.count() == SAMPLES + 10


def test_vectors_are_rows(spark: SparkSession, vectors: Path) -> None:
    frame = read_vectors(spark, vectors, partitions=2)
    assert frame.dtypes == [("id", "string"), ("vector", "array<float>"), ("n", "bigint")]
    rows = sorted(frame.collect(), key=lambda row: row.n)
    assert [(row.id, row.vector, row.n) for row in rows] == [
        (f"v{n}", [float(n), 1.0], n) for n in range(100)
    ]


def test_a_filter_and_columns_select_vectors(spark: SparkSession, vectors: Path) -> None:
    frame = read_vectors(spark, vectors, {"field": "n", "ge": 90}, columns=["id"], partitions=1)
    assert frame.columns == ["id"]
    assert sorted(row.id for row in frame.collect()) == [f"v{n}" for n in range(90, 100)]
    none = read_vectors(spark, vectors, {"field": "n", "ge": 900}, columns=["n"], partitions=1)
    assert none.columns == ["n"]
    assert none.collect() == []


@pytest.mark.parametrize(
    ("read", "given", "error", "message"),
    [
        (read_timeseries, {"partitions": 0}, UsageError, "at least 1"),
        (read_timeseries, {"matchers": [("job", "~", "x")]}, QueryError, "~"),
        (read_timeseries, {"matchers": [("job", "=~", "(")]}, QueryError, "job"),
        (read_vectors, {}, UsageError, "is a store of timeseries, not of vectors"),
    ],
)
def test_a_wrong_selection_is_told_before_spark_begins(
    spark: SparkSession,
    metrics: Path,
    read: Any,
    given: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        read(spark, metrics, **given)


@pytest.mark.parametrize("given", [{"filter": {"field": "m", "eq": 1}}, {"columns": ["m"]}])
def test_an_unknown_column_is_told_before_spark_begins(
    spark: SparkSession, vectors: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(QueryError, match="'m'"):
        read_vectors(spark, vectors, **given)
