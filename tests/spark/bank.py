"""Transfers between accounts: each is one transaction over two collections, and sums to zero."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.errors import PeerLostError, PublishError

_ATTEMPTS = 10
ACCOUNTS = ("ann", "bob", "cay", "dan")


class Bank:
    def __init__(self, workspace: headrace.Workspace) -> None:
        self.workspace = workspace
        schema = "number long, account string, cents long"
        self.debits = workspace.collection("bank/debits", schema, key="account", journals=2)
        self.credits = workspace.collection("bank/credits", schema, key="account", journals=2)
        self.transfers = 0
        self._publisher: headrace.Publisher | None = None

    def transfer(self, count: int) -> None:
        for number in range(self.transfers, self.transfers + count):
            self._transfer(number)
        self.transfers += count

    def _transfer(self, number: int) -> None:
        """Transfer once, even if the owner of the journals dies meanwhile: the publisher knows."""
        payer, payee = _parties(number)
        for _ in range(_ATTEMPTS):
            try:
                if self._publisher is None:
                    self._publisher = self.workspace.publisher("bank")
                    if self._publisher.payload == str(number).encode():
                        return
                tx = self._publisher.begin()
                tx.append(self.debits, [{"number": number, "account": payer, "cents": -number - 1}])
                tx.append(self.credits, [{"number": number, "account": payee, "cents": number + 1}])
                tx.commit(str(number).encode())
                return
            except (PeerLostError, PublishError):
                self._publisher = None
        raise TimeoutError(f"transfer {number} was not published in {_ATTEMPTS} attempts")

    def movements(self) -> list[tuple[int, int]]:
        """Return (number, cents) of every committed document."""
        cents = range(1, self.transfers + 1)
        return sorted((n - 1, each) for n in cents for each in (-n, n))

    def balances(self) -> dict[str, tuple[int, int]]:
        """Return the cents and the number of movements of each account."""
        found = dict.fromkeys(ACCOUNTS, (0, 0))
        for number in range(self.transfers):
            for account, cents in zip(_parties(number), (-number - 1, number + 1), strict=True):
                before, movements = found[account]
                found[account] = before + cents, movements + 1
        return found

    def stream(self, spark: SparkSession, task: str = "bank", **options: str) -> DataFrame:
        reader = spark.readStream.format("headrace").options(
            workspace=str(self.workspace.directory),
            collections="bank/debits,bank/credits",
            task=task,
        )
        return reader.options(**options).load()


def _parties(number: int) -> tuple[str, str]:
    """Return the account that pays and the account that is paid."""
    payer, payee = (ACCOUNTS[(number + n) % len(ACCOUNTS)] for n in (0, 1))
    return payer, payee
