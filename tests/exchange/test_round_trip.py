"""Random tables of all types of a schema come back as they were written."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.exchange import MapOutputReader, MapOutputWriter, MapTask, reassemble
from headrace.storage import open_objects

PARTITIONS = 3
DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31))
INSTANTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))
NUMBERS = st.integers(-(10**17), 10**17).map(lambda number: Decimal(number).scaleb(-4))
TYPES: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-(1 << 7), (1 << 7) - 1)),
    (pa.int16(), st.integers(-(1 << 15), (1 << 15) - 1)),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), st.text(max_size=8)),
    (pa.large_string(), st.text(max_size=8)),
    (pa.binary(), st.binary(max_size=8)),
    (pa.date32(), DAYS),
    (pa.timestamp("us", "UTC"), INSTANTS),
    (pa.timestamp("us"), INSTANTS.map(lambda instant: instant.replace(tzinfo=None))),
    (pa.decimal128(18, 4), NUMBERS),
    (pa.list_(pa.float32()), st.lists(st.floats(width=32), max_size=3)),
    (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=3), max_size=3)),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.text(max_size=2)}),
    ),
    (pa.map_(pa.string(), pa.int32()), st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)))),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["red", "green", "blue"])),
    (pa.null(), st.none()),
]


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.Schema, list[tuple[int, pa.RecordBatch]]]:
    """Draw a schema, and batches of it with the partition that each goes to."""
    columns = draw(st.lists(st.sampled_from(range(len(TYPES))), min_size=1, max_size=4))
    schema = pa.schema([(f"column {n}", TYPES[each][0]) for n, each in enumerate(columns)])
    rows = st.tuples(*(st.none() | TYPES[each][1] for each in columns))
    drawn = []
    for _ in range(draw(st.integers(0, 4))):
        values = draw(st.lists(rows, max_size=5))
        arrays = [pa.array([row[n] for row in values], each.type) for n, each in enumerate(schema)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        drawn.append((draw(st.integers(0, PARTITIONS - 1)), batch))
    return schema, drawn


@given(batches(), st.integers(7, 64))
def test_what_was_written_is_read(
    written: tuple[pa.Schema, list[tuple[int, pa.RecordBatch]]], chunk_bytes: int
) -> None:
    schema, drawn = written
    objects = open_objects("memory://")
    task = MapTask((1 << 64) - 1, 0, 7)
    writer = MapOutputWriter(objects, task, schema, PARTITIONS)
    for reduce_partition, batch in drawn:
        writer.write(reduce_partition, batch)
    writer.publish()
    reader = MapOutputReader(objects)
    index = reader.resolve(task)
    for reduce_partition in range(PARTITIONS):
        mine = [batch for partition, batch in drawn if partition == reduce_partition]
        expected = pa.Table.from_batches(mine, schema)
        chunks = list(reader.fetch_chunks(index, reduce_partition, chunk_bytes))
        random.Random(chunk_bytes).shuffle(chunks)
        for table in (
            reader.read(index, reduce_partition),
            reassemble(index, reduce_partition, chunks),
        ):
            assert table.schema == schema
            # Equal texts also mean equal NaNs, which no comparison of values says.
            assert str(table.to_pylist()) == str(expected.to_pylist())
        meta = index.partition(reduce_partition)
        assert (meta.rows if meta else 0) == expected.num_rows
