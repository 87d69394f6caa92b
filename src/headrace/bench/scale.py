"""Very many journals through many members: opening, idling, and one transaction in all of it."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace
from headrace.bench.disk import small_syncs
from headrace.bench.processes import cpu_s, owner, peak_mib
from headrace.shuffle.local import LocalMembers

_IDLE_S = 5.0
_TRANSACTIONS = 100
_MOVED = 1000
_PART = 10_000
_LOOK_AGAIN_S = 0.05


def bench_scale(
    directory: Path, journals: int = 100_000, members: int = 10, seed: int = 0
) -> dict[str, float]:
    """The owner and the members are processes. A transaction takes from its commit until shown.

    `open_s` is until every journal is read to its head. `streams` are counted at the members; idle
    CPU is that of all processes, as a share of one core. Deltas are of journals known before.
    """
    place = directory / "workspace"
    with owner(place) as owning, headrace.open(place) as workspace:
        collection = workspace.collection("bench", "id long", key="id", journals=journals)
        ids = np.random.default_rng(seed).integers(0, 1 << 62, journals)
        for at in range(0, journals, _PART):
            workspace.append(collection, _batch(ids[at : at + _PART]))
        with LocalMembers(members, directory, processes=True) as local:
            begin = time.perf_counter()
            with headrace.Shuffle(
                workspace,
                [headrace.Binding(collection="bench")],
                local.addresses,
                service=local.service,
            ) as shuffle:
                _settle(shuffle, journals)
                open_s = time.perf_counter() - begin
                _catch_up(shuffle, journals)
                processes = [os.getpid(), owning, *local.processes]
                cpu, wall = cpu_s(processes), time.monotonic()
                time.sleep(_IDLE_S)
                idle_cpu = (cpu_s(processes) - cpu) / (time.monotonic() - wall)
                visible_ms, syncs_ms = _transactions(directory, workspace, shuffle, seed)
                one = _delta_bytes(workspace, shuffle, ids[:1])
                moved = ids[: min(_MOVED, journals)]
                many = _delta_bytes(workspace, shuffle, moved)
                return {
                    "journals": journals,
                    "members": members,
                    "open_s": open_s,
                    "streams": local.streams(),
                    "idle_cpu": idle_cpu,
                    "visible_p50_ms": float(np.percentile(visible_ms, 50)),
                    "visible_p99_ms": float(np.percentile(visible_ms, 99)),
                    "disk_sync_p50_ms": float(np.percentile(syncs_ms, 50)),
                    "member_mib": max(peak_mib(each) for each in local.processes),
                    "delta_bytes_1": one,
                    f"delta_bytes_{_MOVED}": many,
                }


def _batch(ids: object) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())})


def _settle(shuffle: headrace.Shuffle, journals: int) -> None:
    while not (status := shuffle.status()).settled or status.places < journals:
        time.sleep(_LOOK_AGAIN_S)


def _catch_up(shuffle: headrace.Shuffle, count: int) -> int:
    """Takes and reads checkpoints until so many documents were shown; the bytes of the deltas."""
    found = size = 0
    while found < count:
        if checkpoint := shuffle.next_checkpoint(60):
            size += len(checkpoint.delta.encode())
            for member in range(shuffle.members):
                found += sum(batch.num_rows for _, batch in shuffle.read(member, checkpoint))
            shuffle.release(checkpoint)
    return size


def _transactions(
    directory: Path, workspace: headrace.Workspace, shuffle: headrace.Shuffle, seed: int
) -> tuple[list[float], list[float]]:
    """Milliseconds for each of some small transactions, and for small synced writes between."""
    pick = random.Random(seed)
    visible_ms, syncs_ms = [], []
    with small_syncs(directory) as sync_s:
        for _ in range(_TRANSACTIONS):
            begin = time.perf_counter()
            with workspace.publisher() as transaction:
                transaction.append("bench", [{"id": pick.getrandbits(62)} for _ in range(3)])
            found = 0
            while not found:
                checkpoint = shuffle.next_checkpoint(60)
                assert checkpoint, "nothing became visible"
                shown_at = time.perf_counter()
                for member in range(shuffle.members):
                    found += sum(batch.num_rows for _, batch in shuffle.read(member, checkpoint))
                shuffle.release(checkpoint)
            assert found == 3, "half of a transaction"
            visible_ms.append((shown_at - begin) * 1e3)
            syncs_ms.append(sync_s() * 1e3)
    return visible_ms, syncs_ms


def _delta_bytes(
    workspace: headrace.Workspace, shuffle: headrace.Shuffle, ids: np.typing.NDArray[np.int64]
) -> int:
    """How large checkpoints are when the journals of these ids have moved."""
    for _ in range(2):  # the first may name journals
        workspace.append("bench", _batch(ids))
        size = _catch_up(shuffle, len(ids))
    return size
