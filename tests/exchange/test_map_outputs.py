"""Writing, publishing and reading map outputs, on every kind of objects."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pytest

from headrace.errors import DamagedOutputError, NotFoundError, UsageError
from headrace.exchange import (
    AttemptCleanup,
    MapOutputReader,
    MapOutputWriter,
    MapTask,
    OutputRegistry,
    PartitionChunk,
    Reassembly,
    list_stages,
    reassemble,
)
from headrace.storage import Objects
from tests.exchange.outputs import PARTITIONS, SCHEMA, TASK, batch, filled, keys_of, stored, write


@pytest.mark.parametrize("chunk_bytes", [7, 64, 1 << 20])
def test_writes_index_and_reads_partition_from_streamed_chunks(
    objects: Objects, chunk_bytes: int
) -> None:
    write(objects, {0: range(10), 2: range(10, 15)})
    reader = MapOutputReader(objects)
    index = reader.resolve(TASK)
    assert [(each.reduce_partition, each.rows) for each in index.partitions] == [(0, 10), (2, 5)]
    reduce_partition = 2
    chunks = list(reader.fetch_partition_chunks(TASK, reduce_partition, chunk_bytes=chunk_bytes))
    assert all(len(chunk.data) <= chunk_bytes for chunk in chunks)
    random.Random(5).shuffle(chunks)
    whole = reassemble(index, reduce_partition, [*chunks, chunks[0]])
    assert whole == reader.read_partition(TASK, reduce_partition)
    assert keys_of(whole) == [*range(10, 15)]


def test_the_files_lie_where_the_specification_says(objects: Objects) -> None:
    write(objects, {0: [1], 3: [2]})
    assert stored(objects, "shuffle/1/2/3") == [
        "shuffle/1/2/3/1/index.bin",
        "shuffle/1/2/3/1/index.json",
        "shuffle/1/2/3/1/part-0.ipc",
        "shuffle/1/2/3/1/part-3.ipc",
    ]
    index = msgspec.json.decode(objects.get("shuffle/1/2/3/1/index.json"))
    assert {key: index[key] for key in ("query_id", "stage_id", "map_task", "attempt")} == {
        "query_id": 1,
        "stage_id": 2,
        "map_task": 3,
        "attempt": 1,
    }
    assert index["created_at_ms"] == 1_000
    part = objects.get("shuffle/1/2/3/1/part-3.ipc")
    described = {key: index["partitions"][1][key] for key in ("reduce_partition", "file", "bytes")}
    assert described == {"reduce_partition": 3, "file": "part-3.ipc", "bytes": len(part)}
    with pa.ipc.open_stream(part) as stream:
        assert stream.read_all() == pa.Table.from_batches([batch([2])])


def test_an_empty_partition_has_no_file_but_has_columns(objects: Objects) -> None:
    write(objects, {0: [1], 1: []})
    reader = MapOutputReader(objects)
    for empty in (1, 2):
        table = reader.read_partition(TASK, empty)
        assert (table.num_rows, table.schema) == (0, SCHEMA)
    assert list(reader.fetch_partition_chunks(TASK, 1)) == []
    assert reassemble(reader.resolve(TASK), 1, []).schema == SCHEMA
    with pytest.raises(UsageError, match="no reduce partition 4; ask for one from 0 to 3"):
        reader.read_partition(TASK, 4)


def test_output_without_any_row_is_published(objects: Objects) -> None:
    assert write(objects, {}).output.rows == 0
    assert MapOutputReader(objects).read_partition(TASK, 0).schema == SCHEMA


def test_an_unknown_attempt_is_not_found(objects: Objects) -> None:
    reader = MapOutputReader(objects)
    error = "map output not registered for requested attempt"
    with pytest.raises(NotFoundError, match=error):
        reader.read_partition(TASK, 0)
    write(objects, {0: [1]})
    assert keys_of(reader.read_partition(TASK, 0, attempt=1)) == [1]
    with pytest.raises(NotFoundError, match=f"{error}: query 1, stage 2, map task 3, attempt 2;"):
        reader.read_partition(TASK, 0, attempt=2)


def test_an_attempt_is_invisible_until_it_is_published(objects: Objects) -> None:
    claim = OutputRegistry(objects).claim(TASK, 0, 1_000)
    objects.put(TASK.part(claim.attempt, 0), b"half a file")
    with pytest.raises(NotFoundError, match="not registered"):
        MapOutputReader(objects).resolve(TASK)
    assert OutputRegistry(objects).published(1, 2) == {}
    assert write(objects, {0: [1]}).output.attempt == 2
    assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [1]


def test_the_binary_index_is_preferred_and_json_is_read_without_it(objects: Objects) -> None:
    write(objects, {0: [1]})
    reader = MapOutputReader(objects)
    index = reader.resolve(TASK)
    objects.put("shuffle/1/2/3/1/index.json", b"not an index")
    assert reader.resolve(TASK) == index
    json = objects.get("shuffle/1/2/3/1/index.bin")[12:]
    objects.delete("shuffle/1/2/3/1/index.bin")
    with pytest.raises(DamagedOutputError, match=r"index\.json is damaged"):
        reader.resolve(TASK)
    objects.put("shuffle/1/2/3/1/index.json", json)
    assert reader.resolve(TASK) == index
    objects.delete("shuffle/1/2/3/1/index.json")
    with pytest.raises(DamagedOutputError, match=r"index\.json is missing; compute") as lost:
        reader.resolve(TASK)
    assert (lost.value.map_task, lost.value.attempt) == (3, 1)


def test_who_comes_second_learns_who_won_and_leaves_no_files(objects: Objects) -> None:
    first, second = filled(objects, {0: [1]}), filled(objects, {0: [2]})
    early = OutputRegistry(objects).claim(TASK, 0, 1_000)
    assert early.attempt == 1
    won = first.publish()
    assert (won.is_mine, won.output.attempt) == (True, 2)
    before = stored(objects)
    lost = second.publish()
    assert (lost.is_mine, lost.output) == (False, won.output)
    assert stored(objects) == before
    assert keys_of(MapOutputReader(objects).read_partition(TASK, 0)) == [1]


def test_recomputed_output_is_the_next_generation(objects: Objects) -> None:
    first = write(objects, {0: [1]}).output
    assert not write(objects, {0: [2]}).is_mine, "there is output, and nobody asked to replace it"
    second = write(objects, {0: [2]}, replaces=first.attempt)
    assert (second.is_mine, second.output.generation) == (True, 2)
    late = write(objects, {0: [3]}, replaces=first.attempt)
    assert (late.is_mine, late.output) == (False, second.output), "it is replaced already"
    reader = MapOutputReader(objects)
    assert keys_of(reader.read_partition(TASK, 0)) == [2]
    assert keys_of(reader.read_partition(TASK, 0, first.attempt)) == [1]


def test_a_restart_finds_what_was_published(objects: Objects) -> None:
    for map_task in range(12):
        write(objects, {0: [map_task]}, MapTask(1, 2, map_task))
    write(objects, {0: [100]}, MapTask(1, 2, 5), replaces=1)
    write(objects, {0: [7]}, MapTask(1, 3, 0))
    found = OutputRegistry(objects).published(1, 2)
    assert sorted(found) == list(range(12))
    assert found[5].generation == 2
    reader = MapOutputReader(objects)
    rows = {map_task: keys_of(reader.read(reader.index(found[map_task]), 0)) for map_task in found}
    assert rows == {**{each: [each] for each in range(12)}, 5: [100]}


def test_all_stages_are_listed(objects: Objects) -> None:
    assert list_stages(objects) == []
    write(objects, {0: [1]})
    write(objects, {0: [1]}, replaces=1)
    OutputRegistry(objects).claim(MapTask(1, 2, 4), 0, 1_000)
    write(objects, {0: [1]}, MapTask(1, 10, 0))
    stages = list_stages(objects)
    assert [stage[:5] for stage in stages] == [(1, 2, 2, 1, 2), (1, 10, 1, 1, 1)]
    stored_bytes = sum(info.bytes for info in objects.list("shuffle/1/2/3"))
    assert stages[0].bytes == stored_bytes


def test_what_is_no_map_output_is_not_listed(objects: Objects) -> None:
    write(objects, {0: [1]})
    listed = list_stages(objects)
    for key in (f"{1 << 64}/1/1/1/x", f"1/{1 << 64}/claims/1-1", f"1/1/{1 << 64}/1/x", "1/1/x/1/x"):
        objects.put(f"shuffle/{key}", b"")
    assert list_stages(objects) == listed
    assert AttemptCleanup(objects).cleanup_expired_attempts(0) == 0


def test_a_chunk_that_did_not_arrive_is_named(objects: Objects) -> None:
    write(objects, {0: range(100)})
    reader = MapOutputReader(objects)
    chunks = list(reader.fetch_partition_chunks(TASK, 0, chunk_bytes=100))
    missing = chunks.pop(3)
    with pytest.raises(DamagedOutputError, match="the chunk from byte 300 did not arrive"):
        reassemble(reader.resolve(TASK), 0, chunks)
    reassembly = Reassembly(reader.resolve(TASK), 0)
    with pytest.raises(DamagedOutputError, match="a chunk has the bytes"):
        reassembly.add(PartitionChunk(missing.offset, bytes(1 << 20)))
    with pytest.raises(UsageError, match="chunk_bytes must be at least 1"):
        list(reader.fetch_partition_chunks(TASK, 0, chunk_bytes=0))


def test_small_batches_are_stored_together(objects: Objects) -> None:
    writer = MapOutputWriter(objects, TASK, SCHEMA, PARTITIONS)
    for key in range(1_000):
        writer.write(1, batch([key]))
    writer.publish()
    index = MapOutputReader(objects).resolve(TASK)
    assert [(each.rows, each.batches) for each in index.partitions] == [(1_000, 1)]
    assert keys_of(MapOutputReader(objects).read(index, 1)) == list(range(1_000))


@pytest.mark.parametrize("is_smaller", [True, False])
def test_rows_are_compressed_if_that_makes_them_a_third_smaller(
    local_objects: Objects, is_smaller: bool
) -> None:
    # Random numbers below 2^16 shrink to little more than two of their eight bytes.
    random_numbers = random.Random(1)
    values = [random_numbers.randrange(1 << (16 if is_smaller else 62)) for _ in range(20_000)]
    columns = {"small": [each % (1 << 16) for each in values], "value": values}
    rows = pa.RecordBatch.from_pydict(columns)
    for map_task in (3, 4):
        writer = MapOutputWriter(local_objects, MapTask(1, 2, map_task), rows.schema, 2)
        for first in range(0, rows.num_rows, 500):
            writer.write(first % 1_000 // 500, rows.slice(first, 500))
        output = writer.publish().output
        if is_smaller:
            assert output.bytes < rows.nbytes * 2 / 3
        else:
            assert rows.nbytes <= output.bytes <= rows.nbytes * 1.1, "a fourth is not enough"
    reader = MapOutputReader(local_objects)
    one, other = (reader.resolve(MapTask(1, 2, each)).partitions for each in (3, 4))
    assert one == other, "the same rows are the same bytes"
    read = [*reader.read_partition(TASK, 0)["value"], *reader.read_partition(TASK, 1)["value"]]
    assert sorted(each.as_py() for each in read) == sorted(values)


def test_a_writer_refuses_what_does_not_fit(objects: Objects) -> None:
    writer = filled(objects, {0: [1]})
    with pytest.raises(UsageError, match="no reduce partition 4; use one from 0 to 3"):
        writer.write(4, batch([1]))
    with pytest.raises(UsageError, match="got a batch with the columns other int64; write batches"):
        writer.write(0, pa.RecordBatch.from_pydict({"other": [1]}))
    writer.publish()
    with pytest.raises(UsageError, match="was published; make another writer"):
        writer.write(0, batch([1]))
    for bad in (-1, 1 << 64, "7", True):
        with pytest.raises(UsageError, match=r"map_task is .*; use a whole number"):
            MapTask(1, 2, bad)  # type: ignore[arg-type]
