"""A server that is paid for every call, and that often fails: it also hangs and dies."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Self

from headrace.testing.paid_server import PaidServer

_PAUSE_S = 0.2
_CALLS_BETWEEN = 5
"""Faults are no more than one in so many calls: those that nobody meets would pile up."""
_FAULTS = (
    *("429", "503", "500_before", "500_after"),
    *("hang_before", "hang_after", "cut_after", "die_before", "die_after"),
)
_OPTIONS = ("--delay-ms", "20", "--hang-s", "4", "--retry-after-s", "0.2")


class MoodyServer:
    """Asks a `PaidServer` for faults all the time, and starts it again when it has died."""

    def __init__(self, bill: Path, seed: int, *, honours_keys: bool) -> None:
        options = (*_OPTIONS, "--honour-keys") if honours_keys else _OPTIONS
        self.paid = PaidServer(bill, *options)
        self.deaths = 0
        self.faults = 0
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._be_moody)

    @property
    def calls(self) -> int:
        """Return how many calls were paid so far."""
        return self.paid.bill.read_bytes().count(b"\n") if self.paid.bill.exists() else 0

    def _be_moody(self) -> None:
        next_at = 0
        while not self._stopping.wait(self._chance.uniform(0, 2 * _PAUSE_S)):
            if not self.paid.is_alive:
                self.deaths += 1
                self.paid.start()
            if (calls := self.calls) < next_at:
                continue
            next_at = calls + _CALLS_BETWEEN
            # It may die of what it was asked before.
            with suppress(OSError, HTTPException):
                self.paid.ask_faults(self._chance.choice(_FAULTS))
                self.faults += 1

    def __enter__(self) -> Self:
        self.paid.start()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()
        self.paid.kill()
