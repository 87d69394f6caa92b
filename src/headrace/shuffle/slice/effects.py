"""What a Slice's state asks its actor to do, in this order. Pure."""

from __future__ import annotations

from typing import NamedTuple

from headrace.ids import JournalId, Offset
from headrace.shuffle.block import BlockHead, SpanEnd
from headrace.shuffle.progress_delta import Delta


class Fetch(NamedTuple):
    """As `Journals.fetch` has it; told to `fetched` with its number."""

    number: int
    place: int
    journal: JournalId
    offset: Offset
    through: Offset
    bytes_max: int


class SendBlock(NamedTuple):
    member: int
    head: BlockHead
    body: object


class SendEnds(NamedTuple):
    member: int
    lane: int
    ends: tuple[SpanEnd, ...]


class SendBounds(NamedTuple):
    """To every Queue."""

    bounds: tuple[int, ...]


class SendFlush(NamedTuple):
    """To every Queue."""

    number: int
    lane: int


class SendStop(NamedTuple):
    """Tell every Queue, after all that was sent of these places, that they are read no more."""

    lane: int
    places: tuple[int, ...]
    checkpoint: int
    """The last checkpoint that may show anything of them."""


class SendStarving(NamedTuple):
    """Pass on to every Queue whether the consumer starves."""

    starving: bool
    checkpoint: int
    """The last checkpoint that was made."""


class Report(NamedTuple):
    """Tell the Session what was taken of a lane."""

    delta: Delta


class Finish(NamedTuple):
    """Tell the Session that the whole cut is taken and reported. No Report follows."""


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
