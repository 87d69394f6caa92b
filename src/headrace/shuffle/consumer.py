"""Reads one member's Queue: on the member's machine from its files, elsewhere through the member.

Also for processes other than the one that holds the Session: they need to know no more than the
member's address and the Session's name.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import StorageError
from headrace.files import is_here, running_kernel
from headrace.frontier import BindingTag
from headrace.log import LogFiles
from headrace.shuffle import messages
from headrace.shuffle.binding import Source, Sources
from headrace.shuffle.block import block_schema, decode_block
from headrace.shuffle.queue.store import stored_body
from headrace.transport import Client, Message, Stream

_replies: msgspec.msgpack.Decoder[messages.FromReader] = msgspec.msgpack.Decoder(
    messages.FromReader
)


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
        if self._kernel and not ordered and (yield from self._from_files(request)):
            return
        with self._client.stream(messages.READER, request, _replies) as stream:
            yield from self._documents(stream)

    def release(self, number: int) -> None:
        """Checkpoints up to this number will not be read again."""
        self._call(messages.Release(self._session, number))

    def _call(self, request: messages.ToReader) -> None:
        with self._client.stream(messages.READER, request, _replies) as stream:
            for _ in stream:
                pass

    def _from_files(
        self, request: messages.ReadCheckpoint
    ) -> Generator[tuple[Source, pa.RecordBatch], None, bool]:
        """Whether they could be read: if not, nothing was yielded, and the member is to be asked.

        Once something was, a file that cannot be read is an error: nothing is yielded twice.
        """
        at_hand = msgspec.structs.replace(request, kernel=self._kernel)
        with self._client.stream(messages.READER, at_hand, _replies) as stream:
            if not _sees_files(stream):
                self._kernel = ""
                return False
            documents = self._documents(stream)
            try:
                first = next(documents, None)
            except StorageError:
                return False
            if first is not None:
                yield first
                yield from documents
        return True

    def _documents(
        self, stream: Iterable[Message[messages.FromReader]]
    ) -> Iterator[tuple[Source, pa.RecordBatch]]:
        for message in stream:
            control = message.control
            if isinstance(control, messages.Documents):
                yield self._decoded(control.binding, message.bodies[0])
                continue
            payloads = LogFiles(control.directory.path).read(control.extents)
            for binding, payload in zip(control.bindings, payloads, strict=True):
                yield self._decoded(binding, stored_body(payload))

    def _decoded(self, binding: BindingTag, body: Any) -> tuple[Source, pa.RecordBatch]:
        return self._sources.by_tag[binding], decode_block(body, self._schemas[binding])


def _sees_files(stream: Stream[messages.FromReader]) -> bool:
    """The first answer to who would read files says which."""
    first = stream.receive()
    return (
        first is not None
        and isinstance(first.control, messages.Blocks)
        and is_here(first.control.directory)
    )
