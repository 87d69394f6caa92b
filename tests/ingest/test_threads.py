"""Many writers and readers, on storage in a real file."""

from __future__ import annotations

import gc
import json
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import QueueFullError
from headrace.ingest.contract import FlushResult
from headrace.ingest.ingest_handle import Coordinator
from headrace.settings import IngestSettings
from tests.ingest.conftest import LIMIT_S, Handle, Start, until
from tests.ingest.memory_store import ROW_BYTES, MapDelta, MapHandler, MapSnapshot, rows_of

WRITERS = 4
WRITES = 400


class FileHandler:
    """Appends a line of JSON for each flush, and syncs the file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lines = 0
        self._running = threading.Lock()
        self.synced = 0

    def execute_flush(self, delta: MapDelta, snapshot: MapSnapshot) -> FlushResult[MapSnapshot]:
        assert self._running.acquire(blocking=False), "one flush at a time"
        try:
            self._file.write(json.dumps(delta.rows).encode() + b"\n")
            self._lines += 1
            return FlushResult(MapSnapshot(snapshot | delta.rows), self._lines)
        finally:
            self._running.release()

    def wait_durable(self, sequence: int) -> None:
        assert sequence <= self._lines
        os.fsync(self._file.fileno())
        self.synced = sequence

    def close(self) -> None:
        self._file.close()


def stored_rows(path: Path) -> dict[str, int]:
    rows: dict[str, int] = {}
    for line in path.read_text().splitlines():
        rows |= json.loads(line)
    return rows


@contextmanager
def file_store(path: Path, settings: IngestSettings) -> Iterator[Handle]:
    handler = FileHandler(path)
    try:
        with Coordinator(handler, MapDelta, MapSnapshot(), settings, "file").start() as handle:
            yield handle
    finally:
        handler.close()


# proves G23, G24
def test_writers_find_their_writes_and_readers_never_go_back(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    settings = IngestSettings(
        commands_max=50, pending_bytes_max=100 * ROW_BYTES, flush_interval_s=0.005
    )
    done = threading.Event()

    def write(handle: Handle, name: str) -> None:
        for number in range(1, WRITES + 1):
            epoch = handle.write(MapDelta({name: number}), LIMIT_S)
            if number % 40 == 0:
                view = handle.view()
                assert view.epoch >= epoch
                assert {**view.snapshot, **rows_of(view.deltas)}[name] == number
            if number % 100 == 0:
                assert handle.flush(epoch, LIMIT_S) == epoch
                assert stored_rows(path)[name] >= number
                assert handle.snapshot()[name] >= number

    def read(handle: Handle) -> int:
        subscription, seen, changes = handle.subscribe(), MapSnapshot(), 0
        while not done.is_set():
            newest, epoch = subscription.newest, subscription.epoch
            assert all(newest[name] >= number for name, number in seen.items())
            assert epoch >= sum(newest.values()) / WRITES
            changes += newest is not seen
            seen = newest
        return changes

    with file_store(path, settings) as handle, ThreadPoolExecutor(WRITERS + 2) as threads:
        readers = [threads.submit(read, handle) for _ in range(2)]
        writers = [threads.submit(write, handle, f"writer {each}") for each in range(WRITERS)]
        try:
            for writer in writers:
                writer.result(3 * LIMIT_S)
        finally:
            done.set()
        assert sum(reader.result(LIMIT_S) for reader in readers) > 0
    assert stored_rows(path) == {f"writer {each}": WRITES for each in range(WRITERS)}


def load_for(seconds: float, path: Path) -> tuple[int, int, int]:
    """Let four writers write faster than the disk; return writes, refusals and the most bytes."""
    settings = IngestSettings(pending_bytes_max=200 * ROW_BYTES, commands_max=100)
    over = threading.Event()

    class SlowFileHandler(FileHandler):
        def wait_durable(self, sequence: int) -> None:
            threading.Event().wait(0.005)
            super().wait_durable(sequence)

    def write(handle: Handle, name: str) -> int:
        number = 0
        delta = MapDelta({name: 1})
        while not over.is_set():
            try:
                handle.write(delta)
            except QueueFullError:
                assert delta.rows == {name: number + 1}, "it was handed back as it was"
                handle.write(delta, LIMIT_S)
            number += 1
            if number % 500 == 0:
                handle.flush(timeout_s=LIMIT_S)
            delta = MapDelta({name: number + 1})
        return number

    handler = SlowFileHandler(path)
    most = 0
    with Coordinator(handler, MapDelta, MapSnapshot(), settings, "slow").start() as handle:
        with ThreadPoolExecutor(WRITERS) as threads:
            writers = [threads.submit(write, handle, f"writer {each}") for each in range(WRITERS)]
            timer = threading.Timer(seconds, over.set)
            timer.start()
            while not over.wait(0.002):
                figures = handle.metrics()
                held = figures.queued_bytes + figures.pending_bytes + figures.frozen_bytes
                most = max(most, held)
                assert held <= settings.pending_bytes_max
                assert figures.queued_writes <= settings.commands_max
                assert figures.undurable_s < LIMIT_S
            written = [writer.result(LIMIT_S) for writer in writers]
            timer.join()
        handle.flush(timeout_s=LIMIT_S)
        figures = handle.metrics()
        assert figures.durable_epoch == figures.epoch == sum(written)
        assert figures.waiters == 0
    handler.close()
    assert stored_rows(path) == {f"writer {each}": number for each, number in enumerate(written)}
    return sum(written), figures.refused_writes, most


# proves G23
def test_writers_faster_than_the_disk_are_held_back_and_none_hangs(tmp_path: Path) -> None:
    written, refused, _ = load_for(0.8, tmp_path / "rows")
    assert refused > 10
    assert written > refused


@pytest.mark.deep
def test_a_minute_of_writers_faster_than_the_disk(tmp_path: Path) -> None:
    before = resident_bytes()
    written, refused, most = load_for(60, tmp_path / "rows")
    grown = resident_bytes() - before
    print(f"{written} writes, {refused} refused, at most {most} bytes held, grown by {grown} bytes")
    assert refused > 1000
    assert grown < 64 * 1024 * 1024


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_snapshot_that_no_reader_holds_is_freed(handler: MapHandler, start: Start) -> None:
    """A snapshot may keep a store from using its space again."""
    handle = start()
    handle.write_durable(MapDelta({"a": 1}), LIMIT_S)
    subscription = handle.subscribe()
    old = weakref.ref(handle.snapshot())
    held = handle.snapshot()
    subscription.newest.get("a")
    handle.write_durable(MapDelta({"a": 2}), LIMIT_S)
    assert old() is held
    del held
    until(lambda: old() is None)
    assert subscription.newest == {"a": 2}


def test_flushed_rows_are_freed(handler: MapHandler, start: Start) -> None:
    flushed: list[weakref.ref[MapDelta]] = []
    flush = handler.execute_flush

    def noting(delta: MapDelta, snapshot: MapSnapshot) -> FlushResult[MapSnapshot]:
        flushed.append(weakref.ref(delta))
        return flush(delta, snapshot)

    handler.execute_flush = noting  # type: ignore[method-assign]
    handle = start()
    handler.syncs_allowed.clear()
    epoch = handle.write(MapDelta({"a": 1}))
    with ThreadPoolExecutor(1) as threads:
        durable = threads.submit(handle.flush, epoch)
        until(lambda: len(flushed) == 1 and flushed[0]() is None)
        handler.syncs_allowed.set()
        durable.result(LIMIT_S)
