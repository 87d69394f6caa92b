"""Stages that need GPUs, on a cluster whose only node has two that are made up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster import Cluster, machine
from tests.spark.pipelines.gpu_job import GPUS


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", workers=1, cores=GPUS, gpus=GPUS) as started:
        yield started


def test_two_stages_share_two_gpus_and_each_task_has_its_own(
    tmp_path: Path, cluster: Cluster
) -> None:
    """They ask for four. A worker that got a GPU that another one holds would fail the run."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spark.pipelines.gpu_job", str(tmp_path), cluster.master],
        stdout=subprocess.PIPE,
        text=True,
        timeout=500,
        check=True,
    )
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["outcome"] == "done"
    rows = said["rows"]
    assert sorted(row["id"] for row in rows) == list(range(100))
    used = {row["detected_on"] for row in rows} | {row["described_on"] for row in rows}
    assert used == {f"{machine(0)}-gpu-{n}" for n in range(GPUS)}
    assert any("fewer workers (detect 1 of 2, describe 1 of 2)" in line for line in said["lines"])
