"""How topics are laid out on the journals of a workspace: names, payloads, offsets, batches. Pure.

A topic is a collection, and each partition one journal of it. A message's offset is made of the
offset of its frame in the journal and of its number in that frame, so whoever has an offset knows
where to read. The messages of one step travel as one write of the journal: a frame per partition
and their commit, next to each other. So messages are committed in the order of their offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.decoders import decode_msgpack
from headrace.errors import UsageError
from headrace.journal.contract import Frame
from headrace.journal.names import JournalName
from headrace.queues.contract import RECORD_SCHEMA, Output
from headrace.queues.state import message_bytes
from headrace.settings import MIB

_NUMBER_BITS = 17
"""An offset's low bits are the number of its message: a frame has at most 65 536 messages."""
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1

STEP_BYTES_MAX = 2 * MIB
"""The most that one step may take: it must travel as one write of the journal."""
_BYTES_PER_MESSAGE = 32
_BYTES_PER_PARTITION = 1024
"""What a message, and a frame, take at most beside keys and values."""

SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
    ]
)


class TopicRecord(msgspec.Struct, frozen=True):
    """What a workspace knows of a topic: the payload of the publisher that is named after it."""

    partitions: int
    """0 if the topic was deleted."""
    incarnation: int
    """Counts how often a topic of this name was created: offsets of an earlier one are void."""


class CommittedOffset(msgspec.Struct, frozen=True):
    """The payload of the publisher that is named after group, topic and partition."""

    offset: int
    incarnation: int


class PartitionId(NamedTuple):
    topic: str
    partition: int


class Messages(NamedTuple):
    """Messages for one partition."""

    to: PartitionId
    values: Sequence[bytes]
    keys: Sequence[bytes | None] | None

    @property
    def step_bytes(self) -> int:
        """How much of `STEP_BYTES_MAX` these messages use."""
        overhead = _BYTES_PER_PARTITION + _BYTES_PER_MESSAGE * len(self.values)
        return message_bytes(self.values, self.keys) + overhead


# -- names and payloads -----------------------------------------------------------------------


def collection_name(topic: str) -> str:
    return f"queues/{topic}"


def journal_name(place: PartitionId) -> str:
    values = (("partition", str(place.partition)),)
    return str(JournalName(collection_name(place.topic), values, 0))


def topic_publisher(topic: str) -> str:
    return f"queue-topic:{topic}"


def offset_publishers(topic: str) -> str:
    """Return how the names of all publishers of a topic's committed offsets begin."""
    return f"queue-offset:{topic}:"


def offset_publisher(place: PartitionId, group: str) -> str:
    return f"{offset_publishers(place.topic)}{place.partition}:{group}"


def decode_topic(payload: bytes) -> TopicRecord:
    return decode_msgpack(payload, TopicRecord) if payload else TopicRecord(0, 0)


# -- offsets ----------------------------------------------------------------------------------


def first_offset(position: int) -> int:
    """Return the offset of the first message of a frame, from the frame's offset."""
    return position << _NUMBER_BITS


def split_offset(offset: int) -> tuple[int, int]:
    """Return the offset of the frame, and the number of the message in it."""
    return offset >> _NUMBER_BITS, offset & _NUMBER_MASK


# -- steps ------------------------------------------------------------------------------------


def check_step(step: Sequence[Messages], bytes_max: int) -> None:
    if (size := sum(messages.step_bytes for messages in step)) > bytes_max:
        raise UsageError(
            f"one step would take {size} bytes of the journal, more than {bytes_max}",
            do="let messages refer to what is stored elsewhere, or produce fewer at once",
        )


def steps_of(messages: Messages, bytes_max: int) -> Iterator[Messages]:
    """Split messages into as few steps as their sizes allow."""
    to, values, keys = messages
    if messages.step_bytes <= bytes_max:
        yield messages
        return
    first, size = 0, _BYTES_PER_PARTITION
    for number, value in enumerate(values):
        added = len(value) + len((keys and keys[number]) or b"") + _BYTES_PER_MESSAGE
        if number > first and size + added > bytes_max:
            yield Messages(to, values[first:number], keys[first:number] if keys else None)
            first, size = number, _BYTES_PER_PARTITION
        size += added
    yield Messages(to, values[first:], keys[first:] if keys else None)


def group_outputs(outputs: Sequence[Output]) -> tuple[list[Messages], list[list[int]]]:
    """Return the outputs by partition, and the numbers that those of each partition have."""
    numbers: dict[PartitionId, list[int]] = {}
    for number, output in enumerate(outputs):
        numbers.setdefault(PartitionId(output.topic, output.partition), []).append(number)
    step = [
        Messages(to, [outputs[n].value for n in mine], [outputs[n].key for n in mine])
        for to, mine in numbers.items()
    ]
    return step, list(numbers.values())


def to_batch(messages: Messages, now_ms: int) -> pa.RecordBatch:
    count = len(messages.values)
    keys = messages.keys
    try:
        columns = [
            pa.repeat(pa.scalar(messages.to.partition, pa.int32()), count),
            pa.array(keys, pa.binary()) if keys else pa.nulls(count, pa.binary()),
            pa.array(messages.values, pa.binary()),
            pa.repeat(pa.scalar(now_ms, pa.int64()), count),
        ]
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(
            f"a message for topic {messages.to.topic!r} is not made of bytes: {error}",
            do="encode keys and values into bytes",
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def to_records(frame: Frame, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the messages of a frame as consumers get them; `batch` are its documents."""
    first = first_offset(frame.offset)
    assert frame.documents <= _NUMBER_MASK, f"the frame at {frame.offset} has too many messages"
    offsets = pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64))
    columns = [offsets, *(batch.column(name) for name in RECORD_SCHEMA.names[1:])]
    # A frame may repeat the first documents of an earlier one.
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA).slice(frame.skip)
