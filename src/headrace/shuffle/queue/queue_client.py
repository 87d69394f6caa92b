"""Reads one member's Queue: on the member's machine from its files, elsewhere through the member.

Also for processes other than the one that holds the Session: they need to know no more than the
member's address and the Session's name.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import StorageError
from headrace.files import is_here, running_kernel
from headrace.frontier import BindingTag
from headrace.log import LogFiles
from headrace.settings import ServiceSettings
from headrace.shuffle import messages
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.block import PAIR_ROW, Block, block_schema, decode_block
from headrace.shuffle.queue.store import stored_body, stored_pairs
from headrace.transport import Client, Message, Stream

_replies: msgspec.msgpack.Decoder[messages.FromReader] = msgspec.msgpack.Decoder(
    messages.FromReader
)


class _Found(NamedTuple):
    source: Source
    batch: pa.RecordBatch
    pairs: Any
    """The table, encoded; nothing if it was not asked for."""


class Consumer:
    def __init__(self, client: Client, session: str, sources: Sources) -> None:
        self._client = client
        self._session = session
        self._sources = sources
        self._schemas = {source.tag: block_schema(source) for source in sources.all}
        self._kernel = running_kernel()
        """Nothing once it is known that the member's files cannot be read here."""

    def advance(self, number: int, checkpoint: bytes) -> None:
        """From now on the checkpoint can be read by its number."""
        self._call(messages.Advance(self._session, number, checkpoint))

    def read(
        self, number: int, checkpoint: bytes = b"", *, ordered: bool = False
    ) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """The documents that a checkpoint shows there, with `_clock` and `_pair`.

        Without the delta the member must have been advanced to it.
        """
        request = messages.ReadCheckpoint(self._session, number, checkpoint, ordered)
        for source, batch, _ in self._read(request):
            yield source, batch

    def blocks(self, number: int) -> Iterator[Block]:
        """The same with the tables of pairs. The member must have been advanced to it."""
        request = messages.ReadCheckpoint(self._session, number, b"", pairs=True)
        for source, batch, pairs in self._read(request):
            yield Block(source, batch, np.frombuffer(pairs, PAIR_ROW))

    def release(self, number: int) -> None:
        """Checkpoints up to this number will not be read again."""
        self._call(messages.Release(self._session, number))

    def _call(self, request: messages.ToReader) -> None:
        with self._client.stream(messages.READER, request, _replies) as stream:
            for _ in stream:
                pass

    def _read(self, request: messages.ReadCheckpoint) -> Iterator[_Found]:
        if self._kernel and not request.ordered and (yield from self._from_files(request)):
            return
        with self._client.stream(messages.READER, request, _replies) as stream:
            yield from self._documents(stream, request.pairs)

    def _from_files(self, request: messages.ReadCheckpoint) -> Generator[_Found, None, bool]:
        """Whether they could be read: if not, nothing was yielded, and the member is to be asked.

        Once something was, a file that cannot be read is an error: nothing is yielded twice.
        """
        at_hand = msgspec.structs.replace(request, kernel=self._kernel)
        with self._client.stream(messages.READER, at_hand, _replies) as stream:
            if not _sees_files(stream):
                self._kernel = ""
                return False
            documents = self._documents(stream, request.pairs)
            try:
                first = next(documents, None)
            except StorageError:
                return False
            if first is not None:
                yield first
                yield from documents
        return True

    def _documents(
        self, stream: Iterable[Message[messages.FromReader]], with_pairs: bool
    ) -> Iterator[_Found]:
        for message in stream:
            control = message.control
            if isinstance(control, messages.Documents):
                body, *pairs = message.bodies
                yield self._found(control.binding, body, *pairs)
                continue
            payloads = LogFiles(control.directory.path).read(control.extents)
            for binding, payload in zip(control.bindings, payloads, strict=True):
                pairs = [stored_pairs(payload)] if with_pairs else []
                yield self._found(binding, stored_body(payload), *pairs)

    def _found(self, binding: BindingTag, body: Any, pairs: Any = b"") -> _Found:
        source, schema = self._sources.by_tag[binding], self._schemas[binding]
        return _Found(source, decode_block(body, schema), pairs)


class Share(msgspec.Struct, frozen=True):
    """What one member shows of a checkpoint.

    Any process can read it, any number of times, until somebody releases the checkpoint.
    """

    address: str
    session: str
    number: int
    """Of the checkpoint, within the Session."""
    sources: tuple[Source, ...]
    journals: dict[int, str] = {}
    """If they were asked for: the names of the journals that it shows any of, by tag."""

    def read(self, service: ServiceSettings) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """The documents, with `_clock` and `_pair`."""
        with Client(self.address, service) as client:
            yield from Consumer(client, self.session, Sources(self.sources)).read(self.number)

    def blocks(self, service: ServiceSettings) -> Iterator[Block]:
        """The same with the tables of pairs, whose places begin with tags."""
        with Client(self.address, service) as client:
            yield from Consumer(client, self.session, Sources(self.sources)).blocks(self.number)


def _sees_files(stream: Stream[messages.FromReader]) -> bool:
    """The first answer to who would read files says which."""
    first = stream.receive()
    return (
        first is not None
        and isinstance(first.control, messages.Blocks)
        and is_here(first.control.directory)
    )
