"""What a commit says of the batch that it publishes, so that no batch is published twice. Pure.

A publisher stores a payload with each commit and returns the last one when it is opened again. Two
kinds of writers use it to publish each batch once: a task stores the checkpoint, and a query that
writes with `format("headrace")` stores its micro-batch.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace.decoders import decode_json
from headrace.errors import DataError, UsageError


class PublishedCheckpoint(msgspec.Struct, frozen=True):
    """The checkpoint that a task published last."""

    generation: str
    checkpoint: int


class QueryBatch(msgspec.Struct, frozen=True, tag="spark-batch"):
    """A micro-batch of a query."""

    query: str
    """Spark's id of the query, which lies in its checkpoint directory."""
    number: int


_Payload = TypeVar("_Payload", PublishedCheckpoint, QueryBatch)

_USERS = {PublishedCheckpoint: "task", QueryBatch: "query"}


def encode_payload(payload: PublishedCheckpoint | QueryBatch | None) -> bytes:
    return msgspec.json.encode(payload) if payload else b""


def decode_payload(payload: bytes, kind: type[_Payload], publisher: str) -> _Payload | None:
    """Return what the last commit says; None if there was none.

    Raises DataError if something else than a task, or than a query, used the publisher.
    """
    if not payload:
        return None
    try:
        return decode_json(payload, kind)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"publisher {publisher!r} was not used by a {_USERS[kind]}: {error}",
            do=f"give the {_USERS[kind]} another name to publish under",
        ) from error


def last_checkpoint(last: PublishedCheckpoint | None, generation: str) -> int:
    """Return the number of the last checkpoint that a generation published; 0 if there is none."""
    return last.checkpoint if last and last.generation == generation else 0


def is_published(last: QueryBatch | None, batch: QueryBatch, publisher: str) -> bool:
    """Return True if the publisher has committed the batch before.

    Raises UsageError if the batch neither is the last nor follows it.
    """
    if last is None or batch == QueryBatch(last.query, last.number + 1):
        return False
    if batch == last:
        return True
    if batch.query != last.query:
        raise UsageError(
            f"publisher {publisher!r} is at batch {last.number} of query {last.query}, and this is"
            f" batch {batch.number} of query {batch.query}: another checkpoint directory",
            do="use the checkpoint directory that it had, or another publisher name",
        )
    raise UsageError(
        f"publisher {publisher!r} is at batch {last.number}, and the query at {batch.number}:"
        " its checkpoint directory is not the one that it had last",
        do="use that one, or another directory and another publisher name",
    )
