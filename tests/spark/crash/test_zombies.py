"""Processes of a task that are stopped, given up or orphaned, and go on later."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import FencedError
from headrace.testing.crash import chosen_seed, eventually
from tests.spark.crash.crashing_task import WAIT_S, CrashingTask
from tests.spark.crash.death import Death
from tests.spark.crash.outputs import Kind
from tests.spark.crash.process_tree import is_gone


# proves G14
@pytest.mark.parametrize("kind", ["collection", pytest.param("parquet", marks=pytest.mark.deep)])
def test_drivers_that_were_replaced_are_refused(tmp_path: Path, kind: Kind) -> None:
    """One was about to commit a batch, the next had stored a checkpoint."""
    with (
        CrashingTask(tmp_path, chosen_seed(default=1), kind) as crashing,
        crashing.driver(Death("commit", "before", signal=signal.SIGSTOP)) as first,
    ):
        first.freeze()
        with crashing.driver(Death("store", "after", signal=signal.SIGSTOP)) as second:
            second.freeze()
            with crashing.driver() as third:
                crashing.goes_on(2)
                for zombie in (first, second):
                    zombie.thaw()
                    with pytest.raises(FencedError, match="taken over by another process"):
                        zombie.child.answer(WAIT_S)
                crashing.goes_on(2)
                crashing.finish(third)


# proves G14
@pytest.mark.deep
def test_members_that_stop_or_lose_their_parent_are_replaced(tmp_path: Path) -> None:
    with (
        CrashingTask(tmp_path, chosen_seed(default=1)) as crashing,
        crashing.driver(shards=2) as run,
    ):
        for strike in (run.stop_a_member, run.kill_the_daemon):
            crashing.goes_on(1)
            for process in strike():
                eventually(partial(is_gone, process), WAIT_S, "the end of a member")
            crashing.goes_on(2)
        crashing.finish(run)
