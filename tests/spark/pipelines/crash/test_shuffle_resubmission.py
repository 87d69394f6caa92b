"""An application is killed in the shuffle of its pipeline, and submitted again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import headrace as hr
from headrace.testing.crash import Child, eventually
from tests.pipeline.crash.killed_shuffle import UNITS, bill_of
from tests.pipeline.orders import ROWS, totals
from tests.spark.crash.crashing_task import WAIT_S
from tests.spark.crash.process_tree import kill_all
from tests.spark.pipelines.crash.shuffled_job import GO, Outcome, reads_in

CORES, OTHER_CORES, PARTITIONS = 2, 3, 3
CODE = """
from tests.spark.pipelines.crash.shuffled_job import ShuffledDriver
driver = ShuffledDriver(life, master)
"""


# proves G17, G21
@pytest.mark.deep
def test_a_pipeline_that_is_submitted_again_repeats_no_call_and_no_published_task(
    tmp_path: Path,
) -> None:
    """With other cores and other workers; what was in flight is read once more."""
    read_before = 6
    given = {"life": tmp_path / "killed", "master": f"local[{CORES},4]"}
    with Child(CODE, **given) as child:
        waits_at = read_before - CORES + 1
        child.start("driver.run(folder, waits_at, 1)", folder=tmp_path, waits_at=waits_at)
        eventually(lambda: len(reads_in(tmp_path)) >= read_before, WAIT_S, "reads in every slot")
        kill_all(child.pid, WAIT_S)
    assert len(reads_in(tmp_path)) == read_before, "every slot waits in a read"
    (tmp_path / GO).touch()

    given = {"life": tmp_path / "again", "master": f"local[{OTHER_CORES},4]"}
    with Child(CODE, **given) as child:
        outcome: Outcome = child.run("driver.run(folder, 0, 2)", WAIT_S, folder=tmp_path)
        kill_all(child.pid, WAIT_S)

    tasks, published = UNITS + PARTITIONS, read_before - CORES
    assert outcome == Outcome(totals(), 0, tasks, published)
    reads = Counter(reads_in(tmp_path))
    assert (len(reads), reads.total()) == (UNITS, UNITS + CORES)
    with hr.open(tmp_path / "workspace") as workspace:
        assert sorted(map(int, bill_of(workspace).read_text().split())) == list(range(ROWS))
