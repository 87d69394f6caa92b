"""What a process asks of topics that another process holds, and what it is answered.

Values and keys of messages travel as Arrow batches in the bodies of transport messages; a request
and its answer share a number, so any number of requests may be under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.queues.contract import RECORD_SCHEMA, OffsetCommit, Output, Record
from headrace.queues.state import Columns, make_records

TOPICS = "topics"
"""The kind of service that `transport` finds them by."""

_OUTPUT_SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])


class CreateTopic(msgspec.Struct, frozen=True, tag="create"):
    topic: str
    partitions: int


class DeleteTopic(msgspec.Struct, frozen=True, tag="delete"):
    topic: str


class ListTopics(msgspec.Struct, frozen=True, tag="list"):
    pass


class Produce(msgspec.Struct, frozen=True, tag="produce"):
    """Its messages are the body."""

    topic: str
    partition: int


class FetchRecords(msgspec.Struct, frozen=True, tag="fetch"):
    topic: str
    partition: int
    offset: int
    most: int
    timeout_s: float


class AskBounds(msgspec.Struct, frozen=True, tag="bounds"):
    topic: str
    partition: int


class SetCommitted(msgspec.Struct, frozen=True, tag="commit"):
    group: str
    topic: str
    partition: int
    offset: int


class AskCommitted(msgspec.Struct, frozen=True, tag="committed"):
    """Without a group: the least of all groups."""

    group: str | None
    topic: str
    partition: int


class ProduceAndCommit(msgspec.Struct, frozen=True, tag="step"):
    """Its outputs are the body, in the order of `places`."""

    places: list[tuple[str, int]]
    commit: OffsetCommit


class Truncate(msgspec.Struct, frozen=True, tag="truncate"):
    topic: str
    partition: int
    offset: int


Call = (
    CreateTopic
    | DeleteTopic
    | ListTopics
    | Produce
    | FetchRecords
    | AskBounds
    | SetCommitted
    | AskCommitted
    | ProduceAndCommit
    | Truncate
)


class TopicsRequest(msgspec.Struct, frozen=True, array_like=True):
    number: int
    call: Call


class TopicsAnswer(msgspec.Struct, frozen=True, array_like=True):
    """Fetched records are the body."""

    number: int
    value: Any = None
    refusal: tuple[str, str, str] | None = None
    """The error, as `errors.to_wire` gives it."""


requests = msgspec.msgpack.Decoder(TopicsRequest)
answers = msgspec.msgpack.Decoder(TopicsAnswer)


def encode_messages(values: Sequence[bytes], keys: Sequence[bytes | None] | None) -> pa.Buffer:
    keys_column = pa.array(keys, pa.binary()) if keys else pa.nulls(len(values), pa.binary())
    columns = [keys_column, pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=_OUTPUT_SCHEMA).serialize()


def decode_messages(body: pa.Buffer) -> tuple[list[bytes], list[bytes | None] | None]:
    batch = pa.ipc.read_record_batch(body, _OUTPUT_SCHEMA)
    keys, values = batch.columns
    return _to_list(values), None if keys.null_count == len(keys) else _to_list(keys)


def encode_outputs(outputs: Sequence[Output]) -> pa.Buffer:
    return encode_messages([each.value for each in outputs], [each.key for each in outputs])


def decode_outputs(places: Sequence[tuple[str, int]], body: pa.Buffer) -> list[Output]:
    values, keys = decode_messages(body)
    if len(values) != len(places):
        raise ValueError(f"{len(values)} messages came for {len(places)} places")
    return [
        Output(topic, value, key, partition)
        for (topic, partition), value, key in zip(
            places, values, keys or [None] * len(values), strict=True
        )
    ]


def to_record_batch(columns: Columns) -> pa.RecordBatch:
    offsets, keys, values, timestamps = columns
    arrays = [
        pa.array(np.arange(offsets.start, offsets.stop, dtype=np.int64)),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(timestamps, pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def decode_record_batch(body: pa.Buffer) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(body, RECORD_SCHEMA)


def to_records(batch: pa.RecordBatch) -> list[Record]:
    return make_records(map(_to_list, batch.columns))


def _to_list(column: pa.Array) -> list[Any]:
    """Return the values of a column, much faster than `to_pylist` does."""
    if column.null_count == len(column):
        return [None] * len(column)
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values
