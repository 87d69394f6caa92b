"""The JVM of Spark is killed, also while it starts: one line says so, and another can start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, signal, sys, threading, traceback
from pathlib import Path
from unittest import mock
from pyspark import SparkContext
import headrace as hr
from headrace.spark.spark_members import SparkMembers
from headrace.spark.spark_session import end

folder = Path(sys.argv[1])
workspace = hr.open(folder / "workspace")
workspace.collection("a", "n long", key="n")
workspace.append("a", [{"n": 1}])

def kill_jvm():
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    SparkContext._gateway.proc.wait()

run_has_ended = threading.Event()
callbacks = []

@hr.materialization(workspace, sources=["a"], sink=hr.parquet(folder / "files"))
def task(cut):
    callbacks.append(threading.current_thread())
    kill_jvm()
    # Its thread goes on to write rows, without a JVM, after the run was told that it is gone.
    run_has_ended.wait(60)
    return cut.a

def make():
    conf = {"spark.ui.enabled": "false", "spark.local.dir": str(folder)}
    return hr.spark.session(conf=conf, log=folder / "spark.log")

def killed_while_it_starts():
    real = SparkContext._initialize_context
    def start(context, conf):
        kill_jvm()
        return real(context, conf)
    with mock.patch.object(SparkContext, "_initialize_context", start):
        make()

def killed_before_the_task():
    spark = make()
    kill_jvm()
    try:
        task.run(spark)
    finally:
        end(spark)

def killed_by_the_task():
    spark = make()
    # From now on the JVM is connected to the server of its accumulators, in this process.
    spark.sparkContext.parallelize([1]).map(str).count()
    try:
        task.run(spark)
    finally:
        run_has_ended.set()
        for thread in callbacks:
            thread.join()
        end(spark)

def killed_under_members():
    spark = make()
    try:
        # No task runs that would keep Py4J from printing.
        with SparkMembers(spark, 1) as members:
            kill_jvm()
            assert members.wait_for_end(60)
            raise members.failure()
    finally:
        end(spark)

steps = killed_while_it_starts, killed_before_the_task, killed_by_the_task, killed_under_members
for step in steps:
    try:
        step()
    except hr.HeadraceError:
        print(traceback.format_exc())
        print("LINE", traceback.format_exc().splitlines()[-1])
"""


def test_a_jvm_that_is_killed_is_told_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("LINE")]
    gone = "LINE headrace.errors.PeerLostError: the JVM of Spark is gone; run the program again"
    start = "LINE headrace.errors.PeerLostError: Spark did not start: its JVM was killed (signal 9)"
    assert [line.startswith(start) for line in lines] == [True, False, False, False], done.stdout
    assert lines[1:3] == [gone, gone]
    assert "PeerLostError: members ended: the JVM of Spark is gone" in lines[3]
    assert lines[0].startswith(f"{start}; run the program again")
    assert "py4j" not in (done.stdout + done.stderr).lower()
    assert "Traceback" not in done.stderr
