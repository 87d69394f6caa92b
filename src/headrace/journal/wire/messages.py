"""What travels between a process and the owner of the workspace it works through."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace.clock import Clock
from headrace.errors import CommitOutcome
from headrace.files import DirectoryIdentity
from headrace.ids import Holder, JournalId, Offset, Producer
from headrace.journal.contract import JournalInfo, Lease, Prepared, Write
from headrace.journal.local.log_frames import FrameLocation
from headrace.journal.local.records import CollectionPut
from headrace.journal.names import Selector
from headrace.journal.write.commit_id import CommitId

JOURNALS = "journals"
"""The kind under which a server hosts the journal service, for whoever knows its address."""


def journals_of(workspace: str) -> str:
    """The same, for whoever means one workspace and no other."""
    return f"{JOURNALS}/{workspace}"


T = TypeVar("T")


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A request that is answered with a T."""

    answer: ClassVar[Any]


class PutCollection(Call[CollectionPut], frozen=True, tag=True):
    answer = CollectionPut
    collection: CollectionPut


class DeleteCollection(Call[None], frozen=True, tag=True):
    answer = None
    name: str


class ListCollections(Call[list[CollectionPut]], frozen=True, tag=True):
    answer = list[CollectionPut]


class CreateJournals(Call[list[JournalInfo]], frozen=True, tag=True):
    answer = list[JournalInfo]
    collection: str
    incarnation: int
    partitions: list[tuple[str, ...]]


class DeleteJournals(Call[None], frozen=True, tag=True):
    answer = None
    names: list[str]


class ListJournals(Call[list[JournalInfo]], frozen=True, tag=True):
    answer = list[JournalInfo]
    selector: Selector


class OpenPublisher(Call[Lease], frozen=True, tag=True):
    answer = Lease
    name: str


class ClosePublisher(Call[None], frozen=True, tag=True):
    answer = None
    producer: Producer
    holder: Holder


class Rollback(Call[None], frozen=True, tag=True):
    answer = None
    producer: Producer
    holder: Holder


class Begin(Call[int], frozen=True, tag=True):
    answer = int
    producer: Producer
    holder: Holder


class Join(Call[Lease], frozen=True, tag=True):
    answer = Lease
    transaction: int


class Prepare(Call[None], frozen=True, tag=True):
    answer = None
    prepared: Prepared


class JournalNames(Call[list[str]], frozen=True, tag=True):
    answer = list[str]
    journals: list[JournalId]


class AskOutcome(Call[CommitOutcome], frozen=True, tag=True):
    answer = CommitOutcome
    asked: CommitId
    fence: bool = True


AnyCall = (
    PutCollection
    | DeleteCollection
    | ListCollections
    | CreateJournals
    | DeleteJournals
    | ListJournals
    | OpenPublisher
    | ClosePublisher
    | Rollback
    | Begin
    | Join
    | Prepare
    | AskOutcome
    | JournalNames
)


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """The first frames that begin in [offset, through), in one answer: see `Journals.fetch`."""

    journal: JournalId
    offset: Offset
    through: Offset
    bytes_max: int
    kernel: str = ""
    """Of a reader that would read the log's files itself: see `files.DirectoryIdentity`."""
    anew: bool = False
    """With every table of hints, also those that were sent before."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A numbered request; the bodies of a Write travel beside it."""

    number: int
    call: AnyCall | Write | Fetch


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Opens a stream of frames."""

    journal: JournalId
    offset: Offset
    through: Offset
    committed: bool


class Observe(msgspec.Struct, frozen=True, array_like=True, tag="observe"):
    """Opens a watch of the journals that any of the selectors matches; without any, of all."""

    selectors: tuple[Selector, ...]


Request = Ask | Read | Observe


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """An error, as `errors.to_wire` gives it."""

    kind: str
    what: str
    do: str


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    number: int
    value: msgspec.Raw
    refusal: Refusal | None = None


class FrameHead(msgspec.Struct, frozen=True, array_like=True):
    offset: Offset
    end: Offset
    producer: Producer
    clock: Clock
    documents: int
    schema: int
    flags: int
    skip: int
    hints: int
    """Which of the tables that travel along; -1 for none."""


class Frames(msgspec.Struct, frozen=True, array_like=True, tag="frames"):
    """Frames of a read, a body each. ACKs of one transaction share its table of hints."""

    heads: list[FrameHead]
    hints: list[bytes]
    """The rows of `AckTable` records."""


class Fetched(msgspec.Struct, frozen=True, array_like=True, tag="fetched"):
    """The answer to a Fetch, with the bodies of its frames."""

    number: int
    frames: Frames
    positions: list[int]
    """Of the records of its tables. One that was sent before, with its position, is empty here."""


class PointedOut(msgspec.Struct, frozen=True, array_like=True, tag="pointed-out"):
    """The answer to a Fetch by one who sees the log's files."""

    number: int
    directory: DirectoryIdentity
    frames: list[FrameLocation]


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """What a watch saw."""

    created: list[JournalInfo]
    deleted: list[JournalId]
    heads: dict[JournalId, Offset]


Reply = Answer | Frames | Fetched | PointedOut | Changed

requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
