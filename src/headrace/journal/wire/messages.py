"""The messages between a process and the owner of the workspace that it works through."""

from __future__ import annotations

import msgspec

from headrace.files import DirectoryIdentity
from headrace.ids import JournalId, Offset
from headrace.journal.contract import JournalInfo, Write
from headrace.journal.names import Selector
from headrace.journal.wire.calls import AnyCall
from headrace.journal.wire.frame_codec import Frames

JOURNALS = "journals"
"""A server hosts the journal service under this kind, for clients that know only its address."""


def journals_of(workspace: str) -> str:
    """The kind of the same service for clients that accept no other workspace than this one."""
    return f"{JOURNALS}/{workspace}"


class FetchRequest(msgspec.Struct, frozen=True, tag="fetch"):
    """Asks for the first frames that begin in [offset, through): see `Journals.fetch`."""

    journal: JournalId
    offset: Offset
    through: Offset
    bytes_max: int
    kernel: str = ""
    """The kernel of a reader that can read the log's files: see `files.DirectoryIdentity`."""
    anew: bool = False
    """True if the answer must hold every hint table, even those that were sent before."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A numbered request. The bodies of a Write travel beside it."""

    number: int
    call: AnyCall | Write | FetchRequest


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Opens a stream of frames: see `Journals.read`."""

    journal: JournalId
    offset: Offset
    through: Offset
    committed: bool


class Observe(msgspec.Struct, frozen=True, array_like=True, tag="observe"):
    """Opens a stream of changes: see `Journals.watch`."""

    selectors: tuple[Selector, ...]


Request = Ask | ReadRequest | Observe


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """An error, with the fields of `errors.to_wire`."""

    kind: str
    what: str
    do: str


class JournalAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The answer to a call or a Write: what the method returned, or why it failed."""

    number: int
    value: msgspec.Raw
    refusal: Refusal | None = None


class Fetched(msgspec.Struct, frozen=True, array_like=True, tag="fetched"):
    """The answer to a FetchRequest, with the bodies of its frames."""

    number: int
    frames: Frames
    positions: list[int]
    """The log position of each hint table. A table that was sent before has no rows here."""


class Located(msgspec.Struct, frozen=True, array_like=True, tag="located"):
    """The answer to a FetchRequest of a reader that can read the log's files."""

    number: int
    directory: DirectoryIdentity
    frames: bytes
    """The locations of the frames: see `log_frames.encode_locations`."""


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """What a watch saw."""

    created: list[JournalInfo]
    deleted: list[JournalId]
    heads: dict[JournalId, Offset]


Reply = JournalAnswer | Frames | Fetched | Located | Changed

requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
