"""What Grafana's data source of type Prometheus sends to a store, request by request, over HTTP.

Its backend sends queries as forms by POST, with seconds as decimal fractions, and passes on what
its browser side asks about labels and series.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headrace.settings import ServiceSettings
from headrace.stores.service.store_access import create_store, open_timeseries
from headrace.stores.service.store_page import serve_http
from tests.stores.timeseries.sample_rows import rows_of

START_S = 1_700_000_100
END_S = START_S + 900
HEADERS = {
    "User-Agent": "Grafana/10.4.2",
    "Accept-Encoding": "gzip",
    "X-Datasource-Uid": "P1809F7CD0C75ACF3",
    "X-Grafana-Org-Id": "1",
    "X-Dashboard-Uid": "ce1b2a31",
    "X-Panel-Id": "4",
    "X-Query-Group-Id": "5f1c9f4e",
    "X-Grafana-From-Expr": "true",
    "FromAlert": "true",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
HITS = {"__name__": "hits", "path": "/"}


@pytest.fixture(scope="module")
def grafana(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Calls as Grafana does."""
    place = tmp_path_factory.mktemp("grafana") / "store"
    create_store(place, "timeseries")
    rows = [("hits", (START_S + 15 * each) * 1000, each * 30.0) for each in range(61)]
    rows.append(("load", END_S * 1000, float("inf")))
    with open_timeseries(place) as store, serve_http(store, ServiceSettings()) as web:
        store.flush(store.write(rows_of(rows, path=[*["/"] * 61, None])))
        with httpx.Client(base_url=web.address, headers=HEADERS, trust_env=False) as client:
            yield client


def found(answer: httpx.Response) -> Any:
    """Return the data of an answer that Grafana accepts."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    assert told["status"] == "success"
    return told["data"]


def test_the_health_check(grafana: httpx.Client) -> None:
    """`Save & test` asks for 1+1, and then which Prometheus it talks to."""
    form = {"query": "1+1", "time": "1700000999.1234567"}
    health = found(grafana.post("/api/v1/query", data=form))
    assert health == {"resultType": "scalar", "result": [1700000999.123, "2"]}
    build = found(grafana.get("/api/v1/status/buildinfo"))
    assert set(build) >= {"version", "revision", "branch", "buildUser", "buildDate", "goVersion"}
    assert "features" not in build  # A Mimir has them.
    assert found(grafana.get("/api/v1/rules")) == {"groups": []}
    assert found(grafana.get("/api/v1/alerts")) == {"alerts": []}


def test_a_panel(grafana: httpx.Client) -> None:
    form = {
        "query": 'sum by (path) (rate(hits{path=~"/|/x"}[1m0s]))',
        "start": str(END_S - 60),
        "end": f"{END_S}.9991",
        "step": "15",
    }
    answer = grafana.post("/api/v1/query_range", data=form, params={"timeout": "60s"})
    assert found(answer) == {
        "resultType": "matrix",
        "result": [
            {
                "metric": {"path": "/"},
                "values": [[second, "2"] for second in range(END_S - 60, END_S + 1, 15)],
            }
        ],
    }


def test_a_panel_with_a_step_of_less_than_a_second(grafana: httpx.Client) -> None:
    form = {"query": "hits", "start": f"{END_S}.5", "end": f"{END_S + 1}", "step": "0.25"}
    (series,) = found(grafana.post("/api/v1/query_range", data=form))["result"]
    times = [time for time, _ in series["values"]]
    assert times == [END_S + 0.5, END_S + 0.75, END_S + 1]


def test_a_table_and_an_alert(grafana: httpx.Client) -> None:
    """Both ask about one moment."""
    form = {"query": "{__name__!=''}", "time": f"{END_S}.001"}
    assert found(grafana.post("/api/v1/query", data=form)) == {
        "resultType": "vector",
        "result": [
            {"metric": HITS, "value": [END_S + 0.001, "1800"]},
            {"metric": {"__name__": "load"}, "value": [END_S + 0.001, "+Inf"]},
        ],
    }


def test_exemplars(grafana: httpx.Client) -> None:
    form = {"query": "rate(hits[1m])", "start": f"{START_S}", "end": f"{END_S}"}
    assert found(grafana.post("/api/v1/query_exemplars", data=form)) == []
    assert found(grafana.get("/api/v1/query_exemplars", params=form)) == []


def test_the_query_builder(grafana: httpx.Client) -> None:
    """It asks for metrics, their labels, values of a label, and what metrics mean."""
    times = {"start": f"{START_S}", "end": f"{END_S}"}
    many = {**times, "limit": "40000"}
    names = found(grafana.get("/api/v1/label/__name__/values", params=many))
    assert names == ["hits", "load"]
    path = "/api/v1/label/__name__/values"
    chosen = found(grafana.get(path, params={**many, "match[]": '{path="/"}'}))
    assert chosen == ["hits"]
    matched = {**many, "match[]": '{__name__="hits",path!=""}'}
    for call in (grafana.get("/api/v1/labels", params=matched), _form(grafana, "labels", matched)):
        assert found(call) == ["__name__", "path"]
    assert found(grafana.get("/api/v1/label/path/values", params=matched)) == ["/"]
    for call in (grafana.get("/api/v1/series", params=matched), _form(grafana, "series", matched)):
        assert found(call) == [HITS]
    for limit in ({"limit": "5000"}, {"limit": "5000", "limit_per_metric": "1"}, {}):
        assert found(grafana.get("/api/v1/metadata", params=limit)) == {}


def test_variables(grafana: httpx.Client) -> None:
    """`label_values(hits, path)`, `metrics(h.*)` and `query_result(hits)` fill variables."""
    times = {"start": f"{START_S}.25", "end": f"{END_S}.75"}
    params = {**times, "match[]": "hits"}
    assert found(grafana.get("/api/v1/label/path/values", params=params)) == ["/"]
    by_series = found(grafana.get("/api/v1/series", params=params))
    assert [each["path"] for each in by_series] == ["/"]
    asked = {"query": "hits", "time": f"{END_S}.75"}
    (series,) = found(grafana.get("/api/v1/query", params=asked))["result"]
    assert series == {"metric": HITS, "value": [END_S + 0.75, "1800"]}


def test_a_mistake_in_a_panel_is_shown(grafana: httpx.Client) -> None:
    """Grafana shows the text of an answer with the status 400 or 422."""
    form = {"query": "rate(hits)", "start": f"{START_S}", "end": f"{END_S}", "step": "15"}
    answer = grafana.post("/api/v1/query_range", data=form)
    told = answer.json()
    assert (answer.status_code, told["status"], told["errorType"]) == (400, "error", "bad_data")
    assert "expected type" in told["error"]


def _form(grafana: httpx.Client, path: str, form: dict[str, str]) -> httpx.Response:
    return grafana.post(f"/api/v1/{path}", data=form)
