"""A task's checkpoints as objects: their keys, and what is in them. Pure.

    tasks/<task>/generations/<number>         a generation: its id, and where the task starts
    tasks/<task>/<generation>/full/<number>   a checkpoint, whole
    tasks/<task>/<generation>/delta/<number>  what a checkpoint adds to the one before it

An object says itself what it is, so that one in the wrong place is told from the right one.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec
import pyarrow as pa
import xxhash

from headrace.errors import DataError, UsageError, VersionError
from headrace.shuffle.checkpoint import Checkpoint

ROOT = "tasks"

Kind = Literal["generations", "full", "delta"]

TASK_NAME_MAX = 120
"""In characters. Quoted, such a name still is one component of a key."""

_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_FORMAT = 1
_DIGEST_BYTES = 8
_RESTORE = "restore it from a backup, or reset the task"


class Label(NamedTuple):
    """Which object it is."""

    task: str
    generation: str
    """Nothing where it is not known: the key of a generation does not tell its id."""
    kind: Kind
    number: int

    @property
    def key(self) -> str:
        directory = self.kind if self.kind == "generations" else f"{self.generation}/{self.kind}"
        return f"{task_prefix(self.task)}/{directory}/{self.number:020d}"

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
    """Of the checkpoint, before it was compressed."""
    compressed: bytes


def check_task_name(name: str) -> str:
    """`name` itself, if it can be a task's."""
    if not _NAME.fullmatch(name) or len(name) > TASK_NAME_MAX:
        raise UsageError(
            f"{name[: TASK_NAME_MAX + 1]!r} cannot name a task",
            do="use parts of letters, digits, '.', '_' and '-', joined by '/', "
            f"of {TASK_NAME_MAX} characters at most",
        )
    return name


def task_prefix(task: str) -> str:
    """The directory of everything a task has."""
    return f"{ROOT}/{quoted(task)}"


def quoted(task: str) -> str:
    """The name as one component of a key or a path, none of which may begin with a dot."""
    name = quote(task, safe="")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def parse_key(key: str) -> Label | None:
    """What the key is of, or None if somebody else put an object there."""
    match key.split("/"):
        case [_, task, "generations", number] if number.isdecimal():
            label = Label(unquote(task), "", "generations", int(number))
        case [_, task, generation, "full", number] if number.isdecimal():
            label = Label(unquote(task), generation, "full", int(number))
        case [_, task, generation, "delta", number] if number.isdecimal():
            label = Label(unquote(task), generation, "delta", int(number))
        case _:
            return None
    return label if _NAME.fullmatch(label.task) and label.key == key else None


def encode(label: Label, checkpoint: Checkpoint) -> bytes:
    data = checkpoint.encode()
    compressed = pa.Codec("zstd").compress(data, asbytes=True)
    payload = msgspec.msgpack.encode(_Object(_FORMAT, *label, len(data), compressed))
    return bytes(xxhash.xxh3_64_digest(payload)) + payload


def decode(label: Label, data: bytes) -> tuple[str, Checkpoint]:
    """The generation and the checkpoint of the object that was found under the label's key.

    What is damaged, or is another object, is a `DataError`.
    """
    payload = memoryview(data)[_DIGEST_BYTES:]
    if xxhash.xxh3_64_digest(payload) != data[:_DIGEST_BYTES]:
        raise _damaged(label, f"the checksum of its {len(data)} bytes is wrong")
    try:
        found = msgspec.msgpack.decode(payload, type=_Object)
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
