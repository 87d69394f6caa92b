"""The driver of a query that moves what the bank has, in a process that is killed."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.spark import tasks
from headrace.spark.cut import Cut
from headrace.spark.members import SparkMembers
from headrace.spark.sessions import session
from headrace.spark.tasks import derivation
from tests.spark.crash.deadly import DEATH, IDS, DeadlySource, Death, deadly_driver


class Driver:
    def __init__(
        self, root: Path, folder: Path, death: Death | None, *, master: str = "", shards: int = 2
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ |= {DEATH: death.write() if death else "", IDS: str(folder / "ids")}
        conf = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
        }
        if master:
            conf |= {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        self._spark = session(shards, master=master, conf=conf, log=folder / "spark.log")
        self._spark.dataSource.register(DeadlySource)
        gateway = SparkContext._gateway
        assert gateway
        (folder / "ids").write_text(f"{os.getpid()} {gateway.proc.pid}")
        self.jvm: int = gateway.proc.pid
        workspace = headrace.open(root, create=False)

        @derivation(
            workspace, sources=["bank/debits", "bank/credits"], to="movements", shards=shards
        )
        def movements(cut: Cut) -> DataFrame:
            return cut.debits.unionByName(cut.credits)

        self.task = movements
        self._members = folder / "members"

    def run(self, *, once: bool) -> None:
        """Where its members are is told in a file."""

        def start(spark: SparkSession, count: int) -> SparkMembers:
            members = SparkMembers(spark, count)
            self._members.write_text(" ".join(members.addresses))
            return members

        with deadly_driver(self.task), mock.patch.object(tasks, "SparkMembers", start):
            self.task.run(self._spark, once=once)
