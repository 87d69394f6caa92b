"""What the time-series store takes in, how small it keeps it, and how fast it answers.

1 000 counters with a sample every 15 s. In this process they are written as Arrow rows, batch after
batch, each durable before the next, into a store and into DuckDB. Then a server of ours, Prometheus
and VictoriaMetrics each get the same remote writes over the same number of connections, and answer
the same range query over the last hour. A write counts when it is answered: ours is durable by
then, those of the servers beside it are not synced yet.

`ratio_to_…` are our samples a second by theirs, `query_ratio_to_…` their time for the query by
ours: above 1 ours is faster.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.peers.duckdb_peer import measure_duckdb
from headrace.bench.peers.remote_write_peers import PEERS, serving_peer
from headrace.bench.processes import child
from headrace.bench.steps import step
from headrace.settings import ServiceSettings
from headrace.stores.service.http_server import HttpServer
from headrace.stores.service.shared_timeseries import TIMESERIES_KIND
from headrace.stores.timeseries.input.remote_write_encoder import encode_remote_write
from headrace.stores.timeseries.labels import make_labels
from headrace.stores.timeseries.promql.query_engine import evaluate
from headrace.stores.timeseries.series import Labels, SelectedSeries
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore, open_timeseries

SERIES = 1000
STEP_MS = 15_000
QUERY = "sum by (code) (rate(http_requests_total[5m]))"
_STEPS = 4000
"""Samples of each series, for the store in this process."""
_HTTP_STEPS = 2000
_HOUR_MS = 3_600_000
_BATCH_STEPS = 100
"""A batch has so many samples of each series."""
_ROUNDS = 3
_QUERIES = 20
_CONNECTIONS = 4
_HTTP_BATCH_STEPS = 40
_SEND_TIMEOUT_S = 60.0
_VISIBLE_TIMEOUT_S = 30.0
_POLL_S = 0.05

Url = str


class CounterSeries(NamedTuple):
    """Samples of all series at all times; both are ascending."""

    labels: list[Labels]
    timestamps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    """One row for each series."""


def bench_timeseries(directory: Path, scale: float = 1.0) -> dict[str, float]:
    """Measure the store in this process, then served, beside its peers where they are installed."""
    directory.mkdir()
    figures = _bench_store(directory, max(_BATCH_STEPS * 3, int(_STEPS * scale)))
    counters = make_counters(max(_HTTP_BATCH_STEPS * 8, int(_HTTP_STEPS * scale)))
    bodies = make_bodies(counters)
    step("the same remote writes to a server of ours, and a range query over the last hour")
    with _serving(directory / "served") as url:
        ours = _bench_http(url, counters, bodies)
    figures |= {"http_samples_per_s": ours.samples_per_s, "http_range_ms": ours.range_ms}
    for peer in PEERS:
        if not peer.is_installed:
            step(f"{peer.program} is not installed: apt-get install {peer.program}")
            continue
        step(f"the same to {peer.program}")
        with serving_peer(peer, directory / peer.name) as url:
            theirs = _bench_http(url, counters, bodies)
        figures |= {
            f"{peer.name}_samples_per_s": theirs.samples_per_s,
            f"{peer.name}_range_ms": theirs.range_ms,
            f"ratio_to_{peer.name}": ours.samples_per_s / theirs.samples_per_s,
            f"query_ratio_to_{peer.name}": theirs.range_ms / ours.range_ms,
        }
    return figures


def make_counters(steps: int, seed: int = 15) -> CounterSeries:
    """Make counters that grow at different speeds, up to the present hour."""
    random = np.random.default_rng(seed)
    labels = [
        make_labels(
            {
                "__name__": "http_requests_total",
                "job": "api",
                "instance": f"10.0.{number % 50}.{number % 7}:9100",
                "path": f"/path/{number // 50}",
                "code": ["200", "404", "500"][number % 3],
            }.items()
        )
        for number in range(SERIES)
    ]
    labels.sort()
    end = time.time_ns() // 1_000_000 // STEP_MS * STEP_MS
    increases = random.poisson(random.integers(1, 2000, (SERIES, 1)), (SERIES, steps))
    values = np.cumsum(increases, axis=1) + random.integers(0, 1 << 30, (SERIES, 1))
    timestamps = end - STEP_MS * np.arange(steps - 1, -1, -1, dtype=np.int64)
    return CounterSeries(labels, timestamps, values.astype(np.float64))


def _bench_store(directory: Path, steps: int) -> dict[str, float]:
    counters = make_counters(steps)
    batches = make_rows(counters)
    samples = SERIES * len(counters.timestamps)
    rates = []
    for number in range(_ROUNDS):
        step(f"round {number + 1} of {_ROUNDS}: {samples:,} samples, each batch durable")
        path = directory / f"store-{number}"
        store = open_timeseries(path)
        begin_s = time.perf_counter()
        for rows in batches:
            store.flush(store.write(rows))
        rates.append(samples / (time.perf_counter() - begin_s))
        stat = store.stat()
        store.close()
    step(f"a range query over {SERIES:,} series and the last hour")
    store = open_timeseries(path)
    end = int(counters.timestamps[-1])
    took_ms = [_query_ms(store, end) for _ in range(_QUERIES)]
    store.close()
    on_disk = sum(each.stat().st_blocks * 512 for each in path.rglob("*") if each.is_file())
    figures = {
        "samples_per_s": median(rates),
        "bytes_per_sample": on_disk / samples,
        "chunk_bytes_per_sample": float(stat["bytes"]) / samples,
        "first_range_ms": took_ms[0],
        "range_ms": median(took_ms),
        "samples": samples,
    }
    step("the same batches into DuckDB, and a query that sums increases")
    duckdb = measure_duckdb(directory / "samples.duckdb", batches, end, _QUERIES)
    if duckdb is None:
        step("DuckDB is not installed: pip install 'headrace[bench]'")
        return figures
    return figures | {
        "duckdb_samples_per_s": duckdb.samples_per_s,
        "duckdb_range_ms": median(duckdb.range_ms),
        "duckdb_bytes_per_sample": duckdb.bytes_per_sample,
        "ratio_to_duckdb": median(rates) / duckdb.samples_per_s,
        "query_ratio_to_duckdb": median(duckdb.range_ms) / median(took_ms),
    }


def _query_ms(store: TimeSeriesStore, end: int) -> float:
    begin_s = time.perf_counter()
    found = evaluate(QUERY, store.reader(), end - _HOUR_MS, end, STEP_MS)
    took_ms = (time.perf_counter() - begin_s) * 1000
    assert len(found.series.labels) == 3
    return took_ms


def make_rows(counters: CounterSeries) -> list[pa.RecordBatch]:
    """Return batches with a column for each label, time after time."""
    columns = {
        name: pa.array([dict(labels)[name] for labels in counters.labels])
        for name, _ in counters.labels[0]
    }
    batches = []
    for begin in range(0, len(counters.timestamps), _BATCH_STEPS):
        times = counters.timestamps[begin : begin + _BATCH_STEPS]
        values = counters.values[:, begin : begin + _BATCH_STEPS]
        rows = pa.array(np.tile(np.arange(SERIES), len(times)))
        batches.append(
            pa.RecordBatch.from_pydict(
                {
                    "timestamp": np.repeat(times, SERIES),
                    "value": values.T.ravel(),
                    **{name: column.take(rows) for name, column in columns.items()},
                }
            )
        )
    return batches


# Over HTTP


class HttpFigures(NamedTuple):
    samples_per_s: float
    range_ms: float


def make_bodies(counters: CounterSeries) -> list[list[bytes]]:
    """Return what each connection sends: all samples of its series, time after time."""
    found = []
    for place in range(_CONNECTIONS):
        shard = np.arange(place, SERIES, _CONNECTIONS)
        labels = [counters.labels[each] for each in shard]
        bodies = []
        for begin in range(0, len(counters.timestamps), _HTTP_BATCH_STEPS):
            times = counters.timestamps[begin : begin + _HTTP_BATCH_STEPS]
            values = counters.values[shard, begin : begin + _HTTP_BATCH_STEPS]
            offsets = np.arange(len(shard) + 1) * len(times)
            samples = SelectedSeries(labels, offsets, np.tile(times, len(shard)), values.ravel())
            bodies.append(encode_remote_write(samples))
        found.append(bodies)
    return found


def _bench_http(
    url: Url, counters: CounterSeries, bodies: Sequence[Sequence[bytes]]
) -> HttpFigures:
    begin_s = time.perf_counter()
    level = threading.Barrier(_CONNECTIONS, timeout=_SEND_TIMEOUT_S)
    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        for each in [threads.submit(_send, url, some, level) for some in bodies]:
            each.result()
    took_s = time.perf_counter() - begin_s
    end = int(counters.timestamps[-1])
    expected = float(counters.values[:, -1].sum())
    _until_visible(lambda: _value_at(url, end) == expected)
    answers_ms = []
    for _ in range(_QUERIES):
        begin_s = time.perf_counter()
        found = _get(
            url,
            "query_range",
            query=QUERY,
            start=(end - _HOUR_MS) / 1000,
            end=end / 1000,
            step=STEP_MS / 1000,
            nocache=1,
        )
        answers_ms.append((time.perf_counter() - begin_s) * 1000)
        assert len(found) == 3
    return HttpFigures(counters.values.size / took_s, median(answers_ms))


def _send(url: Url, bodies: Sequence[bytes], level: threading.Barrier) -> None:
    """Send the bodies, none before all connections have sent the one before.

    Prometheus refuses samples that are an hour older than the newest that it has.
    """
    connection = http.client.HTTPConnection(
        urllib.parse.urlsplit(url).netloc, timeout=_SEND_TIMEOUT_S
    )
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    for body in bodies:
        connection.request("POST", "/api/v1/write", body, headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status // 100 != 2:
            level.abort()
            raise RuntimeError(f"{url} answered {answer.status}: {said[:200]!r}")
        level.wait()
    connection.close()


def _value_at(url: Url, end: int) -> float:
    query = "sum(last_over_time(http_requests_total[14s]))"
    found = _get(url, "query", query=query, time=end / 1000, nocache=1)
    return float(found[0]["value"][1]) if found else 0.0


def _until_visible(check: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _VISIBLE_TIMEOUT_S
    while not check():
        if time.monotonic() > deadline_s:
            raise TimeoutError("what was written cannot be queried")
        time.sleep(_POLL_S)


def _get(url: Url, path: str, **parameters: object) -> list[dict[str, list[str]]]:
    form = urllib.parse.urlencode(parameters)
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    connection.request("GET", f"/api/v1/{path}?{form}")
    answer = json.loads(connection.getresponse().read())
    connection.close()
    if answer["status"] != "success":
        raise RuntimeError(f"{url} answered {answer}")
    result: list[dict[str, list[str]]] = answer["data"]["result"]
    return result


@contextmanager
def _serving(path: Path) -> Iterator[Url]:
    with child("-m", "headrace.bench.bench_timeseries", str(path)) as server:
        assert server.stdout
        yield server.stdout.readline().strip()


def _serve(path: str) -> None:
    store = open_timeseries(path)
    with HttpServer(TIMESERIES_KIND.routes(store), ServiceSettings()) as server:
        print(server.address, flush=True)
        sys.stdin.read()
    store.close()


if __name__ == "__main__":
    _serve(sys.argv[1])
