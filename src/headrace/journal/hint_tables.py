"""Tables of hints, and a cache for them.

The ACKs of a transaction over k journals are the k rows of one log record, and each ACK carries
the whole table as its hints. A reader of those journals should get the table once, not k times, so
both ends of a conversation remember tables by the log position of their record. An owner never
changes what a position holds: when it rewrites a record, the copy gets another position, perhaps
with fewer rows. A remembered table therefore stays true even after its record is gone, as long as
a row is looked up in the table of the record that it was read with.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

V = TypeVar("V")

HintTable = npt.NDArray[np.void]
"""Rows of `records.ACK_ROW`."""

WIDE_BYTES = 512
"""Only tables above this size are remembered: it costs less to send or read smaller ones again."""
REMEMBERED_BYTES = 16 << 20


class HintTableCache(Generic[V]):
    """Remembers a value for each of the tables used last.

    It holds as many tables as fit into `REMEMBERED_BYTES`, and always at least one.
    """

    def __init__(self) -> None:
        self._bytes_max = REMEMBERED_BYTES
        self._bytes = 0
        self._held: OrderedDict[int, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, position: int) -> V | None:
        with self._lock:
            if (found := self._held.get(position)) is None:
                return None
            self._held.move_to_end(position)
            return found[0]

    def put(self, position: int, value: V, table_bytes: int) -> None:
        with self._lock:
            if replaced := self._held.pop(position, None):
                self._bytes -= replaced[1]
            self._held[position] = value, table_bytes
            self._bytes += table_bytes
            while self._bytes > self._bytes_max and len(self._held) > 1:
                _, (_, forgotten_bytes) = self._held.popitem(last=False)
                self._bytes -= forgotten_bytes
