"""The bank of `headrace demo`: it makes transfers while a task on Spark applies them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

import headrace as hr
from headrace.cli.render.units import counted

SCHEMA = "number long, account string, cents long"
_ACCOUNTS = ("ann", "bob", "cay", "dan", "eve", "fay")
_COLUMNS = ["number", "account", "cents"]
_ROLLED_BACK_EVERY = 10
"""The bank rolls back one transfer of this many."""
_GROUPS = 20
_PAUSE_S = 0.4


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


class TransferThread:
    """Makes transfers, a group at a time; the second half after `saw_documents` was called."""

    def __init__(self, bank: Bank, transfers: int, pause_s: float = _PAUSE_S) -> None:
        self._bank = bank
        self._transfers = transfers
        self._pause_s = pause_s
        self._seen = threading.Event()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="transfers", daemon=True)

    def saw_documents(self) -> None:
        self._seen.set()

    @property
    def is_done(self) -> bool:
        if self._failure:
            raise self._failure
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            ends = [self._transfers * each // _GROUPS for each in range(1, _GROUPS + 1)]
            for group, end in enumerate(ends):
                self._bank.transfer(end - self._bank.transfers)
                if group == _GROUPS // 2:
                    self._seen.wait()
                if self._stopping.wait(self._pause_s):
                    return
        except BaseException as error:  # noqa: BLE001  `is_done` raises it
            self._failure = error

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._seen.set()
            self._thread.join()


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


class BankOutcome(NamedTuple):
    """What the bank did, and what was counted that must not happen."""

    transfers: int
    given_up: int
    documents: int
    checkpoints: int
    kills: int
    recoveries: int
    torn_checkpoints: int
    duplicates: int
    lost: int
    uncommitted: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.torn_checkpoints or self.duplicates or self.lost or self.uncommitted)

    def fields(self) -> dict[str, object]:
        """Return what is printed, by its name."""
        return {
            "transfers committed": f"{self.transfers:,}",
            "transfers given up half-way": f"{self.given_up:,}",
            "documents": f"{self.documents:,}",
            "checkpoints": f"{self.checkpoints:,}",
            "members killed": self.kills,
            "recoveries": self.recoveries,
            "checkpoints that did not sum to zero": self.torn_checkpoints,
            "documents twice": self.duplicates,
            "documents lost": self.lost,
            "documents never committed": self.uncommitted,
            "time": f"{self.seconds:.1f} s",
        }

    def verdict(self) -> str:
        """Return the line that says whether the guarantees held."""
        if self.is_good:
            kills = counted(self.kills, "kill")
            return (
                f"The bank held: {self.documents:,} documents, each applied once, in checkpoints"
                f" that sum to zero, through {kills}."
            )
        wrong = {"lost": self.lost, "twice": self.duplicates, "never committed": self.uncommitted}
        counts = [f"{counted(count, 'document')} {how}" for how, count in wrong.items() if count]
        if self.torn_checkpoints:
            counts.append(f"{counted(self.torn_checkpoints, 'checkpoint')} not summing to zero")
        return f"The bank did not hold: {', '.join(counts)}. Please report this with the seed."
