"""The first act of `headrace demo`: the bank on Spark at its smallest, and its last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.acts.bank_act import BankOutcome
from tests.cli.headrace_process import SPARK_S, headrace

GOOD = BankOutcome(
    transfers=1,
    given_up=0,
    documents=2,
    checkpoints=1,
    kills=1,
    recoveries=1,
    torn_checkpoints=0,
    duplicates=0,
    lost=0,
    uncommitted=0,
    seconds=1.0,
)


def test_the_last_line_says_whether_the_bank_held() -> None:
    assert GOOD.verdict() == (
        "The bank held: 2 documents, each applied once, in checkpoints that sum to zero,"
        " through 1 kill."
    )
    assert GOOD._replace(lost=1, duplicates=2, torn_checkpoints=1).verdict() == (
        "The bank did not hold: 1 document lost, 2 documents twice,"
        " 1 checkpoint not summing to zero. Please report this with the seed."
    )
    assert "1 document never committed" in GOOD._replace(uncommitted=1).verdict()


@pytest.mark.spark
def test_it_survives_the_kill_of_a_member(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Spark as it is installed, which starts more slowly than that of other tests."""
    # proves G14
    monkeypatch.delenv("SPARK_HOME")
    done = headrace("demo", "--act", "bank", "--transactions", "25", "--json", timeout_s=SPARK_S)
    assert (done.returncode, done.stderr) == (0, b"")
    found = json.loads(done.stdout)["bank"]
    assert found.pop("is_good")
    outcome = BankOutcome(**found)
    assert (outcome.transfers, outcome.given_up, outcome.documents) == (23, 2, 46)
    assert (outcome.kills, outcome.recoveries) == (1, 1)
    assert outcome.checkpoints >= 2
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("wrong", ["torn_checkpoints", "duplicates", "lost", "uncommitted"])
def test_anything_that_is_wrong_makes_it_fail(wrong: str) -> None:
    assert GOOD.is_good
    assert not GOOD._replace(**{wrong: 1}).is_good
