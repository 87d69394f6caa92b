"""Where the output of map tasks lies, and how its index is written. Pure.

    shuffle/{query}/{stage}/{map_task}/{attempt}/part-{reduce}.ipc   rows for one reduce partition
                                                 index.json          what the attempt holds
                                                 index.bin           the same, for machines
    shuffle/{query}/{stage}/claims/{map_task}-{attempt}              who writes into which directory
    shuffle/{query}/{stage}/published/{map_task}-{generation}        which attempt a generation is
    shuffle/{query}/{stage}/removed/{map_task}-{attempt}-{mark}      what cleanup is about to remove
    shuffle/{query}/{stage}/removed/{map_task}-{generation}          what it is about to rule void
    shuffle/{query}/removed/{mark}                                   the same for a whole query
    shuffle/{query}/pins/{pin}                                       what readers hold
    shuffle/{query}/name                                             the query's name, for people
    shuffle/{query}/plan                                             what its stages do, for people

`index.bin` is the magic `FFQI`, the version and the length of the payload as little-endian u32, and
the payload, which is the same JSON as `index.json`.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec

from headrace.decoders import decode_json
from headrace.errors import DamagedOutputError, UsageError, VersionError
from headrace.storage.contract import check_key

ROOT = "shuffle"
LATEST = 0
"""Stands for the latest attempt; the attempts of a map task are numbered from 1."""
CLAIMS, PUBLISHED, REMOVED, PINS = "claims", "published", "removed", "pins"
NAME = "name"
PLAN = "plan"
INDEX_BIN = "index.bin"
INDEX_JSON = "index.json"
INDEX_MAGIC = b"FFQI"
INDEX_VERSION = 1

U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1

_HEADER = struct.Struct("<4sII")
_RECOMPUTE = "compute the map task again"

_U32 = Annotated[int, msgspec.Meta(ge=0, le=U32_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class MapTask(msgspec.Struct, frozen=True, order=True):
    """One map task of a stage of a query."""

    query_id: int
    stage_id: int
    map_task: int

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _check_number(name, getattr(self, name), U64_MAX)

    def __str__(self) -> str:
        return f"query {self.query_id}, stage {self.stage_id}, map task {self.map_task}"

    @property
    def directory(self) -> str:
        return f"{stage_directory(self.query_id, self.stage_id)}/{self.map_task}"

    def attempt_directory(self, attempt: int) -> str:
        return f"{self.directory}/{attempt}"

    def file(self, attempt: int, name: str) -> str:
        return f"{self.attempt_directory(attempt)}/{name}"

    def part(self, attempt: int, reduce_partition: int) -> str:
        return self.file(attempt, part_name(reduce_partition))

    def claim(self, attempt: int) -> str:
        stage = stage_directory(self.query_id, self.stage_id)
        return f"{stage}/{CLAIMS}/{self.map_task}-{attempt}"

    def publication(self, generation: int) -> str:
        stage = stage_directory(self.query_id, self.stage_id)
        return f"{stage}/{PUBLISHED}/{self.map_task}-{generation}"


class ShufflePartitionMeta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rows of an attempt for one reduce partition."""

    reduce_partition: _U32
    file: str
    """Relative to the directory of the attempt."""
    bytes: _Count
    rows: _Count
    batches: _Count
    checksum: str = ""
    """The xxh3-64 of the file in hexadecimal. Empty if whoever wrote the index made none."""


class MapTaskIndex(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one attempt of a map task holds. A partition without rows has no entry and no file."""

    query_id: int
    stage_id: int
    map_task: int
    attempt: _U32
    created_at_ms: int
    partitions: tuple[ShufflePartitionMeta, ...]
    partition_count: int = 0
    """How many reduce partitions there are. Zero if whoever wrote the index did not say."""
    schema: str = ""
    """The columns as the base64 of an Arrow schema message, for partitions without rows."""

    def __post_init__(self) -> None:
        for name in ("query_id", "stage_id", "map_task", "created_at_ms"):
            _check_number(name, getattr(self, name), U64_MAX)

    @property
    def task(self) -> MapTask:
        return MapTask(self.query_id, self.stage_id, self.map_task)

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.partitions)

    def partition(self, reduce_partition: int) -> ShufflePartitionMeta | None:
        """Return the entry of a partition; None if it has no rows.

        Raises UsageError if the map task has no such partition.
        """
        if self.partition_count and not 0 <= reduce_partition < self.partition_count:
            raise UsageError(
                f"{self.task} has no reduce partition {reduce_partition}",
                do=f"ask for one from 0 to {self.partition_count - 1}",
            )
        found = (each for each in self.partitions if each.reduce_partition == reduce_partition)
        return next(found, None)


def stage_directory(query_id: int, stage_id: int) -> str:
    return f"{query_directory(query_id)}/{_check_number('stage_id', stage_id, U64_MAX)}"


def query_directory(query_id: int) -> str:
    return f"{ROOT}/{_check_number('query_id', query_id, U64_MAX)}"


def part_name(reduce_partition: int) -> str:
    return f"part-{_check_number('reduce_partition', reduce_partition, U32_MAX)}.ipc"


def check_attempt(attempt: int) -> int:
    return _check_number("attempt", attempt, U32_MAX)


def numbers_of(name: str) -> tuple[int, int] | None:
    """Return the two numbers of a name such as `7-1`; None for any other name."""
    first, _, second = name.partition("-")
    return (int(first), int(second)) if is_number(first) and is_number(second) else None


def is_number(text: str) -> bool:
    """Return True for what may be the number of a query, a stage, a map task or an attempt."""
    return text.isdecimal() and int(text) <= U64_MAX


def is_attempt_file(key: str) -> bool:
    """Return True for a file in the directory of an attempt."""
    root, *numbers = key.split("/")[:-1]
    return root == ROOT and len(numbers) == 4 and all(map(is_number, numbers))


def encode_index(index: MapTaskIndex) -> bytes:
    """Return the JSON of an index: `index.json` as it is stored, and the payload of `index.bin`."""
    return msgspec.json.encode(index)


def encode_index_bin(payload: bytes) -> bytes:
    return _HEADER.pack(INDEX_MAGIC, INDEX_VERSION, len(payload)) + payload


def index_payload(data: bytes, file: str) -> bytes:
    """Return the payload of an `index.bin`; `file` names it in errors.

    Raises VersionError if a newer Headrace wrote it, and DamagedOutputError if it is no index.
    """
    if len(data) < _HEADER.size:
        raise damaged(file, f"it has {len(data)} bytes, fewer than its header")
    magic, version, length = _HEADER.unpack_from(data)
    if magic != INDEX_MAGIC:
        raise damaged(file, f"it begins with {magic!r}, not {INDEX_MAGIC!r}")
    if version > INDEX_VERSION:
        raise newer_version(file, version)
    if version != INDEX_VERSION:
        raise damaged(file, f"there is no version {version}")
    payload = data[_HEADER.size :]
    if len(payload) != length:
        raise damaged(file, f"its payload has {len(payload)} bytes, its header says {length}")
    return payload


def index_body(data: bytes) -> bytes:
    """Return what follows the header of an `index.bin`, whatever the header says."""
    return data[_HEADER.size :]


def decode_index(payload: bytes, task: MapTask, attempt: int, file: str) -> MapTaskIndex:
    """Return the index of an attempt; `file` names it in errors.

    Raises DamagedOutputError if it is no index, or that of something else, or if it names a file
    outside the directory of its attempt.
    """
    try:
        index = decode_json(payload, MapTaskIndex)
    except (msgspec.MsgspecError, UnicodeDecodeError, UsageError) as error:
        raise damaged(file, str(error)) from error
    if (index.task, index.attempt) != (task, attempt):
        raise damaged(file, f"it is the index of {index.task}, attempt {index.attempt}")
    for each in index.partitions:
        _check_inside(each.file, file)
    return index


def damaged(file: str, why: str) -> DamagedOutputError:
    return DamagedOutputError(f"the map output {file} is damaged: {why}", do=_RECOMPUTE)


def missing(file: str) -> DamagedOutputError:
    return DamagedOutputError(f"the map output {file} is missing", do=_RECOMPUTE)


def newer_version(file: str, version: int) -> VersionError:
    return VersionError(
        f"{file} has the version {version}, this Headrace reads up to {INDEX_VERSION}",
        do="read it with the Headrace that wrote it, or a newer one",
    )


def _check_inside(path: str, file: str) -> None:
    try:
        check_key(path)
    except UsageError as error:
        raise damaged(file, f"{path!r} is not a file below its attempt") from error


def _check_number(name: str, value: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UsageError(f"{name} is {value!r}", do=f"use a whole number from 0 to {most}")
    return value
