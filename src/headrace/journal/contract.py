"""What every implementation of journals must do, and the data that it takes and returns.

`LocalJournals` implements `Journals` in the process that owns a workspace, `RemoteJournals` in a
process that works through that owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from headrace.clock import Clock
from headrace.errors import CommitOutcome
from headrace.ids import Holder, JournalId, Offset, Producer
from headrace.journal.hint_tables import HintTable
from headrace.journal.local.records import CollectionPut
from headrace.journal.names import Selector
from headrace.journal.sequencer import Flags
from headrace.journal.write.commit_id import AppendedFrame, CommitId

T = TypeVar("T")

NO_HOLDER = Holder(0)

PAYLOAD_BYTES_MAX = 16 << 20
"""The largest payload of a commit: it must fit a message, with room to spare."""


class JournalInfo(msgspec.Struct, frozen=True, array_like=True):
    """One journal at one moment."""

    id: JournalId
    name: str
    begin: Offset
    """The offset of the first frame that retention has kept."""
    head: Offset
    """The offset of the next frame."""
    frames: int


class DocsHead(msgspec.Struct, frozen=True, array_like=True):
    """A frame to append; its body travels beside it."""

    journal: JournalId
    clock: Clock
    documents: int
    schema: int
    flags: Flags


class Prepared(msgspec.Struct, frozen=True, array_like=True):
    """The part of a transaction that a participant hands to its coordinator."""

    producer: Producer
    holder: Holder
    clock: Clock
    """The clock of the ACK that will commit what the participant wrote."""


class CommitRequest(msgspec.Struct, frozen=True):
    """The end of a transaction."""

    clock: Clock
    participants: tuple[Prepared, ...] = ()
    """The parts that commit. The owner fences every other participant and rolls it back."""
    payload: bytes = b""


class Lease(msgspec.Struct, frozen=True):
    """The right to write as a producer until somebody else gets it."""

    producer: Producer
    holder: Holder
    clock: Clock
    """The greatest clock that the producer ever used."""
    payload: bytes = b""
    """The payload of the last transaction that committed under the publisher's name."""
    workspace: str = ""
    """The identity of the workspace that gave the lease."""


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Frames of one producer to append at once; `commit` also ends its transaction."""

    producer: Producer
    holder: Holder
    docs: tuple[DocsHead, ...] = ()
    commit: CommitRequest | None = None


Written = Future[tuple[Offset, ...]]
"""The answer to a Write: the offset of each of its frames."""


class Changes(NamedTuple):
    """What a watch saw since the last call."""

    created: list[JournalInfo]
    deleted: list[JournalId]
    heads: dict[JournalId, Offset]

    def __bool__(self) -> bool:
        return bool(self.created or self.deleted or self.heads)


class Frame(NamedTuple):
    """A frame as a reader gets it. Its documents have the clocks `clock`, `clock + 1`, …"""

    journal: JournalId
    offset: Offset
    end: Offset
    producer: Producer
    clock: Clock
    documents: int
    schema: int
    flags: Flags
    body: Any
    """A buffer with an Arrow IPC record batch; empty for an ACK."""
    bytes: int
    """How much memory it takes. A shared hint table counts for the frame that brought it."""
    skip: int = 0
    """How many of its first documents an earlier frame held."""
    hints: HintTable | None = None
    """For an ACK, all rows (journal, offset, producer, clock) of its transaction."""


def until_full(items: Iterable[T], bytes_max: int, size: Callable[[T], int]) -> list[T]:
    """Return the first items, up to the one that makes them reach `bytes_max`."""
    taken: list[T] = []
    left = bytes_max
    for item in items:
        taken.append(item)
        left -= size(item)
        if left <= 0:
            break
    return taken


class Watch(Protocol):
    """Sees journals come and go, and their heads move."""

    def next(self, timeout_s: float) -> Changes:
        """Wait for changes, but not past the time-out, and return those since the last call.

        The first call returns every existing journal as created.
        """

    def close(self) -> None: ...


class Journals(Protocol):
    """Any thread may call the methods. Everything that they return is durable."""

    def put_collection(self, collection: CollectionPut) -> CollectionPut:
        """Create a collection, or change the existing one to a compatible newer definition."""

    def delete_collection(self, name: str) -> None: ...
    def collections(self) -> list[CollectionPut]: ...
    def create_journals(
        self, collection: str, incarnation: int, partitions: Sequence[tuple[str, ...]]
    ) -> list[JournalInfo]:
        """Return the journals of each partition (escaped values); create those that are missing."""

    def delete_journals(self, names: Sequence[str]) -> None: ...
    def journals(self, selector: Selector) -> list[JournalInfo]:
        """List matching journals by name, as of one moment: it shows only whole transactions."""

    def journals_named(self, names: Sequence[str]) -> list[JournalInfo]:
        """Return those of the named journals that exist, in the order of the names.

        Unlike `journals` this takes no longer if the workspace has many journals.
        """

    def open_publisher(self, name: str) -> Lease:
        """Lease the producer of a name, fencing and rolling back its previous holder.

        Without a name, lease any producer that nobody holds.
        """

    def publisher_payloads(self, prefix: str) -> dict[str, bytes]:
        """Return the payload that each publisher whose name begins so has committed last.

        Nobody is fenced. Publishers that committed no payload are left out.
        """

    def trim(self, journal: JournalId, offset: Offset) -> None:
        """Remove the frames of a journal below `offset`, but for the last that has documents.

        A reader that stands behind that frame's last document can go on.
        """

    def close_publisher(self, producer: Producer, holder: Holder) -> None:
        """Give a producer back; the owner rolls back what it has pending."""

    def write(self, write: Write, bodies: Sequence[Any]) -> Written:
        """Append frames. The future is done once they are durable and visible.

        Its result is the offset of each frame. Writes keep their order.
        """

    def rollback(self, producer: Producer, holder: Holder) -> None: ...
    def begin(self, producer: Producer, holder: Holder) -> int:
        """Open the producer's transaction to others, and return the number that they join."""

    def join(self, transaction: int) -> Lease: ...
    def prepare(self, prepared: Prepared) -> None:
        """Hand what a participant wrote to its coordinator; it now depends on that one's lease."""

    def outcome(self, commit: CommitId, fence: bool = True) -> CommitOutcome:
        """Return what became of a commit or an append whose answer was lost.

        The owner fences the holder first, so that the answer stays true. A caller that passes
        `fence=False` must make sure that nothing it sent for this id is still under way.
        """

    def frame_offsets(self, producer: Producer, frames: Sequence[AppendedFrame]) -> list[Offset]:
        """Return the offset of each of a producer's frames.

        Raises InDoubtError if one is not there any more, or never was.
        """

    def read(
        self, journal: JournalId, offset: Offset, through: Offset, committed: bool
    ) -> Iterator[Frame]:
        """Yield the frames of [offset, through): all of them, or the committed ones and no ACKs."""

    def fetch(
        self, journal: JournalId, offset: Offset, through: Offset, bytes_max: int
    ) -> Future[list[Frame]]:
        """Get the first frames that begin in [offset, through), committed or not.

        A reader of many journals calls this for each of them. The answer holds frames until they
        reach `bytes_max`, so at least one if there are any. The next frame begins at the end of the
        last; if the answer is empty, at `through`.
        """

    def at_most_bytes(self, offset: Offset, through: Offset) -> int:
        """Return a bound on the bytes of the frames that begin in [offset, through)."""

    def journal_names(self, journals: Sequence[JournalId]) -> list[str]:
        """Return the name of each journal; empty if it was deleted."""

    def watch(self, *selectors: Selector) -> Watch:
        """Watch the journals that any of the selectors matches; without selectors, all journals."""

    def close(self) -> None: ...
