"""Fewer slots than workers, and resources that are not there: a line says so, and the run ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.pipeline.contract import StagePlan
from headrace.spark.pipelines.slot_shares import WorkerNeeds
from headrace.spark.pipelines.task_resources import TaskResources, task_requests
from tests.cli.headrace_process import SPARK_S


@pytest.mark.spark
def test_one_slot_is_enough_for_any_number_of_stages(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.pipelines.few_slots", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=SPARK_S,
        check=True,
    )
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["outcome"] == "done"
    assert said["rows"] == [[kind, 1 + sum(range(2 * kind, 200, 4))] for kind in (0, 1)]
    assert said["lines"] == [
        "job few: local[1,4] has no resources to give: stage double runs in plain slots, without"
        " gpu 1",
        "job few: 2 workers need 2 slots, and Spark has 1 slot free: stages run with fewer workers"
        " (double 1 of 2)",
        "job few: 4 workers need 4 slots, and Spark has 1 slot free: the 3 stages run one after"
        " another",
    ]


def test_a_task_asks_for_a_cpu_and_for_what_its_stage_names(spark: SparkSession) -> None:
    assert asked({"gpu": 0.5}) == {"cpus": 1, "gpu": 0.5}
    assert asked({"gpu": 2, "cpus": 4}) == {"cpus": 4, "gpu": 2}
    assert asked({"cpu": 1.5}) == {"cpus": 2}
    # One machine gives nothing but slots.
    resources = TaskResources(spark, "job")
    plan = StagePlan("detect", 3, {"gpu": 1, "cpus": 2})
    assert resources.needs(plan) == WorkerNeeds(3)
    assert resources.profile(plan) is None
    assert resources.capacity([plan]) == {}


def asked(resources: dict[str, float]) -> dict[str, float]:
    requests = task_requests(resources).requests
    return {name: request.amount for name, request in requests.items()}
