"""A sync group: the frames that one write and one sync cover, with their final offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.log import format as layout

OnSynced = Callable[[list[int], HeadraceError | None], None]
"""The writer thread calls it once with the offsets, and with None after the sync or an error.

It must not raise, and must not wait for the log: the log makes no progress while it runs.
"""

Callback = Callable[[HeadraceError | None], None]
"""An `OnSynced` that has its offsets."""

_JOIN_BELOW_BYTES = 4096


@dataclass(slots=True)
class SyncGroup:
    offset: int
    new_segment: bool
    buffers: list[bytes | memoryview] = field(default_factory=list)
    bytes: int = 0
    done: list[Callback] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.offset + layout.GROUP_BYTES + self.bytes

    def add(self, parts: Sequence[memoryview], length: int) -> int:
        """Add one payload, and return its offset."""
        offset = self.end
        header = layout.frame_header(offset, layout.DATA, parts, length)
        pad = bytes(layout.padding(length))
        if length < _JOIN_BELOW_BYTES:
            self.buffers.append(b"".join((header, *parts, pad)))
        else:
            self.buffers += (header, *parts, pad) if pad else (header, *parts)
        self.bytes += layout.frame_bytes(length)
        return offset


def call_all(waiting: Sequence[Callback], outcome: HeadraceError | None) -> None:
    """Call all callbacks in order, even if one raises; raise its error at the end."""
    with ExitStack() as calls:
        for done in reversed(waiting):
            calls.callback(done, outcome)
