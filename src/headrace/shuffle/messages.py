"""The messages between the members of a Session. Documents travel beside them, as bodies.

| from → to       | messages                                                                  |
|-----------------|---------------------------------------------------------------------------|
| Session → Slice | OpenSlice, Tags, StartRead, StopRead, Heads, Starving, Hold, AskStatus     |
| Slice → Session | Opened, ProgressDelta, Finished, SliceStatus                               |
| Slice → Queue   | OpenQueue, Append, Acks, Stopped, Bounds, Flush, Starving                  |
| Queue → Slice   | QueueOpened, Grant, Flushed                                                |
| consumer → member | Advance, Release                                                        |
| reader → member | ReadCheckpoint; Documents and Blocks come back                            |
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
CONSUMER = "shuffle-consumer"
READER = "shuffle-reader"


class MemberAt(msgspec.Struct, frozen=True, array_like=True):
    """The address of a member, and the range that it owns."""

    address: str
    range: Range


class OpenSlice(msgspec.Struct, frozen=True, array_like=True, tag="open-slice"):
    session: str
    """A random name, so that no message belongs to two Sessions."""
    member: int
    members: tuple[MemberAt, ...]
    sources: tuple[Source, ...]
    workspace: WorkspaceRef
    """The workspace whose journals the member reads."""
    settings: ShuffleSettings


class Tags(msgspec.Struct, frozen=True, array_like=True, tag="tags"):
    """The ids of journals, each with the tags of the bindings that read it."""

    journals: list[tuple[int, tuple[int, ...]]]


class ReadStart(NamedTuple):
    """Read a journal under a binding from `offset` on.

    `producers` are those of which a commit is known below `offset`, each with its last commit.
    """

    place: int
    journal: JournalId
    name: str
    offset: Offset
    head: Offset
    producers: tuple[tuple[Producer, Clock], ...] = ()


class StartRead(msgspec.Struct, frozen=True, array_like=True, tag="start-read"):
    """The Session sends it to every Slice first, even if there is nothing to read."""

    reads: list[ReadStart]
    is_cut: bool = False
    """True if nothing else will start, stop or grow. The Slice answers `Finished` at the end."""


class StopRead(msgspec.Struct, frozen=True, array_like=True, tag="stop-read"):
    places: list[int]
    checkpoint: int
    """The last checkpoint that may show documents of these places."""


class Heads(msgspec.Struct, frozen=True, array_like=True, tag="heads"):
    """The heads of journals that have grown, by place."""

    heads: list[tuple[int, Offset]]


class Starving(msgspec.Struct, frozen=True, array_like=True, tag="starving"):
    """Whether the consumer waits for a checkpoint and has none left. Slices tell their Queues."""

    starving: bool
    checkpoint: int
    """The last checkpoint that the Session made."""


class Hold(msgspec.Struct, frozen=True, array_like=True, tag="hold"):
    """A Slice takes nothing of these lanes until the next Hold."""

    lanes: tuple[int, ...]
    behind: dict[int, tuple[int, ...]] = {}
    """Lanes, and in each the only places that go on: too many transactions wait for them."""


class AskStatus(msgspec.Struct, frozen=True, array_like=True, tag="ask-status"):
    number: int


class Lagging(msgspec.Struct, frozen=True, array_like=True):
    """A journal that the Slice has not read to its head."""

    place: int
    phase: str
    taken: Offset
    head: Offset


class SliceStatus(msgspec.Struct, frozen=True, tag="slice-status"):
    """What a member is doing."""

    number: int
    reads: dict[str, int]
    """The number of reads in each phase."""
    lagging: list[Lagging]
    """The reads that lag most."""
    queue_bytes: int
    waits: str
    """Why its Queue holds Slices back; empty if it does not."""
    open: list[tuple[int, int]]
    """Some of the places and producers with an open span."""
    settled: bool
    """True if the Slice has taken and reported all that it knows of."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    session: str


class ProgressDelta(msgspec.Struct, frozen=True, tag="progress-delta"):
    """Its bodies are the tables of a `ProgressReport`."""

    documents: int


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The Slice has taken and reported its part of the cut. No report follows."""


class OpenQueue(msgspec.Struct, frozen=True, array_like=True, tag="open-queue"):
    session: str
    member: int
    """The member whose Queue the Slice means to call."""
    slice: int
    slices: int
    sources: tuple[Source, ...]
    settings: ShuffleSettings


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """A block. Its body is the documents."""

    head: BlockHead


class Acks(msgspec.Struct, frozen=True, array_like=True, tag="acks"):
    lane: int
    ends: tuple[SpanEnd, ...]


class Stopped(msgspec.Struct, frozen=True, array_like=True, tag="stopped"):
    """The Slice sends nothing more of these places, because of a `StopRead`."""

    lane: int
    places: tuple[int, ...]
    checkpoint: int


class Bounds(msgspec.Struct, frozen=True, array_like=True, tag="bounds"):
    """For each lane, the adjusted clock below which the Slice has nothing due."""

    bounds: tuple[int, ...]


class Flush(msgspec.Struct, frozen=True, array_like=True, tag="flush"):
    """The Queue answers it once all that the Slice sent of the lane before is durable."""

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
    """Asks for the documents that a checkpoint shows, until somebody releases it."""

    session: str
    number: int
    checkpoint: bytes
    """The encoded delta; empty if the Queue was advanced to it before."""
    ordered: bool = False
    """True for the order of lanes and adjusted clocks; False for that of the Queue's blocks."""
    kernel: str = ""
    """Set by a reader that can read the Queue's files itself: see `files.DirectoryIdentity`."""
    pairs: bool = False
    """True to get the tables of pairs as well. They do not exist if `ordered`."""


class Advance(msgspec.Struct, frozen=True, tag="advance"):
    """A checkpoint was made. Readers may ask for it by its number until it is released."""

    session: str
    number: int
    checkpoint: bytes
    """The encoded delta."""


class Release(msgspec.Struct, frozen=True, tag="release"):
    """Nobody will read the checkpoints up to this number again."""

    session: str
    number: int


class Documents(msgspec.Struct, frozen=True, array_like=True, tag="documents"):
    """Documents of one binding. The body is a record batch of a block's columns.

    If the reader asked for pairs, a second body is their table.
    """

    binding: BindingTag
    rows: int


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag="blocks"):
    """Blocks that a checkpoint shows whole. The reader takes them from the Queue's files."""

    directory: DirectoryIdentity
    bindings: list[BindingTag]
    extents: list[Extent]


ToSlice = OpenSlice | Tags | StartRead | StopRead | Heads | Starving | Hold | AskStatus
FromSlice = Opened | ProgressDelta | Finished | SliceStatus
ToQueue = OpenQueue | Append | Acks | Stopped | Bounds | Flush | Starving
FromQueue = QueueOpened | Grant | Flushed
FromConsumer = Advance | Release
ToReader = ReadCheckpoint
FromReader = Documents | Blocks
