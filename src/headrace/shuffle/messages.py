"""What the members of a Session say to each other. Bulk travels beside it, as bodies.

| from → to       | messages                                                                  |
|-----------------|---------------------------------------------------------------------------|
| Session → Slice | OpenSlice, Tags, StartRead, StopRead, Heads, Starving, Hold, AskStatus     |
| Slice → Session | Opened, ProgressDelta, Finished, SliceStatus                               |
| Slice → Queue   | OpenQueue, Append, Acks, Stopped, Bounds, Flush, Starving                  |
| Queue → Slice   | QueueOpened, Grant, Flushed                                                |
| reader → member | ReadCheckpoint, Release; Documents and Blocks come back                    |
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.clock import Clock
from headrace.files import DirectoryIdentity
from headrace.frontier import BindingTag
from headrace.ids import JournalId, Offset, Producer
from headrace.journal.location.workspace_ref import WorkspaceRef
from headrace.log import Extent
from headrace.settings import ShuffleSettings
from headrace.shuffle.binding import Source
from headrace.shuffle.block import BlockHead, SpanEnd
from headrace.shuffle.routing import Range

SLICE = "shuffle-slice"
QUEUE = "shuffle-queue"
READER = "shuffle-reader"


class MemberAt(msgspec.Struct, frozen=True, array_like=True):
    """Where a member is, and what it owns."""

    address: str
    range: Range


class OpenSlice(msgspec.Struct, frozen=True, array_like=True, tag="open-slice"):
    session: str
    """Random: whatever is said belongs to one Session and no other."""
    member: int
    members: tuple[MemberAt, ...]
    sources: tuple[Source, ...]
    workspace: WorkspaceRef
    """What the member opens to read journals."""
    settings: ShuffleSettings


class Tags(msgspec.Struct, frozen=True, array_like=True, tag="tags"):
    """Journals by id, each with the bindings that read it."""

    journals: list[tuple[int, tuple[int, ...]]]


class ReadStart(NamedTuple):
    """Read a journal under a binding from `offset` on.

    `producers` are those of which a commit is known below `offset`, each with its last commit.
    """

    place: int
    journal: JournalId
    name: str
    binding: int
    offset: Offset
    head: Offset
    producers: tuple[tuple[Producer, Clock], ...] = ()


class StartRead(msgspec.Struct, frozen=True, array_like=True, tag="start-read"):
    """Every Slice is told first what there is to read, if only that there is nothing."""

    reads: list[ReadStart]
    last: bool = False
    """They are of a cut: nothing else will be started, stopped or grow, and `Finished` is said."""


class StopRead(msgspec.Struct, frozen=True, array_like=True, tag="stop-read"):
    places: list[int]
    made: int
    """The last checkpoint that may show anything of them."""


class Heads(msgspec.Struct, frozen=True, array_like=True, tag="heads"):
    """How far journals reach, by place."""

    heads: list[tuple[int, Offset]]


class Starving(msgspec.Struct, frozen=True, array_like=True, tag="starving"):
    """Whether the consumer asks, and has nothing visible left. Slices pass it on to Queues."""

    starving: bool
    made: int
    """How many checkpoints there were."""


class Hold(msgspec.Struct, frozen=True, array_like=True, tag="hold"):
    """A Slice takes no more of these lanes, until another Hold says otherwise."""

    lanes: tuple[int, ...]
    behind: dict[int, tuple[int, ...]] = {}
    """Lanes of which only these places go on, whoever reads them: too many transactions wait for
    those."""


class AskStatus(msgspec.Struct, frozen=True, array_like=True, tag="ask-status"):
    number: int


class Lagging(msgspec.Struct, frozen=True, array_like=True):
    """A journal that is not read to its head."""

    place: int
    phase: str
    taken: Offset
    head: Offset


class SliceStatus(msgspec.Struct, frozen=True, tag="slice-status"):
    """How a member stands."""

    number: int
    reads: dict[str, int]
    """How many are pending, gated, queued and active."""
    lagging: list[Lagging]
    """Those that lag most."""
    queue_bytes: int
    waits: str
    """Why its Queue holds Slices back, or nothing."""
    open: list[tuple[int, int]]
    """Places and producers with a transaction that has no ACK yet, some of them."""
    settled: bool
    """Everything it knows of is taken and reported."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    session: str


class ProgressDelta(msgspec.Struct, frozen=True, tag="progress-delta"):
    """The tables of a `Delta` are its bodies."""

    documents: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """Everything of the cut is taken, and what ended there is reported. No report follows."""


class OpenQueue(msgspec.Struct, frozen=True, array_like=True, tag="open-queue"):
    session: str
    member: int
    """Whose Queue it is; the called one must agree."""
    slice: int
    slices: int
    sources: tuple[Source, ...]
    settings: ShuffleSettings


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """A block; its documents are the body."""

    head: BlockHead


class Acks(msgspec.Struct, frozen=True, array_like=True, tag="acks"):
    lane: int
    ends: tuple[SpanEnd, ...]


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """`StopRead`, after all that was sent of these places."""

    lane: int
    places: tuple[int, ...]
    made: int


class Bounds(msgspec.Struct, frozen=True, array_like=True, tag="bounds"):
    """By lane."""

    bounds: tuple[int, ...]


class Flush(msgspec.Struct, frozen=True, array_like=True, tag="flush"):
    """To be answered when what was sent before of the lane is written and synced."""

    number: int
    lane: int


class QueueOpened(msgspec.Struct, frozen=True, array_like=True, tag="queue-opened"):
    session: str


class Grant(msgspec.Struct, frozen=True, array_like=True, tag="grant"):
    lane: int
    bytes: int


class Flushed(msgspec.Struct, frozen=True, array_like=True, tag="flushed"):
    number: int


class ReadCheckpoint(msgspec.Struct, frozen=True, tag="read-checkpoint"):
    """The documents that a checkpoint shows; they may be asked for until it is released."""

    session: str
    number: int
    checkpoint: bytes
    """The delta, encoded; nothing if the Queue was advanced to it before."""
    ordered: bool = False
    """By lane and adjusted clock; else in the Queue's order, which is that of whole blocks."""
    kernel: str = ""
    """Of a reader that would read the Queue's files itself: see `files.DirectoryIdentity`."""
    pairs: bool = False
    """With the tables that `_pair` counts in, unless ordered: blocks are mixed then."""


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """A checkpoint was made: it can be read by its number from now on, until it is released."""

    session: str
    number: int
    checkpoint: bytes
    """The delta, encoded."""


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Checkpoints up to this number will not be read again."""

    session: str
    number: int


class Documents(msgspec.Struct, frozen=True, array_like=True, tag="documents"):
    """Documents of one binding, with our columns; the record batch is the body.

    If they are asked for, the pairs are another.
    """

    binding: BindingTag
    rows: int


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag="blocks"):
    """Blocks that are shown whole, for a reader to take from the Queue's files."""

    directory: DirectoryIdentity
    bindings: list[BindingTag]
    extents: list[Extent]


ToSlice = OpenSlice | Tags | StartRead | StopRead | Heads | Starving | Hold | AskStatus
FromSlice = Opened | ProgressDelta | Finished | SliceStatus
ToQueue = OpenQueue | Append | Acks | Stopped | Bounds | Flush | Starving
FromQueue = QueueOpened | Grant | Flushed
ToReader = Advance | ReadCheckpoint | Release
FromReader = Documents | Blocks
