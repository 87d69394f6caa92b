"""What is written to a store, `prometheus-api-client` of PyPI reads over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import requests
from prometheus_api_client import (
    MetricRangeDataFrame,
    MetricsList,
    MetricSnapshotDataFrame,
    PrometheusConnect,
)
from prometheus_api_client.exceptions import PrometheusApiClientException

from headrace.settings import ServiceSettings
from headrace.stores.service.store_access import create_store, open_timeseries
from headrace.stores.service.store_page import serve_http
from tests.stores.timeseries.sample_rows import rows_of

START = datetime(2023, 11, 14, 22, tzinfo=UTC)
START_S = int(START.timestamp())
MINUTES = 30
SPEEDS = {"/": 30.0, "/x": 60.0}
TOKEN = "a-secret-of-the-tests"
HITS = {"__name__": "hits", "path": "/"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store that has 30 minutes of two counters and one gauge, served with a token."""
    place = tmp_path_factory.mktemp("client") / "store"
    create_store(place, "timeseries")
    rows = [
        ("hits", (START_S + 60 * minute) * 1000, minute * speed)
        for speed in SPEEDS.values()
        for minute in range(MINUTES + 1)
    ]
    paths = [path for path in SPEEDS for _ in range(MINUTES + 1)]
    rows.append(("load", START_S * 1000 + 250, -1.25e-7))
    with open_timeseries(place) as store, serve_http(store, ServiceSettings(token=TOKEN)) as web:
        store.flush(store.write(rows_of(rows, path=[*paths, None])))
        yield web.address


@pytest.fixture(scope="module", params=["GET", "POST"])
def client(request: pytest.FixtureRequest, address: str) -> Iterator[PrometheusConnect]:
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {TOKEN}"
        with PrometheusConnect(address, session=session, method=request.param) as connected:
            yield connected


def _at(minute: float) -> dict[str, float]:
    return {"time": START_S + minute * 60}


def test_it_connects(client: PrometheusConnect) -> None:
    assert client.check_prometheus_connection()


def test_it_lists_metrics_and_labels(client: PrometheusConnect) -> None:
    assert client.all_metrics() == ["hits", "load"]
    assert client.get_label_names() == ["__name__", "path"]
    assert client.get_label_names({"match[]": "load"}) == ["__name__"]
    assert client.get_label_values("path") == ["/", "/x"]
    assert client.get_label_values("path", {"match[]": 'hits{path!="/"}'}) == ["/x"]
    end = START + timedelta(minutes=MINUTES)
    found = client.get_series(START, end, {"match[]": ["hits", "load"]})
    assert found == [HITS, {**HITS, "path": "/x"}, {"__name__": "load"}]
    assert client.get_targets() == {"activeTargets": [], "droppedTargets": []}
    assert client.get_metric_metadata("hits") == []


def test_it_reads_current_values(client: PrometheusConnect) -> None:
    found = client.get_current_metric_value("hits", {"path": "/"}, params=_at(10.5))
    assert found == [{"metric": HITS, "value": [START_S + 630, "300"]}]
    assert client.get_current_metric_value("hits", params=_at(MINUTES + 6)) == []
    load = client.custom_query("load", params=_at(1))
    assert load[0]["value"] == [START_S + 60, "-1.25e-07"]


def test_it_queries_one_moment_and_a_range(client: PrometheusConnect) -> None:
    assert client.custom_query("sum(rate(hits[5m]))", params=_at(MINUTES)) == [
        {"metric": {}, "value": [START_S + 60 * MINUTES, "1.5"]}
    ]
    end = START + timedelta(minutes=MINUTES)
    (found,) = client.custom_query_range('hits{path="/"}', START, end, "10m")
    assert found["metric"] == HITS
    assert found["values"] == [
        [START_S + minute * 60, f"{minute * 30}"] for minute in range(0, MINUTES + 1, 10)
    ]
    aggregated = client.get_metric_aggregation("hits", ["max", "average"], START, end, "60")
    assert aggregated == {"max": 1800.0, "average": 675.0}


def test_it_reads_samples_chunk_by_chunk(client: PrometheusConnect) -> None:
    end = START + timedelta(minutes=MINUTES)
    found = client.get_metric_range_data(
        "hits", {"path": "/x"}, START, end, chunk_size=timedelta(minutes=10)
    )
    assert [len(each["values"]) for each in found] == [11, 11, 11]
    (joined,) = MetricsList(found)
    assert joined.label_config == {"path": "/x"}
    values = joined.metric_values
    assert values.y.tolist() == [minute * 60.0 for minute in range(MINUTES + 1)]
    assert values.ds.iloc[-1].timestamp() == end.timestamp()


def test_its_data_frames(client: PrometheusConnect) -> None:
    snapshot = MetricSnapshotDataFrame(client.custom_query("hits", params=_at(2)))
    assert snapshot.sort_values("path").value.astype(float).tolist() == [60.0, 120.0]
    end = START + timedelta(minutes=2)
    frame = MetricRangeDataFrame(client.custom_query_range("hits", START, end, "60"))
    assert len(frame) == 6
    assert frame[frame.path == "/x"].value.tolist() == [0.0, 60.0, 120.0]


def test_it_tells_what_is_wrong_with_a_query(client: PrometheusConnect) -> None:
    with pytest.raises(PrometheusApiClientException, match=r"400.*1:7: parse error"):
        client.custom_query("hits +")


def test_without_the_token_it_gets_nothing(address: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        stranger = PrometheusConnect(address, session=session)
        assert not stranger.check_prometheus_connection()
        with pytest.raises(PrometheusApiClientException, match="401"):
            stranger.all_metrics()
