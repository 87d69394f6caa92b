"""The owner's answers to fetches."""

from __future__ import annotations

from headrace.journal.contract import until_full
from headrace.journal.local.log_frames import DOCS_ROW, FrameLocation
from headrace.journal.local.owner import Owner
from headrace.journal.local.records import ACK_BYTES, docs_bytes
from headrace.journal.wire.frame_codec import frame_head
from headrace.journal.wire.hint_tables import WIDE_BYTES, Recent
from headrace.journal.wire.messages import Fetch, Fetched, FrameHead, Frames, PointedOut
from headrace.transport import Message


class Fetches:
    """Those of one conversation.

    A wide table of hints is sent once, and after that only its position, for as long as the reader
    may be expected to remember it: both forget by the same rule. A reader that has forgotten one
    sooner asks anew, and is sent all.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._sent: Recent[bool] = Recent()
        self._pointed_out: Recent[bool] = Recent()
        """Apart from what was sent: the reader may turn out not to see the files."""

    def answer(self, number: int, fetch: Fetch) -> Message[Fetched | PointedOut]:
        directory = self._owner.directory
        if not fetch.kernel or fetch.kernel != directory.kernel:
            return self._frames(number, fetch)
        found = self._owner.stored(fetch.journal, fetch.offset, fetch.through)
        stored = until_full(found, fetch.bytes_max, self._bytes_to_read)
        return Message(PointedOut(number, directory, stored))

    def _bytes_to_read(self, stored: FrameLocation) -> int:
        extent = stored.extent
        if stored.row != DOCS_ROW and _has(self._pointed_out, extent.offset, extent.bytes):
            return ACK_BYTES
        return extent.bytes

    def _frames(self, number: int, fetch: Fetch) -> Message[Fetched | PointedOut]:
        heads: list[FrameHead] = []
        bodies = []
        numbers: dict[int, int] = {}
        tables: list[bytes] = []
        left = fetch.bytes_max
        for frame, position in self._owner.placed(fetch.journal, fetch.offset, fetch.through):
            left -= docs_bytes(len(frame.body))
            if frame.hints is not None and position not in numbers:
                numbers[position] = len(tables)
                known = _has(self._sent, position, frame.hints.nbytes) and not fetch.anew
                tables.append(b"" if known else frame.hints.tobytes())
                left -= len(tables[-1])
            heads.append(frame_head(frame, numbers.get(position, -1)))
            bodies.append(frame.body)
            if left <= 0:
                break
        answer = Fetched(number, Frames(heads, tables), list(numbers))
        return Message(answer, tuple(bodies))


def _has(told: Recent[bool], position: int, table_bytes: int) -> bool:
    """Whether the reader has a table already; if it is wide, it has it from now on."""
    if table_bytes <= WIDE_BYTES:
        return False
    if told.get(position):
        return True
    told.put(position, True, table_bytes)
    return False
