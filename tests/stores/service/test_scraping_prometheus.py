"""A real Prometheus scrapes, and sends what it scraped to a store by remote write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from headrace.settings import ServiceSettings
from headrace.stores.service.store_access import create_store, open_timeseries
from headrace.stores.service.store_page import serve_http
from headrace.testing.crash import eventually
from tests.stores.timeseries.promql.comparison import assert_equal, decode_answer
from tests.stores.timeseries.promql.prometheus_server import (
    MISSING,
    OWN_ADDRESS,
    PrometheusServer,
    is_installed,
    prometheus_server,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.scenario,
    pytest.mark.skipif(not is_installed(), reason=MISSING),
]

TOKEN = "a-secret-of-the-tests"
WAIT_S = 60.0
SCRAPES = 8
# With one shard, Prometheus sends samples in the order in which it stored them.
CONFIGURATION = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
- {{job_name: itself, static_configs: [{{targets: [{own}]}}]}}
- {{job_name: page, static_configs: [{{targets: ["{page}"]}}]}}
remote_write:
- url: {store}/api/v1/write
  authorization: {{credentials: {token}}}
  queue_config: {{max_shards: 1, batch_send_deadline: 50ms}}
  metadata_config: {{send_interval: 500ms}}
"""
METRICS = """\
# HELP jobs_total Jobs that ended.
# TYPE jobs_total counter
jobs_total{kind="ümlaut \\"q\\" \\\\ \\n"} 12345.678
# HELP odd_seconds Not a number, and others.
# TYPE odd_seconds gauge
odd_seconds{kind="nan"} NaN
odd_seconds{kind="inf"} +Inf
odd_seconds{kind="minus"} -Inf
odd_seconds{kind="tiny"} 4.9e-324
# TYPE wait_seconds histogram
wait_seconds_bucket{le="0.1"} 3
wait_seconds_bucket{le="+Inf"} 8
wait_seconds_sum 5.5
wait_seconds_count 8
"""
GONE = "gone 1\n"
MOMENTS = [
    "up",
    "jobs_total",
    "odd_seconds",
    "gone",
    "count({job=~'.+'}) by (__name__, job)",
    "prometheus_tsdb_head_series",
    "histogram_quantile(0.4, wait_seconds_bucket)",
    "histogram_quantile(0.9, prometheus_http_request_duration_seconds_bucket)",
    "rate(prometheus_tsdb_head_samples_appended_total[1s])",
    "last_over_time({job='page'}[1s])",
    "go_goroutines[1s]",
    "time() - timestamp(up)",
]


@dataclass
class MetricsPage:
    """What Prometheus scrapes."""

    address: str
    text: str = METRICS + GONE


@contextmanager
def metrics_page() -> Iterator[MetricsPage]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(scraped.text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scraped = MetricsPage(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield scraped
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Pair:
    """A Prometheus, and the store that it writes to."""

    prometheus: PrometheusServer
    store: str

    def ours(self, path: str, **parameters: Any) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{self.store}/api/v1/{path}"
        return httpx.get(url, params=parameters, headers=headers, trust_env=False).json()

    def theirs(self, path: str, **parameters: Any) -> Any:
        return self.prometheus.get(f"api/v1/{path}", **parameters)

    def times(self) -> list[list[float]]:
        """Return the times of the scrapes that the store has, of each target."""
        found = self.ours("query", query="up[10m]")["data"]["result"]
        return [[float(time) for time, _ in series["values"]] for series in found]

    def newest_s(self) -> float:
        """Return a moment up to which the store has every scrape of both targets."""
        return min(times[-1] for times in self.times())

    def has_scrapes(self) -> bool:
        counts = [len(times) for times in self.times()]
        return len(counts) == 2 and min(counts) >= SCRAPES


@pytest.fixture(scope="module")
def page() -> Iterator[MetricsPage]:
    with metrics_page() as served:
        yield served


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, page: MetricsPage) -> Iterator[Pair]:
    place = tmp_path_factory.mktemp("scraping")
    create_store(place / "store", "timeseries")
    settings = ServiceSettings(token=TOKEN)
    with open_timeseries(place / "store") as store, serve_http(store, settings) as web:
        configuration = CONFIGURATION.format(
            own=OWN_ADDRESS, page=page.address, store=web.address, token=TOKEN
        )
        with prometheus_server(place, configuration) as prometheus:
            pair = Pair(prometheus, web.address)
            eventually(pair.has_scrapes, WAIT_S, "scrapes of both targets arrive")
            yield pair


@pytest.mark.parametrize("query", MOMENTS)
def test_both_answer_alike_at_one_moment(pair: Pair, query: str) -> None:
    asked = {"query": query, "time": f"{pair.newest_s():.3f}"}
    ours, theirs = pair.ours("query", **asked), pair.theirs("query", **asked)
    assert theirs["data"]["result"]
    answer = decode_answer(theirs)
    assert answer is not None
    assert_equal(decode_answer(ours) or {}, answer, query)


def test_both_answer_alike_over_a_range(pair: Pair) -> None:
    end = pair.newest_s()
    for query in ("jobs_total", "odd_seconds", "rate(prometheus_http_requests_total[600ms])"):
        asked = {"query": query, "start": f"{end - 0.5:.3f}", "end": f"{end:.3f}", "step": "0.1"}
        ours, theirs = pair.ours("query_range", **asked), pair.theirs("query_range", **asked)
        answer = decode_answer(theirs)
        assert answer
        assert_equal(decode_answer(ours) or {}, answer, query)


def test_both_list_the_same_series(pair: Pair) -> None:
    asked = {"match[]": "{job='page'}"}
    for path in ("labels", "label/le/values", "label/kind/values", "series"):
        ours, theirs = pair.ours(path, **asked), pair.theirs(path, **asked)
        assert ours["data"] == theirs["data"]
        assert ours["data"]


def test_metadata_arrives(pair: Pair) -> None:
    wanted = pair.theirs("metadata", metric="jobs_total")["data"]
    assert wanted["jobs_total"] == [{"type": "counter", "help": "Jobs that ended.", "unit": ""}]

    def has_arrived() -> bool:
        return bool(pair.ours("metadata", metric="jobs_total")["data"] == wanted)

    eventually(has_arrived, WAIT_S, "Prometheus sends its metadata")


def test_a_series_that_is_gone_from_the_page_ends(pair: Pair, page: MetricsPage) -> None:
    asked = {"query": "gone", "time": f"{pair.newest_s():.3f}"}
    assert pair.ours("query", **asked)["data"]["result"]
    page.text = METRICS

    def has_ended() -> bool:
        asked["time"] = f"{pair.newest_s():.3f}"
        return not pair.ours("query", **asked)["data"]["result"]

    # Prometheus sends a staleness marker: without one the last value would stand for 5 minutes.
    eventually(has_ended, WAIT_S, "the series ends")
    assert pair.theirs("query", **asked)["data"]["result"] == []
