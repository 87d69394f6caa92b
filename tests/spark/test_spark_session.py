"""What a session of ours has, and what it sends to executors."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import headrace
from headrace.errors import PeerLostError
from headrace.spark import spark_session
from headrace.spark.source.dataframes import stream
from headrace.spark.spark_session import SETTINGS, STREAM_ENVIRONMENT, session, ship
from headrace.version import VERSION


def test_a_session_that_runs_is_the_session(spark: SparkSession) -> None:
    assert session(2) is spark


def test_a_session_has_what_is_documented_and_listens_on_loopback(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert {name: conf.get(name) for name in SETTINGS} == SETTINGS
    assert conf.get("spark.driver.host") == "127.0.0.1"
    said = (Path(headrace.__file__).parents[2] / "docs" / "spark.md").read_text()
    for name in SETTINGS:
        if not name.endswith("maxFailures"):
            assert name in said


def test_what_is_shipped_is_this_package_and_nothing_else(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(spark.sparkContext, "addPyFile", sent.append)
    ship(spark)
    [archive] = sent
    assert archive.endswith(f"headrace-{VERSION}.zip")
    with zipfile.ZipFile(archive) as packed:
        names = packed.namelist()
        root = Path(headrace.__file__).parent
        assert packed.read("headrace/errors.py") == (root / "errors.py").read_bytes()
    assert {name.partition("/")[0] for name in names} == {"headrace", "pyspark_headrace.py"}
    assert all(name.endswith(".py") for name in names)
    assert f"headrace/spark/{Path(spark_session.__file__).name}" in names


def test_a_session_that_cannot_be_made_is_told_in_one_line() -> None:
    builder: Any = SparkSession.builder
    with (
        mock.patch.object(type(builder), "getOrCreate", side_effect=Py4JError("no port")),
        pytest.raises(PeerLostError, match=r"Spark did not start: .*; check that `java -version`"),
    ):
        session(2)


def test_a_stream_puts_nothing_into_the_environment_that_was_not_there(
    spark: SparkSession, workspace: headrace.Workspace, tmp_path: Path
) -> None:
    """Spark would do so with no lock, and two streams that start at once could break it."""
    workspace.collection("a", "n long")
    manager: Any = spark._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource("headrace").dataSourceCls().envVars()
    for name in STREAM_ENVIRONMENT:
        shared.remove(name)  # as in a session that has had no stream
    rows = stream(spark, workspace, ["a"], "t")
    assert set(shared) == {"PYTHONPATH", *STREAM_ENVIRONMENT}
    writer = rows.writeStream.foreachBatch(lambda rows, batch: None)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    writer.start().awaitTermination()
    assert set(shared) == {"PYTHONPATH", *STREAM_ENVIRONMENT}
