"""Publishing and reading back, against the disk's own rate."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import headrace
from headrace.bench.disk import sequential_write_rate
from headrace.settings import KIB, MIB

SCHEMA = "id long, account string, cents long, note string"
_ROUNDS = 5
_IN_FLIGHT = 64


def documents(count: int, note_bytes: int, seed: int = 0) -> pa.RecordBatch:
    """Made-up documents whose columns take about 32 bytes and the note."""
    random = np.random.default_rng(seed)
    letters = random.integers(97, 123, count * note_bytes, np.uint8).tobytes()
    offsets = np.arange(0, count * note_bytes + 1, note_bytes, dtype=np.int32)
    note = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(letters))
    accounts = pa.array(np.char.add("a", random.integers(0, 10_000, count).astype(str)))
    return pa.record_batch(
        {
            "id": pa.array(np.arange(count)),
            "account": accounts.cast(pa.string()),
            "cents": pa.array(random.integers(-10_000, 10_000, count)),
            "note": note,
        }
    )


def publish(
    workspace: headrace.Workspace, name: str, batch: pa.RecordBatch, transactions: int
) -> float:
    """Seconds for that many transactions of one frame each, all synced at the end."""
    collection = workspace.collection(name, SCHEMA, key="account")
    publisher = workspace.publisher(f"bench {name}")
    in_flight: deque[headrace.PendingCommit] = deque()
    begin = time.perf_counter()
    for _ in range(transactions):
        transaction = publisher.begin()
        transaction.append(collection, batch)
        in_flight.append(transaction.commit_nowait())
        if len(in_flight) > _IN_FLIGHT:
            in_flight.popleft().result()
    for pending in in_flight:
        pending.result()
    seconds = time.perf_counter() - begin
    publisher.close()
    return seconds


def bench_journal(directory: Path, mib: int = 256) -> dict[str, float]:
    """Rates of synced publishing and of committed reading; medians of the rounds."""
    frame = documents(64 * KIB // 100, 68)
    frame_bytes = len(frame.serialize())
    frames = mib * MIB // frame_bytes
    thousand = documents(1000, 68)
    ratios, disk_rates, publish_rates, document_rates, read_rates = [], [], [], [], []
    with headrace.open(directory / "workspace") as workspace:
        for round in range(_ROUNDS):
            disk = sequential_write_rate(directory, frames * frame_bytes, 64 * KIB)
            seconds = publish(workspace, f"bench/frames-{round}", frame, frames)
            rate = frames * frame_bytes / seconds
            disk_rates.append(disk)
            publish_rates.append(rate)
            ratios.append(rate / disk)
            name = f"bench/documents-{round}"
            count = mib * 10
            document_rates.append(count * 1000 / publish(workspace, name, thousand, count))
            begin = time.perf_counter()
            read = sum(batch.num_rows for batch in workspace.read(name))
            read_rates.append(read / (time.perf_counter() - begin))
            assert read == count * 1000
    return {
        "ratio_to_disk": median(ratios),
        "docs_per_s": median(document_rates),
        "read_docs_per_s": median(read_rates),
        "disk_mib_per_s": median(disk_rates) / MIB,
        "publish_mib_per_s": median(publish_rates) / MIB,
        "document_bytes": len(thousand.serialize()) / 1000,
        "frame_kib": frame_bytes / KIB,
    }
