"""What a place that keeps journals must do, and the messages it is asked with.

`Journals` is implemented by the owner of a local workspace (`local/`) and by a process that
works through that owner (`remote`). The messages are what travels between the two.
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
from headrace.journal.write.commit_id import CommitId

T = TypeVar("T")

NO_HOLDER = Holder(0)

PAYLOAD_BYTES_MAX = 16 << 20
"""What a commit can carry: it must fit a message, with room to spare."""


class JournalInfo(msgspec.Struct, frozen=True, array_like=True):
    """One journal at one moment."""

    id: JournalId
    name: str
    begin: Offset
    """The first position that is still kept."""
    head: Offset
    """Where the next frame will stand."""
    frames: int


class DocsHead(msgspec.Struct, frozen=True, array_like=True):
    """A frame to be appended; its body travels beside it."""

    journal: JournalId
    clock: Clock
    documents: int
    schema: int
    flags: Flags


class Prepared(msgspec.Struct, frozen=True, array_like=True):
    """What a participant hands to the coordinator of its transaction."""

    producer: Producer
    holder: Holder
    clock: Clock
    """Of the ACK that will commit what it wrote."""


class CommitRequest(msgspec.Struct, frozen=True):
    clock: Clock
    participants: tuple[Prepared, ...] = ()
    """The winners: every other participant is fenced and rolled back."""
    payload: bytes = b""


class Lease(msgspec.Struct, frozen=True):
    """The right to write as a producer until somebody else is given it."""

    producer: Producer
    holder: Holder
    clock: Clock
    """The greatest that the producer ever used."""
    payload: bytes = b""
    """Of the last transaction that committed under the publisher's name."""
    workspace: str = ""
    """The identity of the workspace that gave it."""


class Write(msgspec.Struct, frozen=True, tag="write"):
    """Frames of one producer, and with `commit` the end of its transaction, in one append."""

    producer: Producer
    holder: Holder
    docs: tuple[DocsHead, ...] = ()
    commit: CommitRequest | None = None


class Changes(NamedTuple):
    """What a watch saw since it was last asked."""

    created: list[JournalInfo]
    deleted: list[JournalId]
    heads: dict[JournalId, Offset]

    def __bool__(self) -> bool:
        return bool(self.created or self.deleted or self.heads)


class Frame(NamedTuple):
    """A frame as a reader gets it. Its documents are clocked `clock`, `clock + 1`, …"""

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
    """What it takes to hold it. Hints that others share count for the one that brought them."""
    skip: int = 0
    """How many of its first documents were seen in an earlier frame."""
    hints: HintTable | None = None
    """Of an ACK: the rows (journal, offset, producer, clock) of its transaction, its own too."""


def until_full(found: Iterable[T], bytes_max: int, size: Callable[[T], int]) -> list[T]:
    """The first of them, until they come to `bytes_max`."""
    taken: list[T] = []
    left = bytes_max
    for each in found:
        taken.append(each)
        left -= size(each)
        if left <= 0:
            break
    return taken


class Watch(Protocol):
    def next(self, timeout_s: float) -> Changes:
        """What changed since the last call; waits for something to, but not past the time-out.

        The first call returns every journal there is as created.
        """

    def close(self) -> None: ...


class Journals(Protocol):
    """All methods may be called from any thread. Everything returned is durable."""

    def put_collection(self, collection: CollectionPut) -> CollectionPut:
        """Create a collection, or bring the existing one to a compatible newer definition."""

    def delete_collection(self, name: str) -> None: ...
    def collections(self) -> list[CollectionPut]: ...
    def create_journals(
        self, collection: str, incarnation: int, partitions: Sequence[tuple[str, ...]]
    ) -> list[JournalInfo]:
        """The journals of each partition (escaped values); made where they do not exist."""

    def delete_journals(self, names: Sequence[str]) -> None: ...
    def journals(self, selector: Selector) -> list[JournalInfo]:
        """Matching journals by name, all as of one moment: no transaction is half in it."""

    def open_publisher(self, name: str) -> Lease:
        """With a name, its previous holder is fenced and rolled back. Without, a pooled one."""

    def close_publisher(self, producer: Producer, holder: Holder) -> None:
        """Give a producer back; what it has pending is rolled back."""

    def write(self, write: Write, bodies: Sequence[Any]) -> Future[None]:
        """Done once the frames are durable and visible. Writes keep their order."""

    def rollback(self, producer: Producer, holder: Holder) -> None: ...
    def begin(self, producer: Producer, holder: Holder) -> int:
        """Open the producer's transaction to others; returns what they join."""

    def join(self, transaction: int) -> Lease: ...
    def prepare(self, prepared: Prepared) -> None:
        """Hand what a participant wrote to its coordinator, whose lease it now lives by."""

    def outcome(self, asked: CommitId, fence: bool = True) -> CommitOutcome:
        """What became of a commit or an append whose answer was lost.

        Its holder is fenced first, so that the answer stays true. Without `fence` the caller sees
        to that: nothing that it sent for this id may still be under way.
        """

    def read(
        self, journal: JournalId, offset: Offset, through: Offset, committed: bool
    ) -> Iterator[Frame]:
        """Frames of [offset, through): all of them, or the committed ones with no ACKs."""

    def fetch(
        self, journal: JournalId, offset: Offset, through: Offset, bytes_max: int
    ) -> Future[list[Frame]]:
        """The first frames that begin in [offset, through), as they stand; for a reader of many.

        They are added until they hold `bytes_max`, so there is at least one if there are any. What
        follows begins at the end of the last; if there are none, at `through`.
        """

    def at_most_bytes(self, offset: Offset, through: Offset) -> int:
        """About how much what begins in [offset, through) takes, if offsets tell; else much."""

    def journal_names(self, journals: Sequence[JournalId]) -> list[str]:
        """The name of each; empty if it is gone."""

    def watch(self, *selectors: Selector) -> Watch:
        """Sees the journals that any of the selectors matches; without selectors, all of them."""

    def close(self) -> None: ...
