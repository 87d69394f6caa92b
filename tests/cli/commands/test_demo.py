"""`headrace demo`: the bank on Spark at its smallest, and what it makes of an act that is wrong."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli.commands import demo
from headrace.cli.demo_bank import (
    Audit,
    Bank,
    BankOutcome,
    Difference,
    TransferThread,
    compare,
)
from headrace.cli.demo_calls import CallsAct
from headrace.errors import NotFoundError
from headrace.testing.crash import eventually
from tests.cli.conftest import Run
from tests.cli.headrace_process import PATIENCE_S, SPARK_S, Running, headrace
from tests.cli.test_demo_calls import GOOD as GOOD_CALLS


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


@pytest.mark.spark
def test_ctrl_c_ends_it_without_a_word(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(here))
    with Running("demo") as running:
        assert running.note() == (
            "note: 2,000 transfers are made while a task on Spark applies them\n"
        )
        eventually(lambda: bool(running.children()), PATIENCE_S, "the JVM")
        running.process.send_signal(signal.SIGINT)
        code = running.process.wait(SPARK_S)
        assert (code, *running.wait()[1:]) == (130, "", "")
    assert list(here.iterdir()) == []


def test_a_bank_knows_what_it_committed(tmp_path: Path) -> None:
    with hr.open(tmp_path / "bank") as workspace:
        bank = Bank(workspace, seed=3)
        bank.transfer(19)
        bank.transfer(6)
        assert (bank.transfers, bank.rolled_back, len(bank.committed)) == (25, 2, 46)
        seen = pa.concat_tables([workspace.table(bank.debits), workspace.table(bank.credits)])
        assert compare(bank.documents(), seen) == Difference(0, 0, 0)
        again = Bank(workspace, seed=3)
        again.transfer(25)
        assert again.committed == bank.committed


def test_a_flow_waits_half_way_until_something_was_seen(tmp_path: Path) -> None:
    with hr.open(tmp_path / "bank") as workspace:
        bank = Bank(workspace, seed=1)
        flow = TransferThread(bank, 20, pause_s=0)
        with flow.running():
            eventually(lambda: bank.transfers == 11, PATIENCE_S, "half of the transfers")
            assert not flow.is_done
            flow.saw_documents()
            eventually(lambda: flow.is_done, PATIENCE_S, "all transfers")
        assert bank.transfers == 20


def test_a_flow_that_fails_says_so(tmp_path: Path) -> None:
    with hr.open(tmp_path / "bank") as workspace:
        bank = Bank(workspace, seed=1)
        workspace.delete_collection("bank/credits")
        flow = TransferThread(bank, 20, pause_s=0)
        with flow.running(), pytest.raises(NotFoundError, match="bank/credits"):
            eventually(lambda: flow.is_done, PATIENCE_S, "an error")


def documents(*numbers: int) -> pa.Table:
    return pa.table(
        {"number": numbers, "account": ["ann"] * len(numbers), "cents": [7] * len(numbers)},
        pa.schema([("number", pa.int64()), ("account", pa.string()), ("cents", pa.int64())]),
    )


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ((1, 2, 3), Difference(lost=0, duplicates=0, uncommitted=0)),
        ((1, 3), Difference(lost=1, duplicates=0, uncommitted=0)),
        ((1, 2, 2, 3, 3, 3), Difference(lost=0, duplicates=3, uncommitted=0)),
        ((1, 2, 3, 9), Difference(lost=0, duplicates=0, uncommitted=1)),
        ((9, 9), Difference(lost=3, duplicates=1, uncommitted=2)),
        ((), Difference(lost=3, duplicates=0, uncommitted=0)),
    ],
)
def test_what_is_lost_or_twice_is_counted(found: tuple[int, ...], difference: Difference) -> None:
    assert compare(documents(1, 2, 3), documents(*found)) == difference


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


def test_a_line_for_each_act_says_whether_it_held(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_bank, bad_calls = GOOD._replace(lost=1), GOOD_CALLS._replace(lost=1)
    for bank, calls, code in (
        (GOOD, GOOD_CALLS, 0),
        (bad_bank, GOOD_CALLS, 1),
        (GOOD, bad_calls, 1),
    ):
        monkeypatch.setattr(demo._BankAct, "run", lambda _, bank=bank: bank)
        monkeypatch.setattr(CallsAct, "run", lambda _, calls=calls: calls)
        result = run("demo")
        assert result.exit_code == code
        assert result.stdout.splitlines()[-2:] == [bank.verdict(), calls.verdict()]
    assert run("demo", "--act", "bank").stdout.splitlines()[-1] == GOOD.verdict()
    alone = run("demo", "--act", "calls", "--json")
    assert alone.exit_code == 1
    assert json.loads(alone.stdout)["calls"]["lost"] == 1


@pytest.mark.parametrize("wrong", ["torn_checkpoints", "duplicates", "lost", "uncommitted"])
def test_anything_that_is_wrong_makes_it_fail(wrong: str) -> None:
    assert GOOD.is_good
    assert not GOOD._replace(**{wrong: 1}).is_good


def test_an_audit_counts_a_checkpoint_that_is_run_again_once() -> None:
    audit = Audit()
    audit.see(1, documents=4, cents=0)
    audit.see(2, documents=2, cents=0)
    audit.see(2, documents=2, cents=0)
    assert (audit.documents(1), audit.documents(2), audit.torn) == (4, 6, set())
    audit.see(3, documents=1, cents=-5)
    audit.see(2, documents=3, cents=0)
    assert audit.torn == {2, 3}
