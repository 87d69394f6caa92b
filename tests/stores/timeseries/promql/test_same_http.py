"""The same calls of a real Prometheus and of our HTTP API end alike, byte for byte of the data."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.applications import Starlette

from headrace.stores.timeseries.memory_source import MemorySource
from headrace.stores.timeseries.prometheus_api import PrometheusApi
from tests.stores.timeseries.asgi_client import AsgiClient
from tests.stores.timeseries.memory_reader import MemoryReader
from tests.stores.timeseries.promql.prometheus_server import PrometheusServer
from tests.stores.timeseries.promql.sample_series import BASE_MS, made_series

pytestmark = [pytest.mark.long, pytest.mark.scenario]

START, END = BASE_MS // 1000, BASE_MS // 1000 + 2400
RANGE = f"start={START}&end={END}&step=60"
MOMENT = f"time={START + 1200}"

CALLS = [
    f"query?query=load&{MOMENT}",
    f"query?query=load&{MOMENT}.5",
    f"query?query=load&{MOMENT}.1239",
    "query?query=load&time=2023-11-14T22:20:00Z",
    "query?query=load&time=2023-11-14T22:20:00.123Z",
    "query?query=load&time=2023-11-14T23:20:00%2B01:00",
    "query?query=load&time=2023-11-14",
    "query?query=load&time=x",
    f"query?query=load&{MOMENT}&timeout=5s",
    f"query?query=load&{MOMENT}&timeout=x",
    f"query?query=1%2B1&{MOMENT}",
    f"query?query=%22text%22&{MOMENT}",
    f"query?query=load[2m]&{MOMENT}",
    f"query?query=load[2m:13s]&{MOMENT}",
    f"query?query=nothing&{MOMENT}",
    f"query?query=nothing[5m]&{MOMENT}",
    f"query?query=load*1e18&{MOMENT}",
    f"query?query=load/1e9&{MOMENT}",
    f"query?query=time()*1000&{MOMENT}",
    f"query?query=strange&{MOMENT}",
    f"query?query=load%2B&{MOMENT}",
    f"query?query=foo(load)&{MOMENT}",
    f"query?query=rate(load)&{MOMENT}",
    f"query?query=load%2Bon(job)load&{MOMENT}",
    "query",
    f"query_range?query=load&{RANGE}",
    f"query_range?query=sum(load)by(job)&start={START}&end={END}&step=1m30s",
    f"query_range?query=1&start={START}&end={START}&step=1",
    f"query_range?query=1&start={START}.1&end={START}.9&step=0.25",
    f"query_range?query=nothing&{RANGE}",
    f"query_range?query=load[5m]&{RANGE}",
    f"query_range?query=%22text%22&{RANGE}",
    f"query_range?query=load&start={START}&end={END}",
    f"query_range?query=load&start={START}&step=1",
    f"query_range?query=load&end={END}&step=1",
    f"query_range?query=load&start={END}&end={START}&step=1",
    f"query_range?query=load&start={START}&end={END}&step=0",
    f"query_range?query=load&start={START}&end={END}&step=-1",
    f"query_range?query=load&start={START}&end={END}&step=x",
    f"query_range?query=load&start={START}&end={END}&step=1h1m",
    f"query_range?query=1&start={START}&end={START + 11000}&step=1",
    f"query_range?query=1&start={START}&end={START + 11001}&step=1",
    f"series?match[]=load&start={START}&end={END}",
    f"series?match[]=load&match[]=up{{job=%22api%22}}&start={START}&end={END}",
    f"series?match[]=nothing&start={START}&end={END}",
    "series",
    "series?match[]=load[5m]",
    "series?match[]={a=%22%22}",
    f"series?match[]=load&start={END}&end={START}",
    f"labels?start={START}&end={END}",
    f"labels?start={END}&end={START}",
    f"label/job/values?start={END}&end={START}",
    f"labels?match[]=limit&start={START}&end={END}",
    "labels?match[]=1%2B",
    f"label/job/values?start={START}&end={END}",
    f"label/job/values?match[]=load{{job!=%22api%22}}&start={START}&end={END}",
    f"label/__name__/values?start={START}&end={END}",
    f"label/nothing/values?start={START}&end={END}",
    "label/a-b/values",
    "metadata",
    "metadata?limit=x",
    "rules",
    "alerts",
    f"query_exemplars?query=load&start={START}&end={END}",
    "format_query?query=1%2B",
]


@pytest.fixture(scope="module")
def ours(prometheus: PrometheusServer, same_series: MemorySource) -> AsgiClient:
    def refuse(body: bytes) -> None:
        raise AssertionError("nothing is written")

    series = made_series()
    api = PrometheusApi(lambda: MemoryReader(same_series, series), refuse)
    return AsgiClient(Starlette(routes=api.routes()))


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: str, prometheus: PrometheusServer, ours: AsgiClient) -> None:
    status, wanted = _asked(f"{prometheus.url}/api/v1/{call}")
    answer = ours.get(f"/api/v1/{call}")
    found = answer.json()
    assert answer.status_code == status, answer.text
    assert (found["status"], found.get("errorType")) == (
        wanted["status"],
        wanted.get("errorType"),
    )
    assert _sorted(found.get("data")) == _sorted(wanted.get("data"))


def test_forms(prometheus: PrometheusServer, ours: AsgiClient) -> None:
    form = f"query=sum(load)&{RANGE}".encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    request = urllib.request.Request(
        f"{prometheus.url}/api/v1/query_range", data=form, headers=headers
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        wanted = json.load(answer)
    assert ours.post("/api/v1/query_range", content=form, headers=headers).json() == wanted


def _asked(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def _sorted(data: Any) -> Any:
    """Sort the series of a vector: Prometheus has them in any order."""
    if isinstance(data, dict) and data.get("resultType") == "vector":
        return {**data, "result": _by_labels(data["result"])}
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return _by_labels(data)
    return data


def _by_labels(series: Iterable[Any]) -> list[Any]:
    return sorted(series, key=lambda each: json.dumps(each, sort_keys=True))
