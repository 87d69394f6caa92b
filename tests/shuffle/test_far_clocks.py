"""Documents whose clocks are far in the future, up to the end of the range."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.clock import CLOCK_MAX
from headrace.journal.sequencer import Flags
from headrace.shuffle import Binding
from tests.shuffle.real_task import Task

LAST = CLOCK_MAX - 2
"""The last clock that a document can have, if something is to follow it."""


# proves G13
@pytest.mark.parametrize("far", [1 << 62, LAST], ids=["centuries ahead", "the last one"])
def test_a_document_that_is_due_in_centuries_holds_up_no_other(tmp_path: Path, far: int) -> None:
    with Task(tmp_path, members=1) as task:
        for name in "ab":
            task.workspace.collection(name, "n long", key="n")
        task.writer("w").docs("a/0000", far, {"n": 1}, flags=Flags.OUTSIDE)
        task.open(Binding(collection="a", read_delay_s=60.0), Binding(collection="b"))
        for n in (2, 3):
            task.workspace.append("b", [{"n": n}])
            (shown,) = task.take(1)
            assert shown.column("n") == [n]


# proves G5, G8
def test_the_last_clocks_of_the_range_are_read_in_order(tmp_path: Path) -> None:
    clocks = list(range(LAST - 4, LAST + 1))
    with Task(tmp_path, members=1) as task:
        task.workspace.collection("a", "n long", key="n")
        writer = task.writer("w")
        for clock in clocks:
            writer.docs("a/0000", clock, {"n": 1}, flags=Flags.OUTSIDE)
        task.open("a")
        shown = [d.clock for each in task.take(5, ordered=True) for d in each.documents]
        assert shown == clocks
