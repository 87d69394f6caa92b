"""What a vector store promises its users: what it takes, what it refuses, and who sees what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import (
    DataError,
    DocumentError,
    ExistsError,
    FencedError,
    QueryError,
    QueueFullError,
    SchemaError,
    StorageError,
    UsageError,
    VersionError,
)
from headrace.settings import IngestSettings, VectorSettings
from headrace.stores.checkpoint_record import StoreCheckpoint
from headrace.stores.kv.contract import WriteBatch, WriteSequence
from headrace.stores.kv.lmdb_store import LmdbKeyValueStore
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.vectors.distance import Metric
from headrace.stores.vectors.filters import Equals
from headrace.stores.vectors.vector_delta import VectorDelta
from headrace.stores.vectors.vector_rows import DIMENSION_MAX, VectorRows, VectorSchema
from headrace.stores.vectors.vector_storage import SCHEMA_KEY, STATE_KEY, read_state
from headrace.stores.vectors.vector_store import VectorStore
from tests.stores.vectors.test_histories import KeptMemory

METADATA = pa.schema(
    [
        pa.field("color", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("price", pa.float64()),
        pa.field("sold", pa.bool_()),
        pa.field("made", pa.timestamp("us", "UTC")),
    ]
)
GOOD = {"id": "good", "vector": [1.0, 2.0], "color": "red", "size": 1, "price": 0.5, "sold": True}
PATIENT = IngestSettings(flush_interval_s=1000)


@pytest.fixture
def store() -> Iterator[VectorStore]:
    kv = MemoryKeyValueStore()
    with VectorStore.create(kv, 2, "cosine", METADATA, ingest=PATIENT) as store:
        yield store


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows))


def write_forever(store: VectorStore, rows: pa.RecordBatch) -> None:
    for _ in range(10_000):
        store.write(rows)


def upsert_forever(store: VectorStore) -> None:
    for start in range(0, 10_000, 20):
        names = [f"{start + i}" for i in range(20)]
        store.flush(store.upsert(names, np.ones((20, 8)), timeout_s=None))


def ids(rows: pa.RecordBatch) -> list[str]:
    return rows.column("id").to_pylist()  # type: ignore[no-any-return]


# Reading and writing


def test_rows_come_back_as_they_were_written(store: VectorStore) -> None:
    other = {"id": "other", "vector": [0.0, -1.0]}
    store.write(batch(GOOD, other))
    store.flush()
    assert store.get(["other", "nobody", "good"]).to_pylist() == [
        {**dict.fromkeys(METADATA.names), **other},
        {"made": None, **GOOD},
    ]
    assert store.get(["good"]).schema == store.schema
    scanned = list(store.scan(filter={"field": "size", "eq": 1}, columns=["size", "id"]))
    assert [rows.to_pylist() for rows in scanned] == [[{"size": 1, "id": "good"}]]


# proves G24
def test_a_reader_sees_whole_flushes_only_and_fresh_reads_see_all(store: VectorStore) -> None:
    store.upsert(["a", "b"], [[1, 0], [0, 1]], {"color": ["red", "blue"]})
    assert ids(store.search([1, 0])) == []
    assert ids(store.search([1, 0], fresh=True)) == ["a", "b"]
    store.flush()
    store.upsert(["a"], [[-1, 0]], {"color": ["green"]})
    store.delete(["b"])
    store.upsert(["c"], [[1, 0.1]])
    assert ids(store.search([1, 0])) == ["a", "b"]
    view = store.view(fresh=True)
    assert [row["id"] for each in view.scan(None, None) for row in each.to_pylist()] == ["a", "c"]
    assert ids(store.search([1, 0], fresh=True)) == ["c", "a"]
    assert ids(store.search([1, 0], filter=Equals("color", "green"), fresh=True)) == ["a"]
    assert store.get(["b", "c", "a"], ["id", "color"], fresh=True).to_pylist() == [
        {"id": "c", "color": None},
        {"id": "a", "color": "green"},
    ]
    store.flush()
    assert ids(store.search([1, 0])) == ["c", "a"]


def test_a_fresh_search_looks_further_where_rows_were_deleted_and_not_flushed() -> None:
    """The lists nearest to the query have rows enough, but none of them is left."""
    settings = VectorSettings(list_rows=8, tail_rows_max=8, probe_rows=40, exact_rows_max=10)
    kv = MemoryKeyValueStore()
    with VectorStore.create(kv, 1, "l2", settings=settings, ingest=PATIENT) as store:
        store.flush(store.upsert([f"{i}" for i in range(400)], [[i] for i in range(400)]))
        assert int(store.stat()["lists"]) > 20
        store.delete([f"{i}" for i in range(200)])
        assert ids(store.search([0.0], 5, fresh=True)) == ["200", "201", "202", "203", "204"]
        assert ids(store.search([0.0], 5)) == ["0", "1", "2", "3", "4"]


def test_a_view_stays_as_it_is(store: VectorStore) -> None:
    store.upsert(["a", "b"], [[1, 0], [0, 1]])
    store.flush()
    before, fresh = store.view(), store.view(fresh=True)
    store.upsert(["a", "c"], [[0.5, 0.5], [1, 1]])
    store.delete(["b"])
    store.flush()
    for view in (before, fresh):
        assert view.get(["a", "b", "c"], ["id", "vector"]).to_pylist() == [
            {"id": "a", "vector": [1, 0]},
            {"id": "b", "vector": [0, 1]},
        ]
    assert ids(store.get(["a", "b", "c"])) == ["a", "c"]


def test_the_last_row_of_an_id_counts(store: VectorStore) -> None:
    store.upsert(["a", "b", "a"], [[1, 0], [0, 1], [1, 1]], {"size": [1, 2, 3]})
    store.flush()
    assert store.get(["a"], ["vector", "size"]).to_pylist() == [{"vector": [1, 1], "size": 3}]
    store.write(batch({**GOOD, "_deleted": True}, GOOD, {"id": "a", "_deleted": True}))
    store.flush()
    assert [ids(each) for each in store.scan(columns=["id"])] == [["b", "good"]]


def test_metadata_that_is_not_given_becomes_null(store: VectorStore) -> None:
    store.upsert(["a"], [[1, 0]], {"size": [1]})
    store.flush()
    store.upsert(["a"], [[1, 0]], {"color": ["red"]})
    store.flush()
    assert store.get(["a"], ["color", "size"]).to_pylist() == [{"color": "red", "size": None}]


@pytest.mark.parametrize("metric", Metric)
def test_distances_are_as_the_metric_says(metric: Metric) -> None:
    with VectorStore.create(MemoryKeyValueStore(), 2, metric) as store:
        store.upsert(["a", "b"], [[3, 4], [0, 1]])
        store.flush()
        found = store.search([0, 2], columns=["id", "vector"]).to_pylist()
    expected = {
        Metric.L2: [("b", 1.0), ("a", 13**0.5)],
        Metric.COSINE: [("b", 0.0), ("a", 0.2)],
        Metric.DOT: [("a", -8.0), ("b", -2.0)],
    }[metric]
    assert [row["id"] for row in found] == [name for name, _ in expected]
    assert [row["distance"] for row in found] == pytest.approx([away for _, away in expected])


def test_vectors_of_other_number_types_are_taken(store: VectorStore) -> None:
    store.write(batch({"id": "ints", "vector": [1, 2]}))
    store.upsert(["doubles"], np.array([[0.1, 0.2]]))
    store.upsert(["halves"], np.array([[0.5, 0.25]], np.float16))
    sliced = batch({"id": "x", "vector": [9, 9]}, {"id": "sliced", "vector": [3, 4]})[1:]
    store.write(sliced)
    store.flush()
    found = store.get(["ints", "doubles", "halves", "sliced"], ["vector"]).column(0).to_pylist()
    assert found == [[1, 2], [np.float32(0.1), np.float32(0.2)], [0.5, 0.25], [3, 4]]


def test_bulk_load_is_durable_and_waits_for_room(tmp_path: Path) -> None:
    ingest = IngestSettings(pending_bytes_max=200_000, flush_interval_s=1000)
    path = tmp_path / "kv"
    rows = pa.RecordBatch.from_pydict(
        {
            "id": [f"row-{i}" for i in range(3000)],
            "vector": pa.array(np.random.default_rng(1).random((3000, 8)).tolist()),
        }
    )
    with VectorStore.create(LmdbKeyValueStore(path), 8, "l2", ingest=ingest) as store:
        assert store.load([rows[:2500]]) == 2500, "a write above the limit is taken alone"
        assert store.load(rows[start : start + 300] for start in range(0, 3000, 300)) == 3000
        with pytest.raises(QueueFullError):
            write_forever(store, rows[:300])
        store.flush()
        assert store.stat()["rows"] == 3000


# Bad input


BAD: list[tuple[dict[str, Any], str]] = [
    ({"vector": [1.0]}, "row 1, column 'vector' cannot be stored: it has 1 numbers"),
    ({"vector": [1.0, 2.0, 3.0]}, "row 1, column 'vector' cannot be stored: it has 3 numbers"),
    ({"vector": None}, "row 1, column 'vector' cannot be stored: it is missing"),
    ({"vector": [1.0, float("nan")]}, "row 1, column 'vector' cannot be stored: a number in it"),
    ({"vector": [1.0, float("-inf")]}, "row 1, column 'vector' cannot be stored: a number in it"),
    ({"vector": [1.0, 1e39]}, "row 1, column 'vector' cannot be stored: a number in it"),
    ({"vector": [1e18, 1e18]}, "row 1, column 'vector' cannot be stored: it is longer than"),
    ({"vector": [0.0, 0.0]}, "row 1, column 'vector' cannot be stored: it is zero"),
    ({"vector": [1e-20, 0.0]}, "row 1, column 'vector' cannot be stored: it is zero"),
    ({"id": None}, "row 1, column 'id'"),
    ({"id": ""}, "row 1, column 'id'"),
    ({"id": "é" * 600}, "row 1, column 'id'"),
]


@pytest.mark.parametrize(("change", "said"), BAD, ids=[said for _, said in BAD])
def test_a_row_that_cannot_be_stored_is_named_and_none_is_taken(
    store: VectorStore, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(DocumentError) as raised:
        store.write(batch(GOOD, {**GOOD, "id": "bad", **change}))
    assert said in str(raised.value)
    store.flush()
    assert store.stat()["rows"] == 0
    # The same row is no error where it is deleted: nobody looks at its vector.
    if "vector" in change:
        gone = {**GOOD, "id": "bad", **change, "_deleted": True}
        store.write(batch({**GOOD, "_deleted": False}, gone))


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("shape", pa.array(["round"]), "no column 'shape'"),
        ("color", pa.array([5]), "row 0, column 'color'"),
        ("size", pa.array(["5"]), "row 0, column 'size'"),
        ("size", pa.array([1.5]), "row 0, column 'size'"),
        ("size", pa.array([2**63], pa.uint64()), "column 'size'"),
        ("sold", pa.array([1]), "row 0, column 'sold'"),
        ("price", pa.array([True]), "row 0, column 'price'"),
        ("made", pa.array([5]), "row 0, column 'made'"),
        ("_deleted", pa.array(["no"]), "row 0, column '_deleted'"),
        ("id", pa.array([5]), "row 0, column 'id'"),
        ("vector", pa.array(["far"]), "column 'vector' has the type string"),
        ("vector", pa.array([["far", "off"]]), "column 'vector' holds string"),
        ("vector", pa.array([[1.0, None]]), "row 0, column 'vector'"),
        ("vector", pa.nulls(1), "row 0, column 'vector'"),
        ("made", pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC")), "its year is"),
        ("made", pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC")), "its year is"),
    ],
)
def test_a_column_that_does_not_fit_is_named(
    store: VectorStore, column: str, values: pa.Array, said: str
) -> None:
    rows = batch({"id": "a", "vector": [1.0, 2.0]})
    rows = rows.drop_columns([column]) if column in rows.schema.names else rows
    with pytest.raises(DocumentError) as raised:
        store.write(rows.append_column(column, values))
    assert said in str(raised.value)


def test_the_first_and_the_last_time_are_read(store: VectorStore) -> None:
    times = pa.array([-62_135_596_800_000_000, 253_402_300_799_999_999], pa.timestamp("us", "UTC"))
    store.flush(store.upsert(["a", "b"], [[1, 0], [0, 1]], {"made": times}))
    found = [row["made"].year for row in store.get(["a", "b"], ["made"]).to_pylist()]
    assert found == [1, 9999]


def test_columns_that_are_missing_or_there_twice_are_named(store: VectorStore) -> None:
    rows = batch({"id": "a", "vector": [1.0, 2.0]})
    for wrong, said in [
        (rows.drop_columns(["id"]), "no column 'id'"),
        (rows.drop_columns(["vector"]), "row 0, column 'vector'"),
        (rows.append_column("id", pa.array(["b"])), "two columns"),
    ]:
        with pytest.raises(DocumentError, match=said):
            store.write(wrong)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.upsert("ab", [[1, 0], [0, 1]]), "one string"),
        (lambda s: s.upsert(["a"], [[1, 0], [0, 1]]), "differ in length"),
        (lambda s: s.upsert(["a"], [[1, 0]], {"vector": [1]}), "'vector' is no metadata"),
        (lambda s: s.upsert(["a"], [[1, 0]], {"size": ["x"]}), "'size'"),
        (lambda s: s.upsert(["a"], [["x", "y"]]), "'vector'"),
        (lambda s: s.upsert([1], [[1, 0]]), "'id'"),
        (lambda s: s.upsert(["a"], [1]), "'vector' has the type int64"),
        (lambda s: s.upsert(["a"], 1), "'vector'"),
        (lambda s: s.upsert(["\ud800"], [[1, 0]]), "'id'"),
        (lambda s: s.delete("a"), "one string"),
    ],
)
def test_a_call_with_wrong_arguments_is_refused(
    store: VectorStore, call: Callable[[VectorStore], object], said: str
) -> None:
    with pytest.raises(DocumentError, match=said):
        call(store)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vector": [1, 0, 0]}, "3 numbers"),
        ({"vector": [[1, 0]]}, "one vector"),
        ({"vector": ["x", "y"]}, "cannot be read"),
        ({"vector": ["1", "2"]}, "cannot be read"),
        ({"vector": [1, [2, 3]]}, "cannot be read"),
        ({"vector": [1j, 2]}, "cannot be read"),
        ({"vector": [10**400, 1]}, "cannot be read"),
        ({"filter": ["color"]}, "cannot read the filter"),
        ({"vector": [0, 0]}, "it is zero"),
        ({"vector": [float("nan"), 0]}, "NaN"),
        ({"k": 0}, "k is 0"),
        ({"k": 10_001}, "k is 10001"),
        ({"probe_rows": 0}, "probe_rows is 0"),
        ({"columns": ["shape"]}, "'shape'"),
        ({"filter": {"field": "shape", "eq": 1}}, "'shape'"),
    ],
)
def test_a_search_that_cannot_be_answered_is_refused(
    store: VectorStore, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(QueryError, match=said):
        store.search(**{"vector": [1, 0], **options})


@pytest.mark.parametrize("names", ["good", [5], [None], [["good"]]])
def test_ids_that_are_no_list_of_strings_are_not_looked_up(store: VectorStore, names: Any) -> None:
    with pytest.raises(QueryError, match="no list of ids"):
        store.get(names)


def test_a_scan_that_cannot_be_answered_is_refused_before_the_first_row(store: VectorStore) -> None:
    for wrong in ({"rows": 5}, {"columns": ["shape"]}, {"filter": Equals("shape", 1)}):
        with pytest.raises(QueryError):
            store.scan(**wrong)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0, "l2", None), "dimension 0"),
        ((DIMENSION_MAX + 1, "l2", None), f"dimension {DIMENSION_MAX + 1}"),
        ((2, "hamming", None), "'hamming'"),
        ((2, "l2", pa.schema([("id", pa.string())])), "'id'"),
        ((2, "l2", pa.schema([("_deleted", pa.bool_())])), "'_deleted'"),
        ((2, "l2", pa.schema([("", pa.string())])), "''"),
        ((2, "l2", pa.schema([("tags", pa.list_(pa.string()))])), "'tags'"),
        ((2, "l2", pa.schema([("a", pa.string()), ("a", pa.int64())])), "one name"),
    ],
)
def test_a_schema_that_no_store_can_have_is_refused(arguments: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        VectorSchema.of(*arguments)


@pytest.mark.parametrize("name", VectorSettings.__struct_fields__)
def test_settings_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least [01], got -1"):
        VectorSettings(**{name: -1})


@pytest.mark.parametrize("name", ["list_rows", "probe_rows", "k_max"])
def test_settings_that_leave_nothing_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
        VectorSettings(**{name: 0})


def test_the_least_settings_store_and_find_rows() -> None:
    least = {
        name: 1 if name in ("list_rows", "probe_rows", "k_max") else 0
        for name in VectorSettings.__struct_fields__
        if name != "memory_bytes_max"
    }
    rows = {f"{number}": [float(number), 1.0] for number in range(100)}
    kv = MemoryKeyValueStore()
    with VectorStore.create(kv, 2, "l2", settings=VectorSettings(**least)) as store:
        for name, vector in rows.items():
            store.upsert([name], [vector])
            store.flush()
        for name, vector in rows.items():
            assert ids(store.search(vector, 1)) == [name]


def test_narrow_types_are_widened() -> None:
    narrow = pa.schema(
        [("a", pa.int32()), ("b", pa.float32()), ("c", pa.large_string()), ("d", pa.timestamp("s"))]
    )
    found = VectorSchema.of(2, "l2", narrow).metadata_columns
    assert found.types == [pa.int64(), pa.float64(), pa.string(), pa.timestamp("us", "UTC")]


# Limits and failures


def test_rows_beyond_the_memory_limit_are_refused() -> None:
    settings = VectorSettings(memory_bytes_max=100_000)
    with VectorStore.create(MemoryKeyValueStore(), 8, "l2", settings=settings) as store:
        with pytest.raises(StorageError, match="memory_bytes_max"):
            upsert_forever(store)
        assert 60 < int(store.stat()["rows"]) < 1000


def test_a_checkpoint_beyond_the_memory_limit_is_refused() -> None:
    settings = VectorSettings(memory_bytes_max=1000)
    with VectorStore.create(MemoryKeyValueStore(), 2, "l2", settings=settings) as store:
        store.take("fill", "g1")
        rows = batch(*({"id": f"{i}", "vector": [i, 1]} for i in range(100)))
        with pytest.raises(StorageError, match="exceed 1000"):
            store.apply(rows, StoreCheckpoint("fill", "g1", 1))
        assert store.take("fill", "g1") == 0


def test_a_store_that_is_full_takes_deletions_and_has_room_again() -> None:
    settings = VectorSettings(memory_bytes_max=400_000)
    with VectorStore.create(MemoryKeyValueStore(), 8, "l2", settings=settings) as store:
        for _ in range(2):
            with pytest.raises(StorageError, match="memory_bytes_max"):
                upsert_forever(store)
            names = [name for each in store.scan(columns=["id"]) for name in ids(each)]
            assert len(names) > 500
            store.flush(store.delete(names[10:]))
            assert sorted(ids(store.get(names))) == sorted(names[:10])


# proves G14
def test_a_full_store_knows_the_checkpoint_that_it_holds() -> None:
    settings = VectorSettings(memory_bytes_max=100_000)
    full, rows = StoreCheckpoint("task", "g", 1), {"id": "a", "vector": [1.0] * 8}
    with VectorStore.create(MemoryKeyValueStore(), 8, "l2", settings=settings) as store:
        store.take("task", "g")
        assert store.apply(batch(rows), full)
        with pytest.raises(StorageError, match="memory_bytes_max"):
            upsert_forever(store)
        assert not store.apply(batch(*(rows | {"id": str(n)} for n in range(1000))), full)


def test_rows_that_are_replaced_again_and_again_do_not_fill_the_memory() -> None:
    settings = VectorSettings(memory_bytes_max=400_000)
    names = [f"{i}" for i in range(200)]
    with VectorStore.create(MemoryKeyValueStore(), 8, "l2", settings=settings) as store:
        for number in range(1, 40):
            store.flush(store.upsert(names, np.full((200, 8), number)))
        assert ids(store.search([39] * 8, 200)) == names


class FailingStore(MemoryKeyValueStore):
    """Memory whose writes or syncs fail when they are told to."""

    write_fails = False
    sync_fails = False

    def write(self, batch: WriteBatch) -> WriteSequence:
        if self.write_fails:
            raise StorageError("the disk is full")
        return super().write(batch)

    def wait_durable(self, sequence: WriteSequence) -> None:
        if self.sync_fails:
            raise StorageError("the disk is gone")
        super().wait_durable(sequence)


# proves G25
@pytest.mark.parametrize("fails", ["write_fails", "sync_fails"])
def test_a_failed_flush_reaches_every_later_call_and_readers_keep_what_they_had(fails: str) -> None:
    kv = FailingStore()
    store = VectorStore.create(kv, 2, "l2", ingest=PATIENT)
    store.flush(store.upsert(["a"], [[1, 0]]))
    setattr(kv, fails, True)
    epoch = store.upsert(["a", "b"], [[5, 5], [6, 6]])
    with pytest.raises(StorageError):
        store.flush(epoch)
    with pytest.raises(StorageError):
        store.upsert(["c"], [[1, 1]])
    with pytest.raises(StorageError):
        store.take("task", "g1")
    if fails == "write_fails":
        assert store.get(["a", "b"]).column("vector").to_pylist() == [[1, 0]]
        assert ids(store.search([5, 5])) == ["a"]
    with pytest.raises(StorageError):
        store.close()


def test_a_store_that_is_closed_says_so(store: VectorStore) -> None:
    store.close()
    store.close()
    for call in (
        lambda: store.write(batch(GOOD)),
        lambda: store.search([1, 0]),
        lambda: store.get(["a"]),
        lambda: store.take("task", "g1"),
    ):
        with pytest.raises(UsageError, match="closed"):
            call()


# Opening


def test_a_store_opens_with_its_own_schema_only() -> None:
    place = KeptMemory()
    VectorStore.create(place(), 2, "l2", METADATA).close()
    VectorStore.create(place(), 2, "l2", METADATA).close()
    assert VectorStore(place()).vector_schema == VectorSchema.of(2, "l2", METADATA)
    for other in [(3, "l2", METADATA), (2, "dot", METADATA), (2, "l2", None)]:
        with pytest.raises(ExistsError, match="dimension 2, metric l2"):
            VectorStore.create(place(), *other)
    with pytest.raises(UsageError, match="holds no vectors"):
        VectorStore(MemoryKeyValueStore())


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (SCHEMA_KEY, b"\x82\xa6format\x09\xa6schema\xc0", VersionError),
        (SCHEMA_KEY, b"?", DataError),
        (STATE_KEY, None, DataError),
        (STATE_KEY, b"?", DataError),
        (STATE_KEY, b"\x83\xa8next_row\x01\xa9next_list\x05\xaanext_chunk\x05", DataError),
        (b"\x02\0\0\0\0\0\0\0\0\0\0\0\x01", b"?", DataError),
        (b"\x02\0\0\0\x07\0\0\0\0\0\0\0\x09", "copy", DataError),
        (b"\x03\0\0\0\x01", b"\0\0\0", DataError),
        (b"\x04\0\0\0\0\0\0\0\x05", "dead", DataError),
    ],
)
def test_damage_is_an_error_when_the_store_is_opened(
    key: bytes, value: bytes | str | None, error: type[Exception]
) -> None:
    from pyroaring import BitMap

    place = KeptMemory()
    with VectorStore.create(place(), 2, "l2") as store:
        store.upsert(["a", "b"], [[1, 0], [0, 1]])
    kv = place()
    change = WriteBatch()
    if value is None:
        change.delete(key)
    else:
        with kv.snapshot() as stored:
            _, chunk = next(stored.scan(b"\x02", b"\x03"))
        copies = {"copy": chunk, "dead": BitMap([3]).serialize()}
        change.put(key, copies[value] if isinstance(value, str) else value)
    kv.write(change)
    with pytest.raises(error):
        VectorStore(kv)


# proves G26
def test_internal_ids_are_not_used_again_after_a_restart(tmp_path: Path) -> None:
    place = tmp_path / "kv"
    kv = LmdbKeyValueStore(place)
    with VectorStore.create(kv, 2, "l2") as store:
        store.upsert(["a", "b", "c"], [[1, 0], [0, 1], [1, 1]])
        store.flush()
        store.delete(["c"])
    kv = LmdbKeyValueStore(place)
    with VectorStore(kv) as store:
        with kv.snapshot() as stored:
            assert read_state(stored).next_row == 4
        store.upsert(["d"], [[2, 2]])
        store.flush()
        view = store.view().snapshot
        assert view.table.numbers(view.find(["a", "b", "d"])).tolist() == [1, 2, 4]


# Tasks


# proves G14
def test_a_checkpoint_is_applied_once_although_its_wait_was_interrupted(
    store: VectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.take("task", "g")

    def interrupted(rows: VectorRows | None, records: dict[bytes, bytes]) -> None:
        store._ingest.write(VectorDelta(store.vector_schema, rows, records))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "_write_durable", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.apply(batch(GOOD), StoreCheckpoint("task", "g", 1))
    assert not store.apply(batch(GOOD | {"size": 2}), StoreCheckpoint("task", "g", 1))
    assert store.get(["good"]).column("size").to_pylist() == [1]


# proves G24
def test_rows_and_checkpoint_are_stored_together_and_once(tmp_path: Path) -> None:
    kv = LmdbKeyValueStore(tmp_path / "kv")
    with VectorStore.create(kv, 2, "l2") as store:
        assert store.take("fill", "g1") == 0
        rows = batch({"id": "a", "vector": [1, 0]})
        assert store.apply(rows, StoreCheckpoint("fill", "g1", 1))
        assert ids(store.get(["a"])) == ["a"]
        assert not store.apply(
            batch({"id": "b", "vector": [1, 0]}), StoreCheckpoint("fill", "g1", 1)
        )
        with pytest.raises(UsageError, match="does not follow 1"):
            store.apply(rows, StoreCheckpoint("fill", "g1", 3))
        with pytest.raises(DocumentError):
            store.apply(batch({"id": "b"}), StoreCheckpoint("fill", "g1", 2))
        assert store.apply(rows[:0], StoreCheckpoint("fill", "g1", 2))
    with VectorStore(LmdbKeyValueStore(tmp_path / "kv")) as store:
        assert store.take("fill", "g1") == 2
        assert store.take("fill", "g2") == 0
        with pytest.raises(FencedError):
            store.apply(rows, StoreCheckpoint("fill", "g1", 3))
        assert ids(store.get(["a", "b"])) == ["a"]


def test_a_checkpoint_larger_than_the_write_buffer_is_applied() -> None:
    ingest = IngestSettings(pending_bytes_max=10_000)
    with VectorStore.create(MemoryKeyValueStore(), 2, "l2", ingest=ingest) as store:
        store.take("fill", "g1")
        rows = batch(*({"id": f"{i}", "vector": [i, 1]} for i in range(1000)))
        assert store.apply(rows, StoreCheckpoint("fill", "g1", 1))
        assert store.stat()["rows"] == 1000
