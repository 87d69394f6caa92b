"""The two kinds of store, opened here and through another process, by directory and by address."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import AccessError, DocumentError, NotFoundError, QueryError, UsageError
from headrace.settings import ServiceSettings
from headrace.stores.service.shared_store import SharedStore
from headrace.stores.service.shared_timeseries import SharedTimeSeries
from headrace.stores.service.shared_vectors import SharedVectors
from headrace.stores.service.store_access import (
    create_store,
    open_reference,
    open_store,
    open_timeseries,
    open_vectors,
)
from headrace.stores.service.store_ref import refer
from headrace.stores.timeseries.promql.results import (
    MatrixResult,
    ScalarResult,
    StringResult,
    VectorResult,
)
from headrace.stores.timeseries.series import LabelMatcher, MatchKind
from headrace.stores.vectors.filters import Equals

BASE_MS = 1_700_000_000_000


@pytest.fixture(params=["owner", "client"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes a store and opens it, as its owner or through another one of this process."""
    owners: list[SharedStore] = []

    def make(kind: str, **settings: Any) -> SharedStore:
        create_store(tmp_path / kind, kind, **settings)
        owners.append(open_store(tmp_path / kind))
        if request.param == "owner":
            return owners[0]
        owners.append(open_store(tmp_path / kind, may_own=False))
        assert owners[1].owner is None
        return owners[1]

    yield make
    for each in reversed(owners):
        each.close()


def samples(count: int = 10) -> pa.RecordBatch:
    rows = [
        {"timestamp": BASE_MS + n * 15_000, "value": n * 2.0, "job": job}
        for job in ("api", "web")
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows)


def test_time_series_are_queried(opened: Any) -> None:
    store: SharedTimeSeries = opened("timeseries", retention_s=None)
    rows = samples()
    named = rows.append_column("__name__", pa.array(["visits"] * rows.num_rows))
    store.flush(store.write(named))
    end = BASE_MS + 135_000
    found = store.query("sum(visits)", end)
    assert isinstance(found, VectorResult)
    assert (found.at_ms, list(found.labels), found.values.tolist()) == (end, [()], [36.0])
    assert store.query("1 + 1", end) == ScalarResult(end, 2.0)
    assert store.query('"text"', end) == StringResult(end, "text")
    window = store.query("visits[30s]", end)
    assert isinstance(window, MatrixResult)
    assert len(window.series.labels) == 2
    matrix = store.query_range("sum by (job) (visits)", BASE_MS, end, 15).series
    assert [dict(each) for each in matrix.labels] == [{"job": "api"}, {"job": "web"}]
    assert matrix.offsets.tolist() == [0, 10, 20]
    assert matrix.values[:3].tolist() == [0.0, 2.0, 4.0]
    assert matrix.timestamps[-1] == end
    at = datetime.fromtimestamp(end / 1000, UTC)
    assert store.query("count(visits)", at) == store.query("count(visits)", at)
    with pytest.raises(QueryError):
        store.query("sum(", end)


def test_answers_are_tables(opened: Any) -> None:
    store: SharedTimeSeries = opened("timeseries")
    store.flush(store.write(samples(2)))
    at = datetime.fromtimestamp(BASE_MS / 1000 + 15, UTC)

    def rows(query: str) -> list[tuple[Any, ...]]:
        table = store.query(query, at).table()
        assert table.schema.names == store.schema.names
        return [tuple(row.values()) for row in table.to_pylist()]

    api, web = [("job", "api")], [("job", "web")]
    assert rows('{job=~".+"}') == [(at, 2.0, api), (at, 2.0, web)]
    assert rows('{job="none"}') == []
    before = at - timedelta(seconds=15)
    assert rows('{job="web"}[30s]') == [(before, 0.0, web), (at, 2.0, web)]
    assert rows("1 + 1") == [(at, 2.0, [])]
    assert rows('"text"') == [(at, "text", [])]


def test_a_query_is_answered_for_now(opened: Any) -> None:
    store: SharedTimeSeries = opened("timeseries")
    now = datetime.now(UTC)
    store.flush(store.write(pa.RecordBatch.from_pylist([{"timestamp": now, "value": 7, "a": "b"}])))
    assert store.query('{a="b"}').table()["value"].to_pylist() == [7.0]
    matrix = store.query_range('{a="b"}', now - timedelta(minutes=1)).table()
    assert set(matrix["value"].to_pylist()) == {7.0}


SAMPLES = [
    {"timestamp": BASE_MS, "value": 1.0, "labels": {"job": "api"}},
    {"timestamp": BASE_MS + 1000, "value": 2.0, "labels": {"job": "api"}},
]


def test_samples_are_written_as_python_has_them(opened: Any) -> None:
    store: SharedTimeSeries = opened("timeseries")
    flat = [{**each, "job": "api"} for each in SAMPLES]
    table = pa.Table.from_pylist(flat, SCHEMA_BY_JOB)
    many = {
        "labels": {"job": "api"},
        "timestamps": [each["timestamp"] for each in SAMPLES],
        "values": [each["value"] for each in SAMPLES],
    }
    in_pieces = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    for number, rows in enumerate([SAMPLES, [many], table, in_pieces, table.to_pandas()]):
        store.flush(store.write(renamed(rows, f"api{number}")))
        batches = store.scan(matchers=[("job", "=", f"api{number}")])
        found = [row for batch in batches for row in batch.to_pylist()]
        assert [row["value"] for row in found] == [1.0, 2.0]
        assert {row["labels"][0] for row in found} == {("job", f"api{number}")}
    assert store.stat()["samples"] == 10
    store.write([])
    store.flush(store.write(table.slice(0, 0)))
    assert store.stat()["samples"] == 10


SCHEMA_BY_JOB = pa.schema(
    [("timestamp", pa.int64()), ("value", pa.float64()), ("job", pa.string())]
)


def renamed(rows: Any, job: str) -> Any:
    """Return rows of any form with another value of the label `job`."""
    if isinstance(rows, list):
        return [{**each, "labels": {"job": job}} for each in rows]
    if isinstance(rows, pa.Table):
        return rows.set_column(2, "job", pa.array([job] * rows.num_rows, pa.string()))
    return rows.assign(job=job)


def test_rows_are_taken_all_or_none(opened: Any) -> None:
    store: SharedTimeSeries = opened("timeseries")
    with pytest.raises(DocumentError, match="document 1"):
        store.write([*SAMPLES[:1], {"timestamp": BASE_MS, "value": 1.0}])
    with pytest.raises(DocumentError, match="a str cannot be written as rows"):
        store.write("rows")
    with pytest.raises(DocumentError, match="the rows have 0 columns 'value'"):
        store.write(pa.table({"timestamp": [BASE_MS], "job": ["api"]}))
    store.flush()
    assert store.stat()["samples"] == 0


def test_vectors_are_written_as_python_has_them(opened: Any) -> None:
    store: SharedVectors = opened("vectors", dimension=2, metric="l2", metadata={"name": "string"})
    table = pa.table({"id": ["b"], "vector": [[3.0, 4.0]], "name": ["far"]})
    store.write([{"id": "a", "vector": [0, 0], "name": "origin"}])
    store.write(table)
    store.flush(store.write(table.set_column(0, "id", pa.array(["c"])).to_pandas()))
    assert store.get(["a", "b", "c"]).column("name").to_pylist() == ["origin", "far", "far"]
    store.flush(store.write([{"id": "b", "_deleted": True}]))
    assert store.get(["b"]).num_rows == 0
    with pytest.raises(DocumentError, match="color"):
        store.write([{"id": "a", "vector": [0, 0], "color": "red"}])


def test_time_series_are_listed_and_scanned(opened: Any) -> None:
    store: SharedTimeSeries = opened("timeseries")
    store.flush(store.write(samples()))
    assert store.series() == [(("job", "api"),), (("job", "web"),)]
    assert store.series([("job", "=~", "a.*")]) == [(("job", "api"),)]
    assert store.label_names() == ["job"]
    assert store.label_values("job") == ["api", "web"]
    matcher = LabelMatcher("job", MatchKind.EQUAL, "web")
    start = datetime.fromtimestamp((BASE_MS + 120_000) / 1000, UTC)
    [batch] = store.scan(matchers=[matcher], start=start, end=BASE_MS + 200_000)
    assert batch.column("value").to_pylist() == [16.0, 18.0]
    assert store.stat()["samples"] == 20


def test_vectors_are_searched(opened: Any) -> None:
    store: SharedVectors = opened("vectors", dimension=2, metric="l2", metadata={"name": "string"})
    store.upsert(["a", "b"], [[0, 0], [3, 4]], {"name": ["origin", "far"]})
    store.flush(store.upsert(["c"], np.array([[1, 0]], np.float32)))
    near = store.search([0, 0], k=2)
    assert near.column("id").to_pylist() == ["a", "c"]
    assert near.column("distance").to_pylist() == pytest.approx([0.0, 1.0])
    for kept in (Equals("name", "far"), {"field": "name", "eq": "far"}):
        assert store.search([0, 0], filter=kept).column("id").to_pylist() == ["b"]
        [batch] = store.scan(filter=kept)
        assert batch.column("id").to_pylist() == ["b"]
    both = store.search_many(np.array([[0, 0], [3, 4]]), 1, exact=True, columns=["id", "vector"])
    assert [each.column("id").to_pylist() for each in both] == [["a"], ["b"]]
    assert store.get(["b", "missing"], ["id", "name"]).to_pylist() == [{"id": "b", "name": "far"}]
    store.flush(store.delete(["b", "missing"]))
    assert store.get(["b"]).num_rows == 0
    assert store.stat()["rows"] == 2


@pytest.mark.parametrize("vectors", [[[1, 2, 3]], [["x", "y"]], 5, [[1, 2], [3, 4]]])
def test_vectors_that_do_not_fit_are_refused(opened: Any, vectors: Any) -> None:
    store: SharedVectors = opened("vectors", dimension=2)
    with pytest.raises(DocumentError):
        store.upsert(["a"], vectors)


def test_a_text_is_no_list_of_ids(opened: Any) -> None:
    store: SharedVectors = opened("vectors", dimension=2)
    store.flush(store.upsert(["a", "b"], [[1, 0], [0, 1]]))
    with pytest.raises(DocumentError, match="one string"):
        store.delete("ab")
    with pytest.raises(DocumentError, match="one string"):
        store.upsert("ab", [[1, 0], [0, 1]])
    with pytest.raises(QueryError, match="no list of ids"):
        store.get("ab")
    store.flush()
    assert store.stat()["rows"] == 2


@pytest.mark.parametrize("vector", [[1, 2, 3], ["x", "y"], [[1, 2]], [float("nan"), 1]])
def test_searches_that_make_no_sense_are_refused(opened: Any, vector: Any) -> None:
    store: SharedVectors = opened("vectors", dimension=2)
    with pytest.raises(QueryError):
        store.search(vector)


def test_a_store_survives_closing(tmp_path: Path) -> None:
    create_store(tmp_path / "v", "vectors", dimension=2)
    with open_vectors(tmp_path / "v") as store:
        store.upsert(["a"], [[1, 0]])
    with open_vectors(tmp_path / "v") as store:
        assert store.get(["a"]).num_rows == 1


def test_a_store_on_slatedb(tmp_path: Path) -> None:
    create_store(tmp_path / "t", "timeseries", backend="slatedb")
    with open_timeseries(tmp_path / "t") as store:
        store.flush(store.write(samples()))
    with open_timeseries(tmp_path / "t") as store:
        assert store.stat()["samples"] == 20


def test_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    create_store(tmp_path / "t", "timeseries")
    with pytest.raises(UsageError, match="is a store of timeseries, not of vectors"):
        open_vectors(tmp_path / "t")
    assert not (tmp_path / "t" / "data").exists()


def test_a_setting_of_the_wrong_type_is_named(tmp_path: Path) -> None:
    many: Any = "many"
    with pytest.raises(UsageError, match=r"Expected `int \| null`, got `str`"):
        create_store(tmp_path / "t", "vectors", dimension=many)


# proves G28
def test_an_address_wants_the_token(tmp_path: Path) -> None:
    create_store(tmp_path / "t", "timeseries")
    secret = "a-secret-of-the-tests"
    service = ServiceSettings(token=secret)
    with open_timeseries(tmp_path / "t", service) as owner:
        address = owner.reach().address
        assert address.startswith("grpc://127.0.0.1:")
        for wrong in ("", secret + "x"):
            with pytest.raises(AccessError) as raised:
                open_store(address, token=wrong)
            assert secret not in str(raised.value)
        with open_timeseries(address, token=secret) as store:
            store.flush(store.write(samples()))
            assert owner.stat()["samples"] == 20
    assert secret not in (tmp_path / "t" / "store.json").read_text()


# proves G28
def test_the_address_of_the_owner_is_for_its_user_alone(tmp_path: Path) -> None:
    create_store(tmp_path / "t", "timeseries")
    with open_store(tmp_path / "t"):
        assert (tmp_path / "t" / "owner.json").stat().st_mode & 0o077 == 0


def test_a_reference_opens_a_store_of_its_kind(tmp_path: Path) -> None:
    create_store(tmp_path / "v", "vectors", dimension=2)
    with open_vectors(tmp_path / "v") as store, open_reference(refer(store)) as through:
        assert through.kind == "vectors"
        assert through.schema.equals(store.schema)


def test_a_path_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no store at"):
        open_store(tmp_path)
