"""`headrace demo`: the bank. Transactions move money between accounts in different journals."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Annotated

import pyarrow.compute as pc
import typer

import headrace
from headrace.cli.output import JsonOption, as_example, print_fields, print_json

_ACCOUNTS = ("ann", "bob", "cay", "dan", "eve", "fay")
_SCHEMA = "account string, cents long"


def register(app: typer.Typer) -> None:
    app.command(epilog=as_example("headrace demo --transactions 10000"))(demo)


def demo(
    transactions: Annotated[int, typer.Option(min=1, help="How many transfers to make.")] = 2000,
    seed: Annotated[int, typer.Option(help="Makes the same transfers again.")] = 1,
    json: JsonOption = False,
) -> None:
    """Publish transactions across two collections and read them back committed."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as scratch:
        begin = time.perf_counter()
        with headrace.open(Path(scratch) / "bank") as workspace:
            given_up = _transfer(workspace, transactions, seed)
            # A second process would get the same: it works through the owner, over Flight.
            with headrace.open(Path(scratch) / "bank") as other:
                sums = _sums(other)
        with headrace.open(Path(scratch) / "bank") as again:
            survived = _sums(again) == sums
        seconds = time.perf_counter() - begin
    total = sum(cents for _, cents in sums.values())
    if json:
        print_json(
            {
                "committed": transactions - given_up,
                "given_up": given_up,
                "collections": {
                    name: {"documents": count, "cents": cents}
                    for name, (count, cents) in sums.items()
                },
                "total_cents": total,
                "same_after_reopening": survived,
                "seconds": seconds,
            }
        )
    else:
        seen = {
            name: f"{count:,} documents, {cents / 100:,.2f}"
            for name, (count, cents) in sums.items()
        }
        print_fields(
            {
                "transfers committed": f"{transactions - given_up:,}",
                "transfers given up half-way": f"{given_up:,}",
                **seen,
                "debits and credits together": f"{total / 100:,.2f}",
                "the same after reopening": "yes" if survived else "NO",
                "time": f"{seconds:.1f} s",
            }
        )
    if total or not survived:
        raise typer.Exit(1)


def _transfer(workspace: headrace.Workspace, transactions: int, seed: int) -> int:
    """Make transfers, every tenth of which fails after its debit; returns how many failed."""
    debits = workspace.collection("bank/debits", _SCHEMA, key="account", journals=4)
    credits = workspace.collection("bank/credits", _SCHEMA, key="account", journals=4)
    chance = random.Random(seed)
    publisher = workspace.publisher()
    pending = []
    given_up = 0
    for number in range(transactions):
        payer, payee = chance.sample(_ACCOUNTS, 2)
        cents = chance.randrange(1, 100_00)
        transaction = publisher.begin()
        transaction.append(debits, [{"account": payer, "cents": -cents}])
        if number % 10 == 9:
            transaction.rollback()
            given_up += 1
            continue
        transaction.append(credits, [{"account": payee, "cents": cents}])
        pending.append(transaction.commit_nowait())
    for commit in pending:
        commit.result()
    return given_up


def _sums(workspace: headrace.Workspace) -> dict[str, tuple[int, int]]:
    sums = {}
    for name in ("bank/debits", "bank/credits"):
        table = workspace.table(name)
        sums[name] = table.num_rows, pc.sum(table["cents"]).as_py() or 0
    return sums
