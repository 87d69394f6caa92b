"""The bank of `headrace demo`: it makes transfers while a task on Spark applies them."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pyarrow as pa

import headrace as hr

SCHEMA = "number long, account string, cents long"
_ACCOUNTS = ("ann", "bob", "cay", "dan", "eve", "fay")
_COLUMNS = ["number", "account", "cents"]
_ROLLED_BACK_EVERY = 10
"""The bank rolls back one transfer of this many."""


class Bank:
    """Makes transfers between accounts, and remembers what it committed."""

    def __init__(self, workspace: hr.Workspace, seed: int) -> None:
        self.debits = workspace.collection("bank/debits", SCHEMA, key="account", journals=4)
        self.credits = workspace.collection("bank/credits", SCHEMA, key="account", journals=4)
        self.committed: list[dict[str, object]] = []
        """The committed documents."""
        self.transfers = 0
        """How many transfers were made, including those that were rolled back."""
        self.rolled_back = 0
        self._chance = random.Random(seed)
        self._publisher = workspace.publisher()

    def transfer(self, count: int) -> None:
        """Make `count` transfers. Some of them fail after their debit."""
        pending = []
        for number in range(self.transfers, self.transfers + count):
            payer, payee = self._chance.sample(_ACCOUNTS, 2)
            cents = self._chance.randrange(1, 100_00)
            debit = {"number": number, "account": payer, "cents": -cents}
            credit = {"number": number, "account": payee, "cents": cents}
            transaction = self._publisher.begin()
            transaction.append(self.debits, [debit])
            if number % _ROLLED_BACK_EVERY == _ROLLED_BACK_EVERY - 1:
                transaction.rollback()
                self.rolled_back += 1
                continue
            transaction.append(self.credits, [credit])
            pending.append(transaction.commit_nowait())
            self.committed += debit, credit
        for commit in pending:
            commit.result()
        self.transfers += count

    def documents(self) -> pa.Table:
        """Return the committed documents."""
        return pa.Table.from_pylist(self.committed, self.debits.schema)


class CheckpointSum(NamedTuple):
    """What a task saw at one checkpoint."""

    documents: int
    cents: int


class Audit:
    """Checks that the documents of every checkpoint sum to zero."""

    def __init__(self) -> None:
        self._seen: dict[int, CheckpointSum] = {}
        self.torn: set[int] = set()
        """Checkpoints that did not sum to zero, or differed when Spark repeated them."""

    def movements(self, cut: hr.Cut) -> Any:
        """Return the rows of a cut; this is the function of the task."""
        rows = cut.debits.unionByName(cut.credits)
        found = rows.agg({"number": "count", "cents": "sum"}).first()
        assert found
        self.see(cut.checkpoint.number, found["count(number)"], found["sum(cents)"] or 0)
        return rows

    def see(self, checkpoint: int, documents: int, cents: int) -> None:
        """Record a checkpoint. One that Spark runs again counts once, and must not differ."""
        seen = CheckpointSum(documents, cents)
        if cents or self._seen.setdefault(checkpoint, seen) != seen:
            self.torn.add(checkpoint)

    def documents(self, checkpoint: int) -> int:
        """Return how many documents the checkpoints up to this one had."""
        seen = dict(self._seen)
        return sum(each.documents for number, each in seen.items() if number <= checkpoint)


class Difference(NamedTuple):
    """How many documents are wrong, by what is wrong with them."""

    lost: int
    duplicates: int
    uncommitted: int


def compare(committed: pa.Table, found: pa.Table) -> Difference:
    """Compare the documents that were committed with those found in the output."""
    lost = committed.join(found, _COLUMNS, join_type="left anti")
    uncommitted = found.join(committed, _COLUMNS, join_type="left anti")
    distinct = found.group_by(_COLUMNS).aggregate([])
    return Difference(lost.num_rows, found.num_rows - distinct.num_rows, uncommitted.num_rows)
