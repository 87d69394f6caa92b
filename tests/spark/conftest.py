"""One Spark session for all tests that can share it, and a workspace for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.spark.spark_session import end, session


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with slots for two members and the work."""
    local = tmp_path_factory.mktemp("spark")
    conf = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(local),
        "spark.sql.warehouse.dir": str(local / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    made = session(2, conf=conf)
    yield made
    end(made)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[headrace.Workspace]:
    with headrace.open(tmp_path / "workspace") as opened:
        yield opened
