"""A task is run by whoever took it last."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.errors import FencedError
from headrace.spark.tasks.run_fence import RunFence
from headrace.storage import open_objects


def test_whoever_takes_a_task_takes_it_from_the_one_before(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    first, other = RunFence(objects, "totals"), RunFence(objects, "totals of another")
    first.check()
    second = RunFence(objects, "totals")
    second.check()
    other.check()
    third = RunFence(objects, "totals")
    for replaced in (first, second):
        with pytest.raises(FencedError, match="task 'totals' was taken over by another process"):
            replaced.check()
    third.check()
    assert len(objects.list("turns")) == 2, "one for each task"


@pytest.mark.long
def test_of_many_that_take_it_at_once_one_has_it(tmp_path: Path) -> None:
    objects = open_objects(str(tmp_path))
    fences: list[RunFence] = []
    threads = [
        threading.Thread(target=lambda: fences.append(RunFence(objects, "totals")))
        for _ in range(8)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [fence.is_mine for fence in fences].count(True) == 1
