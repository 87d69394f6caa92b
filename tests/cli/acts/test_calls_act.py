"""The second act of `headrace demo`: a pipeline of paid calls is killed, and its bill is right."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.acts.calls_act import CallsOutcome, ServerBill
from headrace.testing.crash import eventually
from tests.cli.headrace_process import PATIENCE_S, Running, headrace

pytestmark = pytest.mark.crash

ROWS = 20
_LONG_S = 240.0
"""It starts several processes, one after the other."""

GOOD = CallsOutcome(
    rows=4,
    first=ServerBill(calls=2, paid=2),
    last=ServerBill(calls=5, calls_twice=1, paid=4),
    kills=1,
    in_doubt=1,
    rows_out=4,
    lost=0,
    duplicates=0,
    cost=0.04,
    ledger_cost=0.04,
    seconds=1.0,
)


# proves G15, G17
def test_a_pipeline_that_is_killed_half_way_pays_for_each_row_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(here))
    done = headrace("demo", "--act", "calls", "--rows", str(ROWS), "--json", timeout_s=_LONG_S)
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)["calls"]
    first, last = found["first"], found["last"]
    assert ROWS / 2 <= first["paid"] < ROWS
    assert 1 <= last["calls_twice"] <= found["in_doubt"]
    assert last["calls"] == ROWS + last["calls_twice"]
    assert (last["paid"], last["paid_twice"]) == (ROWS, 0)
    assert (found["rows_out"], found["lost"], found["duplicates"]) == (ROWS, 0, 0)
    assert found["cost"] == found["ledger_cost"] == ROWS / 100
    assert (found["kills"], found["is_good"]) == (1, True)
    assert list(here.iterdir()) == []


def test_ctrl_c_ends_it_and_all_that_it_started(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(here))
    with Running("demo", "--act", "calls", patience_s=_LONG_S) as running:
        assert running.note().startswith("note: a pipeline asks a server 200 questions")
        eventually(lambda: len(running.children()) == 2, PATIENCE_S, "server and pipeline")
        assert running.end(signal.SIGINT) == (130, "", "")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lost": 1}, "1 row lost"),
        ({"duplicates": 2}, "2 rows twice"),
        ({"last": GOOD.last._replace(paid_twice=1)}, "1 call paid twice"),
        ({"in_doubt": 0}, "1 call made twice with 0 in doubt"),
        ({"ledger_cost": 0.03}, "a bill of $0.04 and a ledger of $0.03"),
        ({"kills": 0}, "the pipeline was done before it was killed"),
    ],
)
def test_anything_that_is_wrong_is_said_and_makes_it_fail(
    change: dict[str, Any], text: str
) -> None:
    assert GOOD.is_good
    wrong = GOOD._replace(**change)
    assert not wrong.is_good
    assert wrong.verdict() == f"The paid calls did not hold: {text}. Please report this."


def test_its_line_says_that_it_held() -> None:
    assert GOOD.verdict() == (
        "The paid calls held: 4 rows, each there once and paid once, through 1 kill."
    )
