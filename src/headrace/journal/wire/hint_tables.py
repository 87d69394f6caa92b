"""Tables of hints, which the ACKs of a transaction share.

The ACKs of a transaction over k journals are the k rows of one record, and each has the whole table
as its hints. Who reads those journals gets the table once, not k times: it is remembered by the
position of its record in the log. What a position holds never changes while the log has an owner:
a record that is rewritten is another record, at another position, perhaps with fewer rows. So what
is remembered stays true, also of records that were given up, and a row is always looked up in the
table of the record that it was said of.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

V = TypeVar("V")

Table = npt.NDArray[np.void]
"""Rows of `records.ACK_ROW`."""

WIDE_BYTES = 512
"""What is not larger is sooner sent or read again than looked up."""
REMEMBERED_BYTES = 16 << 20


class Recent(Generic[V]):
    """Something about each table that was used last: of as many as fit, but always of one."""

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
