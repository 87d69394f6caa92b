"""A flipped byte in any kind of file is found before anybody uses it."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import pytest

from headrace.errors import DamagedOutputError, VersionError
from headrace.exchange import MapOutputReader, MapTask, OutputRegistry, verify
from headrace.exchange.format.layout import (
    MapTaskIndex,
    ShufflePartitionMeta,
    decode_index,
    encode_index,
    encode_index_bin,
    index_payload,
)
from headrace.exchange.format.publication import encode_record
from headrace.storage import Objects, open_objects
from tests.exchange.outputs import TASK, keys_of, write

FILES = {
    "part": TASK.part(1, 0),
    "index.bin": TASK.file(1, "index.bin"),
    "index.json": TASK.file(1, "index.json"),
    "publication": TASK.publication(1),
}


@pytest.fixture
def objects() -> Objects:
    return open_objects("memory://")


def read(objects: Objects) -> list[int]:
    return keys_of(MapOutputReader(objects).read_partition(TASK, 0))


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_byte_is_found_wherever_it_is(objects: Objects, kind: str) -> None:  # proves G20
    write(objects, {0: range(5)})
    if kind == "index.json":
        objects.delete(FILES["index.bin"])
    whole = objects.get(FILES[kind])
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        objects.put(FILES[kind], damaged)
        with pytest.raises(DamagedOutputError) as found:
            read(objects)
        assert found.value.map_task == 3
        assert found.value.file == FILES[kind]
        assert found.value.attempt == (0 if kind == "publication" else 1)
        assert "\n" not in str(found.value)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda _: b"", lambda data: data + b"x"]
)
def test_a_file_of_another_length_is_found(
    objects: Objects, kind: str, damage: Callable[[bytes], bytes]
) -> None:  # proves G20
    write(objects, {0: range(5)})
    if kind == "index.json":
        objects.delete(FILES["index.bin"])
    objects.put(FILES[kind], damage(objects.get(FILES[kind])))
    with pytest.raises(DamagedOutputError):
        read(objects)


@pytest.mark.parametrize("kind", FILES)
def test_damaged_output_is_replaced_by_computing_it_again(
    objects: Objects, kind: str
) -> None:  # proves G20
    write(objects, {0: [1]})
    objects.put(FILES[kind], b"damaged")
    if kind == "index.json":
        objects.delete(FILES["index.bin"])
    with pytest.raises(DamagedOutputError) as found:
        read(objects)
    assert write(objects, {0: [2]}, replaces=found.value.attempt).is_mine
    assert read(objects) == [2]
    assert OutputRegistry(objects).published(1, 2)[3].generation == 2


@pytest.mark.parametrize("kind", FILES)
def test_verify_says_which_file_is_damaged(objects: Objects, kind: str) -> None:  # proves G20
    for map_task in range(4):
        write(objects, {0: range(5), 1: [1]}, MapTask(1, 2, map_task))
    write(objects, {0: [1]}, MapTask(1, 5, 0))
    write(objects, {0: [1]}, MapTask(2, 2, 3))
    check = verify(objects, 1)
    assert (check.outputs, check.rows, check.damages) == (5, 25, [])
    objects.put(FILES[kind], b"damaged")
    [damage] = verify(objects, 1).damages
    assert damage.file == FILES[kind]
    if kind != "publication":
        objects.delete(FILES[kind])
        [damage] = verify(objects, 1).damages
        assert str(damage) == f"the map output {FILES[kind]} is missing; compute the map task again"
    assert verify(objects, 2).damages == []
    assert verify(objects, 3) == (0, 0, [], [])


def test_files_of_another_attempt_are_not_taken_for_the_right_ones(objects: Objects) -> None:
    write(objects, {0: [1]})
    other = MapTask(1, 2, 4)
    write(objects, {0: [1]}, other)
    objects.put(TASK.publication(1), objects.get(other.publication(1)))
    with pytest.raises(
        DamagedOutputError, match="it is the record of query 1, stage 2, map task 4"
    ):
        read(objects)


def test_the_record_of_an_earlier_generation_is_not_taken_for_a_later_one(
    objects: Objects,
) -> None:  # proves G20
    write(objects, {0: [1]})
    write(objects, {0: [2]}, replaces=1)
    objects.put(TASK.publication(2), objects.get(TASK.publication(1)))
    with pytest.raises(DamagedOutputError, match=r"is the record of .*, attempt 1, generation 1"):
        read(objects)


INDEX = MapTaskIndex(
    query_id=1,
    stage_id=2,
    map_task=3,
    attempt=1,
    created_at_ms=5,
    partitions=(
        ShufflePartitionMeta(reduce_partition=0, file="part-0.ipc", bytes=1, rows=1, batches=1),
    ),
)


def decoded(index: MapTaskIndex) -> MapTaskIndex:
    file = FILES["index.bin"]
    payload = index_payload(encode_index_bin(encode_index(index)), file)
    return decode_index(payload, TASK, 1, file)


def test_the_binary_index_has_the_bytes_of_the_specification() -> None:
    payload = encode_index(INDEX)
    assert encode_index_bin(payload) == (
        b"FFQI" + (1).to_bytes(4, "little") + len(payload).to_bytes(4, "little") + payload
    )
    assert decoded(INDEX) == INDEX
    assert msgspec.json.decode(payload) == {
        "query_id": 1,
        "stage_id": 2,
        "map_task": 3,
        "attempt": 1,
        "created_at_ms": 5,
        "partitions": [
            {"reduce_partition": 0, "file": "part-0.ipc", "bytes": 1, "rows": 1, "batches": 1}
        ],
    }


@pytest.mark.parametrize(
    "file", ["../1/part-0.ipc", "/etc/passwd", "a/../../b", "", ".", "..", "a//b", "a\\b", ".x"]
)
def test_an_index_cannot_name_a_file_outside_its_attempt(file: str) -> None:  # proves G27
    [part] = INDEX.partitions
    bad = msgspec.structs.replace(INDEX, partitions=(msgspec.structs.replace(part, file=file),))
    with pytest.raises(DamagedOutputError, match="is not a file below its attempt"):
        decoded(bad)


def test_an_index_of_a_newer_version_says_what_to_do(objects: Objects) -> None:  # proves G27
    write(objects, {0: [1]})
    objects.put(FILES["index.bin"], struct.pack("<4sII", b"FFQI", 2, 3) + b"new")
    with pytest.raises(VersionError) as newer:
        read(objects)
    assert str(newer.value) == (
        "shuffle/1/2/3/1/index.bin has the version 2, this Headrace reads up to 1; "
        "read it with the Headrace that wrote it, or a newer one"
    )


def test_a_record_of_a_newer_version_says_what_to_do(objects: Objects) -> None:  # proves G27
    output = write(objects, {0: [1]}).output
    newer = msgspec.structs.replace(output, version=2)
    objects.put(FILES["publication"], encode_record(newer))
    with pytest.raises(VersionError, match="has the version 2, this Headrace reads up to 1; read"):
        read(objects)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"FFQ", "it has 3 bytes, fewer than its header"),
        (b"FFQJ" + bytes(8), "it begins with b'FFQJ', not b'FFQI'"),
        (b"FFQI" + bytes(8), "there is no version 0"),
        (b"FFQI\1\0\0\0\5\0\0\0{}", "its payload has 2 bytes, its header says 5"),
    ],
)
def test_a_malformed_index_is_named(data: bytes, why: str) -> None:  # proves G27
    with pytest.raises(DamagedOutputError) as found:
        index_payload(data, FILES["index.bin"])
    assert str(found.value) == (
        f"the map output {FILES['index.bin']} is damaged: {why}; compute the map task again"
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"{}",
        b'{"query_id": -1}',
        encode_index(INDEX).replace(b'"rows":1', b'"rows":-1'),
        encode_index(INDEX).replace(b'"query_id":1', b'"query_id":18446744073709551616'),
        encode_index(INDEX).replace(b'"stage_id":2', b'"stage_id":7'),
        b"\xff\xfe",
    ],
)
def test_json_that_is_no_index_is_refused(payload: bytes) -> None:  # proves G27
    with pytest.raises(DamagedOutputError, match=r"index\.json is damaged"):
        decode_index(payload, TASK, 1, FILES["index.json"])


def test_an_index_without_checksums_and_schema_is_read(objects: Objects) -> None:
    """As a writer that knows only the specification writes it."""
    output = write(objects, {0: [1]}).output
    index = msgspec.json.decode(objects.get(FILES["index.json"]))
    for name in ("schema", "partition_count"):
        del index[name]
    del index["partitions"][0]["checksum"]
    payload = msgspec.json.encode(index)
    objects.put(FILES["index.json"], payload)
    objects.put(FILES["index.bin"], encode_index_bin(payload))
    record = msgspec.structs.replace(output, index_checksum="")
    objects.put(FILES["publication"], encode_record(record))
    assert read(objects) == [1]
    assert MapOutputReader(objects).read_partition(TASK, 1).schema.names == []
