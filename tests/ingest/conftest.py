"""Coordinators that run, on storage that a test holds or fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from headrace.errors import HeadraceError
from headrace.ingest.ingest_handle import Coordinator, IngestHandle
from headrace.settings import IngestSettings
from tests.ingest.memory_store import MapDelta, MapHandler, MapSnapshot

Handle = IngestHandle[MapDelta, MapSnapshot]
Start = Callable[..., Handle]

LIMIT_S = 20.0


@pytest.fixture
def handler() -> MapHandler:
    return MapHandler()


@pytest.fixture
def start(handler: MapHandler) -> Iterator[Start]:
    """Start coordinators whose timers never ring; end what the test left running."""
    started: list[Handle] = []

    def start_one(new_delta: type[MapDelta] = MapDelta, **settings: float) -> Handle:
        chosen = msgspec.convert({"flush_interval_s": 3600.0, **settings}, IngestSettings)
        coordinator = Coordinator(handler, new_delta, MapSnapshot(), chosen, "the store")
        started.append(coordinator.start())
        return started[-1]

    yield start_one
    handler.flushes_allowed.set()
    handler.syncs_allowed.set()
    for handle in started:
        try:
            handle.shutdown(LIMIT_S)
        except HeadraceError:
            assert handle.metrics().failures


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so. Fails after `LIMIT_S`."""
    deadline_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it never was so"
        threading.Event().wait(0.002)
