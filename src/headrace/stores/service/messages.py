"""What a process asks of the store that another process has open.

Rows travel as Arrow streams in the bodies of messages. A request and its answer share a number.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.stores.checkpoint_record import StoreCheckpoint


def service_of(store_id: str) -> str:
    """Return the kind of service that `transport` finds a store by; empty is any store."""
    return f"store {store_id}" if store_id else "store"


class DescribeStore(msgspec.Struct, frozen=True, tag="describe"):
    """Asks for a `StoreDescription`."""


class StoreDescription(msgspec.Struct, frozen=True):
    id: str
    kind: str
    settings: dict[str, Any]
    schema: bytes
    """The columns of its rows, as Arrow serializes a schema."""


class WriteRows(msgspec.Struct, frozen=True, tag="write"):
    """Its rows are the body. The answer is their epoch."""


class FlushWrites(msgspec.Struct, frozen=True, tag="flush"):
    epoch: int | None


class AskGeneration(msgspec.Struct, frozen=True, tag="generation"):
    task: str


class TakeTask(msgspec.Struct, frozen=True, tag="take"):
    task: str
    generation: str
    instead_of: str | None


class ApplyRows(msgspec.Struct, frozen=True, tag="apply"):
    """Its rows are the body. The answer is False if the store held the checkpoint already."""

    checkpoint: StoreCheckpoint


class BeginPart(msgspec.Struct, frozen=True, tag="begin_part"):
    """Begins a part of a checkpoint. The answer is its number in this conversation."""

    checkpoint: StoreCheckpoint


class AddToPart(msgspec.Struct, frozen=True, tag="add_to_part"):
    """Its rows are the body."""

    part: int


class EndPart(msgspec.Struct, frozen=True, tag="end_part"):
    """The answer is the id of the part."""

    part: int


class DropPart(msgspec.Struct, frozen=True, tag="drop_part"):
    part: int


class ApplyParts(msgspec.Struct, frozen=True, tag="apply_parts"):
    parts: list[str]
    checkpoint: StoreCheckpoint


class AskStoreStat(msgspec.Struct, frozen=True, tag="stat"):
    pass


class AskStore(msgspec.Struct, frozen=True, tag="ask"):
    """Asks what only one kind of store knows: see `store_kinds`."""

    request: str
    """The name of the request's class."""
    given: msgspec.Raw


class ScanRows(msgspec.Struct, frozen=True, tag="scan"):
    """Asks for a stream of rows."""

    selection: dict[str, Any]


class ScannedRows(msgspec.Struct, frozen=True):
    """Its rows are the body."""


StoreCall = (
    DescribeStore
    | WriteRows
    | FlushWrites
    | AskGeneration
    | TakeTask
    | ApplyRows
    | BeginPart
    | AddToPart
    | EndPart
    | DropPart
    | ApplyParts
    | AskStoreStat
    | AskStore
    | ScanRows
)

requests = msgspec.msgpack.Decoder(tuple[int, StoreCall])
scanned = msgspec.msgpack.Decoder(ScannedRows)
