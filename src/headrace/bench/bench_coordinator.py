"""How many small writes the write coordinator takes, until all of them are durable in a file.

The yardstick is what Python's own queue moves from the same threads to one that merges and writes
the same bytes, with one sync at the end: no epochs, no limits and no snapshots.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import median, quantiles

from headrace.bench.steps import step
from headrace.ingest.contract import FlushResult
from headrace.ingest.ingest_handle import Coordinator, IngestHandle
from headrace.settings import IngestSettings

_WRITES = 1_000_000
_WRITERS = 2
_BATCH = 1000
_ROW = b"a small write, as long as the labels and the value of a sample."
_ROUNDS = 5
_DURABLE_WRITES = 200


class RowsDelta:
    """Rows of one length, in the order in which they were written."""

    __slots__ = ("rows",)

    def __init__(self, rows: list[bytes] | None = None) -> None:
        self.rows = [] if rows is None else rows

    @property
    def is_empty(self) -> bool:
        return not self.rows

    @property
    def size_bytes(self) -> int:
        return len(_ROW) * len(self.rows)

    def merge(self, other: RowsDelta) -> None:
        self.rows += other.rows

    def copy(self) -> RowsDelta:
        return RowsDelta(self.rows.copy())


class RowFile:
    """Appends the rows of a flush to a file. Its snapshot is how many rows there are."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def execute_flush(self, delta: RowsDelta, snapshot: int) -> FlushResult[int]:
        self._file.write(b"".join(delta.rows))
        rows = snapshot + len(delta.rows)
        return FlushResult(rows, rows)

    def wait_durable(self, sequence: int) -> None:
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


Handle = IngestHandle[RowsDelta, int]


def bench_coordinator(directory: Path, scale: float = 1.0) -> dict[str, float]:
    """Measure batches of writes and single ones, until all are durable; then durable ones alone."""
    directory.mkdir()
    writes = max(_BATCH * _WRITERS, int(_WRITES * scale))
    writes -= writes % (_BATCH * _WRITERS)
    batches: list[float] = []
    single: list[float] = []
    plain: list[float] = []
    for number in range(_ROUNDS):
        step(f"round {number + 1} of {_ROUNDS}: {writes:,} small writes, three ways")
        path = directory / f"rows-{number}"
        plain.append(_plain_writes_per_s(path, writes))
        batches.append(_writes_per_s(path, writes, _write_batches))
        single.append(_writes_per_s(path, writes, _write_one_by_one))
    step(f"{_DURABLE_WRITES} writes, each durable before the next")
    return {
        "writes_per_s": median(batches),
        "single_writes_per_s": median(single),
        "queue_writes_per_s": median(plain),
        "ratio_to_queue": median(a / b for a, b in zip(batches, plain, strict=True)),
        **_durable_write_ms(directory / "durable"),
        "writes": writes,
    }


def _write_batches(handle: Handle, writes: int) -> None:
    for _ in range(writes // _BATCH):
        handle.write_all([RowsDelta([_ROW]) for _ in range(_BATCH)], None)


def _write_one_by_one(handle: Handle, writes: int) -> None:
    for _ in range(writes):
        handle.write(RowsDelta([_ROW]), None)


def _writes_per_s(path: Path, writes: int, write: Callable[[Handle, int], None]) -> float:
    """Make the deltas, write them from several threads, and wait until all are durable."""
    file = RowFile(path)
    handle = Coordinator(file, RowsDelta, 0, IngestSettings(), "bench").start()
    begin_s = time.perf_counter()
    _in_threads(lambda: write(handle, writes // _WRITERS))
    handle.flush()
    took_s = time.perf_counter() - begin_s
    handle.shutdown()
    assert handle.snapshot() == writes
    file.close()
    path.unlink()
    return writes / took_s


def _plain_writes_per_s(path: Path, writes: int) -> float:
    """Let a thread merge what others put into a queue, one list of deltas at a time."""
    moved: SimpleQueue[Sequence[RowsDelta] | None] = SimpleQueue()
    file = RowFile(path)

    def merge_all() -> None:
        merged = RowsDelta()
        while (deltas := moved.get()) is not None:
            for delta in deltas:
                merged.merge(delta)
        file.execute_flush(merged, 0)
        file.wait_durable(0)

    def write() -> None:
        for _ in range(writes // _WRITERS // _BATCH):
            moved.put([RowsDelta([_ROW]) for _ in range(_BATCH)])

    begin_s = time.perf_counter()
    merger = threading.Thread(target=merge_all)
    merger.start()
    _in_threads(write)
    moved.put(None)
    merger.join()
    took_s = time.perf_counter() - begin_s
    file.close()
    path.unlink()
    return writes / took_s


def _in_threads(write: Callable[[], None]) -> None:
    with ThreadPoolExecutor(_WRITERS) as threads:
        for each in [threads.submit(write) for _ in range(_WRITERS)]:
            each.result()


def _durable_write_ms(path: Path) -> dict[str, float]:
    """Measure one writer that waits for each of its writes, and the disk's own sync."""
    file = RowFile(path)
    took_ms = []
    with Coordinator(file, RowsDelta, 0, IngestSettings(), "bench").start() as handle:
        for _ in range(_DURABLE_WRITES):
            begin_s = time.perf_counter()
            handle.write_durable(RowsDelta([_ROW]))
            took_ms.append((time.perf_counter() - begin_s) * 1000)
    sync_ms = []
    for number in range(_DURABLE_WRITES):
        begin_s = time.perf_counter()
        file.execute_flush(RowsDelta([_ROW]), number)
        file.wait_durable(number)
        sync_ms.append((time.perf_counter() - begin_s) * 1000)
    file.close()
    path.unlink()
    return {
        "durable_p50_ms": median(took_ms),
        "durable_p99_ms": quantiles(took_ms, n=100)[-1],
        "disk_sync_p50_ms": median(sync_ms),
        "disk_sync_p99_ms": quantiles(sync_ms, n=100)[-1],
    }
