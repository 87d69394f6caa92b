"""Compares publishing and reading back with the disk's own rate."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import headrace
from headrace.bench.peers.disk_rates import sequential_write_rate
from headrace.bench.steps import step
from headrace.settings import KIB, MIB

SCHEMA = "id long, account string, cents long, note string"
_ROUNDS = 5
_IN_FLIGHT = 64
_FRAMES = 16


def documents(count: int, note_bytes: int, seed: int = 0) -> pa.RecordBatch:
    """Return generated documents whose columns take about 32 bytes plus the note."""
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
    workspace: headrace.Workspace,
    name: str,
    batches: Sequence[pa.RecordBatch],
    transactions: int,
    journals: int = 1,
) -> float:
    """Publish transactions, each of the next batch, and return the seconds until all are synced."""
    collection = workspace.collection(name, SCHEMA, key="account", journals=journals)
    publisher = workspace.publisher(f"bench {name}")
    in_flight: deque[headrace.PendingCommit] = deque()
    begin = time.perf_counter()
    for number in range(transactions):
        transaction = publisher.begin()
        transaction.append(collection, batches[number % len(batches)])
        in_flight.append(transaction.commit_nowait())
        if len(in_flight) > _IN_FLIGHT:
            in_flight.popleft().result()
    for pending in in_flight:
        pending.result()
    seconds = time.perf_counter() - begin
    publisher.close()
    return seconds


def bench_journal(directory: Path, mib: int = 256) -> dict[str, float]:
    """Measure the rates of synced publishing and of committed reading; return medians of rounds.

    `ratio_to_disk` is for 64 KiB frames in transactions of 1 MiB. `small_ratio_to_disk` is for the
    same frames, each in a transaction of its own.
    """
    frame = documents(64 * KIB // 100, 68)
    transaction = pa.concat_batches([frame] * _FRAMES)
    frame_bytes = len(frame.serialize())
    total_bytes = mib * MIB // (frame_bytes * _FRAMES) * frame_bytes * _FRAMES
    thousand = documents(1000, 68)
    rates: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> float:
        rates.setdefault(name, []).append(rate)
        return rate

    settings = headrace.Settings(
        journal=headrace.JournalSettings(frame_bytes_target=transaction.nbytes // _FRAMES)
    )
    with headrace.open(directory / "workspace", settings=settings) as workspace:
        for round in range(_ROUNDS):
            step(f"round {round + 1} of {_ROUNDS}: {mib} MiB to the disk, to journals and back")
            yardstick = directory / f"yardstick-{round}"
            disk = note("disk", sequential_write_rate(yardstick, total_bytes, 64 * KIB))
            whole = f"bench/whole-{round}"
            seconds = publish(
                workspace, whole, [transaction], total_bytes // (frame_bytes * _FRAMES)
            )
            note("ratio", note("publish", total_bytes / seconds) / disk)
            seconds = publish(
                workspace, f"bench/small-{round}", [frame], total_bytes // frame_bytes
            )
            note("small_ratio", total_bytes / seconds / disk)
            count = mib * 10
            name = f"bench/documents-{round}"
            note("documents", count * 1000 / publish(workspace, name, [thousand], count))
            begin = time.perf_counter()
            read = sum(batch.num_rows for batch in workspace.read(name))
            note("read", read / (time.perf_counter() - begin))
            assert read == count * 1000
        [journal] = workspace.journals(headrace.selector(whole))
        frames = list(workspace.frames(journal))
    return {
        "ratio_to_disk": median(rates["ratio"]),
        "small_ratio_to_disk": median(rates["small_ratio"]),
        "docs_per_s": median(rates["documents"]),
        "read_docs_per_s": median(rates["read"]),
        "disk_mib_per_s": median(rates["disk"]) / MIB,
        "publish_mib_per_s": median(rates["publish"]) / MIB,
        "document_bytes": len(thousand.serialize()) / 1000,
        "frame_kib": sum(len(frame.body) for frame in frames) / len(frames) / KIB,
    }
