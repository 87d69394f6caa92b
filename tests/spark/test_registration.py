"""Any session works, and whoever cannot be served is told so in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headrace
from headrace.errors import UsageError
from headrace.spark import read, register, stream
from headrace.spark.registration import _choose_python
from tests.cli.headrace_process import SPARK_S

OTHER_PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")
"""It has neither Headrace nor what that is built on."""

PROGRAM = """
import json, sys
import headrace as hr
from pyspark.sql import SparkSession

ws = hr.open("workspace")
numbers = ws.collection("numbers", "n long")
ws.append(numbers, [{"n": 1}, {"n": 2}])
settings = {"spark.master": "local[5]", "spark.ui.enabled": "false", "spark.local.dir": "spark"}
spark = SparkSession.builder.config(map=settings).getOrCreate()
found = {"python": spark.sparkContext.pythonExec}
found["read"] = hr.spark.read(spark, ws, [numbers]).count()
plain = spark.read.format("headrace").options(workspace="workspace", collections="numbers")
found["plain"] = plain.load().count()

@hr.materialization(ws, sources=[numbers], sink=hr.parquet("kept"), shards=1)
def kept(cut):
    return cut.numbers

kept.run(spark, once=True)
found["task"] = hr.parquet("kept").read(spark).count()
session = spark.newSession()
hr.spark.register(session)
hr.spark.register(session)
plain = session.read.format("headrace").options(workspace="workspace", collections="numbers")
found["another session"] = plain.load().count()
print(json.dumps(found))
"""


@pytest.mark.spark
def test_a_session_whose_workers_would_run_another_python_works(tmp_path: Path) -> None:
    """This is so where the environment of this Python is not activated."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(OTHER_PYTHON)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [sys.executable, "program.py"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SPARK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "python": "python3",
        "read": 2,
        "plain": 2,
        "task": 2,
        "another session": 2,
    }


@pytest.mark.long
def test_a_python_that_somebody_chose_for_the_workers_must_have_headrace() -> None:
    context: Any = SimpleNamespace(pythonExec=OTHER_PYTHON)
    told = f"Spark's workers run {OTHER_PYTHON}, which cannot import headrace; set PYSPARK_PYTHON="
    with pytest.raises(UsageError, match=f"^{told}{sys.executable} before you make the session$"):
        _choose_python(context)
    context = SimpleNamespace(pythonExec=str(Path(sys.executable).with_name("python")))
    _choose_python(context)
    assert context.pythonExec == str(Path(sys.executable).with_name("python"))
    with pytest.raises(UsageError, match="run /nowhere/python3, which cannot import headrace"):
        _choose_python(SimpleNamespace(pythonExec="/nowhere/python3"))  # type: ignore[arg-type]


def test_a_session_of_spark_connect_is_refused() -> None:
    with pytest.raises(UsageError, match="a session of Spark Connect cannot run"):
        register(SimpleNamespace())  # type: ignore[arg-type]


def test_what_is_wrong_is_raised_as_an_error_of_ours(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    told = r"there is no collection 'a'; create it, or correct the name$"
    with pytest.raises(UsageError, match=told) as caught:
        read(spark, workspace, ["a"])
    assert caught.value.__suppress_context__
    with pytest.raises(UsageError, match=told):
        stream(spark, workspace, ["a"], "t")
    workspace.collection("a", "n long")
    with pytest.raises(UsageError, match="option 'partitions' is '0'; write a whole number from"):
        read(spark, workspace, ["a"], partitions=0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"collections": "b"}, "there is no collection 'b'; create it, or correct the name"),
        ({"colections": "a"}, "format 'headrace' has no option 'colections'; use collections"),
        ({"collections": "a", "shards": "2"}, "option 'shards' is for a stream, and this is a"),
    ],
)
def test_spark_tells_it_without_a_traceback(
    spark: SparkSession, workspace: headrace.Workspace, options: dict[str, str], told: str
) -> None:
    workspace.collection("a", "n long")
    reader = spark.read.format("headrace").option("workspace", str(workspace.directory))
    with pytest.raises(PySparkException) as caught:
        reader.options(**options).load().collect()
    assert told in str(caught.value).splitlines()[0]
    assert "Traceback" not in str(caught.value)


def test_a_write_is_refused_without_a_traceback(
    spark: SparkSession, workspace: headrace.Workspace
) -> None:
    writer = spark.range(1).write.format("headrace").mode("append")
    with pytest.raises(PySparkException) as caught:
        writer.options(workspace=str(workspace.directory), collection="b").save()
    first = str(caught.value).splitlines()[0]
    assert "NotFoundError: " in first
    assert "has no collection 'b'" in first
    assert "Traceback" not in str(caught.value)
