from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.spark.sinks.contract import CheckpointId
from headrace.storage import S3Options
from tests.s3 import s3_server

Numbers = Callable[..., DataFrame]

OLD, NEW = ("stage", "commit"), ("open", "stage", "commit")
ORDERS = [
    tuple(
        f"old {OLD[sum(each < n for each in olds)]}"
        if n in olds
        else f"new {NEW[n - sum(each < n for each in olds)]}"
        for n in range(5)
    )
    for olds in combinations(range(5), 2)
]
"""In which the steps of a run that was given up and of the one that replaces it can come."""


def checkpoint(number: int, generation: str = "g1", task: str = "bank/totals") -> CheckpointId:
    return CheckpointId(task, generation, number)


@pytest.fixture
def numbers(spark: SparkSession) -> Numbers:
    """Rows in two partitions, if they are more than one."""

    def make(start: int, end: int, name: str = "name") -> DataFrame:
        return spark.range(start, end, 1, min(2, end - start) or 1).selectExpr(
            "id", f"concat('{name} ', id) AS name"
        )

    return make


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Options]:
    with s3_server(tmp_path_factory.mktemp("s3")) as options:
        yield options
