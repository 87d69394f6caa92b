"""The HTTP API answers every call as a real Prometheus does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.applications import Starlette

from headrace.errors import DocumentError, QueueFullError, StorageError, UsageError
from headrace.stores.timeseries.memory_source import MemorySource
from headrace.stores.timeseries.prometheus_api import PrometheusApi
from headrace.stores.timeseries.promql.query_limits import QueryLimits
from tests.stores.timeseries.asgi_client import AsgiClient
from tests.stores.timeseries.memory_reader import MemoryReader, MetricNote

SERIES: list[tuple[dict[str, str], list[tuple[int, float]]]] = [
    (
        {"__name__": "hits", "path": path, "zone": "a"},
        [(minute * 60_000, minute * speed) for minute in range(31)],
    )
    for path, speed in [("/", 1.5), ("/x", 1e9)]
]
FIRST = {"__name__": "hits", "path": "/", "zone": "a"}


METADATA = {
    "hits": MetricNote("counter", "Requests that came.", ""),
    "load": MetricNote("gauge", "", "percent"),
}


def open_reader() -> MemoryReader:
    return MemoryReader(MemorySource(SERIES), SERIES, METADATA)


received: list[bytes] = []


def receive(body: bytes) -> None:
    failures: dict[bytes, Exception] = {
        b"bad": DocumentError("no", do="mend it"),
        b"full": QueueFullError("full", do="wait"),
        b"closed": UsageError("the store is closed"),
        b"disk": StorageError("no disk"),
    }
    if body in failures:
        raise failures[body]
    received.append(body)


@pytest.fixture
def client() -> AsgiClient:
    api = PrometheusApi(open_reader, receive, now_ms=lambda: 1_800_000)
    return AsgiClient(Starlette(routes=api.routes()))


def get(client: AsgiClient, path: str, status: int = 200, **form: Any) -> Any:
    answer = client.get(f"/api/v1/{path}", params={k: str(v) for k, v in form.items()})
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def data(client: AsgiClient, path: str, **form: Any) -> Any:
    found = get(client, path, **form)
    assert found["status"] == "success"
    return found["data"]


def test_the_calls_of_grafana(client: AsgiClient) -> None:
    """The health check, the list of metrics, the label browser and a panel, one after the other."""
    health = client.post("/api/v1/query", data={"query": "1+1", "time": "1800.000"})
    assert health.json() == {
        "status": "success",
        "data": {"resultType": "scalar", "result": [1800, "2"]},
    }
    build = data(client, "status/buildinfo")
    assert build["version"] == "2.42.0"
    assert data(client, "rules") == {"groups": []}
    assert data(client, "metadata", limit=10)["hits"] == [
        {"type": "counter", "help": "Requests that came.", "unit": ""}
    ]
    times: dict[str, Any] = {"start": 0, "end": 1800}
    assert data(client, "label/__name__/values", **times) == ["hits"]
    assert data(client, "labels", **times, **{"match[]": "hits"}) == ["__name__", "path", "zone"]
    assert data(client, "label/path/values", **times, **{"match[]": 'hits{zone="a"}'}) == [
        "/",
        "/x",
    ]
    assert data(client, "series", **times, **{"match[]": 'hits{path="/"}'}) == [FIRST]
    panel = client.post(
        "/api/v1/query_range",
        data={"query": 'rate(hits{path="/"}[5m])', "start": "1740", "end": "1800", "step": "60"},
    )
    assert panel.json() == {
        "status": "success",
        "data": {
            "resultType": "matrix",
            "result": [
                {
                    "metric": {"path": "/", "zone": "a"},
                    "values": [[1740, "0.025"], [1800, "0.025"]],
                }
            ],
        },
    }
    assert data(client, "query_exemplars", query="hits", **times) == []


def test_every_kind_of_answer(client: AsgiClient) -> None:
    assert data(client, "query", query="hits", time=60.5) == {
        "resultType": "vector",
        "result": [
            {"metric": FIRST, "value": [60.5, "1.5"]},
            {"metric": {**FIRST, "path": "/x"}, "value": [60.5, "1000000000"]},
        ],
    }
    assert data(client, "query", query='"a\\"ö"') == {
        "resultType": "string",
        "result": [1800, 'a"ö'],
    }
    assert data(client, "query", query='hits{path="/"}[2m]', time="1970-01-01T00:02:00.25Z") == {
        "resultType": "matrix",
        "result": [{"metric": FIRST, "values": [[60, "1.5"], [120, "3"]]}],
    }
    assert data(client, "query", query="nothing") == {"resultType": "vector", "result": []}
    empty = data(client, "query_range", query="nothing", start=0, end=60, step="1m")
    assert empty == {"resultType": "matrix", "result": []}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("1e10", "10000000000"),
        ("12345678901.5", "12345678901.5"),
        ("9007199254740993", "9007199254740992"),
        ("123456789012345678", "123456789012345680"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("1e-6", "0.000001"),
        ("9.9e-7", "9.9e-07"),
        ("-1.5e-9", "-1.5e-09"),
        ("0", "0"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("NaN", "NaN"),
        ("Inf", "+Inf"),
        ("-Inf", "-Inf"),
    ],
)
def test_numbers_are_printed_as_prometheus_does(client: AsgiClient, number: str, text: str) -> None:
    assert data(client, "query", query=number)["result"] == [1800, text]


@pytest.mark.parametrize(
    ("path", "form", "status", "kind", "text"),
    [
        ("query", {}, 400, "bad_data", 'invalid parameter "query"'),
        ("query", {"query": "1 +"}, 400, "bad_data", 'invalid parameter "query"'),
        ("query", {"query": "1", "time": "soon"}, 400, "bad_data", 'invalid parameter "time"'),
        ("query", {"query": "1", "limit": "x"}, 400, "bad_data", 'invalid parameter "limit"'),
        ("query", {"query": "1", "limit": "-2"}, 400, "bad_data", 'invalid parameter "limit"'),
        ("query", {"query": "1", "timeout": "x"}, 400, "bad_data", 'invalid parameter "timeout"'),
        ("query", {"query": "hits + on (zone) hits"}, 422, "execution", "many-to-many"),
        ("query", {"query": "hits", "timeout": "0"}, 503, "timeout", "timeout_s"),
        ("query_range", {"query": "1"}, 400, "bad_data", 'invalid parameter "start"'),
        (
            "query_range",
            {"query": "1", "start": "2", "end": "1", "step": "1"},
            400,
            "bad_data",
            'invalid parameter "end": end timestamp must not be before start time',
        ),
        (
            "query_range",
            {"query": "1", "start": "0", "end": "1", "step": "0"},
            400,
            "bad_data",
            'invalid parameter "step": zero or negative query resolution step widths',
        ),
        (
            "query_range",
            {"query": "1", "start": "0", "end": "11001", "step": "1s"},
            400,
            "bad_data",
            "exceeded maximum resolution of 11,000 points per timeseries",
        ),
        (
            "query_range",
            {"query": "hits[5m]", "start": "0", "end": "1", "step": "1"},
            400,
            "bad_data",
            'invalid expression type "range vector" for range query',
        ),
        ("series", {}, 400, "bad_data", "no match[] parameter provided"),
        ("series", {"match[]": "{"}, 400, "bad_data", 'invalid parameter "match[]"'),
        ("series", {"match[]": "1"}, 400, "bad_data", 'invalid parameter "match[]"'),
        ("labels", {"start": "x"}, 400, "bad_data", 'invalid parameter "start"'),
        ("labels", {"end": "1e400"}, 400, "bad_data", 'invalid parameter "end"'),
        ("label/a-b/values", {}, 400, "bad_data", "invalid label name"),
    ],
)
def test_wrong_calls(
    client: AsgiClient, path: str, form: dict[str, Any], status: int, kind: str, text: str
) -> None:
    found = get(client, path, status, **form)
    assert (found["status"], found["errorType"]) == ("error", kind)
    assert text in found["error"]


def test_11_000_points_are_allowed(client: AsgiClient) -> None:
    found = data(client, "query_range", query="1", start=0, end=11_000, step=1)
    assert len(found["result"][0]["values"]) == 11_001


def test_a_limit_cuts_and_says_so(client: AsgiClient) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("query", {"query": "hits"}),
        ("query_range", {"query": "hits", "start": 0, "end": 60, "step": 60}),
        ("series", {"match[]": "hits"}),
        ("labels", {}),
        ("label/path/values", {}),
    ]
    for path, form in calls:
        cut = get(client, path, limit=1, **form)
        result = cut["data"]["result"] if path.startswith("query") else cut["data"]
        assert len(result) == 1
        assert cut["warnings"] == ["results truncated due to limit"]
        assert "warnings" not in get(client, path, limit=3, **form)
    assert list(data(client, "metadata", limit=1)) == ["hits"]
    assert list(data(client, "metadata", metric="load")) == ["load"]


def test_limits_of_memory_are_errors_of_the_query() -> None:
    api = PrometheusApi(open_reader, receive, QueryLimits(samples_max=10), lambda: 1_800_000)
    client = AsgiClient(Starlette(routes=api.routes()))
    found = get(client, "query", 422, query="count_over_time(hits[20m])")
    assert found["errorType"] == "execution"


def test_times_select_series(client: AsgiClient) -> None:
    assert data(client, "series", **{"match[]": "hits", "start": 1801}) == []


def test_remote_writes_end_as_senders_expect(client: AsgiClient) -> None:
    received.clear()
    # A sender drops samples at 4xx, and without a setting of its own at 429, too.
    statuses = {b"fine": 204, b"bad": 400, b"full": 503, b"closed": 503, b"disk": 500}
    for body, status in statuses.items():
        assert client.post("/api/v1/write", content=body).status_code == status
    assert received == [b"fine"]


def test_a_form_counts_before_the_address(client: AsgiClient) -> None:
    answer = client.post("/api/v1/query?query=2", content="query=1%2B2")
    assert answer.json()["data"]["result"][1] == "3"


def test_the_rest(client: AsgiClient) -> None:
    assert client.get("/-/healthy").status_code == client.head("/-/ready").status_code == 200
    assert data(client, "format_query", query="sum(hits)by(path)") == "sum by (path) (hits)"
    assert data(client, "alerts") == {"alerts": []}
    assert client.get("/api/v1/nothing").status_code == 404
    assert json.loads(client.get("/api/v1/query?query=vector(1)").content)["status"] == "success"
