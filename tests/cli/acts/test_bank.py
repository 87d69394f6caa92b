"""The bank of the demo: what it remembers, and what counts as wrong."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.cli.acts.bank import Audit, Bank, Difference, compare


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


def test_an_audit_counts_a_checkpoint_that_is_run_again_once() -> None:
    audit = Audit()
    audit.see(1, documents=4, cents=0)
    audit.see(2, documents=2, cents=0)
    audit.see(2, documents=2, cents=0)
    assert (audit.documents(1), audit.documents(2), audit.torn) == (4, 6, set())
    audit.see(3, documents=1, cents=-5)
    audit.see(2, documents=3, cents=0)
    assert audit.torn == {2, 3}
