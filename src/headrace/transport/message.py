"""Messages: typed control structs with opaque bodies, in one fixed Flight schema.

A Flight stream has one schema, but its users send batches of many. So bodies are opaque bytes in
the rows of one column, and control structs travel in the metadata of the batch. Small messages that
wait for the same writer share one batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pyarrow as pa

from headrace.errors import UsageError
from headrace.settings import MIB

C = TypeVar("C")
Body = Any
"""Anything with the buffer protocol: bytes, memoryview, pyarrow.Buffer."""

ENVELOPE = pa.schema([pa.field("body", pa.large_binary(), nullable=False)])

MESSAGE_BYTES_MAX = 96 * MIB
"""One message holds at most this much, control and bodies together."""

MESSAGE_OVERHEAD_BYTES = 128
"""Each message counts this much more than its bytes, which bounds empty messages too."""


class Message(msgspec.Struct, Generic[C], frozen=True):
    """One message. The bodies of a received message are slices of the batch that brought it."""

    control: C
    bodies: tuple[Body, ...] = ()


class EncodedMessage(msgspec.Struct, frozen=True):
    """A message that is ready to be sent."""

    control: bytes
    bodies: tuple[Any, ...]
    size: int


class MessageBatch(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The controls of one batch; `bodies` counts the rows that belong to each."""

    controls: list[bytes]
    bodies: list[Annotated[int, msgspec.Meta(ge=0)]]


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Tells that the sender lives."""


class Close(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Tells that the sender has sent everything. A stream that ends without it is broken."""


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Tells that the sender failed, with the fields of `errors.to_wire`."""

    kind: str
    what: str
    do: str


Packet = MessageBatch | Heartbeat | Close | Failure


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The command that opens a conversation with a service, or a stream with its request."""

    kind: str
    request: bytes | None = None


_encode = msgspec.msgpack.Encoder().encode
_packet_decoder: msgspec.msgpack.Decoder[Packet] = msgspec.msgpack.Decoder(Packet)


def encode_message(control: object, bodies: Iterable[Body]) -> EncodedMessage:
    """Encode a message. It does not copy bodies, so they must not change afterwards."""
    encoded = _encode(control)
    buffers = tuple(b if isinstance(b, pa.Buffer) else pa.py_buffer(b) for b in bodies)
    size = len(encoded) + sum(b.size for b in buffers)
    if size > MESSAGE_BYTES_MAX:
        raise UsageError(
            f"a {type(control).__name__} message of {size} bytes exceeds {MESSAGE_BYTES_MAX}",
            do="send it in parts",
        )
    return EncodedMessage(encoded, buffers, size + MESSAGE_OVERHEAD_BYTES)


def pack(messages: Sequence[EncodedMessage]) -> tuple[Any, bytes]:
    """Return the record batch (None without bodies) and the metadata that carry `messages`."""
    frame = MessageBatch([p.control for p in messages], [len(p.bodies) for p in messages])
    bodies = [body for p in messages for body in p.bodies]
    return (_envelop(bodies) if bodies else None), _encode(frame)


def unpack(
    frame: MessageBatch, batch: Any, decoder: msgspec.msgpack.Decoder[C]
) -> list[tuple[Message[C], int]]:
    """Return the messages of one batch, each with the size that it counts for."""
    bodies = [] if batch is None else _bodies(batch)
    if len(frame.controls) != len(frame.bodies) or sum(frame.bodies) != len(bodies):
        raise msgspec.ValidationError(
            f"{len(bodies)} bodies came where {sum(frame.bodies)} were announced"
        )
    messages = []
    first = 0
    for control, count in zip(frame.controls, frame.bodies, strict=True):
        mine = tuple(bodies[first : first + count])
        first += count
        size = len(control) + sum(b.size for b in mine) + MESSAGE_OVERHEAD_BYTES
        messages.append((Message(decoder.decode(control), mine), size))
    return messages


def encode_packet(frame: Packet) -> bytes:
    return _encode(frame)


def decode_packet(metadata: Any) -> Packet:
    return _packet_decoder.decode(memoryview(metadata) if metadata is not None else b"")


def _envelop(bodies: Sequence[Any]) -> Any:
    offsets = array("q", accumulate((b.size for b in bodies), initial=0))
    data = bodies[0] if len(bodies) == 1 else pa.py_buffer(b"".join(bodies))
    column = pa.Array.from_buffers(
        pa.large_binary(), len(bodies), [None, pa.py_buffer(offsets), data]
    )
    return pa.RecordBatch.from_arrays([column], schema=ENVELOPE)


def _bodies(batch: Any) -> list[Any]:
    if not batch.schema.equals(ENVELOPE):
        raise msgspec.ValidationError(f"a batch has the columns {batch.schema.names}")
    column = batch.column(0)
    column.validate(full=True)
    if not len(column):
        return []
    _, offsets, data = column.buffers()
    bounds = memoryview(offsets).cast("B").cast("q")[column.offset :][: len(column) + 1]
    data = data if data is not None else pa.py_buffer(b"")
    return [data.slice(start, end - start) for start, end in pairwise(bounds)]
