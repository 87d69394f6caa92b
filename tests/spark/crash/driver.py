"""The driver of a query that moves what the bank has, in a process that is killed."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from pyspark import SparkContext
from pyspark.sql import SparkSession

import headrace
from headrace.spark.spark_members import SparkMembers
from headrace.spark.spark_session import session
from headrace.spark.tasks import task_run
from headrace.spark.tasks.progress import Progress
from headrace.spark.tasks.task_definition import materialization
from tests.spark.cluster import APPLICATION, CORES, WORKERS
from tests.spark.crash.death import DEATH, IDS, NOTES, DeadlySource, Death, deadly_driver
from tests.spark.crash.outputs import Kind, output

STOP, READS, FAILURES = "stop", "reads", "failures"


def configuration(life: Path) -> dict[str, str]:
    """Return that of a session whose files are below `life`."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(life),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(life / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={life / 'derby.log'}",
    }


class Driver:
    """`folder` is the crashing task's, `life` its own."""

    def __init__(
        self,
        folder: Path,
        life: Path,
        death: Death | None,
        *,
        kind: Kind = "collection",
        master: str = "",
        shards: int = 2,
    ) -> None:
        life.mkdir(parents=True, exist_ok=True)
        os.environ |= {DEATH: death.write() if death else "", IDS: str(life / "ids")}
        conf = configuration(life)
        if master:
            os.environ[NOTES] = str(life / READS)
            conf |= APPLICATION
        self._life = life
        self._kind = kind
        self._spark = session(shards, master=master, conf=conf, log=life / "spark.log")
        self._spark.dataSource.register(DeadlySource)
        gateway = SparkContext._gateway
        assert gateway
        (life / "ids").write_text(f"{os.getpid()} {gateway.proc.pid}")
        workspace = headrace.open(folder / "workspace", create=False)
        self._output = output(kind, workspace, folder)
        self.task = materialization(
            workspace,
            sources=["bank/debits", "bank/credits"],
            sink=self._output.sink,
            name="movements",
            shards=shards,
        )(self._output.function)

    def run(self, *, once: bool) -> None:
        """Until a file says that it is to stop. Where its members are is told in another."""

        def start(spark: SparkSession, count: int) -> SparkMembers:
            members = SparkMembers(spark, count)
            (self._life / "members").write_text(" ".join(members.addresses))
            return members

        self._output.watch(self._spark)
        with (
            deadly_driver(self.task, self._kind),
            mock.patch.object(task_run, "SparkMembers", start),
        ):
            self.task.run(self._spark, once=once, watch=self._watch)
        self._output.watch(self._spark)

    def packages(self) -> set[str]:
        """Where executors have Headrace from."""
        slots = self._spark.sparkContext.range(2 * WORKERS * CORES, numSlices=2 * WORKERS * CORES)
        return set(slots.map(lambda _: headrace_file()).collect())

    def _watch(self, progress: Progress) -> None:
        self._output.watch(self._spark)
        if progress.failure:
            with (self._life / FAILURES).open("a") as failures:
                failures.write(f"{progress.failure}\n")
        if (self._life / STOP).exists():
            self.task.stop()


def headrace_file() -> str:
    return headrace.__file__
