"""The third act of `headrace demo`: stores are filled and killed, and everything is there."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.acts.store_audit import RowCount
from headrace.cli.acts.stores_act import StoresOutcome
from headrace.testing.crash import eventually
from tests.cli.headrace_process import PATIENCE_S, SPARK_S, Running, headrace

SALES = 40
_LONG_S = 2 * SPARK_S
"""It runs two tasks at once."""
_ALL_RIGHT = RowCount(4, lost=0, twice=0, wrong=0)

GOOD = StoresOutcome(
    checkpoints=6,
    checkpoints_after_kill=2,
    kills=1,
    samples=_ALL_RIGHT,
    vectors=_ALL_RIGHT,
    points=9,
    wrong_points=0,
    hits=3,
    wrong_hits=0,
    seconds=1.0,
)


# proves G14
@pytest.mark.timeout(600)
@pytest.mark.spark
def test_stores_whose_process_is_killed_hold_every_row_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(here))
    done = headrace("demo", "--act", "stores", "--sales", str(SALES), "--json", timeout_s=_LONG_S)
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)["stores"]
    assert found["samples"] == {"published": SALES, "lost": 0, "twice": 0, "wrong": 0}
    assert found["vectors"] == {"published": SALES // 4, "lost": 0, "twice": 0, "wrong": 0}
    assert (found["wrong_points"], found["wrong_hits"]) == (0, 0)
    assert found["points"] > 0
    assert found["hits"] > 0
    assert found["checkpoints_after_kill"] >= 1
    assert (found["kills"], found["is_good"]) == (1, True)
    assert list(here.iterdir()) == []


@pytest.mark.spark
def test_ctrl_c_ends_it_and_all_that_it_started(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(here))
    with Running("demo", "--act", "stores", patience_s=_LONG_S) as running:
        assert running.note().startswith("note: bakeries publish 2,000 sales")
        eventually(lambda: len(running.children()) >= 2, PATIENCE_S, "the stores and the JVM")
        assert running.end(signal.SIGINT) == (130, "", "")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"samples": RowCount(4, lost=1, twice=0, wrong=0)}, "1 sample lost"),
        ({"samples": RowCount(4, lost=0, twice=2, wrong=0)}, "2 samples twice"),
        ({"samples": RowCount(4, lost=0, twice=0, wrong=1)}, "1 sample wrong"),
        ({"vectors": RowCount(4, lost=2, twice=1, wrong=0)}, "2 vectors lost, 1 vector twice"),
        ({"vectors": RowCount(4, lost=0, twice=0, wrong=3)}, "3 vectors wrong"),
        ({"wrong_points": 1}, "1 point of the chart wrong"),
        ({"wrong_hits": 2}, "2 reviews of the search wrong"),
        ({"kills": 0}, "the process of the stores ended before it was killed"),
    ],
)
def test_anything_that_is_wrong_is_said_and_makes_it_fail(
    change: dict[str, Any], text: str
) -> None:
    assert GOOD.is_good
    wrong = GOOD._replace(**change)
    assert not wrong.is_good
    assert wrong.verdict() == f"The stores did not hold: {text}. Please report this with the seed."


def test_its_line_says_that_it_held() -> None:
    assert GOOD._replace(samples=_ALL_RIGHT._replace(published=2000)).verdict() == (
        "The stores held: 2,000 samples and 4 vectors, each there once, and two queries answered"
        " right, through 1 kill."
    )
