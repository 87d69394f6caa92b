"""Stores over HTTP: their page, and the routes of both kinds."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headrace.errors import UsageError
from headrace.settings import ServiceSettings
from headrace.stores.service.store_access import create_store, open_store, open_timeseries
from headrace.stores.service.store_page import serve_http
from tests.stores.service.test_store_access import BASE_MS, samples

PLAIN = ServiceSettings()


def test_a_page_says_what_there_is(tmp_path: Path) -> None:
    create_store(tmp_path / "t", "timeseries")
    with open_store(tmp_path / "t") as store, serve_http(store, PLAIN) as web:
        page = httpx.get(web.address, trust_env=False)
        assert page.headers["content-type"].startswith("text/html")
        for text in ("A Headrace store of timeseries", "<td>samples</td>", "/api/v1/query_range"):
            assert text in page.text


def test_time_series_speak_as_prometheus_does(tmp_path: Path) -> None:
    create_store(tmp_path / "t", "timeseries")
    with open_timeseries(tmp_path / "t") as store, serve_http(store, PLAIN) as web:
        store.flush(store.write(samples()))
        asked = {"query": "count({job=~'.+'})", "time": str(BASE_MS // 1000 + 60)}
        answer = httpx.get(f"{web.address}/api/v1/query", params=asked, trust_env=False).json()
        assert answer["data"]["result"][0]["value"][1] == "2"
        refused = httpx.post(f"{web.address}/api/v1/write", content=b"no snappy", trust_env=False)
        assert refused.status_code == 400


def test_vectors_are_found(tmp_path: Path) -> None:
    create_store(tmp_path / "v", "vectors", dimension=2)
    with open_store(tmp_path / "v") as store, serve_http(store, PLAIN) as web:
        rows = {"rows": [{"id": "a", "vector": [1, 0]}, {"id": "b", "vector": [0, 1]}]}
        sent = httpx.post(f"{web.address}/vectors/upsert", json=rows, trust_env=False)
        assert sent.json()["data"]["rows"] == 2
        asked = {"vector": [1, 0.1], "k": 1}
        found = httpx.post(f"{web.address}/vectors/search", json=asked, trust_env=False)
        assert [row["id"] for row in found.json()["data"]] == ["a"]


# proves G28
def test_the_token_guards_every_route(tmp_path: Path) -> None:
    create_store(tmp_path / "v", "vectors", dimension=2)
    guarded = ServiceSettings(token="a-secret-of-the-tests")
    with open_store(tmp_path / "v") as store, serve_http(store, guarded) as web:
        for method, path in [("GET", "/"), ("GET", "/stat"), ("POST", "/vectors/search")]:
            answer = httpx.request(method, web.address + path, trust_env=False)
            assert answer.status_code == 401


def test_only_the_process_that_has_it_open_serves_it(tmp_path: Path) -> None:
    create_store(tmp_path / "v", "vectors", dimension=2)
    with (
        open_store(tmp_path / "v"),
        open_store(tmp_path / "v") as client,
        pytest.raises(UsageError, match="is open in another process, which alone can serve it"),
    ):
        serve_http(client, PLAIN)
