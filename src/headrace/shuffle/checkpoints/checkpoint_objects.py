"""A task's checkpoints as objects: their keys and their contents. Pure.

    tasks/<task>/generations/<number>         a generation: its id, and where the task starts
    tasks/<task>/<generation>/full/<number>   a checkpoint, whole
    tasks/<task>/<generation>/delta/<number>  what a checkpoint adds to the one before it

An object holds its own label, so that a reader recognises an object under the wrong key.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
import pyarrow as pa
import xxhash

from headrace.decoders import decode_msgpack
from headrace.errors import DataError, VersionError
from headrace.shuffle.checkpoint import Checkpoint
from headrace.shuffle.checkpoints.task_keys import (
    checkpoints_prefix,
    has_form_of_task,
    parse_component,
)

Kind = Literal["generations", "full", "delta"]

_FORMAT = 1
_DIGEST_BYTES = 8
_RESTORE = "restore it from a backup, or reset the task"


class Label(NamedTuple):
    """Names one object of a task."""

    task: str
    generation: str
    """Empty if it is not known: the key of a generation does not contain its id."""
    kind: Kind
    number: int

    @property
    def key(self) -> str:
        directory = self.kind if self.kind == "generations" else f"{self.generation}/{self.kind}"
        return f"{checkpoints_prefix(self.task)}/{directory}/{self.number:020d}"

    def __str__(self) -> str:
        of = f" of generation {self.generation}" if self.generation else ""
        return f"{self.kind} {self.number}{of} of task {self.task!r}"


class _Object(msgspec.Struct, frozen=True, array_like=True):
    format: int
    task: str
    generation: str
    kind: Kind
    number: int
    size: int
    """Bytes of the checkpoint before compression."""
    compressed: bytes


def parse_key(key: str) -> Label | None:
    """Return the label that has this key, or None if no label has it."""
    match key.split("/"):
        case [_, task, "generations", number] if number.isdecimal():
            label = Label(parse_component(task), "", "generations", int(number))
        case [_, task, generation, "full", number] if number.isdecimal():
            label = Label(parse_component(task), generation, "full", int(number))
        case [_, task, generation, "delta", number] if number.isdecimal():
            label = Label(parse_component(task), generation, "delta", int(number))
        case _:
            return None
    return label if has_form_of_task(label.task) and label.key == key else None


def encode(label: Label, checkpoint: Checkpoint) -> bytes:
    data = checkpoint.encode()
    compressed = pa.Codec("zstd").compress(data, asbytes=True)
    payload = msgspec.msgpack.encode(_Object(_FORMAT, *label, len(data), compressed))
    return bytes(xxhash.xxh3_64_digest(payload)) + payload


def decode(label: Label, data: bytes) -> tuple[str, Checkpoint]:
    """Return the generation and the checkpoint of the object under the label's key.

    Raises DataError if the object is damaged or is another one.
    """
    payload = memoryview(data)[_DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(payload) != data[:_DIGEST_BYTES]:
        raise _damaged(label, f"the checksum of its {len(data)} bytes is wrong")
    try:
        found = decode_msgpack(payload, _Object)
    except msgspec.MsgspecError as error:
        raise _damaged(label, str(error)) from error
    if found.format != _FORMAT:
        raise VersionError(
            f"{label.key} has format {found.format}, this Headrace reads {_FORMAT}",
            do="use the Headrace that wrote it, or a newer one",
        )
    held = Label(found.task, found.generation, found.kind, found.number)
    if held._replace(generation=label.generation and held.generation) != label:
        raise DataError(f"{label.key} holds {held}, not {label}", do=_RESTORE)
    try:
        raw = pa.Codec("zstd").decompress(found.compressed, found.size, asbytes=True)
        return held.generation, Checkpoint.decode(raw)
    except (DataError, pa.ArrowException, OSError, ValueError) as error:
        raise _damaged(label, str(error)) from error


def missing(label: Label) -> DataError:
    return DataError(f"{label.key} is missing", do=_RESTORE)


def _damaged(label: Label, why: str) -> DataError:
    return DataError(f"{label.key} is damaged: {why}", do=_RESTORE)
