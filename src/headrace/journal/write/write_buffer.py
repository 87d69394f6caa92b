"""The buffer of a writer: collects documents per journal, then clocks, frames and sends them.

It joins small appends into one frame per journal. A transaction that fits the buffer travels with
its commit as one message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import pyarrow as pa

from headrace.clock import ClockSource
from headrace.errors import DocumentError, HeadraceError, NotFoundError, PublishError
from headrace.ids import JournalId
from headrace.journal.collection import Collection
from headrace.journal.contract import CommitRequest, DocsHead, Journals, Lease, Write, Written
from headrace.journal.documents import conversion
from headrace.journal.documents.arrow_stream import (
    ArrowArray,
    ArrowStream,
    is_streamed,
    read_pieces,
)
from headrace.journal.documents.validation import DocumentSpec
from headrace.journal.sequencer import Flags
from headrace.journal.write.commit_id import AppendedFrame, CommitId, workspace_digits
from headrace.journal.write.partitioner import Partitioner
from headrace.settings import JournalSettings

_FRAME_DOCUMENTS_MAX = 65_536
_FRAMES_AT_ONCE = 4096

_SENDS_AHEAD = 4
"""How many messages of a stream may wait for their answers."""

Documents: TypeAlias = (
    "pa.RecordBatch | pa.Table | ArrowStream | ArrowArray | list[dict[str, Any]] | bytes | str"
)
"""Arrow, or anything with its PyCapsule interface; Python dicts; NDJSON as bytes or text."""


class ProducerWriter:
    """Writes as one producer: its lease and its clock."""

    def __init__(self, lease: Lease, journals: Journals) -> None:
        self.lease = lease
        self.journals = journals
        self.clock = ClockSource(floor=lease.clock)
        self.broken = False
        """True if the owner refused a write, so that the lease has ended."""
        self.taken = True
        """True while a transaction or an append uses it."""
        self.commits_under_way = 0


def to_batch(collection: Collection, given: Documents, document_bytes_max: int) -> pa.RecordBatch:
    """Return checked documents of exactly the collection's schema."""
    spec = _spec(collection, document_bytes_max)
    match given:
        case pa.RecordBatch() | pa.Table():
            return conversion.from_arrow(given, spec)
        case bytes() | bytearray() | memoryview():
            return conversion.from_ndjson(memoryview(given), spec)
        case str():
            return conversion.from_ndjson(given.encode(errors="surrogatepass"), spec)
        case list() | tuple():
            return conversion.from_dicts(given, spec)
    raise DocumentError(
        f"documents for {collection.name} cannot be of type {type(given).__name__}",
        do="give a table (Arrow, pandas, Polars, DuckDB), a list of dicts, or NDJSON",
    )


@lru_cache(maxsize=256)
def _spec(collection: Collection, document_bytes_max: int) -> DocumentSpec:
    return DocumentSpec(collection.schema, collection.key, document_bytes_max)


class SealedFrames(NamedTuple):
    """Frames that have their clocks. They must be sent in the order in which they were sealed."""

    heads: list[DocsHead]
    bodies: list[Any]


class _Savepoint(NamedTuple):
    """The contents of a buffer at one moment."""

    lengths: dict[tuple[JournalId, int], int]
    buffered_bytes: int
    documents: int
    messages_sent: int


class WriteBuffer:
    """Holds what one transaction, participant or outside append has yet to send."""

    def __init__(
        self,
        writer: ProducerWriter,
        partitioner: Partitioner,
        settings: JournalSettings,
        flags: Flags,
    ) -> None:
        self.writer = writer
        self._partitioner = partitioner
        self._settings = settings
        self._flags = flags
        self._buffered: dict[tuple[JournalId, int], list[pa.RecordBatch]] = {}
        self._buffered_bytes = 0
        self._torn = False
        """True if an append ended half-way, after Ctrl-C or because it could not be sent."""
        self.documents = 0
        self.messages_sent = 0
        self._sends: deque[Written] = deque(maxlen=_SENDS_AHEAD + 1)
        self._frames_sent: tuple[DocsHead, DocsHead] | None = None
        """The first and the last frame sent."""

    def append(self, collection: Collection, given: Documents) -> int:
        """Take all documents and return their number; after an error take none.

        A stream that fails after a part of it was sent cannot be taken back: its transaction can
        only be rolled back.
        """
        if not is_streamed(given):
            return self._take(
                collection, to_batch(collection, given, self._settings.document_bytes_max)
            )
        self.check_whole()
        before = self._savepoint()
        try:
            return self._append_stream(collection, cast("ArrowStream | ArrowArray", given))
        except BaseException:
            self._return_to(before)
            raise

    def _append_stream(self, collection: Collection, given: ArrowStream | ArrowArray) -> int:
        spec = _spec(collection, self._settings.document_bytes_max)
        taken = 0
        for piece in read_pieces(given, spec.schema.names):
            taken += self._take(
                collection, conversion.from_arrow(piece, spec, documents_before=taken)
            )
            while len(self._sends) > _SENDS_AHEAD:
                self._sends.popleft().result()
        return taken

    def _savepoint(self) -> _Savepoint:
        lengths = {target: len(batches) for target, batches in self._buffered.items()}
        return _Savepoint(lengths, self._buffered_bytes, self.documents, self.messages_sent)

    def _return_to(self, mark: _Savepoint) -> None:
        """Drop what was taken since the savepoint, if none of it was sent."""
        if self._torn or self.messages_sent > mark.messages_sent:
            self._torn = True
            return
        self._buffered = {
            target: self._buffered[target][:length] for target, length in mark.lengths.items()
        }
        self._buffered_bytes, self.documents = mark.buffered_bytes, mark.documents

    def _take(self, collection: Collection, batch: pa.RecordBatch) -> int:
        parts = list(self._partitioner.partition(collection, batch))
        self.check_whole()
        self._torn = True
        for journal, part in parts:
            self._buffered.setdefault((journal, collection.version), []).append(part)
        self._buffered_bytes += _bytes_at_most(batch, self._settings.frame_bytes_target)
        self.documents += batch.num_rows
        if self._buffered_bytes > self._settings.transaction_buffer_bytes:
            self._sends.append(self.send(self._seal()))
        self._torn = False
        return int(batch.num_rows)

    @property
    def sent(self) -> bool:
        """True if the owner may have a part of it."""
        return self.messages_sent > 0

    def seal(self) -> SealedFrames:
        """Clock and frame the buffer; send all but the last message, and return that."""
        self.check_whole()
        return self._seal()

    def _seal(self) -> SealedFrames:
        last = SealedFrames([], [])
        for message in self._messages():
            if last.heads:
                self.send(last)
            last = message
        return last

    def send(self, sealed: SealedFrames, commit: CommitRequest | None = None) -> Written:
        """Send frames; `commit` also ends the transaction."""
        lease = self.writer.lease
        write = Write(lease.producer, lease.holder, tuple(sealed.heads), commit)
        self.messages_sent += 1
        if sealed.heads:
            first = self._frames_sent[0] if self._frames_sent else sealed.heads[0]
            self._frames_sent = first, sealed.heads[-1]
        try:
            future = self.writer.journals.write(write, sealed.bodies)
        except HeadraceError as error:
            self._note_refusal(error)
            raise
        future.add_done_callback(lambda done: self._note_refusal(done.exception()))
        return future

    def append_id(self, *, is_whole: bool) -> CommitId | None:
        """Return the id of an outside append; None if no frame was sent.

        Unless `is_whole`, the id stands for more frames than were sent, so its outcome is never
        COMMITTED.
        """
        if self._frames_sent is None:
            return None
        lease = self.writer.lease
        first, last = self._frames_sent
        return CommitId(
            workspace_digits(lease.workspace),
            lease.producer,
            lease.holder,
            last.clock if is_whole else self.writer.clock.take(),
            last.journal,
            AppendedFrame(first.journal, first.clock),
        )

    def check_whole(self) -> None:
        """Raises PublishError if an append failed half-way."""
        if self._torn:
            raise PublishError(
                "an append of this transaction failed half-way",
                do="roll the transaction back and repeat it",
            )

    def _note_refusal(self, error: BaseException | None) -> None:
        if error:
            self.writer.broken = True
        if isinstance(error, NotFoundError):
            self._partitioner.forget()

    def _messages(self) -> Iterator[SealedFrames]:
        buffered, self._buffered = self._buffered, {}
        self._buffered_bytes = 0
        message, size = SealedFrames([], []), 0
        for (journal, version), batches in buffered.items():
            joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            for frame in _frames(joined, self._settings.frame_bytes_target):
                body = frame.serialize()
                clock = self.writer.clock.take(frame.num_rows)
                head = DocsHead(journal, clock, frame.num_rows, version, self._flags)
                message.heads.append(head)
                message.bodies.append(body)
                size += len(body)
                full = len(message.heads) == _FRAMES_AT_ONCE
                if full or size > self._settings.transaction_buffer_bytes:
                    yield message
                    message, size = SealedFrames([], []), 0
        if message.heads:
            yield message


def _bytes_at_most(batch: pa.RecordBatch, small: int) -> int:
    """Return the bytes of a batch; for a small one only a bound, which is much faster."""
    bound: int = batch.get_total_buffer_size()
    return bound if bound <= small else int(batch.nbytes)


def _frames(batch: pa.RecordBatch, target_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into frames of about the target size, but never a single document."""
    rows = batch.num_rows
    size = _bytes_at_most(batch, target_bytes)
    parts = min(rows, max(-(-size // target_bytes), -(-rows // _FRAME_DOCUMENTS_MAX)))
    if parts <= 1:
        if rows:
            yield batch
        return
    step = -(-rows // parts)
    for start in range(0, rows, step):
        yield from _frames(batch.slice(start, step), target_bytes)
