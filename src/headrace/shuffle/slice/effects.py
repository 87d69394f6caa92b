"""What a Slice's state asks its actor to do. The actor keeps their order. Pure."""

from __future__ import annotations

from typing import NamedTuple

from headrace.ids import JournalId, Offset
from headrace.shuffle.block import BlockHead, SpanEnd
from headrace.shuffle.progress_delta import ProgressReport


class Fetch(NamedTuple):
    """Call `Journals.fetch`, and `SliceState.fetched` with what it returns."""

    number: int
    place: int
    journal: JournalId
    offset: Offset
    through: Offset
    bytes_max: int


class SendBlock(NamedTuple):
    """Send a block to the Queue of a member."""

    member: int
    head: BlockHead
    body: object


class SendEnds(NamedTuple):
    """Send ACKs to the Queue of a member, after the blocks that they commit or roll back."""

    member: int
    lane: int
    ends: tuple[SpanEnd, ...]


class SendBounds(NamedTuple):
    """Announce to every Queue, for each lane, the adjusted clock below which nothing is due."""

    bounds: tuple[int, ...]


class SendFlush(NamedTuple):
    """Ask every Queue to answer once it has written all that was sent of the lane before."""

    number: int
    lane: int


class SendStop(NamedTuple):
    """Tell every Queue that the Slice has stopped reading these places."""

    lane: int
    places: tuple[int, ...]
    checkpoint: int
    """The last checkpoint that may show documents of these places."""


class SendStarving(NamedTuple):
    """Tell every Queue whether the consumer starves."""

    starving: bool
    checkpoint: int
    """The last checkpoint that the Session made."""


class Report(NamedTuple):
    """Tell the Session what the Slice took of a lane."""

    delta: ProgressReport


class Finish(NamedTuple):
    """Tell the Session that the Slice took and reported the whole cut. No Report follows."""


Effect = (
    Fetch
    | SendBlock
    | SendEnds
    | SendBounds
    | SendFlush
    | SendStop
    | SendStarving
    | Report
    | Finish
)
