"""What the processes of the ledger's crash tests run: one serves the ledger, others make calls."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.pipeline.contract import Claimed, ClaimStatus, RecordedCall
from headrace.pipeline.ledger.actor import LedgerActor
from headrace.pipeline.ledger.keys import content_hash
from headrace.pipeline.ledger.ledger_service import LedgerService
from headrace.pipeline.ledger.ledger_store import LedgerStore, StoreTransaction
from headrace.pipeline.ledger.messages import LEDGER
from headrace.pipeline.ledger.remote_ledger import RemoteLedger
from headrace.settings import ServiceSettings
from headrace.testing.crash import KillPoint, end_uncleanly
from headrace.transport import Server

CALLS = 6
UNITS = ("one", "two")
STAGE = "paid"
_LINGER_S = 0.05


def serve(path: Path, point: KillPoint | None) -> str:
    """Serve the ledger; die at one of its transactions."""

    class DeadlyStore(LedgerStore):
        @contextmanager
        def write(self) -> Iterator[StoreTransaction]:
            strikes = point is not None and point.passes()
            if strikes and point and point.when == "before":
                end_uncleanly()
            with super().write() as txn:
                yield txn
                if strikes and point and point.when == "torn":
                    # An answer that was sent too early gets the time to arrive.
                    threading.Event().wait(_LINGER_S)
                    end_uncleanly()
            if strikes:
                end_uncleanly()

    service = LedgerService(LedgerActor(DeadlyStore(path, "g")))
    return _keep(Server({LEDGER: service}, ServiceSettings())).address


_kept: list[Any] = []


def _keep(server: Server) -> Server:
    _kept.append(server)
    return server


class CallLog:
    """Counts steps, and writes each call and each recorded result into a file that survives."""

    def __init__(self, path: Path, die_at: int | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._die_at = die_at
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        if self._steps == self._die_at:
            end_uncleanly()

    def note(self, event: str, name: str) -> None:
        os.write(self._file, f"{event} {name}\n".encode())
        self.step()


def work(address: str, name: str, log_path: Path, die_at: int | None) -> None:
    """Get the result of every call; die at one of the steps."""
    log = CallLog(log_path, die_at)
    asyncio.run(_work(address, name, log))


async def _work(address: str, name: str, log: CallLog) -> None:
    async with RemoteLedger(address) as ledger:
        for unit in UNITS:
            await asyncio.gather(*(_get(ledger, unit, call, name, log) for call in range(CALLS)))


async def _get(ledger: RemoteLedger, unit: str, call: int, name: str, log: CallLog) -> None:
    wanted = [(call, content_hash("1", f"{unit} {call}".encode()))]
    while True:
        claimed: Claimed
        [claimed] = await ledger.claim(STAGE, unit, wanted, owner=name)
        log.step()
        if claimed.status == ClaimStatus.RESULT:
            assert claimed.result == f"{unit} {call}".encode()
            return
        log.note("called", claimed.idempotency_key)
        await ledger.record(STAGE, unit, [RecordedCall(call, f"{unit} {call}".encode(), 0.5)])
        log.note("recorded", claimed.idempotency_key)
