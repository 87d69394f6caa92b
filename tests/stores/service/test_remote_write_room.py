"""A remote write waits for room, for as long as its sender is patient."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import numpy as np
import pytest
from starlette.applications import Starlette

from headrace.errors import QueueFullError
from headrace.settings import IngestSettings
from headrace.stores.kv.contract import WriteSequence
from headrace.stores.kv.memory_store import MemoryKeyValueStore
from headrace.stores.service import shared_timeseries
from headrace.stores.service.shared_timeseries import TIMESERIES_KIND
from headrace.stores.timeseries.input.remote_write_encoder import encode_remote_write
from headrace.stores.timeseries.series import SelectedSeries
from headrace.stores.timeseries.timeseries_store import TimeSeriesStore
from headrace.testing.crash import eventually
from tests.stores.timeseries.asgi_client import AsgiClient
from tests.stores.timeseries.sample_rows import rows_of

BODY = encode_remote_write(
    SelectedSeries([(("__name__", "up"),)], np.array([0, 1]), np.zeros(1, np.int64), np.ones(1))
)


class SlowStore(MemoryKeyValueStore):
    """Memory that is durable only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()

    def wait_durable(self, sequence: WriteSequence) -> None:
        self.may_sync.wait()


@pytest.fixture
def kv() -> SlowStore:
    return SlowStore()


@pytest.fixture
def store(kv: SlowStore) -> Iterator[TimeSeriesStore]:
    with closing(TimeSeriesStore(kv, ingest=IngestSettings(pending_bytes_max=1_000))) as store:
        try:
            yield store
        finally:
            kv.may_sync.set()


def fill(store: TimeSeriesStore) -> None:
    with suppress(QueueFullError):
        for number in range(100):
            store.write(rows_of([("filler", number, 1.0)]))


def test_a_remote_write_waits_for_room_and_gives_up_in_time(
    kv: SlowStore, store: TimeSeriesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = AsgiClient(Starlette(routes=TIMESERIES_KIND.routes(store)))
    fill(store)
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(client.post, "/api/v1/write", content=BODY)
        queue = store._handle.actor._queue
        eventually(lambda: sent.done() or queue.waiting, 20, "the write waits for room")
        kv.may_sync.set()
        assert sent.result().status_code == 204
    kv.may_sync.clear()
    fill(store)
    monkeypatch.setattr(shared_timeseries, "_ROOM_S", 0.01)
    assert client.post("/api/v1/write", content=BODY).status_code == 503
