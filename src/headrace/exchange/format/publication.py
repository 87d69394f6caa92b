"""What the registry stores: claims of attempts, and which attempt a generation is. Pure.

A record is one line of JSON and its xxh3-64 in hexadecimal, so that a flipped bit is noticed.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from xxhash import xxh3_64_hexdigest

from headrace.decoders import decode_json
from headrace.exchange.format.layout import MapTask, damaged, newer_version

RECORD_VERSION = 1

R = TypeVar("R", bound=msgspec.Struct)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Says that an attempt belongs to one writer, and which generation it may become."""

    version: int = RECORD_VERSION
    attempt: int
    generation: int
    claimed_at_ms: int


class PublishedOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One generation of the output of a map task: the attempt whose files everybody reads.

    It is a value that travels to other processes: it does not change if a later generation is
    published.
    """

    version: int = RECORD_VERSION
    query_id: int
    stage_id: int
    map_task: int
    generation: int
    attempt: int
    """Zero if cleanup has ruled that no attempt becomes this generation, or has removed it."""
    created_at_ms: int = 0
    rows: int = 0
    bytes: int = 0
    index_checksum: str = ""
    """The xxh3-64 of the attempt's `index.json`, which is also the payload of `index.bin`."""

    @property
    def task(self) -> MapTask:
        return MapTask(self.query_id, self.stage_id, self.map_task)

    @property
    def is_void(self) -> bool:
        return self.attempt == 0

    def __str__(self) -> str:
        return f"{self.task}, attempt {self.attempt}"


def void(task: MapTask, generation: int) -> PublishedOutput:
    """Return the record of a generation that no attempt can become any more."""
    return PublishedOutput(
        query_id=task.query_id,
        stage_id=task.stage_id,
        map_task=task.map_task,
        generation=generation,
        attempt=0,
    )


def encode_record(record: msgspec.Struct) -> bytes:
    line = msgspec.json.encode(record)
    return b"%s\n%s\n" % (line, checksum(line).encode())


def decode_record(data: bytes, kind: type[R], file: str) -> R:
    """Return a record; `file` names it in errors.

    Raises DamagedOutputError if it is damaged, and VersionError if a newer Headrace wrote it.
    """
    line, _, rest = data.partition(b"\n")
    if rest != checksum(line).encode() + b"\n":
        raise damaged(file, "its checksum does not match")
    try:
        version = decode_json(line, _Versioned).version
        if version > RECORD_VERSION:
            raise newer_version(file, version)
        return decode_json(line, kind)
    except msgspec.MsgspecError as error:
        raise damaged(file, str(error)) from error


def decode_publication(data: bytes, task: MapTask, generation: int) -> PublishedOutput:
    """Return the record of a generation. Raises DamagedOutputError if it is that of another."""
    file = task.publication(generation)
    record = decode_record(data, PublishedOutput, file)
    if (record.task, record.generation) != (task, generation):
        raise damaged(file, f"it is the record of {record}, generation {record.generation}")
    return record


def checksum(data: bytes | memoryview) -> str:
    return str(xxh3_64_hexdigest(data))


class _Versioned(msgspec.Struct):
    version: int
