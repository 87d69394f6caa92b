"""The bank of `headrace demo`: transfers that flow while a task on Spark applies them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

import headrace as hr

SCHEMA = "number long, account string, cents long"
_ACCOUNTS = ("ann", "bob", "cay", "dan", "eve", "fay")
_COLUMNS = ["number", "account", "cents"]
_GIVEN_UP = 10
"""One of so many transfers."""
_GROUPS = 20
_PAUSE_S = 0.4


class Bank:
    """Two collections, and what was committed to them."""

    def __init__(self, workspace: hr.Workspace, seed: int) -> None:
        self.debits = workspace.collection("bank/debits", SCHEMA, key="account", journals=4)
        self.credits = workspace.collection("bank/credits", SCHEMA, key="account", journals=4)
        self.committed: list[dict[str, object]] = []
        """Documents."""
        self.made = 0
        """Transfers, with those that were given up."""
        self.given_up = 0
        self._chance = random.Random(seed)
        self._publisher = workspace.publisher()

    def transfer(self, count: int) -> None:
        """Make transfers, of which some fail after their debit."""
        pending = []
        for number in range(self.made, self.made + count):
            payer, payee = self._chance.sample(_ACCOUNTS, 2)
            cents = self._chance.randrange(1, 100_00)
            debit = {"number": number, "account": payer, "cents": -cents}
            credit = {"number": number, "account": payee, "cents": cents}
            transaction = self._publisher.begin()
            transaction.append(self.debits, [debit])
            if number % _GIVEN_UP == _GIVEN_UP - 1:
                transaction.rollback()
                self.given_up += 1
                continue
            transaction.append(self.credits, [credit])
            pending.append(transaction.commit_nowait())
            self.committed += debit, credit
        for commit in pending:
            commit.result()
        self.made += count

    def documents(self) -> pa.Table:
        """Those that are committed."""
        return pa.Table.from_pylist(self.committed, self.debits.schema)


class Flow:
    """Makes transfers, a group at a time; the second half once somebody has seen the first."""

    def __init__(self, bank: Bank, transfers: int, pause_s: float = _PAUSE_S) -> None:
        self._bank = bank
        self._transfers = transfers
        self._pause_s = pause_s
        self._seen = threading.Event()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="transfers", daemon=True)

    def saw_some(self) -> None:
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
                self._bank.transfer(end - self._bank.made)
                if group == _GROUPS // 2:
                    self._seen.wait()
                if self._stopping.wait(self._pause_s):
                    return
        except BaseException as error:  # noqa: BLE001  raised where it is looked at
            self._failure = error

    @contextmanager
    def flowing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._seen.set()
            self._thread.join()


class Seen(NamedTuple):
    """What a checkpoint had."""

    documents: int
    cents: int


class Audit:
    """Whether the documents of every checkpoint sum to zero."""

    def __init__(self) -> None:
        self._seen: dict[int, Seen] = {}
        self.torn: set[int] = set()

    def movements(self, cut: hr.Cut) -> Any:
        """The function of the task."""
        rows = cut.debits.unionByName(cut.credits)
        found = rows.agg({"number": "count", "cents": "sum"}).first()
        assert found
        self.see(cut.checkpoint.number, found["count(number)"], found["sum(cents)"] or 0)
        return rows

    def see(self, checkpoint: int, documents: int, cents: int) -> None:
        """One that is run again counts once, and must have the same."""
        seen = Seen(documents, cents)
        if cents or self._seen.setdefault(checkpoint, seen) != seen:
            self.torn.add(checkpoint)

    def documents(self, checkpoint: int) -> int:
        """In it and all before."""
        seen = dict(self._seen)
        return sum(each.documents for number, each in seen.items() if number <= checkpoint)


class Difference(NamedTuple):
    """Documents, by what is wrong with them."""

    lost: int
    duplicates: int
    uncommitted: int


def compare(committed: pa.Table, found: pa.Table) -> Difference:
    lost = committed.join(found, _COLUMNS, join_type="left anti")
    uncommitted = found.join(committed, _COLUMNS, join_type="left anti")
    distinct = found.group_by(_COLUMNS).aggregate([])
    return Difference(lost.num_rows, found.num_rows - distinct.num_rows, uncommitted.num_rows)
