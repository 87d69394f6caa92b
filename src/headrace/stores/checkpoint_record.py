"""Which checkpoint of which task a store holds. Pure.

The record lies in the same key-value store as the rows, and every batch of a task writes both in
one atomic write. So the store itself knows whether it holds a checkpoint, whoever asks.

A run that begins *takes* the task for its generation. A generation that was taken over stays
refused, even if it comes back after a third one: the record keeps the generations that are over.
"""

from __future__ import annotations

import msgspec

from headrace.decoders import decode_msgpack
from headrace.errors import FencedError, UsageError
from headrace.stores.kv.contract import KEY_BYTES_MAX

CHECKPOINT_KEYS = b"\x00c"
"""Begins the keys of all checkpoint records. The keys of stores begin with a byte above zero."""


class StoreCheckpoint(msgspec.Struct, frozen=True):
    """The id of a batch: it stays the same however often the batch is written."""

    task: str
    generation: str
    number: int
    """Counts from 1, without gaps."""

    def __str__(self) -> str:
        return f"checkpoint {self.number} of task {self.task!r}, generation {self.generation}"


class CheckpointRecord(msgspec.Struct, frozen=True):
    """What a store knows about one task."""

    generation: str
    number: int = 0
    """The last checkpoint of the generation that the store holds."""
    past_generations: tuple[str, ...] = ()
    """Generations that were taken over. They may not write again."""

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(stored: bytes | None) -> CheckpointRecord | None:
        return None if stored is None else decode_msgpack(stored, CheckpointRecord)


def checkpoint_key(task: str) -> bytes:
    """Return where the record of a task lies. Raises UsageError if no key can name the task."""
    try:
        key = CHECKPOINT_KEYS + task.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a store cannot name the task {task!r}: it is not Unicode", do="use another name"
        ) from error
    if len(key) > KEY_BYTES_MAX:
        longest = KEY_BYTES_MAX - len(CHECKPOINT_KEYS)
        raise UsageError(
            f"a store cannot name the task {task[:80]!r}…: it has {len(task.encode())} bytes",
            do=f"use a name of at most {longest} bytes",
        )
    return key


def take_over(
    record: CheckpointRecord | None, task: str, generation: str, instead_of: str | None = None
) -> CheckpointRecord:
    """Return the record after a run of that generation began: see `Store.take`."""
    present = record.generation if record else ""
    if record is not None:
        _check_not_over(record, task, generation)
        if present == generation:
            return record
    if instead_of not in (None, present):
        raise FencedError(
            f"generation {present or 'none'} of task {task!r} has the store, not {instead_of}",
            do="run the task again",
        )
    if record is None:
        return CheckpointRecord(generation)
    return CheckpointRecord(
        generation, past_generations=(*record.past_generations, record.generation)
    )


def advance(
    record: CheckpointRecord | None, checkpoint: StoreCheckpoint
) -> CheckpointRecord | None:
    """Return the record with the checkpoint; None if it holds the checkpoint already.

    Raises FencedError if another generation took the task over, and UsageError if the checkpoint
    leaves a gap or nobody took the task for its generation.
    """
    if record is not None:
        _check_not_over(record, checkpoint.task, checkpoint.generation)
    if record is None or record.generation != checkpoint.generation:
        raise UsageError(
            f"{checkpoint} was given to a store that nobody took for its generation",
            do="call take() before the first checkpoint",
        )
    if not 1 <= checkpoint.number <= record.number + 1:
        raise UsageError(
            f"{checkpoint} does not follow {record.number}, the last that the store holds",
            do="restore what is missing there, or reset the task and give it another store",
        )
    if checkpoint.number <= record.number:
        return None
    return CheckpointRecord(checkpoint.generation, checkpoint.number, record.past_generations)


def _check_not_over(record: CheckpointRecord, task: str, generation: str) -> None:
    if generation in record.past_generations:
        raise FencedError(
            f"generation {generation} of task {task!r} was replaced by {record.generation}",
            do="reset the task to begin another generation",
        )
