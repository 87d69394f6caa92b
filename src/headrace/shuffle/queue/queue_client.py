"""Reads one member's Queue: on the member's machine from its files, elsewhere through the member.

Any process can do so, not only the one that holds the Session: it needs only the member's address
and the Session's name.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future
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
from headrace.transport import Client, Message, RequestClient, Stream

_replies: msgspec.msgpack.Decoder[messages.FromReader] = msgspec.msgpack.Decoder(
    messages.FromReader
)


class _ReadBlock(NamedTuple):
    source: Source
    batch: pa.RecordBatch
    pairs: Any
    """The encoded table of pairs; empty unless the request asks for it."""


class Consumer:
    """Calls the Queue that a Session has on one member.

    It reads at any time. Before it tells the Queue of checkpoints, it has to `connect`.
    """

    def __init__(self, client: Client, session: str, sources: Sources) -> None:
        self._client = client
        self._calls = RequestClient(client.address, messages.CONSUMER, client=client)
        self._session = session
        self._sources = sources
        self.known = 0
        """The last checkpoint of which this consumer knows that the Queue was told."""
        self._schemas = {source.tag: block_schema(source) for source in sources.all}
        self._kernel = running_kernel()
        """Empty once it is known that this process cannot read the member's files."""

    def connect(self) -> None:
        """Open the conversation that `advance` and `release` use. The client closes it."""
        self._calls.connect()

    def advance(self, number: int, checkpoint: bytes) -> Future[None]:
        """Tell the Queue of a checkpoint. Once the future is done, readers can ask for it."""
        return self._calls.submit(messages.Advance(self._session, number, checkpoint))

    def read(
        self, number: int, checkpoint: bytes = b"", *, ordered: bool = False
    ) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """Yield the documents that a checkpoint shows there, with `_clock` and `_pair`.

        `checkpoint` is its encoded delta. It may be empty after `advance`.
        """
        request = messages.ReadCheckpoint(self._session, number, checkpoint, ordered)
        for source, batch, _ in self._read(request):
            self.note_known(number)
            yield source, batch
        self.note_known(number)

    def blocks(self, number: int) -> Iterator[Block]:
        """Yield them with their tables of pairs. Call `advance` before."""
        request = messages.ReadCheckpoint(self._session, number, b"", pairs=True)
        for source, batch, pairs in self._read(request):
            yield Block(source, batch, np.frombuffer(pairs, PAIR_ROW))

    def note_known(self, number: int) -> None:
        self.known = max(self.known, number)

    def release(self, number: int) -> Future[None]:
        """Tell the Queue that nobody will read the checkpoints up to this number again.

        It carries that out before what it is told later.
        """
        return self._calls.submit(messages.Release(self._session, number))

    def _read(self, request: messages.ReadCheckpoint) -> Iterator[_ReadBlock]:
        if self._kernel and not request.ordered and (yield from self._from_files(request)):
            return
        with self._client.stream(messages.READER, request, _replies) as stream:
            yield from self._documents(stream, request.pairs)

    def _from_files(self, request: messages.ReadCheckpoint) -> Generator[_ReadBlock, None, bool]:
        """Yield the blocks from the member's files, and return True if that was possible.

        If it returns False, it has yielded nothing, and the caller reads through the member. Once
        it has yielded a block, a file that it cannot read is an error: no document comes twice.
        """
        from_here = msgspec.structs.replace(request, kernel=self._kernel)
        with self._client.stream(messages.READER, from_here, _replies) as stream:
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
    ) -> Iterator[_ReadBlock]:
        for message in stream:
            control = message.control
            if isinstance(control, messages.Documents):
                body, *pairs = message.bodies
                yield self._decode(control.binding, body, *pairs)
                continue
            payloads = LogFiles(control.directory.path).read(control.extents)
            for binding, payload in zip(control.bindings, payloads, strict=True):
                pairs = [stored_pairs(payload)] if with_pairs else []
                yield self._decode(binding, stored_body(payload), *pairs)

    def _decode(self, binding: BindingTag, body: Any, pairs: Any = b"") -> _ReadBlock:
        source, schema = self._sources.by_tag[binding], self._schemas[binding]
        return _ReadBlock(source, decode_block(body, schema), pairs)


class Share(msgspec.Struct, frozen=True):
    """What one member shows of a checkpoint.

    Any process can read it, any number of times, until somebody releases the checkpoint.
    """

    address: str
    session: str
    number: int
    """The number of the checkpoint within the Session."""
    sources: tuple[Source, ...]
    journals: dict[int, str] = {}
    """The names of the journals that it shows documents of, by tag; empty unless asked for."""

    def read(self, service: ServiceSettings) -> Iterator[tuple[Source, pa.RecordBatch]]:
        """Yield the documents, with `_clock` and `_pair`."""
        with Client(self.address, service) as client:
            yield from Consumer(client, self.session, Sources(self.sources)).read(self.number)

    def blocks(self, service: ServiceSettings) -> Iterator[Block]:
        """Yield them with their tables of pairs, whose places contain the tags of `journals`."""
        with Client(self.address, service) as client:
            yield from Consumer(client, self.session, Sources(self.sources)).blocks(self.number)


def _sees_files(stream: Stream[messages.FromReader]) -> bool:
    """Return True if the member points this process to files that it can see.

    The first answer to a reader that can read files names their directory.
    """
    first = stream.receive()
    return (
        first is not None
        and isinstance(first.control, messages.Blocks)
        and is_here(first.control.directory)
    )
