"""What a reader asks the process that has the map outputs, and what it gets."""

from __future__ import annotations

import msgspec

OUTPUTS = "map-outputs"
"""The name of the service."""


class FetchIndex(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Asks for the index of an attempt; attempt 0 is the latest."""

    query_id: int
    stage_id: int
    map_task: int
    attempt: int


class FetchPartition(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Asks for the index of an attempt, and then for a partition in chunks."""

    query_id: int
    stage_id: int
    map_task: int
    attempt: int
    reduce_partition: int
    chunk_bytes: int


class ListPublished(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Asks for the latest output of every map task of a stage."""

    query_id: int
    stage_id: int


class HoldStage(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Asks for a pin of a stage, which lasts as long as the stream."""

    query_id: int
    stage_id: int


class SentIndex(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The index of an attempt, as `index.json` has it."""

    attempt: int
    payload: bytes


class SentChunk(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A chunk of a partition, whose bytes are the body of the message."""

    offset: int


class SentRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A published output, as the registry keeps it."""

    record: bytes


class StageHeld(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Tells that the stage is pinned."""


OutputRequest = FetchIndex | FetchPartition | ListPublished | HoldStage
OutputReply = SentIndex | SentChunk | SentRecord | StageHeld

requests: msgspec.msgpack.Decoder[OutputRequest] = msgspec.msgpack.Decoder(OutputRequest)
replies: msgspec.msgpack.Decoder[OutputReply] = msgspec.msgpack.Decoder(OutputReply)
