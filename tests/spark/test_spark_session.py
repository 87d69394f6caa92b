"""What a session of ours has, and what it sends to executors."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any
from unittest import mock
from zipimport import zipimporter

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

import headrace
from headrace.errors import PeerLostError
from headrace.spark import spark_session
from headrace.spark.source.dataframes import stream
from headrace.spark.spark_session import (
    SETTINGS,
    STREAM_ENVIRONMENT,
    _compiled,
    session,
    ship,
)
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
    sources = {name for name in names if name.endswith(".py")}
    assert {name.partition("/")[0] for name in sources} == {"headrace", "pyspark_headrace.py"}
    assert f"headrace/spark/{Path(spark_session.__file__).name}" in sources
    assert sorted(names) == sorted(sources | {f"{name}c" for name in sources})


@pytest.mark.parametrize(("is_other_python", "value"), [(False, 1), (True, 2)])
def test_a_shipped_module_is_used_compiled_unless_python_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other_python: bool, value: int
) -> None:
    module = tmp_path / "module.py"
    module.write_text("value = 1\n")
    if is_other_python:
        monkeypatch.setattr(spark_session, "MAGIC_NUMBER", b"\x01\x02\r\n")
    with zipfile.ZipFile(tmp_path / "shipped.zip", "w") as packed:
        packed.writestr("module.py", "value = 2\n")
        packed.writestr("module.pyc", _compiled(module))
    found: dict[str, int] = {}
    exec(zipimporter(str(tmp_path / "shipped.zip")).get_code("module"), found)
    assert found["value"] == value


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
