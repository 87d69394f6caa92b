"""The HTTP interface: what it answers, and what it says to calls that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from starlette.applications import Starlette

from headrace.errors import QueueFullError
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.vectors.vector_api import IDS_MAX, QUERIES_MAX, vector_routes
from headrace.stores.vectors.vector_store import VectorStore
from tests.stores.timeseries.asgi_client import AsgiClient

METADATA = pa.schema(
    [("color", pa.string()), ("made", pa.timestamp("us", "UTC")), ("price", pa.float64())]
)
MADE = "2030-01-31T12:00:00Z"
ROWS = [
    {"id": "a", "vector": [1, 0], "color": "red", "made": MADE},
    {"id": "b", "vector": [0.5, 1.5], "color": "blue"},
    {"id": "c", "vector": [0, 2]},
]


@pytest.fixture
def store() -> Iterator[VectorStore]:
    with VectorStore.create(MemoryKeyValueStore(), 2, "l2", METADATA) as store:
        yield store


@pytest.fixture
def client(store: VectorStore) -> AsgiClient:
    client = AsgiClient(Starlette(routes=vector_routes(store)))
    answer = client.post("/vectors/upsert", json={"rows": ROWS})
    assert answer.json() == {"status": "success", "data": {"rows": 3, "epoch": 1}}
    return client


def ask(client: AsgiClient, path: str, **call: Any) -> Any:
    answer = client.post(f"/vectors/{path}", json=call)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def test_a_search_returns_documents_nearest_first(client: AsgiClient) -> None:
    found = ask(client, "search", vector=[1, 0], k=2)
    assert found == [
        {"id": "a", "color": "red", "made": MADE, "price": None, "distance": 0.0},
        {
            "id": "b",
            "color": "blue",
            "made": None,
            "price": None,
            "distance": pytest.approx(2.5**0.5),
        },
    ]


def test_a_search_filters_and_chooses_columns(client: AsgiClient) -> None:
    kept = {"not": {"field": "color", "eq": "red"}}
    found = ask(client, "search", vector=[1, 0], filter=kept, columns=["id", "vector"], exact=True)
    assert [(row["id"], row["vector"]) for row in found] == [("b", [0.5, 1.5]), ("c", [0, 2])]


def test_several_vectors_are_searched_for_at_once(client: AsgiClient) -> None:
    found = ask(client, "search", vectors=[[1, 0], [0, 2]], k=1, columns=["id"])
    assert [[row["id"] for row in each] for each in found] == [["a"], ["c"]]


def test_get_and_delete(client: AsgiClient) -> None:
    assert ask(client, "delete", ids=["b", "nobody"])["ids"] == 2
    found = ask(client, "get", ids=["c", "b", "a"], columns=["id", "color"])
    assert found == [{"id": "c", "color": None}, {"id": "a", "color": "red"}]


def test_a_write_that_is_not_durable_yet_is_found_by_a_fresh_search(client: AsgiClient) -> None:
    ask(client, "upsert", rows=[{"id": "d", "vector": [9, 9]}], durable=False)
    ask(client, "delete", ids=["a"], durable=False)
    found = ask(client, "search", vector=[9, 9], fresh=True, columns=["id"])
    assert [row["id"] for row in found] == ["d", "b", "c"]


def test_stat(client: AsgiClient) -> None:
    answer = client.get("/stat").json()["data"]
    assert (answer["rows"], answer["dimension"], answer["metric"]) == (3, 2, "l2")


@pytest.mark.parametrize(
    ("path", "call", "said"),
    [
        ("upsert", {"rows": [{"id": "x", "vector": [1]}]}, "row 0, column 'vector'"),
        ("upsert", {"rows": [ROWS[0], {"id": "x"}]}, "row 1, column 'vector'"),
        ("upsert", {"rows": [ROWS[0], {"vector": [1, 2]}]}, "row 1, column 'id'"),
        ("upsert", {"rows": [{**ROWS[0], "shape": "round"}]}, "row 0, column 'shape'"),
        ("upsert", {"rows": [ROWS[1], {**ROWS[0], "color": 5}]}, "row 1, column 'color'"),
        ("upsert", {"rows": [{**ROWS[0], "made": "soon"}]}, "row 0, column 'made'"),
        ("upsert", {"rows": [{**ROWS[0], "price": "dear"}]}, "row 0, column 'price'"),
        ("upsert", {"rows": [{**ROWS[0], "vector": [1, 1e39]}]}, "row 0, column 'vector'"),
        ("upsert", {"rows": [{**ROWS[0], "vector": "far"}]}, "row 0, column 'vector'"),
        ("upsert", {"rows": 5}, "cannot read the call"),
        ("upsert", {"row": []}, "cannot read the call"),
        ("delete", {"ids": [5]}, "cannot read the call"),
        ("delete", {"ids": [""]}, "row 0, column 'id'"),
        ("get", {"ids": ["a"], "columns": ["shape"]}, "no column 'shape'"),
        ("get", {"ids": ["a"] * (IDS_MAX + 1)}, "100001 ids"),
        ("search", {}, "vector or vectors"),
        ("search", {"vector": [1, 0], "vectors": [[1, 0]]}, "vector or vectors"),
        ("search", {"vector": [1, 0, 0]}, "3 numbers"),
        ("search", {"vector": []}, "0 numbers"),
        ("search", {"vectors": [[1, 0], [1]]}, "cannot be read"),
        ("search", {"vector": [1e39, 0]}, "cannot be searched for"),
        ("search", {"vector": [1, 0], "k": 0}, "k is 0"),
        ("search", {"vector": [1, 0], "k": 10**9}, "rows to find"),
        ("search", {"vector": [1, 0], "probe_rows": 0}, "probe_rows is 0"),
        ("search", {"vectors": [[1, 0]] * (QUERIES_MAX + 1)}, "1001 vectors"),
        ("search", {"vector": [1, 0], "filter": {"field": "shape", "eq": 1}}, "'shape'"),
        ("search", {"vector": [1, 0], "filter": {"like": 1}}, "cannot read the filter"),
        ("search", {"vector": [1, 0], "columns": ["shape"]}, "no column 'shape'"),
    ],
    ids=lambda each: str(each)[:50],
)
def test_a_bad_call_is_told_in_one_line_and_changes_nothing(
    client: AsgiClient, path: str, call: dict[str, Any], said: str
) -> None:
    answer = client.post(f"/vectors/{path}", json=call)
    assert answer.status_code == 400
    assert answer.json()["status"] == "error"
    assert said in answer.json()["error"]
    assert answer.text.count("\n") == 1
    assert len(answer.text) < 800
    assert client.get("/stat").json()["data"]["rows"] == 3


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"rows": [' * 3000])
def test_a_body_that_is_no_json_is_refused(client: AsgiClient, body: bytes) -> None:
    answer = client.post("/vectors/upsert", content=body)
    assert answer.status_code == 400


# proves G30
def test_what_json_has_no_number_for_travels_as_a_word(client: AsgiClient) -> None:
    words = ["NaN", "Infinity", "-Infinity", None, 0.5]
    rows = [{"id": str(word), "vector": [1, 1], "price": word} for word in words]
    ask(client, "upsert", rows=rows)
    found = ask(client, "get", ids=[row["id"] for row in rows], columns=["id", "vector", "price"])
    assert found == rows
    kept = {"field": "price", "gt": 1e308}
    assert [row["id"] for row in ask(client, "search", vector=[1, 1], filter=kept)] == ["Infinity"]
    ask(client, "upsert", rows=found)
    assert ask(client, "get", ids=["NaN"], columns=["price"]) == [{"price": "NaN"}]


@pytest.mark.parametrize("fresh", [False, True])
def test_no_columns_but_the_distance(client: AsgiClient, fresh: bool) -> None:
    """Who only wants to know how near something is, or whether it is there, names no columns."""
    ask(client, "upsert", rows=[{"id": "d", "vector": [2, 0]}], durable=False)
    found = ask(client, "search", vector=[1, 0], k=1, columns=[], fresh=fresh)
    assert found == [{"distance": 0.0}]
    assert ask(client, "get", ids=["b", "zz", "a"], columns=[], fresh=fresh) == [{}, {}]


def test_a_write_that_finds_no_room_is_told_to_come_back(
    client: AsgiClient, store: VectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise QueueFullError("no room", do="come back")

    monkeypatch.setattr(store, "write", refuse)
    answer = client.post("/vectors/upsert", json={"rows": ROWS})
    assert (answer.status_code, answer.json()["error"]) == (429, "no room; come back")
